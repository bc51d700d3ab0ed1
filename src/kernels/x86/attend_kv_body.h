/*
 * Attention of a few queries over one span of coded keys and values, straight from the codes. Every vector of
 * codes becomes floats in registers once for a tile of up to KV_ROWS queries (the query heads that share a KV
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
    KV_ROWS =
        V_ROWS > 4 ? V_ROWS : 4, /* queries of a tile: decoding costs more than a few registers too many */
    KV_BLOCK = 16, /* positions whose scales become floats together, and how far ahead keys are asked for */
    KV_SCALES = ESP_SPAN * (ESP_KV_HEAD_MAX / ESP_KV_GROUP) + 16 /* floats of a span's scales, and slack */
};

/* Coded keys or values of a span. */
struct kv_side {
    const uint8_t *rows;
    size_t row_bytes;
    size_t code_bytes;    /* of a row; scales follow, then biases */
    uint32_t dim, n_unit; /* units of ESP_KV_GROUP elements */
    uint32_t n_group;     /* of the scheme, each of one unit or more */
    bool f16;             /* scales; else bf16 */
    float *scale, *bias;  /* [n_pos][n_unit] f32; bias NULL: none */
    const float *levels;  /* of codes, where these are looked up */
};
enum { KV_UNIT = ESP_KV_GROUP / VW }; /* vectors of a unit */

struct kv_tile {
    float *weight; /* [KV_ROWS][ESP_SPAN] */
    float *acc;    /* [KV_ROWS][ESP_HEAD_MAX] */
};

V_INLINE vf kv_half(const uint8_t *p, size_t n, bool f16)
{
    const uint16_t *h = (const uint16_t *)(const void *)p;

    if (n >= VW)
        return f16 ? vf_from_f16(h) : vf_from_bf16(h);
    return f16 ? vf_from_f16_n(h, n) : vf_from_bf16_n(h, n);
}

/* Lane i of a vector of units from u on has the scale of group (u + i) / per; halves are read from p. */
V_INLINE vf kv_spread(const uint8_t *p, uint32_t n_group, uint32_t per, uint32_t u, bool f16)
{
    const uint32_t first = u / per, left = n_group - first;
    const vf x = kv_half(p + 2 * first, left, f16);

    return per == 1 ? x : vf_lanes(x, vi_shr_all(vi_ramp(), per == 2 ? 1 : 2)); /* u is a multiple of per */
}

/*
 * Scales and biases of positions [t0, t1) as floats; turbo's bias is scale * zero, which f32 holds exactly.
 * Rows are stored in ascending order, each over the slack of the one before. f16 (turbo) and biased are
 * constants.
 */
V_INLINE void kv_scales_kind(bool f16, bool biased, const struct kv_side *s, uint32_t t0, uint32_t t1)
{
    const uint32_t n_unit = s->n_unit, n_group = s->n_group, per = n_unit / n_group;
    const uint8_t *p = s->rows + t0 * s->row_bytes + s->code_bytes;
    float *scale = s->scale + (size_t)t0 * n_unit, *bias = biased ? s->bias + (size_t)t0 * n_unit : NULL;

    for (uint32_t t = t0; t < t1; t++, p += s->row_bytes) {
        for (uint32_t u = 0; u < n_unit; u += VW) {
            const vf x = kv_spread(p, n_group, per, u, f16);

            vf_store(scale + u, x);
            if (biased) {
                const vf b = kv_spread(p + 2 * (size_t)n_group, n_group, per, u, f16);

                vf_store(bias + u, f16 ? vf_mul(b, x) : b);
            }
        }
        scale += n_unit;
        bias = biased ? bias + n_unit : NULL;
    }
}

static void kv_scales(const struct kv_side *s, uint32_t t0, uint32_t t1)
{
    if (!s->f16)
        kv_scales_kind(false, true, s, t0, t1);
    else if (s->bias)
        kv_scales_kind(true, true, s, t0, t1);
    else
        kv_scales_kind(true, false, s, t0, t1);
}

/* Ask for the lines of rows [t, t + n) of s, as far as n_pos goes; near: into the first cache, else the
 * second. */
V_INLINE void kv_ahead(const struct kv_side *s, uint32_t t, uint32_t n, uint32_t n_pos, bool near)
{
    const uint8_t *p = s->rows + t * s->row_bytes, *end = p + (t + n < n_pos ? n
                                                               : t < n_pos   ? n_pos - t
                                                                             : 0) *
                                                                  s->row_bytes;

    for (; p < end; p += 64) {
        if (near)
            _mm_prefetch((const char *)p, _MM_HINT_T0);
        else
            _mm_prefetch((const char *)p, _MM_HINT_T1);
    }
}

/* ---- scores ---- */

/* n_out positions from t (the last ones again past n_pos) with n_row queries; raw, n_row and n_out are
 * constants. */
V_INLINE void kv_scores_tile(int raw, int n_row, uint32_t n_out, const struct kv_side *s,
                             const struct kv_lut *lut, const float *const *x, uint32_t t, uint32_t n_pos,
                             vf (*acc)[DOT_OUTS])
{
    const uint8_t *row[DOT_OUTS];
    const float *scale[DOT_OUTS], *bias[DOT_OUTS];

    V_UNROLL
    for (uint32_t o = 0; o < n_out; o++) {
        const size_t at = t + o < n_pos ? t + o : n_pos - 1;

        row[o] = s->rows + at * s->row_bytes;
        scale[o] = s->scale + at * s->n_unit;
        bias[o] = s->bias + at * s->n_unit;
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (uint32_t o = 0; o < n_out; o++)
            acc[r][o] = vf_zero();
    }
    for (uint32_t u = 0; u < s->n_unit; u++) {
        vf by[DOT_OUTS], plus[DOT_OUTS];
        struct kv_lut l[DOT_OUTS];

        V_UNROLL
        for (uint32_t o = 0; o < n_out; o++) {
            by[o] = vf_set1(scale[o][u]);
            plus[o] = vf_set1(bias[o][u]);
            l[o] = kv_looks_up(raw) ? kv_lut_scale(raw, 1, *lut, by[o], plus[o]) : *lut;
        }
        V_UNROLL
        for (size_t j = 0; j < KV_UNIT; j++) {
            vf q[KV_ROWS];

            V_UNROLL
            for (int r = 0; r < n_row; r++)
                q[r] = vf_load(x[r] + (u * KV_UNIT + j) * VW);
            V_UNROLL
            for (uint32_t o = 0; o < n_out; o++) {
                vf k = kv_raw(raw, row[o], u * KV_UNIT + j, &l[o]);

                if (!kv_looks_up(raw))
                    k = vf_fma(k, by[o], plus[o]);
                V_UNROLL
                for (int r = 0; r < n_row; r++)
                    acc[r][o] = vf_fma(q[r], k, acc[r][o]);
            }
        }
    }
}

/* Four positions; as many at a time as the registers hold sums of. */
V_INLINE void kv_scores_four(int raw, int n_row, const struct kv_side *s, const struct kv_lut *lut,
                             const float *const *x, uint32_t t, uint32_t n_pos, __m128 *out)
{
    vf acc[KV_ROWS][DOT_OUTS], more[KV_ROWS][DOT_OUTS];

    if (n_row <= V_ROWS) {
        kv_scores_tile(raw, n_row, 4, s, lut, x, t, n_pos, acc);
    } else {
        kv_scores_tile(raw, n_row, 2, s, lut, x, t, n_pos, acc);
        kv_scores_tile(raw, n_row, 2, s, lut, x, t + 2, n_pos, more);
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            acc[r][2] = more[r][0];
            acc[r][3] = more[r][1];
        }
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++)
        out[r] = vf_sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
}

/* ahead: values to ask for meanwhile, and with them the keys of the next block; NULL: neither, a later tile
 * of queries finds them in the caches. */
V_INLINE void kv_scores_raw(int raw, int n_row, const struct kv_side *s, const struct kv_side *ahead,
                            const float *const *x, uint32_t n_pos, float *score)
{
    const struct kv_lut lut = kv_lut_make(raw, s->levels);

    for (uint32_t t = 0; t < n_pos; t += DOT_OUTS) {
        const uint32_t n = n_pos - t < DOT_OUTS ? n_pos - t : DOT_OUTS;
        __m128 out[KV_ROWS];

        if (t % KV_BLOCK == 0)
            kv_scales(s, t, n_pos - t < KV_BLOCK ? n_pos : t + KV_BLOCK);
        if (ahead) {
            kv_ahead(s, t + KV_BLOCK, DOT_OUTS, n_pos, true);
            kv_ahead(ahead, t, DOT_OUTS, n_pos, false);
        }
        kv_scores_four(raw, n_row, s, &lut, x, t, n_pos, out);
        for (int r = 0; r < n_row; r++)
            v_store4(score + r * ESP_SPAN + t, out[r], n);
    }
}

V_INLINE void kv_scores(enum kv_raw raw, int n_row, const struct kv_side *s, const struct kv_side *ahead,
                        const float *const *x, uint32_t n_pos, float *score)
{
    switch (raw) {
    case KV_RAW_S8:
        kv_scores_raw(KV_RAW_S8, n_row, s, ahead, x, n_pos, score);
        break;
    case KV_RAW_U8:
        kv_scores_raw(KV_RAW_U8, n_row, s, ahead, x, n_pos, score);
        break;
    case KV_RAW_2:
        kv_scores_raw(KV_RAW_2, n_row, s, ahead, x, n_pos, score);
        break;
    case KV_RAW_4:
        kv_scores_raw(KV_RAW_4, n_row, s, ahead, x, n_pos, score);
        break;
    case KV_RAW_5:
        kv_scores_raw(KV_RAW_5, n_row, s, ahead, x, n_pos, score);
        break;
    default:
        kv_scores_raw(KV_RAW_6, n_row, s, ahead, x, n_pos, score);
        break;
    }
}

/* ---- values ---- */

/* A block of columns: of how many vectors, and which of a value's codes, scales and sums it takes. */
struct kv_block {
    const struct kv_lut *lut;
    const uint8_t *row;        /* of the first position */
    const float *scale, *bias; /* of the block's first unit there */
    size_t first;              /* vector */
    const float *weight;       /* [n_row][ESP_SPAN], from the first position */
    uint32_t n;                /* positions */
};

/* The sums of one block: acc[r * n_col + j] += sum over t of weight[r][t] * v_t. All ints are constants. */
V_INLINE void kv_values_sum(int raw, int biased, int n_row, int n_col, const struct kv_side *s,
                            struct kv_block b, vf *acc)
{
    for (uint32_t t = 0; t < b.n; t++) {
        vf p[KV_ROWS];

        V_UNROLL
        for (int r = 0; r < n_row; r++)
            p[r] = vf_set1(b.weight[r * ESP_SPAN + t]);
        V_UNROLL
        for (int j = 0; j < n_col; j++) {
            const vf by = vf_set1(b.scale[j / KV_UNIT]);
            const vf plus = biased ? vf_set1(b.bias[j / KV_UNIT]) : vf_zero();
            const bool looks_up = kv_looks_up(raw); /* the scaled table is one for all of a unit */
            const struct kv_lut l = looks_up ? kv_lut_scale(raw, biased, *b.lut, by, plus) : *b.lut;
            vf v = kv_raw(raw, b.row, b.first + (size_t)j, &l);

            if (!looks_up)
                v = biased ? vf_fma(v, by, plus) : vf_mul(v, by);
            V_UNROLL
            for (int r = 0; r < n_row; r++)
                acc[r * n_col + j] = vf_fma(p[r], v, acc[r * n_col + j]);
        }
        b.row += s->row_bytes;
        b.scale += s->n_unit;
        if (biased)
            b.bias += s->n_unit;
    }
}

/* Columns [c, c + n_col vectors) of the tile's sums over positions [t0, t1). All ints are constants. */
V_INLINE void kv_values_block(int raw, int biased, int n_row, int n_col, const struct kv_side *s,
                              const struct kv_lut *lut, const struct kv_tile *tile, uint32_t t0, uint32_t t1,
                              size_t c)
{
    const size_t unit = (size_t)t0 * s->n_unit + c / ESP_KV_GROUP;
    const struct kv_block b = {.lut = lut,
                               .row = s->rows + t0 * s->row_bytes,
                               .scale = s->scale + unit,
                               .bias = biased ? s->bias + unit : NULL,
                               .first = c / VW,
                               .weight = tile->weight + t0,
                               .n = t1 - t0};
    vf acc[KV_ROWS * 4];

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int j = 0; j < n_col; j++)
            acc[r * n_col + j] = vf_load(tile->acc + r * ESP_HEAD_MAX + c + j * VW);
    }
    kv_values_sum(raw, biased, n_row, n_col, s, b, acc);
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
    const int wide = n_row == 1 ? 8 : n_row <= V_ROWS ? 4 : 2; /* sums in registers */
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
    struct kv_side k, v, next; /* next: keys of the span after this one */
    enum kv_raw k_raw, v_raw;
    struct kv_tile tile;
};

V_INLINE void kv_attend_tile(int n_row, const struct kv_span *s, size_t q0)
{
    const struct esp_attend *a = s->a;
    const struct kv_tile *tile = &s->tile;
    const uint32_t *n = a->n_visible + q0;
    const float *x[KV_ROWS];
    float m[KV_ROWS], l[KV_ROWS];
    uint32_t high = 0, low = ESP_SPAN;

    for (int r = 0; r < n_row; r++) {
        x[r] = a->q + (q0 + (size_t)r) * a->ldq;
        high = n[r] > high ? n[r] : high;
        low = n[r] < low ? n[r] : low;
    }
    if (high == 0)
        return;
    kv_scores(s->k_raw, n_row, &s->k, q0 == 0 ? &s->v : NULL, x, high, tile->weight);
    for (int r = 0; r < n_row; r++) {
        m[r] = attend_weights(tile->weight + r * ESP_SPAN, n[r], &l[r]);
        for (size_t c = 0; c < a->head_dim; c += VW)
            vf_store(tile->acc + r * ESP_HEAD_MAX + c, vf_zero());
    }
    if (q0 == 0 && a->k_next)
        kv_ahead(&s->next, 0, KV_BLOCK, KV_BLOCK, false);
    kv_scales(&s->v, 0, high);
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

static void kv_attend_four(const struct kv_span *s, size_t q0)
{
    kv_attend_tile(4, s, q0);
}

static void kv_attend_full(const struct kv_span *s, size_t q0)
{
    kv_attend_tile(V_ROWS, s, q0);
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

/* All queries, a tile at a time; s is made for a tile. */
static void kv_attend_tiles(const struct kv_span *s)
{
    for (size_t q = 0; q < s->a->n_query;) {
        const size_t left = s->a->n_query - q;

        if (left >= V_ROWS && left != 4) {
            kv_attend_full(s, q);
            q += V_ROWS;
        } else if (left >= 4) {
            kv_attend_four(s, q);
            q += 4;
        } else if (left >= 2) {
            kv_attend_two(s, q);
            q += 2;
        } else {
            kv_attend_one(s, q);
            q++;
        }
    }
}

#endif
