/*
 * Trellis weights as affine ones of 8 bits, for CPUs on which a byte read costs less than a code decoded. A
 * source over another source: matrices that are not coded pass through, coded ones are decoded and
 * quantized again, a piece at a time and by all threads, while the model is loaded. What is stored is given
 * back to the system behind them, so a model never needs both. The quantizer is the one of
 * doc/formats/affine.md, so the same file gives the same bytes on every machine and with any number of
 * threads.
 *
 * SPDX-License-Identifier: MIT
 */
#include "model/source.h"

#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/pool.h"
#include "formats/affine.h"
#include "formats/trellis.h"

enum { TASK_ROWS = 8 }; /* outputs of a task where a stored row is an output */

struct block { /* the planes of one matrix */
    struct esp_map map;
    struct block *next;
};

struct ctx {
    struct esp_source *inner;
    enum esp_source_kind kind;
    uint32_t n_thread, n_expanded;
    struct block *blocks;
};

struct job {
    const struct esp_weight *from; /* trellis */
    const struct esp_weight *to;   /* affine8; planes are written through `planes` */
    uint8_t *codes, *scales, *biases;
    float *values;  /* [ESP_TRELLIS_STATES] weights of scale 1 */
    float *scratch; /* [n_thread][per_thread] */
    size_t per_thread;
    _Atomic uint32_t counter;
};

/* n inputs of an output from group g on. */
static void encode(const struct job *j, size_t row, size_t g, const float *x, size_t n)
{
    const struct esp_weight *w = j->to;
    const size_t scale = row * w->scale_row_bytes + g * esp_scale_bytes(w->scale_type);

    esp_format_get(w->format)->encode(w, x, n, j->codes + row * w->row_bytes + g * w->group,
                                      j->scales + scale, j->biases + scale);
}

/*
 * Whole blocks of a stored row: what esp_trellis_decode_stored() says, with values looked up and a block's
 * bits in one piece.
 */
static void decode(const struct job *j, size_t stored_row, size_t c0, size_t n, float *out)
{
    const uint32_t k = esp_trellis_bits(j->from->format);
    const size_t bytes = esp_trellis_block_bytes(k);
    const float scale = esp_trellis_scale(j->from, stored_row);
    uint8_t bits[ESP_TRELLIS_BLOCK_BYTES_MAX + 4];

    for (size_t b = c0 / ESP_TRELLIS_BLOCK; n; b++, n -= ESP_TRELLIS_BLOCK, out += ESP_TRELLIS_BLOCK) {
        const uint8_t *block = esp_trellis_block(j->from, stored_row, b);

        memcpy(bits, block, bytes);
        memcpy(bits + bytes, block, 4); /* past the end comes the block's start */
        for (uint32_t t = 0; t < ESP_TRELLIS_BLOCK; t++) {
            const uint32_t bit = (ESP_TRELLIS_BLOCK - 1 - t) * k;
            uint32_t v;

            memcpy(&v, bits + bit / 8, 4);
            out[t] = j->values[v >> bit % 8 & (ESP_TRELLIS_STATES - 1)] * scale;
        }
    }
}

/* Axis 1: outputs [o, o + TASK_ROWS), each stored in one piece. */
static void expand_rows(const struct job *j, uint32_t o, float *x)
{
    const uint32_t end = j->to->n_out - o < TASK_ROWS ? j->to->n_out : o + TASK_ROWS;

    for (; o < end; o++) {
        decode(j, o, 0, j->to->n_in, x);
        encode(j, o, 0, x, j->to->n_in);
    }
}

/*
 * Axis 0: a block of outputs. A stored row holds one input of each, so a group of inputs is gathered first.
 */
static void expand_block(const struct job *j, uint32_t o, float *x)
{
    const uint32_t group = j->to->group;
    float *stored = x + (size_t)ESP_TRELLIS_BLOCK * group; /* [ESP_TRELLIS_BLOCK] */

    for (uint32_t g = 0; g * group < j->to->n_in; g++) {
        for (uint32_t k = 0; k < group; k++) {
            decode(j, g * group + k, o, ESP_TRELLIS_BLOCK, stored);
            for (uint32_t r = 0; r < ESP_TRELLIS_BLOCK; r++)
                x[(size_t)r * group + k] = stored[r];
        }
        for (uint32_t r = 0; r < ESP_TRELLIS_BLOCK; r++)
            encode(j, o + r, g, x + (size_t)r * group, group);
    }
}

static uint32_t task_outs(const struct esp_weight *from)
{
    return from->axis ? TASK_ROWS : ESP_TRELLIS_BLOCK;
}

static void expand_all(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct job *j = arg;
    const uint32_t outs = task_outs(j->from), n_task = (j->to->n_out + outs - 1) / outs;
    float *x = j->scratch + tid * j->per_thread;

    (void)n_thread;
    for (uint32_t i = esp_task_next(&j->counter); i < n_task; i = esp_task_next(&j->counter))
        if (j->from->axis)
            expand_rows(j, i * outs, x);
        else
            expand_block(j, i * outs, x);
}

static esp_status run(struct job *j, uint32_t n_thread, esp_error *err)
{
    struct esp_pool *pool;
    esp_status s;

    j->per_thread = j->from->axis ? j->to->n_in : (size_t)ESP_TRELLIS_BLOCK * (j->to->group + 1);
    j->scratch = esp_alloc_array(n_thread * j->per_thread + ESP_TRELLIS_STATES, sizeof *j->scratch);
    if (!j->scratch)
        return esp_fail(err, ESP_ENOMEM, "expanding %u x %u weights: out of memory", j->to->n_out,
                        j->to->n_in);
    j->values = j->scratch + n_thread * j->per_thread;
    for (uint32_t i = 0; i < ESP_TRELLIS_STATES; i++)
        j->values[i] = (float)esp_trellis_value(i) / ESP_TRELLIS_DIVISOR;
    s = esp_pool_create(&pool, n_thread, err);
    if (s == ESP_OK) {
        esp_pool_run(pool, expand_all, j);
        esp_pool_destroy(pool);
    }
    esp_free(j->scratch);
    return s;
}

/* Memory for the planes of w, which the source owns from here on. */
static esp_status take(struct ctx *c, size_t bytes, uint8_t **out, esp_error *err)
{
    struct block *b = esp_alloc(sizeof *b);
    esp_status s;

    if (!b)
        return esp_fail(err, ESP_ENOMEM, "expanded weights: out of memory");
    s = esp_map_memory(&b->map, bytes, esp_source_huge(c->kind), out, err);
    if (s != ESP_OK) {
        esp_free(b);
        return s;
    }
    b->next = c->blocks;
    c->blocks = b;
    return ESP_OK;
}

static esp_status expand(struct ctx *c, const struct esp_weight *from, struct esp_weight *to, esp_error *err)
{
    const size_t codes = (size_t)to->n_out * to->row_bytes, scales = (size_t)to->n_out * to->scale_row_bytes;
    struct job j = {.from = from, .to = to};

    ESP_TRY(take(c, esp_weight_bytes(to), &j.codes, err));
    to->codes = j.codes;
    to->scales = j.scales = j.codes + codes;
    to->biases = j.biases = j.scales + scales;
    ESP_TRY(run(&j, c->n_thread, err));
    if (c->inner->release)
        c->inner->release(c->inner->ctx, from);
    return ESP_OK;
}

/* The largest usual group that divides a row's inputs; 0: there is none, and the weight stays as it is. */
static uint32_t group_of(const struct esp_weight *w)
{
    return w->n_in % 64 == 0 ? 64 : w->n_in % 32 == 0 ? 32 : 0;
}

static esp_status matrix(void *ctx, enum esp_part part, const char *module, uint32_t n_out, uint32_t n_in,
                         struct esp_weight *out, esp_error *err)
{
    struct ctx *c = ctx;
    struct esp_weight from, to;

    ESP_TRY(c->inner->matrix(c->inner->ctx, part, module, n_out, n_in, &from, err));
    if (!esp_is_trellis(from.format) || group_of(&from) == 0) {
        *out = from;
        return ESP_OK;
    }
    to = (struct esp_weight){.format = ESP_FORMAT_AFFINE8,
                             .scale_type = ESP_SCALE_F16,
                             .n_out = n_out,
                             .n_in = n_in,
                             .group = group_of(&from)};
    ESP_TRY(esp_weight_layout(&to, module, err));
    if (c->kind != ESP_SOURCE_SHAPES)
        ESP_TRY(expand(c, &from, &to, err));
    c->n_expanded++;
    *out = to;
    return ESP_OK;
}

static esp_status vector(void *ctx, enum esp_part part, const char *name, uint32_t n, float *out,
                         esp_error *err)
{
    const struct ctx *c = ctx;

    return c->inner->vector(c->inner->ctx, part, name, n, out, err);
}

static void close_source(struct esp_source *s)
{
    struct ctx *c = s->ctx;

    while (c->blocks) {
        struct block *b = c->blocks;

        c->blocks = b->next;
        esp_map_close(&b->map);
        esp_free(b);
    }
    c->inner->close(c->inner);
    esp_free(c);
    esp_free(s);
}

esp_status esp_source_expand(struct esp_source **out, struct esp_source *inner, enum esp_source_kind kind,
                             uint32_t n_thread, esp_error *err)
{
    struct esp_source *s = esp_alloc(sizeof *s);
    struct ctx *c = esp_alloc(sizeof *c);

    if (!s || !c) {
        esp_free(s);
        esp_free(c);
        return esp_fail(err, ESP_ENOMEM, "expanded weights: out of memory");
    }
    *c = (struct ctx){.inner = inner, .kind = kind, .n_thread = n_thread};
    *s = *inner;
    s->ctx = c;
    s->matrix = matrix;
    s->vector = vector;
    s->release = NULL;
    s->close = close_source;
    *out = s;
    return ESP_OK;
}

uint32_t esp_source_expanded(const struct esp_source *s)
{
    return ((const struct ctx *)s->ctx)->n_expanded;
}
