/*
 * Jinja lexer: source text to tokens, one at a time. Outside tags everything is data; the two kinds of
 * whitespace control (signs in the tags, and trim_blocks with lstrip_blocks) are decided here, so that the
 * parser never sees whitespace. The rules are those of Jinja2 3.1: a block or comment end swallows one
 * newline unless marked +, spaces between a line's start and a block or comment go away unless marked +, and
 * - takes all space on its side.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <stdio.h>
#include <string.h>

#include <utf8proc.h>

#include "base/utf8.h"

esp_status esp_jlex_fail(const struct esp_jlex *l, esp_status s, int line, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return esp_fail(l->err, s, "%s:%d: %s", l->name, line, text);
}

esp_status esp_jlex_init(struct esp_jlex *l, struct esp_arena *a, const char *source, size_t len,
                         const char *name, esp_error *err)
{
    size_t n = 0;
    char *s = esp_arena_alloc(a, len + 1);

    if (!s)
        return esp_fail(err, ESP_ENOMEM, "%s: no memory for a template of %zu bytes", name, len);
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r' && i + 1 < len && source[i + 1] == '\n')
            continue;
        s[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n > 0 && s[n - 1] == '\n')
        n--;
    memset(l, 0, sizeof *l);
    l->s = s;
    l->len = n;
    l->line = 1;
    l->line_starting = true;
    l->name = name;
    l->arena = a;
    l->err = err;
    return ESP_OK;
}

static void advance(struct esp_jlex *l, size_t to)
{
    for (; l->pos < to; l->pos++)
        l->line += l->s[l->pos] == '\n';
}

static size_t skip_space(const struct esp_jlex *l, size_t at)
{
    size_t n;

    while ((n = esp_jspace_at(l->s + at, l->len - at)) > 0)
        at += n;
    return at;
}

static bool starts(const struct esp_jlex *l, size_t at, const char *z)
{
    size_t n = strlen(z);

    return at <= l->len && l->len - at >= n && memcmp(l->s + at, z, n) == 0;
}

/* First place of z at or after at, or len. */
static size_t find(const struct esp_jlex *l, size_t at, const char *z)
{
    const char *p = memmem(l->s + at, l->len - at, z, strlen(z));

    return p ? (size_t)(p - l->s) : l->len;
}

/* Where data[from..to) ends once the tag at `to` has had its say; is_var: lstrip_blocks leaves {{ alone. */
static size_t strip_before(const struct esp_jlex *l, size_t from, size_t to, char sign, bool is_var)
{
    size_t n, at = to;

    if (sign == '-') {
        while ((n = esp_jspace_before(l->s + from, at - from)) > 0)
            at -= n;
        return at;
    }
    if (sign == '+' || is_var)
        return to;
    while (at > from && l->s[at - 1] != '\n') {
        n = esp_jspace_before(l->s + from, at - from);
        if (n == 0)
            return to;
        at -= n;
    }
    return at > from || l->line_starting ? at : to;
}

/* Behind a block-like end of `width` bytes at `at` with the given sign. */
static size_t after_end(const struct esp_jlex *l, size_t at, size_t width, char sign)
{
    at += width;
    if (sign == '-')
        return skip_space(l, at);
    return sign != '+' && at < l->len && l->s[at] == '\n' ? at + 1 : at;
}

/* Whether {% raw %} stands at `at`; *end is behind it. */
static bool raw_begin(const struct esp_jlex *l, size_t at, size_t *end)
{
    at += 2;
    if (at < l->len && (l->s[at] == '-' || l->s[at] == '+'))
        at++;
    at = skip_space(l, at);
    if (!starts(l, at, "raw"))
        return false;
    at = skip_space(l, at + 3);
    if (starts(l, at, "-%}")) {
        *end = skip_space(l, at + 3);
        return true;
    }
    *end = at + 2;
    return starts(l, at, "%}");
}

/* Find {% endraw %} from l->pos: *tag is its start, *end is behind it, *sign the one after {%. */
static bool raw_end(const struct esp_jlex *l, size_t *tag, size_t *end, char *sign)
{
    for (size_t t = find(l, l->pos, "{%"); t < l->len; t = find(l, t + 2, "{%")) {
        size_t at = t + 2;
        char s = 0;

        *sign = at < l->len && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : 0;
        at = skip_space(l, at + (*sign != 0));
        if (!starts(l, at, "endraw"))
            continue;
        at = skip_space(l, at + 6);
        if (at < l->len && (l->s[at] == '-' || l->s[at] == '+'))
            s = l->s[at++];
        if (!starts(l, at, "%}"))
            continue;
        *tag = t;
        *end = after_end(l, at, 2, s);
        return true;
    }
    return false;
}

static void set_data(struct esp_jtoken *t, const struct esp_jlex *l, size_t from, size_t to, int line)
{
    *t = (struct esp_jtoken){.type = ESP_JT_DATA, .line = line, .s = l->s + from, .len = to - from};
}

static void end_tag(struct esp_jlex *l, size_t to)
{
    advance(l, to);
    l->line_starting = to > 0 && l->s[to - 1] == '\n';
    l->state = ESP_JLEX_STATES_ROOT;
}

/* A comment or raw block opens at `at` (data before it already returned or empty). */
static esp_status skip_comment(struct esp_jlex *l, size_t at)
{
    size_t start = at + 2, end;
    char sign = 0;

    if (start < l->len && (l->s[start] == '-' || l->s[start] == '+'))
        start++;
    end = find(l, start, "#}");
    if (end == l->len)
        return esp_jlex_fail(l, ESP_EFORMAT, l->line, "comment is not closed, \"#}\" is missing");
    if (end > start && (l->s[end - 1] == '-' || l->s[end - 1] == '+'))
        sign = l->s[end - 1];
    end_tag(l, after_end(l, end, 2, sign));
    return ESP_OK;
}

static esp_status read_raw(struct esp_jlex *l, size_t body, struct esp_jtoken *out)
{
    size_t tag, end;
    char sign;
    int line = l->line;

    advance(l, body);
    l->line_starting = l->s[body - 1] == '\n';
    if (!raw_end(l, &tag, &end, &sign))
        return esp_jlex_fail(l, ESP_EFORMAT, line, "raw block is not closed, \"{%% endraw %%}\" is missing");
    set_data(out, l, body, strip_before(l, body, tag, sign, false), line);
    end_tag(l, end);
    return ESP_OK;
}

/* Next tag at or after l->pos: its place or len. */
static size_t find_tag(const struct esp_jlex *l)
{
    for (size_t at = find(l, l->pos, "{"); at + 1 < l->len; at = find(l, at + 1, "{"))
        if (l->s[at + 1] == '{' || l->s[at + 1] == '%' || l->s[at + 1] == '#')
            return at;
    return l->len;
}

/* Outside tags. Returns data (which may be empty: *again asks for another call) or the token that opens a
 * tag. */
static esp_status next_root(struct esp_jlex *l, struct esp_jtoken *out, bool *again)
{
    size_t at = find_tag(l), body = 0;
    char sign = at + 2 < l->len && (l->s[at + 2] == '-' || l->s[at + 2] == '+') ? l->s[at + 2] : 0;
    char kind;
    int line = l->line;

    *again = false;
    if (l->pos == l->len) {
        *out = (struct esp_jtoken){.type = ESP_JT_EOF, .line = line};
        return ESP_OK;
    }
    if (at == l->len || at > l->pos) {
        size_t end = at == l->len ? at : strip_before(l, l->pos, at, sign, l->s[at + 1] == '{');

        set_data(out, l, l->pos, end, line);
        advance(l, at);
        l->line_starting = false; /* the tag at `at` has used it */
        *again = out->len == 0;
        return ESP_OK;
    }
    kind = l->s[at + 1];
    l->line_starting = false;
    if (kind == '#') {
        *again = true;
        return skip_comment(l, at);
    }
    if (kind == '%' && raw_begin(l, at, &body)) {
        ESP_TRY(read_raw(l, body, out));
        *again = out->len == 0;
        return ESP_OK;
    }
    l->state = kind == '%' ? ESP_JLEX_STATES_BLOCK : ESP_JLEX_STATES_VAR;
    l->open = 0;
    *out = (struct esp_jtoken){.type = kind == '%' ? ESP_JT_BLOCK_BEGIN : ESP_JT_VAR_BEGIN, .line = line};
    advance(l, at + 2 + (sign != 0));
    return ESP_OK;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_ascii_word(uint32_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Length of the name character at `at`, or 0: letters, digits and other numbers of any script, underscore. */
static size_t name_char(const struct esp_jlex *l, size_t at)
{
    static const uint32_t word = 1u << UTF8PROC_CATEGORY_LU | 1u << UTF8PROC_CATEGORY_LL |
                                 1u << UTF8PROC_CATEGORY_LT | 1u << UTF8PROC_CATEGORY_LM |
                                 1u << UTF8PROC_CATEGORY_LO | 1u << UTF8PROC_CATEGORY_ND |
                                 1u << UTF8PROC_CATEGORY_NL | 1u << UTF8PROC_CATEGORY_NO;
    uint32_t cp;
    size_t n = esp_utf8_decode(l->s + at, l->len - at, &cp);

    if (n <= 1)
        return n == 1 && is_ascii_word(cp);
    return (word >> utf8proc_category((utf8proc_int32_t)cp)) & 1 ? n : 0;
}

/* Behind the run of digits (and single underscores between them) at `at`. */
static size_t skip_digits(const struct esp_jlex *l, size_t at)
{
    while (at < l->len &&
           (is_digit(l->s[at]) || (l->s[at] == '_' && at + 1 < l->len && is_digit(l->s[at + 1]))))
        at++;
    return at;
}

static size_t skip_exponent(const struct esp_jlex *l, size_t at)
{
    size_t e = at;

    if (e >= l->len || (l->s[e] != 'e' && l->s[e] != 'E'))
        return at;
    e++;
    if (e < l->len && (l->s[e] == '+' || l->s[e] == '-'))
        e++;
    return e < l->len && is_digit(l->s[e]) ? skip_digits(l, e) : at;
}

static esp_status set_float(struct esp_jlex *l, size_t end, struct esp_jtoken *out)
{
    char text[128];
    size_t n = 0, i = l->pos;
    json_t *j;

    while (i + 1 < end && l->s[i] == '0' && is_digit(l->s[i + 1])) /* JSON knows no leading zeros */
        i++;
    for (; i < end && n < sizeof text; i++)
        if (l->s[i] != '_')
            text[n++] = l->s[i];
    j = n < sizeof text ? json_loadb(text, n, JSON_DECODE_ANY, NULL) : NULL;
    if (!j)
        return esp_jlex_fail(l, ESP_EFORMAT, l->line, "number %.*s is out of range", (int)n, text);
    *out = (struct esp_jtoken){.type = ESP_JT_FLOAT, .line = l->line, .f = json_number_value(j)};
    json_decref(j);
    l->pos = end;
    return ESP_OK;
}

static int digit_value(char c)
{
    return is_digit(c)            ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : 99;
}

/* Behind the float at l->pos whose first digits end at `end`, or 0 when there is none. */
static size_t float_end(const struct esp_jlex *l, size_t end)
{
    size_t e = skip_exponent(l, end);

    if (end + 1 < l->len && l->s[end] == '.' && is_digit(l->s[end + 1]) &&
        (l->pos == 0 || l->s[l->pos - 1] != '.'))
        return skip_exponent(l, skip_digits(l, end + 1));
    return e != end ? e : 0;
}

/* 16, 8 or 2 when 0x, 0o or 0b stands at l->pos, else 10. */
static int base_at(const struct esp_jlex *l)
{
    char c = l->s[l->pos] == '0' && l->pos + 1 < l->len ? (char)(l->s[l->pos + 1] | 0x20) : 0;

    return c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
}

static bool add_digit(int64_t *v, int base, char c)
{
    return c == '_' ||
           (!__builtin_mul_overflow(*v, base, v) && !__builtin_add_overflow(*v, digit_value(c), v));
}

static esp_status next_number(struct esp_jlex *l, struct esp_jtoken *out)
{
    size_t at = l->pos, end = skip_digits(l, at), real = float_end(l, end);
    int base = base_at(l);
    int64_t v = 0;

    if (real)
        return set_float(l, real, out);
    if (base != 10)
        for (end = at += 2; end < l->len && (digit_value(l->s[end]) < base || l->s[end] == '_');)
            end++;
    for (size_t i = at; i < end; i++)
        if (!add_digit(&v, base, l->s[i]))
            return esp_jlex_fail(l, ESP_EFORMAT, l->line, "integer %.*s does not fit 64 bits",
                                 (int)(end - at), l->s + at);
    if (end == at || (base == 10 && v != 0 && l->s[at] == '0'))
        return esp_jlex_fail(l, ESP_EFORMAT, l->line, "malformed number");
    *out = (struct esp_jtoken){.type = ESP_JT_INT, .line = l->line, .i = v};
    l->pos = end;
    return ESP_OK;
}

/* The value of n hexadecimal digits at s, or -1. */
static int64_t hex(const char *s, size_t avail, size_t n)
{
    int64_t v = 0;

    if (avail < n)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (digit_value(s[i]) > 15)
            return -1;
        v = v * 16 + digit_value(s[i]);
    }
    return v;
}

/* The character given by number at s: x41, u0041, U00000041 or octal; *used bytes of it, 0 when it is none of
 * these. */
static int64_t numbered_char(const char *s, size_t avail, size_t *used)
{
    size_t digits = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    int64_t cp = 0;

    *used = 0;
    if (digits) {
        *used = 1 + digits;
        return hex(s + 1, avail - 1, digits);
    }
    while (*used < 3 && *used < avail && s[*used] >= '0' && s[*used] <= '7')
        cp = cp * 8 + (s[(*used)++] - '0');
    return cp;
}

/* Decode the escape at s (behind the backslash) into out; returns bytes read, 0 for a bad one. */
static size_t unescape(const char *s, size_t avail, char *out, size_t *n_out)
{
    static const char from[] = "ntrabfv\\'\"", to[] = "\n\t\r\a\b\f\v\\'\"";
    const char *p = memchr(from, s[0], sizeof from - 1);
    size_t used;
    int64_t cp;

    *n_out = s[0] != '\n'; /* a line may be continued */
    if (p)
        out[0] = to[p - from];
    if (p || s[0] == '\n')
        return 1;
    cp = numbered_char(s, avail, &used);
    if (used == 0 && s[0] != 'N') { /* unknown: the backslash stays */
        out[0] = '\\';
        out[1] = s[0];
        *n_out = 2;
        return 1;
    }
    if (cp < 0 || cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
        return 0;
    *n_out = used ? esp_utf8_encode((uint32_t)cp, out) : 0;
    return used;
}

static esp_status next_string(struct esp_jlex *l, struct esp_jtoken *out)
{
    size_t start = l->pos + 1, end = start, n = 0;
    char quote = l->s[l->pos], *text;
    bool escaped = false;
    int line = l->line;

    while (end < l->len && l->s[end] != quote) {
        escaped |= l->s[end] == '\\';
        end += l->s[end] == '\\' ? 2 : 1;
    }
    if (end >= l->len)
        return esp_jlex_fail(l, ESP_EFORMAT, line, "string is not closed");
    *out = (struct esp_jtoken){.type = ESP_JT_STRING, .line = line, .s = l->s + start, .len = end - start};
    advance(l, end + 1);
    if (!escaped)
        return ESP_OK;
    text = esp_arena_alloc(l->arena, end - start + 1); /* no escape becomes longer than it was */
    if (!text)
        return esp_jlex_fail(l, ESP_ENOMEM, line, "no memory for a string of %zu bytes", end - start);
    for (size_t i = start; i < end;) {
        size_t used, made;

        if (l->s[i] != '\\') {
            text[n++] = l->s[i++];
            continue;
        }
        used = unescape(l->s + i + 1, end - i - 1, text + n, &made);
        if (used == 0)
            return esp_jlex_fail(l, ESP_EFORMAT, line, "escape \\%c in a string is not a character",
                                 l->s[i + 1]);
        i += 1 + used;
        n += made;
    }
    out->s = text;
    out->len = n;
    return ESP_OK;
}

static esp_status next_operator(struct esp_jlex *l, struct esp_jtoken *out)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    char c = l->s[l->pos];

    for (size_t i = 0; i < sizeof two / sizeof two[0]; i++) {
        if (starts(l, l->pos, two[i])) {
            *out = (struct esp_jtoken){.type = ESP_JT_OP, .line = l->line, .op = two[i][0] << 8 | two[i][1]};
            l->pos += 2;
            return ESP_OK;
        }
    }
    if (c == 0 || !strchr("+-*/%~()[]{}.:|,=<>", c)) {
        size_t n = esp_utf8_bad_span(l->s + l->pos, l->len - l->pos);

        return esp_jlex_fail(l, ESP_EFORMAT, l->line, "unexpected character '%.*s'", (int)(n ? n : 1),
                             l->s + l->pos);
    }
    if (strchr("([{", c))
        l->open++;
    if (strchr(")]}", c)) {
        if (l->open == 0)
            return esp_jlex_fail(l, ESP_EFORMAT, l->line, "'%c' closes nothing", c);
        l->open--;
    }
    *out = (struct esp_jtoken){.type = ESP_JT_OP, .line = l->line, .op = c};
    l->pos++;
    return ESP_OK;
}

/* The end of the present tag at l->pos, if it is there. */
static bool tag_end(struct esp_jlex *l, struct esp_jtoken *out)
{
    bool is_var = l->state == ESP_JLEX_STATES_VAR;
    const char *close = is_var ? "}}" : "%}";
    char c = l->pos < l->len ? l->s[l->pos] : 0;
    char sign = c == '-' || (c == '+' && !is_var) ? c : 0;
    size_t at = l->pos + (sign != 0);

    if (l->open > 0 || !starts(l, at, close))
        return false;
    *out = (struct esp_jtoken){.type = is_var ? ESP_JT_VAR_END : ESP_JT_BLOCK_END, .line = l->line};
    if (is_var && sign == 0)
        end_tag(l, at + 2);
    else
        end_tag(l, after_end(l, at, 2, sign));
    return true;
}

static esp_status next_in_tag(struct esp_jlex *l, struct esp_jtoken *out)
{
    size_t n, at;
    char c;

    advance(l, skip_space(l, l->pos));
    if (l->pos == l->len)
        return esp_jlex_fail(l, ESP_EFORMAT, l->line, "the template ends inside a tag, \"%s\" is missing",
                             l->state == ESP_JLEX_STATES_VAR ? "}}" : "%}");
    if (tag_end(l, out))
        return ESP_OK;
    c = l->s[l->pos];
    if (is_digit(c))
        return next_number(l, out);
    if (c == '"' || c == '\'')
        return next_string(l, out);
    for (at = l->pos; (n = name_char(l, at)) > 0;)
        at += n;
    if (at == l->pos)
        return next_operator(l, out);
    *out = (struct esp_jtoken){.type = ESP_JT_NAME, .line = l->line, .s = l->s + l->pos, .len = at - l->pos};
    l->pos = at;
    return ESP_OK;
}

esp_status esp_jlex_next(struct esp_jlex *l, struct esp_jtoken *out)
{
    bool again = true;

    if (l->state != ESP_JLEX_STATES_ROOT)
        return next_in_tag(l, out);
    while (again)
        ESP_TRY(next_root(l, out, &again));
    return ESP_OK;
}
