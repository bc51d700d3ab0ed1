/*
 * Tool calls inside a turn: tags, parameters and their values, the JSON form. A value ends at </parameter>
 * only when markup follows, since values may hold anything, whole calls included; at the end of the turn also
 * where closers alone stand.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/toolcall_parts.h"

#include "base/json.h"
#include "base/mem.h"

#include "text/toolvalue.h"

/* NAME and ">" at s[i..n): as esp_turn_match_open. */
static enum esp_turn_match match_name(const char *s, size_t i, size_t n, char name[ESP_TURN_MAX_NAME + 1],
                                      size_t *len)
{
    size_t end = i;

    while (end < n && s[end] != '>' && s[end] != '\n' && s[end] != '<')
        end++;
    if (end - i > ESP_TURN_MAX_NAME || i > 2 * ESP_TURN_MAX_SPACES)
        return ESP_TURN_NO;
    if (end == n)
        return ESP_TURN_PART;
    *len = end + 1;
    if (s[end] != '>')
        return ESP_TURN_NO;
    while (end > i && esp_turn_is_space(s[end - 1]))
        end--;
    if (end == i)
        return ESP_TURN_NO;
    memcpy(name, s + i, end - i);
    name[end - i] = '\0';
    return ESP_TURN_YES;
}

enum esp_turn_match esp_turn_match_open(const char *s, size_t n, const char *word,
                                        char name[ESP_TURN_MAX_NAME + 1], size_t *len)
{
    const enum esp_turn_match m = esp_turn_match(s, n, word);
    size_t i = strlen(word), space;

    if (m != ESP_TURN_YES)
        return m;
    space = esp_turn_spaces(s + i, n - i);
    i += space;
    if (space > ESP_TURN_MAX_SPACES) /* whatever follows: the answer must not depend on what is there yet */
        return ESP_TURN_NO;
    if (i == n)
        return ESP_TURN_PART;
    if (s[i++] != '=')
        return ESP_TURN_NO;
    i += esp_turn_spaces(s + i, n - i);
    return match_name(s, i, n, name, len);
}

bool esp_turn_start_call(struct esp_turn *t, size_t len)
{
    esp_turn_take(t, len);
    t->tool = esp_tool_find(t->o.tools, t->name);
    if (!t->tool)
        esp_turn_warn(t, "the model called a function that was not offered");
    json_decref(t->keys);
    t->keys = json_object();
    esp_turn_give(t, ESP_TURN_CALL, t->name, strlen(t->name));
    t->state = ESP_TURN_IN_FUNCTION;
    return true;
}

bool esp_turn_end_call(struct esp_turn *t, enum esp_turn_state next)
{
    if (json_object_size(t->keys) == 0)
        esp_turn_give(t, ESP_TURN_ARGS, "{}", 2);
    else
        esp_turn_give(t, ESP_TURN_ARGS, "}", 1);
    t->o.fn(t->o.user, ESP_TURN_CALL_END, "", 0);
    esp_turn_channel(t, next);
    return true;
}

static bool start_value(struct esp_turn *t, const char *key, size_t len)
{
    const bool first = json_object_size(t->keys) == 0;

    esp_turn_take(t, len);
    t->skip = json_object_get(t->keys, key) || json_object_size(t->keys) >= ESP_TURN_MAX_KEYS ||
              json_object_set_new(t->keys, key, json_true()) != 0;
    t->types = esp_tool_types(t->tool, key);
    t->state = ESP_TURN_IN_VALUE;
    t->fresh = true;
    esp_strbuf_clear(&t->value);
    if (t->skip) {
        esp_turn_warn(t, "the model gave a parameter twice; the first value stands");
        return true;
    }
    esp_strbuf_clear(&t->piece);
    esp_strbuf_puts(&t->piece, first ? "{\"" : ",\"");
    esp_json_escape(&t->piece, key, strlen(key));
    esp_strbuf_puts(&t->piece, t->types == ESP_TOOL_STRING ? "\":\"" : "\":");
    esp_turn_give(t, ESP_TURN_ARGS, esp_strbuf_str(&t->piece), t->piece.len);
    return true;
}

/* n bytes from the front belong to the value. */
static void take_value(struct esp_turn *t, size_t n)
{
    if (t->types != ESP_TOOL_STRING) {
        esp_strbuf_add(&t->value, esp_turn_front(t), n);
    } else if (!t->skip) {
        esp_strbuf_clear(&t->piece);
        esp_json_escape(&t->piece, esp_turn_front(t), n);
        esp_turn_give(t, ESP_TURN_ARGS, esp_strbuf_str(&t->piece), t->piece.len);
    }
    esp_turn_take(t, n);
}

void esp_turn_end_value(struct esp_turn *t)
{
    bool odd = false;

    t->state = ESP_TURN_IN_FUNCTION;
    if (t->skip)
        return;
    esp_strbuf_clear(&t->piece);
    if (t->types == ESP_TOOL_STRING)
        esp_strbuf_putc(&t->piece, '"');
    else
        esp_tool_value(t->types, esp_strbuf_str(&t->value), t->value.len, &t->piece, &odd);
    if (odd)
        esp_turn_warn(
            t, "an argument does not have the type that its schema asks for; it is passed as a string");
    esp_turn_give(t, ESP_TURN_ARGS, esp_strbuf_str(&t->piece), t->piece.len);
}

/* Optional white space, then one of the tags (NULL ends). at_end: nothing may follow instead. */
static enum esp_turn_match match_next(const char *s, size_t n, const char *const *tags, bool at_end)
{
    const size_t skip = esp_turn_spaces(s, n);
    enum esp_turn_match best = ESP_TURN_NO;

    if (skip > ESP_TURN_MAX_SPACES)
        return ESP_TURN_NO;
    if (skip == n)
        return at_end ? ESP_TURN_YES : ESP_TURN_PART;
    for (; *tags; tags++) {
        const enum esp_turn_match m = esp_turn_match(s + skip, n - skip, *tags);

        if (m > best)
            best = m;
    }
    return best == ESP_TURN_PART && at_end ? ESP_TURN_NO : best;
}

/* Does the value end at s, which begins with '<'? *len: bytes of </parameter>, 0 when closers follow that
 * ESP_TURN_IN_FUNCTION takes. */
static enum esp_turn_match value_end(const struct esp_turn *t, const char *s, size_t n, size_t *len)
{
    static const char *const after_value[] = {"<parameter", "</function>", "</tool_call>", NULL};
    static const char *const nothing[] = {NULL};
    static const char *const after_function[] = {"</tool_call>", NULL};
    static const struct {
        const char *tag;
        const char *const *next;
    } closers[] = {{"</parameter>", after_value}, {"</function>", after_function}, {"</tool_call>", nothing}};

    for (size_t i = 0; i < 3; i++) {
        const size_t tag_len = strlen(closers[i].tag);
        enum esp_turn_match m = esp_turn_match(s, n, closers[i].tag);

        if (m == ESP_TURN_PART)
            return t->final ? ESP_TURN_NO : ESP_TURN_PART;
        if (m == ESP_TURN_NO)
            continue;
        m = match_next(s + tag_len, n - tag_len, closers[i].next, t->final);
        if (i == 1 && m == ESP_TURN_YES) { /* </function></tool_call> counts where nothing follows */
            const size_t skip = tag_len + esp_turn_spaces(s + tag_len, n - tag_len);

            if (skip < n) {
                const size_t both = skip + strlen("</tool_call>");

                m = match_next(s + both, n - both, nothing, t->final);
            }
        }
        *len = i == 0 ? tag_len : 0;
        return m;
    }
    return ESP_TURN_NO;
}

bool esp_turn_step_value(struct esp_turn *t)
{
    size_t from = 0;

    if (t->fresh) {
        if (esp_turn_left(t) == 0)
            return false;
        if (*esp_turn_front(t) == '\n')
            esp_turn_take(t, 1);
        t->fresh = false;
    }
    for (;;) {
        const char *s = esp_turn_front(t), *lt = memchr(s + from, '<', esp_turn_left(t) - from);
        const size_t n = lt ? (size_t)(lt - s) : esp_turn_left(t), text = n && s[n - 1] == '\n' ? n - 1 : n;
        size_t len = 0;
        enum esp_turn_match m;

        if (!lt) { /* a line end may be the one in front of the closing tag */
            take_value(t, t->final ? n : text);
            return false;
        }
        m = value_end(t, lt, esp_turn_left(t) - n, &len);
        if (m == ESP_TURN_NO) {
            from = n + 1;
            continue;
        }
        take_value(t, text);
        if (m == ESP_TURN_PART)
            return false;
        esp_turn_take(t, n - text + len);
        esp_turn_end_value(t);
        return true;
    }
}

bool esp_turn_step_function(struct esp_turn *t)
{
    char key[ESP_TURN_MAX_NAME + 1];
    size_t len = 0;
    enum esp_turn_match parameter, function, call;

    esp_turn_take(t, esp_turn_spaces(esp_turn_front(t), esp_turn_left(t)));
    if (esp_turn_left(t) == 0)
        return false;
    parameter = esp_turn_match_open(esp_turn_front(t), esp_turn_left(t), "<parameter", key, &len);
    function = esp_turn_match(esp_turn_front(t), esp_turn_left(t), "</function>");
    call = esp_turn_match(esp_turn_front(t), esp_turn_left(t), "</tool_call>");
    if (parameter == ESP_TURN_YES)
        return start_value(t, key, len);
    if (function == ESP_TURN_YES) {
        esp_turn_take(t, strlen("</function>"));
        return esp_turn_end_call(t, ESP_TURN_IN_CALL_CLOSE);
    }
    if (call == ESP_TURN_YES) {
        esp_turn_take(t, strlen("</tool_call>"));
        return esp_turn_end_call(t, ESP_TURN_IN_BETWEEN);
    }
    if ((parameter == ESP_TURN_PART || function == ESP_TURN_PART || call == ESP_TURN_PART) && !t->final)
        return false;
    esp_turn_take(t, 1); /* text between values means nothing */
    return true;
}

bool esp_turn_step_close(struct esp_turn *t)
{
    enum esp_turn_match m;

    esp_turn_take(t, esp_turn_spaces(esp_turn_front(t), esp_turn_left(t)));
    m = esp_turn_match(esp_turn_front(t), esp_turn_left(t), "</tool_call>");
    if (m == ESP_TURN_PART && !t->final)
        return false;
    if (m == ESP_TURN_YES)
        esp_turn_take(t, strlen("</tool_call>"));
    t->state = ESP_TURN_IN_BETWEEN;
    return true;
}

bool esp_turn_step_between(struct esp_turn *t)
{
    enum esp_turn_match m;

    esp_turn_take(t, esp_turn_spaces(esp_turn_front(t), esp_turn_left(t)));
    if (esp_turn_left(t) == 0)
        return false;
    m = esp_turn_match(esp_turn_front(t), esp_turn_left(t), "</think>");
    if (m == ESP_TURN_PART && !t->final)
        return false;
    if (m == ESP_TURN_YES)
        esp_turn_take(t, strlen("</think>"));
    else
        esp_turn_channel(t, ESP_TURN_IN_CONTENT);
    return true;
}

bool esp_turn_step_open(struct esp_turn *t)
{
    const size_t skip = esp_turn_spaces(esp_turn_front(t), esp_turn_left(t));
    const char *s = esp_turn_front(t) + skip;
    const size_t n = esp_turn_left(t) - skip;
    size_t len = 0;
    enum esp_turn_match m;

    if (n == 0)
        return false;
    if (*s == '{') {
        esp_turn_take(t, skip);
        t->scan = 0;
        t->quoted = t->escaped = false;
        t->state = ESP_TURN_IN_JSON_CALL;
        return true;
    }
    m = esp_turn_match_open(s, n, "<function", t->name, &len);
    if (m == ESP_TURN_YES)
        return esp_turn_start_call(t, skip + len);
    if (m == ESP_TURN_PART)
        return false;
    esp_turn_warn(t, "<tool_call> without a function; it is passed as text");
    t->state = ESP_TURN_IN_CONTENT;
    t->any = true;
    t->n_content += strlen("<tool_call>");
    esp_turn_give(t, ESP_TURN_CONTENT, "<tool_call>", strlen("<tool_call>"));
    return true;
}

/* {"name": ..., "arguments": {...}} in s[0..n). */
static bool json_call(struct esp_turn *t, const char *s, size_t n)
{
    json_t *call = NULL, *args, *parsed = NULL;
    const char *name;
    bool ok;

    if (esp_json_parse(&call, s, n, "tool call", 0, NULL) != ESP_OK)
        return false;
    name = json_string_value(json_object_get(call, "name"));
    args = json_object_get(call, "arguments");
    if (!args)
        args = json_object_get(call, "parameters");
    if (json_is_string(args) && esp_json_parse(&parsed, json_string_value(args), json_string_length(args),
                                               "arguments", 0, NULL) == ESP_OK)
        args = parsed;
    ok = name && *name && strlen(name) <= ESP_TURN_MAX_NAME &&
         (!args || json_is_object(args) || json_is_null(args));
    if (ok) {
        char *text = json_is_object(args) ? json_dumps(args, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;

        esp_turn_give(t, ESP_TURN_CALL, name, strlen(name));
        esp_turn_give(t, ESP_TURN_ARGS, text ? text : "{}", text ? strlen(text) : 2);
        t->o.fn(t->o.user, ESP_TURN_CALL_END, "", 0);
        if (!esp_tool_find(t->o.tools, name))
            esp_turn_warn(t, "the model called a function that was not offered");
        esp_free(text);
    }
    json_decref(parsed);
    json_decref(call);
    return ok;
}

/* The closing tag behind the JSON at the front, on from t->scan; tags in strings are text. A raw line end
 * closes a string, which is no JSON then: the rest of the turn is not lost with it. NULL: not yet. */
static const char *json_end(struct esp_turn *t)
{
    for (; t->scan < esp_turn_left(t); t->scan++) {
        const char *s = esp_turn_front(t) + t->scan;
        enum esp_turn_match m;

        if (t->quoted) {
            t->quoted = t->escaped || (*s != '"' && *s != '\n');
            t->escaped = !t->escaped && *s == '\\';
            continue;
        }
        t->quoted = *s == '"';
        if (*s != '<')
            continue;
        m = esp_turn_match(s, esp_turn_left(t) - t->scan, "</tool_call>");
        if (m == ESP_TURN_YES)
            return s;
        if (m == ESP_TURN_PART)
            return NULL;
    }
    return NULL;
}

bool esp_turn_step_json(struct esp_turn *t)
{
    const size_t len = strlen("</tool_call>");
    const char *end = json_end(t);
    size_t n;

    if (!end && !t->final)
        return false;
    n = end ? (size_t)(end - esp_turn_front(t)) : esp_turn_left(t);
    if (json_call(t, esp_turn_front(t), n)) {
        esp_turn_take(t, n + (end ? len : 0));
        esp_turn_channel(t, ESP_TURN_IN_BETWEEN);
        return true;
    }
    esp_turn_warn(t, "<tool_call> with JSON that is no call; it is passed as text");
    t->any = true;
    t->state = ESP_TURN_IN_CONTENT;
    esp_turn_give(t, ESP_TURN_CONTENT, "<tool_call>", strlen("<tool_call>"));
    t->n_content += strlen("<tool_call>") + n;
    esp_turn_give(t, ESP_TURN_CONTENT, esp_turn_front(t), n);
    esp_turn_take(t, n);
    return true;
}
