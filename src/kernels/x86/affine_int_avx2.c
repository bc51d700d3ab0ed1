/*
 * Products of affine weights with activations of one or two int8 terms (ESP_ACT_INT8, ESP_ACT_INT8X2) for
 * AVX2. The terms of a value are one integer of 16 bits, which multiplies codes exactly, so both precisions
 * share all but prepare. The integer sum of a group is exact in any order; an output adds its groups in f32,
 * ascending, the bias of a group before its sum. So a few rows, which read codes as they are stored, and
 * many, which multiply a panel of widened codes (affine_panel_avx2.h), give the same bits.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx2.h"

#include "kernels/x86/codes_avx2.h"
#include "kernels/x86/affine_order.h"
#include "kernels/x86/words_avx2.h"
#include "kernels/x86/affine_rows_avx2.h"
#include "kernels/x86/affine_panel_avx2.h"

#include "kernels/x86/parts.h"

enum {
    FEW_ROWS = 2,  /* rows of a tile that reads codes as they are stored */
    MANY_ROWS = 3, /* from here on a panel pays */
};

/* ---- a few rows, four outputs ---- */

/* VW groups of four outputs: their scales and biases, and by lane the sums of codes times integers. A unit of
 * two groups has its sums in one vector, a group a lane. */
struct few_batch {
    float scale[VW][AFFINE_OUTS], bias[VW][AFFINE_OUTS];
    int32_t sum[FEW_ROWS][VW][AFFINE_OUTS][VW];
};

V_INLINE void few_scales(const struct affine_tile *t, const uint8_t *const *plane, size_t g, size_t n,
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

/* Sums of 2 neighbouring products of a and of b in 16 bits: 4 * 63 * 128 fits. */
V_INLINE vi few_bytes(struct codes c, const int8_t *t)
{
    const struct codes q = codes_load((const uint8_t *)t);

    return _mm256_add_epi16(_mm256_maddubs_epi16(c.a, q.a), _mm256_maddubs_epi16(c.b, q.b));
}

/* Codes of a unit times its integers. */
V_INLINE vi few_dot_bytes(int terms, struct codes c, const int8_t *t)
{
    const vi one = _mm256_set1_epi16(1);

    if (terms == 1)
        return _mm256_madd_epi16(few_bytes(c, t), one);
    return vi_add(_mm256_madd_epi16(few_bytes(c, t), _mm256_set1_epi16(128)),
                  _mm256_madd_epi16(few_bytes(c, t + UNIT), one));
}

V_INLINE vi few_dot_words(struct words c, const int16_t *q)
{
    vi sum = _mm256_madd_epi16(c.v[0], load16(q));

    V_UNROLL
    for (int v = 1; v < WORD_VECTORS; v++)
        sum = vi_add(sum, _mm256_madd_epi16(c.v[v], load16(q + v * 16)));
    return sum;
}

/* A unit of the four outputs at p into its place in the batch; more: it is not the first of its group. */
V_INLINE void few_unit(int bits, int terms, int n_row, const uint8_t *const *p, size_t unit,
                       const struct int_row *x, size_t slot, int more, struct few_batch *b)
{
    V_UNROLL
    for (int o = 0; o < AFFINE_OUTS; o++) {
        struct codes c;
        struct words w;

        if (bits < 8)
            c = codes_get(bits, p[o]);
        else
            w = words_get(bits, p[o]);
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            int32_t *at = b->sum[r][slot][o];
            vi sum = bits < 8 ? few_dot_bytes(terms, c, x[r].t + unit * UNIT * (size_t)terms)
                              : few_dot_words(w, x[r].q + unit * UNIT);

            if (more)
                sum = vi_add(sum, _mm256_load_si256((const __m256i *)(const void *)at));
            _mm256_store_si256((__m256i *)(void *)at, sum);
        }
    }
}

/* acc + bias * (sum of the row's group) + scale * (sum of codes times integers), group i of the batch. */
V_INLINE __m128 few_add(__m128 acc, const struct few_batch *b, const float *s, size_t pad, size_t i,
                        __m128i sum)
{
    acc = _mm_fmadd_ps(_mm_load_ps(b->bias[i]), _mm_set1_ps(s[pad + i]), acc);
    return _mm_fmadd_ps(_mm_cvtepi32_ps(sum), _mm_mul_ps(_mm_load_ps(b->scale[i]), _mm_set1_ps(s[i])), acc);
}

/* acc + the n groups of row r in the batch; s: their steps. */
V_INLINE __m128 few_sum(__m128 acc, const struct few_batch *b, int r, uint32_t group, const float *s,
                        size_t pad, size_t n)
{
    const size_t step = group < UNIT ? 2 : 1;

    for (size_t i = 0; i < n; i += step) {
        const __m256i *v = (const __m256i *)(const void *)b->sum[r][i / step];
        const vi h = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
        const __m128i lo = _mm256_castsi256_si128(h), hi = _mm256_extracti128_si256(h, 1);

        if (step == 1) {
            acc = few_add(acc, b, s, pad, i, _mm_add_epi32(lo, hi));
        } else {
            acc = few_add(acc, b, s, pad, i, lo);
            if (i + 1 < n)
                acc = few_add(acc, b, s, pad, i + 1, hi);
        }
    }
    return acc;
}

/* Four outputs. Groups go in batches, so that the sums across lanes of one do not wait for another's. */
V_INLINE void few_tile(int bits, int terms, int n_row, const struct int_call *c, const struct affine_tile *t,
                       uint32_t r0, __m128 *acc)
{
    const uint32_t group = c->w->group;
    const size_t n_group = c->w->n_in / group, ahead = AFFINE_OUTS * c->w->row_bytes;
    struct few_batch b __attribute__((aligned(64)));
    const uint8_t *p[AFFINE_OUTS] = {t->codes[0], t->codes[1], t->codes[2], t->codes[3]};
    struct int_row x[FEW_ROWS];

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        x[r] = int_row_at(c, r0 + (uint32_t)r);
        acc[r] = _mm_setzero_ps();
    }
    for (size_t g = 0, unit = 0; g < n_group; g += VW) {
        const size_t n = n_group - g < VW ? n_group - g : VW, units = (n * group + UNIT - 1) / UNIT;

        few_scales(t, t->scales, g, n, b.scale);
        few_scales(t, t->biases, g, n, b.bias);
        for (size_t u = 0; u < units; u++, unit++) {
            V_UNROLL
            for (int o = 0; o < AFFINE_OUTS; o++) {
                if (unit == t->n_whole)
                    p[o] = t->tail[o];
                _mm_prefetch((const char *)((uintptr_t)p[o] + ahead), _MM_HINT_T0);
            }
            if (group <= UNIT)
                few_unit(bits, terms, n_row, p, unit, x, u, 0, &b);
            else
                few_unit(bits, terms, n_row, p, unit, x, u / 2, u % 2, &b);
            V_UNROLL
            for (int o = 0; o < AFFINE_OUTS; o++)
                p[o] += UNIT * (size_t)bits / 8;
        }
        V_UNROLL
        for (int r = 0; r < n_row; r++)
            acc[r] = few_sum(acc[r], &b, r, group, x[r].s + g, c->pad, n);
    }
}

V_INLINE void few_rows(int bits, int terms, const struct int_call *c)
{
    for (uint32_t o = c->o0; o < c->o1; o += AFFINE_OUTS) {
        const uint32_t n_out = c->o1 - o < AFFINE_OUTS ? c->o1 - o : AFFINE_OUTS;
        struct affine_tile t; /* not cleared: that took a fourteenth of the time of 1024 inputs */

        affine_tile_set(&t, c->w, bits, o, n_out);
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
        many_rows(bits, panel_kind_of(bits, terms), &c);
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
