/*
 * Integer products of affine weights for AVX2; see affine_int_body.h. Up to 6 bits, four products of a code
 * and an int8 fit in int16 (4 * 63 * 128 = 32256), so bytes are multiplied and added in 16 bits; 8 bits are
 * widened first.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx2.h"

#include "kernels/x86/codes_avx2.h"

#define A_ROWS 2 /* 8 accumulators of 16 registers */
#define A_OUTS 2 /* outputs whose codes are in registers together */

/* Sums of 4 neighbouring products in 32 bits. */
V_INLINE vi int_dot_wide(vi c, vi q)
{
    const vi c0 = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(c));
    const vi c1 = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(c, 1));
    const vi q0 = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(q));
    const vi q1 = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(q, 1));
    const vi sums = _mm256_hadd_epi32(_mm256_madd_epi16(c0, q0), _mm256_madd_epi16(c1, q1));

    return _mm256_permute4x64_epi64(sums, 0xd8); /* lanes in the order of the bytes */
}

/* acc + codes times q, byte by byte. */
V_INLINE vi int_dot(vi acc, struct codes c, struct codes q, int bits)
{
    vi sum;

    if (bits == 8)
        return _mm256_add_epi32(acc, _mm256_add_epi32(int_dot_wide(c.a, q.a), int_dot_wide(c.b, q.b)));
    sum = _mm256_add_epi16(_mm256_maddubs_epi16(c.a, q.a), _mm256_maddubs_epi16(c.b, q.b));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
}

#include "kernels/x86/affine_int_body.h"
#include "kernels/x86/parts.h"

void esp_affine_int_init_avx2(struct esp_kernels *k)
{
    affine_int_init(k);
}
