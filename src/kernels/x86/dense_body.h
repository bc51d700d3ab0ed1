/*
 * Products with f32, bf16 and f16 weights. Outputs go in blocks whose weights stay in the second-level cache
 * while all rows pass by, so memory is read once a call.
 *
 * ESP_ACT_BF16 here: prepare rounds to bf16 but keeps f32, and the f32 product serves; the values are those
 * of the contract. A CPU with bf16 dot products replaces it for bf16 weights (dense_avx512bf16.c).
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_DENSE_BODY_H
#define ESP_KERNELS_X86_DENSE_BODY_H

#include "kernels/kernels.h"
#include "kernels/x86/dots.h"

enum { DENSE_BLOCK_BYTES = 256 * 1024 }; /* weights kept close while rows pass; a quarter of a small L2 */

static size_t dense_prepared_bytes(uint32_t n_in, uint32_t group)
{
    (void)group;
    return n_in * sizeof(float);
}

static void dense_prepare_bf16(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row,
                               void *out)
{
    for (size_t r = 0; r < n_row; r++) {
        const float *xr = x + r * ldx;
        float *y = (float *)out + r * w->n_in;

        for (size_t i = 0; i < w->n_in; i += VW)
            vf_store_n(y + i, w->n_in - i, vf_round_bf16(vf_load_n(xr + i, w->n_in - i)));
    }
}

V_INLINE void dense_product(int type, const struct esp_weight *w, const float *x, uint32_t n_row, uint32_t o0,
                            uint32_t o1, float *y, size_t ldy)
{
    const size_t fit = DENSE_BLOCK_BYTES / (w->row_bytes ? w->row_bytes : 1) & ~(size_t)(DOT_OUTS - 1);
    const uint32_t block = n_row <= V_ROWS ? o1 - o0 : (uint32_t)(fit > DOT_OUTS ? fit : DOT_OUTS);

    for (uint32_t o = o0; o < o1; o += block) {
        const uint32_t n_out = o1 - o < block ? o1 - o : block;

        for (uint32_t r0 = 0; r0 < n_row; r0 += V_ROWS) {
            const uint32_t n = n_row - r0 < V_ROWS ? n_row - r0 : V_ROWS;
            const struct dots d = {
                w->codes + o * w->row_bytes, w->row_bytes, n_out, w->n_in, y + r0 * ldy + o, ldy};
            const float *rows[V_ROWS];

            for (uint32_t r = 0; r < n; r++)
                rows[r] = x + (size_t)(r0 + r) * w->n_in;
            dots_rows(type, n, &d, rows);
        }
    }
}

static void dense_product_f32(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                              uint32_t o1, float *y, size_t ldy)
{
    dense_product(ESP_FORMAT_F32, w, act, n_row, o0, o1, y, ldy);
}

static void dense_product_bf16(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                               uint32_t o1, float *y, size_t ldy)
{
    dense_product(ESP_FORMAT_BF16, w, act, n_row, o0, o1, y, ldy);
}

static void dense_product_f16(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                              uint32_t o1, float *y, size_t ldy)
{
    dense_product(ESP_FORMAT_F16, w, act, n_row, o0, o1, y, ldy);
}

static const struct esp_path dense_paths[] = {{"tiles of f32 dot products, four outputs", ESP_SHAPE_ANY, 1},
                                              {NULL, ESP_SHAPE_ANY, 0}};

static void dense_init(struct esp_kernels *k)
{
    static const struct {
        enum esp_format_id format;
        void (*product)(const struct esp_weight *, const void *, uint32_t, uint32_t, uint32_t, float *,
                        size_t);
    } row[] = {
        {ESP_FORMAT_F32, dense_product_f32},
        {ESP_FORMAT_BF16, dense_product_bf16},
        {ESP_FORMAT_F16, dense_product_f16},
    };

    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        k->linear[row[i].format][ESP_ACT_F32] =
            (struct esp_linear){dense_prepared_bytes, NULL, row[i].product, NULL, NULL, dense_paths};
        k->linear[row[i].format][ESP_ACT_BF16] = (struct esp_linear){
            dense_prepared_bytes, dense_prepare_bf16, row[i].product, NULL, NULL, dense_paths};
    }
}

#endif
