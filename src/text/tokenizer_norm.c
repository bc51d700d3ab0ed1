/*
 * Unicode normal forms over utf8proc's tables. Text is cut into segments at characters that cannot interact
 * with what stands before them, so scratch memory follows the longest segment, not the text, and the common
 * segment, one such character, is copied. Only reordering is ours: utf8proc sorts marks by exchanging
 * neighbours, which takes quadratic time on a long run of marks. Source: Unicode Standard Annex 15.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/tokenizer_parts.h"

#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/utf8.h"

#include "text/pretokenize_tables.h"

enum { MOST_FROM_ONE = 32 }; /* the longest decomposition of one character is 18 */

bool esp_tok_trusted(const struct esp_tok_trust *t, size_t start, size_t end, size_t *cursor)
{
    size_t i = *cursor;

    if (t->all)
        return true;
    start += t->base;
    end += t->base;
    while (i < t->n && t->span[i].end <= start)
        i++;
    *cursor = i;
    while (i < t->n && t->span[i].start <= start) {
        if (end <= t->span[i].end)
            return true;
        start = t->span[i++].end; /* goes on in the next one if they touch */
    }
    return false;
}

esp_status esp_tok_spans_add(struct esp_tok_spans *s, size_t start, size_t end, esp_error *err)
{
    if (s->n && s->data[s->n - 1].end == start) {
        s->data[s->n - 1].end = end;
        return ESP_OK;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 16, bytes;
        struct esp_text_span *p = esp_mul_size(&bytes, cap, sizeof *p) ? esp_realloc(s->data, bytes) : NULL;

        if (!p)
            return esp_fail(err, ESP_ENOMEM, "no memory for %zu trusted spans", cap);
        s->data = p;
        s->cap = cap;
    }
    s->data[s->n++] = (struct esp_text_span){start, end};
    return ESP_OK;
}

esp_status esp_tok_spans_copy(struct esp_tok_spans *s, const struct esp_tok_trust *t, size_t from, size_t to,
                              size_t out_from, size_t *cursor, esp_error *err)
{
    const size_t a = t->base + from, b = t->base + to;
    size_t i = *cursor;

    while (i < t->n && t->span[i].end <= a)
        i++;
    *cursor = i;
    for (; i < t->n && t->span[i].start < b; i++) {
        const size_t start = t->span[i].start > a ? t->span[i].start : a;
        const size_t end = t->span[i].end < b ? t->span[i].end : b;

        ESP_TRY(esp_tok_spans_add(s, out_from + (start - a), out_from + (end - a), err));
    }
    return ESP_OK;
}

void esp_tok_norm_free(struct esp_tok_norm *w)
{
    esp_strbuf_free(&w->out);
    esp_free(w->spans.data);
    esp_free(w->cp);
    esp_free(w->sort);
    memset(w, 0, sizeof *w);
}

/* Whether the reference's normaliser knows nothing of c: such a character neither changes nor touches its
 * neighbours. */
static bool is_unknown(uint32_t c)
{
    const struct esp_cp_range *r = esp_norm_unknown;

    if (c < r->first)
        return false;
    while (r->last && c > r->last)
        r++;
    return r->last && c >= r->first;
}

/*
 * Whether c is unchanged by the form when its neighbours are such characters too, and never combines with
 * what is before it. For NFC: everything below the first combining mark, the main CJK blocks, and Hangul
 * syllables.
 */
static bool is_inert(enum esp_tok_form form, uint32_t c)
{
    if (form != ESP_TOK_NFC)
        return c < 0x80 || is_unknown(c);
    return c < 0x300 || (c >= 0x3400 && c <= 0x9fff) || (c >= 0xac00 && c <= 0xd7a3) || is_unknown(c);
}

static size_t read_cp(const char *s, size_t len, uint32_t *cp)
{
    if ((uint8_t)s[0] < 0x80) {
        *cp = (uint8_t)s[0];
        return 1;
    }
    return esp_utf8_decode(s, len, cp);
}

static esp_status reserve(int32_t **p, size_t *cap, size_t n, esp_error *err)
{
    size_t bytes;
    int32_t *q;

    if (n <= *cap)
        return ESP_OK;
    n += n / 2;
    q = esp_mul_size(&bytes, n, sizeof **p) ? esp_realloc(*p, bytes) : NULL;
    if (!q)
        return esp_fail(err, ESP_ENOMEM, "no memory to normalise %zu characters", n);
    *p = q;
    *cap = n;
    return ESP_OK;
}

static unsigned combining_class(int32_t cp)
{
    return cp < 0x300 ? 0 : (unsigned)utf8proc_get_property(cp)->combining_class & 0xff;
}

/* Stable counting sort of a run of marks by combining class. */
static esp_status sort_run(struct esp_tok_norm *w, size_t from, size_t to, esp_error *err)
{
    size_t place[257] = {0};

    ESP_TRY(reserve(&w->sort, &w->sort_cap, to - from, err));
    for (size_t i = from; i < to; i++)
        place[combining_class(w->cp[i]) + 1]++;
    for (size_t i = 1; i < 257; i++)
        place[i] += place[i - 1];
    for (size_t i = from; i < to; i++)
        w->sort[place[combining_class(w->cp[i])]++] = w->cp[i];
    memcpy(w->cp + from, w->sort, (to - from) * sizeof *w->cp);
    return ESP_OK;
}

static esp_status canonical_order(struct esp_tok_norm *w, size_t n, esp_error *err)
{
    for (size_t i = 0; i < n;) {
        size_t end = i;
        unsigned last = 0;
        bool sorted = true;

        for (unsigned c; end < n && (c = combining_class(w->cp[end])) != 0; end++) {
            sorted = sorted && c >= last;
            last = c;
        }
        if (!sorted)
            ESP_TRY(sort_run(w, i, end, err));
        i = end + 1;
    }
    return ESP_OK;
}

/* Append the normal form of the segment s[0..len) to w->out; only its first character may be an unknown one.
 */
static esp_status add_segment(struct esp_tok_norm *w, enum esp_tok_form form, const char *s, size_t len,
                              esp_error *err)
{
    const bool compat = form == ESP_TOK_NFKC || form == ESP_TOK_NFKD;
    const bool compose = form == ESP_TOK_NFC || form == ESP_TOK_NFKC;
    const utf8proc_option_t how = (utf8proc_option_t)(UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0));
    uint32_t c = 0;
    size_t i = read_cp(s, len, &c), n = 0;

    if (is_unknown(c))
        esp_strbuf_add(&w->out, s, i);
    else
        i = 0;
    while (i < len) {
        utf8proc_ssize_t got;

        ESP_TRY(reserve(&w->cp, &w->cp_cap, n + MOST_FROM_ONE, err));
        i += read_cp(s + i, len - i, &c);
        got = utf8proc_decompose_char((int32_t)c, w->cp + n, MOST_FROM_ONE, how, NULL);
        if (got < 0 || got > MOST_FROM_ONE) /* not with valid characters */
            return esp_fail(err, ESP_EFORMAT, "cannot normalise U+%04X", (unsigned)c);
        n += (size_t)got;
    }
    ESP_TRY(canonical_order(w, n, err));
    if (compose) /* no reordering in there */
        n = (size_t)utf8proc_normalize_utf32(w->cp, (utf8proc_ssize_t)n,
                                             (utf8proc_option_t)(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    for (size_t k = 0; k < n; k++) {
        char b[4];

        esp_strbuf_add(&w->out, b, esp_utf8_encode((uint32_t)w->cp[k], b));
    }
    return ESP_OK;
}

/* Bytes of text that are certainly in the form: stops at the last inert character before one that is not. */
static size_t inert_prefix(enum esp_tok_form form, const char *text, size_t len)
{
    size_t i = 0, last = 0;

    while (i < len) {
        uint32_t c = 0;
        const size_t n = read_cp(text + i, len - i, &c);

        if (!is_inert(form, c))
            return last;
        last = i;
        i += n;
    }
    return len;
}

/* End of the segment that begins at from: the next inert character after the one there. */
static size_t segment_end(enum esp_tok_form form, const char *text, size_t len, size_t from)
{
    uint32_t c = 0;
    size_t i = from + read_cp(text + from, len - from, &c);

    while (i < len) {
        const size_t n = read_cp(text + i, len - i, &c);

        if (is_inert(form, c))
            break;
        i += n;
    }
    return i;
}

esp_status esp_tok_normalize(struct esp_tok_norm *w, enum esp_tok_form form, const char **text, size_t *len,
                             struct esp_tok_trust *trust, esp_error *err)
{
    const bool mapped = trust && !trust->all;
    const char *const s = *text;
    size_t at, cursor = 0;

    if (form == ESP_TOK_AS_IS || inert_prefix(form, s, *len) == *len)
        return ESP_OK;
    esp_strbuf_clear(&w->out);
    w->spans.n = 0;
    for (at = 0; at < *len;) {
        const size_t from = at, out_from = w->out.len;

        at += inert_prefix(form, s + at, *len - at);
        if (at > from) {
            esp_strbuf_add(&w->out, s + from, at - from);
            if (mapped)
                ESP_TRY(esp_tok_spans_copy(&w->spans, trust, from, at, out_from, &cursor, err));
            continue;
        }
        at = segment_end(form, s, *len, from);
        ESP_TRY(add_segment(w, form, s + from, at - from, err));
        if (mapped && esp_tok_trusted(trust, from, at, &cursor))
            ESP_TRY(esp_tok_spans_add(&w->spans, out_from, w->out.len, err));
    }
    if (w->out.failed)
        return esp_fail(err, ESP_ENOMEM, "no memory for the normal form of %zu bytes", *len);
    *text = esp_strbuf_str(&w->out);
    *len = w->out.len;
    if (mapped)
        *trust = (struct esp_tok_trust){w->spans.data, w->spans.n, 0, false};
    return ESP_OK;
}
