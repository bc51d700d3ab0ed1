/*
 * See the header. The text is read backwards: where its reverse agrees with its own beginning for n tokens,
 * an earlier place had the same n last tokens. The Z algorithm finds all of those lengths in one pass
 * (Gusfield, "Algorithms on Strings, Trees, and Sequences", 1.4).
 *
 * SPDX-License-Identifier: MIT
 */
#include "sample/dry.h"

#define ID_MASK UINT32_C(0x7fffffff) /* a history's tokens carry a mark in the top bit */

static uint32_t backwards(const struct esp_sample_history *h, size_t i)
{
    return h->tokens[h->len - 1 - i] & ID_MASK;
}

static bool breaks(const struct esp_sample_dry *d, uint32_t id)
{
    return id / 64 < d->n_words && d->breakers[id / 64] >> (id % 64) & 1;
}

/* Tokens at the end of the text without a breaker among them. */
static size_t unbroken(const struct esp_sample_dry *d, const struct esp_sample_history *h, size_t n)
{
    size_t i = 0;

    while (i < n && !breaks(d, backwards(h, i)))
        i++;
    return i;
}

/* match[k] of k in 1..n-1: how many tokens from k backwards are those from the end backwards, or limit. */
static void find_matches(const struct esp_sample_dry *d, const struct esp_sample_history *h, size_t n,
                         size_t limit)
{
    size_t from = 0, to = 0; /* the match that reaches furthest: [from, to) */

    for (size_t k = 1; k < n; k++) {
        size_t len = 0;

        if (k < to) {
            len = d->match[k - from];
            len = len < to - k ? len : to - k;
        }
        while (len < limit && k + len < n && backwards(h, k + len) == backwards(h, len))
            len++;
        d->match[k] = (uint32_t)len;
        if (k + len > to) {
            from = k;
            to = k + len;
        }
    }
}

/* base^n by squaring: the same bits on every machine, which pow() does not promise. */
static double power(double base, uint64_t n)
{
    double x = 1;

    for (; n; n >>= 1, base *= base)
        if (n & 1)
            x *= base;
    return x;
}

/* Remember the longest repetition that id would go on with; the new number of ids. w->id is a set that needs
 * no clearing: an entry counts if w->order has the id there. */
static uint32_t note(struct esp_sample_work *w, uint32_t n, uint32_t id, uint32_t len)
{
    const uint32_t at = w->id[id];

    if (at < n && w->order[at] >> 32 == id) {
        if (len > (uint32_t)w->order[at])
            w->order[at] = (uint64_t)id << 32 | len;
        return n;
    }
    w->id[id] = n;
    w->order[n] = (uint64_t)id << 32 | len;
    return n + 1;
}

void esp_sample_dry_apply(const struct esp_sample_dry *d, const struct esp_sample_history *h,
                          struct esp_sample_work *w)
{
    const size_t n = h->len < d->window ? h->len : d->window;
    const size_t limit = unbroken(d, h, n);
    uint32_t n_id = 0;

    if (limit < d->allowed)
        return;
    find_matches(d, h, n, limit);
    for (size_t k = 1; k < n; k++) {
        const uint32_t next = backwards(h, k - 1);

        if (d->match[k] >= d->allowed && !breaks(d, next))
            n_id = note(w, n_id, next, d->match[k]);
    }
    for (uint32_t i = 0; i < n_id; i++) {
        const uint32_t id = (uint32_t)(w->order[i] >> 32), len = (uint32_t)w->order[i];
        const double penalty = d->multiplier * power(d->base, len - d->allowed);

        esp_sample_work_set(w, id, esp_sample_saturate((double)w->logit[id] - penalty));
    }
}
