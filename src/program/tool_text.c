/*
 * For the eye only: values are shown as they stand and nothing is judged by a schema. A call that has neither
 * of the two known forms is shown as its text.
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

enum { MAX_CALL = 64 << 20 };
static const char open_tag[] = "<tool_call>", close_tag[] = "</tool_call>";
static const char function_tag[] = "<function=", parameter_tag[] = "<parameter=";
static const char parameter_end[] = "</parameter>", function_end[] = "</function>";

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

/*
 * The end of a value: a closing tag behind which the call goes on or ends, since values may hold the tag
 * itself. NULL when there is none.
 */
static const char *value_end(struct part p)
{
    for (const char *at = find(p, parameter_end); at; at = find(from(p, at + 1), parameter_end)) {
        const struct part rest = trim(from(p, at + sizeof parameter_end - 1));

        if (!rest.len || strncmp(rest.s, parameter_tag, sizeof parameter_tag - 1) == 0 ||
            strncmp(rest.s, function_end, sizeof function_end - 1) == 0)
            return at;
    }
    return NULL;
}

/* <function=NAME> <parameter=KEY>\nVALUE\n</parameter> ... </function> */
static bool show_xml(struct esp_strbuf *b, struct part p)
{
    const char *at = find(p, function_tag), *end;

    if (!at)
        return false;
    p = from(p, at + sizeof function_tag - 1);
    end = memchr(p.s, '>', p.len);
    if (!end)
        return false;
    show_name(b, (struct part){p.s, (size_t)(end - p.s)});
    p = from(p, end + 1);
    for (at = find(p, parameter_tag); at; at = find(p, parameter_tag)) {
        struct part key, value;

        p = from(p, at + sizeof parameter_tag - 1);
        end = memchr(p.s, '>', p.len);
        if (!end)
            break;
        key = trim((struct part){p.s, (size_t)(end - p.s)});
        p = from(p, end + 1);
        end = value_end(p);
        value = end ? (struct part){p.s, (size_t)(end - p.s)} : p;
        p = end ? from(p, end + sizeof parameter_end - 1) : (struct part){p.s, 0};
        if (value.len && value.s[0] == '\n')
            value = from(value, value.s + 1);
        if (value.len && value.s[value.len - 1] == '\n')
            value.len--;
        show_value(b, key, value);
    }
    return true;
}

/* {"name": ..., "arguments": {...}} */
static bool show_json(struct esp_strbuf *b, struct part p)
{
    json_t *doc = NULL, *value;
    const char *name, *key;

    p = trim(p);
    if (!p.len || p.s[0] != '{' || esp_json_parse(&doc, p.s, p.len, "tool call", 0, NULL) != ESP_OK)
        return false;
    name = json_string_value(json_object_get(doc, "name"));
    if (name)
        show_name(b, (struct part){name, strlen(name)});
    json_object_foreach(name ? json_object_get(doc, "arguments") : NULL, key, value)
    {
        char *dump = json_is_string(value) ? NULL : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        const char *text = dump ? dump : json_string_value(value);

        if (text)
            show_value(b, (struct part){key, strlen(key)}, (struct part){text, strlen(text)});
        free(dump);
    }
    json_decref(doc);
    return name != NULL;
}

static void show_call(struct esp_tool_text *t, struct part p, bool whole)
{
    struct esp_strbuf *b = &t->shown;

    esp_strbuf_clear(b);
    if (!show_xml(b, p) && !show_json(b, p)) {
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
