/*
 * Codes of cached keys and values to floats, 16 at a time, in registers; included after vec_avx512.h. Codes
 * up to 5 bits are looked up (permutes take the low bits of an index, so what follows a code in its word does
 * no harm); the level of a plain code is the code itself.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_KV_CODES_AVX512_H
#define ESP_KERNELS_X86_KV_CODES_AVX512_H

#include "kernels/x86/kv_codes.h"

#define KV_INT 1 /* whether integers can be multiplied: attend_kv_int.h, attend_kv_word.h */

struct kv_lut {
    vi at, shift; /* byte of each code in its 128 bits, and bit in that byte */
    vi second;    /* 3 bits: bit of the code 16 further on, whose bytes come in the high half of a lane */
    vf low, high; /* levels, repeated when fewer than 16 */
    const float *levels;
};

V_INLINE struct kv_lut kv_lut_make(int raw, const float *levels)
{
    const int bits = kv_bits(raw);
    struct kv_lut l = {.levels = levels};
    uint8_t at[64];
    int32_t shift[VW];
    float t[32];

    for (int i = 0; i < VW; i++) {
        const int bit = i * bits;

        at[4 * i] = (uint8_t)(bit / 8);
        at[4 * i + 1] = bit % 8 + bits > 8 ? (uint8_t)(bit / 8 + 1) : 0x80; /* 0x80: zero */
        at[4 * i + 2] = raw == KV_RAW_3 ? (uint8_t)(at[4 * i] + 6) : 0x80;
        at[4 * i + 3] = raw == KV_RAW_3 && at[4 * i + 1] != 0x80 ? (uint8_t)(at[4 * i + 1] + 6) : 0x80;
        shift[i] = raw == KV_RAW_2 ? bit : bit % 8;
    }
    for (int i = 0; i < 32; i++)
        t[i] = bits <= 5 ? levels[i & ((1 << bits) - 1)] : 0;
    l.at = _mm512_loadu_si512(at);
    l.shift = _mm512_loadu_si512(shift);
    l.second = _mm512_add_epi32(l.shift, _mm512_set1_epi32(16));
    l.low = vf_load(t);
    l.high = vf_load(t + VW);
    return l;
}

/* Whether kv_raw() takes these codes from l->low and l->high, so that scaling the tables scales the codes. */
V_INLINE bool kv_looks_up(int raw)
{
    return raw == KV_RAW_2 || raw == KV_RAW_3 || raw == KV_RAW_4 || raw == KV_RAW_5;
}

/* l with its tables times by, plus `plus` if biased: one rounding, as if applied to each code. */
V_INLINE struct kv_lut kv_lut_scale(int raw, int biased, struct kv_lut l, vf by, vf plus)
{
    l.low = biased ? vf_fma(l.low, by, plus) : vf_mul(l.low, by);
    if (raw == KV_RAW_5)
        l.high = biased ? vf_fma(l.high, by, plus) : vf_mul(l.high, by);
    return l;
}

/* Codes [16 j, 16 j + 16) of a row as floats. Reads up to 4 bytes behind the codes, which are scales. */
V_INLINE vf kv_raw(int raw, const uint8_t *row, size_t j, const struct kv_lut *l)
{
    const uint8_t *p = row + j * 2 * (size_t)kv_bits(raw);
    vi code;

    if (raw == KV_RAW_S8)
        return vf_from_i(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
    if (raw == KV_RAW_U8)
        return vf_from_u8(p);
    if (raw == KV_RAW_LEVEL8)
        return _mm512_i32gather_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)),
                                   l->levels, 4);
    if (raw == KV_RAW_2) {
        code = _mm512_srlv_epi32(_mm512_set1_epi32((int32_t)kv_load32(p)), l->shift);
        return vf_lanes(l->low, code);
    }
    if (raw == KV_RAW_3) { /* one shuffle for both vectors of a unit */
        const __m128i unit = _mm_loadu_si128((const __m128i *)(const void *)(row + j / 2 * 12));

        code = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(unit), l->at);
        return vf_lanes(l->low, _mm512_srlv_epi32(code, j % 2 ? l->second : l->shift));
    }
    if (raw == KV_RAW_4)
        code = _mm512_set1_epi64((int64_t)kv_load64(p)); /* from memory: no shuffle */
    else if (raw == KV_RAW_5)
        code = _mm512_broadcast_i32x4(
            _mm_maskz_loadu_epi8(0x3ff, p)); /* 10 bytes; but 4 lie behind a row's codes */
    else
        code = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)p));
    code = _mm512_srlv_epi32(_mm512_shuffle_epi8(code, l->at), l->shift);
    if (raw == KV_RAW_5)
        return _mm512_permutex2var_ps(l->low, code, l->high);
    if (raw == KV_RAW_6)
        return vf_from_i(_mm512_and_si512(code, vi_set1(63)));
    return vf_lanes(l->low, code);
}

#endif
