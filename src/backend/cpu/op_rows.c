/*
 * Ops that treat every row alone: embedding, norms, rotation, gates, sums. Tasks are ranges of rows; where a
 * row has heads, ranges of (row, head).
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

static void embed(const struct esp_plan *p, const struct esp_op *op, uint32_t i)
{
    const struct esp_format *f = esp_format_get(op->w->format);

    f->decode(op->w, (size_t)p->batch->ids[i], 0, op->w->n_in,
              plan_value(p, op->out) + (size_t)i * op->w->n_in);
}

static void head_rope(const struct esp_plan *p, const struct esp_op *op, uint32_t i)
{
    const struct esp_kernels *k = &p->dev->k;
    uint32_t head_dim = p->tape->values[op->out].width / op->n_head;
    uint32_t n_half = p->tape->rope.n_half, row = i / op->n_head, h = i % op->n_head;
    const float *x = plan_value(p, op->a) + ((size_t)row * op->n_head + h) * op->stride;
    float *y = plan_value(p, op->out) + (size_t)i * head_dim;
    const float *cs = plan_rope(p, row);

    k->rmsnorm(x, op->vec0, op->eps, y, head_dim);
    if (n_half)
        k->rope(y, cs, cs + n_half, n_half);
    if (op->scale == 1.0f)
        return;
    for (uint32_t j = 0; j < head_dim; j++)
        y[j] *= op->scale;
}

static void head_gate(const struct esp_plan *p, const struct esp_op *op, uint32_t i)
{
    uint32_t head_dim = p->tape->values[op->out].width / op->n_head;
    const float *gate = plan_value(p, op->b) + (size_t)i * op->stride + head_dim;
    float *y = plan_value(p, op->out) + (size_t)i * head_dim;

    memcpy(y, plan_value(p, op->a) + (size_t)i * head_dim, head_dim * sizeof *y);
    p->dev->k.sigmoid_mul(y, gate, head_dim);
}

static void gates(const struct esp_plan *p, const struct esp_op *op, uint32_t i)
{
    uint32_t n = p->tape->values[op->a].width;
    float *y = plan_value(p, op->out) + (size_t)i * 2 * n;

    p->dev->k.delta_gates(plan_value(p, op->a) + (size_t)i * n, plan_value(p, op->b) + (size_t)i * n,
                          op->vec0, op->vec1, y, y + n, n);
}

static void gated_norm(const struct esp_plan *p, const struct esp_op *op, uint32_t i)
{
    uint32_t n = p->tape->values[op->out].width / op->n_head;

    p->dev->k.gated_norm(plan_value(p, op->a) + (size_t)i * n, plan_value(p, op->b) + (size_t)i * n, op->vec0,
                         op->eps, plan_value(p, op->out) + (size_t)i * n, n);
}

static void concat(const struct esp_plan *p, const struct esp_op *op, uint32_t i, float *y)
{
    size_t na = p->tape->values[op->a].width, nb = p->tape->values[op->b].width;

    memcpy(y, plan_value(p, op->a) + i * na, na * sizeof *y);
    memcpy(y + na, plan_value(p, op->b) + i * nb, nb * sizeof *y);
}

/* One row of an op without heads. */
static void plain_row(const struct esp_plan *p, const struct esp_op *op, uint32_t i)
{
    const struct esp_kernels *k = &p->dev->k;
    size_t n = p->tape->values[op->out].width;
    float *y = plan_value(p, op->out) + i * n;
    const float *a = op->a != ESP_NO_VAL ? plan_value(p, op->a) : NULL;

    switch (op->kind) {
    case ESP_OP_RMSNORM:
        k->rmsnorm(a + i * n, op->vec0, op->eps, y, n);
        break;
    case ESP_OP_ADD:
        memcpy(y, a + i * n, n * sizeof *y);
        k->add(y, plan_value(p, op->b) + i * n, n);
        break;
    case ESP_OP_INPUT:
        memcpy(y, p->batch->input + i * n, n * sizeof *y);
        break;
    case ESP_OP_CONCAT:
        concat(p, op, i, y);
        break;
    case ESP_OP_SWIGLU:
        k->swiglu(a + i * n, plan_value(p, op->b) + i * n, y, n);
        break;
    default: /* GATHER */
        memcpy(y, a + (size_t)p->batch->out_rows[i] * n, n * sizeof *y);
        break;
    }
}

static void one(const struct esp_plan *p, const struct esp_op *op, uint32_t i)
{
    switch (op->kind) {
    case ESP_OP_EMBED:
        embed(p, op, i);
        break;
    case ESP_OP_HEAD_ROPE:
        head_rope(p, op, i);
        break;
    case ESP_OP_HEAD_GATE:
        head_gate(p, op, i);
        break;
    case ESP_OP_GATES:
        gates(p, op, i);
        break;
    case ESP_OP_GATED_NORM:
        gated_norm(p, op, i);
        break;
    default:
        plain_row(p, op, i);
        break;
    }
}

/* The wanted hidden rows leave the plan; the value stays. */
void esp_cpu_op_hidden(const struct thread *t, const struct esp_op *op)
{
    const struct esp_batch *b = t->p->batch;
    size_t n = t->p->tape->values[op->a].width;

    if (b->hidden && t->tid == 0)
        memcpy(b->hidden, plan_value(t->p, op->a), b->n_tok * n * sizeof *b->hidden);
}

void esp_cpu_op_rows(const struct thread *t, const struct esp_op *op)
{
    bool per_head =
        op->kind == ESP_OP_HEAD_ROPE || op->kind == ESP_OP_HEAD_GATE || op->kind == ESP_OP_GATED_NORM;
    uint32_t n = plan_rows(t->p, op->out) * (per_head ? op->n_head : 1);
    uint32_t grain = n / (t->n_thread * 4) + 1, n_task = (n + grain - 1) / grain;

    for (uint32_t i = esp_task_next(t->counter); i < n_task; i = esp_task_next(t->counter)) {
        uint32_t end = n - i * grain < grain ? n : (i + 1) * grain;

        for (uint32_t j = i * grain; j < end; j++)
            one(t->p, op, j);
    }
}

/* Cosines and sines of every token of the step; rows are shared out by thread number. */
void esp_cpu_rope_table(const struct thread *t)
{
    const struct esp_rope *r = &t->p->tape->rope;

    for (uint32_t i = t->tid; i < t->p->batch->n_tok; i += t->n_thread) {
        float *cs = plan_rope(t->p, i);

        for (uint32_t j = 0; j < r->n_half; j++) {
            float angle = r->freq[j] * (float)t->p->batch->pos[i][r->axis[j]];

            cs[j] = cosf(angle) * r->mscale;
            cs[r->n_half + j] = sinf(angle) * r->mscale;
        }
    }
}
