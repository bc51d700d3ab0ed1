/*
 * Steps of few rows that one kernel does with those that follow, found when a plan is made and used where the
 * shape of a batch allows it. A kernel's launch and its way to memory and back are most of what a small op
 * costs, so what is done to an output value by value is done where it is made. Values in between are not
 * written then; a tapped step walks the plain way. The bits are the same.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/cuda.h"
#include "backend/cuda/plugin/stream.h"

/* ---- finding ---- */

/* Whether value v is read by op `by` alone. */
static bool only_for(const struct esp_plan *p, esp_val v, uint32_t by)
{
    for (uint32_t i = 0; i < p->tape->n_op; i++)
        if (i != by && (p->tape->ops[i].a == v || p->tape->ops[i].b == v))
            return false;
    return true;
}

/* The op of step i when it is a single one of that kind, else NULL. */
static const struct esp_op *single(const struct esp_plan *p, uint32_t i, enum esp_op_kind kind)
{
    const struct esp_op *op;

    if (i >= p->n_step || p->steps[i].kind != CUDA_STEP_OP)
        return NULL;
    op = &p->tape->ops[p->steps[i].op];
    return op->kind == kind ? op : NULL;
}

static bool makes(const struct esp_plan *p, const struct cuda_step *s, esp_val v)
{
    for (uint32_t i = 0; i < s->n_op; i++)
        if (p->tape->ops[s->op + i].out == v)
            return true;
    return false;
}

static bool streams(const struct esp_plan *p, const struct cuda_step *s)
{
    for (uint32_t i = 0; i < s->n_op; i++) {
        const struct cu_weight w = cuda_weight_describe(p->tape->ops[s->op + i].w);

        if (!cu_stream_takes(&w, p->n_term))
            return false;
    }
    return p->dev->tiled && s->n_op <= CU_MAX_LINEAR;
}

static bool mixer_in(const struct esp_plan *p, uint32_t i)
{
    const struct esp_op *conv = single(p, i + 1, ESP_OP_CONV), *gates = single(p, i + 2, ESP_OP_GATES);
    const struct cuda_step *s = &p->steps[i];

    return conv && gates && gates->a != gates->b && makes(p, s, conv->a) && makes(p, s, gates->a) &&
           makes(p, s, gates->b) && only_for(p, conv->a, s[1].op) && only_for(p, gates->a, s[2].op) &&
           only_for(p, gates->b, s[2].op);
}

/* Whether value v is read by step `by` alone. */
static bool only_for_step(const struct esp_plan *p, esp_val v, const struct cuda_step *by)
{
    for (uint32_t i = 0; i < p->tape->n_op; i++)
        if ((i < by->op || i >= by->op + by->n_op) && (p->tape->ops[i].a == v || p->tape->ops[i].b == v))
            return false;
    return true;
}

static bool gated(const struct esp_plan *p, uint32_t i)
{
    const struct cuda_step *s = &p->steps[i];
    const struct esp_op *swiglu = single(p, i + 1, ESP_OP_SWIGLU), *ops = &p->tape->ops[s->op];

    if (!swiglu || i + 2 >= p->n_step || s->n_op != 2 || !s[1].emit || !s[2].streams)
        return false;
    if (swiglu->a != ops[0].out || swiglu->b != ops[1].out || ops[0].w->format != ops[1].w->format)
        return false;
    return only_for(p, swiglu->a, s[1].op) && only_for(p, swiglu->b, s[1].op) && swiglu->a != swiglu->b &&
           only_for_step(p, swiglu->out, &s[2]);
}

static bool delta(const struct esp_plan *p, uint32_t i)
{
    const struct esp_op *rule = single(p, i, ESP_OP_DELTA), *norm = single(p, i + 1, ESP_OP_GATED_NORM);
    const struct esp_layout *l = &p->pools.layout;
    const struct cu_delta d = {.dk = l->dk, .dv = l->dv};

    return norm && norm->a == rule->out && only_for(p, rule->out, p->steps[i + 1].op) &&
           norm->n_head == l->vh && cu_delta_one_takes(&d);
}

static bool append(const struct esp_plan *p, uint32_t i)
{
    const struct esp_op *q = single(p, i, ESP_OP_HEAD_ROPE), *k = single(p, i + 1, ESP_OP_HEAD_ROPE),
                        *put = single(p, i + 2, ESP_OP_KV_APPEND);
    const uint32_t dim = p->pools.layout.head_dim;

    return k && put && put->a == k->out && k->n_head == p->pools.layout.n_kv_head &&
           plan_width(p, q->out) / q->n_head == dim && plan_width(p, k->out) / k->n_head == dim && dim <= 512;
}

static bool attend(const struct esp_plan *p, uint32_t i)
{
    const struct esp_op *a = single(p, i, ESP_OP_ATTEND), *gate = single(p, i + 1, ESP_OP_HEAD_GATE);
    const uint32_t dim = p->pools.layout.head_dim;

    return gate && gate->a == a->out && only_for(p, a->out, p->steps[i + 1].op) && dim % 32 == 0 &&
           dim <= 512;
}

static enum cuda_fuse fuse_of(const struct esp_plan *p, uint32_t i)
{
    if (p->steps[i].streams)
        return mixer_in(p, i) ? CUDA_FUSE_MIXER_IN : gated(p, i) ? CUDA_FUSE_GATED : CUDA_FUSE_NONE;
    if (single(p, i, ESP_OP_DELTA))
        return delta(p, i) ? CUDA_FUSE_DELTA : CUDA_FUSE_NONE;
    if (single(p, i, ESP_OP_HEAD_ROPE))
        return append(p, i) ? CUDA_FUSE_APPEND : CUDA_FUSE_NONE;
    if (single(p, i, ESP_OP_ATTEND))
        return attend(p, i) ? CUDA_FUSE_ATTEND : CUDA_FUSE_NONE;
    return CUDA_FUSE_NONE;
}

void cuda_fuse(struct esp_plan *p)
{
    for (uint32_t i = 0; i < p->n_step; i++)
        p->steps[i].streams = p->steps[i].kind == CUDA_STEP_LINEAR && streams(p, &p->steps[i]);
    for (uint32_t i = 0; i < p->n_step; i++) {
        p->steps[i].fuse = fuse_of(p, i);
        if (p->steps[i].fuse == CUDA_FUSE_GATED)
            p->steps[i + 2].gated = true;
    }
}

/* ---- starting ---- */

struct cu_act cuda_gated_act(const struct esp_plan *p, uint32_t n_in)
{
    uint8_t *at = p->scratch + p->gated_off, *sums = at + p->n_term * p->gated_term;
    struct cu_act a = {.sums = (void *)sums,
                       .more = (void *)(sums + p->gated_sums),
                       .ld = (n_in + 127) / 128 * 128,
                       .max_row = CU_STREAM_ROWS,
                       .n_term = p->n_term};

    for (uint32_t i = 0; i < p->n_term; i++)
        a.t[i] = (void *)(at + i * p->gated_term);
    return a;
}

bool cuda_gates_together(const struct esp_plan *p, uint32_t n_row)
{
    return p->gated_bytes && n_row <= CU_STREAM_ROWS;
}

static struct cu_batch batch_of(const struct esp_plan *p, const struct cu_shape *h)
{
    struct cu_batch b = p->on_device;

    b.n_seq = h->n_seq;
    return b;
}

/* The products of one format of step s; order: where there are two formats. Without early starts it means
 * nothing. */
static void one_format(const struct esp_plan *p, const struct cuda_step *s, uint32_t format,
                       const struct cu_finish *finish, const struct cu_shape *h, enum cu_stream_order order)
{
    const struct esp_op *ops = &p->tape->ops[s->op];
    const struct cu_act act = cuda_act_of(p, plan_width(p, ops[0].a), h->n_tok, true);
    const uint32_t layer = p->tape->ops[s[1].op].layer;
    struct cu_stream k = {
        .order = order, .l = cuda_linears_of(p), .d = cuda_delta_of(p, layer), .b = batch_of(p, h)};

    for (uint32_t i = 0; i < s->n_op; i++)
        if (p->weights[s->op + i]->w.format == format) {
            k.finish[k.l.n] = finish[i];
            k.l.w[k.l.n++] = p->weights[s->op + i]->w;
        }
    if (k.l.n)
        cu_stream_run(p->dev->stream, &k, &act, h->n_tok);
}

static bool of_both_formats(const struct esp_plan *p, const struct cuda_step *s)
{
    for (uint32_t i = 1; i < s->n_op; i++)
        if (p->weights[s->op + i]->w.format != p->weights[s->op]->w.format)
            return true;
    return false;
}

static void start_mixer_in(const struct esp_plan *p, uint32_t i, const struct cu_shape *h)
{
    const struct cuda_step *s = &p->steps[i];
    const struct esp_op *ops = &p->tape->ops[s->op], *conv = &p->tape->ops[s[1].op],
                        *gates = &p->tape->ops[s[2].op];
    struct cu_finish finish[CU_MAX_LINEAR];

    if (s->prepare) {
        const uint32_t n_in = plan_width(p, ops[0].a);
        const struct cu_act act = cuda_act_of(p, n_in, h->n_tok, true);

        cu_prepare(p->dev->stream, plan_value(p, ops[0].a), n_in, h->n_tok, &act);
    }
    for (uint32_t j = 0; j < s->n_op; j++) {
        struct cu_finish *f = &finish[j];

        *f = (struct cu_finish){.kind = CU_STORE, .y = plan_value(p, ops[j].out)};
        if (ops[j].out == conv->a)
            *f = (struct cu_finish){.kind = CU_CONV, .v0 = p->vec0[s[1].op], .y = plan_value(p, conv->out)};
        else if (ops[j].out == gates->a)
            *f = (struct cu_finish){.kind = CU_STRENGTH, .y = plan_value(p, gates->out)};
        else if (ops[j].out == gates->b)
            *f = (struct cu_finish){.kind = CU_DECAY,
                                    .v0 = p->vec0[s[2].op],
                                    .v1 = p->vec1[s[2].op],
                                    .y = plan_value(p, gates->out)};
    }
    const bool both = of_both_formats(p, s);

    one_format(p, s, CU_Q4, finish, h, both ? CU_STREAM_FIRST : CU_STREAM_ALONE);
    one_format(p, s, CU_BF16, finish, h, both ? CU_STREAM_BESIDE : CU_STREAM_ALONE);
}

static void start_gated(const struct esp_plan *p, uint32_t i, const struct cu_shape *h, uint32_t n_row)
{
    const struct cuda_step *s = &p->steps[i];
    const struct esp_op *ops = &p->tape->ops[s->op];
    const uint32_t n_in = plan_width(p, ops[0].a);
    const struct cu_act act = cuda_act_of(p, n_in, n_row, true);
    struct cu_stream k = {.l = cuda_linears_of(p),
                          .b = batch_of(p, h),
                          .swiglu = 1,
                          .gated = cuda_gated_act(p, plan_width(p, ops[0].out))};

    if (s->prepare)
        cu_prepare(p->dev->stream, plan_value(p, ops[0].a), n_in, n_row, &act);
    for (; k.l.n < 2; k.l.n++)
        k.l.w[k.l.n] = p->weights[s->op + k.l.n]->w;
    cu_stream_run(p->dev->stream, &k, &act, n_row);
}

static void start_delta(const struct esp_plan *p, uint32_t i, const struct cu_shape *h)
{
    const struct cuda_step *s = &p->steps[i];
    const struct esp_op *rule = &p->tape->ops[s->op], *norm = &p->tape->ops[s[1].op];
    const struct cu_delta d = cuda_delta_of(p, rule->layer);
    const struct cu_batch b = batch_of(p, h);
    const struct cu_delta_norm n = {.z = plan_value(p, norm->b),
                                    .gamma = p->vec0[s[1].op],
                                    .y = plan_value(p, norm->out),
                                    .eps = norm->eps,
                                    .act = cuda_act_of(p, plan_width(p, norm->out), h->n_tok, s[1].emit)};

    cu_delta_one(p->dev->stream, &d, plan_value(p, rule->a), plan_value(p, rule->b), &n, &b);
}

static void start_append(const struct esp_plan *p, uint32_t i, const struct cu_shape *h)
{
    const struct cuda_step *s = &p->steps[i];
    const struct esp_op *q = &p->tape->ops[s->op], *k = &p->tape->ops[s[1].op], *put = &p->tape->ops[s[2].op];
    const struct cu_batch b = batch_of(p, h);
    const struct cu_append a = {.kv = cuda_kv_of(p, put->layer),
                                .rope = p->rope,
                                .q_heads = cuda_heads_of(p, q),
                                .q = plan_value(p, q->a),
                                .k = plan_value(p, k->a),
                                .v = plan_value(p, put->b),
                                .q_gamma = p->vec0[s->op],
                                .k_gamma = p->vec0[s[1].op],
                                .q_out = plan_value(p, q->out),
                                .k_out = plan_value(p, k->out),
                                .q_eps = q->eps,
                                .k_eps = k->eps,
                                .q_scale = q->scale,
                                .k_scale = k->scale,
                                .k_stride = k->stride};

    cu_rope_append(p->dev->stream, &a, &b, h->n_tok);
}

static void start_attend(const struct esp_plan *p, uint32_t i, const struct cu_shape *h)
{
    const struct cuda_step *s = &p->steps[i];
    const struct esp_op *gate = &p->tape->ops[s[1].op];
    const struct cu_act act = cuda_act_of(p, plan_width(p, gate->out), h->n_tok, s[1].emit);
    const struct cu_batch b = batch_of(p, h);
    struct cu_attention a = cuda_attention_of(p, &p->tape->ops[s->op]);

    cu_attend_spans(p->dev->stream, &a, &b, h);
    a.y = plan_value(p, gate->out);
    cu_merge_gate(p->dev->stream, &a, &b, h->n_tok, plan_value(p, gate->b), gate->stride, &act);
}

/* Whether rows of one sequence in a step, which a journal takes, meet in one block of its products. */
static bool windows(const struct esp_plan *p, const struct cuda_step *s, const struct cu_shape *h)
{
    return h->journals && plan_width(p, p->tape->ops[s->op].a) <= CU_STREAM_WHOLE;
}

uint32_t cuda_launch_fused(const struct esp_plan *p, uint32_t i, const struct cu_shape *h)
{
    const struct cuda_step *s = &p->steps[i];
    const bool decode = h->max_seq_tok == 1 && h->n_tok == h->n_seq;
    const uint32_t n_row = s->fuse ? cuda_rows_of(p, p->tape->ops[s->op].a, h) : 0;

    if (n_row == 0)
        return 0;
    switch (s->fuse) {
    case CUDA_FUSE_MIXER_IN:
        if (!(decode || windows(p, s, h)) || n_row > CU_STREAM_ROWS)
            return 0;
        start_mixer_in(p, i, h);
        return 3;
    case CUDA_FUSE_GATED:
        if (!cuda_gates_together(p, n_row))
            return 0;
        start_gated(p, i, h, n_row);
        return 2;
    case CUDA_FUSE_DELTA:
        if (!decode || h->crosses)
            return 0;
        start_delta(p, i, h);
        return 2;
    case CUDA_FUSE_APPEND:
        start_append(p, i, h);
        return 3;
    case CUDA_FUSE_ATTEND:
        if (h->n_tok > CU_SPLIT_TOKENS)
            return 0;
        start_attend(p, i, h);
        return 2;
    default:
        return 0;
    }
}
