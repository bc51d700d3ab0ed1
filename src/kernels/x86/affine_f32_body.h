/*
 * Products of affine weights with f32 activations (ESP_ACT_F32; ESP_ACT_BF16 rounds them first and is the
 * same product). Codes become floats in registers. Within a group one vector of partial sums of x * code,
 * then one fused multiply-add with the scale; bias times the group's sum of x, formed once in prepare, enters
 * the same accumulators.
 *
 * Prepared row: sums of x by group [pad VW], then x in the order of the codes, padded with zeros to STEP.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_AFFINE_F32_BODY_H
#define ESP_KERNELS_X86_AFFINE_F32_BODY_H

#include "kernels/x86/affine_order.h"

enum { PAIR = 2 };   /* outputs whose sums run side by side, to cover the latency of multiply-add */
enum { STEP = 128 }; /* inputs of one round: whole units and whole groups on both widths */

static size_t af32_bytes(uint32_t n_in, uint32_t group)
{
    return 4 * (pad_to(n_in / group, VW) + pad_to(n_in, STEP));
}

V_INLINE void af32_prepare(enum order order, int round, const struct esp_weight *w, const float *x,
                           float *out)
{
    const size_t n_group = w->n_in / w->group, pad = pad_to(n_group, VW);
    float *y = out + pad;

    memset(out, 0, 4 * pad);
    memset(y + w->n_in, 0, 4 * (pad_to(w->n_in, STEP) - w->n_in));
    for (size_t g = 0; g < n_group; g++) {
        vf sum = vf_zero();

        for (size_t i = g * w->group; i < (g + 1) * w->group; i += 32) {
            for (int v = 0; v < 32 / VW; v++) {
                vf xv = order_load(order, x + i, v);

                xv = round ? vf_round_bf16(xv) : xv;
                sum = vf_add(sum, xv);
                vf_store(y + i + v * VW, xv);
            }
        }
        out[g] = vf_sum(sum);
    }
}

V_INLINE void af32_prepare_rows(enum order order, int round, const struct esp_weight *w, const float *x,
                                size_t ldx, uint32_t n_row, void *out)
{
    const size_t bytes = af32_bytes(w->n_in, w->group);

    for (size_t r = 0; r < n_row; r++)
        af32_prepare(order, round, w, x + r * ldx, (float *)(void *)((uint8_t *)out + r * bytes));
}

/* Bytes of step s of output o: in place when unpacked and whole, else unpacked into buffer. */
V_INLINE const uint8_t *af32_codes(const struct affine_tile *t, int bits, int o, size_t s, uint8_t *buffer)
{
    const size_t n_unit = pad_to(t->w->n_in, UNIT) / UNIT;

    if (!bits && (s + 1) * STEP <= n_unit * UNIT)
        return t->codes[o] + s * STEP;
    for (size_t u = 0; u < STEP / UNIT; u++) {
        const size_t unit = s * (STEP / UNIT) + u;

        if (unit < n_unit)
            codes_store(buffer + u * UNIT, affine_unit(t, bits, o, unit));
        else
            memset(buffer + u * UNIT, 0, UNIT);
    }
    return buffer;
}

/* long: one tile, unrolled by rows and outputs; splitting it would pass registers through memory */
V_INLINE void af32_tile(int bits, int n_row, const struct affine_tile *t, __m128 *out)
{
    const struct esp_weight *w = t->w;
    const size_t n_group = w->n_in / w->group, pad = pad_to(n_group, VW);
    const uint32_t log_group = (uint32_t)__builtin_ctz(w->group);
    uint8_t buffer[PAIR][STEP] __attribute__((aligned(64)));
    float scale[AFFINE_OUTS][VW];
    vf acc[A_ROWS][AFFINE_OUTS];
    size_t s = 0;

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int o = 0; o < AFFINE_OUTS; o++)
            acc[r][o] = vf_zero();
    }
    for (size_t g = 0; g < n_group; g += VW) {
        const size_t n = n_group - g < VW ? n_group - g : VW;
        const size_t end = ((g + n) * w->group + STEP - 1) / STEP;

        V_UNROLL
        for (int o = 0; o < AFFINE_OUTS; o++) {
            const vf bias = scales_load(w->scale_type, t->biases[o], g, n);

            vf_store(scale[o], scales_load(w->scale_type, t->scales[o], g, n));
            V_UNROLL
            for (int r = 0; r < n_row; r++) {
                const float *xsum = (const float *)(const void *)(t->act + (size_t)r * t->act_bytes) + g;

                acc[r][o] = vf_fma(bias, vf_load(xsum), acc[r][o]);
            }
        }
        for (; s < end; s++) {
            const float *x = (const float *)(const void *)t->act + pad + s * STEP;

            V_UNROLL
            for (int o = 0; o < AFFINE_OUTS; o += PAIR) {
                const uint8_t *codes[PAIR];
                vf part[A_ROWS][PAIR];

                V_UNROLL
                for (int p = 0; p < PAIR; p++) {
                    codes[p] = af32_codes(t, bits, o + p, s, buffer[p]);
                    V_UNROLL
                    for (int r = 0; r < n_row; r++)
                        part[r][p] = vf_zero();
                }
                V_UNROLL
                for (int c = 0; c < STEP / 32; c++) {
                    const size_t a = (size_t)(c / UNIT_CHUNKS) * UNIT + (size_t)(c % UNIT_CHUNKS) * 16;
                    const size_t at = (s * STEP + (size_t)c * 32 - g * w->group) >> log_group;

                    V_UNROLL
                    for (int v = 0; v < 32 / VW; v++) {
                        vf wv[PAIR];

                        V_UNROLL
                        for (int p = 0; p < PAIR; p++)
                            wv[p] =
                                vf_from_u8(codes[p] + a + (v * VW < 16 ? v * VW : UNIT / 2 + v * VW - 16));
                        V_UNROLL
                        for (int r = 0; r < n_row; r++) {
                            const vf xv = vf_load(x + (size_t)r * (t->act_bytes / 4) + c * 32 + v * VW);

                            V_UNROLL
                            for (int p = 0; p < PAIR; p++)
                                part[r][p] = vf_fma(xv, wv[p], part[r][p]);
                        }
                    }
                    if (((uint32_t)(c + 1) * 32 & (w->group - 1)) != 0)
                        continue; /* the group goes on */
                    V_UNROLL
                    for (int p = 0; p < PAIR; p++) {
                        const vf by = vf_set1(scale[o + p][at]);

                        V_UNROLL
                        for (int r = 0; r < n_row; r++) {
                            acc[r][o + p] = vf_fma(part[r][p], by, acc[r][o + p]);
                            part[r][p] = vf_zero();
                        }
                    }
                }
            }
        }
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++)
        out[r] = vf_sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
}

V_INLINE void af32_rows(int bits, const struct affine_tile *t, uint32_t n_row, __m128 *out)
{
    switch (n_row) {
    case 1:
        af32_tile(bits, 1, t, out);
        break;
#if A_ROWS > 2
    case 2:
        af32_tile(bits, 2, t, out);
        break;
    case 3:
        af32_tile(bits, 3, t, out);
        break;
#endif
    default:
        af32_tile(bits, A_ROWS, t, out);
        break;
    }
}

static void af32_unpacked(const struct affine_tile *t, uint32_t n_row, __m128 *out)
{
    af32_rows(0, t, n_row, out);
}

static void af32_tile2(const struct affine_tile *t, uint32_t n_row, __m128 *out)
{
    af32_rows(2, t, n_row, out);
}

static void af32_tile3(const struct affine_tile *t, uint32_t n_row, __m128 *out)
{
    af32_rows(3, t, n_row, out);
}

static void af32_tile4(const struct affine_tile *t, uint32_t n_row, __m128 *out)
{
    af32_rows(4, t, n_row, out);
}

static void af32_tile5(const struct affine_tile *t, uint32_t n_row, __m128 *out)
{
    af32_rows(5, t, n_row, out);
}

static void af32_tile6(const struct affine_tile *t, uint32_t n_row, __m128 *out)
{
    af32_rows(6, t, n_row, out);
}

static void af32_tile8(const struct affine_tile *t, uint32_t n_row, __m128 *out)
{
    af32_rows(8, t, n_row, out);
}

static void af32_product(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                         uint32_t o1, float *y, size_t ldy)
{
    const struct affine_call c = {w, act, af32_bytes(w->n_in, w->group), n_row, o0, o1, y, ldy};

    switch (w->format) {
    case ESP_FORMAT_AFFINE2:
        affine_product(&c, 2, af32_tile2, af32_unpacked);
        break;
    case ESP_FORMAT_AFFINE3:
        affine_product(&c, 3, af32_tile3, af32_unpacked);
        break;
    case ESP_FORMAT_AFFINE4:
        affine_product(&c, 4, af32_tile4, af32_unpacked);
        break;
    case ESP_FORMAT_AFFINE5:
        affine_product(&c, 5, af32_tile5, af32_unpacked);
        break;
    case ESP_FORMAT_AFFINE6:
        affine_product(&c, 6, af32_tile6, af32_unpacked);
        break;
    case ESP_FORMAT_AFFINE8:
        affine_product(&c, 8, af32_tile8, af32_unpacked);
        break;
    default:
        break;
    }
}

static void f32_prepare_natural(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row,
                                void *out)
{
    af32_prepare_rows(ORDER_NATURAL, 0, w, x, ldx, n_row, out);
}

static void f32_prepare_2bit(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row,
                             void *out)
{
    af32_prepare_rows(ORDER_2BIT, 0, w, x, ldx, n_row, out);
}

static void f32_prepare_4bit(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row,
                             void *out)
{
    af32_prepare_rows(ORDER_4BIT, 0, w, x, ldx, n_row, out);
}

static void bf16_prepare_natural(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row,
                                 void *out)
{
    af32_prepare_rows(ORDER_NATURAL, 1, w, x, ldx, n_row, out);
}

static void bf16_prepare_2bit(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row,
                              void *out)
{
    af32_prepare_rows(ORDER_2BIT, 1, w, x, ldx, n_row, out);
}

static void bf16_prepare_4bit(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row,
                              void *out)
{
    af32_prepare_rows(ORDER_4BIT, 1, w, x, ldx, n_row, out);
}

static void affine_f32_init(struct esp_kernels *k)
{
    for (int f = ESP_FORMAT_AFFINE2; f <= ESP_FORMAT_AFFINE8; f++) {
        k->linear[f][ESP_ACT_F32] = (struct esp_linear){af32_bytes, f32_prepare_natural, af32_product};
        k->linear[f][ESP_ACT_BF16] = (struct esp_linear){af32_bytes, bf16_prepare_natural, af32_product};
    }
    k->linear[ESP_FORMAT_AFFINE2][ESP_ACT_F32].prepare = f32_prepare_2bit;
    k->linear[ESP_FORMAT_AFFINE2][ESP_ACT_BF16].prepare = bf16_prepare_2bit;
    k->linear[ESP_FORMAT_AFFINE4][ESP_ACT_F32].prepare = f32_prepare_4bit;
    k->linear[ESP_FORMAT_AFFINE4][ESP_ACT_BF16].prepare = bf16_prepare_4bit;
}

#endif
