/*
 * Added tokens: control tokens and the like, looked for in text before anything else. Tokens are sorted by
 * their bytes, and a position is tested by narrowing the sorted range byte by byte, which gives the longest
 * match without a trie in memory. The search never leaves a trusted run, so text beside a run can neither
 * complete a token nor spoil one.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/utf8.h"

#include "text/pretokenize_tables.h"

enum { ARENA_MAX = 64 << 20 };

static esp_status no_memory(esp_error *err)
{
    return esp_fail(err, ESP_ENOMEM, "no memory for the added tokens");
}

static esp_status check_new(const struct esp_added_table *t, uint32_t id, const char *content, size_t len,
                            bool *known, esp_error *err)
{
    const int shown = (int)(len < 64 ? len : 64);

    *known = false;
    if (len == 0 || len > ESP_LIMIT_TOKEN_BYTES)
        return esp_fail(err, ESP_EFORMAT, "added token of id %u has %zu bytes, 1 to %u are accepted", id, len,
                        ESP_LIMIT_TOKEN_BYTES);
    if (id >= ESP_LIMIT_VOCAB)
        return esp_fail(err, ESP_EFORMAT, "added token \"%.*s\" has id %u, ids below %u are accepted", shown,
                        content, id, ESP_LIMIT_VOCAB);
    for (uint32_t i = 0; i < t->n; i++) {
        const struct esp_added *a = &t->item[i];
        const bool same = a->len == len && memcmp(a->content, content, len) == 0;

        if (same && a->id == id)
            *known = true;
        else if (same)
            return esp_fail(err, ESP_EFORMAT, "duplicate added token: \"%.*s\" has the ids %u and %u", shown,
                            content, a->id, id);
        else if (a->id == id)
            return esp_fail(err, ESP_EFORMAT,
                            "duplicate id: %u stands for the added tokens \"%.64s\" and \"%.*s\"", id,
                            a->content, shown, content);
    }
    return ESP_OK;
}

esp_status esp_added_add(struct esp_added_table *t, uint32_t id, const char *content, size_t len,
                         unsigned flags, esp_error *err)
{
    struct esp_added *a;
    bool known;

    ESP_TRY(check_new(t, id, content, len, &known, err));
    if (known)
        return ESP_OK;
    if (t->n == ESP_LIMIT_ADDED_TOKENS)
        return esp_fail(err, ESP_EFORMAT, "more than %u added tokens", ESP_LIMIT_ADDED_TOKENS);
    if (!t->arena)
        t->arena = esp_arena_create(ARENA_MAX);
    if (!t->arena)
        return no_memory(err);
    if (t->n == t->cap) {
        uint32_t cap = t->cap ? t->cap * 2 : 64;

        a = esp_realloc(t->item, cap * sizeof *a);
        if (!a)
            return no_memory(err);
        t->item = a;
        t->cap = cap;
    }
    a = &t->item[t->n];
    memset(a, 0, sizeof *a);
    a->content = esp_arena_strndup(t->arena, content, len);
    if (!a->content)
        return no_memory(err);
    a->id = id;
    a->len = (uint32_t)len;
    a->flags = flags;
    t->n++;
    return ESP_OK;
}

static int by_id(const void *x, const void *y)
{
    const struct esp_added *a = x, *b = y;

    return a->id < b->id ? -1 : a->id > b->id;
}

static int by_find(const void *x, const void *y)
{
    const struct esp_added *a = *(const struct esp_added *const *)x, *b = *(const struct esp_added *const *)y;
    const size_t n = a->find_len < b->find_len ? a->find_len : b->find_len;
    const int c = memcmp(a->find, b->find, n);

    if (c != 0)
        return c;
    if (a->find_len != b->find_len)
        return a->find_len < b->find_len ? -1 : 1;
    return by_id(a, b);
}

static esp_status set_find(struct esp_added_table *t, enum esp_tok_form form, esp_error *err)
{
    struct esp_tok_norm w = {0};
    esp_status s = ESP_OK;

    esp_strbuf_init(&w.out, ESP_LIMIT_TOKEN_BYTES * 32);
    for (uint32_t i = 0; i < t->n && s == ESP_OK; i++) {
        struct esp_added *a = &t->item[i];
        const char *find = a->content;
        size_t len = a->len;

        if (a->flags & ESP_ADDED_NORMALIZED)
            s = esp_tok_normalize(&w, form, &find, &len, NULL, err);
        if (s == ESP_OK && find != a->content)
            find = esp_arena_strndup(t->arena, find, len);
        if (s == ESP_OK && !find)
            s = no_memory(err);
        a->find = find;
        a->find_len = (uint32_t)len;
    }
    esp_tok_norm_free(&w);
    return s;
}

static esp_status build_set(struct esp_added_table *t, struct esp_added_set *set, unsigned wanted,
                            esp_error *err)
{
    set->item = esp_arena_alloc_array(t->arena, t->n, sizeof(const struct esp_added *));
    if (!set->item)
        return no_memory(err);
    for (uint32_t i = 0; i < t->n; i++) {
        if ((t->item[i].flags & ESP_ADDED_NORMALIZED) != wanted)
            continue;
        set->item[set->n++] = &t->item[i];
        set->first[(uint8_t)t->item[i].find[0]] = true;
    }
    qsort(set->item, set->n, sizeof set->item[0], by_find);
    return ESP_OK;
}

esp_status esp_added_finish(struct esp_added_table *t, enum esp_tok_form form, esp_error *err)
{
    if (t->n == 0)
        return ESP_OK;
    qsort(t->item, t->n, sizeof t->item[0], by_id);
    ESP_TRY(set_find(t, form, err));
    ESP_TRY(build_set(t, &t->raw, 0, err));
    return build_set(t, &t->normalized, ESP_ADDED_NORMALIZED, err);
}

void esp_added_free(struct esp_added_table *t)
{
    esp_arena_destroy(t->arena);
    esp_free(t->item);
    memset(t, 0, sizeof *t);
}

const struct esp_added *esp_added_by_id(const struct esp_added_table *t, uint32_t id)
{
    const struct esp_added key = {.id = id};

    return t->n ? bsearch(&key, t->item, t->n, sizeof key, by_id) : NULL;
}

const struct esp_added *esp_added_by_content(const struct esp_added_table *t, const char *s, size_t len)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->item[i].len == len && memcmp(t->item[i].content, s, len) == 0)
            return &t->item[i];
    return NULL;
}

static bool in_ranges(const struct esp_cp_range *r, uint32_t cp)
{
    for (; r->last; r++)
        if (cp >= r->first && cp <= r->last)
            return true;
    return false;
}

/* A word character as Unicode's regular-expression annex has it: alphabetic, mark, digit, connector, join
 * control. */
static bool is_word(uint32_t cp)
{
    switch (utf8proc_category((int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        break;
    }
    if (cp == 0x200c || cp == 0x200d || (cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) ||
        (cp >= 0x1f150 && cp <= 0x1f169) || (cp >= 0x1f170 && cp <= 0x1f189))
        return true; /* joiners; circled and squared letters */
    return in_ranges(esp_new_letters, cp) || in_ranges(esp_new_marks, cp) || in_ranges(esp_new_digits, cp);
}

static bool is_white(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
           cp == 0x3000;
}

/* The character that ends at s[end): its length, 0 at the beginning of the text. */
static size_t char_before(const char *s, size_t end, uint32_t *cp)
{
    size_t start = end;

    if (end == 0)
        return 0;
    do
        start--;
    while (start > 0 && end - start < 4 && ((uint8_t)s[start] & 0xc0) == 0x80);
    return esp_utf8_decode(s + start, end - start, cp) ? end - start : 0;
}

/* First of the set's items in [lo, hi) whose byte d is at least c; all share their first d bytes and are
 * longer. */
static uint32_t lower(const struct esp_added_set *set, uint32_t lo, uint32_t hi, size_t d, unsigned c)
{
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;

        if ((uint8_t)set->item[mid]->find[d] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The longest token that s[0..len) begins with, or NULL. */
static const struct esp_added *longest(const struct esp_added_set *set, const char *s, size_t len)
{
    const struct esp_added *best = NULL;
    uint32_t lo = 0, hi = set->n;

    for (size_t d = 0; d < len && lo < hi; d++) {
        const unsigned c = (uint8_t)s[d];

        lo = lower(set, lo, hi, d, c);
        hi = lower(set, lo, hi, d, c + 1);
        if (lo < hi && set->item[lo]->find_len == d + 1) {
            best = set->item[lo];
            while (lo < hi && set->item[lo]->find_len == d + 1)
                lo++; /* those that are used up; equals after normalisation: the lowest id counts */
        }
    }
    return best;
}

void esp_added_cut_start(struct esp_added_cut *c, const struct esp_added_set *set, const char *text,
                         size_t len, const struct esp_tok_trust *trust)
{
    size_t lo = 0, hi = trust->n;

    memset(c, 0, sizeof *c);
    c->set = set;
    c->text = text;
    c->len = len;
    c->trust = trust;
    while (!trust->all && lo < hi) { /* the first span that ends after the text begins */
        const size_t mid = lo + (hi - lo) / 2;

        if (trust->span[mid].end <= trust->base)
            lo = mid + 1;
        else
            hi = mid;
    }
    c->next_span = lo;
    if (trust->all)
        c->run_end = len;
}

/* Go on to the next trusted run within the text; spans that touch are one run. */
static bool next_run(struct esp_added_cut *c)
{
    const struct esp_tok_trust *t = c->trust;
    const size_t text_end = t->base + c->len;
    size_t start, end;

    if (t->all || c->next_span >= t->n || t->span[c->next_span].start >= text_end)
        return false;
    start = t->span[c->next_span].start;
    end = t->span[c->next_span++].end;
    while (c->next_span < t->n && t->span[c->next_span].start == end)
        end = t->span[c->next_span++].end;
    c->run_start = start > t->base ? start - t->base : 0;
    c->run_end = (end < text_end ? end : text_end) - t->base;
    return true;
}

static const struct esp_added *search(struct esp_added_cut *c, size_t *start)
{
    if (c->set->n == 0)
        return NULL;
    do {
        size_t i = c->search > c->run_start ? c->search : c->run_start;

        for (; i < c->run_end; i++) {
            const struct esp_added *a =
                c->set->first[(uint8_t)c->text[i]] ? longest(c->set, c->text + i, c->run_end - i) : NULL;

            if (a) {
                *start = i;
                c->search = i + a->find_len;
                return a;
            }
        }
        c->search = i;
    } while (next_run(c));
    return NULL;
}

/* Widen [*start, *end) over white space as the flags ask, or false when the token must stand alone and does
 * not. */
static bool fit(const struct esp_added_cut *c, const struct esp_added *a, size_t *start, size_t *end)
{
    uint32_t cp = 0;
    size_t n;

    if (a->flags & ESP_ADDED_SINGLE_WORD) {
        if (char_before(c->text, *start, &cp) && is_word(cp))
            return false;
        if (esp_utf8_decode(c->text + *end, c->len - *end, &cp) && is_word(cp))
            return false;
    }
    if (a->flags & ESP_ADDED_LSTRIP) {
        while (*start > c->done && (n = char_before(c->text, *start, &cp)) != 0 && is_white(cp))
            *start -= n;
    }
    if (a->flags & ESP_ADDED_RSTRIP) {
        while ((n = esp_utf8_decode(c->text + *end, c->len - *end, &cp)) != 0 && is_white(cp))
            *end += n;
    }
    return true;
}

bool esp_added_cut_next(struct esp_added_cut *c, struct esp_added_part *part)
{
    const struct esp_added *a = c->pending;
    size_t start = 0, end = c->pending_end;

    if (a) {
        c->pending = NULL;
        *part = (struct esp_added_part){a, c->done, end};
        c->done = end > c->done ? end : c->done;
        return true;
    }
    while ((a = search(c, &start)) != NULL) {
        end = start + a->find_len;
        if (fit(c, a, &start, &end))
            break;
    }
    if (!a && c->done >= c->len)
        return false;
    if (a && start <= c->done) {
        *part = (struct esp_added_part){a, c->done, end};
        c->done = end > c->done ? end : c->done;
        return true;
    }
    *part = (struct esp_added_part){NULL, c->done, a ? start : c->len};
    c->pending = a;
    c->pending_end = end;
    c->done = part->end;
    return true;
}
