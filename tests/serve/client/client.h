/*
 * A server in this process and a plain client for it: bytes in, bytes out, so that a test says exactly what
 * goes over the wire.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_SERVE_CLIENT_H
#define ESP_TESTS_SERVE_CLIENT_H

#include "support/support.h"

#include <stdbool.h>

#include "base/strbuf.h"
#include "serve/serve.h"

struct server {
    struct esp_serve_opts o;
    esp_engine_opts engine;
    const char *model;  /* folder in the checkout, or anywhere with a / in front */
    bool no_unload;     /* the model stays: the server cannot sleep */
    const char *device; /* what the server is told of the engine: "cuda:0"; NULL: the host */
    uint16_t port;
    char socket[104]; /* of unix:..., else "" */
    /* Private. */
    void *thread;
    int stop, ready, failed; /* atomics */
    double load_delay;
    esp_error err;
    struct esp_strbuf log;
};

/* Options with defaults; change them, then start. */
void server_init(struct server *s);
/* Listen and load; returns when ready, or with delay when listening. */
void server_start(struct server *s);
/* Ask it to stop, as a signal would. */
void server_ask_stop(struct server *s);
/* Wait until it has ended; status of esp_serve(). */
esp_status server_join(struct server *s);
/* Both, failing the test unless it ended well. */
void server_stop(struct server *s);
/* How often the log has the text now. */
int server_log_count(struct server *s, const char *text);
/* Whether the log has the text; waits for it a little. */
bool server_logged(struct server *s, const char *text);

int client_connect(const struct server *s);
void client_send(int fd, const char *text);
/* Read until the text has come, the peer closes, or seconds are over; everything read so far is in out. */
bool client_until(int fd, struct esp_strbuf *out, const char *text, double seconds);

struct reply {
    int status;
    char *head; /* status line and headers */
    char *body; /* chunks joined; zero-terminated */
    size_t len;
    json_t *json; /* of the body, or NULL */
};
/* One reply from fd; leaves the connection as it is. Fails the test when none comes within 60 s. */
struct reply client_reply(int fd, bool head_only);
void reply_free(struct reply *r);
/* Value of a header in a rotating buffer, or NULL. */
const char *reply_header(const struct reply *r, const char *name);

/* A request on a connection of its own. headers: lines with \r\n, or NULL. */
struct reply client_do(const struct server *s, const char *method, const char *path, const char *headers,
                       const char *body);
/* POST a JSON text and expect the status. */
struct reply client_post(const struct server *s, const char *path, const char *body, int status);
/* The same with %s-style formatting and single quotes for double ones. */
struct reply client_postf(const struct server *s, const char *path, int status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Follow keys and indexes, such as "choices.0.message.content"; NULL when there is none. */
const json_t *at(const json_t *v, const char *path);
const char *text_at(const json_t *v, const char *path); /* "" when there is no string */
int64_t int_at(const json_t *v, const char *path);      /* -1 when there is no number */
/* Frames of an event stream: data of frame i as JSON (a new reference), NULL for [DONE] and comments; event
 * in *event (rotating buffer, "" when none); false behind the last. */
bool frame(const struct reply *r, size_t i, json_t **data, const char **event);

#endif
