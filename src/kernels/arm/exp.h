/*
 * exp, sigmoid and silu of four floats. exp is reduced by multiples of ln 2 in two parts; polynomial of
 * degree 7 (Cephes' expf coefficients: S. Moshier, netlib). Exactly 1 at 0, 0 from -104 down, infinity
 * above 88.73, NaN stays NaN.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_ARM_EXP_H
#define ESP_KERNELS_ARM_EXP_H

#include "kernels/arm/neon.h"

/* p * 2^n in two steps, each a normal power of two for -252 <= n <= 254. */
N_INLINE float32x4_t scale2(float32x4_t p, int32x4_t n)
{
    const int32x4_t n1 = vshrq_n_s32(n, 1), n2 = vsubq_s32(n, n1), bias = vdupq_n_s32(127);
    const float32x4_t s1 = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n1, bias), 23));
    const float32x4_t s2 = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n2, bias), 23));

    return vmulq_f32(vmulq_f32(p, s1), s2);
}

N_INLINE float32x4_t exp4(float32x4_t x)
{
    const float32x4_t in = vminq_f32(vdupq_n_f32(90.0f), vmaxq_f32(vdupq_n_f32(-106.0f), x)); /* keep NaN */
    const float32x4_t n = vrndnq_f32(vmulq_n_f32(in, 1.44269504f));
    const float32x4_t hi = vfmsq_n_f32(in, n, 0.693359375f);
    const float32x4_t r = vfmsq_n_f32(hi, n, -2.12194440e-4f);
    float32x4_t p = vdupq_n_f32(1.9875691500e-4f);

    p = vfmaq_f32(vdupq_n_f32(1.3981999507e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(8.3334519073e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(4.1665795894e-2f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.6666665459e-1f), p, r);
    p = vfmaq_f32(vdupq_n_f32(5.0000001201e-1f), p, r);
    p = vfmaq_f32(r, p, vmulq_f32(r, r));
    return scale2(vaddq_f32(p, vdupq_n_f32(1.0f)), vcvtnq_s32_f32(n));
}

/* By exp(-|x|), so that nothing overflows and small results keep their digits. */
N_INLINE float32x4_t sigmoid4(float32x4_t x)
{
    const float32x4_t one = vdupq_n_f32(1.0f), e = exp4(vnegq_f32(vabsq_f32(x)));

    return vdivq_f32(vbslq_f32(vcgeq_f32(x, vdupq_n_f32(0)), one, e), vaddq_f32(one, e));
}

N_INLINE float32x4_t silu4(float32x4_t x)
{
    return vmulq_f32(x, sigmoid4(x));
}

#endif
