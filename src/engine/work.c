/*
 * Counting what a step computes, from the tape. Only what grows with the model's matrices counts; norms,
 * gates and activations are a per cent beside them.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/engine.h"

enum { PER_PRODUCT = 2 }; /* a multiplication and an addition */

static double product(const struct esp_weight *w)
{
    return (double)PER_PRODUCT * w->n_out * w->n_in;
}

/*
 * The recurrence of one row and head: S k, the outer product of delta and k, S q. Chunks
 * (doc/determinism.md) replace these by products of about the same size.
 */
static double recurrence(const struct esp_layout *l)
{
    return 3.0 * PER_PRODUCT * l->vh * l->dk * l->dv;
}

esp_status esp_engine_work(const esp_model *m, const esp_engine_opts *opts, esp_work *out, esp_error *err)
{
    const struct esp_tape *t = &m->net->tape;
    struct esp_engine_shape shape;
    esp_engine_opts o;
    esp_work w = {0};

    ESP_TRY(esp_engine_resolve(m, opts, &o, err));
    ESP_TRY(esp_engine_shape(m, &o, &shape, err));
    for (uint32_t i = 0; i < t->n_op; i++) {
        const struct esp_op *op = &t->ops[i];

        switch (op->kind) {
        case ESP_OP_LINEAR:
            w.token[esp_cpu_act(&shape.plan, op->w->format)] += product(op->w);
            break;
        case ESP_OP_LOGITS:
            w.output[esp_cpu_act(&shape.plan, op->w->format)] += product(op->w);
            break;
        case ESP_OP_CONV:
            w.other += (double)PER_PRODUCT * ESP_CONV_TAPS * t->values[op->out].width;
            break;
        case ESP_OP_DELTA:
            w.other += recurrence(&shape.layout);
            break;
        case ESP_OP_ATTEND: /* scores and weighted values */
            w.position += 2.0 * PER_PRODUCT * t->values[op->out].width;
            break;
        default:
            break;
        }
    }
    *out = w;
    return ESP_OK;
}
