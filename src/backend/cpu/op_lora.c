/*
 * Adapters beside products: y += scale * B (A x) for the rows whose sequence names the adapter. Two phases
 * per level of the stack, so that levels add in order: all A x, a barrier, then all B. Both are the f32
 * products of the kernel table, so a row's bits do not depend on which other rows have adapters; rows without
 * one are not touched.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cpu/cpu.h"

enum { ROWS = 16, OUTS = 256 }; /* of one task */

/* ROWS x OUTS products before they are scaled and added. */
size_t esp_cpu_lora_thread_floats(const struct esp_plan_opts *o)
{
    return o->max_rank ? (size_t)ROWS * OUTS : 0;
}

struct site { /* one adapter of one sequence beside one product */
    const struct esp_batch_seq *s;
    const struct linear *l;
    const struct esp_lora_pair *pair;
    float scale;
    float *t; /* [n_tok][rank] */
};

/* Site number i of a level, in (sequence, product) order; false when the adapter has no pair there. */
static bool site_at(const struct esp_plan *p, const struct step *s, uint32_t level, uint32_t i,
                    struct site *out)
{
    uint32_t product = i % s->n_linear;

    out->s = &p->batch->seqs[i / s->n_linear];
    if (level >= out->s->n_lora)
        return false;
    out->l = &p->linears[s->first_linear + product];
    out->pair = esp_lora_find(out->s->lora[level], out->l->op->w);
    out->t = plan_lora(p) + ((size_t)product * p->opts.max_tok + out->s->tok0) * p->opts.max_rank;
    if (!out->pair)
        return false;
    out->scale = out->pair->scale * out->s->lora_scale[level];
    return true;
}

static void shrink(const struct esp_plan *p, const struct site *x, uint32_t r0)
{
    const struct esp_linear *f32 = &p->dev->k.linear[ESP_FORMAT_F32][ESP_ACT_F32];
    uint32_t n = x->s->n_tok - r0 < ROWS ? x->s->n_tok - r0 : ROWS, rank = x->pair->a.n_out;
    const float *in = plan_value(p, x->l->op->a) + (size_t)(x->s->tok0 + r0) * x->pair->a.n_in;

    f32->product(&x->pair->a, in, n, 0, rank, x->t + (size_t)r0 * rank, rank);
    esp_cpu_watch_product(in, n * x->pair->a.n_in * sizeof *in, n, x->t + (size_t)r0 * rank, rank, rank);
}

static void expand(const struct thread *t, const struct site *x, uint32_t r0, uint32_t o0)
{
    const struct esp_linear *f32 = &t->p->dev->k.linear[ESP_FORMAT_F32][ESP_ACT_F32];
    uint32_t n = x->s->n_tok - r0 < ROWS ? x->s->n_tok - r0 : ROWS, rank = x->pair->a.n_out;
    uint32_t n_out = x->pair->b.n_out, m = n_out - o0 < OUTS ? n_out - o0 : OUTS;
    struct esp_weight rows = esp_weight_rows(&x->pair->b, o0, m);

    f32->product(&rows, x->t + (size_t)r0 * rank, n, 0, m, t->scratch, m);
    esp_cpu_watch_product(x->t + (size_t)r0 * rank, n * rank * sizeof *x->t, n, t->scratch, m, m);
    for (uint32_t r = 0; r < n; r++) {
        float *y = plan_value(t->p, x->l->op->out) + (size_t)(x->s->tok0 + r0 + r) * n_out + o0;

        for (uint32_t o = 0; o < m; o++)
            y[o] += x->scale * t->scratch[(size_t)r * m + o];
    }
}

/* Tasks of a level, all of one phase: row blocks (and output blocks when expanding) of every site. */
static void phase(const struct thread *t, const struct step *s, uint32_t level, bool expanding)
{
    const struct esp_plan *p = t->p;
    _Atomic uint32_t *counter = t->counter + 2 + 2 * level + expanding;
    uint32_t next = esp_task_next(counter), first = 0;

    for (uint32_t i = 0; i < p->batch->n_seq * s->n_linear; i++) {
        uint32_t outs, n;
        struct site x;

        if (!site_at(p, s, level, i, &x))
            continue;
        outs = expanding ? (x.pair->b.n_out + OUTS - 1) / OUTS : 1;
        n = (x.s->n_tok + ROWS - 1) / ROWS * outs;
        for (; next - first < n; next = esp_task_next(counter)) {
            uint32_t r0 = (next - first) / outs * ROWS, o0 = (next - first) % outs * OUTS;

            if (expanding)
                expand(t, &x, r0, o0);
            else
                shrink(p, &x, r0);
        }
        first += n;
    }
}

void esp_cpu_step_lora(const struct thread *t, const struct step *s)
{
    const struct esp_batch *b = t->p->batch;
    uint32_t levels = 0;

    for (uint32_t i = 0; i < b->n_seq; i++)
        levels = b->seqs[i].n_lora > levels ? b->seqs[i].n_lora : levels;
    for (uint32_t level = 0; level < levels; level++) {
        esp_pool_barrier(t->p->dev->pool); /* products, or the level before, are complete */
        phase(t, s, level, false);
        esp_pool_barrier(t->p->dev->pool);
        phase(t, s, level, true);
    }
}
