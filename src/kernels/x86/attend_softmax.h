/*
 * The softmax of attention, whatever keys and values are stored as: scores of a span to weights, and merging
 * of partial results. Included after vec_avx2.h or vec_avx512.h.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_ATTEND_SOFTMAX_H
#define ESP_KERNELS_X86_ATTEND_SOFTMAX_H

#include <math.h>

#include "kernels/kernels.h"
#include "kernels/x86/exp.h"

static float attend_exp(float x)
{
    float y[VW];

    vf_store(y, vf_exp(vf_set1(x)));
    return y[0];
}

static void attend_merge(float *m, float *l, float *acc, float m2, float l2, const float *acc2, size_t n)
{
    float top, keep, take;

    if (l2 == 0)
        return; /* empty partial: its m2 is -inf and would give inf - inf */
    top = m2 > *m ? m2 : *m;
    keep = attend_exp(*m - top); /* 0 before the first span */
    take = attend_exp(m2 - top);
    *m = top;
    *l = *l * keep + l2 * take;
    for (size_t i = 0; i < n; i += VW) {
        const vf old = vf_mul(vf_load_n(acc + i, n - i), vf_set1(keep));

        vf_store_n(acc + i, n - i, vf_fma(vf_load_n(acc2 + i, n - i), vf_set1(take), old));
    }
}

/* Scores of n positions to weights exp(score - m) in place; returns m, and their sum in *l. */
static float attend_weights(float *score, uint32_t n, float *l)
{
    vf top = vf_set1(-INFINITY), sum = vf_zero(), by;
    float m;

    for (uint32_t t = n; t % VW; t++)
        score[t] = -INFINITY; /* weight 0; a row has ESP_SPAN floats, a multiple of VW */
    for (uint32_t t = 0; t < n; t += VW)
        top = vf_max(vf_load(score + t), top); /* NaN never becomes the maximum, but reaches the sum */
    m = vf_hmax(top);
    by = vf_set1(m);
    for (uint32_t t = 0; t < n; t += VW) {
        const vf p = vf_exp(vf_sub(vf_load(score + t), by));

        vf_store(score + t, p);
        sum = vf_add(sum, p);
    }
    *l = vf_sum(sum);
    return m;
}

#endif
