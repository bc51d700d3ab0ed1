/*
 * Connections as small state machines: read a head, read a body, hand over, write, again. Everything that may
 * free a connection happens at the end of a callback, so that no caller holds a dead one.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/http.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"

#include "serve/guard.h"
#include "serve/http_address.h"
#include "serve/http_conn.h"

enum { LINGER_SECONDS = 2 };

struct evbuffer *esp_conn_output(struct esp_conn *c)
{
    return bufferevent_get_output(c->bev);
}

void esp_conn_arm(struct esp_conn *c, double seconds)
{
    const struct timeval tv = {.tv_sec = (time_t)seconds,
                               .tv_usec = (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};

    if (seconds > 0)
        evtimer_add(c->timer, &tv);
    else
        evtimer_del(c->timer);
}

static void set_listening(struct esp_http *h)
{
    esp_listeners_take(&h->listeners, h->n_conn < h->o.max_connections);
}

static void free_conn(struct esp_conn *c)
{
    *c->prev = c->next;
    if (c->next)
        c->next->prev = c->prev;
    if (c->timer)
        event_free(c->timer);
    esp_late_drop(&c->late);
    if (c->bev)
        esp_guard_leave(c->http->o.guard, c->guarded, bufferevent_getfd(c->bev));
    if (c->bev)
        bufferevent_free(c->bev);
    esp_strbuf_free(&c->head_text);
    esp_strbuf_free(&c->body);
    esp_strbuf_free(&c->headers);
    c->http->n_conn--;
    esp_free(c);
}

void esp_conn_kill(struct esp_conn *c, bool slow)
{
    struct esp_http *h = c->http;
    const bool tell = c->state == ESP_CONN_HANDLING || c->state == ESP_CONN_STREAMING;

    if (c->state == ESP_CONN_DEAD)
        return;
    c->state = ESP_CONN_DEAD;
    esp_late_drop(&c->late);
    if (tell && c->r.on_gone) {
        void (*gone)(void *, bool) = c->r.on_gone;

        c->r.on_gone = NULL;
        gone(c->r.owner, slow);
    }
    if (!c->busy) {
        free_conn(c);
        set_listening(h);
    }
}

/* Leave a callback: free what died in it. False: c is gone. */
static bool leave(struct esp_conn *c)
{
    struct esp_http *h = c->http;

    c->busy = false;
    if (c->state != ESP_CONN_DEAD)
        return true;
    free_conn(c);
    set_listening(h);
    return false;
}

static void await_head(struct esp_conn *c)
{
    c->state = ESP_CONN_HEAD;
    memset(&c->r.head, 0, sizeof c->r.head);
    c->r.head.method = c->r.head.path = c->r.head.query = "";
    c->r.on_gone = NULL;
    c->r.owner = NULL;
    c->r.body = "";
    c->r.body_len = 0;
    c->is_head = c->chunked_out = false;
    memset(&c->chunks, 0, sizeof c->chunks);
    esp_strbuf_clear(&c->head_text);
    esp_strbuf_clear(&c->headers);
    if (c->body.cap > ESP_HTTP_READ_AHEAD)
        esp_strbuf_free(&c->body); /* a large body's memory is not kept for an idle connection */
    esp_strbuf_clear(&c->body);
    esp_conn_arm(c, c->first_done ? c->http->o.keepalive_timeout : c->http->o.header_timeout);
}

static void refuse(struct esp_conn *c, int status, const char *why)
{
    c->state = ESP_CONN_HANDLING;
    c->close_after = true;
    esp_conn_arm(c, 0);
    c->http->o.refuse(c->http->o.user, &c->r, status, why);
}

static void hand_over(struct esp_conn *c)
{
    c->state = ESP_CONN_HANDLING;
    esp_conn_arm(c, 0);
    c->r.body = esp_strbuf_str(&c->body);
    c->r.body_len = c->body.len;
    c->http->o.handle(c->http->o.user, &c->r);
}

/* A whole head, len bytes at data, into c; true when it can be worked with. */
static bool take_head(struct esp_conn *c, const char *data, size_t len)
{
    const struct esp_http_opts *o = &c->http->o;
    const char *why = "";
    int status;

    esp_strbuf_clear(&c->head_text);
    if (!esp_strbuf_add(&c->head_text, data, len)) {
        refuse(c, 503, "no memory for the request's head");
        return false;
    }
    evbuffer_drain(bufferevent_get_input(c->bev), len);
    status = esp_http_parse_head(c->head_text.data, len, o->max_uri, &c->r.head, &why);
    c->is_head = strcmp(c->r.head.method, "HEAD") == 0;
    c->close_after = !c->r.head.keep_alive || c->http->draining;
    if (!status && c->r.head.has_length && c->r.head.length > o->max_body) {
        status = 413;
        why = "the body is larger than the server accepts";
    }
    if (status)
        refuse(c, status, why);
    return status == 0;
}

/* The head is not whole yet. From its first byte on the time for a head counts, also on a connection that was
 * idle. */
static void await_rest(struct esp_conn *c)
{
    if (c->first_done && c->http->o.header_timeout > 0) {
        c->first_done = false;
        esp_conn_arm(c, c->http->o.header_timeout);
    }
}

/* True: more may be done with the bytes at hand. */
static bool read_head(struct esp_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    const size_t have = evbuffer_get_length(in), max = c->http->o.max_head, look = have < max ? have : max;
    const char *data = have ? (const char *)evbuffer_pullup(in, (ev_ssize_t)look) : NULL;
    const size_t len = data ? esp_http_head_length(data, look) : 0;

    if (have == 0)
        return false;
    if (!data || (len == 0 && have >= max)) {
        refuse(c, data ? 431 : 503,
               data ? "the request's head is too long" : "no memory for the request's head");
        return false;
    }
    if (len == 0) {
        await_rest(c);
        return false;
    }
    if (!take_head(c, data, len))
        return false;
    c->state = ESP_CONN_BODY;
    c->body.max = c->http->o.max_body;
    if (c->r.head.expect_continue && evbuffer_get_length(in) == 0)
        evbuffer_add_printf(esp_conn_output(c), "HTTP/1.1 100 Continue\r\n\r\n");
    return true;
}

static bool read_chunked(struct esp_conn *c, struct evbuffer *in)
{
    struct evbuffer_iovec piece;

    while (evbuffer_peek(in, -1, NULL, &piece, 1) > 0 && piece.iov_len) {
        size_t used = 0;
        const enum esp_http_more more =
            esp_http_chunks_feed(&c->chunks, piece.iov_base, piece.iov_len, &used, &c->body);

        evbuffer_drain(in, used);
        if (more == ESP_HTTP_DONE)
            return true;
        if (more != ESP_HTTP_MORE) {
            refuse(c, more == ESP_HTTP_BAD ? 400 : 413,
                   more == ESP_HTTP_BAD ? "the chunked body is malformed"
                                        : "the body is larger than the server accepts");
            return false;
        }
    }
    return false;
}

static void read_body(struct esp_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    struct evbuffer_iovec piece;

    if (c->r.head.chunked) {
        if (read_chunked(c, in))
            hand_over(c);
        else if (c->state == ESP_CONN_BODY)
            esp_conn_arm(c, c->http->o.body_timeout);
        return;
    }
    while (c->body.len < c->r.head.length && evbuffer_peek(in, -1, NULL, &piece, 1) > 0 && piece.iov_len) {
        const uint64_t want = c->r.head.length - c->body.len;
        const size_t n = want < piece.iov_len ? (size_t)want : piece.iov_len;

        if (!esp_strbuf_add(&c->body, piece.iov_base, n)) {
            refuse(c, 503, "no memory for the request's body");
            return;
        }
        evbuffer_drain(in, n);
    }
    if (c->body.len == c->r.head.length)
        hand_over(c);
    else
        esp_conn_arm(c, c->http->o.body_timeout);
}

static void advance(struct esp_conn *c)
{
    if (c->state == ESP_CONN_LINGERING)
        evbuffer_drain(bufferevent_get_input(c->bev), evbuffer_get_length(bufferevent_get_input(c->bev)));
    if (c->state == ESP_CONN_HEAD && !read_head(c))
        return;
    if (c->state == ESP_CONN_BODY)
        read_body(c);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct esp_conn *c = arg;

    (void)bev;
    c->busy = true;
    advance(c);
    leave(c);
}

static void reply_done(struct esp_conn *c)
{
    if (c->close_after || c->http->draining) { /* also a stream that began before the end was asked for */
        c->state = ESP_CONN_LINGERING;
        shutdown(bufferevent_getfd(c->bev), SHUT_WR);
        esp_conn_arm(c, LINGER_SECONDS);
        advance(c);
        return;
    }
    c->first_done = true;
    await_head(c);
    advance(c); /* what was sent ahead lies in the buffer already */
}

void esp_conn_reply_done(struct esp_conn *c)
{
    if (c->busy) { /* whoever is at work here goes on with what was sent ahead */
        reply_done(c);
        return;
    }
    c->busy = true;
    reply_done(c);
    leave(c);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    struct esp_conn *c = arg;

    (void)bev;
    if (esp_late_length(&c->late)) /* more has been said meanwhile */
        return;
    c->busy = true;
    if (c->state == ESP_CONN_STREAMING)
        esp_conn_arm(c, 0); /* the client has read all there is */
    esp_conn_sent(c);
    leave(c);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct esp_conn *c = arg;

    (void)bev;
    if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR))
        esp_conn_kill(c, false);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct esp_conn *c = arg;

    (void)fd;
    (void)what;
    c->busy = true;
    if (c->state == ESP_CONN_BODY)
        refuse(c, 408, "the body did not arrive in time");
    else if (c->state == ESP_CONN_HEAD && evbuffer_get_length(bufferevent_get_input(c->bev)) > 0)
        refuse(c, 408, "the request did not arrive in time");
    else
        esp_conn_kill(c, true);
    leave(c);
}

/* Output went out: a client that reads, however slowly, has another write_timeout. */
static void on_output(struct evbuffer *buf, const struct evbuffer_cb_info *info, void *arg)
{
    struct esp_conn *c = arg;

    if (info->n_deleted && (c->state == ESP_CONN_STREAMING || c->state == ESP_CONN_FINISHING))
        esp_conn_arm(c, evbuffer_get_length(buf) ? c->http->o.write_timeout : 0);
}

/* ---- connections come and go ---- */

static struct esp_conn *make_conn(struct esp_http *h, evutil_socket_t fd)
{
    struct esp_conn *c = esp_alloc(sizeof *c);

    if (!c) {
        close(fd);
        return NULL;
    }
    c->http = h;
    c->guarded = -1;
    c->prev = &h->conns;
    c->next = h->conns;
    if (c->next)
        c->next->prev = &c->next;
    h->conns = c;
    h->n_conn++;
    esp_strbuf_init(&c->head_text, h->o.max_head + 1);
    esp_strbuf_init(&c->body, h->o.max_body);
    esp_strbuf_init(&c->headers, ESP_HTTP_HEADER_BYTES);
    c->bev = bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE);
    c->timer = evtimer_new(h->base, on_timer, c);
    c->late = (struct esp_late){
        .list = &h->late, .bev = c->bev, .sent = esp_conn_sent, .stuck = esp_conn_stuck, .owner = c};
    esp_late_init(&c->late, h->o.max_output + ESP_HTTP_FRAMES);
    if (!c->bev || !c->timer) {
        if (!c->bev)
            close(fd); /* else it goes with its buffers */
        free_conn(c);
        return NULL;
    }
    if (h->o.guard)
        c->guarded = esp_guard_take(h->o.guard, fd);
    return c;
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *a, int len, void *arg)
{
    struct esp_http *h = arg;
    struct esp_conn *c = make_conn(h, fd);
    int on = 1;

    (void)l;
    (void)len;
    if (!c)
        return;
    esp_http_address_name(c->r.peer, sizeof c->r.peer, a);
    if (a->sa_family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* each token on its way at once */
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
    /* The head must fit, and behind an unanswered request no more than this is read ahead. */
    bufferevent_setwatermark(c->bev, EV_READ, 0, h->o.max_head + ESP_HTTP_READ_AHEAD);
    evbuffer_add_cb(esp_conn_output(c), on_output, c);
    await_head(c);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    set_listening(h);
}

esp_status esp_http_listen(struct esp_http *h, const char *host, uint16_t port, uint16_t *bound,
                           esp_error *err)
{
    const struct esp_listener_opts o = {h->base, on_accept, h, h->o.backlog};

    return esp_listeners_add(&h->listeners, &o, host, port, bound, err);
}

esp_status esp_http_inherit(struct esp_http *h, int fd, uint16_t *bound, esp_error *err)
{
    const struct esp_listener_opts o = {h->base, on_accept, h, h->o.backlog};

    return esp_listeners_inherit(&h->listeners, &o, fd, bound, err);
}

void esp_http_drain(struct esp_http *h)
{
    struct esp_conn *next;

    h->draining = true;
    esp_listeners_stop(&h->listeners);
    for (struct esp_conn *c = h->conns; c; c = next) {
        next = c->next;
        if (c->state == ESP_CONN_HEAD && !c->busy && evbuffer_get_length(bufferevent_get_input(c->bev)) == 0)
            esp_conn_kill(c, false);
    }
}

uint32_t esp_http_connections(const struct esp_http *h)
{
    return h->n_conn;
}

esp_status esp_http_open(struct esp_http **out, struct event_base *base, const struct esp_http_opts *o,
                         esp_error *err)
{
    struct esp_http *h = esp_alloc(sizeof *h);

    if (!h)
        return esp_fail(err, ESP_ENOMEM, "HTTP server: out of memory");
    h->o = *o;
    h->base = base;
    h->late.after = o->sent;
    h->late.user = o->user;
    if (esp_late_list_open(&h->late, base, err) != ESP_OK) {
        esp_free(h);
        return ESP_ENOMEM;
    }
    *out = h;
    return ESP_OK;
}

void esp_http_set_limits(struct esp_http *h, const struct esp_http_opts *o)
{
    h->o.max_body = o->max_body;
    h->o.max_output = o->max_output;
    h->o.header_timeout = o->header_timeout;
    h->o.body_timeout = o->body_timeout;
    h->o.write_timeout = o->write_timeout;
    h->o.keepalive_timeout = o->keepalive_timeout;
}

void esp_http_close(struct esp_http *h)
{
    if (!h)
        return;
    esp_listeners_stop(&h->listeners);
    while (h->conns)
        free_conn(h->conns);
    esp_late_list_close(&h->late);
    esp_free(h);
}
