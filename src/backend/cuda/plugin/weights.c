/*
 * Weights in device memory: uploaded once, packed on the device, counted by the plans that use them. Codes of
 * 3, 5 and 6 bits are widened to 4 and 8 on the way; values stay what they were.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/cuda.h"

#include <string.h>

#include "base/mem.h"

enum { STAGING_BYTES = 64 << 20 };

static enum cu_format format_of(const struct esp_weight *w)
{
    const struct esp_format *f = esp_format_get(w->format);

    if (w->format == ESP_FORMAT_F32)
        return CU_F32;
    if (w->format == ESP_FORMAT_F16)
        return CU_F16;
    if (w->format == ESP_FORMAT_BF16)
        return CU_BF16;
    return f->bits <= 2 ? CU_Q2 : f->bits <= 4 ? CU_Q4 : CU_Q8;
}

static struct cu_weight describe(const struct esp_weight *w)
{
    struct cu_weight c = {.format = format_of(w), .n_out = w->n_out, .n_in = w->n_in};

    c.n_tile = (w->n_out + 15) / 16;
    c.n_quad = (w->n_in + 127) / 128;
    c.part_quads = (c.n_quad + CU_PARTS - 1) / CU_PARTS;
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

static esp_status upload(struct cuda_dev *d, const struct esp_weight *w, const struct cu_weight *c,
                         esp_error *err)
{
    uint32_t step = rows_at_once(w);
    uint8_t *staging;
    esp_status s = ESP_OK;

    if (c->format == CU_F32 || c->format == CU_F16) {
        CUDA_TRY(cudaMemcpyAsync((void *)(uintptr_t)c->codes, w->codes, w->row_bytes * w->n_out,
                                 cudaMemcpyHostToDevice, d->stream),
                 "uploading weights");
        return ESP_OK;
    }
    CUDA_TRY(
        cudaMallocAsync((void **)&staging, step * (w->row_bytes + 2 * w->scale_row_bytes) + 256, d->stream),
        "staging memory for weights");
    for (uint32_t row = 0; row < w->n_out && s == ESP_OK; row += step)
        s = pack_rows(d, w, c, staging, row, w->n_out - row < step ? w->n_out - row : step, err);
    cudaFreeAsync(staging, d->stream);
    return s;
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
    *c = (struct cuda_weight){.key = w, .w = describe(w)};
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
