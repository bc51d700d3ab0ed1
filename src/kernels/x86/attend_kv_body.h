/*
 * Attention of a few queries over one span of coded keys and values, straight from the codes. Every vector of
 * codes becomes floats in registers once for a tile of up to V_ROWS queries (the query heads that share a KV
 * head come together, so each head's cache is read once); scales become f32 once a span. Reduction orders are
 * those of attend_body.h: a score is one vector of partial sums over ascending elements and one fixed tree, a
 * value sum runs over a query's own positions in ascending order, so neither depends on the other queries.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_ATTEND_KV_BODY_H
#define ESP_KERNELS_X86_ATTEND_KV_BODY_H

#include "kernels/kernels.h"
#include "kernels/x86/attend_softmax.h"
#include "kernels/x86/dots.h"

enum {
    KV_SCALES = ESP_SPAN * (ESP_KV_HEAD_MAX / ESP_KV_GROUP) + 16
}; /* floats of a span's scales, and slack */

/* Coded keys or values of a span. */
struct kv_side {
    const uint8_t *rows;
    size_t row_bytes;
    uint32_t dim, group, n_group;
    float *scale, *bias; /* [n_pos][n_group] f32; bias NULL: none */
    const float *levels; /* of codes, where these are looked up */
};

struct kv_tile {
    float *weight; /* [V_ROWS][ESP_SPAN] */
    float *acc;    /* [V_ROWS][ESP_HEAD_MAX] */
};

V_INLINE vf kv_half(const uint8_t *p, size_t n, bool f16)
{
    const uint16_t *h = (const uint16_t *)(const void *)p;

    if (n >= VW)
        return f16 ? vf_from_f16(h) : vf_from_bf16(h);
    return f16 ? vf_from_f16_n(h, n) : vf_from_bf16_n(h, n);
}

/* Scales and biases of n positions as floats; turbo's bias is scale * zero, which f32 holds exactly. Rows are
 * stored in ascending order, each over the slack of the one before. */
static void kv_scales(const struct kv_side *s, bool turbo, size_t code_bytes, uint32_t n)
{
    for (uint32_t t = 0; t < n; t++) {
        const uint8_t *p = s->rows + t * s->row_bytes + code_bytes;

        for (uint32_t g = 0; g < s->n_group; g += VW) {
            const size_t left = s->n_group - g, at = (size_t)t * s->n_group + g;
            const vf scale = kv_half(p + 2 * g, left, turbo);

            vf_store(s->scale + at, scale);
            if (s->bias) {
                const vf b = kv_half(p + 2 * (s->n_group + g), left, turbo);

                vf_store(s->bias + at, turbo ? vf_mul(b, scale) : b);
            }
        }
    }
}

/* ---- scores ---- */

/* Four positions from t (the last ones again past n_pos) with n_row queries; raw and n_row are constants. */
V_INLINE void kv_scores_four(int raw, int n_row, const struct kv_side *s, const struct kv_lut *lut,
                             const float *const *x, uint32_t t, uint32_t n_pos, __m128 *out)
{
    const uint8_t *row[DOT_OUTS];
    const float *scale[DOT_OUTS], *bias[DOT_OUTS];
    vf acc[V_ROWS][DOT_OUTS];
    size_t j = 0;

    V_UNROLL
    for (uint32_t o = 0; o < DOT_OUTS; o++) {
        const size_t at = t + o < n_pos ? t + o : n_pos - 1;

        row[o] = s->rows + at * s->row_bytes;
        scale[o] = s->scale + at * s->n_group;
        bias[o] = s->bias + at * s->n_group;
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int o = 0; o < DOT_OUTS; o++)
            acc[r][o] = vf_zero();
    }
    for (uint32_t g = 0; g < s->n_group; g++) {
        vf by[DOT_OUTS], plus[DOT_OUTS];

        V_UNROLL
        for (int o = 0; o < DOT_OUTS; o++) {
            by[o] = vf_set1(scale[o][g]);
            plus[o] = vf_set1(bias[o][g]);
        }
        for (size_t end = j + s->group / VW; j < end; j++) {
            vf q[V_ROWS];

            V_UNROLL
            for (int r = 0; r < n_row; r++)
                q[r] = vf_load(x[r] + j * VW);
            V_UNROLL
            for (int o = 0; o < DOT_OUTS; o++) {
                const vf k = vf_fma(kv_raw(raw, row[o], j, lut), by[o], plus[o]);

                V_UNROLL
                for (int r = 0; r < n_row; r++)
                    acc[r][o] = vf_fma(q[r], k, acc[r][o]);
            }
        }
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++)
        out[r] = vf_sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
}

V_INLINE void kv_scores_raw(int raw, int n_row, const struct kv_side *s, const float *const *x,
                            uint32_t n_pos, float *score)
{
    const struct kv_lut lut = kv_lut_make(raw, s->levels);

    for (uint32_t t = 0; t < n_pos; t += DOT_OUTS) {
        const uint32_t n = n_pos - t < DOT_OUTS ? n_pos - t : DOT_OUTS;
        __m128 out[V_ROWS];

        kv_scores_four(raw, n_row, s, &lut, x, t, n_pos, out);
        for (int r = 0; r < n_row; r++)
            v_store4(score + r * ESP_SPAN + t, out[r], n);
    }
}

V_INLINE void kv_scores(enum kv_raw raw, int n_row, const struct kv_side *s, const float *const *x,
                        uint32_t n_pos, float *score)
{
    switch (raw) {
    case KV_RAW_S8:
        kv_scores_raw(KV_RAW_S8, n_row, s, x, n_pos, score);
        break;
    case KV_RAW_U8:
        kv_scores_raw(KV_RAW_U8, n_row, s, x, n_pos, score);
        break;
    case KV_RAW_2:
        kv_scores_raw(KV_RAW_2, n_row, s, x, n_pos, score);
        break;
    case KV_RAW_4:
        kv_scores_raw(KV_RAW_4, n_row, s, x, n_pos, score);
        break;
    case KV_RAW_5:
        kv_scores_raw(KV_RAW_5, n_row, s, x, n_pos, score);
        break;
    default:
        kv_scores_raw(KV_RAW_6, n_row, s, x, n_pos, score);
        break;
    }
}

/* ---- values ---- */

/* Columns [c, c + n_col vectors): acc += sum over t in [t0, t1) of weight_t * v_t. All ints are constants. */
V_INLINE void kv_values_block(int raw, int biased, int n_row, int n_col, const struct kv_side *s,
                              const struct kv_lut *lut, const struct kv_tile *tile, uint32_t t0, uint32_t t1,
                              size_t c)
{
    const uint8_t *row = s->rows + t0 * s->row_bytes;
    const float *scale = s->scale + (size_t)t0 * s->n_group,
                *bias = biased ? s->bias + (size_t)t0 * s->n_group : NULL;
    size_t group[8];
    vf acc[V_ROWS * 4];

    V_UNROLL
    for (int j = 0; j < n_col; j++)
        group[j] = (c + (size_t)j * VW) / s->group;
    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int j = 0; j < n_col; j++)
            acc[r * n_col + j] = vf_load(tile->acc + r * ESP_HEAD_MAX + c + j * VW);
    }
    for (uint32_t t = t0; t < t1; t++, row += s->row_bytes, scale += s->n_group) {
        vf p[V_ROWS];

        V_UNROLL
        for (int r = 0; r < n_row; r++)
            p[r] = vf_set1(tile->weight[r * ESP_SPAN + t]);
        V_UNROLL
        for (int j = 0; j < n_col; j++) {
            const vf x = kv_raw(raw, row, c / VW + (size_t)j, lut), by = vf_set1(scale[group[j]]);
            const vf v = biased ? vf_fma(x, by, vf_set1(bias[group[j]])) : vf_mul(x, by);

            V_UNROLL
            for (int r = 0; r < n_row; r++)
                acc[r * n_col + j] = vf_fma(p[r], v, acc[r * n_col + j]);
        }
        if (biased)
            bias += s->n_group;
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int j = 0; j < n_col; j++)
            vf_store(tile->acc + r * ESP_HEAD_MAX + c + j * VW, acc[r * n_col + j]);
    }
}

V_INLINE void kv_values_raw(int raw, int biased, int n_row, const struct kv_side *s,
                            const struct kv_tile *tile, uint32_t t0, uint32_t t1)
{
    const struct kv_lut lut = kv_lut_make(raw, s->levels);
    const int wide = n_row == 1 ? 8 : 4;
    size_t c = 0;

    for (; c + (size_t)wide * VW <= s->dim; c += (size_t)wide * VW)
        kv_values_block(raw, biased, n_row, wide, s, &lut, tile, t0, t1, c);
    for (; c < s->dim; c += VW)
        kv_values_block(raw, biased, n_row, 1, s, &lut, tile, t0, t1, c);
}

V_INLINE void kv_values(enum kv_raw raw, int n_row, const struct kv_side *s, const struct kv_tile *tile,
                        uint32_t t0, uint32_t t1)
{
    switch (raw) {
    case KV_RAW_2:
        kv_values_raw(KV_RAW_2, 0, n_row, s, tile, t0, t1);
        break;
    case KV_RAW_3:
        kv_values_raw(KV_RAW_3, 0, n_row, s, tile, t0, t1);
        break;
    case KV_RAW_4:
        if (s->bias)
            kv_values_raw(KV_RAW_4, 1, n_row, s, tile, t0, t1);
        else
            kv_values_raw(KV_RAW_4, 0, n_row, s, tile, t0, t1);
        break;
    case KV_RAW_5:
        kv_values_raw(KV_RAW_5, 0, n_row, s, tile, t0, t1);
        break;
    case KV_RAW_6:
        kv_values_raw(KV_RAW_6, 1, n_row, s, tile, t0, t1);
        break;
    case KV_RAW_U8:
        kv_values_raw(KV_RAW_U8, 1, n_row, s, tile, t0, t1);
        break;
    default:
        kv_values_raw(KV_RAW_LEVEL8, 0, n_row, s, tile, t0, t1);
        break;
    }
}

/* ---- a span ---- */

struct kv_span {
    const struct esp_attend *a;
    struct kv_side k, v;
    enum kv_raw k_raw, v_raw;
    struct kv_tile tile;
};

V_INLINE void kv_attend_tile(int n_row, const struct kv_span *s, size_t q0)
{
    const struct esp_attend *a = s->a;
    const struct kv_tile *tile = &s->tile;
    const uint32_t *n = a->n_visible + q0;
    const float *x[V_ROWS];
    float m[V_ROWS], l[V_ROWS];
    uint32_t high = 0, low = ESP_SPAN;

    for (int r = 0; r < n_row; r++) {
        x[r] = a->q + (q0 + (size_t)r) * a->ldq;
        high = n[r] > high ? n[r] : high;
        low = n[r] < low ? n[r] : low;
    }
    if (high == 0)
        return;
    kv_scores(s->k_raw, n_row, &s->k, x, high, tile->weight);
    for (int r = 0; r < n_row; r++) {
        m[r] = attend_weights(tile->weight + r * ESP_SPAN, n[r], &l[r]);
        for (size_t c = 0; c < a->head_dim; c += VW)
            vf_store(tile->acc + r * ESP_HEAD_MAX + c, vf_zero());
    }
    if (low > 0)
        kv_values(s->v_raw, n_row, &s->v, tile, 0, low);
    for (int r = 0; r < n_row; r++) {
        const struct kv_tile one = {tile->weight + r * ESP_SPAN, tile->acc + r * ESP_HEAD_MAX};
        const size_t q = q0 + (size_t)r;

        if (n[r] == 0)
            continue;
        if (n[r] > low && n_row > 1)
            kv_values(s->v_raw, 1, &s->v, &one, low, n[r]);
        attend_merge(a->m + q, a->l + q, a->acc + q * a->ld_acc, m[r], l[r], one.acc, a->head_dim);
    }
}

/* Tiles are functions of their own: each holds every code width. */
static void kv_attend_one(const struct kv_span *s, size_t q0)
{
    kv_attend_tile(1, s, q0);
}

static void kv_attend_two(const struct kv_span *s, size_t q0)
{
    kv_attend_tile(2, s, q0);
}

#if V_ROWS > 3
static void kv_attend_four(const struct kv_span *s, size_t q0)
{
    kv_attend_tile(4, s, q0);
}
#endif

static void kv_attend_full(const struct kv_span *s, size_t q0)
{
    kv_attend_tile(V_ROWS, s, q0);
}

/* The sides of a, with places for their scales in scratch. */
static void kv_span_make(struct kv_span *s, const struct esp_attend *a, float *scratch)
{
    const struct esp_kv_scheme *scheme = a->scheme;
    const uint32_t d = a->head_dim, n_group = d / scheme->group;
    const bool turbo = scheme->kind == ESP_KV_KIND_TURBO;
    uint32_t most = 0;

    *s = (struct kv_span){.a = a,
                          .k = {.rows = a->k, .dim = d, .group = scheme->group, .n_group = n_group},
                          .k_raw = kv_raw_key(scheme),
                          .v_raw = kv_raw_value(scheme),
                          .tile = {scratch, scratch + V_ROWS * ESP_SPAN}};
    scratch += V_ROWS * (ESP_SPAN + ESP_HEAD_MAX);
    s->v = s->k;
    s->v.rows = a->v;
    s->k.row_bytes = esp_kv_key_bytes(scheme, d);
    s->v.row_bytes = esp_kv_value_bytes(scheme, d);
    s->k.scale = scratch;
    s->k.bias = scratch + KV_SCALES;
    s->v.scale = scratch + 2 * KV_SCALES;
    s->v.bias = turbo ? NULL : scratch + 3 * KV_SCALES;
    s->k.levels = kv_counting;
    s->v.levels = turbo ? esp_turbo_codebook_of(scheme)->levels : kv_counting;
    for (uint32_t r = 0; r < a->n_query; r++)
        most = a->n_visible[r] > most ? a->n_visible[r] : most;
    kv_scales(&s->k, turbo, (size_t)d * scheme->k_bits / 8, most);
    kv_scales(&s->v, turbo, (size_t)d * scheme->v_bits / 8, most);
}

static void attend_codes(const struct esp_attend *a, float *scratch)
{
    struct kv_span s;

    kv_span_make(&s, a, scratch);
    for (size_t q = 0; q < a->n_query;) {
        const size_t left = a->n_query - q;

        if (left >= V_ROWS) {
            kv_attend_full(&s, q);
            q += V_ROWS;
#if V_ROWS > 3
        } else if (left >= 4) {
            kv_attend_four(&s, q);
            q += 4;
#endif
        } else if (left >= 2) {
            kv_attend_two(&s, q);
            q += 2;
        } else {
            kv_attend_one(&s, q);
            q++;
        }
    }
}

#endif
