/*
 * Replies, whole or in pieces. What a handler says goes to the socket once, at the end of the turn of the
 * event loop in which it was said (http_late.h); only what the socket does not take waits in the
 * connection's own buffer.
 *
 * SPDX-License-Identifier: MIT
 */
#include <event2/buffer.h>
#include <event2/event.h>
#include <string.h>

#include "base/mem.h"

#include "serve/guard.h"
#include "serve/http_conn.h"

static struct esp_conn *conn_of(struct esp_http_request *r)
{
    return (struct esp_conn *)r;
}

char *esp_http_take_body(struct esp_http_request *r, size_t *len)
{
    struct esp_conn *c = conn_of(r);

    *len = c->body.len;
    r->body = "";
    r->body_len = 0;
    return esp_strbuf_take(&c->body);
}

/* ---- writing ---- */

void esp_http_header(struct esp_http_request *r, const char *name, const char *value)
{
    struct esp_conn *c = conn_of(r);

    ESP_ASSERT(!strpbrk(value, "\r\n"));
    esp_strbuf_printf(&c->headers, "%s: %s\r\n", name, value);
}

bool esp_http_is_guarded(const struct esp_http_request *r)
{
    return ((const struct esp_conn *)r)->guarded >= 0;
}

/* A reply that nobody will end. */
static void whole_words(const struct esp_conn *c, int status, const char *text, size_t len,
                        struct esp_strbuf *b)
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
    struct esp_conn *c = conn_of(r);
    struct esp_strbuf b;

    if (c->guarded < 0 || (c->state != ESP_CONN_HANDLING && c->state != ESP_CONN_STREAMING))
        return;
    esp_strbuf_init(&b, 1 << 16);
    if (c->state == ESP_CONN_HANDLING)
        whole_words(c, status, text, len, &b);
    else if (c->chunked_out)
        esp_strbuf_printf(&b, "%zx\r\n%.*s\r\n0\r\n\r\n", len, (int)len, text);
    else
        esp_strbuf_add(&b, text, len);
    c->has_words = c->state == ESP_CONN_STREAMING;
    esp_guard_words(c->http->o.guard, c->guarded, esp_strbuf_str(&b), b.failed ? 0 : b.len);
    if (c->state == ESP_CONN_STREAMING && c->silent) /* until what was said before is out */
        esp_guard_speak(c->http->o.guard, c->guarded, false);
    esp_strbuf_free(&b);
}

/* Where the parts of a head go: with what this turn sends, or behind what waits for the socket. */
struct out {
    struct esp_strbuf own, *to;
};

static void open_out(struct esp_conn *c, struct out *o)
{
    esp_strbuf_init(&o->own, 2 * ESP_HTTP_HEADER_BYTES);
    o->to = esp_late_text(&c->late);
    if (!o->to)
        o->to = &o->own;
}

static void close_out(struct esp_conn *c, struct out *o)
{
    if (o->to == &o->own)
        evbuffer_add(esp_conn_output(c), esp_strbuf_str(&o->own), o->own.len);
    esp_strbuf_free(&o->own);
}

static void be_silent(struct esp_conn *c)
{
    c->silent = true;
    esp_guard_speak(c->http->o.guard, c->guarded, false);
}

static void start_reply(struct esp_conn *c, struct esp_strbuf *b, int status, const char *type)
{
    c->has_words = false;
    be_silent(c);
    esp_strbuf_printf(b, "HTTP/1.1 %d %s\r\n", status, esp_http_reason(status));
    esp_strbuf_add(b, esp_strbuf_str(&c->headers), c->headers.len);
    if (type)
        esp_strbuf_printf(b, "Content-Type: %s\r\n", type);
    c->close_after = c->close_after || c->http->draining;
    if (c->close_after)
        esp_strbuf_puts(b, "Connection: close\r\n");
    else if (c->r.head.http10)
        esp_strbuf_puts(b, "Connection: keep-alive\r\n");
}

/* The reply is complete: wait until it is out. */
static void finish(struct esp_conn *c)
{
    c->state = ESP_CONN_FINISHING;
    be_silent(c);
    c->r.on_gone = NULL;
    if (evbuffer_get_length(esp_conn_output(c)))
        esp_conn_arm(c, c->http->o.write_timeout);
    else if (!c->late.queued) /* all of it went out before the end was known */
        esp_conn_reply_done(c);
}

void esp_http_reply(struct esp_http_request *r, int status, const char *type, const char *body, size_t len)
{
    enum { LARGE = ESP_HTTP_FRAMES / 2 }; /* not to be copied once more */
    struct esp_conn *c = conn_of(r);
    struct out o;

    if (c->state != ESP_CONN_HANDLING)
        return;
    if (!type || c->is_head || status == 204)
        body = NULL;
    open_out(c, &o);
    start_reply(c, o.to, status, type);
    if (status == 204)
        esp_strbuf_puts(o.to, "\r\n");
    else
        esp_strbuf_printf(o.to, "Content-Length: %zu\r\n\r\n", type ? len : (size_t)0);
    if (body && len <= LARGE && o.to != &o.own)
        esp_strbuf_add(o.to, body, len);
    close_out(c, &o);
    if (body && (len > LARGE || o.to == &o.own)) {
        esp_late_push(&c->late);
        evbuffer_add(esp_conn_output(c), body, len);
    }
    finish(c);
}

void esp_http_begin(struct esp_http_request *r, int status, const char *type)
{
    struct esp_conn *c = conn_of(r);
    struct out o;

    if (c->state != ESP_CONN_HANDLING)
        return;
    c->chunked_out = !r->head.http10;
    if (!c->chunked_out)
        c->close_after = true;
    open_out(c, &o);
    start_reply(c, o.to, status, type);
    esp_strbuf_puts(o.to, c->chunked_out ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    close_out(c, &o);
    c->state = ESP_CONN_STREAMING;
    if (evbuffer_get_length(esp_conn_output(c)))
        esp_conn_arm(c, c->http->o.write_timeout);
}

void esp_conn_sent(void *conn)
{
    struct esp_conn *c = conn;

    if (c->silent && c->state == ESP_CONN_STREAMING) {
        c->silent = false;
        esp_guard_speak(c->http->o.guard, c->guarded, c->has_words);
    }
    if (c->state == ESP_CONN_FINISHING)
        esp_conn_reply_done(c);
}

/* A client that does not take its output has so long. */
void esp_conn_stuck(void *conn)
{
    struct esp_conn *c = conn;

    be_silent(c);
    if (!evtimer_pending(c->timer, NULL))
        esp_conn_arm(c, c->http->o.write_timeout);
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

static void put(struct esp_conn *c, struct esp_strbuf *text, const char *data, size_t len)
{
    if (text)
        esp_strbuf_add(text, data, len);
    else
        evbuffer_add(esp_conn_output(c), data, len);
}

bool esp_http_write(struct esp_http_request *r, const char *data, size_t len)
{
    struct esp_conn *c = conn_of(r);
    struct esp_strbuf *text;
    char size[2 * sizeof len + 2];
    size_t n;

    if (c->state != ESP_CONN_STREAMING)
        return false;
    if (len == 0 || c->is_head)
        return true;
    if (esp_late_length(&c->late) + len > c->http->o.max_output) {
        esp_conn_kill(c, true);
        return false;
    }
    text = esp_late_text(&c->late);
    if (!text)
        esp_conn_stuck(c);
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
    struct esp_conn *c = conn_of(r);

    if (c->state != ESP_CONN_STREAMING)
        return;
    if (c->chunked_out && !c->is_head)
        put(c, esp_late_text(&c->late), "0\r\n\r\n", 5);
    finish(c);
}
