/*
 * What drafters share: their table, drawing a draft, and batches of their own.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/draft.h"

#include <string.h>

#include "base/mem.h"

static const struct esp_drafter *const table[] = {&esp_drafter_mtp, &esp_drafter_ngram, &esp_drafter_model};

const struct esp_drafter *esp_drafter_get(esp_spec kind)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i]->kind == kind)
            return table[i];
    return NULL;
}

bool esp_draft_take(struct esp_draft_ask *ask, const float *logits)
{
    struct esp_seq *s = ask->seq;
    enum esp_constraint_state state;
    struct esp_sample_result r;
    const uint64_t *allowed;
    esp_token forced;

    if (ask->n == ask->want)
        return false;
    if (esp_seq_forced(s, &forced, 1)) {
        r.id = (uint32_t)forced;
    } else {
        if (esp_seq_mask(s, &allowed, &state, NULL) != ESP_OK || state == ESP_CONSTRAINT_ENDED ||
            esp_sampler_draw(s->sampler, logits, allowed, esp_sampler_n_generated(s->sampler), &r, NULL) !=
                ESP_OK)
            return false;
        if (!s->opts.sampling.ignore_end && esp_token_is_end(s->engine->model, (esp_token)r.id))
            return false;
    }
    if (esp_seq_push(s, r.id, &state, NULL) != ESP_OK)
        return false;
    ask->out[ask->n++] = (int32_t)r.id;
    return state != ESP_CONSTRAINT_ENDED;
}

void esp_draft_done(struct esp_draft_ask *ask)
{
    esp_status s = esp_seq_pop(ask->seq, ask->n, NULL);

    ESP_ASSERT(s == ESP_OK);
    (void)s;
}

void esp_draft_check(struct esp_draft_ask *ask)
{
    struct esp_seq *s = ask->seq;
    enum esp_constraint_state state = ESP_CONSTRAINT_MAY_END;
    uint32_t n = ask->n;

    if (!s->limit.c.accept)
        return;
    for (ask->n = 0; ask->n < n && state != ESP_CONSTRAINT_ENDED; ask->n++)
        if (esp_seq_push(s, (uint32_t)ask->out[ask->n], &state, NULL) != ESP_OK)
            break;
    esp_draft_done(ask);
}

/* ---- batches ---- */

uint64_t esp_draft_batch_bytes(uint32_t cap_tok, uint32_t cap_seq, uint32_t n_vocab)
{
    return (uint64_t)cap_tok * 4 * sizeof(int32_t) +
           (uint64_t)cap_seq *
               (sizeof(uint32_t) + sizeof(struct esp_batch_seq) + (uint64_t)n_vocab * sizeof(float));
}

esp_status esp_draft_batch_open(struct esp_draft_batch *d, uint32_t cap_tok, uint32_t cap_seq,
                                uint32_t n_vocab, esp_error *err)
{
    d->cap_tok = cap_tok;
    d->cap_seq = cap_seq;
    d->ids = esp_alloc_array(cap_tok, sizeof *d->ids);
    d->pos = esp_alloc_array(cap_tok, sizeof *d->pos);
    d->out_rows = esp_alloc_array(cap_seq, sizeof *d->out_rows);
    d->seqs = esp_alloc_array(cap_seq, sizeof *d->seqs);
    d->logits = esp_alloc_array((size_t)cap_seq * n_vocab, sizeof *d->logits);
    if (!d->ids || !d->pos || !d->out_rows || !d->seqs || !d->logits)
        return esp_fail(err, ESP_ENOMEM, "drafter: out of memory");
    return ESP_OK;
}

void esp_draft_batch_close(struct esp_draft_batch *d)
{
    esp_free(d->ids);
    esp_free(d->pos);
    esp_free(d->out_rows);
    esp_free(d->seqs);
    esp_free(d->logits);
}

void esp_draft_batch_begin(struct esp_draft_batch *d)
{
    d->b = (struct esp_batch){.ids = d->ids,
                              .pos = (const int32_t(*)[3])d->pos,
                              .seqs = d->seqs,
                              .out_rows = d->out_rows,
                              .logits = d->logits};
}

struct esp_batch_seq *esp_draft_batch_add(struct esp_draft_batch *d, uint32_t at, uint32_t n)
{
    struct esp_batch_seq *q = &d->seqs[d->b.n_seq++];

    ESP_ASSERT(d->b.n_seq <= d->cap_seq && n <= d->cap_tok - d->b.n_tok);
    *q = (struct esp_batch_seq){.tok0 = d->b.n_tok,
                                .n_tok = n,
                                .n = at,
                                .base = at / ESP_CHUNK * ESP_CHUNK,
                                .journal = ESP_NO_JOURNAL};
    for (uint32_t i = 0; i < n; i++)
        for (int axis = 0; axis < 3; axis++)
            d->pos[d->b.n_tok + i][axis] = (int32_t)(at + i);
    d->b.n_tok += n;
    return q;
}

uint32_t esp_draft_batch_want(struct esp_draft_batch *d)
{
    d->out_rows[d->b.n_out] = d->b.n_tok - 1;
    return d->b.n_out++;
}

esp_status esp_draft_batch_run(struct esp_draft_batch *d, struct esp_engine *g, struct esp_plan *plan,
                               esp_error *err)
{
    ESP_TRY(g->dev->ops->run(plan, &d->b, err));
    return g->dev->ops->wait(g->dev, err);
}
