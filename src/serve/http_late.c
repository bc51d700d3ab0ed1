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
#include <sys/uio.h>

enum { MAX_PIECES = 16 };

static struct evbuffer *own(const struct esp_late *t)
{
    return bufferevent_get_output(t->bev);
}

/* What the socket takes. A full one is no error, a broken one is found by the connection itself; and a client
 * that is gone must not end the process, whatever that makes of SIGPIPE. */
static void send_some(struct evbuffer *text, evutil_socket_t fd)
{
    struct evbuffer_iovec pieces[MAX_PIECES];
    struct iovec v[MAX_PIECES];
    struct msghdr m = {.msg_iov = v};
    const int n = evbuffer_peek(text, -1, NULL, pieces, MAX_PIECES);
    ssize_t sent;

    for (int i = 0; i < n && i < MAX_PIECES; i++)
        v[m.msg_iovlen++] = (struct iovec){pieces[i].iov_base, pieces[i].iov_len};
    sent = m.msg_iovlen ? sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
    if (sent > 0)
        evbuffer_drain(text, (size_t)sent);
}

static void send_now(struct esp_late *t)
{
    send_some(t->text, bufferevent_getfd(t->bev));
    if (evbuffer_get_length(t->text) == 0)
        return;
    evbuffer_add_buffer(own(t), t->text);
    t->stuck(t->owner);
}

static void on_turn(evutil_socket_t fd, short what, void *arg)
{
    struct esp_late_list *l = arg;

    (void)fd;
    (void)what;
    while (l->first) {
        struct esp_late *t = l->first;

        l->first = t->next;
        if (!l->first)
            l->last = &l->first;
        t->queued = false;
        send_now(t);
    }
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

struct evbuffer *esp_late_buffer(struct esp_late *t)
{
    if (evbuffer_get_length(own(t)))
        return own(t);
    if (!t->text)
        t->text = evbuffer_new();
    if (!t->text)
        return own(t);
    if (!t->queued) {
        t->queued = true;
        t->next = NULL;
        *t->list->last = t;
        t->list->last = &t->next;
        event_active(t->list->turn, 0, 0);
    }
    return t->text;
}

size_t esp_late_length(const struct esp_late *t)
{
    return evbuffer_get_length(own(t)) + (t->text ? evbuffer_get_length(t->text) : 0);
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
    t->queued = false;
}

void esp_late_push(struct esp_late *t)
{
    unlink_late(t);
    if (t->text)
        evbuffer_add_buffer(own(t), t->text);
}

void esp_late_drop(struct esp_late *t)
{
    if (t->list)
        unlink_late(t);
    if (t->text)
        evbuffer_free(t->text);
    t->text = NULL;
}
