/*
 * See the header.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/tool_history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/strbuf.h"

/* ---- results ---- */

struct result {
    json_t *m;
    json_int_t call;
    size_t at; /* of the list */
};

static int by_call(const void *a, const void *b)
{
    const struct result *x = a, *y = b;

    if (x->call != y->call)
        return x->call < y->call ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Results list[from..to) in the order of their calls, which templates do not name; those of no call stay. */
static bool order_results(json_t *list, size_t from, size_t to, const json_t *calls)
{
    struct result *v = esp_alloc_array(to - from, sizeof *v);
    size_t *slots = esp_alloc_array(to - from, sizeof *slots), n = 0, i;
    json_t *order = json_object(), *call;
    const bool ok = v && slots && order;

    json_array_foreach(calls, i, call)
    {
        const char *id = json_string_value(json_object_get(call, "id"));

        if (id && !json_object_get(order, id))
            json_object_set_new(order, id, json_integer((json_int_t)i));
    }
    for (i = from; ok && i < to; i++) {
        json_t *m = json_array_get(list, i);
        const char *id = json_string_value(json_object_get(m, "tool_call_id"));
        const json_t *k = id ? json_object_get(order, id) : NULL;

        if (!k)
            continue;
        slots[n] = i;
        v[n++] = (struct result){json_incref(m), json_integer_value(k), i};
    }
    if (n)
        qsort(v, n, sizeof *v, by_call);
    for (i = 0; i < n; i++)
        json_array_set_new(list, slots[i], v[i].m);
    json_decref(order);
    esp_free(slots);
    esp_free(v);
    return ok;
}

/* The same for every turn that has results. */
static bool order_all(json_t *list)
{
    bool ok = true;

    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        const json_t *calls = json_object_get(json_array_get(list, i), "tool_calls");
        size_t to = i + 1;

        while (to < json_array_size(list) &&
               strcmp(json_string_value(json_object_get(json_array_get(list, to), "role")), "tool") == 0)
            to++;
        if (json_array_size(calls) > 1 && to - i > 2)
            ok = order_results(list, i + 1, to, calls);
        i = to - 1;
    }
    return ok;
}

/* ---- arguments ---- */

struct where { /* messages[i].tool_calls[k] */
    size_t i, k;
    bool strict;
    struct esp_gen *g;
    struct esp_api_error *e;
};

enum { MOST_ARGUMENTS = 64 << 20 }; /* a request is shorter */

/* Arguments that are no object: a new object that has them as text; NULL with an error. */
static json_t *as_text(const json_t *args, const struct where *at)
{
    char param[96], message[200];
    json_t *out = NULL;
    struct esp_strbuf text;

    snprintf(param, sizeof param, "messages[%zu].tool_calls[%zu].function.arguments", at->i, at->k);
    if (at->strict) {
        esp_api_fail(at->e, "invalid_value", param, "%s: %s; a JSON object, or JSON text of one, is accepted",
                     param, esp_show_value(args));
    } else {
        snprintf(message, sizeof message, "%s: not a JSON object, put into the prompt as text", param);
        esp_gen_warn(at->g, message);
        esp_strbuf_init(&text, MOST_ARGUMENTS);
        if (json_is_string(args))
            out = json_pack("{s:O}", "arguments", args);
        else if (esp_json_add_exact(&text, args))
            out = json_pack("{s:s}", "arguments", esp_strbuf_str(&text));
        esp_strbuf_free(&text);
    }
    return out;
}

/* A new reference to the arguments as an object; NULL: as they are (absent, null, an object, empty), or
 * with an error. */
static json_t *parsed(const json_t *args, const struct where *at)
{
    const char *s = json_string_value(args);
    json_t *v = NULL;

    if (!args || json_is_null(args) || json_is_object(args) || (s && !s[strspn(s, " \t\r\n")]))
        return NULL;
    if (s &&
        esp_json_parse(&v, s, json_string_length(args), "arguments", ESP_JSON_NO_DUPLICATES, NULL) ==
            ESP_OK &&
        json_is_object(v))
        return v;
    json_decref(v);
    return as_text(args, at);
}

/* A copy of a call with other arguments, which are taken over. */
static json_t *with_arguments(const json_t *call, json_t *args)
{
    const json_t *f = json_object_get(call, "function");
    json_t *copy = json_copy((json_t *)call), *inner = f ? json_copy((json_t *)f) : json_incref(copy);

    json_object_set_new(inner, "arguments", args);
    if (f)
        json_object_set(copy, "function", inner);
    json_decref(inner);
    return copy;
}

/* The calls of one message; its list becomes one of its own when something changes. */
static bool read_calls(json_t *m, struct where *at)
{
    const json_t *calls = json_object_get(m, "tool_calls");
    json_t *own = NULL, *call;

    json_array_foreach(calls, at->k, call)
    {
        const json_t *f = json_object_get(call, "function");
        json_t *args = json_is_object(call) && (!f || json_is_object(f))
                           ? parsed(json_object_get(f ? f : call, "arguments"), at)
                           : NULL;

        if (args && !own)
            own = json_copy((json_t *)calls);
        if (args)
            json_array_set_new(own, at->k, with_arguments(call, args));
    }
    if (own)
        json_object_set_new(m, "tool_calls", own);
    return !at->e->http;
}

bool esp_history_tools(json_t *messages, bool strict, struct esp_gen *g, struct esp_api_error *e)
{
    struct where at = {.strict = strict, .g = g, .e = e};
    json_t *m;

    json_array_foreach(messages, at.i, m)
    {
        if (!read_calls(m, &at))
            return false;
    }
    return order_all(messages) || esp_api_fail(e, "device_lost", NULL, "no memory for the messages");
}
