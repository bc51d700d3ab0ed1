/*
 * Products with trellis weights. Eight windows of a block begin at a byte and lie in 16 bytes: a table lookup
 * puts three bytes in each lane, a shift and a mask leave the state, one multiply-add hashes it, and pairwise
 * sums of the bytes give eight values of 16 bits. Values of a tile are formed once and multiplied by all rows
 * of the call; integers of one or two terms are 16 bits alike.
 *
 * Windows are read from the first bit of a block on, which is backwards in time: along axis 1 prepared inputs
 * lie reversed within each block, along axis 0 outputs are reversed as they are stored. Sums that leave the
 * registers go to the output itself. Source: doc/formats/trellis.md; contract: kernels.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "formats/trellis.h"

#include <math.h>

#include "kernels/arm/coded.h"
#include "kernels/arm/neon.h"
#include "kernels/arm/parts.h"

enum {
    BLOCK = ESP_TRELLIS_BLOCK,
    CHUNK = 64, /* windows decoded at once; divides esp_weight_out_align() */
    RUN = 32,   /* inputs along axis 0 summed in f32 before they meet the output */
    SPAN = 16,  /* bytes of eight windows */
    CHUNK_BYTES_MAX = CHUNK / 8 * ESP_TRELLIS_BITS_MAX,
};

/* Constants of a k: which bytes hold each of eight windows, and the bits below it in them (negative). */
struct window {
    uint8x16_t pick[2];
    int32x4_t shift[2];
    size_t k;
};

static struct window window_of(size_t k)
{
    struct window w = {.k = k};

    for (size_t h = 0; h < 2; h++) {
        uint8_t pick[16];
        int32_t shift[4];

        for (size_t j = 0; j < 4; j++) {
            const size_t bit = (4 * h + j) * k;

            for (size_t i = 0; i < 4; i++) /* 255: no byte, zero */
                pick[4 * j + i] = (uint8_t)(i < 3 ? bit / 8 + i : 255);
            shift[j] = -(int32_t)(bit % 8);
        }
        w.pick[h] = vld1q_u8(pick);
        w.shift[h] = vld1q_s32(shift);
    }
    return w;
}

N_INLINE uint16x8_t byte_pairs(const struct window *w, uint8x16_t bytes, int h)
{
    const uint32x4_t at = vreinterpretq_u32_u8(vqtbl1q_u8(bytes, w->pick[h]));
    const uint32x4_t s = vandq_u32(vshlq_u32(at, w->shift[h]), vdupq_n_u32(ESP_TRELLIS_STATES - 1));
    const uint32x4_t x = vmlaq_u32(vdupq_n_u32(76625530), s, vdupq_n_u32(34038481));

    return vpaddlq_u8(vreinterpretq_u8_u32(x));
}

/* Values of the eight windows in the 16 bytes at p. */
N_INLINE int16x8_t values8(const struct window *w, const uint8_t *p)
{
    const uint8x16_t bytes = vld1q_u8(p);
    const uint16x8_t sums = vpaddq_u16(byte_pairs(w, bytes, 0), byte_pairs(w, bytes, 1));

    return vsubq_s16(vreinterpretq_s16_u16(sums), vdupq_n_s16(510));
}

/* The bytes of chunk q of a block with SPAN more behind them, which wrap to the start of the block. */
N_INLINE const uint8_t *chunk_bytes(const struct window *w, const uint8_t *block, size_t q,
                                    uint8_t copy[CHUNK_BYTES_MAX + SPAN])
{
    const size_t size = 32 * w->k, at = q * CHUNK / 8 * w->k, want = CHUNK / 8 * w->k + SPAN;
    const size_t left = size - at < want ? size - at : want;

    if (left == want)
        return block + at;
    memcpy(copy, block + at, left);
    memcpy(copy + left, block, want - left);
    return copy;
}

/* Chunk q of a block: values of windows 64 q .. 64 q + 63, which are weights 255 - 64 q downwards. */
N_INLINE void decode_int(const struct window *window, const uint8_t *block, size_t q, int16_t *out)
{
    const struct window w = *window;
    uint8_t copy[CHUNK_BYTES_MAX + SPAN];
    const uint8_t *p = chunk_bytes(&w, block, q, copy);

    for (size_t g = 0; g < CHUNK / 8; g++, p += w.k)
        vst1q_s16(out + 8 * g, values8(&w, p));
}

N_INLINE void decode_float(const struct window *window, const uint8_t *block, size_t q, float *out)
{
    const struct window w = *window;
    uint8_t copy[CHUNK_BYTES_MAX + SPAN];
    const uint8_t *p = chunk_bytes(&w, block, q, copy);

    for (size_t g = 0; g < CHUNK / 8; g++, p += w.k) {
        const int16x8_t v = values8(&w, p);

        vst1q_f32(out + 8 * g, vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))));
        vst1q_f32(out + 8 * g + 4, vcvtq_f32_s32(vmovl_high_s16(v)));
    }
}

/* ---- prepared rows ---- */

static size_t blocks_of(uint32_t n_in)
{
    return ((size_t)n_in + BLOCK - 1) / BLOCK;
}

/* Of integers: steps by block, padded to whole vectors, then int16 [n_block][256]. */
static size_t steps_of(uint32_t n_in)
{
    return (blocks_of(n_in) + 3) / 4 * 4;
}

static size_t int_bytes(uint32_t n_in, uint32_t group)
{
    (void)group;
    return steps_of(n_in) * sizeof(float) + blocks_of(n_in) * BLOCK * sizeof(int16_t);
}

static size_t float_bytes(uint32_t n_in, uint32_t group)
{
    (void)group;
    return blocks_of(n_in) * BLOCK * sizeof(float);
}

N_INLINE const int16_t *int_values(const uint8_t *row, uint32_t n_in)
{
    return (const int16_t *)(const void *)(row + steps_of(n_in) * sizeof(float));
}

static float factor(const struct esp_weight *w, size_t stored_row)
{
    return esp_trellis_scale(w, stored_row) * ESP_TRELLIS_RECIPROCAL;
}

/* Inputs of block b in the order of the values, times their factors along axis 0, zeros behind the last. */
static void fold_block(const struct esp_weight *w, const float *x, size_t b, int bf16, float z[BLOCK])
{
    const size_t i0 = b * BLOCK, n = w->n_in - i0 < BLOCK ? w->n_in - i0 : BLOCK;

    memset(z, 0, BLOCK * sizeof *z);
    memcpy(z, x + i0, n * sizeof *z);
    for (size_t i = 0; bf16 && i < BLOCK; i += 4)
        vst1q_f32(z + i, round_bf16(vld1q_f32(z + i)));
    for (size_t i = 0; !w->axis && i < n; i++)
        z[i] *= factor(w, i0 + i);
    for (size_t i = 0; w->axis && i < BLOCK / 2; i++) {
        const float t = z[i];

        z[i] = z[BLOCK - 1 - i];
        z[BLOCK - 1 - i] = t;
    }
}

static void prepare_int(const struct esp_weight *w, const float *x, float top, uint8_t *out)
{
    float *steps = (float *)(void *)out;
    int16_t *v = (int16_t *)(void *)(out + steps_of(w->n_in) * sizeof(float));

    memset(steps, 0, steps_of(w->n_in) * sizeof *steps);
    for (size_t b = 0; b < blocks_of(w->n_in); b++, v += BLOCK) {
        float z[BLOCK];

        fold_block(w, x, b, 0, z);
        steps[b] = act_step(z, BLOCK, top);
        act_round(z, BLOCK, steps[b], v);
    }
}

static void prepare_int8(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++)
        prepare_int(w, x + r * ldx, 127, (uint8_t *)out + r * int_bytes(w->n_in, 0));
}

static void prepare_int8x2(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++)
        prepare_int(w, x + r * ldx, 127 * 128, (uint8_t *)out + r * int_bytes(w->n_in, 0));
}

static void prepare_f32(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    float *z = out;

    for (size_t r = 0; r < n_row; r++)
        for (size_t b = 0; b < blocks_of(w->n_in); b++, z += BLOCK)
            fold_block(w, x + r * ldx, b, 0, z);
}

static void prepare_bf16(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    float *z = out;

    for (size_t r = 0; r < n_row; r++)
        for (size_t b = 0; b < blocks_of(w->n_in); b++, z += BLOCK)
            fold_block(w, x + r * ldx, b, 1, z);
}

/* A call: its arguments and the constants of its k. */
struct call {
    const struct esp_weight *w;
    const uint8_t *act;
    size_t act_bytes;
    uint32_t n_row;
    float *y;
    size_t ldy;
    struct window win;
};

/* ---- axis 1: sums over the block of four outputs ---- */

/* Add block b of outputs o .. o + n - 1, whose values are in the buffer, to the outputs of all rows. */
N_INLINE void reduce_rows(int ints, const struct call *c, uint32_t o, uint32_t n, size_t b,
                          const void *values)
{
    const int last = b + 1 == blocks_of(c->w->n_in);
    float f[OUTS] = {0};

    for (uint32_t i = 0; last && i < n; i++)
        f[i] = factor(c->w, o + i);
    for (size_t r = 0; r < c->n_row; r++) {
        const uint8_t *row = c->act + r * c->act_bytes;
        float *y = c->y + r * c->ldy + o, before[OUTS] = {0};
        float32x4_t acc;

        if (b)
            memcpy(before, y, n * sizeof *y);
        acc = vld1q_f32(before);
        if (ints)
            acc = vfmaq_n_f32(acc, dot4_int(values, BLOCK, int_values(row, c->w->n_in) + b * BLOCK, BLOCK),
                              ((const float *)(const void *)row)[b]);
        else
            acc = vaddq_f32(acc,
                            dot4_float(values, BLOCK, (const float *)(const void *)row + b * BLOCK, BLOCK));
        store4(y, last ? vmulq_f32(acc, vld1q_f32(f)) : acc, n);
    }
}

N_INLINE void reduce(int ints, const struct call *c, uint32_t o0, uint32_t o1)
{
    float floats[OUTS * BLOCK];
    int16_t shorts[OUTS * BLOCK];

    for (uint32_t o = o0; o < o1; o += OUTS) {
        const uint32_t n = o1 - o < OUTS ? o1 - o : OUTS;

        for (size_t b = 0; b < blocks_of(c->w->n_in); b++) {
            for (uint32_t i = 0; i < OUTS; i++) { /* past the end the last one again */
                const uint8_t *block = esp_trellis_block(c->w, o + (i < n ? i : n - 1), b);

                for (size_t q = 0; q < BLOCK / CHUNK; q++) {
                    if (ints)
                        decode_int(&c->win, block, q, shorts + i * BLOCK + q * CHUNK);
                    else
                        decode_float(&c->win, block, q, floats + i * BLOCK + q * CHUNK);
                }
            }
            reduce_rows(ints, c, o, n, b, ints ? (const void *)shorts : floats);
        }
    }
}

/* ---- axis 0: 64 outputs, a strip of inputs ---- */

/* Half of a chunk, 32 outputs in window order, from n inputs with integers v. */
N_INLINE void scatter_int(const int16_t *values, size_t n, const int16_t *v, float32x4_t sum[8])
{
    int32x4_t acc[8];

    N_UNROLL
    for (int q = 0; q < 8; q++)
        acc[q] = vdupq_n_s32(0);
    for (size_t i = 0; i < n; i++, values += CHUNK) {
        N_UNROLL
        for (int q = 0; q < 4; q++) {
            const int16x8_t y = vld1q_s16(values + 8 * q);

            acc[2 * q] = vmlal_n_s16(acc[2 * q], vget_low_s16(y), v[i]);
            acc[2 * q + 1] = vmlal_high_n_s16(acc[2 * q + 1], y, v[i]);
        }
    }
    N_UNROLL
    for (int q = 0; q < 8; q++)
        sum[q] = vcvtq_f32_s32(acc[q]);
}

N_INLINE void scatter_float(const float *values, size_t n, const float *z, float32x4_t sum[8])
{
    N_UNROLL
    for (int q = 0; q < 8; q++)
        sum[q] = vdupq_n_f32(0);
    for (size_t i = 0; i < n; i++, values += CHUNK) {
        N_UNROLL
        for (int q = 0; q < 8; q++)
            sum[q] = vfmaq_n_f32(sum[q], vld1q_f32(values + 4 * q), z[i]);
    }
}

N_INLINE float32x4_t reverse4(float32x4_t v)
{
    v = vrev64q_f32(v);
    return vextq_f32(v, v, 2);
}

/* y: the first of the 64 outputs of a chunk; windows run from the last one down. */
N_INLINE void scatter_rows(int ints, const struct call *c, size_t i0, size_t n, const void *values, float *y)
{
    for (size_t r = 0; r < c->n_row; r++, y += c->ldy) {
        const uint8_t *row = c->act + r * c->act_bytes;

        for (int half = 0; half < 2; half++) {
            float32x4_t sum[8];

            if (ints)
                scatter_int((const int16_t *)values + 32 * half, n, int_values(row, c->w->n_in) + i0, sum);
            else
                scatter_float((const float *)values + 32 * half, n, (const float *)(const void *)row + i0,
                              sum);
            N_UNROLL
            for (int q = 0; q < 8; q++) {
                float *at = y + CHUNK - 4 - 32 * half - 4 * q;
                const float32x4_t acc = i0 ? reverse4(vld1q_f32(at)) : vdupq_n_f32(0);

                vst1q_f32(at, reverse4(ints ? vfmaq_n_f32(acc, sum[q],
                                                          ((const float *)(const void *)row)[i0 / BLOCK])
                                            : vaddq_f32(acc, sum[q])));
            }
        }
    }
}

N_INLINE void scatter(int ints, const struct call *c, uint32_t o0, uint32_t o1)
{
    const size_t most = ints ? BLOCK : RUN;
    float floats[RUN * CHUNK];
    int16_t shorts[BLOCK * CHUNK];

    for (uint32_t o = o0; o < o1; o += CHUNK) {
        const size_t q =
            BLOCK / CHUNK - 1 - o % BLOCK / CHUNK; /* chunks count from the block's last column */

        for (size_t i0 = 0; i0 < c->w->n_in; i0 += most) {
            const size_t n = c->w->n_in - i0 < most ? c->w->n_in - i0 : most;

            for (size_t i = 0; i < n; i++) {
                const uint8_t *block = esp_trellis_block(c->w, i0 + i, o / BLOCK);

                if (ints)
                    decode_int(&c->win, block, q, shorts + i * CHUNK);
                else
                    decode_float(&c->win, block, q, floats + i * CHUNK);
            }
            scatter_rows(ints, c, i0, n, ints ? (const void *)shorts : floats, c->y + o);
        }
    }
}

/* ---- the table's entries ---- */

static void product_int(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                        float *y, size_t ldy)
{
    const struct call c = {
        w, act, int_bytes(w->n_in, 0), n_row, y, ldy, window_of(esp_trellis_bits(w->format))};

    if (w->axis)
        reduce(1, &c, o0, o1);
    else
        scatter(1, &c, o0, o1);
}

static void product_float(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                          uint32_t o1, float *y, size_t ldy)
{
    const struct call c = {
        w, act, float_bytes(w->n_in, 0), n_row, y, ldy, window_of(esp_trellis_bits(w->format))};

    if (w->axis)
        reduce(0, &c, o0, o1);
    else
        scatter(0, &c, o0, o1);
}

static const struct esp_path trellis_paths[] = {{"values decoded by tile", ESP_SHAPE_ANY, 1},
                                                {NULL, ESP_SHAPE_ANY, 0}};

void esp_trellis_init_neon(struct esp_kernels *k)
{
    for (int f = ESP_FORMAT_TRELLIS1; f <= ESP_FORMAT_TRELLIS8; f++) {
        k->linear[f][ESP_ACT_F32] = (struct esp_linear){.prepared_bytes = float_bytes,
                                                        .prepare = prepare_f32,
                                                        .product = product_float,
                                                        .paths = trellis_paths};
        k->linear[f][ESP_ACT_BF16] = (struct esp_linear){.prepared_bytes = float_bytes,
                                                         .prepare = prepare_bf16,
                                                         .product = product_float,
                                                         .paths = trellis_paths};
        k->linear[f][ESP_ACT_INT8X2] = (struct esp_linear){.prepared_bytes = int_bytes,
                                                           .prepare = prepare_int8x2,
                                                           .product = product_int,
                                                           .paths = trellis_paths};
        k->linear[f][ESP_ACT_INT8] = (struct esp_linear){.prepared_bytes = int_bytes,
                                                         .prepare = prepare_int8,
                                                         .product = product_int,
                                                         .paths = trellis_paths};
    }
}
