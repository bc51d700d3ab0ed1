/*
 * Products with affine weights. Eight codes of b bits are b bytes: a table lookup puts the two bytes around
 * each code into a lane of 16 bits, a shift and a mask leave it. Codes of a group, for four outputs, are
 * formed once and multiplied by the rows of a tile: in integers, where one or two int8 terms are one value of
 * 16 bits and sums are exact, or in floats. Scale and bias meet the sum of a group. Contract: kernels.h.
 *
 * Prepared row: by group the step (floats: 1), by group the sum of what is multiplied, then int16 or f32
 * [n_in].
 *
 * SPDX-License-Identifier: MIT
 */
#include "formats/affine.h"

#include <math.h>

#include "kernels/arm/coded.h"
#include "kernels/arm/neon.h"
#include "kernels/arm/parts.h"

enum {
    ROWS = 8, /* rows that share formed codes */
    GROUP = ESP_AFFINE_GROUP_MAX,
    UNIT = 32, /* codes that end at a byte and at a word, whatever their bits */
};

/* ---- codes ---- */

struct unpack {
    uint8x16_t pick;
    int16x8_t shift; /* negative */
    uint16x8_t mask;
    size_t bits;
};

static struct unpack unpack_of(size_t bits)
{
    uint8_t pick[16];
    int16_t shift[8];

    for (size_t j = 0; j < 8; j++) {
        pick[2 * j] = (uint8_t)(j * bits / 8);
        pick[2 * j + 1] = (uint8_t)(j * bits / 8 + 1); /* beyond the eighth byte: zero */
        shift[j] = (int16_t) - (int16_t)(j * bits % 8);
    }
    return (struct unpack){vld1q_u8(pick), vld1q_s16(shift), vdupq_n_u16((uint16_t)((1u << bits) - 1)), bits};
}

N_INLINE uint16x8_t codes8(const struct unpack *u, const uint8_t *p)
{
    const uint8x16_t bytes = vcombine_u8(vld1_u8(p), vdup_n_u8(0));
    const uint16x8_t at = vreinterpretq_u16_u8(vqtbl1q_u8(bytes, u->pick));

    return vandq_u16(vshlq_u16(at, u->shift), u->mask);
}

/* The 8 bytes from a code's first one on reach beyond the last unit of a row, so that one is copied. */
N_INLINE const uint8_t *unit_bytes(const struct esp_weight *w, const struct unpack *u, const uint8_t *codes,
                                   size_t i, uint8_t copy[UNIT + 8])
{
    const uint8_t *p = codes + i * u->bits / 8;

    if (i + UNIT < w->n_in)
        return p;
    memset(copy, 0, UNIT + 8);
    memcpy(copy, p, UNIT * u->bits / 8);
    return copy;
}

/* Codes of output o in the group from input i0 on. */
N_INLINE void unpack_int(const struct esp_weight *w, const struct unpack *unpack, size_t o, size_t i0,
                         int16_t *out)
{
    const struct unpack u = *unpack;
    uint8_t copy[UNIT + 8];

    for (size_t i = 0; i < w->group; i += UNIT) {
        const uint8_t *p = unit_bytes(w, &u, w->codes + o * w->row_bytes, i0 + i, copy);

        N_UNROLL
        for (size_t g = 0; g < UNIT / 8; g++)
            vst1q_s16(out + i + 8 * g, vreinterpretq_s16_u16(codes8(&u, p + g * u.bits)));
    }
}

N_INLINE void unpack_float(const struct esp_weight *w, const struct unpack *unpack, size_t o, size_t i0,
                           float *out)
{
    const struct unpack u = *unpack;
    uint8_t copy[UNIT + 8];

    for (size_t i = 0; i < w->group; i += UNIT) {
        const uint8_t *p = unit_bytes(w, &u, w->codes + o * w->row_bytes, i0 + i, copy);

        N_UNROLL
        for (size_t g = 0; g < UNIT / 8; g++) {
            const uint16x8_t c = codes8(&u, p + g * u.bits);

            vst1q_f32(out + i + 8 * g, vcvtq_f32_u32(vmovl_u16(vget_low_u16(c))));
            vst1q_f32(out + i + 8 * g + 4, vcvtq_f32_u32(vmovl_high_u16(c)));
        }
    }
}

/* ---- prepared rows ---- */

static size_t int_bytes(uint32_t n_in, uint32_t group)
{
    return (size_t)n_in / group * 8 + (size_t)n_in * sizeof(int16_t);
}

static size_t float_bytes(uint32_t n_in, uint32_t group)
{
    return (size_t)n_in / group * 8 + (size_t)n_in * sizeof(float);
}

static void prepare_int(const struct esp_weight *w, const float *x, float top, uint8_t *out)
{
    const size_t n_group = w->n_in / w->group;
    float *step = (float *)(void *)out, *sums = step + n_group;
    int16_t *v = (int16_t *)(void *)(sums + n_group);

    for (size_t g = 0; g < n_group; g++, x += w->group, v += w->group) {
        step[g] = act_step(x, w->group, top);
        sums[g] = (float)act_round(x, w->group, step[g], v) * step[g];
    }
}

static void prepare_int8(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++)
        prepare_int(w, x + r * ldx, 127, (uint8_t *)out + r * int_bytes(w->n_in, w->group));
}

static void prepare_int8x2(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++)
        prepare_int(w, x + r * ldx, 127 * 128, (uint8_t *)out + r * int_bytes(w->n_in, w->group));
}

static void prepare_float(const struct esp_weight *w, const float *x, int bf16, uint8_t *out)
{
    const size_t n_group = w->n_in / w->group;
    float *step = (float *)(void *)out, *sums = step + n_group, *z = sums + n_group;

    for (size_t g = 0; g < n_group; g++, x += w->group, z += w->group) {
        struct f8 sum = f8_zero();

        for (size_t i = 0; i < w->group; i += 8) {
            struct f8 v = f8_load(x + i);

            if (bf16)
                v = (struct f8){round_bf16(v.lo), round_bf16(v.hi)};
            f8_store(z + i, v);
            sum = (struct f8){vaddq_f32(sum.lo, v.lo), vaddq_f32(sum.hi, v.hi)};
        }
        step[g] = 1;
        sums[g] = f8_sum(sum);
    }
}

static void prepare_f32(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++)
        prepare_float(w, x + r * ldx, 0, (uint8_t *)out + r * float_bytes(w->n_in, w->group));
}

static void prepare_bf16(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++)
        prepare_float(w, x + r * ldx, 1, (uint8_t *)out + r * float_bytes(w->n_in, w->group));
}

/* ---- products ---- */

/* One value of group g for each of four outputs; past the end the last one again. */
N_INLINE float32x4_t plane4(const struct esp_weight *w, const uint8_t *plane, uint32_t o, uint32_t n,
                            size_t g)
{
    float t[OUTS];

    for (uint32_t j = 0; j < OUTS; j++)
        t[j] = esp_scale_load(w->scale_type, plane + (o + (j < n ? j : n - 1)) * w->scale_row_bytes, g);
    return vld1q_f32(t);
}

struct call {
    const struct esp_weight *w;
    const uint8_t *act;
    size_t act_bytes;
    struct unpack unpack;
};

/* Outputs o .. o + n - 1 of n_row <= ROWS prepared rows at act. */
N_INLINE void tile(int ints, const struct call *c, const uint8_t *act, uint32_t n_row, uint32_t o, uint32_t n,
                   float32x4_t acc[ROWS])
{
    const struct esp_weight *w = c->w;
    const size_t n_group = w->n_in / w->group;
    int16_t shorts[OUTS * GROUP];
    float floats[OUTS * GROUP];

    for (uint32_t r = 0; r < n_row; r++)
        acc[r] = vdupq_n_f32(0);
    for (size_t g = 0; g < n_group; g++) {
        const float32x4_t scale = plane4(w, w->scales, o, n, g), bias = plane4(w, w->biases, o, n, g);

        for (uint32_t j = 0; j < OUTS; j++) {
            const size_t row = o + (j < n ? j : n - 1);

            if (ints)
                unpack_int(w, &c->unpack, row, g * w->group, shorts + j * GROUP);
            else
                unpack_float(w, &c->unpack, row, g * w->group, floats + j * GROUP);
        }
        for (size_t r = 0; r < n_row; r++) {
            const float *step = (const float *)(const void *)(act + r * c->act_bytes), *sums = step + n_group;
            const void *v = sums + n_group;
            const float32x4_t dot =
                ints ? dot4_int(shorts, GROUP, (const int16_t *)v + g * w->group, w->group)
                     : dot4_float(floats, GROUP, (const float *)v + g * w->group, w->group);

            acc[r] = vfmaq_f32(acc[r], dot, vmulq_n_f32(scale, step[g]));
            acc[r] = vfmaq_n_f32(acc[r], bias, sums[g]);
        }
    }
}

N_INLINE void product(int ints, const struct call *c, uint32_t n_row, uint32_t o0, uint32_t o1, float *y,
                      size_t ldy)
{
    for (uint32_t o = o0; o < o1; o += OUTS) {
        const uint32_t n = o1 - o < OUTS ? o1 - o : OUTS;

        for (size_t r = 0; r < n_row; r += ROWS) {
            const uint32_t rows = n_row - (uint32_t)r < ROWS ? n_row - (uint32_t)r : ROWS;
            float32x4_t acc[ROWS];

            tile(ints, c, c->act + r * c->act_bytes, rows, o, n, acc);
            for (size_t i = 0; i < rows; i++)
                store4(y + (r + i) * ldy + o, acc[i], n);
        }
    }
}

static void product_int(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                        float *y, size_t ldy)
{
    const struct call c = {w, act, int_bytes(w->n_in, w->group), unpack_of(esp_format_get(w->format)->bits)};

    product(1, &c, n_row, o0, o1, y, ldy);
}

static void product_float(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                          uint32_t o1, float *y, size_t ldy)
{
    const struct call c = {w, act, float_bytes(w->n_in, w->group),
                           unpack_of(esp_format_get(w->format)->bits)};

    product(0, &c, n_row, o0, o1, y, ldy);
}

static const struct esp_path affine_paths[] = {{"tiles of four outputs", ESP_SHAPE_ANY, 1},
                                               {NULL, ESP_SHAPE_ANY, 0}};

void esp_affine_init_neon(struct esp_kernels *k)
{
    for (int f = ESP_FORMAT_AFFINE2; f <= ESP_FORMAT_AFFINE8; f++) {
        k->linear[f][ESP_ACT_F32] = (struct esp_linear){.prepared_bytes = float_bytes,
                                                        .prepare = prepare_f32,
                                                        .product = product_float,
                                                        .paths = affine_paths};
        k->linear[f][ESP_ACT_BF16] = (struct esp_linear){.prepared_bytes = float_bytes,
                                                         .prepare = prepare_bf16,
                                                         .product = product_float,
                                                         .paths = affine_paths};
        k->linear[f][ESP_ACT_INT8X2] = (struct esp_linear){.prepared_bytes = int_bytes,
                                                           .prepare = prepare_int8x2,
                                                           .product = product_int,
                                                           .paths = affine_paths};
        k->linear[f][ESP_ACT_INT8] = (struct esp_linear){.prepared_bytes = int_bytes,
                                                         .prepare = prepare_int8,
                                                         .product = product_int,
                                                         .paths = affine_paths};
    }
}
