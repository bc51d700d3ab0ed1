/*
 * Steps of the trellis search in 512-bit vectors: 32 states an instruction, four instructions a vector of
 * states.
 *
 * SPDX-License-Identifier: MIT
 */
#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>

enum { LANES = 32 };
typedef __m512i vec;

#define v_load(p)     _mm512_loadu_si512(p)
#define v_store(p, a) _mm512_storeu_si512(p, a)
#define v_splat(s)    _mm512_set1_epi16((short)(s))
#define v_subs(a, b)  _mm512_subs_epi16(a, b)
#define v_double(d)   _mm512_adds_epi16(d, d)
#define v_square(d)   _mm512_mulhrs_epi16(d, d)
#define v_adds(a, b)  _mm512_adds_epu16(a, b)
#define v_min(a, b)   _mm512_min_epu16(a, b)
#define v_sub(a, b)   _mm512_sub_epi16(a, b)
#define v_zip0(a, b)  _mm512_permutex2var_epi16(a, zip_index(0), b)
#define v_zip1(a, b)  _mm512_permutex2var_epi16(a, zip_index(16), b)
/* the smaller of both halves, in either half */
#define v_fold(a) _mm512_min_epu16(a, _mm512_shuffle_i64x2(a, a, 0x4e))

/* Lane 2 i takes element first + i of a, lane 2 i + 1 that of b. */
static inline __attribute__((always_inline)) __m512i zip_index(int first)
{
    const __m512i pairs = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i i = _mm512_add_epi32(pairs, _mm512_set1_epi32(first));

    return _mm512_or_si512(i, _mm512_slli_epi32(_mm512_add_epi32(i, _mm512_set1_epi32(32)), 16));
}

#include "quantize/viterbi_body.h"

uint32_t esp_viterbi_steps_avx512(const struct esp_viterbi_code *c, const int16_t *x, uint32_t n,
                                  uint32_t first, uint32_t every, uint16_t *cost)
{
    const uint32_t limits[2] = {first, every};

    return steps_any(c, x, n, limits, cost);
}

#else
typedef int esp_viterbi_avx512_is_empty;
#endif
