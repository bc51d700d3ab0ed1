/*
 * From a step of a plan to kernels on the stream. Everything that changes from step to step is read by the
 * kernels from the batch in device memory; arguments depend on the plan and the step's shape alone, so a
 * captured graph can be replayed for every step of that shape.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/cuda.h"
#include "backend/cuda/plugin/stream.h"
#include "backend/cuda/plugin/wide.h"

uint32_t cuda_rows_of(const struct esp_plan *p, esp_val v, const struct cu_shape *h)
{
    return p->tape->values[v].rows == ESP_ROWS_TOKEN ? h->n_tok : h->n_out;
}

struct cu_act cuda_act_of(const struct esp_plan *p, uint32_t n_in, uint32_t n_row, bool wanted)
{
    uint8_t *at = p->scratch + p->act_off;
    const uint32_t planes = p->n_term > p->n_coded ? p->n_term : p->n_coded;
    struct cu_act a = {.sums = (void *)(at + planes * p->act_term),
                       .ld = (n_in + 127) / 128 * 128,
                       .max_row = p->act_rows,
                       .n_term = wanted ? p->n_term : 0,
                       .wide = p->dev->wide && n_row > CU_FEW_ROWS};

    for (uint32_t i = 0; i < planes; i++)
        a.t[i] = (void *)(at + i * p->act_term);
    return a;
}

/* The same memory in the form for coded weights. */
static struct cu_act coded_act_of(const struct esp_plan *p, uint32_t n_in, uint32_t n_row)
{
    struct cu_act a = cuda_act_of(p, n_in, n_row, true);

    a.n_term = p->n_coded;
    return a;
}

/* ---- products
 * ------------------------------------------------------------------------------------------------------- */

typedef void (*product_fn)(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x,
                           uint32_t n_row);

static product_fn product_of(uint32_t format)
{
    switch (format) {
    case CU_BF16:
        return cu_linear_bf16;
    case CU_Q2:
        return cu_linear_q2;
    case CU_Q4:
        return cu_linear_q4;
    case CU_Q8:
        return cu_linear_q8;
    default:
        return NULL; /* dense */
    }
}

/* Rows [row0, row0 + n_row) of the step's input through the weights of one kernel family. */
static void flush(const struct esp_plan *p, struct cu_linears *l, const struct cu_act *act, const float *x,
                  uint32_t n_row)
{
    bool streams = p->dev->tiled && n_row <= CU_STREAM_ROWS && !act->wide;
    product_fn f;

    if (l->n == 0)
        return;
    for (uint32_t i = 0; i < l->n; i++)
        streams = streams && cu_stream_takes(&l->w[i], act->n_term);
    f = product_of(l->w[0].format);
    if (streams) {
        struct cu_stream k = {.l = *l};

        for (uint32_t i = 0; i < l->n; i++)
            k.finish[i] = (struct cu_finish){.kind = CU_STORE, .y = l->y[i]};
        cu_stream_run(p->dev->stream, &k, act, n_row);
    } else if (f)
        f(p->dev->stream, l, act, n_row);
    else
        cu_linear_dense(p->dev->stream, l, x, n_row);
    l->n = 0;
}

struct cu_linears cuda_linears_of(const struct esp_plan *p)
{
    return (struct cu_linears){.tiled = p->dev->tiled,
                               .early = p->dev->early,
                               .n_multiprocessor = p->dev->n_multiprocessor,
                               .parts = (float *)(void *)(p->scratch + p->spread_off),
                               .parts_bytes = p->spread_bytes};
}

static bool same_family(const struct cu_weight *a, const struct cu_weight *b)
{
    if (a->format == CU_CODED || b->format == CU_CODED)
        return a->format == b->format && a->axis && b->axis && a->bits == b->bits;
    return product_of(a->format) == product_of(b->format);
}

static void coded(const struct esp_plan *p, struct cu_linears *l, const struct cu_act *act, uint32_t n_row)
{
    if (l->n)
        cu_linear_coded(p->dev->stream, l, act, n_row, p->scratch + p->expand_off, p->expand_bytes);
    l->n = 0;
}

/*
 * The step's products with coded weights, after all others: they put the input into a form of their own where
 * the others' form lies. Along axis 1 one serves all, along axis 0 it is the weight's own.
 */
static void coded_products(const struct esp_plan *p, const struct cuda_step *s, const float *x, uint32_t n_in,
                           uint32_t n_row)
{
    const struct cu_act act = coded_act_of(p, n_in, n_row);
    bool done[CUDA_MAX_GROUP] = {false}, prepared = false;

    for (uint32_t i = 0; i < s->n_op; i++) {
        const struct cu_weight *first = &p->weights[s->op + i]->w;
        struct cu_linears l = cuda_linears_of(p);

        if (done[i] || first->format != CU_CODED)
            continue;
        if (!first->axis || !prepared)
            cu_prepare_coded(p->dev->stream, x, n_in, n_row, first, &act);
        prepared = first->axis;
        for (uint32_t j = i; j < s->n_op; j++) {
            const struct cu_weight *w = &p->weights[s->op + j]->w;

            if (done[j] || (j != i && !same_family(w, first)))
                continue;
            done[j] = true;
            l.w[l.n] = *w;
            l.y[l.n++] = plan_value(p, p->tape->ops[s->op + j].out);
            if (l.n == CU_MAX_LINEAR)
                coded(p, &l, &act, n_row);
        }
        coded(p, &l, &act, n_row);
    }
}

/* together: gate and up may have been done with what follows them. */
static void products(const struct esp_plan *p, const struct cuda_step *s, const struct cu_shape *h,
                     bool together)
{
    const struct esp_op *ops = p->tape->ops + s->op;
    uint32_t n_row = cuda_rows_of(p, ops[0].a, h), n_in = plan_width(p, ops[0].a);
    const float *x = plan_value(p, ops[0].a);
    const struct cu_act act = s->gated && together && cuda_gates_together(p, n_row)
                                  ? cuda_gated_act(p, n_in)
                                  : cuda_act_of(p, n_in, n_row, true);
    bool done[CUDA_MAX_GROUP] = {false};

    if (n_row == 0)
        return;
    if (s->prepare)
        cu_prepare(p->dev->stream, x, n_in, n_row, &act);
    /*
     * Weights of equal format share a launch. The last op's format goes first: small plain gates stand last,
     * and a large product that follows can fetch its first weights meanwhile.
     */
    for (uint32_t i = s->n_op; i-- > 0;) {
        struct cu_linears l = cuda_linears_of(p);

        for (uint32_t j = 0; j < s->n_op; j++) {
            const struct cu_weight *w = &p->weights[s->op + j]->w;

            if (done[j] || w->format == CU_CODED || !same_family(w, &p->weights[s->op + i]->w))
                continue;
            done[j] = true;
            l.w[l.n] = *w;
            l.y[l.n++] = plan_value(p, ops[j].out);
            if (l.n == CU_MAX_LINEAR)
                flush(p, &l, &act, x, n_row);
        }
        flush(p, &l, &act, x, n_row);
    }
    coded_products(p, s, x, n_in, n_row);
}

void cuda_launch_logits(const struct esp_plan *p, const struct cuda_step *s, uint32_t row0, uint32_t n_row,
                        uint32_t n_out)
{
    const struct esp_op *op = &p->tape->ops[s->op];
    uint32_t n_in = plan_width(p, op->a);
    const float *x = plan_value(p, op->a) + (size_t)row0 * n_in;
    struct cu_act act = cuda_act_of(p, n_in, n_out, true);
    struct cu_linears l = cuda_linears_of(p);

    l.n = 1;
    l.w[0] = p->weights[s->op]->w;
    l.y[0] = (float *)(void *)(p->scratch + p->logits_off);
    if (l.w[0].format == CU_CODED) {
        act = coded_act_of(p, n_in, n_row);
        cu_prepare_coded(p->dev->stream, x, n_in, n_row, &l.w[0], &act);
        coded(p, &l, &act, n_row);
        return;
    }
    for (uint32_t i = 0; i < p->n_term; i++)
        act.t[i] += (size_t)row0 * act.ld; /* in wide order too: row0 is a multiple of its tiles */
    act.sums += act.wide ? cu_wide_sum(act.ld, row0, 0) : row0;
    if (s->prepare)
        cu_prepare(p->dev->stream, x, n_in, n_row, &act);
    flush(p, &l, &act, x, n_row);
}

/* ---- single ops
 * ------------------------------------------------------------------------------------------------------ */

struct cu_kv cuda_kv_of(const struct esp_plan *p, uint32_t layer)
{
    const struct esp_layout *l = &p->pools.layout;
    const struct esp_layout_kv *a = &l->layers[layer];
    struct cu_kv kv = {.pages = cuda_mem(p->pools.pages),
                       .page_bytes = l->page_bytes,
                       .layer_off = a->off,
                       .row = {a->k_row, a->v_row},
                       .n_kv = l->n_kv_head,
                       .dim = l->head_dim,
                       .bf16 = a->scheme.kind == ESP_KV_KIND_BF16};

    cuda_kv_code(p, layer, &kv.code);
    return kv;
}

struct cu_delta cuda_delta_of(const struct esp_plan *p, uint32_t layer)
{
    const struct esp_layout *l = &p->pools.layout;

    return (struct cu_delta){.slots = cuda_mem(p->pools.slots),
                             .journals =
                                 p->pools.journals ? (float *)(void *)cuda_mem(p->pools.journals) : NULL,
                             .slot_bytes = l->slot_bytes,
                             .layer_off = layer * l->slot_layer,
                             .s_off = l->s_off,
                             .k_off = l->k_off,
                             .u_off = l->u_off,
                             .g_off = l->g_off,
                             .conv_off = l->conv_off,
                             .kh = l->kh,
                             .vh = l->vh,
                             .dk = l->dk,
                             .dv = l->dv,
                             .conv_dim = l->conv_dim,
                             .n_delta = l->n_delta,
                             .layer = layer,
                             .journal_rows = p->pools.journal_rows,
                             .work = (float *)(void *)(p->scratch + p->delta_off),
                             .work_tok = cuda_work_tok(p)};
}

struct cu_heads cuda_heads_of(const struct esp_plan *p, const struct esp_op *op)
{
    return (struct cu_heads){
        .n_head = op->n_head, .stride = op->stride, .dim = plan_width(p, op->out) / op->n_head};
}

struct cu_attention cuda_attention_of(const struct esp_plan *p, const struct esp_op *op)
{
    return (struct cu_attention){.kv = cuda_kv_of(p, op->layer),
                                 .q = plan_value(p, op->a),
                                 .y = plan_value(p, op->out),
                                 .parts = (float *)(void *)(p->scratch + p->parts_off),
                                 .n_head = op->n_head,
                                 .part_spans = p->part_spans,
                                 .n_term = p->opts.act_auto || p->n_term == 1 ? 1 : 2};
}

static void mixer_op(const struct esp_plan *p, uint32_t i, const struct cu_shape *h)
{
    const struct esp_op *op = &p->tape->ops[i];
    const struct cu_batch *b = &p->on_device;
    struct cu_batch batch = *b;
    cudaStream_t s = p->dev->stream;

    batch.n_seq = h->n_seq;
    if (op->kind == ESP_OP_KV_APPEND) {
        const struct cu_kv kv = cuda_kv_of(p, op->layer);

        cu_kv_append(s, &kv, plan_value(p, op->a), plan_value(p, op->b), &batch, h->n_tok);
    } else if (op->kind == ESP_OP_ATTEND) {
        const struct cu_attention a = cuda_attention_of(p, op);

        cu_attend(s, &a, &batch, h);
    } else {
        const struct cu_delta d = cuda_delta_of(p, op->layer);

        if (op->kind == ESP_OP_CONV)
            cu_conv(s, &d, plan_value(p, op->a), p->vec0[i], plan_value(p, op->out), &batch, h);
        else
            cu_delta_rule(s, &d, plan_value(p, op->a), plan_value(p, op->b), plan_value(p, op->out), &batch,
                          h);
    }
}

/* n_row rows of n floats, pitches in floats. An error shows at the end of the step, as those of kernels do.
 */
static void copy_rows(const struct esp_plan *p, float *to, uint32_t to_pitch, const float *from, uint32_t n,
                      uint32_t n_row)
{
    cudaMemcpy2DAsync(to, to_pitch * sizeof(float), from, n * sizeof(float), n * sizeof(float), n_row,
                      cudaMemcpyDeviceToDevice, p->dev->stream);
}

/* Ops that only move rows: between a tape and the batch, and side by side. */
static void copy_op(const struct esp_plan *p, const struct esp_op *op, const struct cu_shape *h)
{
    if (op->kind == ESP_OP_INPUT) {
        const uint32_t n = plan_width(p, op->out);

        copy_rows(p, plan_value(p, op->out), n, (const float *)(const void *)(p->scratch + p->input_off), n,
                  h->n_tok);
    } else if (op->kind == ESP_OP_CONCAT) {
        const uint32_t na = plan_width(p, op->a), nb = plan_width(p, op->b),
                       n_row = cuda_rows_of(p, op->out, h);
        float *y = plan_value(p, op->out);

        if (n_row == 0)
            return;
        copy_rows(p, y, na + nb, plan_value(p, op->a), na, n_row);
        copy_rows(p, y + na, na + nb, plan_value(p, op->b), nb, n_row);
    } else if (p->batch->hidden) { /* HIDDEN */
        const uint32_t n = plan_width(p, op->a);

        copy_rows(p, (float *)(void *)(p->scratch + p->hidden_off), n, plan_value(p, op->a), n, h->n_tok);
    }
}

/* only_terms: in product form alone. */
static void row_op(const struct esp_plan *p, uint32_t i, const struct cu_shape *h, bool emit, bool only_terms)
{
    const struct esp_op *op = &p->tape->ops[i];
    cudaStream_t s = p->dev->stream;

    if (op->kind == ESP_OP_HIDDEN || op->kind == ESP_OP_INPUT || op->kind == ESP_OP_CONCAT) {
        copy_op(p, op, h);
        return;
    }
    uint32_t n = plan_width(p, op->out), n_row = cuda_rows_of(p, op->out, h);
    const float *a = op->a != ESP_NO_VAL ? plan_value(p, op->a) : NULL;
    const float *b = op->b != ESP_NO_VAL ? plan_value(p, op->b) : NULL;
    float *y = only_terms ? NULL : plan_value(p, op->out);
    const struct cu_act act = cuda_act_of(p, n, n_row, emit);

    if (n_row == 0)
        return;
    switch (op->kind) {
    case ESP_OP_EMBED:
        cu_embed(s, &p->weights[i]->w, &p->on_device, y, n_row);
        break;
    case ESP_OP_RMSNORM:
        cu_rmsnorm(s, a, p->vec0[i], op->eps, y, n_row, n, &act);
        break;
    case ESP_OP_ADD:
        cu_add(s, a, b, y, (size_t)n_row * n);
        break;
    case ESP_OP_HEAD_ROPE:
        cu_head_rope(s, a, p->vec0[i], op->eps, op->scale, cuda_heads_of(p, op), &p->rope, y, n_row);
        break;
    case ESP_OP_HEAD_GATE:
        cu_head_gate(s, a, b, cuda_heads_of(p, op), y, n_row, &act);
        break;
    case ESP_OP_GATES:
        cu_gates(s, a, b, p->vec0[i], p->vec1[i], y, n_row, n / 2);
        break;
    case ESP_OP_GATED_NORM:
        cu_gated_norm(s, a, b, p->vec0[i], op->eps, cuda_heads_of(p, op), y, n_row, &act);
        break;
    case ESP_OP_SWIGLU:
        cu_swiglu(s, a, b, y, n_row, n, &act);
        break;
    default: /* GATHER */
        cu_gather(s, &p->on_device, a, y, n_row, n);
        break;
    }
}

void cuda_launch(const struct esp_plan *p, const struct cuda_step *s, const struct cu_shape *h, bool together)
{
    const struct esp_op *op = &p->tape->ops[s->op];
    const bool only_terms = s->only_terms && together;

    if (s->kind == CUDA_STEP_LINEAR) {
        products(p, s, h, together);
    } else if (s->kind == CUDA_STEP_ADD_NORM) {
        uint32_t n = plan_width(p, op->out), n_row = cuda_rows_of(p, op->out, h);
        const struct cu_act act = cuda_act_of(p, n, n_row, s->emit);

        if (n_row)
            cu_add_rmsnorm(p->dev->stream, plan_value(p, op->a), plan_value(p, op->b), plan_value(p, op->out),
                           p->vec0[s->op + 1], op[1].eps, only_terms ? NULL : plan_value(p, op[1].out), n_row,
                           n, &act);
    } else if (op->kind == ESP_OP_KV_APPEND || op->kind == ESP_OP_ATTEND || op->kind == ESP_OP_CONV ||
               op->kind == ESP_OP_DELTA) {
        mixer_op(p, s->op, h);
    } else {
        row_op(p, s->op, h, s->emit, only_terms);
    }
}
