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
#include "serve/http_late.h"
#include "serve/http_listen.h"

enum {
    READ_AHEAD = 64 << 10,
    HEADER_BYTES = 8 << 10,
    LINGER_SECONDS = 2,
    FRAMES = 64 << 10 /* bytes around chunks */
};

enum state {
    READ_HEAD,
    READ_BODY,
    HANDLING, /* the handler has the request; the reply has not begun */
    STREAMING,
    FINISHING, /* the reply has ended and is on its way */
    LINGERING, /* said all, closed for writing: swallow what still comes so that the reply is not lost */
    DEAD
};

struct conn {
    struct esp_http_request r; /* first: a request is its connection */
    struct esp_http *http;
    struct conn *next, **prev;
    struct bufferevent *bev;
    struct event *timer;
    enum state state;
    bool close_after, busy, first_done; /* busy: inside a callback of ours */
    bool is_head;                       /* HEAD: no body in the reply */
    bool has_words;                     /* last ones, of the stream */
    bool chunked_out;
    struct esp_strbuf head_text, body, headers;
    struct esp_http_chunks chunks;
    int guarded;          /* its number there; -1: it is not */
    struct esp_late late; /* of a stream: pieces that go out together */
};

struct esp_http {
    struct esp_http_opts o;
    struct event_base *base;
    struct esp_listeners listeners;
    struct esp_late_list late;
    struct conn *conns;
    uint32_t n_conn;
    bool draining;
};

static struct conn *conn_of(struct esp_http_request *r)
{
    return (struct conn *)r;
}

static struct evbuffer *output(struct conn *c)
{
    return bufferevent_get_output(c->bev);
}

static void arm(struct conn *c, double seconds)
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

static void free_conn(struct conn *c)
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

/* The connection has no future: tell the owner of an unfinished request. Freed now, or by the callback that
 * is running. */
static void kill_conn(struct conn *c, bool slow)
{
    struct esp_http *h = c->http;
    const bool tell = c->state == HANDLING || c->state == STREAMING;

    if (c->state == DEAD)
        return;
    c->state = DEAD;
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
static bool leave(struct conn *c)
{
    struct esp_http *h = c->http;

    c->busy = false;
    if (c->state != DEAD)
        return true;
    free_conn(c);
    set_listening(h);
    return false;
}

static void await_head(struct conn *c)
{
    c->state = READ_HEAD;
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
    if (c->body.cap > READ_AHEAD)
        esp_strbuf_free(&c->body); /* a large body's memory is not kept for an idle connection */
    esp_strbuf_clear(&c->body);
    arm(c, c->first_done ? c->http->o.keepalive_timeout : c->http->o.header_timeout);
}

static void refuse(struct conn *c, int status, const char *why)
{
    c->state = HANDLING;
    c->close_after = true;
    arm(c, 0);
    c->http->o.refuse(c->http->o.user, &c->r, status, why);
}

static void hand_over(struct conn *c)
{
    c->state = HANDLING;
    arm(c, 0);
    c->r.body = esp_strbuf_str(&c->body);
    c->r.body_len = c->body.len;
    c->http->o.handle(c->http->o.user, &c->r);
}

/* A whole head, len bytes at data, into c; true when it can be worked with. */
static bool take_head(struct conn *c, const char *data, size_t len)
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
static void await_rest(struct conn *c)
{
    if (c->first_done && c->http->o.header_timeout > 0) {
        c->first_done = false;
        arm(c, c->http->o.header_timeout);
    }
}

/* True: more may be done with the bytes at hand. */
static bool read_head(struct conn *c)
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
    c->state = READ_BODY;
    c->body.max = c->http->o.max_body;
    arm(c, c->http->o.body_timeout);
    if (c->r.head.expect_continue && evbuffer_get_length(in) == 0)
        evbuffer_add_printf(output(c), "HTTP/1.1 100 Continue\r\n\r\n");
    return true;
}

static bool read_chunked(struct conn *c, struct evbuffer *in)
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

static void read_body(struct conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    struct evbuffer_iovec piece;

    arm(c, c->http->o.body_timeout);
    if (c->r.head.chunked) {
        if (read_chunked(c, in))
            hand_over(c);
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
}

static void advance(struct conn *c)
{
    if (c->state == LINGERING)
        evbuffer_drain(bufferevent_get_input(c->bev), evbuffer_get_length(bufferevent_get_input(c->bev)));
    if (c->state == READ_HEAD && !read_head(c))
        return;
    if (c->state == READ_BODY)
        read_body(c);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct conn *c = arg;

    (void)bev;
    c->busy = true;
    advance(c);
    leave(c);
}

/* The reply has been written out. */
static void reply_done(struct conn *c)
{
    if (c->close_after || c->http->draining) { /* also a stream that began before the end was asked for */
        c->state = LINGERING;
        shutdown(bufferevent_getfd(c->bev), SHUT_WR);
        arm(c, LINGER_SECONDS);
        advance(c);
        return;
    }
    c->first_done = true;
    await_head(c);
    advance(c); /* what was sent ahead lies in the buffer already */
}

static void on_write(struct bufferevent *bev, void *arg)
{
    struct conn *c = arg;

    (void)bev;
    c->busy = true;
    if (c->state == FINISHING && evbuffer_get_length(output(c)) == 0)
        reply_done(c);
    else if (c->state == STREAMING && evbuffer_get_length(output(c)) == 0) {
        arm(c, 0); /* the client has read all there is */
        esp_guard_speak(c->http->o.guard, c->guarded, c->has_words);
    }
    leave(c);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct conn *c = arg;

    (void)bev;
    if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR))
        kill_conn(c, false);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct conn *c = arg;

    (void)fd;
    (void)what;
    c->busy = true;
    if (c->state == READ_BODY)
        refuse(c, 408, "the body did not arrive in time");
    else if (c->state == READ_HEAD && evbuffer_get_length(bufferevent_get_input(c->bev)) > 0)
        refuse(c, 408, "the request did not arrive in time");
    else
        kill_conn(c, true);
    leave(c);
}

/* Output went out: a client that reads, however slowly, has another write_timeout. */
static void on_output(struct evbuffer *buf, const struct evbuffer_cb_info *info, void *arg)
{
    struct conn *c = arg;

    if (info->n_deleted && (c->state == STREAMING || c->state == FINISHING))
        arm(c, evbuffer_get_length(buf) ? c->http->o.write_timeout : 0);
}

char *esp_http_take_body(struct esp_http_request *r, size_t *len)
{
    struct conn *c = conn_of(r);

    *len = c->body.len;
    r->body = "";
    r->body_len = 0;
    return esp_strbuf_take(&c->body);
}

/* ---- writing ---- */

void esp_http_header(struct esp_http_request *r, const char *name, const char *value)
{
    struct conn *c = conn_of(r);

    ESP_ASSERT(!strpbrk(value, "\r\n"));
    esp_strbuf_printf(&c->headers, "%s: %s\r\n", name, value);
}

bool esp_http_is_guarded(const struct esp_http_request *r)
{
    return ((const struct conn *)r)->guarded >= 0;
}

/* A reply that nobody will end. */
static void whole_words(const struct conn *c, int status, const char *text, size_t len, struct esp_strbuf *b)
{
    esp_strbuf_printf(b,
                      "HTTP/1.1 %d %s\r\n%sContent-Type: application/json\r\nRetry-After: 1\r\n"
                      "Connection: close\r\nContent-Length: %zu\r\n\r\n",
                      status, esp_http_reason(status), esp_strbuf_str(&c->headers), len);
    if (!c->is_head)
        esp_strbuf_add(b, text, len);
}

void esp_http_last_words(struct esp_http_request *r, int status, const char *text, size_t len)
{
    struct conn *c = conn_of(r);
    struct esp_strbuf b;

    if (c->guarded < 0 || (c->state != HANDLING && c->state != STREAMING))
        return;
    esp_strbuf_init(&b, 1 << 16);
    if (c->state == HANDLING)
        whole_words(c, status, text, len, &b);
    else if (c->chunked_out)
        esp_strbuf_printf(&b, "%zx\r\n%.*s\r\n0\r\n\r\n", len, (int)len, text);
    else
        esp_strbuf_add(&b, text, len);
    c->has_words = c->state == STREAMING;
    esp_guard_words(c->http->o.guard, c->guarded, esp_strbuf_str(&b), b.failed ? 0 : b.len);
    if (evbuffer_get_length(output(c)))
        esp_guard_speak(c->http->o.guard, c->guarded, false); /* until what was said before is out */
    esp_strbuf_free(&b);
}

static void start_reply(struct conn *c, int status, const char *type)
{
    struct evbuffer *out = output(c);

    c->has_words = false;
    esp_guard_speak(c->http->o.guard, c->guarded, false);

    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\n", status, esp_http_reason(status));
    evbuffer_add(out, esp_strbuf_str(&c->headers), c->headers.len);
    if (type)
        evbuffer_add_printf(out, "Content-Type: %s\r\n", type);
    c->close_after = c->close_after || c->http->draining;
    if (c->close_after)
        evbuffer_add_printf(out, "Connection: close\r\n");
    else if (c->r.head.http10)
        evbuffer_add_printf(out, "Connection: keep-alive\r\n");
}

/* The reply is complete: wait until it is out. */
static void finish(struct conn *c)
{
    c->state = FINISHING;
    esp_guard_speak(c->http->o.guard, c->guarded, false);
    c->r.on_gone = NULL;
    arm(c, c->http->o.write_timeout);
    if (evbuffer_get_length(output(c)) == 0 && !c->busy) { /* all of it went out before the end was known */
        c->busy = true;
        reply_done(c);
        leave(c);
    }
}

void esp_http_reply(struct esp_http_request *r, int status, const char *type, const char *body, size_t len)
{
    struct conn *c = conn_of(r);

    if (c->state != HANDLING)
        return;
    start_reply(c, status, type);
    if (status == 204)
        evbuffer_add_printf(output(c), "\r\n");
    else
        evbuffer_add_printf(output(c), "Content-Length: %zu\r\n\r\n", type ? len : (size_t)0);
    if (type && !c->is_head && status != 204)
        evbuffer_add(output(c), body, len);
    finish(c);
}

void esp_http_begin(struct esp_http_request *r, int status, const char *type)
{
    struct conn *c = conn_of(r);

    if (c->state != HANDLING)
        return;
    c->chunked_out = !r->head.http10;
    if (!c->chunked_out)
        c->close_after = true;
    start_reply(c, status, type);
    if (c->chunked_out)
        evbuffer_add_printf(output(c), "Transfer-Encoding: chunked\r\n");
    evbuffer_add_printf(output(c), "\r\n");
    c->state = STREAMING;
    arm(c, c->http->o.write_timeout);
}

/* A client that does not take its output has so long. */
static void on_stuck(void *arg)
{
    struct conn *c = arg;

    esp_guard_speak(c->http->o.guard, c->guarded, false);
    if (!evtimer_pending(c->timer, NULL))
        arm(c, c->http->o.write_timeout);
}

static size_t put_hex(char *out, size_t n)
{
    size_t digits = 1;

    while (digits < 2 * sizeof n && n >> (4 * digits))
        digits++;
    for (size_t i = 0; i < digits; i++)
        out[i] = "0123456789abcdef"[n >> (4 * (digits - 1 - i)) & 15];
    return digits;
}

static void put(struct conn *c, struct esp_strbuf *text, const char *data, size_t len)
{
    if (text)
        esp_strbuf_add(text, data, len);
    else
        evbuffer_add(output(c), data, len);
}

bool esp_http_write(struct esp_http_request *r, const char *data, size_t len)
{
    struct conn *c = conn_of(r);
    struct esp_strbuf *text;
    char size[2 * sizeof len + 2];
    size_t n;

    if (c->state != STREAMING)
        return false;
    if (len == 0 || c->is_head)
        return true;
    if (esp_late_length(&c->late) + len > c->http->o.max_output) {
        kill_conn(c, true);
        return false;
    }
    text = esp_late_text(&c->late);
    if (!text)
        on_stuck(c);
    if (c->chunked_out) {
        n = put_hex(size, len);
        memcpy(size + n, "\r\n", 2);
        put(c, text, size, n + 2);
    }
    put(c, text, data, len);
    if (c->chunked_out)
        put(c, text, "\r\n", 2);
    return true;
}

void esp_http_end(struct esp_http_request *r)
{
    struct conn *c = conn_of(r);

    if (c->state != STREAMING)
        return;
    esp_late_push(&c->late);
    if (c->chunked_out && !c->is_head)
        evbuffer_add(output(c), "0\r\n\r\n", 5);
    finish(c);
}

static struct conn *make_conn(struct esp_http *h, evutil_socket_t fd)
{
    struct conn *c = esp_alloc(sizeof *c);

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
    esp_strbuf_init(&c->headers, HEADER_BYTES);
    c->bev = bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE);
    c->timer = evtimer_new(h->base, on_timer, c);
    c->late = (struct esp_late){.list = &h->late, .bev = c->bev, .stuck = on_stuck, .owner = c};
    esp_late_init(&c->late, h->o.max_output + FRAMES);
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
    struct conn *c = make_conn(h, fd);
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
    bufferevent_setwatermark(c->bev, EV_READ, 0, h->o.max_head + READ_AHEAD);
    evbuffer_add_cb(output(c), on_output, c);
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
    struct conn *next;

    h->draining = true;
    esp_listeners_stop(&h->listeners);
    for (struct conn *c = h->conns; c; c = next) {
        next = c->next;
        if (c->state == READ_HEAD && !c->busy && evbuffer_get_length(bufferevent_get_input(c->bev)) == 0)
            kill_conn(c, false);
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
