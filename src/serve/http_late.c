/*
 * See the header. The turn is an event that is made active by hand: the loop runs it behind the callbacks
 * that are due already, before it waits again.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/http_late.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <sys/socket.h>

enum { KEPT = 64 << 10 }; /* bytes of memory that a connection may keep for the next turn */

static struct evbuffer *own(const struct esp_late *t)
{
    return bufferevent_get_output(t->bev);
}

/* Over to the connection's own buffer, from byte at on. Without memory the stream has a hole: it ends, which
 * the connection finds by itself. */
static void pass_on(struct esp_late *t, size_t at)
{
    if (t->text.failed || evbuffer_add(own(t), t->text.data + at, t->text.len - at) != 0)
        shutdown(bufferevent_getfd(t->bev), SHUT_RDWR);
}

static void empty(struct esp_late *t)
{
    if (t->text.cap > KEPT)
        esp_strbuf_free(&t->text);
    esp_strbuf_clear(&t->text);
}

/* What the socket takes. A full one is no error, a broken one is found by the connection itself; and a client
 * that is gone must not end the process, whatever that makes of SIGPIPE. */
static void send_now(struct esp_late *t)
{
    const ssize_t n = send(bufferevent_getfd(t->bev), t->text.data, t->text.len, MSG_NOSIGNAL | MSG_DONTWAIT);
    const size_t sent = n > 0 ? (size_t)n : 0;

    if (sent < t->text.len || t->text.failed) {
        pass_on(t, sent);
        empty(t);
        t->stuck(t->owner);
    } else {
        empty(t);
        t->sent(t->owner);
    }
}

static void on_turn(evutil_socket_t fd, short what, void *arg)
{
    struct esp_late_list *l = arg;
    size_t n = l->n; /* those that come while these are sent have a turn of their own */

    (void)fd;
    (void)what;
    for (; n && l->first; n--) {
        struct esp_late *t = l->first;

        l->first = t->next;
        if (!l->first)
            l->last = &l->first;
        l->n--;
        t->queued = false;
        send_now(t);
    }
    if (l->after)
        l->after(l->user);
}

esp_status esp_late_list_open(struct esp_late_list *l, struct event_base *base, esp_error *err)
{
    l->first = NULL;
    l->last = &l->first;
    l->turn = event_new(base, -1, EV_PERSIST, on_turn, l);
    return l->turn ? ESP_OK : esp_fail(err, ESP_ENOMEM, "HTTP server: out of memory");
}

void esp_late_list_close(struct esp_late_list *l)
{
    if (l->turn)
        event_free(l->turn);
    l->turn = NULL;
}

void esp_late_init(struct esp_late *t, size_t max)
{
    esp_strbuf_init(&t->text, max);
}

struct esp_strbuf *esp_late_text(struct esp_late *t)
{
    if (evbuffer_get_length(own(t)))
        return NULL;
    if (!t->queued) {
        t->queued = true;
        t->next = NULL;
        *t->list->last = t;
        t->list->last = &t->next;
        t->list->n++;
        event_active(t->list->turn, 0, 0);
    }
    return &t->text;
}

size_t esp_late_length(const struct esp_late *t)
{
    return evbuffer_get_length(own(t)) + t->text.len;
}

static void unlink_late(struct esp_late *t)
{
    struct esp_late **at = &t->list->first;

    if (!t->queued)
        return;
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    if (!t->next)
        t->list->last = at;
    t->list->n--;
    t->queued = false;
}

void esp_late_push(struct esp_late *t)
{
    unlink_late(t);
    if (t->text.len || t->text.failed)
        pass_on(t, 0);
    empty(t);
}

void esp_late_drop(struct esp_late *t)
{
    if (t->list)
        unlink_late(t);
    esp_strbuf_free(&t->text);
}
