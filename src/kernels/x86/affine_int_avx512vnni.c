/*
 * Integer products of affine weights by VNNI's byte dot product; see affine_int_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx512.h"

#include "kernels/x86/codes_avx512.h"

#define A_ROWS 4 /* 16 accumulators; steps and activations come as memory operands */

/* acc + codes times q: q holds the bytes for a, then for b. */
V_INLINE vi int_dot(vi acc, struct codes c, const int8_t *q, int bits)
{
    (void)bits;
    acc = _mm512_dpbusd_epi32(acc, c.a, _mm512_loadu_si512(q));
    return _mm512_dpbusd_epi32(acc, c.b, _mm512_loadu_si512(q + 64));
}

#include "kernels/x86/affine_int_body.h"
#include "kernels/x86/parts.h"

void esp_affine_int_init_avx512vnni(struct esp_kernels *k)
{
    affine_int_init(k);
}
