/*
 * Windows of a trellis block for 512-bit vectors: 16 states at a time, hashed; and the integer operations of
 * the products. A group of 16 windows spans 15 k + 12 bits, which one broadcast load covers; the last group
 * of a block wraps to its start. With VBMI one instruction takes all 16 windows out of 64 bits (k <= 3).
 * Included after vec_avx512.h; trellis_avx2.h has the same names.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_TRELLIS_AVX512_H
#define ESP_KERNELS_X86_TRELLIS_AVX512_H

#include <string.h>

#include "formats/trellis.h"

/* Constants of one k; with a constant k they live in registers. */
struct window {
    vi pick;  /* bytes that hold a lane's window; with VBMI and k <= 3 bit offsets */
    vi shift; /* bits below the window in them */
};

#define T_NARROW(k) ((k) <= 3) /* 64 bits hold a group */
#if defined(__AVX512VBMI__)
#define T_MULTISHIFT(k) T_NARROW(k)
#else
#define T_MULTISHIFT(k) 0
#endif

V_INLINE struct window window_of(int k)
{
    uint8_t pick[64];
    int32_t shift[VW];

    for (int j = 0; j < VW; j++) {
        /* beyond k = 4 the halves of the vector are loaded apart, each from its own first byte */
        const int bit = k * (k > 4 ? j % 8 : j);

        for (int i = 0; i < 4; i++)
            pick[4 * j + i] = (uint8_t)(T_MULTISHIFT(k) ? bit + 8 * i : i < 3 ? bit / 8 + i : 0x80);
        shift[j] = bit % 8;
    }
    return (struct window){_mm512_loadu_si512(pick), _mm512_loadu_si512(shift)};
}

V_INLINE uint64_t word64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, 8);
    return v;
}

/* The bytes of group g: from the block, or for its last group from its end and its start. */
V_INLINE vi window_bytes(int k, const uint8_t *block, int g)
{
    const int at = 2 * k * g, end = 32 * k;
    const uint8_t *p = block + at;

    if (T_NARROW(k)) {
        if (at + 8 <= end)
            return _mm512_set1_epi64((int64_t)word64(p));
        return _mm512_set1_epi64(
            (int64_t)(word64(block + end - 8) >> (64 - 8 * (end - at)) | word64(block) << 8 * (end - at)));
    }
    if (k == 4) {
        if (at + 16 <= end)
            return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)p));
        return _mm512_broadcast_i32x4(_mm_set_epi64x((int64_t)word64(block), (int64_t)word64(p)));
    }
    return _mm512_inserti64x4(
        _mm512_castsi256_si512(
            _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p))),
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(p + k))), 1);
}

/* state * 34038481 + 76625530 of 16 windows; the sum of its bytes less 510 is the value. */
V_INLINE vi window_hash(int k, const struct window *w, vi bytes)
{
    vi s;

#if defined(__AVX512VBMI__)
    if (T_MULTISHIFT(k))
        s = _mm512_maskz_multishift_epi64_epi8(0x3333333333333333, w->pick, bytes);
    else
#endif
        s = _mm512_srlv_epi32(_mm512_shuffle_epi8(bytes, w->pick), w->shift);
    (void)k;
    s = _mm512_and_si512(s, _mm512_set1_epi32(ESP_TRELLIS_STATES - 1));
    return _mm512_add_epi32(_mm512_mullo_epi32(s, _mm512_set1_epi32(34038481)), _mm512_set1_epi32(76625530));
}

/* Values of hashes. */
V_INLINE vi hash_value(vi x)
{
    return _mm512_dpbusd_epi32(_mm512_set1_epi32(-510), x, _mm512_set1_epi8(1));
}

/* acc + (sum of the bytes of x) * v, v twice in each lane as int16. */
V_INLINE vi hash_dot(vi acc, vi x, vi vv)
{
    return _mm512_dpwssd_epi32(acc, _mm512_maddubs_epi16(x, _mm512_set1_epi8(1)), vv);
}

/* acc + products of neighbouring int16. As text, because GCC 12 copies the accumulators of a loop back and
 * forth around the builtin. */
V_INLINE vi dot16(vi acc, vi a, vi b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}

/* Lanes of a and b as int16: within each 128 bits four of a, then four of b. */
V_INLINE vi pack16(vi a, vi b)
{
    return _mm512_packs_epi32(a, b);
}

/* What pack16() made, in order. */
V_INLINE vi unmix16(vi v)
{
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), v);
}

/* Each int16 twice, for the lanes that pack16() took from a, and from b. */
V_INLINE vi twice_a(vi v)
{
    return _mm512_unpacklo_epi16(v, v);
}

V_INLINE vi twice_b(vi v)
{
    return _mm512_unpackhi_epi16(v, v);
}

/* One int16 in all places; a pair of them in all lanes. */
V_INLINE vi all16(const int16_t *p)
{
    return _mm512_set1_epi16(*p);
}

V_INLINE vi all_pairs(const int16_t *p)
{
    int32_t pair;

    memcpy(&pair, p, 4);
    return _mm512_set1_epi32(pair);
}

/* Low halves of the lanes of even, above them those of odd. */
V_INLINE vi pair_lanes(vi even, vi odd)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, even, _mm512_slli_epi32(odd, 16));
}

V_INLINE vi t_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

V_INLINE void t_store(void *p, vi v)
{
    _mm512_storeu_si512(p, v);
}

V_INLINE vf t_reverse(vf v)
{
    return _mm512_permutexvar_ps(_mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), v);
}

V_INLINE __m128i t_sum4(vi a, vi b, vi c, vi d)
{
    const vi ab = _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
    const vi cd = _mm512_add_epi32(_mm512_shuffle_i32x4(c, d, 0x44), _mm512_shuffle_i32x4(c, d, 0xee));
    const vi q = _mm512_add_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
    const vi t = _mm512_add_epi32(q, _mm512_shuffle_epi32(q, (_MM_PERM_ENUM)0x4e));
    const vi s = _mm512_add_epi32(t, _mm512_shuffle_epi32(t, (_MM_PERM_ENUM)0xb1));
    const vi firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);

    return _mm512_castsi512_si128(_mm512_permutexvar_epi32(firsts, s));
}

#endif
