/*
 * Integer products of affine weights by VNNI's byte dot product; see affine_int_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx512.h"

#include "kernels/x86/codes_avx512.h"

#define A_ROWS 4 /* 16 accumulators of 32 registers */
#define A_OUTS 4 /* outputs whose codes are in registers together, to share loads of activations */

/* acc + codes times q, byte by byte. */
V_INLINE vi int_dot(vi acc, struct codes c, struct codes q, int bits)
{
    (void)bits;
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(acc, c.a, q.a), c.b, q.b);
}

#include "kernels/x86/affine_int_body.h"
#include "kernels/x86/parts.h"

void esp_affine_int_init_avx512vnni(struct esp_kernels *k)
{
    affine_int_init(k);
}
