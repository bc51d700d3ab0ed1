/*
 * Products of affine weights with activations of one or two int8 terms (ESP_ACT_INT8, ESP_ACT_INT8X2) for
 * AVX2. The terms of a value are one integer of 16 bits, which multiplies codes exactly, so both precisions
 * share all but prepare. The integer sum of a group is exact in any order; an output adds its groups in f32,
 * ascending, the bias of a group before its sum. So a few rows, which read codes as they are stored, and many,
 * which multiply a panel of widened codes (words_avx2.h), give the same bits.
 *
 * Prepared row: steps s [n_group, padded to 8], s * (sum of the group's integers) [same], then for each unit
 * of 64 inputs four vectors of int16 in the order of the codes.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx2.h"

#include "kernels/x86/codes_avx2.h"
#include "kernels/x86/affine_order.h"
#include "kernels/x86/words_avx2.h"

#include "kernels/x86/parts.h"

enum {
    FEW_ROWS = 2,           /* rows of a tile that reads codes as they are stored */
    MANY_ROWS = 4,          /* from here on a panel pays */
    TILE_ROWS = 6,          /* 12 sums of 16 registers */
    PANEL_GROUPS = VW,      /* groups of a panel */
    PANEL_BLOCK_ROWS = 128, /* rows whose inputs of a panel stay in L2 */
    GROUP_MAX = 128,
};

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

/*
 * Step for a group whose largest magnitude becomes top; as the reference: 0 below the normal range, NaN where
 * an input is not finite (as integers NaN > inf > finite magnitudes).
 */
V_INLINE float int_step(const float *x, uint32_t group, float top)
{
    vi m = vi_zero();
    int32_t bits;
    float max;

    for (uint32_t i = 0; i < group; i += VW)
        m = vi_max(m, vi_from_bits(vf_abs(vf_load(x + i))));
    bits = vi_hmax(m);
    if (bits >= 0x7f800000)
        return __builtin_nanf("");
    memcpy(&max, &bits, sizeof max);
    max /= top;
    return max < 0x1p-126f ? 0 : max;
}

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
        const float step = int_step(x + g * w->group, w->group, top);
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

/* ---- a few rows, four outputs ---- */

/* Scales and biases of VW groups by group. */
struct few_scales {
    float scale[VW][AFFINE_OUTS], bias[VW][AFFINE_OUTS];
};

V_INLINE void few_scales_load(const struct affine_tile *t, const uint8_t *const *plane, size_t g, size_t n,
                              float (*out)[AFFINE_OUTS])
{
    vi v[AFFINE_OUTS];

    V_UNROLL
    for (int o = 0; o < AFFINE_OUTS; o++)
        v[o] = vi_from_bits(scales_load(t->w->scale_type, plane[o], g, n));
    vi_transpose4(v);
    V_UNROLL
    for (int i = 0; i < 4; i++) {
        const vf f = _mm256_castsi256_ps(v[i]);

        _mm_storeu_ps(out[i], _mm256_castps256_ps128(f));
        _mm_storeu_ps(out[i + 4], _mm256_extractf128_ps(f, 1));
    }
}

/* acc + bias * (sum of the row's group) + scale * (sum of codes times integers). */
V_INLINE __m128 few_add(__m128 acc, const struct few_scales *f, const float *s, size_t pad, size_t g,
                        __m128i sum)
{
    acc = _mm_fmadd_ps(_mm_loadu_ps(f->bias[g % VW]), _mm_set1_ps(s[pad + g]), acc);
    return _mm_fmadd_ps(_mm_cvtepi32_ps(sum), _mm_mul_ps(_mm_loadu_ps(f->scale[g % VW]), _mm_set1_ps(s[g])),
                        acc);
}

/* Sums of 2 neighbouring products of a and of b in 16 bits: 4 * 63 * 128 fits. */
V_INLINE vi few_bytes(struct codes c, const int8_t *t)
{
    const struct codes q = codes_load((const uint8_t *)t);

    return _mm256_add_epi16(_mm256_maddubs_epi16(c.a, q.a), _mm256_maddubs_epi16(c.b, q.b));
}

/* sum + codes of a unit times its integers. */
V_INLINE vi few_dot(int terms, struct codes c, const int8_t *t, vi sum)
{
    const vi one = _mm256_set1_epi16(1);

    if (terms == 1)
        return mul16_now(sum, few_bytes(c, t), one);
    sum = mul16_now(sum, few_bytes(c, t), _mm256_set1_epi16(128));
    return mul16_now(sum, few_bytes(c, t + UNIT), one);
}

/* sum[r][o] += codes of a unit times its integers. */
V_INLINE void few_unit(int bits, int terms, int n_row, const struct affine_tile *t, size_t unit,
                       const struct int_row *x, vi (*sum)[AFFINE_OUTS])
{
    V_UNROLL
    for (int o = 0; o < AFFINE_OUTS; o++) {
        const uint8_t *p = unit < t->n_whole ? t->codes[o] + unit * UNIT * (size_t)bits / 8 : t->tail[o];

        affine_prefetch(t, bits, o, unit);
        if (bits < 8) {
            const struct codes c = codes_get(bits, p);

            V_UNROLL
            for (int r = 0; r < n_row; r++)
                sum[r][o] = few_dot(terms, c, x[r].t + unit * UNIT * (size_t)terms, sum[r][o]);
        } else {
            const struct words c = words_get(bits, p);

            V_UNROLL
            for (int r = 0; r < n_row; r++) {
                V_UNROLL
                for (int v = 0; v < WORD_VECTORS; v++)
                    sum[r][o] = mul16_now(sum[r][o], c.v[v], load16(x[r].q + unit * UNIT + v * 16));
            }
        }
    }
}

/* One step of a tile: the units of a group, or one unit of two groups. */
V_INLINE void few_tile(int bits, int terms, int n_row, const struct int_call *c, const struct affine_tile *t,
                       uint32_t r0, __m128 *acc)
{
    const uint32_t group = c->w->group, units = group < UNIT ? 1 : group / UNIT, step = group < UNIT ? 2 : 1;
    const size_t n_group = c->w->n_in / group;
    struct few_scales scales;
    struct int_row x[FEW_ROWS];

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        x[r] = int_row_at(c, r0 + (uint32_t)r);
        acc[r] = _mm_setzero_ps();
    }
    for (size_t g = 0, unit = 0; g < n_group; g += step) {
        vi sum[FEW_ROWS][AFFINE_OUTS];

        if (g % VW == 0) {
            const size_t n = n_group - g < VW ? n_group - g : VW;

            few_scales_load(t, t->scales, g, n, scales.scale);
            few_scales_load(t, t->biases, g, n, scales.bias);
        }
        V_UNROLL
        for (int r = 0; r < n_row; r++)
            sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = vi_zero();
        for (uint32_t u = 0; u < units; u++)
            few_unit(bits, terms, n_row, t, unit++, x, sum);
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            const vi h = _mm256_hadd_epi32(_mm256_hadd_epi32(sum[r][0], sum[r][1]),
                                           _mm256_hadd_epi32(sum[r][2], sum[r][3]));
            const __m128i lo = _mm256_castsi256_si128(h), hi = _mm256_extracti128_si256(h, 1);

            if (step == 1) {
                acc[r] = few_add(acc[r], &scales, x[r].s, c->pad, g, _mm_add_epi32(lo, hi));
            } else {
                acc[r] = few_add(acc[r], &scales, x[r].s, c->pad, g, lo);
                if (g + 1 < n_group)
                    acc[r] = few_add(acc[r], &scales, x[r].s, c->pad, g + 1, hi);
            }
        }
    }
}

V_INLINE void few_rows(int bits, int terms, const struct int_call *c)
{
    for (uint32_t o = c->o0; o < c->o1; o += AFFINE_OUTS) {
        const uint32_t n_out = c->o1 - o < AFFINE_OUTS ? c->o1 - o : AFFINE_OUTS;
        struct affine_tile t = {.w = c->w};

        affine_tile_set(&t, bits, o, n_out);
        for (uint32_t r = 0; r < c->n_row; r += FEW_ROWS) {
            const uint32_t n = c->n_row - r < FEW_ROWS ? c->n_row - r : FEW_ROWS;
            __m128 acc[FEW_ROWS];

            if (n == 1)
                few_tile(bits, terms, 1, c, &t, r, acc);
            else
                few_tile(bits, terms, FEW_ROWS, c, &t, r, acc);
            for (uint32_t i = 0; i < n; i++)
                v_store4(c->y + (r + i) * c->ldy + o, acc[i], n_out);
        }
    }
}

/* ---- many rows ---- */

/* Codes of PANEL_OUTS outputs in up to PANEL_GROUPS groups from g0 on. */
struct panel {
    float scale[PANEL_GROUPS][PANEL_OUTS], bias[PANEL_GROUPS][PANEL_OUTS];
    int16_t words[PANEL_GROUPS * GROUP_MAX / UNIT][UNIT_PAIRS][PANEL_OUTS * 2];
    size_t g0, n_group;
};

V_INLINE void panel_scales(enum esp_scale_type type, const uint8_t *const *row, size_t g, size_t n,
                           float (*out)[PANEL_OUTS])
{
    for (int h = 0; h < PANEL_VECTORS; h++) {
        vi v[VW];

        V_UNROLL
        for (int i = 0; i < VW; i++)
            v[i] = vi_from_bits(scales_load(type, row[h * VW + i], g, n));
        vi_transpose8(v);
        V_UNROLL
        for (int i = 0; i < VW; i++)
            vf_store(out[i] + h * VW, _mm256_castsi256_ps(v[i]));
    }
}

/* Fill p, whose groups are set, with outputs o .. o + n_out - 1, past the end the last again; asks for the
 * outputs behind. */
V_INLINE void panel_fill(int bits, const struct esp_weight *w, uint32_t o, uint32_t n_out, struct panel *p)
{
    const size_t unit_bytes = UNIT * (size_t)bits / 8, n_in = p->n_group * w->group, i0 = p->g0 * w->group;
    const uint8_t *codes[PANEL_OUTS], *scales[PANEL_OUTS], *biases[PANEL_OUTS];
    uint8_t tail[PANEL_OUTS][UNIT];

    for (uint32_t i = 0; i < PANEL_OUTS; i++) {
        const size_t row = o + (i < n_out ? i : n_out - 1);

        codes[i] = w->codes + row * w->row_bytes + i0 * (size_t)bits / 8;
        scales[i] = w->scales + row * w->scale_row_bytes;
        biases[i] = w->biases + row * w->scale_row_bytes;
    }
    panel_scales(w->scale_type, scales, p->g0, p->n_group, p->scale);
    panel_scales(w->scale_type, biases, p->g0, p->n_group, p->bias);
    for (size_t u = 0; u * UNIT < n_in; u++) {
        for (int h = 0; h < PANEL_VECTORS; h++) {
            const uint8_t *at[VW];

            for (int i = 0; i < VW; i++) {
                at[i] = codes[h * VW + i] + u * unit_bytes;
                _mm_prefetch((const char *)((uintptr_t)at[i] + PANEL_OUTS * w->row_bytes), _MM_HINT_T1);
                if ((u + 1) * UNIT > n_in) { /* the short last unit */
                    memset(tail[h * VW + i], 0, UNIT);
                    memcpy(tail[h * VW + i], at[i], n_in % UNIT * (size_t)bits / 8);
                    at[i] = tail[h * VW + i];
                }
            }
            panel_unit(bits, at, p->words[u][0] + h * VW * 2);
        }
    }
}

/* sum[r][h] += one lane of a unit. */
V_INLINE void tile_lane(int n_row, const int16_t *w, const int16_t *const *x, size_t at,
                        vi (*sum)[PANEL_VECTORS])
{
    for (int v = 0; v < WORD_VECTORS; v++, w += 8 * PANEL_OUTS * 2, at += 16) {
        V_UNROLL
        for (int d = 0; d < 4; d++) {
            const vi w0 = load16(w + d * PANEL_OUTS * 2), w1 = load16(w + d * PANEL_OUTS * 2 + 16);

            V_UNROLL
            for (int r = 0; r < n_row; r++) {
                int32_t pair;
                vi both;

                memcpy(&pair, x[r] + at + 2 * d, sizeof pair);
                both = vi_set1(pair);
                sum[r][0] = mul16_now(sum[r][0], w0, both);
                sum[r][1] = mul16_now(sum[r][1], w1, both);
            }
        }
    }
}

/* y [n_row][PANEL_OUTS] += p times rows from r0 on. */
V_INLINE void tile_panel(int n_row, const struct int_call *c, const struct panel *p, uint32_t r0, float *y,
                         size_t ldy)
{
    const size_t lanes = c->w->group / 32;
    const int16_t *x[TILE_ROWS];

    V_UNROLL
    for (int r = 0; r < n_row; r++)
        x[r] = int_row_at(c, r0 + (uint32_t)r).q + p->g0 * c->w->group;
    for (size_t g = 0, lane = 0; g < p->n_group; g++) {
        vi sum[TILE_ROWS][PANEL_VECTORS];

        V_UNROLL
        for (int r = 0; r < n_row; r++)
            sum[r][0] = sum[r][1] = vi_zero();
        for (size_t i = 0; i < lanes; i++, lane++)
            tile_lane(n_row, p->words[lane / 2][4 * (lane % 2)], x, lane / 2 * UNIT + lane % 2 * 8, sum);
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            const float *s = int_row_at(c, r0 + (uint32_t)r).s + p->g0 + g;

            V_UNROLL
            for (int h = 0; h < PANEL_VECTORS; h++) {
                float *at = y + (size_t)r * ldy + h * VW;
                vf a = p->g0 + g ? vf_load(at) : vf_zero();

                a = vf_fma(vf_load(p->bias[g] + h * VW), vf_set1(s[c->pad]), a);
                a = vf_fma(vf_from_i(sum[r][h]), vf_mul(vf_load(p->scale[g] + h * VW), vf_set1(s[0])), a);
                vf_store(at, a);
            }
        }
    }
}

static void tile_rows(uint32_t n_row, const struct int_call *c, const struct panel *p, uint32_t r, float *y,
                      size_t ldy)
{
    switch (n_row) {
    case 1:
        tile_panel(1, c, p, r, y, ldy);
        break;
    case 2:
        tile_panel(2, c, p, r, y, ldy);
        break;
    case 3:
        tile_panel(3, c, p, r, y, ldy);
        break;
    case 4:
        tile_panel(4, c, p, r, y, ldy);
        break;
    case 5:
        tile_panel(5, c, p, r, y, ldy);
        break;
    default:
        tile_panel(TILE_ROWS, c, p, r, y, ldy);
        break;
    }
}

/* The panel of outputs o .. o + n_out - 1 times rows [r0, r1), in tiles of nearly equal height. */
static void panel_rows(const struct int_call *c, const struct panel *p, uint32_t o, uint32_t n_out,
                       uint32_t r0, uint32_t r1)
{
    for (uint32_t r = r0, n; r < r1; r += n) {
        const uint32_t left = r1 - r, tiles = (left + TILE_ROWS - 1) / TILE_ROWS;
        float *y = c->y + (size_t)r * c->ldy + o;

        n = (left + tiles - 1) / tiles;
        if (n_out == PANEL_OUTS) {
            tile_rows(n, c, p, r, y, c->ldy);
        } else {
            float part[TILE_ROWS][PANEL_OUTS];

            memset(part, 0, sizeof part);
            for (uint32_t i = 0; p->g0 && i < n; i++)
                memcpy(part[i], y + i * c->ldy, n_out * sizeof *y);
            tile_rows(n, c, p, r, part[0], PANEL_OUTS);
            for (uint32_t i = 0; i < n; i++)
                memcpy(y + i * c->ldy, part[i], n_out * sizeof *y);
        }
    }
}

/* Blocks of rows, in them panels: all outputs of some inputs, then the next inputs. Sums wait in y. */
V_INLINE void many_rows(int bits, const struct int_call *c)
{
    const size_t n_group = c->w->n_in / c->w->group;
    struct panel p __attribute__((aligned(64)));

    for (uint32_t r = 0; r < c->n_row; r += PANEL_BLOCK_ROWS) {
        const uint32_t r1 = c->n_row - r < PANEL_BLOCK_ROWS ? c->n_row : r + PANEL_BLOCK_ROWS;

        for (p.g0 = 0; p.g0 < n_group; p.g0 += PANEL_GROUPS) {
            p.n_group = n_group - p.g0 < PANEL_GROUPS ? n_group - p.g0 : PANEL_GROUPS;
            for (uint32_t o = c->o0; o < c->o1; o += PANEL_OUTS) {
                const uint32_t n_out = c->o1 - o < PANEL_OUTS ? c->o1 - o : PANEL_OUTS;

                panel_fill(bits, c->w, o, n_out, &p);
                panel_rows(c, &p, o, n_out, r, r1);
            }
        }
    }
}

/* ---- calls ---- */

enum int_path { FEW, MANY };

static const struct esp_path int_paths[] = {
    [FEW] = {"codes as they are stored, four outputs", ESP_SHAPE_ANY, 1},
    [MANY] = {"panels of 16 outputs, tiles of up to 6 rows", ESP_SHAPE_ANY, MANY_ROWS},
    {NULL, ESP_SHAPE_ANY, 0},
};

/* terms: as the kernel's prepare was told. */
V_INLINE void int_product(int bits, int terms, const struct esp_weight *w, const void *act, uint32_t n_row,
                          uint32_t o0, uint32_t o1, float *y, size_t ldy)
{
    const struct int_call c = {
        w, act, int_bytes(w->n_in, w->group, terms), pad_to(w->n_in / w->group, VW), n_row, o0, o1, y, ldy};

    if (n_row == 0)
        return;
    if (esp_path_of(int_paths, ESP_SHAPE_STORED, n_row) == &int_paths[FEW])
        few_rows(bits, terms, &c);
    else
        many_rows(bits, &c);
}

static void product2_1(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                       float *y, size_t ldy)
{
    int_product(2, 1, w, act, n_row, o0, o1, y, ldy);
}

static void product2_2(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                       float *y, size_t ldy)
{
    int_product(2, 2, w, act, n_row, o0, o1, y, ldy);
}

static void product3_1(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                       float *y, size_t ldy)
{
    int_product(3, 1, w, act, n_row, o0, o1, y, ldy);
}

static void product3_2(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                       float *y, size_t ldy)
{
    int_product(3, 2, w, act, n_row, o0, o1, y, ldy);
}

static void product4_1(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                       float *y, size_t ldy)
{
    int_product(4, 1, w, act, n_row, o0, o1, y, ldy);
}

static void product4_2(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                       float *y, size_t ldy)
{
    int_product(4, 2, w, act, n_row, o0, o1, y, ldy);
}

static void product5_1(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                       float *y, size_t ldy)
{
    int_product(5, 1, w, act, n_row, o0, o1, y, ldy);
}

static void product5_2(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                       float *y, size_t ldy)
{
    int_product(5, 2, w, act, n_row, o0, o1, y, ldy);
}

static void product6_1(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                       float *y, size_t ldy)
{
    int_product(6, 1, w, act, n_row, o0, o1, y, ldy);
}

static void product6_2(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                       float *y, size_t ldy)
{
    int_product(6, 2, w, act, n_row, o0, o1, y, ldy);
}

static void product8(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                     float *y, size_t ldy)
{
    int_product(8, 0, w, act, n_row, o0, o1, y, ldy);
}

void esp_affine_int_init_avx2(struct esp_kernels *k)
{
    static const struct {
        enum esp_format_id format;
        enum esp_act act;
        struct esp_linear linear;
    } rows[] = {
        {ESP_FORMAT_AFFINE2, ESP_ACT_INT8, {int8_bytes, int8_2bit, product2_1, NULL, NULL, int_paths}},
        {ESP_FORMAT_AFFINE2, ESP_ACT_INT8X2, {int8x2_bytes, int8x2_2bit, product2_2, NULL, NULL, int_paths}},
        {ESP_FORMAT_AFFINE3, ESP_ACT_INT8, {int8_bytes, int8_natural, product3_1, NULL, NULL, int_paths}},
        {ESP_FORMAT_AFFINE3,
         ESP_ACT_INT8X2,
         {int8x2_bytes, int8x2_natural, product3_2, NULL, NULL, int_paths}},
        {ESP_FORMAT_AFFINE4, ESP_ACT_INT8, {int8_bytes, int8_4bit, product4_1, NULL, NULL, int_paths}},
        {ESP_FORMAT_AFFINE4, ESP_ACT_INT8X2, {int8x2_bytes, int8x2_4bit, product4_2, NULL, NULL, int_paths}},
        {ESP_FORMAT_AFFINE5, ESP_ACT_INT8, {int8_bytes, int8_natural, product5_1, NULL, NULL, int_paths}},
        {ESP_FORMAT_AFFINE5,
         ESP_ACT_INT8X2,
         {int8x2_bytes, int8x2_natural, product5_2, NULL, NULL, int_paths}},
        {ESP_FORMAT_AFFINE6, ESP_ACT_INT8, {int8_bytes, int8_natural, product6_1, NULL, NULL, int_paths}},
        {ESP_FORMAT_AFFINE6,
         ESP_ACT_INT8X2,
         {int8x2_bytes, int8x2_natural, product6_2, NULL, NULL, int_paths}},
        {ESP_FORMAT_AFFINE8, ESP_ACT_INT8, {words_bytes, int8_wide, product8, NULL, NULL, int_paths}},
        {ESP_FORMAT_AFFINE8, ESP_ACT_INT8X2, {words_bytes, int8x2_wide, product8, NULL, NULL, int_paths}},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        k->linear[rows[i].format][rows[i].act] = rows[i].linear;
}
