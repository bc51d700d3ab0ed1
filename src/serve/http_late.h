/*
 * Text on its way out without a turn through the event loop: what callbacks write now goes to the socket when
 * they are over, together what came together. Only what the socket does not take waits for it in the buffer
 * of the connection. A token of a stream then costs one system call instead of four (wait, write, and a
 * change of what is waited for on either side). Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_HTTP_LATE_H
#define ESP_SERVE_HTTP_LATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/strbuf.h"

struct bufferevent;
struct event;
struct event_base;
struct esp_late;

/* Those with text. */
struct esp_late_list {
    struct event *turn;
    struct esp_late *first, **last;
    size_t n;
    void (*after)(void *user); /* all of them have been sent, of one turn; NULL: not wanted */
    void *user;
};

/* Of one connection. */
struct esp_late {
    struct esp_late_list *list;
    struct esp_late *next;
    bool queued;
    struct esp_strbuf text; /* its memory is kept from one turn to the next */
    struct bufferevent *bev;
    void (*sent)(void *owner);  /* the socket has taken all of it; the connection may go in this call */
    void (*stuck)(void *owner); /* some of it waits for the socket now */
    void *owner;
};

esp_status esp_late_list_open(struct esp_late_list *l, struct event_base *base, esp_error *err);
void esp_late_list_close(struct esp_late_list *l);

/* Of a connection; max: bytes that may wait here. */
void esp_late_init(struct esp_late *t, size_t max);
/* Where to add text now, to be sent in this turn. NULL while older text waits for the socket: what follows
 * goes to the connection's own buffer. */
struct esp_strbuf *esp_late_text(struct esp_late *t);
/* Bytes that wait, here and for the socket. */
size_t esp_late_length(const struct esp_late *t);
/* Put what is here in front of what the connection's own buffer gets from now on. */
void esp_late_push(struct esp_late *t);
/* The connection closes; what is here is lost. */
void esp_late_drop(struct esp_late *t);

#endif
