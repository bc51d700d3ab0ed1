/*
 * Pull reader for JSON; grammar of RFC 8259, nothing looser.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/json_scan.h"

#include <string.h>

#include "base/limits.h"
#include "base/utf8.h"

esp_status esp_jscan_fail(const struct esp_jscan *j, const char *what, esp_error *err)
{
    return esp_fail(err, ESP_EFORMAT, "%s: invalid JSON: %s at byte %zu of %zu", j->name, what, j->pos,
                    j->len);
}

char esp_jscan_peek(struct esp_jscan *j)
{
    while (j->pos < j->len) {
        const char c = j->s[j->pos];

        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            return c;
        j->pos++;
    }
    return 0;
}

bool esp_jscan_accept(struct esp_jscan *j, char c)
{
    if (esp_jscan_peek(j) != c || j->pos >= j->len)
        return false;
    j->pos++;
    return true;
}

esp_status esp_jscan_expect(struct esp_jscan *j, char c, esp_error *err)
{
    char what[] = "'?' expected";

    if (esp_jscan_accept(j, c))
        return ESP_OK;
    what[1] = c;
    return esp_jscan_fail(j, what, err);
}

esp_status esp_jscan_more(struct esp_jscan *j, char close, size_t n, bool *more, esp_error *err)
{
    *more = false;
    if (esp_jscan_accept(j, close))
        return ESP_OK;
    if (n > 0)
        ESP_TRY(esp_jscan_expect(j, ',', err));
    *more = true;
    return ESP_OK;
}

/* Four hex digits at pos. */
static bool hex4(const struct esp_jscan *j, uint32_t *out)
{
    uint32_t v = 0;

    if (j->len - j->pos < 4)
        return false;
    for (size_t i = 0; i < 4; i++) {
        const char c = j->s[j->pos + i];

        if (c >= '0' && c <= '9')
            v = v * 16 + (uint32_t)(c - '0');
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            v = v * 16 + (uint32_t)((c | 0x20) - 'a') + 10;
        else
            return false;
    }
    *out = v;
    return true;
}

/* pos is behind "\u". */
static esp_status unicode_escape(struct esp_jscan *j, uint32_t *cp, esp_error *err)
{
    uint32_t hi, lo;

    if (!hex4(j, &hi))
        return esp_jscan_fail(j, "\\u without four hex digits", err);
    if (hi == 0)
        return esp_jscan_fail(j, "a zero character in a string", err);
    j->pos += 4;
    *cp = hi;
    if (hi < 0xd800 || hi > 0xdfff)
        return ESP_OK;
    if (hi >= 0xdc00 || j->len - j->pos < 6 || j->s[j->pos] != '\\' || j->s[j->pos + 1] != 'u')
        return esp_jscan_fail(j, "an unpaired surrogate", err);
    j->pos += 2;
    if (!hex4(j, &lo) || lo < 0xdc00 || lo > 0xdfff)
        return esp_jscan_fail(j, "an unpaired surrogate", err);
    j->pos += 4;
    *cp = 0x10000 + ((hi - 0xd800) << 10) + (lo - 0xdc00);
    return ESP_OK;
}

/* pos is behind the backslash. */
static esp_status escape(struct esp_jscan *j, uint32_t *cp, esp_error *err)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *at;
    char c;

    if (j->pos >= j->len)
        return esp_jscan_fail(j, "an unfinished string", err);
    c = j->s[j->pos++];
    if (c == 'u')
        return unicode_escape(j, cp, err);
    at = c ? strchr(from, c) : NULL;
    if (!at)
        return esp_jscan_fail(j, "an unknown escape", err);
    *cp = (uint32_t)to[at - from];
    return ESP_OK;
}

esp_status esp_jscan_string(struct esp_jscan *j, char *out, size_t *len, esp_error *err)
{
    size_t n = 0;

    ESP_TRY(esp_jscan_expect(j, '"', err));
    for (;;) {
        unsigned char c;

        if (j->pos >= j->len)
            return esp_jscan_fail(j, "an unfinished string", err);
        c = (unsigned char)j->s[j->pos++];
        if (c == '"')
            break;
        if (c < 0x20) {
            j->pos--;
            return esp_jscan_fail(j, "a control character in a string", err);
        }
        if (c == '\\') {
            char enc[4];
            uint32_t cp = 0;
            size_t k;

            ESP_TRY(escape(j, &cp, err));
            k = esp_utf8_encode(cp, enc);
            if (out)
                memcpy(out + n, enc, k); /* never longer than its escape */
            n += k;
        } else {
            if (out)
                out[n] = (char)c;
            n++;
        }
    }
    if (out) {
        out[n] = 0; /* in the place of a quote */
        *len = n;
    }
    return ESP_OK;
}

static bool is_digit(const struct esp_jscan *j, size_t at)
{
    return at < j->len && j->s[at] >= '0' && j->s[at] <= '9';
}

esp_status esp_jscan_u64(struct esp_jscan *j, uint64_t *out, esp_error *err)
{
    uint64_t v = 0;
    size_t at;

    (void)esp_jscan_peek(j);
    at = j->pos;
    if (!is_digit(j, at))
        return esp_jscan_fail(j, "a count (0 or more) expected", err);
    if (j->s[at] == '0' && is_digit(j, at + 1))
        return esp_jscan_fail(j, "a leading zero", err);
    for (; is_digit(j, at); at++)
        if (__builtin_mul_overflow(v, (uint64_t)10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(j->s[at] - '0'), &v))
            return esp_jscan_fail(j, "a count above 2^64-1", err);
    if (at < j->len && (j->s[at] == '.' || j->s[at] == 'e' || j->s[at] == 'E'))
        return esp_jscan_fail(j, "a count without fraction or exponent expected", err);
    j->pos = at;
    *out = v;
    return ESP_OK;
}

static size_t digits(const struct esp_jscan *j, size_t at)
{
    size_t n = 0;

    while (is_digit(j, at + n))
        n++;
    return n;
}

/* End of an exponent that may begin at at; 0 when it has no digits. */
static size_t exponent_end(const struct esp_jscan *j, size_t at)
{
    size_t n;

    if (at >= j->len || (j->s[at] != 'e' && j->s[at] != 'E'))
        return at;
    at++;
    if (at < j->len && (j->s[at] == '+' || j->s[at] == '-'))
        at++;
    n = digits(j, at);
    return n ? at + n : 0;
}

/* Length of the number at pos, 0 when there is none. */
static size_t number_length(const struct esp_jscan *j)
{
    size_t at = j->pos, n;

    if (at < j->len && j->s[at] == '-')
        at++;
    n = digits(j, at);
    if (n == 0 || (n > 1 && j->s[at] == '0'))
        return 0;
    at += n;
    if (at < j->len && j->s[at] == '.') {
        n = digits(j, at + 1);
        if (n == 0)
            return 0;
        at += 1 + n;
    }
    at = exponent_end(j, at);
    return at ? at - j->pos : 0;
}

static esp_status skip_scalar(struct esp_jscan *j, esp_error *err)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t n;

    if (esp_jscan_peek(j) == '"')
        return esp_jscan_string(j, NULL, NULL, err);
    for (size_t i = 0; i < 3; i++) {
        n = strlen(words[i]);
        if (j->len - j->pos >= n && memcmp(j->s + j->pos, words[i], n) == 0) {
            j->pos += n;
            return ESP_OK;
        }
    }
    n = number_length(j);
    if (n == 0)
        return esp_jscan_fail(j, "a value expected", err);
    j->pos += n;
    return ESP_OK;
}

static esp_status skip_key(struct esp_jscan *j, char close, esp_error *err)
{
    if (close != '}')
        return ESP_OK;
    ESP_TRY(esp_jscan_string(j, NULL, NULL, err));
    return esp_jscan_expect(j, ':', err);
}

esp_status esp_jscan_skip(struct esp_jscan *j, esp_error *err)
{
    char close[ESP_LIMIT_JSON_DEPTH];
    size_t depth = 0, n = 0; /* n: members seen in the innermost container; only whether it is 0 matters */

    for (;;) {
        const char c = esp_jscan_peek(j);

        if (c == '{' || c == '[') {
            if (depth == sizeof close)
                return esp_jscan_fail(j, "nesting too deep", err);
            close[depth++] = c == '{' ? '}' : ']';
            j->pos++;
            n = 0;
        } else {
            ESP_TRY(skip_scalar(j, err));
            n = 1;
        }
        while (depth > 0) { /* close what ends here */
            bool more;

            ESP_TRY(esp_jscan_more(j, close[depth - 1], n, &more, err));
            if (more)
                break;
            depth--;
            n = 1;
        }
        if (depth == 0)
            return ESP_OK;
        ESP_TRY(skip_key(j, close[depth - 1], err));
    }
}

esp_status esp_jscan_end(struct esp_jscan *j, esp_error *err)
{
    if (esp_jscan_peek(j) != 0 || j->pos < j->len)
        return esp_jscan_fail(j, "text after the end", err);
    return ESP_OK;
}
