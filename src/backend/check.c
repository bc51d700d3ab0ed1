/*
 * A batch against the limits of a plan and its pools, before any backend touches memory with its numbers.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/check.h"

struct limits {
    const struct esp_tape *tape;
    const struct esp_pools *pools;
    const struct esp_plan_opts *opts;
};

/* Pages and slots that the pass will touch. */
static esp_status check_places(const struct limits *p, const struct esp_batch_seq *s, uint32_t i,
                               esp_error *err)
{
    uint32_t n_page = esp_layout_pages(&p->pools->layout, (uint64_t)s->n + s->n_tok);

    for (uint32_t j = 0; j < n_page; j++)
        if (s->pages[j] >= p->pools->n_page)
            return esp_fail(err, ESP_EINVAL, "sequence %u: page %u of %u", i, s->pages[j], p->pools->n_page);
    if (p->pools->layout.n_delta && (s->slot >= p->pools->n_slot || s->slot_next >= p->pools->n_slot))
        return esp_fail(err, ESP_EINVAL, "sequence %u: slots %u, %u of %u", i, s->slot, s->slot_next,
                        p->pools->n_slot);
    return ESP_OK;
}

static esp_status check_journal(const struct limits *p, const struct esp_batch_seq *s, uint32_t i,
                                esp_error *err)
{
    uint32_t border = (s->n / ESP_CHUNK + 1) * ESP_CHUNK; /* first border after the committed rows */

    if (!p->pools->layout.n_delta || s->journal == ESP_NO_JOURNAL)
        return ESP_OK;
    if (s->journal >= p->pools->n_journal || s->n_tok > p->pools->journal_rows)
        return esp_fail(err, ESP_EINVAL, "sequence %u: %u rows in journal %u (%u journals of %u rows)", i,
                        s->n_tok, s->journal, p->pools->n_journal, p->pools->journal_rows);
    if (s->slot_next == s->slot && s->n + s->n_tok > border)
        return esp_fail(err, ESP_EINVAL,
                        "sequence %u: a journalled pass over position %u needs a second slot", i, border);
    return ESP_OK;
}

static esp_status check_seq(const struct limits *p, const struct esp_batch *b, uint32_t i, uint32_t next_tok,
                            esp_error *err)
{
    const struct esp_batch_seq *s = &b->seqs[i];

    if (s->tok0 != next_tok || s->n_tok == 0 || s->n_tok > b->n_tok - s->tok0)
        return esp_fail(err, ESP_EINVAL, "sequence %u: tokens [%u, +%u) of %u", i, s->tok0, s->n_tok,
                        b->n_tok);
    if (s->n_tok > p->opts->context || s->n > p->opts->context - s->n_tok)
        return esp_fail(err, ESP_ENOFIT, "sequence %u: %u positions after %u, the context is %u", i, s->n_tok,
                        s->n, p->opts->context);
    if (s->base % ESP_CHUNK || s->base > s->n || s->n - s->base > ESP_CHUNK)
        return esp_fail(err, ESP_EINVAL, "sequence %u: %u positions with %u folded", i, s->n, s->base);
    if (s->n_lora > ESP_LORA_STACK)
        return esp_fail(err, ESP_EINVAL, "sequence %u: %u adapters, at most %d stack", i, s->n_lora,
                        ESP_LORA_STACK);
    for (uint32_t j = 0; j < s->n_lora; j++)
        if (s->lora[j]->max_rank > p->opts->max_rank)
            return esp_fail(err, ESP_ENOFIT, "sequence %u: an adapter of rank %u, the plan is for %u", i,
                            s->lora[j]->max_rank, p->opts->max_rank);
    ESP_TRY(check_places(p, s, i, err));
    return check_journal(p, s, i, err);
}

/* What the tape's first ops read: ids within the embedding, input rows where it takes some. */
static esp_status check_inputs(const struct limits *p, const struct esp_batch *b, esp_error *err)
{
    for (uint32_t i = 0; i < p->tape->n_op; i++) {
        const struct esp_op *op = &p->tape->ops[i];

        if (op->kind == ESP_OP_INPUT && !b->input)
            return esp_fail(err, ESP_EINVAL, "the tape needs input rows, the batch has none");
        if (op->kind != ESP_OP_EMBED)
            continue;
        for (uint32_t j = 0; j < b->n_tok; j++)
            if (b->ids[j] < 0 || (uint32_t)b->ids[j] >= op->w->n_out)
                return esp_fail(err, ESP_EINVAL, "token id %d, the embedding has %u rows", b->ids[j],
                                op->w->n_out);
    }
    return ESP_OK;
}

esp_status esp_batch_check(const struct esp_batch *b, const struct esp_tape *t, const struct esp_pools *pools,
                           const struct esp_plan_opts *o, esp_error *err)
{
    const struct limits limits = {t, pools, o}, *p = &limits;
    uint32_t next_tok = 0;

    if (b->n_tok == 0 || b->n_tok > p->opts->max_tok || b->n_out > p->opts->max_out ||
        b->n_seq > p->opts->max_seq)
        return esp_fail(err, ESP_EINVAL,
                        "batch of %u tokens, %u outputs, %u sequences; the plan is for %u, %u, %u", b->n_tok,
                        b->n_out, b->n_seq, p->opts->max_tok, p->opts->max_out, p->opts->max_seq);
    for (uint32_t i = 0; i < b->n_seq; i++) {
        ESP_TRY(check_seq(p, b, i, next_tok, err));
        next_tok += b->seqs[i].n_tok;
    }
    if (next_tok != b->n_tok)
        return esp_fail(err, ESP_EINVAL, "%u tokens belong to no sequence", b->n_tok - next_tok);
    for (uint32_t i = 0; i < b->n_out; i++)
        if (b->out_rows[i] >= b->n_tok)
            return esp_fail(err, ESP_EINVAL, "wanted row %u of %u", b->out_rows[i], b->n_tok);
    return check_inputs(p, b, err);
}
