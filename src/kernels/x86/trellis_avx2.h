/*
 * Windows of a trellis block for 256-bit vectors: 8 states at a time, hashed; and the integer operations of
 * the products. A group of 8 windows spans 7 k + 12 bits: 64 up to k = 7. Included after vec_avx2.h; the
 * names mean the same as in trellis_avx512.h.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_TRELLIS_AVX2_H
#define ESP_KERNELS_X86_TRELLIS_AVX2_H

#include <string.h>

#include "formats/trellis.h"

struct window {
    vi pick;  /* bytes that hold a lane's window */
    vi shift; /* bits below the window in them */
};

V_INLINE struct window window_of(int k)
{
    uint8_t pick[32];
    int32_t shift[VW];

    for (int j = 0; j < VW; j++) {
        for (int i = 0; i < 4; i++)
            pick[4 * j + i] = (uint8_t)(i < 3 ? k * j / 8 + i : 0x80);
        shift[j] = k * j % 8;
    }
    return (struct window){_mm256_loadu_si256((const __m256i *)(const void *)pick),
                           _mm256_loadu_si256((const __m256i *)(const void *)shift)};
}

V_INLINE uint64_t word64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, 8);
    return v;
}

V_INLINE vi window_bytes(int k, const uint8_t *block, int g)
{
    const int at = k * g, end = 32 * k;

    if (k > 4) /* such blocks are copied, with their start behind their end */
        return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(block + at)));
    if (at + 8 <= end)
        return _mm256_set1_epi64x((int64_t)word64(block + at));
    return _mm256_set1_epi64x(
        (int64_t)(word64(block + end - 8) >> (64 - 8 * (end - at)) | word64(block) << 8 * (end - at)));
}

V_INLINE vi window_hash(int k, const struct window *w, vi bytes)
{
    const vi s = _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(bytes, w->pick), w->shift),
                                  _mm256_set1_epi32(ESP_TRELLIS_STATES - 1));

    (void)k;
    return _mm256_add_epi32(_mm256_mullo_epi32(s, _mm256_set1_epi32(34038481)), _mm256_set1_epi32(76625530));
}

V_INLINE vi hash_value(vi x)
{
    const vi pairs = _mm256_maddubs_epi16(x, _mm256_set1_epi8(1)); /* at most 510: far from saturation */

    return _mm256_sub_epi32(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)), _mm256_set1_epi32(510));
}

V_INLINE vi hash_dot(vi acc, vi x, vi vv)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(x, _mm256_set1_epi8(1)), vv));
}

/* A compiler that added up the products of several steps first, as integers allow, would spill. */
V_INLINE vi dot16(vi acc, vi a, vi b)
{
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
    __asm__("" : "+x"(acc));
    return acc;
}

V_INLINE vi pack16(vi a, vi b)
{
    return _mm256_packs_epi32(a, b);
}

V_INLINE vi unmix16(vi v)
{
    return _mm256_permute4x64_epi64(v, 0xd8);
}

V_INLINE vi twice_a(vi v)
{
    return _mm256_unpacklo_epi16(v, v);
}

V_INLINE vi twice_b(vi v)
{
    return _mm256_unpackhi_epi16(v, v);
}

V_INLINE vi all16(const int16_t *p)
{
    return _mm256_set1_epi16(*p);
}

V_INLINE vi all_pairs(const int16_t *p)
{
    int32_t pair;

    memcpy(&pair, p, 4);
    return _mm256_set1_epi32(pair);
}

V_INLINE vi pair_lanes(vi even, vi odd)
{
    return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
}

V_INLINE vi t_load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

V_INLINE void t_store(void *p, vi v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

V_INLINE vf t_reverse(vf v)
{
    return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

V_INLINE __m128i t_sum4(vi a, vi b, vi c, vi d)
{
    const vi h = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));

    return _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}

#endif
