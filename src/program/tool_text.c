/*
 * For the eye only: a call is held until it is whole, taken apart by the parser of turns, and nothing is
 * judged by a schema. One that has no known form is shown as its text.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/tool_text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "text/toolcall.h"

enum { MAX_CALL = 64 << 20 };
static const char open_tag[] = "<tool_call>", close_tag[] = "</tool_call>";

struct esp_tool_text {
    struct esp_strbuf held, shown;
    size_t looked; /* bytes of held that hold no beginning of the tag waited for */
    bool inside;
    esp_tool_text_fn fn;
    void *user;
};

esp_status esp_tool_text_create(struct esp_tool_text **out, esp_tool_text_fn fn, void *user, esp_error *err)
{
    struct esp_tool_text *t = esp_alloc(sizeof *t);

    if (!t)
        return esp_fail(err, ESP_ENOMEM, "no memory for showing tool calls");
    esp_strbuf_init(&t->held, MAX_CALL);
    esp_strbuf_init(&t->shown, MAX_CALL);
    t->fn = fn;
    t->user = user;
    *out = t;
    return ESP_OK;
}

void esp_tool_text_destroy(struct esp_tool_text *t)
{
    if (!t)
        return;
    esp_strbuf_free(&t->held);
    esp_strbuf_free(&t->shown);
    esp_free(t);
}

/* ---- one call ---- */

struct part {
    const char *s;
    size_t len;
};

static const char *find(struct part p, const char *tag)
{
    return memmem(p.s, p.len, tag, strlen(tag));
}

static struct part from(struct part p, const char *at)
{
    return (struct part){at, p.len - (size_t)(at - p.s)};
}

static struct part trim(struct part p)
{
    while (p.len && strchr(" \t\r\n", p.s[0]))
        p = from(p, p.s + 1);
    while (p.len && strchr(" \t\r\n", p.s[p.len - 1]))
        p.len--;
    return p;
}

static void show_value(struct esp_strbuf *b, struct part key, struct part value)
{
    esp_strbuf_printf(b, "  %.*s:", (int)(key.len < 256 ? key.len : 256), key.s);
    if (!memchr(value.s, '\n', value.len)) {
        esp_strbuf_puts(b, value.len ? " " : "");
        esp_strbuf_add(b, value.s, value.len);
        esp_strbuf_putc(b, '\n');
        return;
    }
    esp_strbuf_putc(b, '\n');
    for (const char *end; value.len; value = from(value, end + (end < value.s + value.len))) {
        end = memchr(value.s, '\n', value.len);
        end = end ? end : value.s + value.len;
        esp_strbuf_puts(b, "    ");
        esp_strbuf_add(b, value.s, (size_t)(end - value.s));
        esp_strbuf_putc(b, '\n');
    }
}

static void show_name(struct esp_strbuf *b, struct part name)
{
    name = trim(name);
    esp_strbuf_printf(b, "tool call: %.*s\n", (int)(name.len < 256 ? name.len : 256), name.s);
}

/* What the parser of turns makes of one call. */
struct parsed {
    struct esp_strbuf name, args;
    bool any;
};

static void take_piece(void *user, enum esp_turn_what what, const char *s, size_t len)
{
    struct parsed *p = user;

    if (what == ESP_TURN_CALL)
        esp_strbuf_add(&p->name, s, len);
    if (what == ESP_TURN_ARGS)
        esp_strbuf_add(&p->args, s, len);
    p->any = p->any || what == ESP_TURN_CALL;
}

static bool parse(struct parsed *out, struct part p, bool whole)
{
    const struct esp_turn_opts o = {.calls = true, .fn = take_piece, .user = out};
    struct esp_turn *t = NULL;
    bool ok = esp_turn_create(&t, &o, NULL) == ESP_OK;

    ok = ok && esp_turn_feed(t, open_tag, sizeof open_tag - 1, NULL) == ESP_OK &&
         esp_turn_feed(t, p.s, p.len, NULL) == ESP_OK &&
         (!whole || esp_turn_feed(t, close_tag, sizeof close_tag - 1, NULL) == ESP_OK) &&
         esp_turn_finish(t, true, NULL) == ESP_OK;
    esp_turn_destroy(t);
    return ok && out->any;
}

/* The call's name and a line for each argument; false: it has no known form. */
static bool show_parsed(struct esp_strbuf *b, struct part p, bool whole)
{
    struct parsed call = {.any = false};
    json_t *args = NULL, *value;
    const char *key;
    bool ok;

    esp_strbuf_init(&call.name, MAX_CALL);
    esp_strbuf_init(&call.args, MAX_CALL);
    ok = parse(&call, p, whole) &&
         esp_json_parse(&args, esp_strbuf_str(&call.args), call.args.len, "tool call", 0, NULL) == ESP_OK;
    if (ok)
        show_name(b, (struct part){esp_strbuf_str(&call.name), call.name.len});
    json_object_foreach(args, key, value)
    {
        char *dump = json_is_string(value)
                         ? NULL
                         : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        const char *text = dump ? dump : json_string_value(value);

        if (text)
            show_value(b, (struct part){key, strlen(key)}, (struct part){text, strlen(text)});
        free(dump);
    }
    json_decref(args);
    esp_strbuf_free(&call.name);
    esp_strbuf_free(&call.args);
    return ok;
}

static void show_call(struct esp_tool_text *t, struct part p, bool whole)
{
    struct esp_strbuf *b = &t->shown;

    esp_strbuf_clear(b);
    if (!show_parsed(b, p, whole)) {
        show_name(b, trim(p));
        if (trim(p).len > 256)
            show_value(b, (struct part){"text", 4}, trim(p));
    }
    if (!whole)
        esp_strbuf_puts(b, "  (unfinished)\n");
    if (b->len)
        t->fn(t->user, b->data, b->len);
}

/* ---- the stream ---- */

static void drop(struct esp_tool_text *t, size_t n)
{
    t->held.len -= n;
    memmove(t->held.data, t->held.data + n, t->held.len + 1);
    t->looked = 0;
}

/* Act on what is held; false when more is needed. */
static bool advance(struct esp_tool_text *t)
{
    const char *tag = t->inside ? close_tag : open_tag;
    const size_t size = strlen(tag);
    const struct part p = {esp_strbuf_str(&t->held), t->held.len};
    const char *at = find(from(p, p.s + t->looked), tag);
    size_t n, keep = 0;

    if (!at) {
        for (size_t k = 1; k < size && k <= p.len; k++) {
            if (memcmp(p.s + p.len - k, tag, k) == 0)
                keep = k;
        }
        t->looked = p.len - keep;
        if (!t->inside && t->looked) {
            t->fn(t->user, p.s, t->looked);
            drop(t, t->looked);
        }
        return false;
    }
    n = (size_t)(at - p.s);
    if (t->inside)
        show_call(t, (struct part){p.s, n}, true);
    else if (n)
        t->fn(t->user, p.s, n);
    t->inside = !t->inside;
    drop(t, n + size);
    return true;
}

void esp_tool_text_feed(struct esp_tool_text *t, const char *s, size_t len)
{
    if (!esp_strbuf_add(&t->held, s, len)) { /* no memory to wait with: show it as it is */
        esp_tool_text_end(t);
        if (len)
            t->fn(t->user, s, len);
        return;
    }
    while (advance(t))
        ;
}

void esp_tool_text_end(struct esp_tool_text *t)
{
    if (t->inside)
        show_call(t, (struct part){esp_strbuf_str(&t->held), t->held.len}, false);
    else if (t->held.len)
        t->fn(t->user, t->held.data, t->held.len);
    esp_strbuf_clear(&t->held);
    t->inside = false;
    t->looked = 0;
}
