/*
 * Prepared rows of activations for integer products of affine weights with AVX2 (affine_int_avx2.c): the
 * integer of a value in 16 bits, whatever its terms, and where codes are narrow enough for byte products its
 * terms again as bytes. Included after words_avx2.h.
 *
 * Row: steps s [n_group, padded to 8], s * (sum of the group's integers) [same], then for each unit of 64
 * inputs four vectors of int16 in the order of the codes; then, with terms as bytes, for each unit 64 bytes
 * q1, and with two terms 64 bytes q2, in the order of vectors a and b of its codes.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_AFFINE_ROWS_AVX2_H
#define ESP_KERNELS_X86_AFFINE_ROWS_AVX2_H

#include "kernels/x86/act_step.h"

/*
 * Bytes of a prepared row; terms as bytes: none where codes are too wide for byte products. An odd number of
 * cache lines, so that the rows of a tile do not share the sets of a cache.
 */
V_INLINE size_t int_bytes(uint32_t n_in, uint32_t group, int terms)
{
    const size_t each = sizeof(int16_t) + (size_t)terms;

    return pad_to(8 * pad_to(n_in / group, VW) + each * pad_to(n_in, UNIT), 64) | 64;
}

static size_t words_bytes(uint32_t n_in, uint32_t group)
{
    return int_bytes(n_in, group, 0);
}

static size_t int8_bytes(uint32_t n_in, uint32_t group)
{
    return int_bytes(n_in, group, 1);
}

static size_t int8x2_bytes(uint32_t n_in, uint32_t group)
{
    return int_bytes(n_in, group, 2);
}

/* ---- activations ---- */

/* Even and odd bytes in one vector. */
V_INLINE __m128i int_pack8(__m128i even, __m128i odd)
{
    return _mm_or_si128(_mm_and_si128(even, _mm_set1_epi16(255)), _mm_slli_epi16(odd, 8));
}

V_INLINE void int_store(void *p, __m128i v)
{
    _mm_storeu_si128((__m128i *)p, v);
}

/* Words of a lane of a unit as terms in the order of codes: a and b of q1, and of q2. */
V_INLINE void int_terms(enum order order, int terms, const __m128i *c, int8_t *out)
{
    const int odd = order == ORDER_4BIT ? 2 : 1; /* the word beside word 0 in bytes of a */
    __m128i q[WORD_VECTORS], rest[WORD_VECTORS];

    V_UNROLL
    for (int v = 0; v < WORD_VECTORS; v++) {
        q[v] = terms == 1 ? c[v] : _mm_srai_epi16(_mm_add_epi16(c[v], _mm_set1_epi16(64)), 7);
        rest[v] = _mm_sub_epi16(c[v], _mm_slli_epi16(q[v], 7));
    }
    int_store(out, int_pack8(q[0], q[odd]));
    int_store(out + 32, int_pack8(q[3 - odd], q[3]));
    if (terms == 2) {
        int_store(out + 64, int_pack8(rest[0], rest[odd]));
        int_store(out + 96, int_pack8(rest[3 - odd], rest[3]));
    }
}

/* 32 inputs from i on to words q and bytes t of a prepared row; returns the sum of their integers by lane. */
V_INLINE vi int_chunk(enum order order, int terms, const float *x, size_t i, vf step, int16_t *q, int8_t *t)
{
    __m128i c[WORD_VECTORS];
    vi sum = vi_zero();

    V_UNROLL
    for (int v = 0; v < WORD_VECTORS; v++) {
        const vi u = vi_from_f(vf_div(vf_pick32(x + i, WORDS[order][v]), step));

        sum = vi_add(sum, u);
        c[v] = _mm_packs_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
        int_store(q + i / UNIT * UNIT + i % UNIT / 4 + v * 16, c[v]);
    }
    if (terms)
        int_terms(order, terms, c, t + i / UNIT * UNIT * (size_t)terms + i % UNIT / 2);
    return sum;
}

V_INLINE void int_prepare(enum order order, int terms, float top, const struct esp_weight *w, const float *x,
                          uint8_t *out)
{
    const size_t n_group = w->n_in / w->group, pad = pad_to(n_group, VW), padded = pad_to(w->n_in, UNIT);
    float *s = (float *)(void *)out;
    float *ssum = s + pad;
    int16_t *q = (int16_t *)(void *)(ssum + pad);
    int8_t *t = (int8_t *)(q + padded);

    memset(out, 0, 8 * pad);
    if (w->n_in % UNIT) { /* the short last unit */
        memset(q + padded - UNIT, 0, UNIT * sizeof *q);
        memset(t + (size_t)terms * (padded - UNIT), 0, (size_t)terms * UNIT);
    }
    for (size_t g = 0; g < n_group; g++) {
        const float step = act_step(x + g * w->group, w->group, top);
        const vf by = vf_set1(step == 0 ? __builtin_inff() : step); /* zero step: all integers 0 */
        vi sum = vi_zero();

        for (size_t i = g * w->group; i < (g + 1) * w->group; i += 32)
            sum = vi_add(sum, int_chunk(order, terms, x, i, by, q, t));
        s[g] = step;
        ssum[g] = step * (float)vi_sum(sum);
    }
}

V_INLINE void int_prepare_rows(enum order order, int terms, float top, const struct esp_weight *w,
                               const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++)
        int_prepare(order, terms, top, w, x + r * ldx,
                    (uint8_t *)out + r * int_bytes(w->n_in, w->group, terms));
}

static void int8_wide(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    int_prepare_rows(ORDER_NATURAL, 0, 127, w, x, ldx, n_row, out);
}

static void int8_natural(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    int_prepare_rows(ORDER_NATURAL, 1, 127, w, x, ldx, n_row, out);
}

static void int8_2bit(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    int_prepare_rows(ORDER_2BIT, 1, 127, w, x, ldx, n_row, out);
}

static void int8_4bit(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    int_prepare_rows(ORDER_4BIT, 1, 127, w, x, ldx, n_row, out);
}

static void int8x2_wide(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    int_prepare_rows(ORDER_NATURAL, 0, 16256, w, x, ldx, n_row, out);
}

static void int8x2_natural(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    int_prepare_rows(ORDER_NATURAL, 2, 16256, w, x, ldx, n_row, out);
}

static void int8x2_2bit(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    int_prepare_rows(ORDER_2BIT, 2, 16256, w, x, ldx, n_row, out);
}

static void int8x2_4bit(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    int_prepare_rows(ORDER_4BIT, 2, 16256, w, x, ldx, n_row, out);
}

struct int_call {
    const struct esp_weight *w;
    const uint8_t *act;
    size_t act_bytes, pad; /* of a row, in bytes; of its steps, in floats */
    uint32_t n_row, o0, o1;
    float *y;
    size_t ldy;
};

/* A prepared row. */
struct int_row {
    const float *s;   /* [pad], and the sums behind them [pad] */
    const int16_t *q; /* words */
    const int8_t *t;  /* terms */
};

V_INLINE struct int_row int_row_at(const struct int_call *c, size_t r)
{
    const uint8_t *p = c->act + r * c->act_bytes;
    const int16_t *q = (const int16_t *)(const void *)(p + 8 * c->pad);

    return (struct int_row){(const float *)(const void *)p, q,
                            (const int8_t *)(q + pad_to(c->w->n_in, UNIT))};
}

V_INLINE vi load16(const int16_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

/* Where sums fill the registers: a compiler that adds up the products of several steps first, as integers
 * allow, would spill. */
V_INLINE vi mul16_now(vi acc, vi a, vi b)
{
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
    __asm__("" : "+x"(acc));
    return acc;
}

#endif
