/*
 * SwiGLU and the other elementwise work of a row, norms, and conversions. A sum of squares goes into four
 * vectors in turn, so its order depends on n alone; short ends are padded with zeros.
 *
 * SPDX-License-Identifier: MIT
 */
#include <math.h>

#include "kernels/arm/exp.h"
#include "kernels/arm/parts.h"

N_INLINE float32x4_t load_n(const float *p, size_t n)
{
    float t[4] = {0};

    if (n >= 4)
        return vld1q_f32(p);
    memcpy(t, p, n * sizeof *t);
    return vld1q_f32(t);
}

static float sum_squares(const float *x, size_t n)
{
    float32x4_t s[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        N_UNROLL
        for (int j = 0; j < 4; j++) {
            const float32x4_t v = vld1q_f32(x + i + 4 * j);

            s[j] = vfmaq_f32(s[j], v, v);
        }
    }
    for (; i < n; i += 4) {
        const float32x4_t v = load_n(x + i, n - i);

        s[0] = vfmaq_f32(s[0], v, v);
    }
    return vaddvq_f32(vaddq_f32(vaddq_f32(s[0], s[1]), vaddq_f32(s[2], s[3])));
}

static void rmsnorm(const float *x, const float *gamma, float eps, float *y, size_t n)
{
    const float inv = 1.0f / sqrtf(sum_squares(x, n) / (float)n + eps);

    for (size_t i = 0; i < n; i += 4)
        store4(y + i, vmulq_f32(vmulq_n_f32(load_n(x + i, n - i), inv), load_n(gamma + i, n - i)), n - i);
}

static void l2norm(const float *x, float eps, float scale, float *y, size_t n)
{
    const float inv = 1.0f / sqrtf(sum_squares(x, n) + eps);

    for (size_t i = 0; i < n; i += 4)
        store4(y + i, vmulq_n_f32(vmulq_n_f32(load_n(x + i, n - i), inv), scale), n - i);
}

static void gated_norm(const float *o, const float *z, const float *gamma, float eps, float *y, size_t n)
{
    const float inv = 1.0f / sqrtf(sum_squares(o, n) / (float)n + eps);

    for (size_t i = 0; i < n; i += 4) {
        const float32x4_t norm = vmulq_f32(vmulq_n_f32(load_n(o + i, n - i), inv), load_n(gamma + i, n - i));

        store4(y + i, vmulq_f32(norm, silu4(load_n(z + i, n - i))), n - i);
    }
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 4)
        store4(y + i, vaddq_f32(load_n(y + i, n - i), load_n(x + i, n - i)), n - i);
}

static void swiglu(const float *gate, const float *up, float *y, size_t n)
{
    for (size_t i = 0; i < n; i += 4)
        store4(y + i, vmulq_f32(silu4(load_n(gate + i, n - i)), load_n(up + i, n - i)), n - i);
}

static void sigmoid_mul(float *y, const float *gate, size_t n)
{
    for (size_t i = 0; i < n; i += 4)
        store4(y + i, vmulq_f32(load_n(y + i, n - i), sigmoid4(load_n(gate + i, n - i))), n - i);
}

static void rope(float *x, const float *cos, const float *sin, size_t n_half)
{
    for (size_t j = 0; j < n_half; j += 4) {
        const size_t n = n_half - j;
        const float32x4_t a = load_n(x + j, n), b = load_n(x + n_half + j, n);
        const float32x4_t c = load_n(cos + j, n), s = load_n(sin + j, n);

        store4(x + j, vfmsq_f32(vmulq_f32(a, c), b, s), n);
        store4(x + n_half + j, vfmaq_f32(vmulq_f32(b, c), a, s), n);
    }
}

static void f32_to_bf16(const float *x, uint16_t *y, size_t n)
{
    for (size_t i = 0; i < n; i += 4) {
        const uint16x4_t h = vshrn_n_u32(bf16_high(load_n(x + i, n - i)), 16);
        uint16_t t[4];

        vst1_u16(t, h);
        memcpy(y + i, t, (n - i < 4 ? n - i : 4) * sizeof *t);
    }
}

static void bf16_to_f32(const uint16_t *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i += 4) {
        uint16_t t[4] = {0};

        memcpy(t, x + i, (n - i < 4 ? n - i : 4) * sizeof *t);
        store4(y + i, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(t), 16)), n - i);
    }
}

void esp_rows_init_neon(struct esp_kernels *k)
{
    k->rmsnorm = rmsnorm;
    k->l2norm = l2norm;
    k->gated_norm = gated_norm;
    k->add = add;
    k->swiglu = swiglu;
    k->sigmoid_mul = sigmoid_mul;
    k->rope = rope;
    k->f32_to_bf16 = f32_to_bf16;
    k->bf16_to_f32 = bf16_to_f32;
}
