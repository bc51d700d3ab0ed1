/*
 * Affine codes to bytes, a unit of 64 codes at a time, for AVX2; see codes_avx512.h for the order. AVX2
 * cannot shift words by different counts to the right: a multiplication aligns the pairs at a common bit
 * instead.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_CODES_AVX2_H
#define ESP_KERNELS_X86_CODES_AVX2_H

struct codes {
    vi a, b;
};

V_INLINE vi codes_lanes(const uint8_t *lane0, const uint8_t *lane1)
{
    return _mm256_loadu2_m128i((const __m128i *)(const void *)lane1, (const __m128i *)(const void *)lane0);
}

/* Words of v that hold pairs of codes, brought to bit `top` by the factors, as bytes. */
V_INLINE vi codes_pairs(vi v, vi bytes, __m128i factors, int top, int bits)
{
    const vi w = _mm256_mullo_epi16(_mm256_shuffle_epi8(v, bytes), _mm256_broadcastsi128_si256(factors));
    const vi first = _mm256_srli_epi16(w, top);
    const vi second = _mm256_srli_epi16(w, top + bits - 8);
    const int mask = (1 << bits) - 1;

    return _mm256_or_si256(_mm256_and_si256(first, _mm256_set1_epi16((short)mask)),
                           _mm256_and_si256(second, _mm256_set1_epi16((short)(mask << 8))));
}

V_INLINE struct codes codes_unpack2(const uint8_t *p)
{
    const vi v = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    const vi t =
        _mm256_or_si256(v, _mm256_slli_epi32(v, 14)); /* codes 0, 4, 1, 5 at the low ends of the bytes */
    const vi mask = _mm256_set1_epi8(3);

    return (struct codes){_mm256_and_si256(t, mask), _mm256_and_si256(_mm256_srli_epi32(t, 4), mask)};
}

/* A lane is 12 bytes; the second one is loaded from byte 8, four bytes early, to stay inside the unit. */
V_INLINE struct codes codes_unpack3(const uint8_t *p)
{
    const vi v = codes_lanes(p, p + 8);
    const vi at = _mm256_setr_epi8(0, 1, 0, 1, 1, 2, 2, 3, 3, 4, 3, 4, 4, 5, 5, 6, 4, 5, 4, 5, 5, 6, 6, 7, 7,
                                   8, 7, 8, 8, 9, 9, 10);
    const __m128i factors = _mm_setr_epi16(64, 1, 4, 16, 64, 1, 4, 16); /* 2^(6 - shift) */
    /* b: six bytes on; its last word ends with the lane's last byte, the byte after it is not needed */
    const vi six = _mm256_add_epi8(at, _mm256_set1_epi8(6));
    const vi bt = _mm256_min_epu8(six, _mm256_set1_epi8(15));

    return (struct codes){codes_pairs(v, at, factors, 6, 3), codes_pairs(v, bt, factors, 6, 3)};
}

V_INLINE struct codes codes_unpack4(const uint8_t *p)
{
    const vi v = _mm256_loadu_si256((const __m256i *)(const void *)p);
    const vi mask = _mm256_set1_epi8(15);

    return (struct codes){_mm256_and_si256(v, mask), _mm256_and_si256(_mm256_srli_epi16(v, 4), mask)};
}

/* A lane is 20 bytes: a in bytes 0 .. 9, b in bytes 10 .. 19, loaded from byte 4. */
V_INLINE struct codes codes_unpack5(const uint8_t *p)
{
    const vi at = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 6, 7, 7, 8, 8, 9));
    const __m128i factors = _mm_setr_epi16(64, 16, 4, 1, 64, 16, 4, 1);

    return (struct codes){
        codes_pairs(codes_lanes(p, p + 20), at, factors, 6, 5),
        codes_pairs(codes_lanes(p + 4, p + 24), _mm256_add_epi8(at, _mm256_set1_epi8(6)), factors, 6, 5),
    };
}

/* A lane is 24 bytes: a in bytes 0 .. 11, b in bytes 12 .. 23, loaded from byte 8. */
V_INLINE struct codes codes_unpack6(const uint8_t *p)
{
    const vi at =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11));
    const __m128i factors = _mm_setr_epi16(16, 1, 16, 1, 16, 1, 16, 1);

    return (struct codes){
        codes_pairs(codes_lanes(p, p + 24), at, factors, 4, 6),
        codes_pairs(codes_lanes(p + 8, p + 32), _mm256_add_epi8(at, _mm256_set1_epi8(4)), factors, 4, 6),
    };
}

V_INLINE struct codes codes_load(const uint8_t *p)
{
    return (struct codes){_mm256_loadu_si256((const __m256i *)(const void *)p),
                          _mm256_loadu_si256((const __m256i *)(const void *)(p + 32))};
}

V_INLINE struct codes codes_unpack8(const uint8_t *p)
{
    const struct codes c = codes_load(p);

    return (struct codes){_mm256_permute2x128_si256(c.a, c.b, 0x20),
                          _mm256_permute2x128_si256(c.a, c.b, 0x31)};
}

V_INLINE void codes_store(uint8_t *p, struct codes c)
{
    _mm256_storeu_si256((__m256i *)(void *)p, c.a);
    _mm256_storeu_si256((__m256i *)(void *)(p + 32), c.b);
}

V_INLINE void codes_store_chunks(uint8_t *p, struct codes c)
{
    codes_store(p, (struct codes){_mm256_permute2x128_si256(c.a, c.b, 0x20),
                                  _mm256_permute2x128_si256(c.a, c.b, 0x31)});
}

#endif
