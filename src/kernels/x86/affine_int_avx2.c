/*
 * Products of affine weights with activations of one or two int8 terms (ESP_ACT_INT8, ESP_ACT_INT8X2) for
 * AVX2. The terms of a value are one integer of 16 bits, which multiplies codes exactly, so both precisions
 * share all but prepare. The integer sum of a group is exact in any order; an output adds its groups in f32,
 * ascending, the bias of a group before its sum. So a few rows, which read codes as they are stored or, of 4
 * bits, packed in strips (affine_strip_avx2.h), and many, which multiply a panel of widened codes
 * (affine_panel_avx2.h), give the same bits.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx2.h"

#include "kernels/x86/codes_avx2.h"
#include "kernels/x86/affine_order.h"
#include "kernels/x86/words_avx2.h"
#include "kernels/x86/affine_rows_avx2.h"
#include "kernels/x86/affine_strip_avx2.h"
#include "kernels/x86/affine_panel_avx2.h"

#include "kernels/x86/parts.h"

enum {
    FEW_ROWS = 2,        /* rows of a tile that reads codes as they are stored */
    MANY_ROWS = 3,       /* from here on a panel pays */
    STRIP_ROWS = 2,      /* of a tile that reads a strip */
    STRIP_MANY_ROWS = 5, /* from here on a panel filled from strips pays */
    STRIP_AHEAD = 2048,  /* bytes asked for ahead of use */
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

/* ---- a few rows, a strip ---- */

/*
 * sum[r][h] += a chunk times row r's terms at t[r] + at. 8 sums of two neighbouring products fit in 16 bits:
 * 8 * 2 * 15 * 128 = 30720.
 */
V_INLINE void strip_chunk(int terms, int n_row, const uint8_t *chunk, const int8_t *const *t, size_t at,
                          vi (*sum)[PANEL_VECTORS])
{
    vi part[2][STRIP_ROWS][PANEL_VECTORS]; /* by term */

    V_UNROLL
    for (int i = 0; i < 2 * CHUNK_STEPS; i++) {
        vi c[PANEL_VECTORS];

        V_UNROLL
        for (int h = 0; h < PANEL_VECTORS; h++) {
            const vi v = strip_step(chunk, i / 2, h);

            c[h] = i % 2 ? strip_high(v) : strip_low(v);
        }
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            V_UNROLL
            for (int k = 0; k < terms; k++) {
                const vi four = tile_broadcast(t[r] + at + k * UNIT + i % 2 * 32 + i / 2 * 4);

                V_UNROLL
                for (int h = 0; h < PANEL_VECTORS; h++)
                    part[k][r][h] =
                        i ? mul8_now(part[k][r][h], c[h], four) : _mm256_maddubs_epi16(c[h], four);
            }
        }
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int h = 0; h < PANEL_VECTORS; h++) {
            V_UNROLL
            for (int k = 0; k < terms; k++) /* of two terms the first counts 128 times */
                sum[r][h] = vi_add(
                    sum[r][h], _mm256_madd_epi16(part[k][r][h], _mm256_set1_epi16(k + 1 < terms ? 128 : 1)));
        }
    }
}

/* Rows from r0 on times the strip at p, to y [n_row][STRIP]. */
V_INLINE void strip_tile(int terms, int n_row, const struct int_call *c, const uint8_t *p, uint32_t r0,
                         float *y, size_t ldy)
{
    const struct esp_weight *w = c->w;
    const size_t n_group = w->n_in / w->group, half = strip_head_bytes(w) / 2;
    const int8_t *t[STRIP_ROWS];
    const float *s[STRIP_ROWS];
    vf acc[STRIP_ROWS][PANEL_VECTORS];

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        const struct int_row x = int_row_at(c, r0 + (uint32_t)r);

        s[r] = x.s;
        t[r] = x.t;
        acc[r][0] = acc[r][1] = vf_zero();
    }
    for (size_t g = 0, lane = 0; g < n_group; g++) {
        const uint8_t *head = p;
        vi sum[STRIP_ROWS][PANEL_VECTORS];

        V_UNROLL
        for (int r = 0; r < n_row; r++)
            sum[r][0] = sum[r][1] = vi_zero();
        p += 2 * half;
        for (uint32_t i = 0; i < w->group; i += CHUNK, lane++, p += CHUNK_BYTES) {
            V_UNROLL
            for (int b = 0; b < CHUNK_BYTES; b += 64)
                _mm_prefetch((const char *)((uintptr_t)p + STRIP_AHEAD + (size_t)b), _MM_HINT_T0);
            strip_chunk(terms, n_row, p, t, lane / 2 * UNIT * (size_t)terms + lane % 2 * 16, sum);
        }
        V_UNROLL
        for (int h = 0; h < PANEL_VECTORS; h++) {
            const vf scale = strip_scale(w->scale_type, head, h);
            const vf bias = strip_scale(w->scale_type, head + half, h);

            V_UNROLL
            for (int r = 0; r < n_row; r++) {
                acc[r][h] = vf_fma(bias, vf_set1(s[r][c->pad + g]), acc[r][h]);
                acc[r][h] = vf_fma(vf_from_i(sum[r][h]), vf_mul(scale, vf_set1(s[r][g])), acc[r][h]);
            }
        }
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        vf_store(y + (size_t)r * ldy, acc[r][0]);
        vf_store(y + (size_t)r * ldy + VW, acc[r][1]);
    }
}

V_INLINE void strip_rows(int terms, const struct int_call *c)
{
    for (uint32_t o = c->o0; o < c->o1; o += STRIP) {
        const uint8_t *strip = strip_at(c->w, o, 0);
        const size_t n_out = c->o1 - o < STRIP ? c->o1 - o : STRIP;

        for (uint32_t r = 0; r < c->n_row; r += STRIP_ROWS) {
            const uint32_t n = c->n_row - r < STRIP_ROWS ? c->n_row - r : STRIP_ROWS;
            float part[STRIP_ROWS][STRIP], *y = c->y + (size_t)r * c->ldy + o;

            if (n == 1)
                strip_tile(terms, 1, c, strip, r, n_out == STRIP ? y : part[0], STRIP);
            else
                strip_tile(terms, STRIP_ROWS, c, strip, r, n_out == STRIP ? y : part[0],
                           n_out == STRIP ? c->ldy : STRIP);
            for (uint32_t i = 0; n_out < STRIP && i < n; i++)
                memcpy(y + i * c->ldy, part[i], n_out * sizeof *y);
        }
    }
}

/* ---- calls ---- */

enum int_path { FEW, MANY, PACKED_FEW, PACKED_MANY };

static const struct esp_path int4_paths[] = {
    [FEW] = {"codes as they are stored, four outputs", ESP_SHAPE_STORED, 1},
    [MANY] = {"panels of 16 outputs, tiles of up to 6 rows", ESP_SHAPE_STORED, MANY_ROWS},
    [PACKED_FEW] = {"strips of 16 outputs, tiles of up to 2 rows", ESP_SHAPE_PACKED, 1},
    [PACKED_MANY] = {"panels from strips of 16 outputs, tiles of up to 6 rows", ESP_SHAPE_PACKED,
                     STRIP_MANY_ROWS},
    {NULL, ESP_SHAPE_ANY, 0},
};

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
    const struct esp_path *paths = bits == 4 ? int4_paths : int_paths;

    if (n_row == 0)
        return;
    switch (esp_path_of(paths, w->packed ? ESP_SHAPE_PACKED : ESP_SHAPE_STORED, n_row) - paths) {
    case FEW:
        few_rows(bits, terms, &c);
        break;
    case PACKED_FEW:
        if (bits == 4)
            strip_rows(terms, &c);
        break;
    default:
        many_rows(bits, panel_kind_of(bits, terms), &c);
        break;
    }
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
        {ESP_FORMAT_AFFINE4,
         ESP_ACT_INT8,
         {int8_bytes, int8_4bit, product4_1, strip_pack_bytes, strip_pack, int4_paths}},
        {ESP_FORMAT_AFFINE4,
         ESP_ACT_INT8X2,
         {int8x2_bytes, int8x2_4bit, product4_2, strip_pack_bytes, strip_pack, int4_paths}},
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
