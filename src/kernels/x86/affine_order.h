/*
 * What the two affine kernels (affine_int_*.c, affine_f32_body.h) share: the order in which unpacked codes
 * lie, so that activations can be prepared in the same order, and how a tile finds its planes. Included after
 * codes_avx*.h.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_AFFINE_ORDER_H
#define ESP_KERNELS_X86_AFFINE_ORDER_H

#include <string.h>

#include "kernels/kernels.h"

enum {
    UNIT = 8 * VW,                   /* codes unpacked at once, into vectors a and b */
    UNIT_CHUNKS = UNIT / 32,         /* 128-bit lanes of a and b: chunks of 32 codes, 16 in a and 16 in b */
    AFFINE_OUTS = 4,                 /* outputs of a tile */
    AFFINE_BUFFER_BYTES = 48 * 1024, /* stack for the unpacked codes of one tile */
    AFFINE_BLOCK_BYTES = 256 * 1024, /* packed weights kept in L2 while blocks of rows pass */
    AFFINE_BLOCK_ROWS = 48,          /* prepared rows kept in L2 while those weights pass */
};

/* Orders of the 32 codes of a chunk: entry p is the code at byte p of a's lane (p < 16) or p - 16 of b's. */
enum order { ORDER_NATURAL, ORDER_2BIT, ORDER_4BIT };
static const int32_t ORDERS[3][32] = {
    {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
     16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31},
    {0, 4, 1, 5, 8,  12, 9,  13, 16, 20, 17, 21, 24, 28, 25, 29,
     2, 6, 3, 7, 10, 14, 11, 15, 18, 22, 19, 23, 26, 30, 27, 31},
    {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
     1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31},
};

/* Vector v of a chunk of 32 floats at x, in the order of its codes. */
V_INLINE vf order_load(enum order order, const float *x, int v)
{
    return order == ORDER_NATURAL ? vf_load(x + v * VW) : vf_pick32(x, ORDERS[order] + v * VW);
}

V_INLINE size_t pad_to(size_t n, size_t m)
{
    return (n + m - 1) / m * m;
}

/* bits is a constant in each instance; 0: unpacked already, into bytes in order. */
V_INLINE struct codes codes_get(int bits, const uint8_t *p)
{
    switch (bits) {
    case 2:
        return codes_unpack2(p);
    case 3:
        return codes_unpack3(p);
    case 4:
        return codes_unpack4(p);
    case 5:
        return codes_unpack5(p);
    case 6:
        return codes_unpack6(p);
    case 8:
        return codes_unpack8(p);
    default:
        return codes_load(p);
    }
}

/* n scales from the i-th on, n <= VW; lanes beyond n are zero. */
V_INLINE vf scales_load(enum esp_scale_type type, const uint8_t *plane, size_t i, size_t n)
{
    if (type == ESP_SCALE_F32)
        return vf_load_n((const float *)(const void *)(plane + 4 * i), n);
    plane += 2 * i;
    if (type == ESP_SCALE_BF16)
        return n == VW ? vf_from_bf16((const uint16_t *)(const void *)plane)
                       : vf_from_bf16_n((const uint16_t *)(const void *)plane, n);
    return n == VW ? vf_from_f16((const uint16_t *)(const void *)plane)
                   : vf_from_f16_n((const uint16_t *)(const void *)plane, n);
}

/* Four outputs and up to A_ROWS prepared rows. */
struct affine_tile {
    const struct esp_weight *w;
    const uint8_t *codes[AFFINE_OUTS]; /* packed, or unpacked units */
    const uint8_t *scales[AFFINE_OUTS];
    const uint8_t *biases[AFFINE_OUTS];
    const uint8_t *act; /* prepared rows, act_bytes apart */
    size_t act_bytes;
    uint8_t tail[AFFINE_OUTS][UNIT]; /* the last packed unit where it is short, padded with zeros */
    size_t n_whole;                  /* units that are whole in memory */
};

/* Point t at outputs o .. o + n - 1; past the end the last one again. Copies short last units. */
V_INLINE void affine_tile_set(struct affine_tile *t, const struct esp_weight *w, int bits, uint32_t o,
                              uint32_t n)
{
    const size_t unit_bytes = UNIT * (size_t)bits / 8;
    const size_t rest = w->n_in % UNIT * (size_t)bits / 8;

    const uint8_t *codes = w->codes + o * w->row_bytes;
    size_t scale = o * w->scale_row_bytes;

    t->w = w;
    t->n_whole = w->n_in / UNIT;
    for (uint32_t j = 0; j < AFFINE_OUTS; j++) {
        if (j && j < n) {
            codes += w->row_bytes;
            scale += w->scale_row_bytes;
        }
        t->codes[j] = codes;
        t->scales[j] = w->scales + scale;
        t->biases[j] = w->biases + scale;
        if (rest) {
            memset(t->tail[j], 0, sizeof t->tail[j]);
            memcpy(t->tail[j], t->codes[j] + t->n_whole * unit_bytes, rest);
        }
    }
}

V_INLINE struct codes affine_unit(const struct affine_tile *t, int bits, int o, size_t unit)
{
    const size_t unit_bytes = bits ? UNIT * (size_t)bits / 8 : UNIT;

    return codes_get(bits, unit < t->n_whole ? t->codes[o] + unit * unit_bytes : t->tail[o]);
}

/* Ask for the codes that the next tile reads when this one reads `unit`. */
V_INLINE void affine_prefetch(const struct affine_tile *t, int bits, int o, size_t unit)
{
    const size_t at = unit * (UNIT * (size_t)bits / 8) + AFFINE_OUTS * t->w->row_bytes;

    _mm_prefetch((const char *)((uintptr_t)t->codes[o] + at), _MM_HINT_T0);
}

/* Unpack a tile into buffer and point it there. */
V_INLINE void affine_tile_unpack(struct affine_tile *t, int bits, uint8_t *buffer)
{
    const size_t n_unit = pad_to(t->w->n_in, UNIT) / UNIT;

    for (int o = 0; o < AFFINE_OUTS; o++) {
        uint8_t *out = buffer + (size_t)o * n_unit * UNIT;

        for (size_t u = 0; u < n_unit; u++) {
            affine_prefetch(t, bits, o, u);
            codes_store(out + u * UNIT, affine_unit(t, bits, o, u));
        }
        t->codes[o] = out;
    }
    t->n_whole = n_unit;
}

/* One product call. */
struct affine_call {
    const struct esp_weight *w;
    const uint8_t *act;
    size_t act_bytes;
    uint32_t n_row, o0, o1;
    float *y;
    size_t ldy;
};

/* Up to four outputs by up to AFFINE_BLOCK_ROWS rows of it. */
struct affine_block {
    uint32_t out, n_out;
    uint32_t row, n_row;
};

typedef void (*affine_block_fn)(const struct affine_call *c, const struct affine_block *b);

/* All of a call: blocks of outputs whose weights stay in L2, in them blocks of rows, in them four outputs at
 * a time. */
V_INLINE void affine_product(const struct affine_call *c, affine_block_fn run)
{
    const size_t fit = AFFINE_BLOCK_BYTES / c->w->row_bytes & ~(size_t)(AFFINE_OUTS - 1);
    const uint32_t block =
        c->n_row <= AFFINE_BLOCK_ROWS ? c->o1 - c->o0 : (uint32_t)(fit > AFFINE_OUTS ? fit : AFFINE_OUTS);

    for (uint32_t ob = c->o0; ob < c->o1; ob += block) {
        const uint32_t oe = c->o1 - ob < block ? c->o1 : ob + block;

        for (uint32_t r = 0; r < c->n_row; r += AFFINE_BLOCK_ROWS) {
            const uint32_t n_row = c->n_row - r < AFFINE_BLOCK_ROWS ? c->n_row - r : AFFINE_BLOCK_ROWS;

            for (uint32_t o = ob; o < oe; o += AFFINE_OUTS) {
                const struct affine_block b = {o, oe - o < AFFINE_OUTS ? oe - o : AFFINE_OUTS, r, n_row};

                run(c, &b);
            }
        }
    }
}

#endif
