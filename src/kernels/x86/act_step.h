/*
 * The step of integer activations, shared by affine and trellis weights at every x86 level. Included after
 * vec_*.h.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_ACT_STEP_H
#define ESP_KERNELS_X86_ACT_STEP_H

#include <string.h>

/*
 * For n values, a multiple of VW, whose largest magnitude becomes top; as the reference: 0 below the normal
 * range, NaN where an input is not finite (as integers NaN > inf > finite magnitudes).
 */
V_INLINE float act_step(const float *x, size_t n, float top)
{
    vi m = vi_zero();
    int32_t bits;
    float max;

    for (size_t i = 0; i < n; i += VW)
        m = vi_max(m, vi_from_bits(vf_abs(vf_load(x + i))));
    bits = vi_hmax(m);
    if (bits >= 0x7f800000)
        return __builtin_nanf("");
    memcpy(&max, &bits, sizeof max);
    max /= top;
    return max < 0x1p-126f ? 0 : max;
}

#endif
