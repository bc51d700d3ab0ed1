/*
 * Attention of many queries over one span of coded keys and values, as prompts have it: a block of positions
 * becomes f32 once and all queries pass over it before the next block. The numbers and
 * the order of every sum are those of attend_kv_body.h, which takes few queries, so a query's bits do not
 * depend on how many come with it.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_ATTEND_KV_MANY_H
#define ESP_KERNELS_X86_ATTEND_KV_MANY_H

#include "kernels/x86/attend_kv_body.h"

enum {
    KV_MANY = KV_ROWS + 1, /* queries from which on decoding once costs less than in every tile */
    KV_MANY_MOST = 128,    /* queries at a time */
    KV_MANY_BLOCK = 8192   /* floats of a block: 32 positions of heads of 256 */
};

#if KV_INT
_Static_assert((int)KV_WORD_MOST >= (int)KV_MANY_MOST, "a call's queries have their places");
#endif

/* ---- decoding ---- */

/* Rows [t0, t1) of s, whose scales are there, to out[t1 - t0][dim]; raw and biased are constants. */
V_INLINE void kv_decode_raw(int raw, int biased, const struct kv_side *s, uint32_t t0, uint32_t t1,
                            float *out)
{
    const struct kv_lut lut = kv_lut_make(raw, s->levels);

    for (uint32_t t = t0; t < t1; t++) {
        const uint8_t *row = s->rows + t * s->row_bytes;
        const float *scale = s->scale + (size_t)(t - t0) * s->n_unit;
        const float *bias = biased ? s->bias + (size_t)(t - t0) * s->n_unit : NULL;

        for (uint32_t u = 0; u < s->n_unit; u++, out += ESP_KV_GROUP) {
            const vf by = vf_set1(scale[u]), plus = biased ? vf_set1(bias[u]) : vf_zero();
            const bool looks_up = kv_looks_up(raw);
            const struct kv_lut l = looks_up ? kv_lut_scale(raw, biased, lut, by, plus) : lut;

            V_UNROLL
            for (size_t j = 0; j < KV_UNIT; j++) {
                vf x = kv_raw(raw, row, u * KV_UNIT + j, &l);

                if (!looks_up)
                    x = biased ? vf_fma(x, by, plus) : vf_mul(x, by);
                vf_store(out + j * VW, x);
            }
        }
    }
}

static void kv_decode(enum kv_raw raw, const struct kv_side *s, uint32_t t0, uint32_t t1, float *out)
{
    switch (raw) {
    case KV_RAW_S8:
        kv_decode_raw(KV_RAW_S8, 1, s, t0, t1, out);
        break;
    case KV_RAW_U8:
        kv_decode_raw(KV_RAW_U8, 1, s, t0, t1, out);
        break;
    case KV_RAW_2:
        if (s->bias)
            kv_decode_raw(KV_RAW_2, 1, s, t0, t1, out);
        else
            kv_decode_raw(KV_RAW_2, 0, s, t0, t1, out);
        break;
    case KV_RAW_3:
        kv_decode_raw(KV_RAW_3, 0, s, t0, t1, out);
        break;
    case KV_RAW_4:
        if (s->bias)
            kv_decode_raw(KV_RAW_4, 1, s, t0, t1, out);
        else
            kv_decode_raw(KV_RAW_4, 0, s, t0, t1, out);
        break;
    case KV_RAW_5:
        if (s->bias)
            kv_decode_raw(KV_RAW_5, 1, s, t0, t1, out);
        else
            kv_decode_raw(KV_RAW_5, 0, s, t0, t1, out);
        break;
    case KV_RAW_6:
        kv_decode_raw(KV_RAW_6, 1, s, t0, t1, out);
        break;
    default:
        kv_decode_raw(KV_RAW_LEVEL8, 0, s, t0, t1, out);
        break;
    }
}

/* ---- sums over a decoded block ---- */

/* Scores of n_row queries from q0 on with the block's n positions from t0 on. */
V_INLINE void kv_many_scores(int n_row, const struct kv_span *s, const float *block, size_t q0, uint32_t t0,
                             uint32_t n)
{
    const uint32_t dim = s->k.dim;
    const struct dots d = {.n_in = dim};
    const float *x[V_ROWS];

    for (int r = 0; r < n_row; r++)
        x[r] = s->a->q + (q0 + (size_t)r) * s->a->ldq;
    for (uint32_t t = 0; t < n; t += DOT_OUTS) {
        vf acc[V_ROWS][DOT_OUTS];
        const uint8_t *w[DOT_OUTS];

        for (uint32_t o = 0; o < DOT_OUTS; o++) /* past the end the last one again: computed, not stored */
            w[o] = (const uint8_t *)(block + (size_t)(t + o < n ? t + o : n - 1) * dim);
        dots_tile(ESP_FORMAT_F32, n_row, DOT_OUTS, &d, x, w, AHEAD_NONE, acc);
        V_UNROLL
        for (int r = 0; r < n_row; r++)
            v_store4(s->tile.weight + (q0 + (size_t)r) * ESP_SPAN + t0 + t,
                     vf_sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]), n - t);
    }
}

/* Columns [c, c + n_col vectors) of n_row sums: += weights times rows [0, n) of the block. */
V_INLINE void kv_many_columns(int n_row, int n_col, const float *block, uint32_t dim, const float *weight,
                              float *sums, uint32_t n, size_t c)
{
    vf acc[V_ROWS * 4];

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int j = 0; j < n_col; j++)
            acc[r * n_col + j] = vf_load(sums + r * ESP_HEAD_MAX + c + j * VW);
    }
    for (uint32_t t = 0; t < n; t++, block += dim) {
        vf p[V_ROWS];

        V_UNROLL
        for (int r = 0; r < n_row; r++)
            p[r] = vf_set1(weight[r * ESP_SPAN + t]);
        V_UNROLL
        for (int j = 0; j < n_col; j++) {
            const vf v = vf_load(block + c + j * VW);

            V_UNROLL
            for (int r = 0; r < n_row; r++)
                acc[r * n_col + j] = vf_fma(p[r], v, acc[r * n_col + j]);
        }
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int j = 0; j < n_col; j++)
            vf_store(sums + r * ESP_HEAD_MAX + c + j * VW, acc[r * n_col + j]);
    }
}

V_INLINE void kv_many_sum(int n_row, const float *block, uint32_t dim, const float *weight, float *sums,
                          uint32_t n)
{
    size_t c = 0;

    for (; c + 4 * (size_t)VW <= dim; c += 4 * (size_t)VW)
        kv_many_columns(n_row, 4, block, dim, weight, sums, n, c);
    for (; c < dim; c += VW)
        kv_many_columns(n_row, 1, block, dim, weight, sums, n, c);
}

/* Value sums of n_row queries from q0 on over the block, whose positions are [t0, t1): those that all of them
 * see, then each query's rest. */
V_INLINE void kv_many_values(int n_row, const struct kv_span *s, const float *block, size_t q0, uint32_t t0,
                             uint32_t t1)
{
    const uint32_t *n = s->a->n_visible + q0, dim = s->v.dim;
    const float *weight = s->tile.weight + q0 * ESP_SPAN + t0;
    float *sums = s->tile.acc + q0 * ESP_HEAD_MAX;
    uint32_t low = t1;

    for (int r = 0; r < n_row; r++)
        low = n[r] < low ? n[r] : low;
    low = low > t0 ? low - t0 : 0;
    if (low)
        kv_many_sum(n_row, block, dim, weight, sums, low);
    for (int r = 0; r < n_row && n_row > 1; r++) {
        const uint32_t end = n[r] < t1 ? n[r] : t1;

        if (end > t0 + low)
            kv_many_sum(1, block + (size_t)low * dim, dim, weight + r * ESP_SPAN + low,
                        sums + r * ESP_HEAD_MAX, end - t0 - low);
    }
}

/* ---- a span ---- */

/* Positions of a block, a multiple of the outputs of a tile of scores. */
V_INLINE uint32_t kv_many_positions(uint32_t dim)
{
    return KV_MANY_BLOCK / dim / DOT_OUTS * DOT_OUTS;
}

static void kv_many_keys(const struct kv_span *s, uint32_t n_pos, float *block)
{
    const uint32_t step = kv_many_positions(s->k.dim);
    const size_t n = s->a->n_query;

    for (uint32_t t = 0; t < n_pos; t += step) {
        const uint32_t end = n_pos - t < step ? n_pos : t + step;
        size_t q = 0;

        kv_scales(&s->k, t, end);
        kv_decode(s->k_raw, &s->k, t, end, block);
        for (; n - q >= V_ROWS; q += V_ROWS)
            kv_many_scores(V_ROWS, s, block, q, t, end - t);
        for (; q < n; q++)
            kv_many_scores(1, s, block, q, t, end - t);
    }
}

static void kv_many_all_values(const struct kv_span *s, uint32_t n_pos, float *block)
{
    const uint32_t step = kv_many_positions(s->v.dim);
    const size_t n = s->a->n_query;

    for (uint32_t t = 0; t < n_pos; t += step) {
        const uint32_t end = n_pos - t < step ? n_pos : t + step;
        size_t q = 0;

        kv_scales(&s->v, t, end);
        kv_decode(s->v_raw, &s->v, t, end, block);
        for (; n - q >= V_ROWS; q += V_ROWS)
            kv_many_values(V_ROWS, s, block, q, t, end);
        for (; q < n; q++)
            kv_many_values(1, s, block, q, t, end);
    }
}

/* scratch: weights and sums of all queries, scales, then the block; together less than what few queries are
 * promised for each of them and 16 more. */
static void kv_attend_many(const struct esp_attend *a, float *scratch)
{
    float *block = scratch + (size_t)a->n_query * (ESP_SPAN + ESP_HEAD_MAX) + 4 * KV_SCALES;
    float m[KV_MANY_MOST], l[KV_MANY_MOST];
    uint32_t n_pos = 0;
    struct kv_span s;

    kv_span_make(&s, a, a->n_query, scratch);
    for (size_t q = 0; q < a->n_query; q++)
        n_pos = a->n_visible[q] > n_pos ? a->n_visible[q] : n_pos;
    if (!kv_scores_int(&s, n_pos))
        kv_many_keys(&s, n_pos, block);
    for (size_t q = 0; q < a->n_query; q++) {
        m[q] = attend_weights(s.tile.weight + q * ESP_SPAN, a->n_visible[q], &l[q]);
        for (size_t c = 0; c < a->head_dim; c += VW)
            vf_store(s.tile.acc + q * ESP_HEAD_MAX + c, vf_zero());
    }
    if (!kv_values_int(&s, n_pos))
        kv_many_all_values(&s, n_pos, block);
    for (size_t q = 0; q < a->n_query; q++)
        if (a->n_visible[q])
            attend_merge(a->m + q, a->l + q, a->acc + q * a->ld_acc, m[q], l[q],
                         s.tile.acc + q * ESP_HEAD_MAX, a->head_dim);
}

static void attend_codes(const struct esp_attend *a, float *scratch)
{
    struct esp_attend part = *a;
    struct kv_span s;

    while (part.n_query >= KV_MANY) {
        const uint32_t left = part.n_query;

        part.n_query = left < KV_MANY_MOST ? left : KV_MANY_MOST;
        kv_attend_many(&part, scratch);
        part.q += part.n_query * part.ldq;
        part.n_visible += part.n_query;
        part.m += part.n_query;
        part.l += part.n_query;
        part.acc += part.n_query * part.ld_acc;
        part.n_query = left - part.n_query;
    }
    kv_span_make(&s, &part, KV_ROWS, scratch);
    kv_attend_few(&s);
}

#endif
