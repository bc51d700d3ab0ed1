/*
 * Codes of cached keys and values to floats, 8 at a time, in registers; included after vec_avx2.h. See
 * kv_codes_avx512.h.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_KV_CODES_AVX2_H
#define ESP_KERNELS_X86_KV_CODES_AVX2_H

#include "kernels/x86/kv_codes.h"

#define KV_INT 0 /* whether integers can be multiplied: attend_kv_int.h, attend_kv_word.h */

struct kv_lut {
    vi at, shift; /* 5 and 6 bits: byte of each code in its 64 bits; all: its lowest bit in what is shifted */
    vf low, high; /* up to 4 bits: levels, repeated when fewer than 8 */
    const float *levels;
};

V_INLINE struct kv_lut kv_lut_make(int raw, const float *levels)
{
    const int bits = kv_bits(raw);
    struct kv_lut l = {.levels = levels};
    uint8_t at[32];
    int32_t shift[VW];
    float t[2 * VW];

    for (int i = 0; i < VW; i++) {
        const int bit = i * bits;

        at[4 * i] = (uint8_t)(bit / 8);
        at[4 * i + 1] = (uint8_t)(bit / 8 + 1);
        at[4 * i + 2] = at[4 * i + 3] = 0x80; /* zero */
        shift[i] = bits <= 4 ? bit : bit % 8;
    }
    for (int i = 0; i < 2 * VW; i++)
        t[i] = bits <= 4 ? levels[i & ((1 << bits) - 1)] : 0;
    l.at = _mm256_loadu_si256((const __m256i *)(const void *)at);
    l.shift = _mm256_loadu_si256((const __m256i *)(const void *)shift);
    l.low = vf_load(t);
    l.high = vf_load(t + VW);
    return l;
}

/* Whether kv_raw() takes these codes from l->low and l->high, so that scaling the tables scales the codes. */
V_INLINE bool kv_looks_up(int raw)
{
    return raw == KV_RAW_2 || raw == KV_RAW_3 || raw == KV_RAW_4;
}

/* l with its tables times by, plus `plus` if biased: one rounding, as if applied to each code. */
V_INLINE struct kv_lut kv_lut_scale(int raw, int biased, struct kv_lut l, vf by, vf plus)
{
    l.low = biased ? vf_fma(l.low, by, plus) : vf_mul(l.low, by);
    if (raw == KV_RAW_4)
        l.high = biased ? vf_fma(l.high, by, plus) : vf_mul(l.high, by);
    return l;
}

/* Codes [8 j, 8 j + 8) of a row as floats. Reads up to 3 bytes behind the codes, which are scales. */
V_INLINE vf kv_raw(int raw, const uint8_t *row, size_t j, const struct kv_lut *l)
{
    const uint8_t *p = row + j * (size_t)kv_bits(raw);
    vi code;

    if (raw == KV_RAW_S8)
        return vf_from_i(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
    if (raw == KV_RAW_U8)
        return vf_from_u8(p);
    if (raw == KV_RAW_LEVEL8)
        return _mm256_i32gather_ps(
            l->levels, _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)), 4);
    if (kv_bits(raw) <= 4) {
        code = _mm256_srlv_epi32(vi_set1((int32_t)kv_load32(p)), l->shift);
        if (raw != KV_RAW_4)
            return vf_lanes(l->low, code);
        return _mm256_blendv_ps(vf_lanes(l->low, code), vf_lanes(l->high, code),
                                _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)));
    }
    code = _mm256_shuffle_epi8(_mm256_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)(const void *)p)),
                               l->at);
    code = _mm256_srlv_epi32(code, l->shift);
    if (raw == KV_RAW_5)
        return _mm256_i32gather_ps(l->levels, _mm256_and_si256(code, vi_set1(31)), 4);
    return vf_from_i(_mm256_and_si256(code, vi_set1(63)));
}

#endif
