/*
 * What products with affine and with trellis weights share: activations as 16-bit integers with a step, and
 * sums of them times four outputs' values that were formed beforehand.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_ARM_CODED_H
#define ESP_KERNELS_ARM_CODED_H

#include <math.h>

#include "kernels/arm/neon.h"

enum { OUTS = 4 /* outputs of a tile whose inputs are summed */ };

/* Step of x[0..n) with `top` for the largest; as the reference: 0 below the normal range, NaN where an input
 * is not finite (NaN > inf > finite as integers). n is a multiple of 4. */
N_INLINE float act_step(const float *x, size_t n, float top)
{
    uint32x4_t m = vdupq_n_u32(0);
    uint32_t bits;
    float max;

    for (size_t i = 0; i < n; i += 4)
        m = vmaxq_u32(m, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
    bits = vmaxvq_u32(m);
    if (bits >= 0x7f800000)
        return NAN;
    memcpy(&max, &bits, sizeof max);
    max /= top;
    return max < 0x1p-126f ? 0 : max;
}

/* v = x in steps, all 0 where there is no step; returns their sum. n is a multiple of 8. */
N_INLINE int32_t act_round(const float *x, size_t n, float step, int16_t *v)
{
    const float32x4_t by = vdupq_n_f32(step > 0 ? step : INFINITY);
    int32x4_t sum = vdupq_n_s32(0);

    for (size_t i = 0; i < n; i += 8) {
        const int32x4_t lo = vcvtnq_s32_f32(vdivq_f32(vld1q_f32(x + i), by));
        const int32x4_t hi = vcvtnq_s32_f32(vdivq_f32(vld1q_f32(x + i + 4), by));

        sum = vaddq_s32(sum, vaddq_s32(lo, hi));
        vst1q_s16(v + i, vcombine_s16(vmovn_s32(lo), vmovn_s32(hi)));
    }
    return vaddvq_s32(sum);
}

/* Sums of v[0..n) times the values of four outputs, `apart` from each other. n is a multiple of 8. */
N_INLINE float32x4_t dot4_int(const int16_t *values, size_t apart, const int16_t *v, size_t n)
{
    int32x4_t sum[OUTS];

    N_UNROLL
    for (int o = 0; o < OUTS; o++)
        sum[o] = vdupq_n_s32(0);
    for (size_t i = 0; i < n; i += 8) {
        const int16x8_t a = vld1q_s16(v + i);

        N_UNROLL
        for (int o = 0; o < OUTS; o++) {
            const int16x8_t c = vld1q_s16(values + (size_t)o * apart + i);

            sum[o] = vmlal_s16(sum[o], vget_low_s16(c), vget_low_s16(a));
            sum[o] = vmlal_high_s16(sum[o], c, a);
        }
    }
    return vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(sum[0], sum[1]), vpaddq_s32(sum[2], sum[3])));
}

N_INLINE float32x4_t dot4_float(const float *values, size_t apart, const float *z, size_t n)
{
    struct f8 sum[OUTS];
    float total[OUTS];

    N_UNROLL
    for (int o = 0; o < OUTS; o++)
        sum[o] = f8_zero();
    for (size_t i = 0; i < n; i += 8) {
        const struct f8 a = f8_load(z + i);

        N_UNROLL
        for (int o = 0; o < OUTS; o++)
            sum[o] = f8_fma(sum[o], f8_load(values + (size_t)o * apart + i), a);
    }
    N_UNROLL
    for (int o = 0; o < OUTS; o++)
        total[o] = f8_sum(sum[o]);
    return vld1q_f32(total);
}

#endif
