/*
 * Affine codes to bytes, a unit of 128 codes at a time, as two vectors a and b for AVX-512. The 128-bit lane
 * j of a and b together holds codes 32j .. 32j+31, so no lane mixes groups (groups are multiples of 32).
 * Inside a lane the order is what unpacks cheapest, and activations are prepared in that order
 * (affine_order.h).
 *
 * For 3, 5 and 6 bits: a byte shuffle brings each pair of neighbouring codes into a 16-bit word, a shift by
 * word aligns the first of them, and one more shift puts the second into the high byte.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_CODES_AVX512_H
#define ESP_KERNELS_X86_CODES_AVX512_H

struct codes {
    vi a, b;
};

/* Words of v that hold pairs of codes, first code at bit shift[word], as bytes. */
V_INLINE vi codes_pairs(vi v, __m128i bytes, __m128i shifts, int bits)
{
    const vi w = _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(bytes));
    const vi first = _mm512_srlv_epi16(w, _mm512_broadcast_i32x4(shifts));
    const vi second = _mm512_slli_epi16(first, (unsigned)(8 - bits));
    const vi both =
        _mm512_ternarylogic_epi32(_mm512_set1_epi16(0x00ff), first, second, 0xca); /* mask ? first : second */

    return _mm512_and_si512(both, _mm512_set1_epi8((char)((1 << bits) - 1)));
}

V_INLINE struct codes codes_unpack2(const uint8_t *p)
{
    const vi v = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    const vi t =
        _mm512_or_si512(v, _mm512_slli_epi32(v, 14)); /* codes 0, 4, 1, 5 at the low ends of the bytes */
    const vi mask = _mm512_set1_epi8(3);

    return (struct codes){_mm512_and_si512(t, mask), _mm512_and_si512(_mm512_srli_epi32(t, 4), mask)};
}

V_INLINE struct codes codes_unpack3(const uint8_t *p)
{
    const vi dwords = _mm512_setr_epi32(0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11);
    const vi v = _mm512_permutexvar_epi32(dwords, _mm512_maskz_loadu_epi32(0x0fff, p));
    const __m128i shifts = _mm_setr_epi16(0, 6, 4, 2, 0, 6, 4, 2);

    return (struct codes){
        codes_pairs(v, _mm_setr_epi8(0, 1, 0, 1, 1, 2, 2, 3, 3, 4, 3, 4, 4, 5, 5, 6), shifts, 3),
        codes_pairs(v, _mm_setr_epi8(6, 7, 6, 7, 7, 8, 8, 9, 9, 10, 9, 10, 10, 11, 11, 12), shifts, 3),
    };
}

V_INLINE struct codes codes_unpack4(const uint8_t *p)
{
    const vi v = _mm512_loadu_si512(p);
    const vi mask = _mm512_set1_epi8(15);

    return (struct codes){_mm512_and_si512(v, mask), _mm512_and_si512(_mm512_srli_epi16(v, 4), mask)};
}

/* A lane is 20 bytes: a in bytes 0 .. 9, b in bytes 10 .. 19. */
V_INLINE struct codes codes_unpack5(const uint8_t *p)
{
    const vi lo = _mm512_loadu_si512(p); /* dwords 0 .. 15; hi: 4 .. 19, its element i is index 16 + i */
    const vi hi = _mm512_loadu_si512(p + 16);
    const vi da = _mm512_setr_epi32(0, 1, 2, 2, 5, 6, 7, 7, 10, 11, 12, 12, 15, 28, 29, 29);
    const vi db = _mm512_setr_epi32(2, 3, 4, 4, 7, 8, 9, 9, 12, 13, 14, 14, 29, 30, 31, 31);
    const __m128i shifts = _mm_setr_epi16(0, 2, 4, 6, 0, 2, 4, 6);

    return (struct codes){
        codes_pairs(_mm512_permutex2var_epi32(lo, da, hi),
                    _mm_setr_epi8(0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 6, 7, 7, 8, 8, 9), shifts, 5),
        codes_pairs(_mm512_permutex2var_epi32(lo, db, hi),
                    _mm_setr_epi8(2, 3, 3, 4, 4, 5, 5, 6, 7, 8, 8, 9, 9, 10, 10, 11), shifts, 5),
    };
}

/* A lane is 24 bytes: a in bytes 0 .. 11, b in bytes 12 .. 23. */
V_INLINE struct codes codes_unpack6(const uint8_t *p)
{
    const vi lo = _mm512_loadu_si512(p); /* dwords 0 .. 15; hi: 8 .. 23, its element i is index 16 + i */
    const vi hi = _mm512_loadu_si512(p + 32);
    const vi da = _mm512_setr_epi32(0, 1, 2, 2, 6, 7, 8, 8, 12, 13, 14, 14, 26, 27, 28, 28);
    const vi db = _mm512_setr_epi32(3, 4, 5, 5, 9, 10, 11, 11, 15, 24, 25, 25, 29, 30, 31, 31);
    const __m128i bytes = _mm_setr_epi8(0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11);
    const __m128i shifts = _mm_setr_epi16(0, 4, 0, 4, 0, 4, 0, 4);

    return (struct codes){
        codes_pairs(_mm512_permutex2var_epi32(lo, da, hi), bytes, shifts, 6),
        codes_pairs(_mm512_permutex2var_epi32(lo, db, hi), bytes, shifts, 6),
    };
}

V_INLINE struct codes codes_unpack8(const uint8_t *p)
{
    const vi lo = _mm512_loadu_si512(p);
    const vi hi = _mm512_loadu_si512(p + 64);

    return (struct codes){
        _mm512_permutex2var_epi64(lo, _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13), hi),
        _mm512_permutex2var_epi64(lo, _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15), hi),
    };
}

V_INLINE struct codes codes_load(const uint8_t *p)
{
    return (struct codes){_mm512_loadu_si512(p), _mm512_loadu_si512(p + 64)};
}

V_INLINE void codes_store(uint8_t *p, struct codes c)
{
    _mm512_storeu_si512(p, c.a);
    _mm512_storeu_si512(p + 64, c.b);
}

/* In the order of chunks: 16 bytes of a, 16 of b, again for the next chunk. */
V_INLINE void codes_store_chunks(uint8_t *p, struct codes c)
{
    _mm512_storeu_si512(p, _mm512_permutex2var_epi64(c.a, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), c.b));
    _mm512_storeu_si512(p + 64,
                        _mm512_permutex2var_epi64(c.a, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), c.b));
}

#endif
