/*
 * Prepared rows of activations for trellis weights (trellis_body.h). Windows of a block are read from its
 * first bit on, which is backwards in time; so along axis 1 inputs lie reversed within each block. Integers
 * lie as pack16() mixes two vectors of values along axis 1, and in plain order along axis 0, where two
 * neighbours make a pair.
 *
 * Row of integers: steps [n_block, padded], 510 * sum of the block's integers [same], then int16
 * [n_block][256]. Row of floats: [n_block][256].
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_TRELLIS_ROWS_H
#define ESP_KERNELS_X86_TRELLIS_ROWS_H

#include <string.h>

#include "formats/trellis.h"
#include "kernels/kernels.h"
#include "kernels/x86/act_step.h"

enum { T_BLOCK = ESP_TRELLIS_BLOCK };

struct t_row {
    float *s;
    int32_t *sum;
    int16_t *v;
};

V_INLINE size_t t_blocks(uint32_t n_in)
{
    return ((size_t)n_in + T_BLOCK - 1) / T_BLOCK;
}

V_INLINE size_t t_head(uint32_t n_in)
{
    return (t_blocks(n_in) + 15) / 16 * 16;
}

V_INLINE size_t t_int_bytes(uint32_t n_in, uint32_t group)
{
    (void)group;
    return 8 * t_head(n_in) + sizeof(int16_t) * T_BLOCK * t_blocks(n_in);
}

V_INLINE size_t t_float_bytes(uint32_t n_in, uint32_t group)
{
    (void)group;
    return sizeof(float) * T_BLOCK * t_blocks(n_in);
}

V_INLINE struct t_row t_row_at(const void *base, uint32_t n_in)
{
    uint8_t *p = (uint8_t *)base; /* const is the caller's: prepare writes, product reads */

    return (struct t_row){(float *)(void *)p, (int32_t *)(void *)(p + 4 * t_head(n_in)),
                          (int16_t *)(void *)(p + 8 * t_head(n_in))};
}

/* Inputs of block b, times their factors along axis 0, zeros behind the last. */
V_INLINE void t_fold(const struct esp_weight *w, const float *x, size_t b, int bf16, float *z)
{
    const vf r = vf_set1(ESP_TRELLIS_RECIPROCAL);

    for (size_t i = 0; i < T_BLOCK; i += VW) {
        const size_t at = b * T_BLOCK + i, n = at < w->n_in ? w->n_in - at : 0;
        vf v = n ? vf_load_n(x + at, n < VW ? n : VW) : vf_zero();

        if (bf16)
            v = vf_round_bf16(v);
        if (!w->axis && n) {
            const uint16_t *scale = (const uint16_t *)(const void *)(w->scales + 2 * at);

            v = vf_mul(v, vf_mul(n < VW ? vf_from_f16_n(scale, n) : vf_from_f16(scale), r));
        }
        vf_store(z + i, v);
    }
}

V_INLINE void t_prepare_int(const struct esp_weight *w, const float *x, float top, struct t_row out)
{
    float z[T_BLOCK] __attribute__((aligned(64)));

    memset(out.s, 0, 8 * t_head(w->n_in));
    for (size_t b = 0; b < t_blocks(w->n_in); b++) {
        vi sum = vi_zero();
        float step;
        vf by;

        t_fold(w, x, b, 0, z);
        step = act_step(z, T_BLOCK, top);
        by = vf_set1(step == 0 ? __builtin_inff() : step); /* zero step: all integers 0 */
        for (size_t i = 0; i < T_BLOCK; i += 2 * VW) {
            const float *from = w->axis ? z + T_BLOCK - 2 * VW - i : z + i;
            const vf lo = vf_load(from), hi = vf_load(from + VW);
            const vi a = vi_from_f(vf_div(w->axis ? t_reverse(hi) : lo, by));
            const vi c = vi_from_f(vf_div(w->axis ? t_reverse(lo) : hi, by));
            const vi packed = pack16(a, c);

            sum = vi_add(sum, vi_add(a, c));
            t_store(out.v + b * T_BLOCK + i, w->axis ? packed : unmix16(packed));
        }
        out.s[b] = step;
        out.sum[b] = (int32_t)(510u * (uint32_t)vi_sum(sum));
    }
}

V_INLINE void t_prepare_float(const struct esp_weight *w, const float *x, int bf16, float *out)
{
    float z[T_BLOCK] __attribute__((aligned(64)));

    for (size_t b = 0; b < t_blocks(w->n_in); b++) {
        t_fold(w, x, b, bf16, z);
        for (size_t i = 0; i < T_BLOCK; i += VW)
            vf_store(out + b * T_BLOCK + i,
                     w->axis ? t_reverse(vf_load(z + T_BLOCK - VW - i)) : vf_load(z + i));
    }
}

#endif
