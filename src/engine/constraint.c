/*
 * A sequence's constraint beside its sampler: tokens go to both or to neither, and come back from both. The
 * constraint counts from where it was set, so what lies before it is never asked back from it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/engine.h"

#include <string.h>

#include "base/mem.h"

void esp_seq_drop_constraint(struct esp_seq *s)
{
    if (s->limit.c.close)
        s->limit.c.close(s->limit.c.user);
    memset(&s->limit, 0, sizeof s->limit);
}

esp_status esp_seq_set_constraint(esp_seq *s, const struct esp_constraint *c, esp_error *err)
{
    if (s->armed)
        return esp_fail(err, ESP_ESTATE,
                        "the sequence is generating; stop it before changing its constraint");
    if (c && (!c->mask || !c->accept || !c->rollback))
        return esp_fail(err, ESP_EINVAL, "a constraint needs mask, accept and rollback");
    esp_seq_drop_constraint(s);
    if (c)
        s->limit.c = *c;
    return ESP_OK;
}

/* Ids that end a turn come and go with the constraint's state, not with its bits. */
static void allow_ends(const struct esp_seq *s, uint64_t *bits, const uint64_t *all, bool may_end)
{
    const struct esp_model *m = s->engine->model;

    if (s->opts.sampling.ignore_end)
        return;
    for (uint32_t i = 0; i < m->n_end; i++) {
        uint64_t bit = UINT64_C(1) << m->end[i] % 64;
        uint64_t *word = &bits[m->end[i] / 64];

        *word = (*word & ~bit) | (may_end ? bit & (all ? all[m->end[i] / 64] : bit) : 0);
    }
}

esp_status esp_seq_mask(const struct esp_seq *s, const uint64_t **allowed, enum esp_constraint_state *state,
                        esp_error *err)
{
    struct esp_engine *g = s->engine;
    const uint64_t *all = g->model->allowed;
    size_t n_word = ((size_t)g->model->net->tape.n_vocab + 63) / 64;

    *allowed = all;
    *state = ESP_CONSTRAINT_MAY_END;
    if (!s->limit.c.mask)
        return ESP_OK;
    if (all)
        memcpy(g->allowed, all, n_word * sizeof *all);
    else
        memset(g->allowed, 0xff, n_word * sizeof *g->allowed);
    ESP_TRY(s->limit.c.mask(s->limit.c.user, g->allowed, n_word, state, err));
    allow_ends(s, g->allowed, all, *state == ESP_CONSTRAINT_MAY_END);
    *allowed = g->allowed;
    return ESP_OK;
}

esp_status esp_seq_push(struct esp_seq *s, uint32_t id, enum esp_constraint_state *state, esp_error *err)
{
    esp_status st;

    *state = ESP_CONSTRAINT_MAY_END;
    ESP_TRY(esp_sampler_push(s->sampler, id, err));
    if (!s->limit.c.accept)
        return ESP_OK;
    st = s->limit.c.accept(s->limit.c.user, (esp_token)id, state, err);
    if (st != ESP_OK)
        esp_sampler_pop(s->sampler, 1, NULL);
    else
        s->limit.n++;
    return st;
}

esp_status esp_seq_pop(struct esp_seq *s, size_t n, esp_error *err)
{
    uint32_t back = n < s->limit.n ? (uint32_t)n : s->limit.n;

    ESP_TRY(esp_sampler_pop(s->sampler, n, err));
    if (back)
        s->limit.c.rollback(s->limit.c.user, back);
    s->limit.n -= back;
    return ESP_OK;
}

uint32_t esp_seq_forced(const struct esp_seq *s, esp_token *out, uint32_t cap)
{
    uint32_t n = s->limit.c.forced && cap ? s->limit.c.forced(s->limit.c.user, out, cap) : 0;

    ESP_ASSERT(n <= cap);
    return n;
}
