/*
 * The recurrent mixer: causal convolution and the gated delta rule on an open chunk. A task of the rule is
 * one key head of one sequence, with all value heads that share its keys; it walks the sequence's new rows in
 * order, cut at absolute multiples of ESP_CHUNK. The convolution is cut by channels. A state that is not kept
 * as f32 becomes f32 in scratch, one value head at a time, and is rounded again where its chunk closes.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { CONV_CHANNELS = 256 };      /* of one task */
static const float L2_EPS = 1e-6f; /* model reference: inside the square root of the q and k norms */

/* Keep the pre-convolution rows of channels [c0, c1): in the journal, or as the slot's new conv rows. */
static void keep_rows(const struct esp_plan *p, const struct esp_batch_seq *s, uint32_t layer, const float *x,
                      uint32_t c0, uint32_t c1)
{
    const struct esp_layout *l = &p->pools.layout;
    size_t n = (c1 - c0) * sizeof(float);
    float *tail = (float *)(void *)(plan_slot(p, s->slot, layer) + l->conv_off);

    if (s->journal != ESP_NO_JOURNAL) {
        float *j = (float *)p->pools.journals->host +
                   ((size_t)s->journal * l->n_delta + layer) * p->pools.journal_rows * l->conv_dim;

        for (uint32_t i = 0; i < s->n_tok; i++)
            memcpy(j + (size_t)i * l->conv_dim + c0, x + (size_t)i * l->conv_dim + c0, n);
        return;
    }
    for (uint32_t i = 0; i < ESP_CONV_TAPS - 1; i++) { /* row i of [old tail, new rows] moved down by n_tok */
        uint32_t from = i + s->n_tok;
        const float *src = from < ESP_CONV_TAPS - 1 ? tail + (size_t)from * l->conv_dim
                                                    : x + (size_t)(from - (ESP_CONV_TAPS - 1)) * l->conv_dim;

        memmove(tail + (size_t)i * l->conv_dim + c0, src + c0, n);
    }
}

void esp_cpu_op_conv(const struct thread *t, const struct esp_op *op)
{
    const struct esp_plan *p = t->p;
    const struct esp_layout *l = &p->pools.layout;
    uint32_t per = (l->conv_dim + CONV_CHANNELS - 1) / CONV_CHANNELS;
    uint32_t n_task = p->batch->n_seq * per;

    for (uint32_t i = esp_task_next(t->counter); i < n_task; i = esp_task_next(t->counter)) {
        const struct esp_batch_seq *s = &p->batch->seqs[i / per];
        uint32_t c0 = i % per * CONV_CHANNELS;
        uint32_t c1 = l->conv_dim - c0 < CONV_CHANNELS ? l->conv_dim : c0 + CONV_CHANNELS;
        const float *x = plan_value(p, op->a) + (size_t)s->tok0 * l->conv_dim;
        float *y = plan_value(p, op->out) + (size_t)s->tok0 * l->conv_dim;
        const float *tail = (const float *)(const void *)(plan_slot(p, s->slot, op->layer) + l->conv_off);

        p->dev->k.conv_silu(tail, l->conv_dim, x, l->conv_dim, s->n_tok, op->vec0, c0, c1, y, l->conv_dim);
        keep_rows(p, s, op->layer, x, c0, c1);
    }
}

size_t esp_cpu_delta_thread_floats(const struct esp_layout *l)
{
    const size_t state = l->state == ESP_RECURRENT_F32 ? 0 : (size_t)l->dv * l->dk;

    return l->n_delta ? (size_t)ESP_CHUNK * l->dk + state + ((esp_delta_scratch_floats() + 15) & ~(size_t)15)
                      : 0;
}

struct head { /* one key head of one sequence in one layer */
    const struct esp_op *op;
    const struct esp_batch_seq *s;
    uint32_t kh;
    uint8_t *slot; /* layer of the slot in use */
};

static uint8_t *slot_s(const struct esp_layout *l, uint8_t *slot, uint32_t vh)
{
    return slot + l->s_off + vh * l->s_head;
}

/* A stored state as f32: where it lies, or in scratch. */
static float *state_place(const struct thread *t, uint8_t *stored)
{
    const struct esp_layout *l = &t->p->pools.layout;

    return l->state == ESP_RECURRENT_F32 ? (float *)(void *)stored : t->scratch + (size_t)ESP_CHUNK * l->dk;
}

/* The kernel's view of value head vh: state (where it belongs, not read yet), open rows. */
static struct esp_delta view(const struct thread *t, const struct head *h, uint32_t vh)
{
    const struct esp_layout *l = &t->p->pools.layout;
    uint32_t vh_total = l->vh;
    struct esp_delta d = {.dk = l->dk,
                          .dv = l->dv,
                          .ld_k = l->dk,
                          .ld_u = l->dv,
                          .ld_g = 1,
                          .ld_q = l->dk,
                          .ld_v = l->conv_dim,
                          .ld_beta = 2 * (size_t)vh_total,
                          .ld_o = (size_t)vh_total * l->dv};

    d.s = state_place(t, slot_s(l, h->slot, vh));
    d.k = (float *)(void *)(h->slot + l->k_off) + (size_t)h->kh * ESP_CHUNK * l->dk;
    d.u = (float *)(void *)(h->slot + l->u_off) + (size_t)vh * ESP_CHUNK * l->dv;
    d.g = (float *)(void *)(h->slot + l->g_off) + (size_t)vh * ESP_CHUNK;
    return d;
}

/* Close the full chunk of every value head of h into slot `to`, and continue there. */
static void fold(const struct thread *t, struct head *h, uint8_t *to)
{
    const struct esp_plan *p = t->p;
    const struct esp_layout *l = &p->pools.layout;
    uint32_t rep = l->vh / l->kh;

    for (uint32_t r = 0; r < rep; r++) {
        struct esp_delta d = view(t, h, h->kh * rep + r);
        uint8_t *stored = slot_s(l, to, h->kh * rep + r);
        float *s = state_place(t, stored);

        if (l->state != ESP_RECURRENT_F32)
            esp_recurrent_resume(l->state, l->dv, l->dk, slot_s(l, h->slot, h->kh * rep + r), s);
        p->dev->k.delta_fold(&d, ESP_CHUNK, s);
        esp_watch_read(d.s, (size_t)l->dv * l->dk * sizeof *s);
        esp_watch_write(s, (size_t)l->dv * l->dk * sizeof *s);
        if (l->state != ESP_RECURRENT_F32)
            esp_recurrent_write(l->state, l->dv, l->dk, s, stored);
    }
    h->slot = to;
}

/* The sanitizer learns what delta_rows() read and wrote besides scratch. */
static void watch_rows(const struct esp_delta *d, bool state)
{
    const size_t before = d->row0, all = before + d->n_row;

    if (state)
        esp_watch_read(d->s, (size_t)d->dv * d->dk * sizeof *d->s);
    esp_watch_read(d->k, all * d->ld_k * sizeof *d->k);
    esp_watch_read(d->g, all * sizeof *d->g);
    esp_watch_read(d->u, before * d->ld_u * sizeof *d->u);
    esp_watch_write(d->u + before * d->ld_u, d->n_row * d->ld_u * sizeof *d->u);
    for (uint32_t j = 0; j < d->n_row; j++) {
        esp_watch_read(d->v + j * d->ld_v, d->dv * sizeof *d->v);
        esp_watch_read(d->beta + j * d->ld_beta, sizeof *d->beta);
        esp_watch_write(d->o + j * d->ld_o, d->dv * sizeof *d->o);
    }
}

/* Rows [i, i + n) of the sequence's new tokens, all within one chunk, at chunk row row0. */
static void rows_in_chunk(const struct thread *t, const struct head *h, uint32_t i, uint32_t n, uint32_t row0)
{
    const struct esp_plan *p = t->p;
    const struct esp_layout *l = &p->pools.layout;
    uint32_t rep = l->vh / l->kh, tok = h->s->tok0 + i;
    const float *c = plan_value(p, h->op->a) + (size_t)tok * l->conv_dim;
    const float *gates = plan_value(p, h->op->b) + (size_t)tok * 2 * l->vh;
    float *q = t->scratch, *s = q + (size_t)ESP_CHUNK * l->dk;
    float *kernel = l->state == ESP_RECURRENT_F32 ? s : s + (size_t)l->dv * l->dk;
    float scale = 1.0f / sqrtf((float)l->dk);

    for (uint32_t r = 0; r < rep; r++) {
        uint32_t vh = h->kh * rep + r;
        struct esp_delta d = view(t, h, vh);

        if (l->state != ESP_RECURRENT_F32)
            esp_recurrent_read(l->state, l->dv, l->dk, slot_s(l, h->slot, vh), s);
        for (uint32_t j = 0; j < n; j++) {
            const float *row = c + (size_t)j * l->conv_dim;

            if (r == 0) {
                p->dev->k.l2norm(row + h->kh * l->dk, L2_EPS, scale, q + (size_t)j * l->dk, l->dk);
                p->dev->k.l2norm(row + (l->kh + h->kh) * l->dk, L2_EPS, 1.0f,
                                 d.k + (size_t)(row0 + j) * l->dk, l->dk);
            }
            d.g[row0 + j] = gates[(size_t)j * 2 * l->vh + l->vh + vh];
        }
        d.row0 = row0;
        d.n_row = n;
        d.q = q;
        d.v = c + 2 * (size_t)l->kh * l->dk + (size_t)vh * l->dv;
        d.beta = gates + vh;
        d.o = plan_value(p, h->op->out) + (size_t)tok * l->vh * l->dv + (size_t)vh * l->dv;
        p->dev->k.delta_rows(&d, kernel);
        watch_rows(&d, l->state == ESP_RECURRENT_F32);
    }
}

static void run_head(const struct thread *t, struct head *h)
{
    const struct esp_plan *p = t->p;
    const struct esp_batch_seq *s = h->s;
    uint32_t base = s->base;

    for (uint32_t i = 0; i < s->n_tok;) {
        uint32_t pos = s->n + i, n;

        if (pos - base == ESP_CHUNK) { /* rows before s->n are committed: their chunk closes in place */
            fold(t, h, plan_slot(p, i == 0 ? s->slot : s->slot_next, h->op->layer));
            base = pos;
        }
        n = ESP_CHUNK - (pos - base);
        if (n > s->n_tok - i)
            n = s->n_tok - i;
        rows_in_chunk(t, h, i, n, pos - base);
        i += n;
    }
}

void esp_cpu_op_delta(const struct thread *t, const struct esp_op *op)
{
    const struct esp_plan *p = t->p;
    uint32_t kh = p->pools.layout.kh, n_task = p->batch->n_seq * kh;

    for (uint32_t i = esp_task_next(t->counter); i < n_task; i = esp_task_next(t->counter)) {
        struct head h = {.op = op, .s = &p->batch->seqs[i / kh], .kh = i % kh};

        h.slot = plan_slot(p, h.s->slot, op->layer);
        run_head(t, &h);
    }
}
