/*
 * Replies as server-sent events, and what clients hear should this process die in one.
 *
 * SPDX-License-Identifier: MIT
 */
#include <string.h>

#include "serve/server.h"

enum { MAX_FRAME = 1 << 30 };

#define DIED "the process that computes died in this request; another one is being started"

void esp_sse_last_words(struct esp_call *c, int64_t sequence)
{
    struct esp_api_error e = {0};
    struct esp_strbuf b;
    json_t *v;

    if (!c->r || !esp_http_is_guarded(c->r))
        return;
    esp_api_fail(&e, "device_lost", NULL, DIED);
    if (sequence >= 0)
        v = json_pack("{s:s,s:s,s:s,s:n,s:I}", "type", "error", "code", e.code, "message", e.message, "param",
                      "sequence_number", (json_int_t)sequence);
    else
        v = esp_api_error_body(&e, c->family, c->id);
    esp_strbuf_init(&b, 4096);
    esp_strbuf_puts(&b,
                    sequence >= 0 || c->family == ESP_FAMILY_ANTHROPIC ? "event: error\ndata: " : "data: ");
    if (v && esp_json_add(&b, v) && esp_strbuf_puts(&b, "\n\n"))
        esp_http_last_words(c->r, 0, esp_strbuf_str(&b), b.len);
    json_decref(v);
    esp_strbuf_free(&b);
}

/* What the client hears if nobody is left to answer. */
void esp_reply_last_words(struct esp_call *c)
{
    struct esp_api_error e = {0};
    struct esp_strbuf b;
    json_t *v;

    if (!esp_http_is_guarded(c->r))
        return;
    esp_api_fail(&e, "device_lost", NULL, DIED);
    v = esp_api_error_body(&e, c->family, c->id);
    esp_strbuf_init(&b, 4096);
    if (v && esp_json_add(&b, v))
        esp_http_last_words(c->r, esp_api_error_http(&e, c->family), esp_strbuf_str(&b), b.len);
    json_decref(v);
    esp_strbuf_free(&b);
}

void esp_sse_begin(struct esp_call *c)
{
    if (!c->r)
        return;
    c->streaming = true;
    c->last_write = esp_serve_now();
    esp_http_header(c->r, "Cache-Control", "no-cache");
    esp_http_header(c->r, "X-Accel-Buffering", "no");
    esp_http_begin(c->r, 200, "text/event-stream");
    esp_sse_last_words(c, -1);
}

void esp_sse_expect(struct esp_call *c, void (*ping)(struct esp_call *c), double ping_interval)
{
    c->waits_to_open = true;
    c->ping = ping;
    c->ping_interval = ping_interval;
}

void esp_sse_open(struct esp_call *c)
{
    if (!c->waits_to_open)
        return;
    c->waits_to_open = false;
    if (!c->r)
        return;
    esp_queue_header(c);
    esp_sse_begin(c);
    if (c->begin)
        c->begin(c->begins);
}

/* A write may end in on_gone, which clears c->r; the call itself lives while a job of it does. */
void esp_sse_write(struct esp_call *c, const struct esp_strbuf *b)
{
    c->last_write = esp_serve_now();
    if (c->r && c->first_token > 0)
        esp_overhead_written(c);
    if (c->r && !b->failed)
        esp_http_write(c->r, esp_strbuf_str(b), b->len);
}

void esp_sse_data(struct esp_call *c, const char *event, json_t *v)
{
    struct esp_strbuf b;

    if (c->r && v) {
        esp_strbuf_init(&b, MAX_FRAME);
        if (event)
            esp_strbuf_printf(&b, "event: %s\n", event);
        esp_strbuf_puts(&b, "data: ");
        esp_json_add(&b, v);
        esp_strbuf_puts(&b, "\n\n");
        esp_sse_write(c, &b);
        esp_strbuf_free(&b);
    }
    json_decref(v);
}

void esp_sse_line(struct esp_call *c, const char *line)
{
    struct esp_strbuf b;

    if (!c->r)
        return;
    esp_strbuf_init(&b, 4096);
    esp_strbuf_printf(&b, "%s\n\n", line);
    esp_sse_write(c, &b);
    esp_strbuf_free(&b);
}

void esp_sse_end(struct esp_call *c)
{
    struct esp_http_request *r = c->r;

    if (!r)
        return;
    esp_reply_close(c, 200);
    esp_http_end(r);
}
