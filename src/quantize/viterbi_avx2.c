/*
 * Steps of the trellis search in 256-bit vectors: 16 states an instruction.
 *
 * SPDX-License-Identifier: MIT
 */
#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>

enum { LANES = 16 };
typedef __m256i vec;

#define v_load(p)     _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define v_store(p, a) _mm256_storeu_si256((__m256i *)(void *)(p), a)
#define v_splat(s)    _mm256_set1_epi16((short)(s))
#define v_subs(a, b)  _mm256_subs_epi16(a, b)
#define v_double(d)   _mm256_adds_epi16(d, d)
#define v_square(d)   _mm256_mulhrs_epi16(d, d)
#define v_adds(a, b)  _mm256_adds_epu16(a, b)
#define v_min(a, b)   _mm256_min_epu16(a, b)
#define v_sub(a, b)   _mm256_sub_epi16(a, b)
/* unpacking works within 128 bits; the halves are put in order afterwards */
#define v_zip0(a, b) _mm256_permute2x128_si256(_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b), 0x20)
#define v_zip1(a, b) _mm256_permute2x128_si256(_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b), 0x31)

#include "quantize/viterbi_body.h"

uint32_t esp_viterbi_steps_avx2(const struct esp_viterbi_code *c, const int16_t *x, uint32_t n,
                                uint32_t first, uint32_t every, uint16_t *cost)
{
    const uint32_t limits[2] = {first, every};

    return steps_any(c, x, n, limits, cost);
}

#else
typedef int esp_viterbi_avx2_is_empty;
#endif
