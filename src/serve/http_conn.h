/*
 * What the two halves of the HTTP server share: http.c reads requests and owns connections, http_reply.c
 * writes replies. Private to them.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_HTTP_CONN_H
#define ESP_SERVE_HTTP_CONN_H

#include "base/strbuf.h"

#include "serve/http.h"
#include "serve/http_late.h"
#include "serve/http_listen.h"

struct bufferevent;
struct event;
struct evbuffer;

enum {
    ESP_HTTP_READ_AHEAD = 64 << 10,
    ESP_HTTP_HEADER_BYTES = 8 << 10,
    ESP_HTTP_FRAMES = 64 << 10 /* bytes around chunks */
};

enum esp_conn_state {
    ESP_CONN_HEAD,
    ESP_CONN_BODY,
    ESP_CONN_HANDLING, /* the handler has the request; the reply has not begun */
    ESP_CONN_STREAMING,
    ESP_CONN_FINISHING, /* the reply has ended and is on its way */
    ESP_CONN_LINGERING, /* said all, closed for writing: swallow what still comes, else the reply is lost */
    ESP_CONN_DEAD
};

struct esp_conn {
    struct esp_http_request r; /* first: a request is its connection */
    struct esp_http *http;
    struct esp_conn *next, **prev;
    struct bufferevent *bev;
    struct event *timer;
    enum esp_conn_state state;
    bool close_after, busy, first_done; /* busy: inside a callback of ours */
    bool is_head;                       /* HEAD: no body in the reply */
    bool has_words;                     /* last ones, of the stream */
    bool silent;                        /* and they must not be said before what waits is out */
    bool chunked_out;
    struct esp_strbuf head_text, body, headers;
    struct esp_http_chunks chunks;
    int guarded;          /* its number there; -1: it is not */
    struct esp_late late; /* what goes out at the end of this turn */
};

struct esp_http {
    struct esp_http_opts o;
    struct event_base *base;
    struct esp_listeners listeners;
    struct esp_late_list late;
    struct esp_conn *conns;
    uint32_t n_conn;
    bool draining;
};

/* ---- http.c ---- */

struct evbuffer *esp_conn_output(struct esp_conn *c);
/* The one timer of the connection; 0: none. */
void esp_conn_arm(struct esp_conn *c, double seconds);
/* The connection has no future: tell the owner of an unfinished request. Freed now, or by the callback
 * that is running. */
void esp_conn_kill(struct esp_conn *c, bool slow);
/* The reply has been written out; the next request may be at hand already. c may be gone afterwards. */
void esp_conn_reply_done(struct esp_conn *c);

/* ---- http_reply.c ---- */

/* What was to be said has been said, as far as the socket has taken it: all of it, or some of it waits. */
void esp_conn_sent(void *conn);
void esp_conn_stuck(void *conn);

#endif
