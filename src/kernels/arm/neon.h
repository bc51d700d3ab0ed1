/*
 * What the NEON kernels share. A float sum is two vectors of four partial sums, inputs ascending in steps of
 * eight, then one fixed tree, so its bits depend on its two rows alone.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_ARM_NEON_H
#define ESP_KERNELS_ARM_NEON_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define N_INLINE static inline __attribute__((always_inline, unused))

#if defined(__clang__)
#define N_UNROLL _Pragma("clang loop unroll(full)")
#else
#define N_UNROLL _Pragma("GCC unroll 16")
#endif

/* Eight floats. */
struct f8 {
    float32x4_t lo, hi;
};

N_INLINE struct f8 f8_zero(void)
{
    return (struct f8){vdupq_n_f32(0), vdupq_n_f32(0)};
}

N_INLINE struct f8 f8_load(const float *p)
{
    return (struct f8){vld1q_f32(p), vld1q_f32(p + 4)};
}

/* n < 8 floats, the rest zero. */
N_INLINE struct f8 f8_load_n(const float *p, size_t n)
{
    float t[8] = {0};

    memcpy(t, p, n * sizeof *t);
    return f8_load(t);
}

N_INLINE void f8_store(float *p, struct f8 v)
{
    vst1q_f32(p, v.lo);
    vst1q_f32(p + 4, v.hi);
}

N_INLINE struct f8 f8_fma(struct f8 acc, struct f8 a, struct f8 b)
{
    return (struct f8){vfmaq_f32(acc.lo, a.lo, b.lo), vfmaq_f32(acc.hi, a.hi, b.hi)};
}

N_INLINE float f8_sum(struct f8 v)
{
    return vaddvq_f32(vaddq_f32(v.lo, v.hi));
}

N_INLINE struct f8 f8_from_bf16(const uint16_t *p)
{
    const uint16x8_t h = vld1q_u16(p);

    return (struct f8){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
                       vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))};
}

N_INLINE struct f8 f8_from_f16(const uint16_t *p)
{
    const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));

    return (struct f8){vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}

/* Rounded to nearest even bf16, kept as f32; NaN stays NaN. */
N_INLINE uint32x4_t bf16_high(float32x4_t v)
{
    const uint32x4_t u = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));

    return vandq_u32(vbslq_u32(vceqq_f32(v, v), up, quiet), vdupq_n_u32(0xffff0000));
}

N_INLINE float32x4_t round_bf16(float32x4_t v)
{
    return vreinterpretq_f32_u32(bf16_high(v));
}

/* First n of four results. */
N_INLINE void store4(float *y, float32x4_t v, size_t n)
{
    float t[4];

    if (n >= 4) {
        vst1q_f32(y, v);
        return;
    }
    vst1q_f32(t, v);
    memcpy(y, t, n * sizeof *t);
}

#endif
