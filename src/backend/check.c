/*
 * A batch against the limits of a plan and its pools, before any backend touches memory with its numbers.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/check.h"

static esp_status check_seq(const struct esp_batch *b, uint32_t i, uint32_t next_tok,
                            const struct esp_pools *p, const struct esp_plan_opts *o, esp_error *err)
{
    const struct esp_batch_seq *s = &b->seqs[i];
    uint32_t n_page, border;

    if (s->tok0 != next_tok || s->n_tok == 0 || s->n_tok > b->n_tok - s->tok0)
        return esp_fail(err, ESP_EINVAL, "sequence %u: tokens [%u, +%u) of %u", i, s->tok0, s->n_tok,
                        b->n_tok);
    if (s->n_tok > o->context || s->n > o->context - s->n_tok)
        return esp_fail(err, ESP_ENOFIT, "sequence %u: %u positions after %u, the context is %u", i, s->n_tok,
                        s->n, o->context);
    if (s->base % ESP_CHUNK || s->base > s->n || s->n - s->base > ESP_CHUNK)
        return esp_fail(err, ESP_EINVAL, "sequence %u: %u positions with %u folded", i, s->n, s->base);
    n_page = p->layout.n_attn ? (s->n + s->n_tok + ESP_SPAN - 1) / ESP_SPAN : 0;
    for (uint32_t j = 0; j < n_page; j++)
        if (s->pages[j] >= p->n_page)
            return esp_fail(err, ESP_EINVAL, "sequence %u: page %u of %u", i, s->pages[j], p->n_page);
    if (!p->layout.n_delta)
        return ESP_OK;
    if (s->slot >= p->n_slot || s->slot_next >= p->n_slot)
        return esp_fail(err, ESP_EINVAL, "sequence %u: slots %u, %u of %u", i, s->slot, s->slot_next,
                        p->n_slot);
    if (s->journal == ESP_NO_JOURNAL)
        return ESP_OK;
    border = (s->n / ESP_CHUNK + 1) * ESP_CHUNK; /* first border after the committed rows */
    if (s->journal >= p->n_journal || s->n_tok > p->journal_rows)
        return esp_fail(err, ESP_EINVAL, "sequence %u: %u rows in journal %u (%u journals of %u rows)", i,
                        s->n_tok, s->journal, p->n_journal, p->journal_rows);
    if (s->slot_next == s->slot && s->n + s->n_tok > border)
        return esp_fail(err, ESP_EINVAL,
                        "sequence %u: a journalled pass over position %u needs a second slot", i, border);
    return ESP_OK;
}

esp_status esp_batch_check(const struct esp_batch *b, const struct esp_tape *t, const struct esp_pools *p,
                           const struct esp_plan_opts *o, esp_error *err)
{
    uint32_t next_tok = 0;

    if (b->n_tok == 0 || b->n_tok > o->max_tok || b->n_out > o->max_out || b->n_seq > o->max_seq)
        return esp_fail(err, ESP_EINVAL,
                        "batch of %u tokens, %u outputs, %u sequences; the plan is for %u, %u, %u", b->n_tok,
                        b->n_out, b->n_seq, o->max_tok, o->max_out, o->max_seq);
    for (uint32_t i = 0; i < b->n_seq; i++) {
        ESP_TRY(check_seq(b, i, next_tok, p, o, err));
        next_tok += b->seqs[i].n_tok;
    }
    if (next_tok != b->n_tok)
        return esp_fail(err, ESP_EINVAL, "%u tokens belong to no sequence", b->n_tok - next_tok);
    for (uint32_t i = 0; i < b->n_out; i++)
        if (b->out_rows[i] >= b->n_tok)
            return esp_fail(err, ESP_EINVAL, "wanted row %u of %u", b->out_rows[i], b->n_tok);
    for (uint32_t i = 0; i < t->n_op; i++) {
        const struct esp_op *op = &t->ops[i];

        if (op->kind != ESP_OP_EMBED)
            continue;
        for (uint32_t j = 0; j < b->n_tok; j++)
            if (b->ids[j] < 0 || (uint32_t)b->ids[j] >= op->w->n_out)
                return esp_fail(err, ESP_EINVAL, "token id %d, the embedding has %u rows", b->ids[j],
                                op->w->n_out);
    }
    return ESP_OK;
}
