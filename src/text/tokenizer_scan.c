/*
 * A forward scanner over JSON: no tree, no recursion. Two shapes are understood, {"token": id, ...} for the
 * vocabulary and ["a b", ...] or [["a", "b"], ...] for the merges; strings without escapes are used where
 * they lie.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/tokenizer_scan.h"

#include <string.h>

#include "base/limits.h"
#include "base/utf8.h"

/* ---- finding the tables ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static size_t skip_space(const char *s, size_t len, size_t at)
{
    while (at < len && is_space(s[at]))
        at++;
    return at;
}

/* One past the closing quote of the string that opens at at; len when there is none. */
static size_t skip_string(const char *s, size_t len, size_t at)
{
    for (at++; at < len; at++) {
        if (s[at] == '"')
            return at + 1;
        if (s[at] == '\\')
            at++;
    }
    return len;
}

/* One past the value at at, by counting brackets; at most len. Malformed values end somewhere. */
static size_t skip_value(const char *s, size_t len, size_t at)
{
    size_t depth = 0;

    while (at < len) {
        const char c = s[at];

        if (c == '"') {
            at = skip_string(s, len, at);
            if (depth == 0)
                return at;
            continue;
        }
        if (depth == 0 && (c == ',' || c == '}' || c == ']'))
            return at;
        if (c == '{' || c == '[') {
            depth++;
        } else if ((c == '}' || c == ']') && --depth == 0) {
            return at + 1;
        }
        at++;
    }
    return len;
}

/* An object being walked: at is behind its brace or behind a value. */
struct walk {
    const char *s;
    size_t len, at;
    size_t key, key_len; /* the bytes between the quotes, as written */
    size_t value;        /* where the value begins */
};

/* Go to the next member; false at the end and at anything malformed. */
static bool next_member(struct walk *w)
{
    size_t end;

    w->at = skip_space(w->s, w->len, w->at);
    if (w->at < w->len && w->s[w->at] == ',')
        w->at = skip_space(w->s, w->len, w->at + 1);
    if (w->at >= w->len || w->s[w->at] != '"')
        return false;
    end = skip_string(w->s, w->len, w->at);
    if (end - w->at < 2)
        return false;
    w->key = w->at + 1;
    w->key_len = end - w->at - 2;
    w->at = skip_space(w->s, w->len, end);
    if (w->at >= w->len || w->s[w->at] != ':')
        return false;
    w->value = skip_space(w->s, w->len, w->at + 1);
    return w->value < w->len;
}

static bool key_is(const struct walk *w, const char *key)
{
    return w->key_len == strlen(key) && memcmp(w->s + w->key, key, w->key_len) == 0;
}

/* Note the tables among the members of the model object that opens at at. */
static void walk_model(struct esp_tok_scan *s, size_t at)
{
    struct walk w = {.s = s->text, .len = s->len, .at = at + 1};

    while (next_member(&w)) {
        const size_t end = w.at = skip_value(w.s, w.len, w.value);

        if (key_is(&w, "vocab") && w.s[w.value] == '{' && s->vocab_end == 0) {
            s->vocab_start = w.value;
            s->vocab_end = end;
        } else if (key_is(&w, "merges") && w.s[w.value] == '[' && s->merges_end == 0) {
            s->merges_start = w.value;
            s->merges_end = end;
        }
    }
}

static size_t copy_until(struct esp_strbuf *rest, const char *text, size_t from, size_t start, size_t end,
                         const char *instead)
{
    if (end == 0)
        return from;
    esp_strbuf_add(rest, text + from, start - from);
    esp_strbuf_puts(rest, instead);
    return end;
}

esp_status esp_tok_scan_split(struct esp_tok_scan *s, const char *text, size_t len, struct esp_strbuf *rest,
                              esp_error *err)
{
    struct walk w = {.s = text, .len = len};
    size_t from = 0;

    *s = (struct esp_tok_scan){.text = text, .len = len};
    w.at = skip_space(text, len, 0);
    if (w.at < len && text[w.at] == '{') {
        w.at++;
        while (next_member(&w)) {
            if (key_is(&w, "model") && text[w.value] == '{' && s->vocab_end == 0 && s->merges_end == 0)
                walk_model(s, w.value);
            w.at = skip_value(text, len, w.value);
        }
    }
    if (s->vocab_start < s->merges_start) {
        from = copy_until(rest, text, from, s->vocab_start, s->vocab_end, "{}");
        from = copy_until(rest, text, from, s->merges_start, s->merges_end, "[]");
    } else {
        from = copy_until(rest, text, from, s->merges_start, s->merges_end, "[]");
        from = copy_until(rest, text, from, s->vocab_start, s->vocab_end, "{}");
    }
    esp_strbuf_add(rest, text + from, len - from);
    return rest->failed ? esp_fail(err, ESP_ENOMEM, "no memory for the tokenizer's description") : ESP_OK;
}

/* ---- reading a table ---- */

#define TOKEN_BYTES_TEXT "4096" /* ESP_LIMIT_TOKEN_BYTES in messages */
_Static_assert(ESP_LIMIT_TOKEN_BYTES == 4096, "say the new limit in TOKEN_BYTES_TEXT");

/* Room for two strings: a merge has two sides. */
struct table {
    const char *s;
    size_t at, end;
    char scratch[2][2 * ESP_LIMIT_TOKEN_BYTES];
};

struct piece {
    const char *s;
    size_t len;
};

static size_t line_of(const struct table *t)
{
    size_t line = 1;

    for (size_t i = 0; i < t->at; i++)
        line += t->s[i] == '\n';
    return line;
}

static esp_status expected(const struct table *t, const char *what, esp_error *err)
{
    const size_t left = t->end - t->at;

    return esp_fail(err, ESP_EFORMAT, "line %zu: %s expected, not \"%.*s\"", line_of(t), what,
                    (int)(left < 16 ? left : 16), t->s + t->at);
}

static char peek(struct table *t)
{
    t->at = skip_space(t->s, t->end, t->at);
    return t->at < t->end ? t->s[t->at] : '\0';
}

static bool accept(struct table *t, char c)
{
    if (peek(t) != c || t->at >= t->end)
        return false;
    t->at++;
    return true;
}

static int hex4(const char *s)
{
    int v = 0;

    for (int i = 0; i < 4; i++) {
        const char c = s[i];

        if (c >= '0' && c <= '9')
            v = v * 16 + (c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            v = v * 16 + ((c | 0x20) - 'a' + 10);
        else
            return -1;
    }
    return v;
}

/* The escape at s[0..len), behind its backslash: bytes used, 0 when it is not valid; its character goes to
 * *cp. */
static size_t unescape(const char *s, size_t len, uint32_t *cp)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *p = len && s[0] ? strchr(from, s[0]) : NULL;
    int a, b;

    if (p) {
        *cp = (uint8_t)to[p - from];
        return 1;
    }
    if (len < 5 || s[0] != 'u' || (a = hex4(s + 1)) <= 0)
        return 0; /* U+0000 is refused as everywhere in JSON here */
    *cp = (uint32_t)a;
    if (a < 0xd800 || a > 0xdfff)
        return 5;
    if (a > 0xdbff || len < 11 || s[5] != '\\' || s[6] != 'u')
        return 0;
    b = hex4(s + 7);
    if (b < 0xdc00 || b > 0xdfff)
        return 0;
    *cp = 0x10000u + (((uint32_t)a & 0x3ff) << 10) + ((uint32_t)b & 0x3ff);
    return 11;
}

/* The rest of a string with escapes, from t->at, into scratch, which holds n bytes already. */
static esp_status read_escaped(struct table *t, char *scratch, size_t n, struct piece *out, esp_error *err)
{
    while (t->at < t->end && t->s[t->at] != '"') {
        uint32_t cp = 0;
        size_t used;

        if ((uint8_t)t->s[t->at] < 0x20)
            return expected(t, "a string without control characters", err);
        if (n + 4 > 2 * ESP_LIMIT_TOKEN_BYTES)
            return esp_fail(err, ESP_EFORMAT, "line %zu: a token longer than %u bytes", line_of(t),
                            ESP_LIMIT_TOKEN_BYTES);
        if (t->s[t->at] != '\\') {
            scratch[n++] = t->s[t->at++];
            continue;
        }
        used = unescape(t->s + t->at + 1, t->end - t->at - 1, &cp);
        if (used == 0)
            return expected(t, "a valid escape", err);
        n += esp_utf8_encode(cp, scratch + n);
        t->at += used + 1;
    }
    if (t->at >= t->end)
        return expected(t, "the end of a string", err);
    t->at++;
    *out = (struct piece){scratch, n};
    return ESP_OK;
}

/* A string; without escapes it is used in place, otherwise it goes to the scratch room which. */
static esp_status read_string(struct table *t, int which, struct piece *out, esp_error *err)
{
    size_t start;
    esp_status s = ESP_OK;

    if (!accept(t, '"'))
        return expected(t, "a string", err);
    start = t->at;
    while (t->at < t->end && t->s[t->at] != '"' && t->s[t->at] != '\\' && (uint8_t)t->s[t->at] >= 0x20)
        t->at++;
    *out = (struct piece){t->s + start, t->at - start};
    if (t->at < t->end && t->s[t->at] == '\\' && out->len < ESP_LIMIT_TOKEN_BYTES) {
        memcpy(t->scratch[which], out->s, out->len);
        s = read_escaped(t, t->scratch[which], out->len, out, err);
    } else if (t->at < t->end && t->s[t->at] == '"') {
        t->at++;
    } else {
        s = expected(t, "more of a string of at most " TOKEN_BYTES_TEXT " bytes", err);
    }
    if (s == ESP_OK && !esp_utf8_valid(out->s, out->len, NULL))
        s = esp_fail(err, ESP_EFORMAT, "line %zu: invalid UTF-8 in a token", line_of(t));
    return s;
}

static esp_status read_id(struct table *t, uint64_t *id, esp_error *err)
{
    size_t digits = 0;
    uint64_t v = 0;

    peek(t);
    while (t->at + digits < t->end && t->s[t->at + digits] >= '0' && t->s[t->at + digits] <= '9' &&
           digits < 19) {
        v = v * 10 + (uint64_t)(t->s[t->at + digits] - '0');
        digits++;
    }
    if (digits == 0 || digits == 19 || (t->s[t->at] == '0' && digits > 1) ||
        (t->at + digits < t->end && strchr(".eE", t->s[t->at + digits])))
        return expected(t, "a token id (a whole number)", err);
    t->at += digits;
    *id = v;
    return ESP_OK;
}

/* Between two entries of a table that close ends: *more says whether another follows. */
static esp_status separator(struct table *t, char close, bool *more, esp_error *err)
{
    *more = accept(t, ',');
    if (*more || accept(t, close))
        return ESP_OK;
    return expected(t, close == '}' ? ", or }" : ", or ]", err);
}

esp_status esp_tok_scan_vocab(const struct esp_tok_scan *s, struct esp_bpe *b, esp_error *err)
{
    struct table t = {.s = s->text, .at = s->vocab_start + 1, .end = s->vocab_end};
    bool more = true;

    if (s->vocab_end == 0)
        return esp_fail(err, ESP_EFORMAT, "model.vocab is missing or no object");
    if (accept(&t, '}'))
        return esp_fail(err, ESP_EFORMAT, "model.vocab is empty");
    while (more) {
        struct piece token;
        uint64_t id = 0;
        esp_status st;

        ESP_TRY(read_string(&t, 0, &token, err));
        if (!accept(&t, ':'))
            return expected(&t, ":", err);
        ESP_TRY(read_id(&t, &id, err));
        st = esp_bpe_add_token(b, token.s, token.len, id, err);
        if (st != ESP_OK)
            return esp_fail_in(err, st, "line %zu", line_of(&t));
        ESP_TRY(separator(&t, '}', &more, err));
    }
    return esp_bpe_end_tokens(b, err);
}

/* One merge in either form. */
static esp_status read_merge(struct table *t, struct piece *l, struct piece *r, esp_error *err)
{
    const char *space;

    if (accept(t, '[')) {
        ESP_TRY(read_string(t, 0, l, err));
        if (!accept(t, ','))
            return expected(t, ", and the second side of a merge", err);
        ESP_TRY(read_string(t, 1, r, err));
        return accept(t, ']') ? ESP_OK : expected(t, "] after the two sides of a merge", err);
    }
    if (peek(t) != '"')
        return expected(t, "a merge: \"a b\" or [\"a\", \"b\"]", err);
    ESP_TRY(read_string(t, 0, l, err));
    space = memchr(l->s, ' ', l->len);
    if (!space || memchr(space + 1, ' ', l->len - (size_t)(space + 1 - l->s)))
        return esp_fail(err, ESP_EFORMAT, "line %zu: merge \"%.*s\" must have exactly one space", line_of(t),
                        (int)(l->len < 64 ? l->len : 64), l->s);
    r->s = space + 1;
    r->len = l->len - (size_t)(r->s - l->s);
    l->len = (size_t)(space - l->s);
    return ESP_OK;
}

esp_status esp_tok_scan_merges(const struct esp_tok_scan *s, struct esp_bpe *b, esp_error *err)
{
    struct table t = {.s = s->text, .at = s->merges_start + 1, .end = s->merges_end};
    bool more;

    if (s->merges_end == 0)
        return esp_fail(err, ESP_EFORMAT, "model.merges is missing or no array");
    for (more = !accept(&t, ']'); more;) {
        struct piece l, r;
        esp_status st;

        ESP_TRY(read_merge(&t, &l, &r, err));
        st = esp_bpe_add_merge(b, l.s, l.len, r.s, r.len, err);
        if (st != ESP_OK)
            return esp_fail_in(err, st, "line %zu", line_of(&t));
        ESP_TRY(separator(&t, ']', &more, err));
    }
    return esp_bpe_end_merges(b, err);
}
