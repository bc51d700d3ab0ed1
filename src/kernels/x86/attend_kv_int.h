/*
 * Scores with keys of 8-bit codes by VNNI's byte dot product, without making the codes floats. Queries become
 * integers of 16 bits with one step each, as two int8 terms: 2^-16 of the largest element is what rounding
 * one takes, hundreds of times less than what an 8-bit key has lost. The integer sum of four products is
 * exact; a score is one vector of f32 sums over ascending units, and one fixed tree, so neither the other
 * queries nor the positions beside it change its bits. Included by attend_kv_body.h where vectors have 16
 * lanes.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_ATTEND_KV_INT_H
#define ESP_KERNELS_X86_ATTEND_KV_INT_H

#include "kernels/x86/act_step.h"

enum {
    KV_INT_ROWS = 4,                 /* queries of a tile */
    KV_INT_STEP = 16,                /* place of the step behind the sums of units */
    KV_INT_TERMS = 32 * 4,           /* bytes in front of the terms */
    KV_INT_CHUNK = 2 * ESP_KV_GROUP, /* codes of a vector: two units */
};

_Static_assert(KV_INT_TERMS + 2 * ESP_KV_HEAD_MAX <= ESP_HEAD_MAX * (int)sizeof(float),
               "a query fits a row of sums");
_Static_assert(ESP_KV_HEAD_MAX / ESP_KV_GROUP <= KV_INT_STEP && VW == 16, "a row's scales fill a vector");

/*
 * A query of dim elements as integers to out[ESP_HEAD_MAX]: sums of units, 0 behind the last; the step; then
 * for each chunk its high terms and its low terms, 0 where the last chunk has one unit. An element is
 * step * (256 * high + low). A step is NaN where an element is not finite.
 */
static void kv_int_query(const float *x, uint32_t dim, float *out)
{
    const float step = act_step(x, dim, ESP_QUERY_TOP);
    const vf by = vf_set1(step == 0 ? 0 : 1 / step); /* finite: a step is normal or 0 */
    int8_t *const terms = (int8_t *)out + KV_INT_TERMS;

    memset(out, 0, KV_INT_TERMS);
    out[KV_INT_STEP] = step;
    if (dim % KV_INT_CHUNK)
        memset(terms + 2 * (size_t)(dim / KV_INT_CHUNK * KV_INT_CHUNK), 0, 2 * (size_t)KV_INT_CHUNK);
    for (uint32_t u = 0; u < dim / ESP_KV_GROUP; u++) {
        int8_t *high = terms + u / 2 * 2 * (size_t)KV_INT_CHUNK + u % 2 * (size_t)ESP_KV_GROUP;
        vi sum = vi_zero();

        for (uint32_t i = 0; i < ESP_KV_GROUP; i += VW, x += VW, high += VW) {
            const vi c = vi_from_f(vf_mul(vf_load(x), by));
            const vi h = vi_sar(vi_add(c, vi_set1(128)), 8);

            sum = vi_add(sum, c);
            vi_store_int8(high, h);
            vi_store_int8(high + KV_INT_CHUNK, vi_sub(c, vi_shl(h, 8)));
        }
        out[u] = (float)vi_sum(sum);
    }
}

/* Codes of chunk c of a row as bytes from 0 on, 128 above what they stand for; 128 where the row has ended.
 */
V_INLINE vi kv_int_codes(const uint8_t *row, uint32_t c, uint32_t n_unit)
{
    const uint8_t *p = row + c * (size_t)KV_INT_CHUNK;
    const vi codes = 2 * c + 1 < n_unit
                         ? _mm512_loadu_si512(p)
                         : _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)p));

    return _mm512_xor_si512(codes, _mm512_set1_epi8((char)0x80));
}

/*
 * Scores of n_row queries (kv_int_query()) with four positions, the last one again where there are no more;
 * constant: n_row and ahead, whether far is asked for. acc starts from what zero points and the 128 give, a
 * lane for a unit.
 */
V_INLINE void kv_int_tile(int n_row, bool ahead, const struct kv_side *s, const float *const *x,
                          struct kv_keys keys, struct kv_far *far, vf (*acc)[DOT_OUTS])
{
    const uint32_t n_unit = s->n_unit, n_chunk = (n_unit + 1) / 2;
    const ptrdiff_t bias = s->bias - s->scale;
    const uint8_t *row[DOT_OUTS];
    const float *scale[DOT_OUTS];

    V_UNROLL
    for (uint32_t o = 0; o < DOT_OUTS; o++) {
        const size_t at = o < keys.last ? o : keys.last;
        vf plus;

        row[o] = keys.first + at * s->row_bytes;
        scale[o] = s->scale + (keys.t + at) * n_unit;
        plus = vf_fnma(vf_load_n(scale[o], n_unit), vf_set1(128), vf_load_n(scale[o] + bias, n_unit));
        V_UNROLL
        for (int r = 0; r < n_row; r++)
            acc[r][o] = vf_mul(plus, vf_load(x[r]));
    }
    for (uint32_t c = 0; c < n_chunk; c++) {
        const vi two = vi_add(vi_shr_all(vi_ramp(), 3), vi_set1((int32_t)(2 * c)));
        const vi unit = _mm512_min_epi32(two, vi_set1((int32_t)n_unit - 1)); /* of each lane */
        vi codes[DOT_OUTS];
        vf by[DOT_OUTS];

        V_UNROLL
        for (uint32_t o = 0; o < DOT_OUTS; o++) {
            if (ahead)
                kv_far_go(far);
            codes[o] = kv_int_codes(row[o], c, n_unit);
            by[o] = vf_lanes(vf_load(scale[o]), unit);
        }
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            const int8_t *terms = (const int8_t *)x[r] + KV_INT_TERMS + c * 2 * (size_t)KV_INT_CHUNK;
            const vi high = _mm512_loadu_si512(terms), low = _mm512_loadu_si512(terms + KV_INT_CHUNK);

            V_UNROLL
            for (uint32_t o = 0; o < DOT_OUTS; o++) {
                const vi h = vi_shl(_mm512_dpbusd_epi32(vi_zero(), codes[o], high), 8);

                acc[r][o] = vf_fma(vf_from_i(_mm512_dpbusd_epi32(h, codes[o], low)), by[o], acc[r][o]);
            }
        }
    }
}

/*
 * Scores of a tile's queries, of which n_query are to be stored, with a block's n positions, whose scales are
 * there, to score[n_query][ESP_SPAN], up to 3 more of each.
 */
V_INLINE void kv_int_rows(int n_row, bool ahead, const struct kv_side *s, const float *const *x,
                          uint32_t n_query, const uint8_t *row, uint32_t n, struct kv_far *far, float *score)
{
    for (uint32_t t = 0; t < n; t += DOT_OUTS, row += DOT_OUTS * s->row_bytes, score += DOT_OUTS) {
        const struct kv_keys keys = {row, t, n - t - 1};
        vf acc[KV_INT_ROWS][DOT_OUTS];

        kv_int_tile(n_row, ahead, s, x, keys, far, acc);
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            const __m128 y = vf_sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);

            if ((uint32_t)r < n_query)
                _mm_storeu_ps(score + r * ESP_SPAN, _mm_mul_ps(y, _mm_set1_ps(x[r][KV_INT_STEP])));
        }
    }
}

/* Scores of queries [n_query][ESP_HEAD_MAX] of kv_int_query() with positions [0, n_pos), as kv_scores(). */
static void kv_int_scores(const struct kv_side *s, const struct kv_side *values, const float *query,
                          uint32_t n_query, uint32_t n_pos, float *score)
{
    for (uint32_t t = 0; t < n_pos; t += KV_BLOCK) {
        const uint32_t n = n_pos - t < KV_BLOCK ? n_pos - t : KV_BLOCK;
        const uint8_t *row = s->rows + t * s->row_bytes;
        struct kv_far far = kv_far_values(s, values, t, (size_t)(s->n_unit + 1) / 2 * KV_BLOCK);

        kv_scales(s, t, t + n);
        for (uint32_t q = 0; q < n_query; q += KV_INT_ROWS) {
            const uint32_t last = n_query - 1 - q, live = last < KV_INT_ROWS ? last + 1 : KV_INT_ROWS;
            float *y = score + q * ESP_SPAN + t;
            const float *x[KV_INT_ROWS];

            for (uint32_t r = 0; r < KV_INT_ROWS; r++) /* past the end the last one again */
                x[r] = query + (q + (r < last ? r : last)) * ESP_HEAD_MAX;
            if (live == 1)
                kv_int_rows(1, q == 0, s, x, live, row, n, &far, y);
            else if (q == 0)
                kv_int_rows(KV_INT_ROWS, true, s, x, live, row, n, &far, y);
            else
                kv_int_rows(KV_INT_ROWS, false, s, x, live, row, n, &far, y);
        }
    }
}

#endif
