/*
 * Compiling a tape for CUDA: cut it into steps (products of one input together, a sum with the norm that
 * follows), upload weights and vectors, and lay device memory out. The layout is a function of the tape and
 * the limits alone.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/cuda.h"
#include "backend/cuda/plugin/few.h"
#include "backend/cuda/plugin/stream.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "formats/trellis.h"

#include "backend/place.h"

_Static_assert((int)ESP_FEW_ROWS <= (int)CUDA_LOGIT_ROWS, "rows of which a run keeps the logits");
_Static_assert((int)CU_SPAN == (int)ESP_SPAN && (int)CU_CHUNK == (int)ESP_CHUNK &&
                   (int)CU_TAPS == (int)ESP_CONV_TAPS,
               "kernels.h repeats these for files that cannot include C headers");

enum { QUERIES = 16 /* heads of one KV head that the attention kernels take */ };

static size_t pad(size_t n)
{
    return (n + 255) & ~(size_t)255;
}

static bool is_product(const struct esp_op *op)
{
    return op->kind == ESP_OP_LINEAR || op->kind == ESP_OP_LOGITS;
}

/* Whether a weight wants its input in product form: coded weights have one of their own, plain ones none. */
static bool wants_terms(const struct esp_weight *w)
{
    return w->format != ESP_FORMAT_F32 && w->format != ESP_FORMAT_F16 && !esp_is_trellis(w->format);
}

bool cuda_can(const struct esp_dev *d, const struct esp_op *op)
{
    (void)d;
    return op->kind < ESP_OP_COUNT; /* every op; shapes are looked at where widths are known */
}

static esp_status check_attend(const struct esp_op *op, const struct esp_layout *l, esp_error *err)
{
    if (l->kv_start)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "cuda: kv_start %u; coded caches have no exact positions there", l->kv_start);
    if (op->n_head / l->n_kv_head > QUERIES)
        return esp_fail(err, ESP_EUNSUPPORTED, "cuda: %u query heads to a KV head; at most %d are supported",
                        op->n_head / l->n_kv_head, QUERIES);
    return ESP_OK;
}

/* Shapes that the kernels do not take, checked once where widths are known. */
static esp_status check_shapes(const struct esp_tape *t, const struct esp_layout *l, esp_error *err)
{
    for (uint32_t i = 0; i < t->n_op; i++) {
        const struct esp_op *op = &t->ops[i];
        uint32_t width = op->out != ESP_NO_VAL ? t->values[op->out].width : 0;
        bool by_8 = op->kind == ESP_OP_RMSNORM || op->kind == ESP_OP_SWIGLU || op->kind == ESP_OP_HEAD_ROPE ||
                    op->kind == ESP_OP_HEAD_GATE || op->kind == ESP_OP_GATED_NORM;
        uint32_t dim = by_8 && op->n_head ? width / op->n_head : width;

        if (by_8 && (dim % 8 || op->stride % 8))
            return esp_fail(err, ESP_EUNSUPPORTED,
                            "cuda: op %u (%s) with rows of %u; multiples of 8 are supported", i,
                            esp_op_name(op->kind), dim);
        if (op->kind == ESP_OP_ATTEND)
            ESP_TRY(check_attend(op, l, err));
    }
    return ESP_OK;
}

/* ---- steps
 * ----------------------------------------------------------------------------------------------------------
 */

static void make_linear(struct esp_plan *p, struct cuda_step *s)
{
    const struct esp_op *ops = p->tape->ops;

    s->kind = CUDA_STEP_LINEAR;
    s->n_op = 0;
    do {
        s->products |= wants_terms(ops[s->op + s->n_op].w);
        s->n_op++;
    } while (s->op + s->n_op < p->tape->n_op && s->n_op < CUDA_MAX_GROUP &&
             ops[s->op + s->n_op].kind == ops[s->op].kind && ops[s->op + s->n_op].a == ops[s->op].a);
    s->prepare = s->products;
}

/* The value that a step leaves in product form if asked to, or ESP_NO_VAL. */
static esp_val emits(const struct esp_plan *p, const struct cuda_step *s)
{
    const struct esp_op *op = &p->tape->ops[s->op + s->n_op - 1];
    uint32_t width;

    if (s->kind == CUDA_STEP_LINEAR || op->out == ESP_NO_VAL)
        return ESP_NO_VAL;
    width = plan_width(p, op->out);
    if (width % 128) /* padding is cu_prepare()'s work */
        return ESP_NO_VAL;
    switch (op->kind) {
    case ESP_OP_RMSNORM:
    case ESP_OP_SWIGLU:
    case ESP_OP_HEAD_GATE:
        return op->out;
    case ESP_OP_GATED_NORM:
        return width / op->n_head % 64 == 0 ? op->out : ESP_NO_VAL;
    default:
        return ESP_NO_VAL;
    }
}

/* Whether only products read a value, all of them in product form. */
static bool read_as_terms(const struct esp_plan *p, esp_val v)
{
    for (uint32_t i = 0; i < p->tape->n_op; i++) {
        const struct esp_op *op = &p->tape->ops[i];

        if ((op->a == v || op->b == v) && !(is_product(op) && wants_terms(op->w)))
            return false;
    }
    return true;
}

static void make_steps(struct esp_plan *p)
{
    const struct esp_tape *t = p->tape;

    for (uint32_t i = 0; i < t->n_op; i += p->steps[p->n_step - 1].n_op) {
        struct cuda_step *s = &p->steps[p->n_step++];
        const struct esp_op *op = &t->ops[i], *next = i + 1 < t->n_op ? op + 1 : NULL;

        *s = (struct cuda_step){.kind = CUDA_STEP_OP, .op = i, .n_op = 1};
        if (is_product(op)) {
            make_linear(p, s);
        } else if (op->kind == ESP_OP_ADD && next && next->kind == ESP_OP_RMSNORM && next->a == op->out &&
                   plan_width(p, op->out) % 8 == 0) {
            s->kind = CUDA_STEP_ADD_NORM;
            s->n_op = 2;
        }
    }
    for (uint32_t i = 1; i < p->n_step; i++)
        if (p->steps[i].prepare && emits(p, &p->steps[i - 1]) == t->ops[p->steps[i].op].a) {
            p->steps[i - 1].emit = true;
            p->steps[i - 1].only_terms = read_as_terms(p, t->ops[p->steps[i].op].a);
            p->steps[i].prepare = false;
        }
    cuda_fuse(p);
}

/* ---- memory
 * ---------------------------------------------------------------------------------------------------------
 */

static uint32_t vec_floats(const struct esp_tape *t, const struct esp_op *op)
{
    uint32_t width = op->a != ESP_NO_VAL ? t->values[op->a].width : 0;

    switch (op->kind) {
    case ESP_OP_RMSNORM:
    case ESP_OP_GATES:
        return width;
    case ESP_OP_HEAD_ROPE:
    case ESP_OP_GATED_NORM:
        return t->values[op->out].width / op->n_head;
    case ESP_OP_CONV:
        return width * ESP_CONV_TAPS;
    default:
        return 0;
    }
}

static void lay_out_act(struct esp_plan *p)
{
    const struct esp_tape *t = p->tape;
    uint32_t rows = p->opts.max_tok > p->opts.max_out ? p->opts.max_tok : p->opts.max_out;
    size_t ld = 0;

    p->act_rows = (rows + 127) / 128 * 128;
    for (uint32_t i = 0; i < t->n_op; i++)
        if (is_product(&t->ops[i]) && ((size_t)t->ops[i].w->n_in + 127) / 128 * 128 > ld)
            ld = ((size_t)t->ops[i].w->n_in + 127) / 128 * 128;
    p->act_term = pad(p->act_rows * ld * 2);
    p->act_bytes = p->act_term * (p->n_term > p->n_coded ? p->n_term : p->n_coded) +
                   pad(ld / 64 * p->act_rows * 3 * sizeof(float)); /* wide.h */
    for (uint32_t i = 0; i < p->n_step; i++)
        if (p->steps[i].fuse == CUDA_FUSE_GATED) {
            p->gated_term = pad(CU_STREAM_ROWS * ld * 2);
            p->gated_sums = pad(ld / 32 * CU_STREAM_ROWS * sizeof(float));
            p->gated_bytes = p->gated_term * p->n_term + p->gated_sums * 2;
        }
}

/* Rows that enter and leave a tape by the batch. */
static void lay_out_rows(struct esp_plan *p)
{
    const struct esp_tape *t = p->tape;

    for (uint32_t i = 0; i < t->n_op; i++) {
        const size_t row = (size_t)p->opts.max_tok * sizeof(float);

        if (t->ops[i].kind == ESP_OP_INPUT)
            p->input_bytes = pad(row * t->values[t->ops[i].out].width);
        if (t->ops[i].kind == ESP_OP_HIDDEN)
            p->hidden_bytes = pad(row * t->values[t->ops[i].a].width);
    }
}

static void lay_out_batch(struct esp_plan *p)
{
    struct cuda_batch_layout *b = &p->bl;
    size_t tok = p->opts.max_tok, pages = (p->opts.context + ESP_SPAN - 1) / ESP_SPAN;

    b->ids = 0;
    b->pos = b->ids + pad(tok * 4);
    b->tok_seq = b->pos + pad(tok * 12);
    b->out_rows = b->tok_seq + pad(tok * 4);
    b->seqs = b->out_rows + pad((size_t)p->opts.max_out * 4);
    b->pages = b->seqs + pad(p->opts.max_seq * sizeof(struct cu_seq)); /* last: a step uploads what it uses */
    b->bytes = b->pages + pad(p->opts.max_seq * pages * 4);
}

static size_t parts_bytes(const struct esp_plan *p)
{
    const struct esp_layout *l = &p->pools.layout;
    size_t rows = p->opts.max_tok < CU_SPLIT_TOKENS ? p->opts.max_tok : CU_SPLIT_TOKENS, n_head = 0;

    for (uint32_t i = 0; i < p->tape->n_op; i++)
        if (p->tape->ops[i].kind == ESP_OP_ATTEND && p->tape->ops[i].n_head > n_head)
            n_head = p->tape->ops[i].n_head;
    return rows * n_head * p->part_spans * (l->head_dim + 8) * sizeof(float);
}

static bool is_coded(const struct esp_op *op)
{
    return is_product(op) && esp_is_trellis(op->w->format);
}

/* Parts that products along axis 0 leave in memory for up to CU_FEW_ROWS rows. */
static size_t coded_parts_bytes(const struct esp_plan *p, uint32_t rows)
{
    size_t most = 0;

    for (uint32_t i = 0; i < p->tape->n_op; i++)
        if (is_coded(&p->tape->ops[i]) && !p->tape->ops[i].w->axis) {
            const struct cu_weight w = cuda_weight_describe(p->tape->ops[i].w);
            const size_t n = (size_t)w.n_part * w.n_out;

            most = n > most ? n : most;
        }
    return most * (rows < CU_FEW_ROWS ? rows : CU_FEW_ROWS) * sizeof(float);
}

/* Room for the values of a range of tiles of any coded weight, where more than a few rows come. */
static size_t expand_bytes(const struct esp_plan *p)
{
    const uint32_t rows = p->opts.max_tok > p->opts.max_out ? p->opts.max_tok : p->opts.max_out;
    size_t most = 0;

    for (uint32_t i = 0; i < p->tape->n_op && rows > CU_FEW_ROWS; i++)
        if (is_coded(&p->tape->ops[i])) {
            const struct cu_weight w = cuda_weight_describe(p->tape->ops[i].w);
            const size_t tile = (size_t)w.n_quad * 4096, all = ((size_t)w.n_tile + 15) / 16 * 16 * tile;
            const size_t want = all < CUDA_EXPAND_BYTES         ? all
                                : CUDA_EXPAND_BYTES < 16 * tile ? 16 * tile
                                                                : CUDA_EXPAND_BYTES;

            most = want > most ? want : most;
        }
    return most;
}

/*
 * Parts of the widest product that is narrow enough to be spread (below 96 blocks of 128 outputs), and those
 * of coded weights.
 */
static size_t spread_bytes(const struct esp_plan *p)
{
    const uint32_t rows = p->opts.max_tok < CUDA_SPREAD_ROWS ? p->opts.max_tok : CUDA_SPREAD_ROWS;
    const size_t coded =
        coded_parts_bytes(p, p->opts.max_tok > p->opts.max_out ? p->opts.max_tok : p->opts.max_out);
    size_t most = 0;

    for (uint32_t i = 0; i < p->tape->n_op; i++)
        if (is_product(&p->tape->ops[i]) && p->tape->ops[i].w->n_out > most)
            most = p->tape->ops[i].w->n_out;
    most = rows > CU_FEW_ROWS ? CU_PARTS * rows * (most < 8192 ? most : 8192) * sizeof(float) : 0;
    return most > coded ? most : coded;
}

/* What adapters make of a step's input, for every product of the largest group. */
static size_t lora_bytes(const struct esp_plan *p)
{
    size_t most = 0;

    for (uint32_t i = 0; i < p->n_step; i++)
        if (p->steps[i].kind == CUDA_STEP_LINEAR && p->steps[i].n_op > most)
            most = p->steps[i].n_op;
    return pad(most * p->opts.max_tok * p->opts.max_rank * sizeof(float));
}

static size_t delta_bytes(const struct esp_plan *p)
{
    const struct esp_layout *l = &p->pools.layout;
    const struct cu_delta d = {
        .kh = l->kh, .vh = l->vh, .dk = l->dk, .dv = l->dv, .work_tok = cuda_work_tok(p)};

    for (uint32_t i = 0; i < p->tape->n_op; i++)
        if (p->tape->ops[i].kind == ESP_OP_DELTA)
            return cu_delta_work_floats(&d, p->opts.max_seq) * sizeof(float);
    return 0;
}

static esp_status lay_out(struct esp_plan *p, esp_error *err)
{
    const struct esp_tape *t = p->tape;

    p->steps = esp_alloc_array(t->n_op, sizeof *p->steps);
    p->weights = esp_alloc_array(t->n_op, sizeof *p->weights);
    p->vec0 = esp_alloc_array(t->n_op, sizeof *p->vec0);
    p->vec1 = esp_alloc_array(t->n_op, sizeof *p->vec1);
    p->value_off = esp_alloc_array(t->n_value, sizeof *p->value_off);
    if (!p->steps || !p->weights || !p->vec0 || !p->vec1 || !p->value_off)
        return esp_fail(err, ESP_ENOMEM, "plan of %u ops: out of memory", t->n_op);
    make_steps(p);
    p->values_bytes = pad(esp_place_values(t, &p->opts, p->value_off));
    lay_out_act(p);
    lay_out_batch(p);
    lay_out_rows(p);
    p->rope_bytes = pad((size_t)p->opts.max_tok * 2 * t->rope.n_half * sizeof(float));
    p->part_spans = (p->opts.context + ESP_SPAN - 1) / ESP_SPAN;
    p->parts_bytes = pad(parts_bytes(p));
    p->spread_bytes = pad(spread_bytes(p));
    p->expand_bytes = pad(expand_bytes(p));
    p->delta_bytes = pad(delta_bytes(p));
    p->logit_rows = p->opts.max_out < CUDA_LOGIT_ROWS ? p->opts.max_out : CUDA_LOGIT_ROWS;
    p->host_rows = p->opts.max_out < CUDA_HOST_ROWS ? p->opts.max_out : CUDA_HOST_ROWS;
    p->logits_bytes = pad((size_t)p->logit_rows * t->n_vocab * sizeof(float));
    p->vec_bytes = pad(t->rope.n_half * sizeof(float)) + pad(t->rope.n_half);
    for (uint32_t i = 0; i < t->n_op; i++)
        p->vec_bytes += pad(vec_floats(t, &t->ops[i]) * sizeof(float)) * (t->ops[i].vec1 ? 2 : 1);
    p->act_off = p->values_bytes;
    p->gated_off = p->act_off + p->act_bytes;
    p->rope_off = p->gated_off + p->gated_bytes;
    p->parts_off = p->rope_off + p->rope_bytes;
    p->spread_off = p->parts_off + p->parts_bytes;
    p->expand_off = p->spread_off + p->spread_bytes;
    p->delta_off = p->expand_off + p->expand_bytes;
    p->logits_off = p->delta_off + p->delta_bytes;
    p->vec_off = p->logits_off + p->logits_bytes;
    p->batch_off = p->vec_off + p->vec_bytes;
    p->input_off = p->batch_off + p->bl.bytes;
    p->hidden_off = p->input_off + p->input_bytes;
    p->lora_off = p->hidden_off + p->hidden_bytes;
    p->lora_bytes = lora_bytes(p);
    p->kv_off = p->lora_off + p->lora_bytes;
    p->kv_bytes = pad(cuda_kv_bytes(&p->pools.layout));
    p->few_off = p->kv_off + p->kv_bytes;
    p->few_bytes = pad(p->logit_rows * sizeof(struct esp_few)) +
                   pad((size_t)p->logit_rows * CU_FEW_SHARES * sizeof(uint32_t));
    p->scratch_bytes = p->few_off + p->few_bytes;
    return ESP_OK;
}

/* ---- uploads
 * -------------------------------------------------------------------------------------------------------- */

/* Copy n bytes to the next place of the vector region, which *off counts. */
static esp_status put(struct esp_plan *p, size_t *off, const void *src, size_t n, const void **out,
                      esp_error *err)
{
    uint8_t *to = p->scratch + p->vec_off + *off;

    *out = to;
    *off += pad(n);
    if (n)
        CUDA_TRY(cudaMemcpyAsync(to, src, n, cudaMemcpyHostToDevice, p->dev->stream), "uploading vectors");
    return ESP_OK;
}

static esp_status upload(struct esp_plan *p, esp_error *err)
{
    const struct esp_tape *t = p->tape;
    const void *at;
    size_t off = 0;

    ESP_TRY(put(p, &off, t->rope.freq, t->rope.n_half * sizeof(float), &at, err));
    p->rope = (struct cu_rope){.n_half = t->rope.n_half,
                               .freq = at,
                               .mscale = t->rope.mscale,
                               .table = (float *)(void *)(p->scratch + p->rope_off)};
    ESP_TRY(put(p, &off, t->rope.axis, t->rope.n_half, &at, err));
    p->rope.axis = at;
    for (uint32_t i = 0; i < t->n_op; i++) {
        const struct esp_op *op = &t->ops[i];
        size_t n = vec_floats(t, op) * sizeof(float);

        if (op->vec0) {
            ESP_TRY(put(p, &off, op->vec0, n, &at, err));
            p->vec0[i] = at;
        }
        if (op->vec1) {
            ESP_TRY(put(p, &off, op->vec1, n, &at, err));
            p->vec1[i] = at;
        }
        if (op->w)
            ESP_TRY(cuda_weight_take(p->dev, op->w, &p->weights[i], err));
    }
    CUDA_TRY(cudaStreamSynchronize(p->dev->stream), "uploading the model");
    return ESP_OK;
}

static esp_status set_up_kernels(const struct esp_plan *p, esp_error *err)
{
    const struct esp_layout *l = &p->pools.layout;

    if (l->n_attn && cu_attend_setup(l->head_dim) != cudaSuccess) {
        cudaGetLastError();
        return esp_fail(err, ESP_EUNSUPPORTED, "%s has too little shared memory for attention heads of %u",
                        p->dev->base.name, l->head_dim);
    }
    for (uint32_t i = 0; i < p->tape->n_op; i++) {
        const struct esp_op *op = &p->tape->ops[i];
        const struct cu_attention a =
            op->kind == ESP_OP_ATTEND ? cuda_attention_of(p, op) : (struct cu_attention){.n_head = 0};

        if (a.kv.code.kind && cu_attend_coded_setup(&a) != cudaSuccess) {
            cudaGetLastError();
            return esp_fail(err, ESP_EUNSUPPORTED,
                            "%s has too little shared memory for coded keys and values of heads of %u",
                            p->dev->base.name, l->head_dim);
        }
    }
    if (l->n_delta && (cu_delta_setup(l->dk) != cudaSuccess || cu_delta_one_setup() != cudaSuccess)) {
        cudaGetLastError();
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "%s has too little shared memory for linear-attention heads of %u", p->dev->base.name,
                        l->dk);
    }
    return ESP_OK;
}

static esp_status allocate(struct esp_plan *p, esp_error *err)
{
    const struct cuda_batch_layout *b = &p->bl;
    char what[64];
    uint8_t *at;

    snprintf(what, sizeof what, "%zu bytes of scratch", p->scratch_bytes);
    CUDA_TRY(cudaMalloc((void **)&p->scratch, p->scratch_bytes), what);
    CUDA_TRY(cudaMemsetAsync(p->scratch, 0, p->scratch_bytes, p->dev->stream), what);
    CUDA_TRY(cudaHostAlloc((void **)&p->staging, b->bytes, cudaHostAllocDefault), "page-locked memory");
    CUDA_TRY(cudaHostAlloc((void **)&p->host_logits,
                           (size_t)p->host_rows * p->tape->n_vocab * sizeof(float) + 1, cudaHostAllocDefault),
             "page-locked memory");
    CUDA_TRY(
        cudaHostAlloc((void **)&p->host_few, p->logit_rows * sizeof *p->host_few + 1, cudaHostAllocDefault),
        "page-locked memory");
    at = p->scratch + p->batch_off;
    p->on_device = (struct cu_batch){.ids = (void *)(at + b->ids),
                                     .pos = (void *)(at + b->pos),
                                     .tok_seq = (void *)(at + b->tok_seq),
                                     .seqs = (void *)(at + b->seqs),
                                     .pages = (void *)(at + b->pages),
                                     .out_rows = (void *)(at + b->out_rows)};
    ESP_TRY(set_up_kernels(p, err));
    ESP_TRY(upload(p, err));
    return cuda_kv_upload(p, err);
}

void cuda_plan_free(struct esp_plan *p)
{
    if (!p)
        return;
    cuda_use(p->dev, NULL);
    if (p->scratch)
        cudaStreamSynchronize(p->dev->stream);
    for (uint32_t i = 0; i < CUDA_MAX_GRAPH; i++)
        if (p->graphs[i].exec)
            cudaGraphExecDestroy(p->graphs[i].exec);
    for (uint32_t i = 0; p->weights && i < p->tape->n_op; i++)
        cuda_weight_release(p->weights[i]);
    cudaFree(p->scratch);
    cudaFreeHost(p->staging);
    cudaFreeHost(p->host_logits);
    cudaFreeHost(p->host_few);
    esp_free(p->steps);
    esp_free(p->weights);
    esp_free(p->vec0);
    esp_free(p->vec1);
    esp_free(p->value_off);
    esp_free(p->tap_rows);
    if (p->dev->running == p)
        p->dev->running = NULL;
    esp_free(p);
}

/* Terms of bf16 that an activation is split into: 24 bits, 16 bits (no less than int8x2 has), or 8 (auto). */
static uint32_t terms_of(const struct esp_plan_opts *o)
{
    if (o->act_auto)
        return 1;
    return o->act == ESP_ACT_F32 ? 3 : o->act == ESP_ACT_INT8X2 ? 2 : 1;
}

static esp_status plan_create(struct esp_plan **out, struct esp_dev *d, const struct esp_tape *t,
                              const struct esp_plan_opts *o, const struct esp_layout *l, esp_error *err)
{
    struct esp_plan *p;
    esp_status s;

    if (o->max_tok == 0 || o->max_seq == 0)
        return esp_fail(err, ESP_EINVAL, "a plan for %u tokens of %u sequences", o->max_tok, o->max_seq);
    ESP_TRY(check_shapes(t, l, err));
    p = esp_alloc(sizeof *p);
    if (!p)
        return esp_fail(err, ESP_ENOMEM, "plan: out of memory");
    p->dev = (struct cuda_dev *)d;
    p->tape = t;
    p->opts = *o;
    p->pools.layout = *l;
    p->n_term = terms_of(o);
    for (uint32_t i = 0; i < t->n_op; i++)
        if (is_coded(&t->ops[i]))
            p->n_coded = p->n_term;
    s = lay_out(p, err);
    if (s != ESP_OK) {
        cuda_plan_free(p);
        return s;
    }
    *out = p;
    return ESP_OK;
}

esp_status cuda_plan_bytes(struct esp_dev *d, const struct esp_tape *t, const struct esp_layout *l,
                           const struct esp_plan_opts *o, size_t *bytes, esp_error *err)
{
    struct esp_plan *p;

    ESP_TRY(plan_create(&p, d, t, o, l, err));
    *bytes = p->scratch_bytes;
    cuda_plan_free(p);
    return ESP_OK;
}

esp_status cuda_compile(struct esp_dev *d, const struct esp_tape *t, const struct esp_pools *pools,
                        const struct esp_plan_opts *o, struct esp_plan **out, esp_error *err)
{
    struct esp_plan *p;
    esp_status s;

    ESP_TRY(cuda_use((struct cuda_dev *)d, err));
    for (uint32_t i = 0; i < t->n_op; i++)
        if (!cuda_can(d, &t->ops[i]))
            return esp_fail(err, ESP_EUNSUPPORTED, "%s cannot run op %u (%s)", d->name, i,
                            esp_op_name(t->ops[i].kind));
    ESP_TRY(plan_create(&p, d, t, o, &pools->layout, err));
    p->pools = *pools;
    s = allocate(p, err);
    if (s != ESP_OK) {
        cuda_plan_free(p);
        return s;
    }
    *out = p;
    return ESP_OK;
}
