/*
 * Products of affine weights with f32 activations (ESP_ACT_F32; ESP_ACT_BF16 rounds them first and is the
 * same product). Weights become f32, fma(code, scale, bias), in a stack buffer of four outputs by CHUNK
 * inputs, which a block of rows then uses from the first-level cache. Accumulators wait in memory between
 * chunks, so the order is inputs ascending, as if the row had been decoded whole.
 *
 * Prepared row: x in the order of the codes.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_AFFINE_F32_BODY_H
#define ESP_KERNELS_X86_AFFINE_F32_BODY_H

#include "kernels/x86/affine_order.h"

enum { CHUNK = 1024 }; /* inputs decoded at once: whole units, and whole groups of each size */

static size_t af32_bytes(uint32_t n_in, uint32_t group)
{
    (void)group;
    return n_in * sizeof(float);
}

V_INLINE void af32_prepare_rows(enum order order, int round, const struct esp_weight *w, const float *x,
                                size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++) {
        float *y = (float *)out + r * w->n_in;

        for (size_t i = 0; i < w->n_in; i += 32) {
            for (int v = 0; v < 32 / VW; v++) {
                const vf xv = order_load(order, x + r * ldx + i, v);

                vf_store(y + i + (size_t)v * VW, round ? vf_round_bf16(xv) : xv);
            }
        }
    }
}

/* Inputs [c, c + n) of the tile's outputs as f32, out [AFFINE_OUTS][CHUNK] in the order of the codes. */
V_INLINE void af32_decode(int bits, const struct affine_tile *t, size_t c, size_t n, float *out)
{
    const struct esp_weight *w = t->w;
    const uint32_t group = w->group;
    const size_t g0 = c / group, n_group = n / group;
    float scale[CHUNK / 32], bias[CHUNK / 32];
    uint8_t code[CHUNK] __attribute__((aligned(64)));

    for (int o = 0; o < AFFINE_OUTS; o++) {
        float *y = out + o * CHUNK;

        for (size_t g = 0; g < n_group; g += VW) {
            const size_t left = n_group - g < VW ? n_group - g : VW;

            vf_store(scale + g, scales_load(w->scale_type, t->scales[o], g0 + g, left));
            vf_store(bias + g, scales_load(w->scale_type, t->biases[o], g0 + g, left));
        }
        for (size_t i = 0; i < n; i += UNIT) {
            affine_prefetch(t, bits, o, (c + i) / UNIT);
            codes_store_chunks(code + i, affine_unit(t, bits, o, (c + i) / UNIT));
        }
        for (size_t g = 0; g < n_group; g++) {
            const vf s = vf_set1(scale[g]), b = vf_set1(bias[g]);
            const size_t at = g * group;

            for (size_t i = at; i < at + group; i += 2 * VW) {
                vf_store(y + i, vf_fma(vf_from_u8(code + i), s, b));
                vf_store(y + i + VW, vf_fma(vf_from_u8(code + i + VW), s, b));
            }
        }
    }
}

/* acc[r][o] += lanes of x_r * w_o over n inputs; x rows ldx apart, acc rows of AFFINE_OUTS vectors. */
V_INLINE void af32_tile(int n_row, const float *x, size_t ldx, const float *w, size_t n, float *acc)
{
    vf a[V_ROWS][AFFINE_OUTS];

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int o = 0; o < AFFINE_OUTS; o++)
            a[r][o] = vf_load(acc + (r * AFFINE_OUTS + o) * VW);
    }
    for (size_t i = 0; i < n; i += VW) {
        vf xv[V_ROWS];

        V_UNROLL
        for (int r = 0; r < n_row; r++)
            xv[r] = vf_load(x + (size_t)r * ldx + i);
        V_UNROLL
        for (int o = 0; o < AFFINE_OUTS; o++) {
            const vf wv = vf_load(w + (size_t)o * CHUNK + i);

            V_UNROLL
            for (int r = 0; r < n_row; r++)
                a[r][o] = vf_fma(xv[r], wv, a[r][o]);
        }
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int o = 0; o < AFFINE_OUTS; o++)
            vf_store(acc + (r * AFFINE_OUTS + o) * VW, a[r][o]);
    }
}

static void af32_rows(uint32_t n_row, const float *x, size_t ldx, const float *w, size_t n, float *acc)
{
    for (; n_row >= V_ROWS; n_row -= V_ROWS) {
        af32_tile(V_ROWS, x, ldx, w, n, acc);
        x += V_ROWS * ldx;
        acc += V_ROWS * AFFINE_OUTS * VW;
    }
    switch (n_row) {
    case 1:
        af32_tile(1, x, ldx, w, n, acc);
        break;
    case 2:
        af32_tile(2, x, ldx, w, n, acc);
        break;
#if V_ROWS > 3
    case 3:
        af32_tile(3, x, ldx, w, n, acc);
        break;
    case 4:
        af32_tile(4, x, ldx, w, n, acc);
        break;
    case 5:
        af32_tile(5, x, ldx, w, n, acc);
        break;
#endif
    default:
        break;
    }
}

enum {
    DIRECT_ROWS = V_ROWS / 2
};                   /* up to here a decoded weight is used in registers, not through the buffer */
enum { STEP = 128 }; /* inputs unpacked at once: whole units and whole groups of each size */

/* Scales and biases of VW groups, for four outputs. */
struct af32_scales {
    float scale[AFFINE_OUTS][VW], bias[AFFINE_OUTS][VW];
};

V_INLINE void af32_scales_load(struct af32_scales *s, const struct affine_tile *t, size_t g, size_t n)
{
    V_UNROLL
    for (int o = 0; o < AFFINE_OUTS; o++) {
        vf_store(s->scale[o], scales_load(t->w->scale_type, t->scales[o], g, n));
        vf_store(s->bias[o], scales_load(t->w->scale_type, t->biases[o], g, n));
    }
}

/* Codes of inputs [i, i + STEP) of the tile, in the order of chunks; asks for the same of the next tile. */
V_INLINE void af32_step(int bits, const struct affine_tile *t, size_t i, uint8_t (*code)[STEP])
{
    V_UNROLL
    for (int o = 0; o < AFFINE_OUTS; o++) {
        for (size_t u = 0; u < STEP && i + u < t->w->n_in; u += UNIT) {
            affine_prefetch(t, bits, o, (i + u) / UNIT);
            codes_store_chunks(code[o] + u, affine_unit(t, bits, o, (i + u) / UNIT));
        }
    }
}

/* The tile for a few rows, the arithmetic of af32_decode and af32_tile without the buffer between. */
V_INLINE void af32_direct(int bits, int n_row, const struct affine_tile *t, const float *x, __m128 *out)
{
    const uint32_t group = t->w->group;
    const size_t n_in = t->w->n_in, n_group = n_in / group;
    uint8_t code[AFFINE_OUTS][STEP] __attribute__((aligned(64)));
    struct af32_scales s;
    vf a[DIRECT_ROWS][AFFINE_OUTS];

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int o = 0; o < AFFINE_OUTS; o++)
            a[r][o] = vf_zero();
    }
    for (size_t g = 0; g < n_group; g++) {
        const size_t i0 = g * group, at = i0 % STEP;
        vf sv[AFFINE_OUTS], bv[AFFINE_OUTS];

        if (g % VW == 0)
            af32_scales_load(&s, t, g, n_group - g < VW ? n_group - g : VW);
        if (at == 0)
            af32_step(bits, t, i0, code);
        V_UNROLL
        for (int o = 0; o < AFFINE_OUTS; o++) {
            sv[o] = vf_set1(s.scale[o][g % VW]);
            bv[o] = vf_set1(s.bias[o][g % VW]);
        }
        for (size_t i = 0; i < group; i += VW) {
            V_UNROLL
            for (int o = 0; o < AFFINE_OUTS; o++) {
                const vf wv = vf_fma(vf_from_u8(code[o] + at + i), sv[o], bv[o]);

                V_UNROLL
                for (int r = 0; r < n_row; r++)
                    a[r][o] = vf_fma(vf_load(x + (size_t)r * n_in + i0 + i), wv, a[r][o]);
            }
        }
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++)
        out[r] = vf_sum4(a[r][0], a[r][1], a[r][2], a[r][3]);
}

V_INLINE void af32_few(int bits, uint32_t n_row, const struct affine_tile *t, const float *x, __m128 *out)
{
    switch (n_row) {
    case 1:
        af32_direct(bits, 1, t, x, out);
        break;
#if V_ROWS > 3
    case 2:
        af32_direct(bits, 2, t, x, out);
        break;
    case 3:
        af32_direct(bits, 3, t, x, out);
        break;
#endif
    default:
        break;
    }
}

/* The tile for many rows. */
V_INLINE void af32_many(int bits, uint32_t n_row, const struct affine_tile *t, const float *x, __m128 *out)
{
    const size_t n_in = t->w->n_in;
    float buffer[AFFINE_OUTS * CHUNK] __attribute__((aligned(64)));
    float acc[AFFINE_BLOCK_ROWS * AFFINE_OUTS * VW] __attribute__((aligned(64)));

    memset(acc, 0, n_row * AFFINE_OUTS * VW * sizeof acc[0]);
    for (size_t i = 0; i < n_in; i += CHUNK) {
        const size_t n = n_in - i < CHUNK ? n_in - i : CHUNK;

        af32_decode(bits, t, i, n, buffer);
        af32_rows(n_row, x + i, n_in, buffer, n, acc);
    }
    for (uint32_t r = 0; r < n_row; r++) {
        const float *a = acc + (size_t)r * AFFINE_OUTS * VW;

        out[r] = vf_sum4(vf_load(a), vf_load(a + VW), vf_load(a + 2 * VW), vf_load(a + 3 * VW));
    }
}

enum { FEW, MANY };
static const struct esp_path af32_paths[] = {
    [FEW] = {"codes as they are stored in f32, four outputs", ESP_SHAPE_ANY, 1},
    [MANY] = {"values in f32 by pieces, tiles of four outputs", ESP_SHAPE_ANY, DIRECT_ROWS + 1},
    {NULL, ESP_SHAPE_ANY, 0}};

V_INLINE void af32_block(int bits, const struct affine_call *c, const struct affine_block *b)
{
    const float *x = (const float *)(const void *)c->act + (size_t)b->row * c->w->n_in;
    struct affine_tile t = {0};
    __m128 out[AFFINE_BLOCK_ROWS];

    affine_tile_set(&t, c->w, bits, b->out, b->n_out);
    if (esp_path_of(af32_paths, ESP_SHAPE_ANY, b->n_row) == &af32_paths[FEW])
        af32_few(bits, b->n_row, &t, x, out);
    else
        af32_many(bits, b->n_row, &t, x, out);
    for (uint32_t r = 0; r < b->n_row; r++)
        v_store4(c->y + (b->row + r) * c->ldy + b->out, out[r], b->n_out);
}

static void af32_block2(const struct affine_call *c, const struct affine_block *b)
{
    af32_block(2, c, b);
}

static void af32_block3(const struct affine_call *c, const struct affine_block *b)
{
    af32_block(3, c, b);
}

static void af32_block4(const struct affine_call *c, const struct affine_block *b)
{
    af32_block(4, c, b);
}

static void af32_block5(const struct affine_call *c, const struct affine_block *b)
{
    af32_block(5, c, b);
}

static void af32_block6(const struct affine_call *c, const struct affine_block *b)
{
    af32_block(6, c, b);
}

static void af32_block8(const struct affine_call *c, const struct affine_block *b)
{
    af32_block(8, c, b);
}

static void af32_product(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                         uint32_t o1, float *y, size_t ldy)
{
    static const affine_block_fn blocks[ESP_FORMAT_COUNT] = {
        [ESP_FORMAT_AFFINE2] = af32_block2, [ESP_FORMAT_AFFINE3] = af32_block3,
        [ESP_FORMAT_AFFINE4] = af32_block4, [ESP_FORMAT_AFFINE5] = af32_block5,
        [ESP_FORMAT_AFFINE6] = af32_block6, [ESP_FORMAT_AFFINE8] = af32_block8,
    };
    const struct affine_call c = {w, act, af32_bytes(w->n_in, w->group), n_row, o0, o1, y, ldy};

    affine_product(&c, blocks[w->format]);
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
        k->linear[f][ESP_ACT_F32] =
            (struct esp_linear){af32_bytes, f32_prepare_natural, af32_product, NULL, NULL, af32_paths};
        k->linear[f][ESP_ACT_BF16] =
            (struct esp_linear){af32_bytes, bf16_prepare_natural, af32_product, NULL, NULL, af32_paths};
    }
    k->linear[ESP_FORMAT_AFFINE2][ESP_ACT_F32].prepare = f32_prepare_2bit;
    k->linear[ESP_FORMAT_AFFINE2][ESP_ACT_BF16].prepare = bf16_prepare_2bit;
    k->linear[ESP_FORMAT_AFFINE4][ESP_ACT_F32].prepare = f32_prepare_4bit;
    k->linear[ESP_FORMAT_AFFINE4][ESP_ACT_BF16].prepare = bf16_prepare_4bit;
}

#endif
