/*
 * Attention of a few queries over one span of coded keys and values, straight from the codes. Every vector of
 * codes becomes floats in registers once for a tile of up to KV_ROWS queries (the query heads that share a KV
 * head come together, so each head's cache is read once); scales become f32 once a block of positions.
 * Reduction orders are those of attend_body.h: a score is one vector of partial sums over ascending elements
 * and one fixed tree, a value sum runs over a query's own positions in ascending order, so neither depends on
 * the other queries.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_ATTEND_KV_BODY_H
#define ESP_KERNELS_X86_ATTEND_KV_BODY_H

#include "kernels/kernels.h"
#include "kernels/x86/attend_kv_side.h"
#include "kernels/x86/attend_softmax.h"
#include "kernels/x86/dots.h"

/* ---- scores ---- */

/* Positions of a tile of scores. */
struct kv_keys {
    const uint8_t *first; /* row */
    uint32_t t;           /* place of its scales */
    uint32_t last;        /* how many places on the last row is */
};

/* n_out positions with n_row queries, the last one again where there are no more. raw, n_row and n_out are
 * constants. */
V_INLINE void kv_scores_tile(int raw, int n_row, uint32_t n_out, const struct kv_side *s,
                             const struct kv_lut *lut, const float *const *x, struct kv_keys keys,
                             struct kv_far *far, vf (*acc)[DOT_OUTS])
{
    const uint8_t *row[DOT_OUTS];
    const float *scale[DOT_OUTS];
    const ptrdiff_t bias = s->bias - s->scale;

    V_UNROLL
    for (uint32_t o = 0; o < n_out; o++) {
        const size_t at = o < keys.last ? o : keys.last;

        row[o] = keys.first + at * s->row_bytes;
        scale[o] = s->scale + (keys.t + at) * s->n_unit;
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (uint32_t o = 0; o < n_out; o++)
            acc[r][o] = vf_zero();
    }
    for (uint32_t u = 0; u < s->n_unit; u++) {
        const size_t codes = u * (size_t)(kv_bits(raw) * ESP_KV_GROUP / 8);
        vf by[DOT_OUTS], plus[DOT_OUTS];
        struct kv_lut l[DOT_OUTS];

        V_UNROLL
        for (uint32_t o = 0; o < n_out; o += 2)
            kv_far_go(far);
        V_UNROLL
        for (uint32_t o = 0; o < n_out; o++) {
            by[o] = vf_set1(scale[o][u]);
            plus[o] = vf_set1(scale[o][bias + u]);
            l[o] = kv_looks_up(raw) ? kv_lut_scale(raw, 1, *lut, by[o], plus[o]) : *lut;
        }
        V_UNROLL
        for (size_t j = 0; j < KV_UNIT; j++) {
            vf k[DOT_OUTS];

            V_UNROLL
            for (uint32_t o = 0; o < n_out; o++) {
                k[o] = kv_raw(raw, row[o] + codes, j, &l[o]);
                if (!kv_looks_up(raw))
                    k[o] = vf_fma(k[o], by[o], plus[o]);
            }
            V_UNROLL
            for (int r = 0; r < n_row; r++) {
                vf q = vf_load(x[r] + (u * KV_UNIT + j) * VW);

                V_KEEP(q); /* one load for all outputs */
                V_UNROLL
                for (uint32_t o = 0; o < n_out; o++)
                    acc[r][o] = vf_fma(q, k[o], acc[r][o]);
            }
        }
    }
}

/* Two scores of each of four queries. */
V_INLINE void kv_scores_pairs(vf (*acc)[DOT_OUTS], float *score)
{
#if V_ROWS < 4
    const vf y =
        vf_sum8(acc[0][0], acc[0][1], acc[1][0], acc[1][1], acc[2][0], acc[2][1], acc[3][0], acc[3][1]);
    const __m128 lo = _mm256_castps256_ps128(y), hi = _mm256_extractf128_ps(y, 1);

    _mm_storel_pi((__m64 *)(void *)score, lo);
    _mm_storeh_pi((__m64 *)(void *)(score + ESP_SPAN), lo);
    _mm_storel_pi((__m64 *)(void *)(score + 2 * ESP_SPAN), hi);
    _mm_storeh_pi((__m64 *)(void *)(score + 3 * ESP_SPAN), hi);
#else
    (void)acc;
    (void)score;
#endif
}

/* Scores of positions [t, t + n_out) to score[n_row][ESP_SPAN]; those past n_pos hold anything. */
V_INLINE void kv_scores_store(int n_row, uint32_t n_out, vf (*acc)[DOT_OUTS], float *score)
{
    if (n_out == 4) {
        V_UNROLL
        for (int r = 0; r < n_row; r++)
            _mm_storeu_ps(score + r * ESP_SPAN, vf_sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]));
        return;
    }
    V_UNROLL
    for (int r = 0; r < n_row; r += 4) /* pairs are for tiles of four queries of AVX2 */
        kv_scores_pairs(acc + r, score + r * ESP_SPAN);
}

/* score: [n_row][ESP_SPAN], the first n_pos of each row; up to 3 more are written. */
V_INLINE void kv_scores_raw(int raw, int n_row, const struct kv_side *s, const struct kv_side *values,
                            const float *const *x, uint32_t n_pos, float *score)
{
    const uint32_t n_out = n_row <= V_ROWS ? 4 : 2; /* sums in registers */
    const struct kv_lut lut = kv_lut_make(raw, s->levels);

    for (uint32_t t0 = 0; t0 < n_pos; t0 += KV_BLOCK) {
        const uint32_t n = n_pos - t0 < KV_BLOCK ? n_pos - t0 : KV_BLOCK;
        const uint8_t *row = s->rows + t0 * s->row_bytes;
        struct kv_far far = kv_far_values(s, values, t0, (size_t)s->n_unit * KV_BLOCK / 2);

        kv_scales(s, t0, t0 + n);
        for (uint32_t t = 0; t < n; t += n_out, row += n_out * s->row_bytes) {
            const struct kv_keys keys = {row, t, n - t - 1};
            vf acc[KV_ROWS][DOT_OUTS];

            kv_scores_tile(raw, n_row, n_out, s, &lut, x, keys, &far, acc);
            kv_scores_store(n_row, n_out, acc, score + t0 + t);
        }
    }
}

V_INLINE void kv_scores(enum kv_raw raw, int n_row, const struct kv_side *s, const struct kv_side *values,
                        const float *const *x, uint32_t n_pos, float *score)
{
    switch (raw) {
    case KV_RAW_S8:
        kv_scores_raw(KV_RAW_S8, n_row, s, values, x, n_pos, score);
        break;
    case KV_RAW_U8:
        kv_scores_raw(KV_RAW_U8, n_row, s, values, x, n_pos, score);
        break;
    case KV_RAW_2:
        kv_scores_raw(KV_RAW_2, n_row, s, values, x, n_pos, score);
        break;
    case KV_RAW_4:
        kv_scores_raw(KV_RAW_4, n_row, s, values, x, n_pos, score);
        break;
    case KV_RAW_5:
        kv_scores_raw(KV_RAW_5, n_row, s, values, x, n_pos, score);
        break;
    default:
        kv_scores_raw(KV_RAW_6, n_row, s, values, x, n_pos, score);
        break;
    }
}

/* ---- values ---- */

/* Values of positions [t0, t1), whose scales lie from the first place on, from column c on. */
struct kv_part {
    uint32_t t0, t1;
    size_t c;
};

/* n_col vectors of columns, of whole units or inside one, of n_row sums over a part. All ints constants. */
V_INLINE void kv_values_columns(int raw, int biased, int n_row, int n_col, const struct kv_side *s,
                                const struct kv_lut *lut, const struct kv_tile *tile, struct kv_part part,
                                struct kv_far *far)
{
    const uint8_t *row = s->rows + part.t0 * s->row_bytes + part.c / 8 * (size_t)kv_bits(raw);
    const size_t row_bytes = s->row_bytes, n_unit = s->n_unit;
    const float *scale = s->scale + part.c / ESP_KV_GROUP, *weight = tile->weight + part.t0;
    const float *const end = weight + (part.t1 - part.t0);
    const ptrdiff_t bias = biased ? s->bias - s->scale : 0;
    float *const sums = tile->acc + part.c;
    vf acc[KV_ROWS][KV_COLS];

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int j = 0; j < n_col; j++)
            acc[r][j] = vf_load(sums + r * ESP_HEAD_MAX + j * VW);
    }
    for (; weight < end; weight++, row += row_bytes, scale += n_unit) {
        const bool looks_up = kv_looks_up(raw); /* the scaled table is one for all of a unit */
        vf v[KV_COLS];

        kv_far_go(far);
        V_UNROLL
        for (int j = 0; j < n_col; j++) {
            const int u = j / KV_UNIT;
            const vf by = vf_set1(scale[u]), plus = biased ? vf_set1(scale[bias + u]) : vf_zero();
            const struct kv_lut l = looks_up ? kv_lut_scale(raw, biased, *lut, by, plus) : *lut;

            v[j] = kv_raw(raw, row, (size_t)j, &l);
            if (!looks_up)
                v[j] = biased ? vf_fma(v[j], by, plus) : vf_mul(v[j], by);
        }
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            const vf p = vf_set1(weight[r * ESP_SPAN]);

            V_UNROLL
            for (int j = 0; j < n_col; j++)
                acc[r][j] = vf_fma(p, v[j], acc[r][j]);
        }
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int j = 0; j < n_col; j++)
            vf_store(sums + r * ESP_HEAD_MAX + j * VW, acc[r][j]);
    }
}

/* Blocks of positions, so that their rows stay in the first cache while columns pass over them. */
V_INLINE void kv_values_raw(int raw, int biased, int n_row, const struct kv_side *s,
                            const struct kv_side *next, const struct kv_tile *tile, uint32_t t0, uint32_t t1)
{
    const struct kv_lut lut = kv_lut_make(raw, s->levels);
    const size_t cols = n_row == 1 ? KV_UNIT : VW == 8 ? KV_UNIT / 2 : KV_COLS; /* whose sums are registers */
    const size_t wide = cols * VW;
    const size_t n_step = (s->dim + wide - 1) / wide;

    for (uint32_t t = t0; t < t1; t += KV_VALUES) {
        const uint32_t end = t1 - t < KV_VALUES ? t1 : t + KV_VALUES;
        struct kv_far far = kv_far_next(next, s, t, n_step);

        kv_scales(s, t, end);
        for (size_t c = 0; c < s->dim; c += wide) {
            const struct kv_part part = {t, end, c};

            if (cols <= KV_UNIT || s->dim - c >= wide)
                kv_values_columns(raw, biased, n_row, (int)cols, s, &lut, tile, part, &far);
            else
                kv_values_columns(raw, biased, n_row, KV_UNIT, s, &lut, tile, part, &far);
        }
    }
}

V_INLINE void kv_values(enum kv_raw raw, int n_row, const struct kv_side *s, const struct kv_side *next,
                        const struct kv_tile *tile, uint32_t t0, uint32_t t1)
{
    switch (raw) {
    case KV_RAW_2:
        kv_values_raw(KV_RAW_2, 0, n_row, s, next, tile, t0, t1);
        break;
    case KV_RAW_3:
        kv_values_raw(KV_RAW_3, 0, n_row, s, next, tile, t0, t1);
        break;
    case KV_RAW_4:
        if (s->bias)
            kv_values_raw(KV_RAW_4, 1, n_row, s, next, tile, t0, t1);
        else
            kv_values_raw(KV_RAW_4, 0, n_row, s, next, tile, t0, t1);
        break;
    case KV_RAW_5:
        kv_values_raw(KV_RAW_5, 0, n_row, s, next, tile, t0, t1);
        break;
    case KV_RAW_6:
        kv_values_raw(KV_RAW_6, 1, n_row, s, next, tile, t0, t1);
        break;
    case KV_RAW_U8:
        kv_values_raw(KV_RAW_U8, 1, n_row, s, next, tile, t0, t1);
        break;
    default:
        kv_values_raw(KV_RAW_LEVEL8, 0, n_row, s, next, tile, t0, t1);
        break;
    }
}

/* ---- a span ---- */

struct kv_span {
    const struct esp_attend *a;
    struct kv_side k, v, next; /* next: keys of the span after this one */
    enum kv_raw k_raw, v_raw;
    struct kv_tile tile;
};

#if KV_INT
#include "kernels/x86/attend_kv_int.h"
#include "kernels/x86/attend_kv_word.h"

/* Scores of all queries with positions [0, n_pos) to the tile's weights, of keys whose codes are multiplied
 * as they are; false: these become floats. */
static bool kv_scores_int(const struct kv_span *s, uint32_t n_pos)
{
    const struct esp_attend *a = s->a;

    if (s->k_raw != KV_RAW_S8 || !a->int8_query)
        return false;
    for (size_t r = 0; r < a->n_query; r++)
        kv_int_query(a->q + r * a->ldq, a->head_dim, s->tile.acc + r * ESP_HEAD_MAX);
    kv_int_scores(&s->k, &s->v, s->tile.acc, a->n_query, n_pos, s->tile.weight);
    return true;
}

/* Sums of values over what each query sees, at most [0, n_pos), of values that can be words; false: they
 * become floats. */
static bool kv_values_int(const struct kv_span *s, uint32_t n_pos)
{
    const struct esp_attend *a = s->a;

    if (s->v_raw != KV_RAW_2 && s->v_raw != KV_RAW_3 && s->v_raw != KV_RAW_4)
        return false;
    if (!a->int8_query || a->scheme->kind != ESP_KV_KIND_TURBO)
        return false;
    kv_word_values(s->v_raw, a, &s->v, &s->next, &s->tile, n_pos);
    return true;
}
#else
static bool kv_floats_only(const struct kv_span *s, uint32_t n_pos)
{
    (void)s;
    (void)n_pos;
    return false;
}
#define kv_scores_int kv_floats_only
#define kv_values_int kv_floats_only
#endif

/* Sums over the positions of one query, and of tiles: functions of their own, since each holds every code
 * width. */
static void kv_values_one(const struct kv_span *s, const struct kv_tile *tile, uint32_t t0, uint32_t t1)
{
    kv_values(s->v_raw, 1, &s->v, &s->next, tile, t0, t1);
}

/* Sums over the positions from low on, which not all queries see, and merging; m and l: of the weights. */
static void kv_finish(const struct kv_span *s, uint32_t low, const float *m, const float *l)
{
    const struct esp_attend *a = s->a;

    for (uint32_t r = 0; r < a->n_query; r++) {
        const struct kv_tile one = {s->tile.weight + r * ESP_SPAN, s->tile.acc + r * ESP_HEAD_MAX};
        const uint32_t n = a->n_visible[r];

        if (n == 0)
            continue;
        if (n > low)
            kv_values_one(s, &one, low, n);
        attend_merge(a->m + r, a->l + r, a->acc + r * a->ld_acc, m[r], l[r], one.acc, a->head_dim);
    }
}

/* The queries of s->a: as many as n_row, or fewer, and the last one then again in their place. */
V_INLINE void kv_attend_tile(int n_row, const struct kv_span *s)
{
    const struct esp_attend *a = s->a;
    const struct kv_tile *tile = &s->tile;
    const uint32_t *n = a->n_visible, last = a->n_query - 1;
    const float *x[KV_ROWS];
    float m[KV_ROWS], l[KV_ROWS];
    uint32_t high = 0, low = ESP_SPAN;

    for (uint32_t r = 0; r < (uint32_t)n_row; r++)
        x[r] = a->q + (r < last ? r : last) * a->ldq;
    for (uint32_t r = 0; r <= last; r++) {
        high = n[r] > high ? n[r] : high;
        low = n[r] < low ? n[r] : low;
    }
    if (high == 0)
        return;
    if (!kv_scores_int(s, high))
        kv_scores(s->k_raw, n_row, &s->k, &s->v, x, high, tile->weight);
    for (uint32_t r = 0; r <= last; r++)
        m[r] = attend_weights(tile->weight + r * ESP_SPAN, n[r], &l[r]);
    for (int r = 0; r < n_row; r++)
        for (size_t c = 0; c < a->head_dim; c += VW)
            vf_store(tile->acc + r * ESP_HEAD_MAX + c, vf_zero());
    if (kv_values_int(s, high))
        low = ESP_SPAN; /* nothing is left to any query */
    else if (low > 0 && n_row > 1)
        kv_values(s->v_raw, n_row, &s->v, &s->next, tile, 0, low);
    else if (low > 0)
        kv_values_one(s, tile, 0, low);
    kv_finish(s, low, m, l);
}

static void kv_attend_one(const struct kv_span *s)
{
    kv_attend_tile(1, s);
}

static void kv_attend_four(const struct kv_span *s)
{
    kv_attend_tile(KV_FOUR, s);
}

static void kv_attend_full(const struct kv_span *s)
{
    if (KV_ROWS > KV_FOUR)
        kv_attend_tile(KV_ROWS, s);
}

/* Up to KV_ROWS queries. */
static void kv_attend_few(const struct kv_span *s)
{
    const uint32_t n = s->a->n_query;

    if (n == 1)
        kv_attend_one(s);
    else if (n > KV_FOUR)
        kv_attend_full(s);
    else if (n > 1)
        kv_attend_four(s);
}

/* The sides of a, with places in scratch for weights and sums of n_row queries and for scales. */
static void kv_span_make(struct kv_span *s, const struct esp_attend *a, size_t n_row, float *scratch)
{
    const struct esp_kv_scheme *scheme = a->scheme;
    const uint32_t d = a->head_dim;
    const bool turbo = scheme->kind == ESP_KV_KIND_TURBO;

    *s = (struct kv_span){
        .a = a,
        .k = {.rows = a->k, .dim = d, .n_unit = d / ESP_KV_GROUP, .n_group = d / scheme->group, .f16 = turbo},
        .k_raw = kv_raw_key(scheme),
        .v_raw = kv_raw_value(scheme),
        .tile = {scratch, scratch + n_row * ESP_SPAN}};
    scratch += n_row * (ESP_SPAN + ESP_HEAD_MAX);
    s->v = s->k;
    s->v.rows = a->v;
    s->k.row_bytes = esp_kv_key_bytes(scheme, d);
    s->v.row_bytes = esp_kv_value_bytes(scheme, d);
    s->k.code_bytes = (size_t)d * scheme->k_bits / 8;
    s->v.code_bytes = (size_t)d * scheme->v_bits / 8;
    s->k.scale = scratch;
    s->k.bias = scratch + KV_SCALES;
    s->v.scale = scratch + 2 * KV_SCALES;
    s->v.bias = turbo ? NULL : scratch + 3 * KV_SCALES;
    s->k.levels = kv_counting;
    s->v.levels = turbo ? esp_turbo_codebook_of(scheme)->levels : kv_counting;
    s->next = s->k;
    s->next.rows = a->k_next;
}

#endif
