/*
 * Drafts by looking back: where the last three, two or one tokens occurred before, most recent place first,
 * what followed there is proposed. The index maps a hash of a gram to the place where it last ended; a
 * collision or a place of tokens that are gone is found out by comparing, so the index never needs repair and
 * a text grows it by three entries a token.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/draft.h"

#include <string.h>

#include "base/mem.h"

enum { LONGEST = 3 };

struct ngram {
    uint32_t *ends; /* [mask + 1] position behind the gram; 0: none */
    uint32_t mask;
    uint32_t n; /* grams that end before position n are in the index */
};

static uint32_t table_size(uint32_t context)
{
    uint32_t n = 1024;

    while (n < 2 * context && n < 1u << 30)
        n *= 2;
    return n;
}

static uint32_t slot_of(const struct ngram *x, const int32_t *gram, uint32_t k)
{
    uint64_t h = k;

    for (uint32_t i = 0; i < k; i++)
        h = (h ^ (uint32_t)gram[i]) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(h >> 33) & x->mask;
}

/* Index every gram that ends before the last token. */
static void grow(struct ngram *x, const struct esp_seq *s)
{
    if (x->n > s->n_token) /* cut back */
        x->n = s->n_token;
    for (; x->n < s->n_token; x->n++)
        for (uint32_t k = 1; k <= LONGEST && k <= x->n; k++)
            x->ends[slot_of(x, s->tokens + x->n - k, k)] = x->n;
}

/* Where what follows the last tokens begins; 0: they are new. */
static uint32_t find(struct ngram *x, const struct esp_seq *s)
{
    uint32_t n = s->n_token;

    grow(x, s);
    for (uint32_t k = LONGEST < n ? LONGEST : n; k >= 1; k--) {
        const int32_t *gram = s->tokens + n - k;
        uint32_t end = x->ends[slot_of(x, gram, k)];

        if (end >= k && end < n && memcmp(s->tokens + end - k, gram, k * sizeof *gram) == 0)
            return end;
    }
    return 0;
}

static bool ready(struct esp_seq *s)
{
    return find(s->spec.data, s) > 0;
}

static void propose(struct esp_engine *g, struct esp_draft_ask *asks, uint32_t n)
{
    for (struct esp_draft_ask *a = asks; a < asks + n; a++) {
        const struct esp_seq *s = a->seq;
        uint32_t from = find(s->spec.data, s);

        for (; from && a->n < a->want; a->n++) { /* a text that repeats itself goes on from its own drafts */
            uint32_t at = from + a->n;
            int32_t id = at < s->n_token ? s->tokens[at] : a->out[at - s->n_token];

            if (!s->opts.sampling.ignore_end && esp_token_is_end(g->model, id))
                break;
            a->out[a->n] = id;
        }
        esp_draft_check(a);
    }
}

static esp_status seq_open(struct esp_engine *g, void **data, esp_error *err)
{
    uint32_t n = table_size(g->opts.context);
    struct ngram *x = esp_alloc(sizeof *x);

    if (!x)
        return esp_fail(err, ESP_ENOMEM, "n-gram index: out of memory");
    x->mask = n - 1;
    x->ends = esp_alloc_array(n, sizeof *x->ends);
    if (!x->ends) {
        esp_free(x);
        return esp_fail(err, ESP_ENOMEM, "n-gram index of %u entries: out of memory", n);
    }
    *data = x;
    return ESP_OK;
}

static void seq_close(struct esp_engine *g, void *data)
{
    struct ngram *x = data;

    (void)g;
    esp_free(x->ends);
    esp_free(x);
}

static esp_status bytes(const struct esp_model *m, const esp_engine_opts *o, struct esp_dev *dev,
                        uint64_t *out, esp_error *err)
{
    (void)m;
    (void)dev;
    (void)err;
    *out =
        (uint64_t)o->max_seqs * (sizeof(struct ngram) + (uint64_t)table_size(o->context) * sizeof(uint32_t));
    return ESP_OK;
}

const struct esp_drafter esp_drafter_ngram = {.kind = ESP_SPEC_NGRAM,
                                              .name = "ngram",
                                              .depth = 10,
                                              .bytes = bytes,
                                              .seq_open = seq_open,
                                              .seq_close = seq_close,
                                              .ready = ready,
                                              .propose = propose};
