/*
 * An HTTP/1.1 reply as it comes in: status, body by length, by chunks or until the end, and the data lines of
 * an event stream one by one. Reads what any server sends, so everything has a bound. Knows no sockets.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_LOAD_REPLY_H
#define ESP_PROGRAM_LOAD_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"

enum esp_reply_state {
    ESP_REPLY_HEAD,
    ESP_REPLY_LENGTH, /* a body of `left` more bytes */
    ESP_REPLY_SIZE,   /* the size line of a chunk */
    ESP_REPLY_CHUNK,  /* `left` more bytes of it */
    ESP_REPLY_GAP,    /* the line end behind it */
    ESP_REPLY_TRAILER,
    ESP_REPLY_CLOSE, /* a body that ends with the connection */
    ESP_REPLY_DONE,
    ESP_REPLY_BAD
};

struct esp_reply {
    enum esp_reply_state state;
    int status;
    bool events;     /* text/event-stream: the body goes to data line by line, else into body */
    bool keep_alive; /* another request may follow on the connection */
    uint64_t left;
    struct esp_strbuf line, body;
    void (*data)(void *user, const char *s, size_t len); /* behind "data: "; s is zero-terminated */
    void *user;
};

void esp_reply_init(struct esp_reply *r, void (*data)(void *user, const char *s, size_t len), void *user);
void esp_reply_free(struct esp_reply *r);
/* For the next reply of the connection; memory is kept. */
void esp_reply_reset(struct esp_reply *r);
/* Take len bytes and return how many were used: fewer only when the reply is done or bad. */
size_t esp_reply_feed(struct esp_reply *r, const char *s, size_t len);
/* The connection has ended: whether the reply is whole. */
bool esp_reply_end(struct esp_reply *r);

#endif
