/*
 * Products of affine weights with activations of one or two int8 terms (ESP_ACT_INT8, ESP_ACT_INT8X2). Lanes
 * never mix groups, so each lane keeps an exact int32 sum over its part of a group, converted once and added
 * with scale * step by one fused multiply-add; the lanes meet in one tree at the end. Bias times group sum
 * enters the same accumulators.
 *
 * Prepared row: steps s [pad VW], s * (sum of the group's codes) [pad VW], then for each unit of 8 VW inputs
 * the terms as bytes in the order of the codes: q1 for a, q1 for b, and with two terms q2 for a, q2 for b.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_AFFINE_INT_BODY_H
#define ESP_KERNELS_X86_AFFINE_INT_BODY_H

#include "kernels/x86/affine_order.h"

V_INLINE size_t int_bytes(uint32_t n_in, uint32_t group, int terms)
{
    return 8 * pad_to(n_in / group, VW) + (size_t)terms * pad_to(n_in, UNIT);
}

static size_t int8_bytes(uint32_t n_in, uint32_t group)
{
    return int_bytes(n_in, group, 1);
}

static size_t int8x2_bytes(uint32_t n_in, uint32_t group)
{
    return int_bytes(n_in, group, 2);
}

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

/* Codes of a chunk of 32 inputs; returns their sum by lane. */
V_INLINE vi int_chunk(enum order order, int terms, const float *x, vf step, int8_t *q)
{
    vi sum = vi_zero();

    for (int v = 0; v < 32 / VW; v++) {
        const vi c = vi_from_f(vf_div(order_load(order, x, v), step));
        int8_t *at = q + (v * VW < 16 ? v * VW : UNIT / 2 + v * VW - 16);

        sum = vi_add(sum, c);
        if (terms == 1) {
            vi_store_int8(at, c);
        } else {
            const vi q1 = vi_sar(vi_add(c, vi_set1(64)), 7);

            vi_store_int8(at, q1);
            vi_store_int8(at + UNIT, vi_sub(c, vi_shl(q1, 7)));
        }
    }
    return sum;
}

V_INLINE void int_prepare(enum order order, int terms, const struct esp_weight *w, const float *x,
                          uint8_t *out)
{
    const size_t n_group = w->n_in / w->group, pad = pad_to(n_group, VW);
    float *s = (float *)(void *)out;
    float *ssum = s + pad;
    int8_t *q = (int8_t *)(ssum + pad);

    memset(out, 0, 8 * pad);
    if (w->n_in % UNIT) /* the short last unit */
        memset(q + (size_t)terms * (w->n_in / UNIT) * UNIT, 0, (size_t)terms * UNIT);
    for (size_t g = 0; g < n_group; g++) {
        const float step = int_step(x + g * w->group, w->group, terms == 1 ? 127.0f : 16256.0f);
        const vf by = vf_set1(step == 0 ? __builtin_inff() : step); /* zero step: all codes 0 */
        vi sum = vi_zero();

        for (size_t i = g * w->group; i < (g + 1) * w->group; i += 32)
            sum = vi_add(sum, int_chunk(order, terms, x + i, by,
                                        q + (size_t)terms * (i / UNIT) * UNIT + i % UNIT / 2));
        s[g] = step;
        ssum[g] = step * (float)vi_sum(sum);
    }
}

V_INLINE void int_prepare_rows(enum order order, int terms, const struct esp_weight *w, const float *x,
                               size_t ldx, uint32_t n_row, void *out)
{
    const size_t bytes = int_bytes(w->n_in, w->group, terms);

    for (size_t r = 0; r < n_row; r++)
        int_prepare(order, terms, w, x + r * ldx, (uint8_t *)out + r * bytes);
}

/* long: one tile, unrolled by rows and outputs; splitting it would pass registers through memory */
V_INLINE void int_tile(int bits, int terms, int n_row, const struct affine_tile *t, __m128 *out)
{
    const struct esp_weight *w = t->w;
    const size_t n_group = w->n_in / w->group, pad = pad_to(n_group, VW);
    const uint32_t log_group = (uint32_t)__builtin_ctz(w->group);
    const vi chunk = vi_shl(vi_shr_all(vi_ramp(), 2), 5); /* first code of each lane's chunk in a unit */
    vf acc[A_ROWS][AFFINE_OUTS];
    size_t unit = 0;

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int o = 0; o < AFFINE_OUTS; o++)
            acc[r][o] = vf_zero();
    }
    for (size_t g = 0; g < n_group; g += VW) {
        const size_t n = n_group - g < VW ? n_group - g : VW;
        const size_t end = ((g + n) * w->group + UNIT - 1) / UNIT;
        vf step[A_ROWS][AFFINE_OUTS]; /* scale * s of these groups */

        V_UNROLL
        for (int o = 0; o < AFFINE_OUTS; o++) {
            const vf scale = scales_load(w->scale_type, t->scales[o], g, n);
            const vf bias = scales_load(w->scale_type, t->biases[o], g, n);

            V_UNROLL
            for (int r = 0; r < n_row; r++) {
                const float *s = (const float *)(const void *)(t->act + (size_t)r * t->act_bytes) + g;

                step[r][o] = vf_mul(scale, vf_load(s));
                acc[r][o] = vf_fma(bias, vf_load(s + pad), acc[r][o]);
            }
        }
        for (; unit < end; unit++) {
            const vi index =
                vi_shr_all(vi_add(chunk, vi_set1((int32_t)(unit * UNIT - g * w->group))), log_group);
            const int8_t *q = (const int8_t *)(t->act + 8 * pad + (size_t)terms * unit * UNIT);

            V_UNROLL
            for (int o = 0; o < AFFINE_OUTS; o += A_OUTS) {
                struct codes c[A_OUTS];

                V_UNROLL
                for (int j = 0; j < A_OUTS; j++) {
                    if (bits)
                        affine_prefetch(t, bits, o + j, unit);
                    c[j] = affine_unit(t, bits, o + j, unit);
                }
                V_UNROLL
                for (int r = 0; r < n_row; r++) {
                    const int8_t *qr = q + (size_t)r * t->act_bytes;
                    const struct codes q1 = codes_load((const uint8_t *)qr);
                    const struct codes q2 = terms == 2 ? codes_load((const uint8_t *)qr + UNIT) : q1;

                    V_UNROLL
                    for (int j = 0; j < A_OUTS; j++) {
                        vi sum = int_dot(vi_zero(), c[j], q1, bits);

                        if (terms == 2)
                            sum = int_dot(vi_shl(sum, 7), c[j], q2, bits);
                        acc[r][o + j] =
                            vf_fma(vf_from_i(sum), vf_lanes(step[r][o + j], index), acc[r][o + j]);
                    }
                }
            }
        }
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++)
        out[r] = vf_sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
}

V_INLINE void int_rows(int bits, int terms, const struct affine_tile *t, uint32_t n_row, __m128 *out)
{
    switch (n_row) {
    case 1:
        int_tile(bits, terms, 1, t, out);
        break;
#if A_ROWS > 2
    case 2:
        int_tile(bits, terms, 2, t, out);
        break;
    case 3:
        int_tile(bits, terms, 3, t, out);
        break;
#endif
    default:
        int_tile(bits, terms, A_ROWS, t, out);
        break;
    }
}

static void int8_unpacked(const struct affine_tile *t, uint32_t n_row, __m128 *out)
{
    int_rows(0, 1, t, n_row, out);
}

static void int8x2_unpacked(const struct affine_tile *t, uint32_t n_row, __m128 *out)
{
    int_rows(0, 2, t, n_row, out);
}

/*
 * Four outputs for a block of rows. With more rows than a tile takes, codes are unpacked once into a stack
 * buffer; rows too long for it, and 8 bits, unpack on the way again.
 */
V_INLINE void int_block(int bits, int terms, const struct affine_call *c, const struct affine_block *b)
{
    const size_t bytes = AFFINE_OUTS * pad_to(c->w->n_in, UNIT);
    const int buffered = bits != 8 && b->n_row > A_ROWS && bytes <= AFFINE_BUFFER_BYTES;
    uint8_t buffer[AFFINE_BUFFER_BYTES] __attribute__((aligned(64)));
    struct affine_tile t = {.w = c->w, .act_bytes = c->act_bytes};

    affine_tile_set(&t, bits, b->out, b->n_out);
    if (buffered)
        affine_tile_unpack(&t, bits, buffer);
    for (uint32_t r = 0; r < b->n_row; r += A_ROWS) {
        const uint32_t n = b->n_row - r < A_ROWS ? b->n_row - r : A_ROWS;
        __m128 out[A_ROWS];

        t.act = c->act + (b->row + r) * c->act_bytes;
        if (buffered)
            (terms == 1 ? int8_unpacked : int8x2_unpacked)(&t, n, out);
        else
            int_rows(bits, terms, &t, n, out);
        for (uint32_t j = 0; j < n; j++)
            v_store4(c->y + (b->row + r + j) * c->ldy + b->out, out[j], b->n_out);
    }
}

static void int8_block2(const struct affine_call *c, const struct affine_block *b)
{
    int_block(2, 1, c, b);
}

static void int8_block3(const struct affine_call *c, const struct affine_block *b)
{
    int_block(3, 1, c, b);
}

static void int8_block4(const struct affine_call *c, const struct affine_block *b)
{
    int_block(4, 1, c, b);
}

static void int8_block5(const struct affine_call *c, const struct affine_block *b)
{
    int_block(5, 1, c, b);
}

static void int8_block6(const struct affine_call *c, const struct affine_block *b)
{
    int_block(6, 1, c, b);
}

static void int8_block8(const struct affine_call *c, const struct affine_block *b)
{
    int_block(8, 1, c, b);
}

static void int8x2_block2(const struct affine_call *c, const struct affine_block *b)
{
    int_block(2, 2, c, b);
}

static void int8x2_block3(const struct affine_call *c, const struct affine_block *b)
{
    int_block(3, 2, c, b);
}

static void int8x2_block4(const struct affine_call *c, const struct affine_block *b)
{
    int_block(4, 2, c, b);
}

static void int8x2_block5(const struct affine_call *c, const struct affine_block *b)
{
    int_block(5, 2, c, b);
}

static void int8x2_block6(const struct affine_call *c, const struct affine_block *b)
{
    int_block(6, 2, c, b);
}

static void int8x2_block8(const struct affine_call *c, const struct affine_block *b)
{
    int_block(8, 2, c, b);
}

static void int8_product(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                         uint32_t o1, float *y, size_t ldy)
{
    static const affine_block_fn blocks[ESP_FORMAT_COUNT] = {
        [ESP_FORMAT_AFFINE2] = int8_block2, [ESP_FORMAT_AFFINE3] = int8_block3,
        [ESP_FORMAT_AFFINE4] = int8_block4, [ESP_FORMAT_AFFINE5] = int8_block5,
        [ESP_FORMAT_AFFINE6] = int8_block6, [ESP_FORMAT_AFFINE8] = int8_block8,
    };
    const struct affine_call c = {w, act, int8_bytes(w->n_in, w->group), n_row, o0, o1, y, ldy};

    affine_product(&c, blocks[w->format]);
}

static void int8_prepare_natural(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row,
                                 void *out)
{
    int_prepare_rows(ORDER_NATURAL, 1, w, x, ldx, n_row, out);
}

static void int8_prepare_2bit(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row,
                              void *out)
{
    int_prepare_rows(ORDER_2BIT, 1, w, x, ldx, n_row, out);
}

static void int8_prepare_4bit(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row,
                              void *out)
{
    int_prepare_rows(ORDER_4BIT, 1, w, x, ldx, n_row, out);
}

static void int8x2_product(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                           uint32_t o1, float *y, size_t ldy)
{
    static const affine_block_fn blocks[ESP_FORMAT_COUNT] = {
        [ESP_FORMAT_AFFINE2] = int8x2_block2, [ESP_FORMAT_AFFINE3] = int8x2_block3,
        [ESP_FORMAT_AFFINE4] = int8x2_block4, [ESP_FORMAT_AFFINE5] = int8x2_block5,
        [ESP_FORMAT_AFFINE6] = int8x2_block6, [ESP_FORMAT_AFFINE8] = int8x2_block8,
    };
    const struct affine_call c = {w, act, int8x2_bytes(w->n_in, w->group), n_row, o0, o1, y, ldy};

    affine_product(&c, blocks[w->format]);
}

static void int8x2_prepare_natural(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row,
                                   void *out)
{
    int_prepare_rows(ORDER_NATURAL, 2, w, x, ldx, n_row, out);
}

static void int8x2_prepare_2bit(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row,
                                void *out)
{
    int_prepare_rows(ORDER_2BIT, 2, w, x, ldx, n_row, out);
}

static void int8x2_prepare_4bit(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row,
                                void *out)
{
    int_prepare_rows(ORDER_4BIT, 2, w, x, ldx, n_row, out);
}

static const struct esp_path int_paths[] = {{"tiles of byte dot products, four outputs", ESP_SHAPE_ANY, 1},
                                            {NULL, ESP_SHAPE_ANY, 0}};

static void affine_int_init(struct esp_kernels *k)
{
    for (int f = ESP_FORMAT_AFFINE2; f <= ESP_FORMAT_AFFINE8; f++) {
        k->linear[f][ESP_ACT_INT8] =
            (struct esp_linear){int8_bytes, int8_prepare_natural, int8_product, NULL, NULL, int_paths};
        k->linear[f][ESP_ACT_INT8X2] =
            (struct esp_linear){int8x2_bytes, int8x2_prepare_natural, int8x2_product, NULL, NULL, int_paths};
    }
    k->linear[ESP_FORMAT_AFFINE2][ESP_ACT_INT8].prepare = int8_prepare_2bit;
    k->linear[ESP_FORMAT_AFFINE2][ESP_ACT_INT8X2].prepare = int8x2_prepare_2bit;
    k->linear[ESP_FORMAT_AFFINE4][ESP_ACT_INT8].prepare = int8_prepare_4bit;
    k->linear[ESP_FORMAT_AFFINE4][ESP_ACT_INT8X2].prepare = int8x2_prepare_4bit;
}

#endif
