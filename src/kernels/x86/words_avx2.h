/*
 * Affine codes widened to 16 bits, a unit of 64 codes as four vectors, for multiplications of 16 bits with
 * AVX2. Included after codes_avx2.h and affine_order.h.
 *
 * Lane l of a unit is its inputs 32 l .. 32 l + 31. Word w of vector v in a lane is the input WORDS[v][w]:
 * whatever takes least to unpack, masks and one shift. Two neighbouring words are a pair, which one
 * multiply-add sums; a panel (panel_unit) has the pairs of 8 outputs side by side, a lane of 32 bits each.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_WORDS_AVX2_H
#define ESP_KERNELS_X86_WORDS_AVX2_H

enum {
    WORD_VECTORS = UNIT / 16,
    UNIT_PAIRS = UNIT / 2,
    PANEL_VECTORS = 2, /* of outputs, side by side in a panel */
    PANEL_OUTS = PANEL_VECTORS * VW,
};

static const int32_t WORDS[3][WORD_VECTORS][8] = {
    [ORDER_NATURAL] = {{0, 2, 4, 6, 8, 10, 12, 14},
                       {1, 3, 5, 7, 9, 11, 13, 15},
                       {16, 18, 20, 22, 24, 26, 28, 30},
                       {17, 19, 21, 23, 25, 27, 29, 31}},
    [ORDER_2BIT] = {{0, 1, 8, 9, 16, 17, 24, 25},
                    {4, 5, 12, 13, 20, 21, 28, 29},
                    {2, 3, 10, 11, 18, 19, 26, 27},
                    {6, 7, 14, 15, 22, 23, 30, 31}},
    [ORDER_4BIT] = {{0, 4, 8, 12, 16, 20, 24, 28},
                    {1, 5, 9, 13, 17, 21, 25, 29},
                    {2, 6, 10, 14, 18, 22, 26, 30},
                    {3, 7, 11, 15, 19, 23, 27, 31}},
};

struct words {
    vi v[WORD_VECTORS];
};

V_INLINE vi words_low(vi v, int mask)
{
    return _mm256_and_si256(v, _mm256_set1_epi16((short)mask));
}

/* Four words of one of 16 bits, each 4 bits. */
V_INLINE struct words words_of_nibbles(vi v)
{
    return (struct words){{words_low(v, 15), words_low(_mm256_srli_epi16(v, 4), 15),
                           words_low(_mm256_srli_epi16(v, 8), 15), _mm256_srli_epi16(v, 12)}};
}

V_INLINE struct words words_get(int bits, const uint8_t *p)
{
    struct codes c;

    if (bits == 4)
        return words_of_nibbles(_mm256_loadu_si256((const __m256i *)(const void *)p));
    c = codes_get(bits, p);
    return (struct words){
        {words_low(c.a, 255), _mm256_srli_epi16(c.a, 8), words_low(c.b, 255), _mm256_srli_epi16(c.b, 8)}};
}

V_INLINE void panel_store(int16_t *out, int pair, vi v)
{
    _mm256_storeu_si256((__m256i *)(void *)(out + pair * PANEL_OUTS * 2), v);
}

/* A unit of 8 outputs at p: pair i of the unit to out + i * PANEL_OUTS * 2. */
V_INLINE void panel_unit(int bits, const uint8_t *const *p, int16_t *out)
{
    vi a[VW], b[VW];

    if (bits == 4) {
        for (int lane = 0; lane < 2; lane++) {
            V_UNROLL
            for (int i = 0; i < 4; i++)
                a[i] = codes_lanes(p[i] + 16 * lane, p[i + 4] + 16 * lane);
            vi_transpose4(a);
            V_UNROLL
            for (int i = 0; i < 4; i++) {
                const struct words w = words_of_nibbles(a[i]);

                V_UNROLL
                for (int v = 0; v < WORD_VECTORS; v++)
                    panel_store(out, 8 * v + 4 * lane + i, w.v[v]);
            }
        }
        return;
    }
    V_UNROLL
    for (int i = 0; i < VW; i++) {
        const struct codes c = codes_get(bits, p[i]);

        a[i] = c.a;
        b[i] = c.b;
    }
    vi_transpose(a);
    V_UNROLL
    for (int i = 0; i < VW; i++) {
        panel_store(out, i, words_low(a[i], 255));
        panel_store(out, 8 + i, _mm256_srli_epi16(a[i], 8));
    }
    vi_transpose(b);
    V_UNROLL
    for (int i = 0; i < VW; i++) {
        panel_store(out, 16 + i, words_low(b[i], 255));
        panel_store(out, 24 + i, _mm256_srli_epi16(b[i], 8));
    }
}

/* The same as bytes: four bytes of a, then of b. */
V_INLINE void panel_unit8(int bits, const uint8_t *const *p, uint8_t *out)
{
    vi a[VW], b[VW];

    V_UNROLL
    for (int i = 0; i < VW; i++) {
        const struct codes c = codes_get(bits, p[i]);

        a[i] = c.a;
        b[i] = c.b;
    }
    vi_transpose(a);
    V_UNROLL
    for (int i = 0; i < VW; i++)
        _mm256_storeu_si256((__m256i *)(void *)(out + i * PANEL_OUTS * 4), a[i]);
    vi_transpose(b);
    V_UNROLL
    for (int i = 0; i < VW; i++)
        _mm256_storeu_si256((__m256i *)(void *)(out + (8 + i) * PANEL_OUTS * 4), b[i]);
}

#endif
