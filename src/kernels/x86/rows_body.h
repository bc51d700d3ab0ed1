/*
 * Norms, elementwise work, the causal convolution, conversions and the two searches over a logit row. Sums of
 * squares go into four vectors in turn, so their order depends on n alone.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_ROWS_BODY_H
#define ESP_KERNELS_X86_ROWS_BODY_H

#include <math.h>

#include "kernels/kernels.h"
#include "kernels/x86/exp.h"

static float rows_sum_squares(const float *x, size_t n)
{
    vf s[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    size_t i = 0;

    for (; i + 4 * VW <= n; i += 4 * VW) {
        V_UNROLL
        for (int j = 0; j < 4; j++) {
            const vf v = vf_load(x + i + j * VW);

            s[j] = vf_fma(v, v, s[j]);
        }
    }
    for (; i < n; i += VW) {
        const vf v = vf_load_n(x + i, n - i);

        s[0] = vf_fma(v, v, s[0]);
    }
    return vf_sum(vf_add(vf_add(s[0], s[1]), vf_add(s[2], s[3])));
}

static void rows_rmsnorm(const float *x, const float *gamma, float eps, float *y, size_t n)
{
    const vf inv = vf_set1(1.0f / sqrtf(rows_sum_squares(x, n) / (float)n + eps));

    for (size_t i = 0; i < n; i += VW)
        vf_store_n(y + i, n - i, vf_mul(vf_mul(vf_load_n(x + i, n - i), inv), vf_load_n(gamma + i, n - i)));
}

static void rows_l2norm(const float *x, float eps, float scale, float *y, size_t n)
{
    const vf inv = vf_set1(1.0f / sqrtf(rows_sum_squares(x, n) + eps));

    for (size_t i = 0; i < n; i += VW)
        vf_store_n(y + i, n - i, vf_mul(vf_mul(vf_load_n(x + i, n - i), inv), vf_set1(scale)));
}

static void rows_gated_norm(const float *o, const float *z, const float *gamma, float eps, float *y, size_t n)
{
    const vf inv = vf_set1(1.0f / sqrtf(rows_sum_squares(o, n) / (float)n + eps));

    for (size_t i = 0; i < n; i += VW) {
        const vf norm = vf_mul(vf_mul(vf_load_n(o + i, n - i), inv), vf_load_n(gamma + i, n - i));

        vf_store_n(y + i, n - i, vf_mul(norm, vf_silu(vf_load_n(z + i, n - i))));
    }
}

static void rows_add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += VW)
        vf_store_n(y + i, n - i, vf_add(vf_load_n(y + i, n - i), vf_load_n(x + i, n - i)));
}

static void rows_swiglu(const float *gate, const float *up, float *y, size_t n)
{
    for (size_t i = 0; i < n; i += VW)
        vf_store_n(y + i, n - i, vf_mul(vf_silu(vf_load_n(gate + i, n - i)), vf_load_n(up + i, n - i)));
}

static void rows_sigmoid_mul(float *y, const float *gate, size_t n)
{
    for (size_t i = 0; i < n; i += VW)
        vf_store_n(y + i, n - i, vf_mul(vf_load_n(y + i, n - i), vf_sigmoid(vf_load_n(gate + i, n - i))));
}

static void rows_rope(float *x, const float *cos, const float *sin, size_t n_half)
{
    for (size_t j = 0; j < n_half; j += VW) {
        const size_t n = n_half - j;
        const vf a = vf_load_n(x + j, n), b = vf_load_n(x + n_half + j, n);
        const vf c = vf_load_n(cos + j, n), s = vf_load_n(sin + j, n);

        vf_store_n(x + j, n, vf_fnma(b, s, vf_mul(a, c)));
        vf_store_n(x + n_half + j, n, vf_fma(a, s, vf_mul(b, c)));
    }
}

static void rows_delta_gates(const float *b, const float *a, const float *a_neg, const float *dt_bias,
                             float *beta, float *g, size_t n)
{
    for (size_t i = 0; i < n; i += VW) {
        const vf s = vf_add(vf_load_n(a + i, n - i), vf_load_n(dt_bias + i, n - i));

        vf_store_n(beta + i, n - i, vf_sigmoid(vf_load_n(b + i, n - i)));
        vf_store_n(g + i, n - i, vf_mul(vf_load_n(a_neg + i, n - i), vf_softplus(s)));
    }
}

/*
 * Channels whose taps are transposed at once, and walked down the rows together: rows are pages apart, and a
 * kilobyte of each at a time is what hardware prefetching follows.
 */
enum { CONV_BLOCK = 256 };

/* Channels [c, c + n), n <= CONV_BLOCK; taps [ESP_CONV_TAPS][CONV_BLOCK]. */
static void rows_conv_row(const float *const *row, const float *taps, size_t c, size_t n, float *y)
{
    for (size_t i = 0; i < n; i += VW) {
        vf s = vf_mul(vf_load(taps + i), vf_load_n(row[0] + c + i, n - i));

        for (int j = 1; j < ESP_CONV_TAPS; j++)
            s = vf_fma(vf_load(taps + j * CONV_BLOCK + i), vf_load_n(row[j] + c + i, n - i), s);
        vf_store_n(y + c + i, n - i, vf_silu(s));
    }
}

static void rows_conv_silu(const float *tail, size_t ld_tail, const float *p, size_t ldp, uint32_t n_tok,
                           const float *w, uint32_t c0, uint32_t c1, float *y, size_t ldy)
{
    float taps[ESP_CONV_TAPS * CONV_BLOCK];

    for (size_t c = c0; c < c1; c += CONV_BLOCK) {
        const size_t n = c1 - c < CONV_BLOCK ? c1 - c : CONV_BLOCK;

        for (size_t i = 0; i < n; i += VW) {
            for (int j = 0; j < ESP_CONV_TAPS; j++) {
                const size_t left = n - i < VW ? n - i : VW;

                vf_store(taps + j * CONV_BLOCK + i, vf_every4(w + (c + i) * ESP_CONV_TAPS, j, left));
            }
        }
        for (size_t t = 0; t < n_tok; t++) {
            const float *row[ESP_CONV_TAPS]; /* oldest first */

            for (size_t j = 0; j < ESP_CONV_TAPS; j++)
                row[j] = t + j < ESP_CONV_TAPS - 1 ? tail + (t + j) * ld_tail
                                                   : p + (t + j - (ESP_CONV_TAPS - 1)) * ldp;
            if (t + 1 < n_tok) {
                for (size_t i = 0; i < n; i += 16) /* lines to be written next */
                    __builtin_prefetch(y + (t + 1) * ldy + c + i, 1);
            }
            rows_conv_row(row, taps, c, n, y + t * ldy);
        }
    }
}

static void rows_f32_to_bf16(const float *x, uint16_t *y, size_t n)
{
    size_t i = 0;

    for (; i + VW <= n; i += VW)
        vf_store_bf16(y + i, vf_load(x + i));
    if (i < n)
        vf_store_bf16_n(y + i, n - i, vf_load_n(x + i, n - i));
}

static void rows_bf16_to_f32(const uint16_t *x, float *y, size_t n)
{
    size_t i = 0;

    for (; i + VW <= n; i += VW)
        vf_store(y + i, vf_from_bf16(x + i));
    if (i < n)
        vf_store_n(y + i, n - i, vf_from_bf16_n(x + i, n - i));
}

/* Where nothing is above -inf: the first that is not NaN, else 0. */
static size_t rows_argmax_low(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!isnan(x[i]))
            return i;
    }
    return 0;
}

/* Each lane keeps its first largest value; indices stay below 2^31. */
static size_t rows_argmax(const float *x, size_t n)
{
    vf best = vf_set1(-INFINITY);
    vi at = vi_ramp(), here = vi_ramp();
    float value[VW], top = -INFINITY;
    int32_t index[VW];
    size_t i = 0, first;

    for (; i + VW <= n; i += VW) {
        const vf v = vf_load(x + i);
        const vm up = vf_gt(v, best);

        best = vf_select(up, v, best);
        at = vi_select(up, here, at);
        here = vi_add(here, vi_set1(VW));
    }
    vf_store(value, best);
    vi_store(index, at);
    first = n;
    for (int j = 0; j < VW; j++) {
        if (value[j] > top || (value[j] == top && top > -INFINITY && (size_t)index[j] < first)) {
            top = value[j];
            first = (size_t)index[j];
        }
    }
    for (; i < n; i++) {
        if (x[i] > top) {
            top = x[i];
            first = i;
        }
    }
    return top > -INFINITY ? first : rows_argmax_low(x, n);
}

static size_t rows_first_nonfinite(const float *x, size_t n)
{
    const vf inf = vf_set1(INFINITY);
    size_t i = 0;

    for (; i + VW <= n; i += VW) {
        const uint32_t bad = vm_bits(vf_nlt(vf_load(x + i), inf));

        if (bad)
            return i + (size_t)__builtin_ctz(bad);
    }
    for (; i < n; i++) {
        if (!(x[i] < INFINITY))
            return i;
    }
    return n;
}

static void rows_init(struct esp_kernels *k)
{
    k->rmsnorm = rows_rmsnorm;
    k->l2norm = rows_l2norm;
    k->gated_norm = rows_gated_norm;
    k->add = rows_add;
    k->swiglu = rows_swiglu;
    k->sigmoid_mul = rows_sigmoid_mul;
    k->rope = rows_rope;
    k->conv_silu = rows_conv_silu;
    k->delta_gates = rows_delta_gates;
    k->f32_to_bf16 = rows_f32_to_bf16;
    k->bf16_to_f32 = rows_bf16_to_f32;
    k->argmax = rows_argmax;
    k->first_nonfinite = rows_first_nonfinite;
}

#endif
