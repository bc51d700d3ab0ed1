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

V_INLINE vi int_load(const int8_t *q)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)q);
}

/* Sums of 4 neighbouring products in 32 bits. */
V_INLINE vi int_dot_wide(vi c, const int8_t *q)
{
    const __m128i *p = (const __m128i *)(const void *)q;
    const vi c0 = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(c));
    const vi c1 = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(c, 1));
    const vi s0 = _mm256_madd_epi16(c0, _mm256_cvtepi8_epi16(_mm_loadu_si128(p)));
    const vi s1 = _mm256_madd_epi16(c1, _mm256_cvtepi8_epi16(_mm_loadu_si128(p + 1)));

    return _mm256_permute4x64_epi64(_mm256_hadd_epi32(s0, s1), 0xd8); /* lanes in the order of the bytes */
}

/* acc + codes times q: q holds the bytes for a, then for b. */
V_INLINE vi int_dot(vi acc, struct codes c, const int8_t *q, int bits)
{
    vi sum;

    if (bits == 8)
        return _mm256_add_epi32(acc, _mm256_add_epi32(int_dot_wide(c.a, q), int_dot_wide(c.b, q + 32)));
    sum =
        _mm256_add_epi16(_mm256_maddubs_epi16(c.a, int_load(q)), _mm256_maddubs_epi16(c.b, int_load(q + 32)));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
}

#include "kernels/x86/affine_int_body.h"
#include "kernels/x86/parts.h"

void esp_affine_int_init_avx2(struct esp_kernels *k)
{
    affine_int_init(k);
}
