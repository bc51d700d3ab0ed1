/*
 * Reference products with trellis weights. Values are the integers y of the code, whatever the axis; what
 * else a weight is made of (1 / divisor and the scale of its stored row) is one factor, which meets the
 * output along axis 1 and the input along axis 0. Integer precisions sum 256 inputs exactly before anything
 * is rounded. Source: kernels.h (values and error), doc/formats/trellis.md.
 *
 * SPDX-License-Identifier: MIT
 */
#include <string.h>

#include "formats/trellis.h"
#include "kernels/ref/ref.h"

enum {
    TILE = 8, /* rows that share decoded values */
    BLOCK = ESP_TRELLIS_BLOCK,
};

/* One prepared row of integers: steps by block of inputs, then values of all inputs, padded with zeros. */
struct q_row {
    float *s;   /* [n_block] */
    int16_t *v; /* [n_block][BLOCK] */
};

static size_t blocks_of(uint32_t n_in)
{
    return ((size_t)n_in + BLOCK - 1) / BLOCK;
}

static size_t prepared_float(uint32_t n_in, uint32_t group)
{
    (void)group;
    return n_in * sizeof(float);
}

static size_t prepared_int(uint32_t n_in, uint32_t group)
{
    (void)group;
    return blocks_of(n_in) * (sizeof(float) + BLOCK * sizeof(int16_t));
}

static struct q_row q_row_at(const void *base, uint32_t n_in)
{
    uint8_t *p = (uint8_t *)base; /* const is the caller's: prepare writes, product reads */

    return (struct q_row){.s = (float *)p, .v = (int16_t *)(p + blocks_of(n_in) * sizeof(float))};
}

/* Factor between a value y and the weight of a stored row. */
static float factor(const struct esp_weight *w, size_t stored_row)
{
    return esp_trellis_scale(w, stored_row) * ESP_TRELLIS_RECIPROCAL;
}

static float folded(const struct esp_weight *w, const float *x, size_t i)
{
    return w->axis ? x[i] : x[i] * factor(w, i);
}

static void prepare_f32(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    float *z = out;

    for (size_t r = 0; r < n_row; r++) {
        for (size_t i = 0; i < w->n_in; i++)
            z[r * w->n_in + i] = folded(w, x + r * ldx, i);
    }
}

static void prepare_bf16(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    float *z = out;

    for (size_t r = 0; r < n_row; r++) {
        for (size_t i = 0; i < w->n_in; i++) {
            const float rounded = esp_bf16_to_f32(esp_f32_to_bf16(x[r * ldx + i]));

            z[r * w->n_in + i] = w->axis ? rounded : rounded * factor(w, i);
        }
    }
}

/* As for affine weights: 0 below the normal range, NaN when an input is not finite. */
static float block_step(const float *z, size_t n, float top)
{
    float max = 0, s;

    for (size_t i = 0; i < n; i++) {
        if (!isfinite(z[i]))
            return NAN;
        max = fabsf(z[i]) > max ? fabsf(z[i]) : max;
    }
    s = max / top;
    return s < 0x1p-126f ? 0 : s;
}

static void quantize(const struct esp_weight *w, const float *x, float top, struct q_row q)
{
    float z[BLOCK];

    for (size_t b = 0; b < blocks_of(w->n_in); b++) {
        const size_t i0 = b * BLOCK, n = w->n_in - i0 < BLOCK ? w->n_in - i0 : BLOCK;

        for (size_t i = 0; i < n; i++)
            z[i] = folded(w, x, i0 + i);
        q.s[b] = block_step(z, n, top);
        for (size_t i = 0; i < BLOCK; i++)
            q.v[i0 + i] = (int16_t)(i < n && q.s[b] > 0 ? rintf(z[i] / q.s[b]) : 0);
    }
}

static void prepare_int8(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++)
        quantize(w, x + r * ldx, 127, q_row_at((uint8_t *)out + r * prepared_int(w->n_in, 0), w->n_in));
}

static void prepare_int8x2(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++)
        quantize(w, x + r * ldx, 127 * 128, q_row_at((uint8_t *)out + r * prepared_int(w->n_in, 0), w->n_in));
}

/* Values of output o at inputs i0 .. i0 + n - 1, within a block. */
static void values(const struct esp_weight *w, size_t o, size_t i0, size_t n, int16_t *y)
{
    if (w->axis) {
        esp_trellis_values(w, o, i0, n, y);
        return;
    }
    for (size_t i = 0; i < n; i++)
        esp_trellis_values(w, i0 + i, o, 1, y + i);
}

static void tile_float(const struct esp_weight *w, uint32_t o, const float *z, uint32_t n, float *y,
                       size_t ldy)
{
    float lane[TILE][LANES] = {{0}}, block[BLOCK];
    int16_t value[BLOCK];

    for (size_t i0 = 0; i0 < w->n_in; i0 += BLOCK) {
        const size_t len = w->n_in - i0 < BLOCK ? w->n_in - i0 : BLOCK;

        values(w, o, i0, len, value);
        for (size_t i = 0; i < len; i++)
            block[i] = value[i];
        for (size_t r = 0; r < n; r++)
            lanes_add(lane[r], z + r * w->n_in + i0, block, len);
    }
    for (size_t r = 0; r < n; r++)
        y[r * ldy + o] = lanes_sum(lane[r]) * (w->axis ? factor(w, o) : 1.0f);
}

/* |sum| <= 256 * 16256 * 454 < 2^31. */
static void tile_int(const struct esp_weight *w, uint32_t o, const uint8_t *act, uint32_t n, float *y,
                     size_t ldy)
{
    const size_t stride = prepared_int(w->n_in, 0);
    float acc[TILE] = {0};
    int16_t value[BLOCK];

    for (size_t b = 0; b < blocks_of(w->n_in); b++) {
        const size_t i0 = b * BLOCK, len = w->n_in - i0 < BLOCK ? w->n_in - i0 : BLOCK;

        values(w, o, i0, len, value);
        for (size_t r = 0; r < n; r++) {
            const struct q_row q = q_row_at(act + r * stride, w->n_in);
            int32_t sum = 0;

            for (size_t i = 0; i < len; i++)
                sum += value[i] * q.v[i0 + i];
            acc[r] = fmaf((float)sum, q.s[b], acc[r]);
        }
    }
    for (size_t r = 0; r < n; r++)
        y[r * ldy + o] = w->axis ? acc[r] * factor(w, o) : acc[r];
}

static void product_float(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                          uint32_t o1, float *y, size_t ldy)
{
    const float *z = act;

    for (uint32_t o = o0; o < o1; o++) {
        for (uint32_t r = 0; r < n_row; r += TILE)
            tile_float(w, o, z + (size_t)r * w->n_in, n_row - r < TILE ? n_row - r : TILE, y + r * ldy, ldy);
    }
}

static void product_int(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                        float *y, size_t ldy)
{
    const size_t stride = prepared_int(w->n_in, 0);

    for (uint32_t o = o0; o < o1; o++) {
        for (uint32_t r = 0; r < n_row; r += TILE)
            tile_int(w, o, (const uint8_t *)act + r * stride, n_row - r < TILE ? n_row - r : TILE,
                     y + r * ldy, ldy);
    }
}

void esp_ref_init_trellis(struct esp_kernels *k)
{
    for (int f = ESP_FORMAT_TRELLIS1; f <= ESP_FORMAT_TRELLIS8; f++) {
        k->linear[f][ESP_ACT_F32] =
            (struct esp_linear){prepared_float, prepare_f32, product_float, NULL, NULL, NULL};
        k->linear[f][ESP_ACT_BF16] =
            (struct esp_linear){prepared_float, prepare_bf16, product_float, NULL, NULL, NULL};
        k->linear[f][ESP_ACT_INT8X2] =
            (struct esp_linear){prepared_int, prepare_int8x2, product_int, NULL, NULL, NULL};
        k->linear[f][ESP_ACT_INT8] =
            (struct esp_linear){prepared_int, prepare_int8, product_int, NULL, NULL, NULL};
    }
}
