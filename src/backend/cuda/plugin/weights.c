/*
 * Weights in device memory: uploaded once, packed on the device, counted by the plans that use them. Codes of
 * 3, 5 and 6 bits are widened to 4 and 8 on the way; values stay what they were.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/cuda.h"

#include <string.h>

#include "base/mem.h"
#include "formats/trellis.h"

#include "backend/cuda/plugin/coded.h"

enum {
    STAGING_BYTES = 64 << 20,
    CODED_TASKS = 2048 /* warps that products along axis 0 are cut into at most: one wave of a large device */
};

static enum cu_format format_of(const struct esp_weight *w)
{
    const struct esp_format *f = esp_format_get(w->format);

    if (w->format == ESP_FORMAT_F32)
        return CU_F32;
    if (w->format == ESP_FORMAT_F16)
        return CU_F16;
    if (w->format == ESP_FORMAT_BF16)
        return CU_BF16;
    if (esp_is_trellis(w->format))
        return CU_CODED;
    return f->bits <= 2 ? CU_Q2 : f->bits <= 4 ? CU_Q4 : CU_Q8;
}

/* Parts of a product: functions of the weight's shape alone, as everything that orders a sum. */
static void cut(struct cu_weight *c)
{
    const uint32_t unit = c->format == CU_CODED && c->axis ? 2 : 1, n = c->n_quad / unit;

    if (c->format == CU_CODED && !c->axis) {
        const uint32_t most = CODED_TASKS / (c->n_tile / 16) ? CODED_TASKS / (c->n_tile / 16) : 1;

        c->part_quads = (c->n_quad + most - 1) / most;
        c->n_part = (c->n_quad + c->part_quads - 1) / c->part_quads;
        return;
    }
    c->part_quads = (n + CU_PARTS - 1) / CU_PARTS * unit;
    c->n_part = CU_PARTS;
}

struct cu_weight cuda_weight_describe(const struct esp_weight *w)
{
    struct cu_weight c = {.format = format_of(w), .n_out = w->n_out, .n_in = w->n_in};

    c.n_tile = (w->n_out + 15) / 16;
    c.n_quad = (w->n_in + 127) / 128;
    if (c.format == CU_CODED) {
        c.bits = esp_trellis_bits(w->format);
        c.axis = w->axis;
    }
    cut(&c);
    c.group_kb = w->group / 32;
    c.group_shift = c.group_kb == 4 ? 2 : c.group_kb == 2 ? 1 : 0;
    c.scale_f32 = w->group && w->scale_type != ESP_SCALE_BF16;
    return c;
}

/* Rows that go through the staging memory at once: whole tiles. */
static uint32_t rows_at_once(const struct esp_weight *w)
{
    size_t row = w->row_bytes + 2 * w->scale_row_bytes;
    size_t n = STAGING_BYTES / (row ? row : 1) / 16 * 16;

    return n < 16 ? 16 : n > w->n_out ? (w->n_out + 15) / 16 * 16 : (uint32_t)n;
}

static esp_status pack_rows(struct cuda_dev *d, const struct esp_weight *w, const struct cu_weight *c,
                            uint8_t *staging, uint32_t row0, uint32_t n, esp_error *err)
{
    size_t codes = (n * w->row_bytes + 63) & ~(size_t)63,
           scales = (n * w->scale_row_bytes + 63) & ~(size_t)63;
    struct cu_source src = {.format = w->format == ESP_FORMAT_BF16 ? 16 : esp_format_get(w->format)->bits,
                            .group = w->group,
                            .scale_type = w->scale_type == ESP_SCALE_F32    ? 0
                                          : w->scale_type == ESP_SCALE_BF16 ? 1
                                                                            : 2,
                            .row0 = row0,
                            .n_row = n,
                            .codes = staging,
                            .scales = staging + codes,
                            .biases = staging + codes + scales};

    CUDA_TRY(cudaMemcpyAsync(staging, w->codes + row0 * w->row_bytes, n * w->row_bytes,
                             cudaMemcpyHostToDevice, d->stream),
             "uploading weights");
    if (w->group) {
        size_t off = row0 * w->scale_row_bytes, bytes = n * w->scale_row_bytes;

        CUDA_TRY(cudaMemcpyAsync(staging + codes, w->scales + off, bytes, cudaMemcpyHostToDevice, d->stream),
                 "uploading scales");
        CUDA_TRY(cudaMemcpyAsync(staging + codes + scales, w->biases + off, bytes, cudaMemcpyHostToDevice,
                                 d->stream),
                 "uploading biases");
    }
    cu_pack(d->stream, c, &src);
    CUDA_TRY(cudaGetLastError(), "packing weights");
    return ESP_OK;
}

/* ---- trellis codes ---- */

/* Scales over the divisor of codes, padded with zeros to what kernels read. */
static esp_status upload_coded_scales(struct cuda_dev *d, const struct esp_weight *w,
                                      const struct cu_weight *c, esp_error *err)
{
    const size_t n = cu_packed_scale_bytes(c) / sizeof(float);
    float *f = esp_alloc_array(n, sizeof *f);
    cudaError_t e;

    if (!f)
        return esp_fail(err, ESP_ENOMEM, "%zu scales: out of memory", n);
    for (uint32_t i = 0; i < esp_trellis_rows(w); i++)
        f[i] = esp_trellis_scale(w, i) * ESP_TRELLIS_RECIPROCAL;
    e = cudaMemcpyAsync((void *)(uintptr_t)c->scales, f, n * sizeof *f, cudaMemcpyHostToDevice, d->stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(d->stream);
    esp_free(f);
    return e == cudaSuccess ? ESP_OK : cuda_failed(err, e, "uploading scales");
}

/* Stored rows [row0, row0 + n) through the staging memory: as they lie, or pair by pair of interleaved
 * blocks. */
static esp_status pack_coded_rows(struct cuda_dev *d, const struct esp_weight *w, const struct cu_weight *c,
                                  uint8_t *staging, uint32_t row0, uint32_t n, esp_error *err)
{
    const size_t block = esp_trellis_block_bytes(c->bits), blocks = esp_trellis_cols(w) / ESP_TRELLIS_BLOCK;
    struct cu_coded_source src = {.row0 = row0, .n_row = n, .words = (const uint32_t *)(const void *)staging};

    if (w->interleaved) {
        src.row = 2 * block / 4;
        src.pair = n * src.row;
        CUDA_TRY(cudaMemcpy2DAsync(staging, src.pair * 4, w->codes + row0 * w->row_bytes, w->pair_bytes,
                                   src.pair * 4, blocks / 2, cudaMemcpyHostToDevice, d->stream),
                 "uploading weights");
    } else {
        src.row = blocks * block / 4;
        src.pair = 2 * block / 4;
        if (src.row * 4 == w->row_bytes)
            CUDA_TRY(cudaMemcpyAsync(staging, w->codes + row0 * w->row_bytes, n * w->row_bytes,
                                     cudaMemcpyHostToDevice, d->stream),
                     "uploading weights");
        else
            CUDA_TRY(cudaMemcpy2DAsync(staging, src.row * 4, w->codes + row0 * w->row_bytes, w->row_bytes,
                                       src.row * 4, n, cudaMemcpyHostToDevice, d->stream),
                     "uploading weights");
    }
    cu_pack_coded(d->stream, c, &src);
    CUDA_TRY(cudaGetLastError(), "packing weights");
    return ESP_OK;
}

static esp_status upload_coded(struct cuda_dev *d, const struct esp_weight *w, const struct cu_weight *c,
                               esp_error *err)
{
    const size_t row = esp_trellis_cols(w) / ESP_TRELLIS_BLOCK * esp_trellis_block_bytes(c->bits);
    const uint32_t n_row = esp_trellis_rows(w);
    size_t step = STAGING_BYTES / row / 128 * 128;
    uint8_t *staging;
    esp_status s;

    step = step < 128 ? 128 : step > n_row ? n_row : step;
    ESP_TRY(upload_coded_scales(d, w, c, err));
    CUDA_TRY(cudaMallocAsync((void **)&staging, step * row, d->stream), "staging memory for weights");
    s = ESP_OK;
    for (uint32_t r = 0; r < n_row && s == ESP_OK; r += (uint32_t)step)
        s = pack_coded_rows(d, w, c, staging, r, n_row - r < step ? n_row - r : (uint32_t)step, err);
    cudaFreeAsync(staging, d->stream);
    return s;
}

static esp_status upload(struct cuda_dev *d, const struct esp_weight *w, const struct cu_weight *c,
                         esp_error *err)
{
    const uint32_t step = rows_at_once(w);
    uint8_t *staging;
    esp_status s = ESP_OK;

    if (c->format == CU_F32 || c->format == CU_F16) {
        CUDA_TRY(cudaMemcpyAsync((void *)(uintptr_t)c->codes, w->codes, w->row_bytes * w->n_out,
                                 cudaMemcpyHostToDevice, d->stream),
                 "uploading weights");
        return ESP_OK;
    }
    if (c->format == CU_CODED)
        return upload_coded(d, w, c, err);
    CUDA_TRY(
        cudaMallocAsync((void **)&staging, step * (w->row_bytes + 2 * w->scale_row_bytes) + 256, d->stream),
        "staging memory for weights");
    for (uint32_t row = 0; row < w->n_out && s == ESP_OK; row += step)
        s = pack_rows(d, w, c, staging, row, w->n_out - row < step ? w->n_out - row : step, err);
    cudaFreeAsync(staging, d->stream);
    return s;
}

/* An op before this one has the same weight. */
static bool seen(const struct esp_tape *t, uint32_t at)
{
    for (uint32_t i = 0; i < at; i++)
        if (t->ops[i].w == t->ops[at].w)
            return true;
    return false;
}

uint64_t cuda_weight_bytes(const struct esp_dev *d, const struct esp_tape *t)
{
    uint64_t n = 0;

    (void)d;
    for (uint32_t i = 0; i < t->n_op; i++)
        if (t->ops[i].w && !seen(t, i)) {
            const struct cu_weight c = cuda_weight_describe(t->ops[i].w);

            n += cu_packed_code_bytes(&c) + cu_packed_scale_bytes(&c);
        }
    return n ? n + STAGING_BYTES : 0;
}

static struct cuda_weight *find(struct cuda_dev *d, const struct esp_weight *w)
{
    for (uint32_t i = 0; i < d->n_weight; i++)
        if (d->weights[i]->refs && d->weights[i]->key == w)
            return d->weights[i];
    return NULL;
}

static void release_memory(struct cuda_weight *c)
{
    cudaFree(c->codes);
    cudaFree(c->scales);
    c->codes = c->scales = NULL;
    c->refs = 0;
}

static esp_status add_place(struct cuda_dev *d, struct cuda_weight **out, esp_error *err)
{
    for (uint32_t i = 0; i < d->n_weight; i++)
        if (!d->weights[i]->refs) {
            *out = d->weights[i];
            return ESP_OK;
        }
    if (d->n_weight == d->cap_weight) {
        uint32_t cap = d->cap_weight ? d->cap_weight * 2 : 256;
        void *p = esp_realloc(d->weights, cap * sizeof *d->weights);

        if (!p)
            return esp_fail(err, ESP_ENOMEM, "%u weights: out of memory", cap);
        d->weights = p;
        d->cap_weight = cap;
    }
    *out = esp_alloc(sizeof **out);
    if (!*out)
        return esp_fail(err, ESP_ENOMEM, "weight: out of memory");
    d->weights[d->n_weight++] = *out;
    return ESP_OK;
}

esp_status cuda_weight_take(struct cuda_dev *d, const struct esp_weight *w, struct cuda_weight **out,
                            esp_error *err)
{
    struct cuda_weight *c = find(d, w);
    size_t scales;
    cudaError_t e;
    esp_status s;

    if (c) {
        c->refs++;
        *out = c;
        return ESP_OK;
    }
    ESP_TRY(add_place(d, &c, err));
    *c = (struct cuda_weight){.key = w, .w = cuda_weight_describe(w)};
    scales = cu_packed_scale_bytes(&c->w);
    e = cudaMalloc(&c->codes, cu_packed_code_bytes(&c->w));
    if (e == cudaSuccess && scales)
        e = cudaMalloc(&c->scales, scales);
    c->w.codes = c->codes;
    c->w.scales = c->scales;
    s = e == cudaSuccess ? upload(d, w, &c->w, err) : cuda_failed(err, e, "weights");
    if (s != ESP_OK) {
        release_memory(c);
        return s;
    }
    c->refs = 1;
    *out = c;
    return ESP_OK;
}

void cuda_weight_release(struct cuda_weight *w)
{
    if (w && --w->refs == 0)
        release_memory(w);
}
