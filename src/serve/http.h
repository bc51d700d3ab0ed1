/*
 * A small HTTP/1.1 server over libevent's buffers: connections, limits, time-outs, keep-alive, replies whole
 * or chunked. One thread, that of the event loop. Knows no routes and no JSON.
 *
 * Bounds: a head, a body, an output buffer per connection, and a number of connections. A client that sends
 * too slowly or reads too slowly is dropped; one that closes is noticed at once, also while a request waits.
 * Requests that a client sends ahead on one connection wait in the socket and are answered in order.
 *
 * Why not libevent's own evhttp (2.1): its refusals are HTML pages that cannot be replaced, its one time-out
 * cannot tell a slow head from a slow body, and its output has no bound.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_HTTP_H
#define ESP_SERVE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#include "serve/http_parse.h"

struct event_base;
struct esp_guard;
struct esp_http;
struct esp_http_request;

struct esp_http_opts {
    size_t max_head, max_uri, max_body;
    size_t max_output; /* bytes that wait for one client */
    uint32_t max_connections;
    uint32_t backlog;
    double header_timeout, body_timeout, write_timeout, keepalive_timeout; /* seconds; 0: none */
    /* A request is whole. Answer now or later; until the reply has ended or on_gone was called, r is valid.
     */
    void (*handle)(void *user, struct esp_http_request *r);
    /* A request that cannot be read (400, 408, 413, 414, 431, 501, 505): answer with esp_http_reply(). The
     * connection closes afterwards. Head fields are empty when the head itself is what is wrong. */
    void (*refuse)(void *user, struct esp_http_request *r, int status, const char *why);
    /* What was said in a turn of the loop has been handed to the sockets; NULL: not wanted. */
    void (*sent)(void *user);
    void *user;
    struct esp_guard *guard; /* NULL: nobody speaks for us when we are gone */
};

esp_status esp_http_open(struct esp_http **out, struct event_base *base, const struct esp_http_opts *o,
                         esp_error *err);
/* max_body, max_output and the times of o, for requests that begin from now on. */
void esp_http_set_limits(struct esp_http *h, const struct esp_http_opts *o);
/* Closes every connection without calling on_gone. NULL is a no-op. */
void esp_http_close(struct esp_http *h);
/* The same on a socket that listens already. */
esp_status esp_http_inherit(struct esp_http *h, int fd, uint16_t *bound, esp_error *err);
/* "127.0.0.1", "::1", "unix:/path"; port 0 takes a free one, *bound is the port in use (0 for a socket
 * file). A stale socket file is replaced, any other file refused. ESP_EIO with the reason. */
esp_status esp_http_listen(struct esp_http *h, const char *host, uint16_t port, uint16_t *bound,
                           esp_error *err);
/* Stop listening, close what is idle, and close every other connection when its reply has ended. */
void esp_http_drain(struct esp_http *h);
uint32_t esp_http_connections(const struct esp_http *h);

struct esp_http_request {
    struct esp_http_head head;
    const char *body; /* zero-terminated */
    size_t body_len;
    char peer[64]; /* address without port, or "unix" */
    /* Set by the handler: the client closed, or did not read for write_timeout, or fell max_output behind
     * (slow); r is gone after the call. Not called once the reply has ended. */
    void (*on_gone)(void *owner, bool slow);
    void *owner;
};

/* The body for the handler to keep, zero-terminated, for esp_free(); r has none then. NULL: no memory. */
char *esp_http_take_body(struct esp_http_request *r, size_t *len);
/* Headers of the reply, before it begins. Values with line breaks are a bug of ours. */
void esp_http_header(struct esp_http_request *r, const char *name, const char *value);
/* A whole reply; r is gone afterwards. type NULL: no body. */
void esp_http_reply(struct esp_http_request *r, int status, const char *type, const char *body, size_t len);
/* A reply in pieces: each is on its way when the event loop turns. After write, r may be gone: that was told
 * by on_gone, and write returns false. */
void esp_http_begin(struct esp_http_request *r, int status, const char *type);
bool esp_http_write(struct esp_http_request *r, const char *data, size_t len);
void esp_http_end(struct esp_http_request *r);
/* What the client is told if this process dies before the reply has ended: before the reply begins a whole
 * one with this status, in a stream a last piece. Nothing without a guard. */
bool esp_http_is_guarded(const struct esp_http_request *r);
void esp_http_last_words(struct esp_http_request *r, int status, const char *text, size_t len);

#endif
