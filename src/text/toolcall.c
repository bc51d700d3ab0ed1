/*
 * A machine over a buffer of undecided bytes. Each state looks at the buffer's front, takes what it is sure
 * of and asks for more otherwise; so the cut of the input cannot show. White space that may be trimmed waits
 * in a buffer of its own.
 *
 * A value ends at </parameter> only when markup follows, since values may hold anything, tags included.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/toolcall.h"

#include <string.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/strbuf.h"

#include "text/toolvalue.h"

enum {
    MAX_NAME = 256,  /* of a function or parameter; longer ones are text */
    MAX_SPACES = 64, /* between two tags of markup */
    MAX_KEYS = 4096  /* arguments of one call */
};

enum state {
    START,      /* of an answer: white space, then perhaps <think> */
    REASONING,  /* inside <think> */
    CONTENT,    /* visible text */
    CALL_OPEN,  /* behind <tool_call> */
    FUNCTION,   /* behind <function=...>, outside values */
    VALUE,      /* inside a value */
    JSON_CALL,  /* behind <tool_call> {, until </tool_call> */
    CALL_CLOSE, /* behind </function> */
    BETWEEN     /* behind a call: white space and stray closers go */
};

enum match { NO, PART, YES };

struct esp_turn {
    struct esp_turn_opts o;
    enum state state;
    struct esp_strbuf buf; /* undecided bytes from at on */
    size_t at;
    struct esp_strbuf space; /* white space behind handed-out text: part of it if more text follows */
    bool any;                /* text of the present channel was handed out */
    bool fresh;              /* first byte of a value */
    bool final;              /* no more bytes come */
    size_t scan;             /* JSON_CALL: bytes behind at that were searched */
    size_t n_content, n_reasoning;
    /* The present call. */
    const json_t *tool;
    json_t *keys;
    unsigned types; /* of the present parameter */
    bool skip;      /* a parameter that was given before */
    char name[MAX_NAME + 1];
    struct esp_strbuf value; /* text of one that is not handed out as it comes */
    struct esp_strbuf piece;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static const char *front(const struct esp_turn *t)
{
    return esp_strbuf_str(&t->buf) + t->at;
}

static size_t left(const struct esp_turn *t)
{
    return t->buf.len - t->at;
}

static enum match match(const char *s, size_t n, const char *tag)
{
    const size_t len = strlen(tag);

    if (memcmp(s, tag, n < len ? n : len) != 0)
        return NO;
    return n < len ? PART : YES;
}

static size_t spaces(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n && is_space(s[i]))
        i++;
    return i;
}

/* NAME and ">" at s[i..n): as match_open. */
static enum match match_name(const char *s, size_t i, size_t n, char name[MAX_NAME + 1], size_t *len)
{
    size_t end = i;

    while (end < n && s[end] != '>' && s[end] != '\n' && s[end] != '<')
        end++;
    if (end - i > MAX_NAME || i > 2 * MAX_SPACES)
        return NO;
    if (end == n)
        return PART;
    *len = end + 1;
    if (s[end] != '>')
        return NO;
    while (end > i && is_space(s[end - 1]))
        end--;
    if (end == i)
        return NO;
    memcpy(name, s + i, end - i);
    name[end - i] = '\0';
    return YES;
}

/* "<word = NAME >": length of it all in *len, the name in name. */
static enum match match_open(const char *s, size_t n, const char *word, char name[MAX_NAME + 1], size_t *len)
{
    const enum match m = match(s, n, word);
    size_t i = strlen(word);

    if (m != YES)
        return m;
    i += spaces(s + i, n - i);
    if (i == n)
        return i < MAX_SPACES + 16 ? PART : NO;
    if (s[i++] != '=')
        return NO;
    i += spaces(s + i, n - i);
    return match_name(s, i, n, name, len);
}

static void warn(const struct esp_turn *t, const char *message)
{
    if (t->o.warn)
        t->o.warn(t->o.user, message);
}

static void give(struct esp_turn *t, enum esp_turn_what what, const char *s, size_t len)
{
    if (len)
        t->o.fn(t->o.user, what, s, len);
}

static void take(struct esp_turn *t, size_t n)
{
    t->at += n;
}

/* ---- text ---- */

/* Hand out n bytes of text from the front: white space at its end waits for more, at its start it goes. */
static void take_text(struct esp_turn *t, size_t n)
{
    const enum esp_turn_what what = t->state == REASONING ? ESP_TURN_REASONING : ESP_TURN_CONTENT;
    const char *s = front(t);
    size_t skip = t->any ? 0 : spaces(s, n), end = n;

    *(what == ESP_TURN_CONTENT ? &t->n_content : &t->n_reasoning) += n;
    while (end > skip && is_space(s[end - 1]))
        end--;
    if (end > skip) {
        give(t, what, esp_strbuf_str(&t->space), t->space.len);
        esp_strbuf_clear(&t->space);
        give(t, what, s + skip, end - skip);
        t->any = true;
    }
    if (t->any)
        esp_strbuf_add(&t->space, s + end, n - end);
    take(t, n);
}

static void new_channel(struct esp_turn *t, enum state state)
{
    t->state = state;
    t->any = false;
    esp_strbuf_clear(&t->space);
}

static bool start_call(struct esp_turn *t, size_t len);

/* A tag at s[0..n)? PART: may become one. On YES it is taken. */
static enum match text_tag(struct esp_turn *t, const char *s, size_t n)
{
    const bool thinking = t->state == REASONING;
    const bool calls = t->o.calls && (!thinking || t->o.calls_in_thinking);
    enum match think = thinking ? match(s, n, "</think>") : NO, call = NO, function = NO;
    size_t len = 0;

    if (think == YES) {
        take(t, strlen("</think>"));
        new_channel(t, CONTENT);
        return YES;
    }
    if (calls) {
        call = match(s, n, "<tool_call>");
        function = match_open(s, n, "<function", t->name, &len);
    }
    if (call == YES) {
        take(t, strlen("<tool_call>"));
        new_channel(t, CALL_OPEN);
        return YES;
    }
    if (function == YES) {
        new_channel(t, FUNCTION);
        start_call(t, len);
        return YES;
    }
    return think == PART || call == PART || function == PART ? PART : NO;
}

/* REASONING and CONTENT. */
static bool step_text(struct esp_turn *t)
{
    size_t n = 0;

    while (n < left(t)) {
        const char *lt = memchr(front(t) + n, '<', left(t) - n);
        enum match m;

        if (!lt) {
            n = left(t);
            break;
        }
        n = (size_t)(lt - front(t));
        take_text(t, n);
        m = text_tag(t, front(t), left(t));
        if (m == YES)
            return true;
        if (m == PART && !t->final)
            return false;
        n = 1; /* a '<' like any other */
    }
    take_text(t, n);
    return false;
}

static bool step_start(struct esp_turn *t)
{
    const size_t n = spaces(front(t), left(t));
    const enum match m = match(front(t) + n, left(t) - n, "<think>");

    if (m == PART && !t->final)
        return false;
    if (m == YES)
        take(t, n + strlen("<think>"));
    new_channel(t, m == YES ? REASONING : CONTENT);
    return true;
}

/* ---- calls ---- */

static bool start_call(struct esp_turn *t, size_t len)
{
    take(t, len);
    t->tool = esp_tool_find(t->o.tools, t->name);
    if (!t->tool)
        warn(t, "the model called a function that was not offered");
    json_decref(t->keys);
    t->keys = json_object();
    give(t, ESP_TURN_CALL, t->name, strlen(t->name));
    t->state = FUNCTION;
    return true;
}

static bool end_call(struct esp_turn *t, enum state next)
{
    if (json_object_size(t->keys) == 0)
        give(t, ESP_TURN_ARGS, "{}", 2);
    else
        give(t, ESP_TURN_ARGS, "}", 1);
    t->o.fn(t->o.user, ESP_TURN_CALL_END, "", 0);
    new_channel(t, next);
    return true;
}

static bool start_value(struct esp_turn *t, const char *key, size_t len)
{
    const bool first = json_object_size(t->keys) == 0;

    take(t, len);
    t->skip = json_object_get(t->keys, key) || json_object_size(t->keys) >= MAX_KEYS ||
              json_object_set_new(t->keys, key, json_true()) != 0;
    t->types = esp_tool_types(t->tool, key);
    t->state = VALUE;
    t->fresh = true;
    esp_strbuf_clear(&t->value);
    if (t->skip) {
        warn(t, "the model gave a parameter twice; the first value stands");
        return true;
    }
    esp_strbuf_clear(&t->piece);
    esp_strbuf_puts(&t->piece, first ? "{\"" : ",\"");
    esp_json_escape(&t->piece, key, strlen(key));
    esp_strbuf_puts(&t->piece, t->types == ESP_TOOL_STRING ? "\":\"" : "\":");
    give(t, ESP_TURN_ARGS, esp_strbuf_str(&t->piece), t->piece.len);
    return true;
}

/* n bytes from the front belong to the value. */
static void take_value(struct esp_turn *t, size_t n)
{
    if (t->types != ESP_TOOL_STRING) {
        esp_strbuf_add(&t->value, front(t), n);
    } else if (!t->skip) {
        esp_strbuf_clear(&t->piece);
        esp_json_escape(&t->piece, front(t), n);
        give(t, ESP_TURN_ARGS, esp_strbuf_str(&t->piece), t->piece.len);
    }
    take(t, n);
}

static void end_value(struct esp_turn *t)
{
    bool odd = false;

    t->state = FUNCTION;
    if (t->skip)
        return;
    esp_strbuf_clear(&t->piece);
    if (t->types == ESP_TOOL_STRING)
        esp_strbuf_putc(&t->piece, '"');
    else
        esp_tool_value(t->types, esp_strbuf_str(&t->value), t->value.len, &t->piece, &odd);
    if (odd)
        warn(t, "an argument does not have the type that its schema asks for; it is passed as a string");
    give(t, ESP_TURN_ARGS, esp_strbuf_str(&t->piece), t->piece.len);
}

/* Optional white space, then one of the tags (NULL ends). at_end: nothing may follow instead. */
static enum match match_next(const char *s, size_t n, const char *const *tags, bool at_end)
{
    const size_t skip = spaces(s, n);
    enum match best = NO;

    if (skip > MAX_SPACES)
        return NO;
    if (skip == n)
        return at_end ? YES : PART;
    for (; *tags; tags++) {
        const enum match m = match(s + skip, n - skip, *tags);

        if (m > best)
            best = m;
    }
    return best == PART && at_end ? NO : best;
}

/* Does the value end at s, which begins with '<'? *len: bytes of </parameter>, 0 when closers follow that
 * FUNCTION takes. */
static enum match value_end(const struct esp_turn *t, const char *s, size_t n, size_t *len)
{
    static const char *const after_value[] = {"<parameter", "</function>", "</tool_call>", NULL};
    static const char *const after_call[] = {"<tool_call>", NULL};
    static const char *const after_function[] = {"</tool_call>", NULL};
    static const struct {
        const char *tag;
        const char *const *next;
    } closers[] = {
        {"</parameter>", after_value}, {"</function>", after_function}, {"</tool_call>", after_call}};

    for (size_t i = 0; i < 3; i++) {
        const size_t tag_len = strlen(closers[i].tag);
        enum match m = match(s, n, closers[i].tag);

        if (m == PART)
            return t->final ? NO : PART;
        if (m == NO)
            continue;
        m = match_next(s + tag_len, n - tag_len, closers[i].next, t->final);
        if (i == 1 && m == YES) { /* </function></tool_call> counts where the turn or another call follows */
            const size_t skip = tag_len + spaces(s + tag_len, n - tag_len);

            if (skip < n) {
                const size_t both = skip + strlen("</tool_call>");

                m = match_next(s + both, n - both, after_call, t->final);
            }
        }
        *len = i == 0 ? tag_len : 0;
        return m;
    }
    return NO;
}

static bool step_value(struct esp_turn *t)
{
    size_t from = 0;

    if (t->fresh) {
        if (left(t) == 0)
            return false;
        if (*front(t) == '\n')
            take(t, 1);
        t->fresh = false;
    }
    for (;;) {
        const char *s = front(t), *lt = memchr(s + from, '<', left(t) - from);
        const size_t n = lt ? (size_t)(lt - s) : left(t), text = n && s[n - 1] == '\n' ? n - 1 : n;
        size_t len = 0;
        enum match m;

        if (!lt) { /* a line end may be the one in front of the closing tag */
            take_value(t, t->final ? n : text);
            return false;
        }
        m = value_end(t, lt, left(t) - n, &len);
        if (m == NO) {
            from = n + 1;
            continue;
        }
        take_value(t, text);
        if (m == PART)
            return false;
        take(t, n - text + len);
        end_value(t);
        return true;
    }
}

static bool step_function(struct esp_turn *t)
{
    char key[MAX_NAME + 1];
    size_t len = 0;
    enum match parameter, function, call;

    take(t, spaces(front(t), left(t)));
    if (left(t) == 0)
        return false;
    parameter = match_open(front(t), left(t), "<parameter", key, &len);
    function = match(front(t), left(t), "</function>");
    call = match(front(t), left(t), "</tool_call>");
    if (parameter == YES)
        return start_value(t, key, len);
    if (function == YES) {
        take(t, strlen("</function>"));
        return end_call(t, CALL_CLOSE);
    }
    if (call == YES) {
        take(t, strlen("</tool_call>"));
        return end_call(t, BETWEEN);
    }
    if ((parameter == PART || function == PART || call == PART) && !t->final)
        return false;
    take(t, 1); /* text between values means nothing */
    return true;
}

static bool step_call_close(struct esp_turn *t)
{
    enum match m;

    take(t, spaces(front(t), left(t)));
    m = match(front(t), left(t), "</tool_call>");
    if (m == PART && !t->final)
        return false;
    if (m == YES)
        take(t, strlen("</tool_call>"));
    t->state = BETWEEN;
    return true;
}

static bool step_between(struct esp_turn *t)
{
    enum match m;

    take(t, spaces(front(t), left(t)));
    if (left(t) == 0)
        return false;
    m = match(front(t), left(t), "</think>");
    if (m == PART && !t->final)
        return false;
    if (m == YES)
        take(t, strlen("</think>"));
    else
        new_channel(t, CONTENT);
    return true;
}

static bool step_call_open(struct esp_turn *t)
{
    const size_t skip = spaces(front(t), left(t));
    const char *s = front(t) + skip;
    const size_t n = left(t) - skip;
    size_t len = 0;
    enum match m;

    if (n == 0)
        return false;
    if (*s == '{') {
        take(t, skip);
        t->scan = 0;
        t->state = JSON_CALL;
        return true;
    }
    m = match_open(s, n, "<function", t->name, &len);
    if (m == YES)
        return start_call(t, skip + len);
    if (m == PART)
        return false;
    warn(t, "<tool_call> without a function; it is passed as text");
    t->state = CONTENT;
    t->any = true;
    t->n_content += strlen("<tool_call>");
    give(t, ESP_TURN_CONTENT, "<tool_call>", strlen("<tool_call>"));
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
    ok = name && *name && strlen(name) <= MAX_NAME && (!args || json_is_object(args) || json_is_null(args));
    if (ok) {
        char *text = json_is_object(args) ? json_dumps(args, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;

        give(t, ESP_TURN_CALL, name, strlen(name));
        give(t, ESP_TURN_ARGS, text ? text : "{}", text ? strlen(text) : 2);
        t->o.fn(t->o.user, ESP_TURN_CALL_END, "", 0);
        if (!esp_tool_find(t->o.tools, name))
            warn(t, "the model called a function that was not offered");
        esp_free(text);
    }
    json_decref(parsed);
    json_decref(call);
    return ok;
}

static bool step_json_call(struct esp_turn *t)
{
    static const char close[] = "</tool_call>";
    const size_t len = sizeof close - 1;
    const char *end = NULL;
    size_t n;

    while (!end && t->scan < left(t)) {
        const char *lt = memchr(front(t) + t->scan, '<', left(t) - t->scan);
        const enum match m = lt ? match(lt, (size_t)(front(t) + left(t) - lt), close) : NO;

        t->scan = lt ? (size_t)(lt - front(t)) + (m != PART) : left(t);
        if (m == YES)
            end = lt;
        if (m == PART)
            break;
    }
    if (!end && !t->final)
        return false;
    n = end ? (size_t)(end - front(t)) : left(t);
    if (json_call(t, front(t), n)) {
        take(t, n + (end ? len : 0));
        new_channel(t, BETWEEN);
        return true;
    }
    warn(t, "<tool_call> with JSON that is no call; it is passed as text");
    t->any = true;
    t->state = CONTENT;
    give(t, ESP_TURN_CONTENT, "<tool_call>", strlen("<tool_call>"));
    t->n_content += strlen("<tool_call>") + n;
    give(t, ESP_TURN_CONTENT, front(t), n);
    take(t, n);
    return true;
}

/* ---- the machine ---- */

static bool step(struct esp_turn *t)
{
    static bool (*const steps[])(struct esp_turn *) = {
        [START] = step_start,         [REASONING] = step_text,        [CONTENT] = step_text,
        [CALL_OPEN] = step_call_open, [FUNCTION] = step_function,     [VALUE] = step_value,
        [JSON_CALL] = step_json_call, [CALL_CLOSE] = step_call_close, [BETWEEN] = step_between,
    };

    return steps[t->state](t);
}

static esp_status status(const struct esp_turn *t, esp_error *err)
{
    if (t->buf.failed || t->space.failed || t->value.failed || t->piece.failed)
        return esp_fail(err, ESP_ENOMEM, "the model's turn: out of memory, or a call above %u bytes",
                        ESP_LIMIT_TURN_BYTES);
    return ESP_OK;
}

static esp_status feed(struct esp_turn *t, const char *s, size_t len, esp_error *err)
{
    if (t->o.raw) {
        t->n_content += len;
        give(t, ESP_TURN_CONTENT, s, len);
        return ESP_OK;
    }
    if (t->at) { /* what was taken makes room */
        memmove(t->buf.data, t->buf.data + t->at, left(t));
        t->buf.len -= t->at;
        t->at = 0;
    }
    if (!esp_strbuf_add(&t->buf, s, len))
        return status(t, err);
    while (left(t) && step(t))
        ;
    return status(t, err);
}

esp_status esp_turn_feed(struct esp_turn *t, const char *s, size_t len, esp_error *err)
{
    while (len) {
        const size_t n = strnlen(s, len);

        if (n)
            ESP_TRY(feed(t, s, n, err));
        if (n == len)
            break;
        ESP_TRY(feed(t, "\xef\xbf\xbd", 3, err));
        s += n + 1;
        len -= n + 1;
    }
    return ESP_OK;
}

esp_status esp_turn_finish(struct esp_turn *t, bool ended, esp_error *err)
{
    const bool in_call = esp_turn_in_call(t);

    if (t->o.raw || (in_call && !ended))
        return status(t, err);
    t->final = true;
    while (left(t) && step(t))
        ;
    if (t->state == VALUE)
        end_value(t);
    if (t->state == FUNCTION) {
        warn(t, "the model ended its turn inside a call; the call is passed as far as it goes");
        end_call(t, BETWEEN);
    }
    if (t->state == CONTENT && t->any) /* only a call or more text takes the white space away */
        give(t, ESP_TURN_CONTENT, esp_strbuf_str(&t->space), t->space.len);
    esp_strbuf_clear(&t->space);
    return status(t, err);
}

size_t esp_turn_content_bytes(const struct esp_turn *t)
{
    return t->n_content;
}

size_t esp_turn_reasoning_bytes(const struct esp_turn *t)
{
    return t->n_reasoning;
}

size_t esp_turn_undecided(const struct esp_turn *t)
{
    return left(t);
}

bool esp_turn_in_reasoning(const struct esp_turn *t)
{
    return t->state == REASONING;
}

bool esp_turn_in_call(const struct esp_turn *t)
{
    return t->state == CALL_OPEN || t->state == FUNCTION || t->state == VALUE || t->state == JSON_CALL;
}

esp_status esp_turn_create(struct esp_turn **out, const struct esp_turn_opts *o, esp_error *err)
{
    struct esp_turn *t = esp_alloc(sizeof *t);

    if (!t)
        return esp_fail(err, ESP_ENOMEM, "the model's turn: out of memory");
    t->o = *o;
    t->state = o->thinking ? REASONING : o->continued ? CONTENT : START;
    t->any = o->continued;
    esp_strbuf_init(&t->buf, ESP_LIMIT_TURN_BYTES);
    esp_strbuf_init(&t->space, ESP_LIMIT_TURN_BYTES);
    esp_strbuf_init(&t->value, ESP_LIMIT_TURN_BYTES);
    esp_strbuf_init(&t->piece, ESP_LIMIT_TURN_BYTES);
    *out = t;
    return ESP_OK;
}

void esp_turn_destroy(struct esp_turn *t)
{
    if (!t)
        return;
    esp_strbuf_free(&t->buf);
    esp_strbuf_free(&t->space);
    esp_strbuf_free(&t->value);
    esp_strbuf_free(&t->piece);
    json_decref(t->keys);
    esp_free(t);
}
