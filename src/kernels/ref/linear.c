/*
 * Reference products with a weight, for every format and precision of activations. Weights are decoded by the
 * format table a block at a time and used for up to eight rows; a row's own arithmetic is the same whatever
 * its neighbours. Source: kernels.h (values and error), doc/formats/affine.md.
 *
 * SPDX-License-Identifier: MIT
 */
#include <string.h>

#include "formats/affine.h"
#include "kernels/ref/ref.h"

enum {
    TILE = 8,                     /* rows that share a decoded block */
    BLOCK = ESP_AFFINE_GROUP_MAX, /* inputs decoded at once: a multiple of every group and of LANES */
};

/* One prepared row with integer codes: scales and sums by group, then the codes. */
struct q_row {
    float *s;     /* [n_in / group] step of the group */
    int32_t *sum; /* [n_in / group] sum of the group's codes, 128 * q1 + q2 */
    int8_t *q1;   /* [n_in] */
    int8_t *q2;   /* [n_in], INT8X2 only */
};

static struct q_row q_row_at(const void *base, uint32_t n_in, uint32_t group)
{
    const size_t n_group = n_in / group;
    uint8_t *p = (uint8_t *)base; /* const is the caller's: prepare writes, product reads */

    return (struct q_row){
        .s = (float *)p,
        .sum = (int32_t *)(p + 4 * n_group),
        .q1 = (int8_t *)(p + 8 * n_group),
        .q2 = (int8_t *)(p + 8 * n_group + n_in),
    };
}

static size_t prepared_f32(uint32_t n_in, uint32_t group)
{
    (void)group;
    return n_in * sizeof(float);
}

static size_t prepared_bf16(uint32_t n_in, uint32_t group)
{
    (void)group;
    return n_in * sizeof(uint16_t);
}

static size_t prepared_int8(uint32_t n_in, uint32_t group)
{
    return (size_t)n_in / group * 8 + n_in;
}

static size_t prepared_int8x2(uint32_t n_in, uint32_t group)
{
    return (size_t)n_in / group * 8 + 2 * (size_t)n_in;
}

static void prepare_bf16(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    uint16_t *y = out;

    for (size_t r = 0; r < n_row; r++) {
        for (size_t i = 0; i < w->n_in; i++)
            y[r * w->n_in + i] = esp_f32_to_bf16(x[r * ldx + i]);
    }
}

/*
 * Step of a group whose largest magnitude must become top. A step below the normal range has too few bits to
 * divide by, so such a group counts as zero (step 0). NaN or infinity gives a NaN step, which makes every
 * product NaN.
 */
static float group_step(const float *x, size_t n, float top)
{
    float max = 0, s;

    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return NAN;
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    }
    s = max / top;
    return s < 0x1p-126f ? 0 : s;
}

static void prepare_int8(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++) {
        const struct q_row q =
            q_row_at((uint8_t *)out + r * prepared_int8(w->n_in, w->group), w->n_in, w->group);

        for (size_t g = 0; g < w->n_in / w->group; g++) {
            const float *xg = x + r * ldx + g * w->group;
            const float s = group_step(xg, w->group, 127);

            q.s[g] = s;
            q.sum[g] = 0;
            for (size_t i = 0; i < w->group; i++) {
                const int32_t v = s > 0 ? (int32_t)rintf(xg[i] / s) : 0;

                q.q1[g * w->group + i] = (int8_t)v;
                q.sum[g] += v;
            }
        }
    }
}

static void prepare_int8x2(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++) {
        const struct q_row q =
            q_row_at((uint8_t *)out + r * prepared_int8x2(w->n_in, w->group), w->n_in, w->group);

        for (size_t g = 0; g < w->n_in / w->group; g++) {
            const float *xg = x + r * ldx + g * w->group;
            const float s = group_step(xg, w->group, 127 * 128);

            q.s[g] = s;
            q.sum[g] = 0;
            for (size_t i = 0; i < w->group; i++) {
                const int32_t v = s > 0 ? (int32_t)rintf(xg[i] / s) : 0;
                const int32_t q1 = (v + 16384 + 64) / 128 - 128; /* floor((v + 64) / 128), v >= -16256 */

                q.q1[g * w->group + i] = (int8_t)q1;
                q.q2[g * w->group + i] = (int8_t)(v - 128 * q1);
                q.sum[g] += v;
            }
        }
    }
}

/* One output of up to TILE rows of f32. */
static void tile_f32(const struct esp_weight *w, uint32_t o, const float *x, uint32_t n, float *y, size_t ldy)
{
    const struct esp_format *f = esp_format_get(w->format);
    float lane[TILE][LANES] = {{0}};
    float block[BLOCK];

    for (size_t c = 0; c < w->n_in; c += BLOCK) {
        const size_t len = w->n_in - c < BLOCK ? w->n_in - c : BLOCK;

        f->decode(w, o, c, len, block);
        for (size_t r = 0; r < n; r++)
            lanes_add(lane[r], x + r * w->n_in + c, block, len);
    }
    for (size_t r = 0; r < n; r++)
        y[r * ldy + o] = lanes_sum(lane[r]);
}

static void tile_bf16(const struct esp_weight *w, uint32_t o, const uint16_t *x, uint32_t n, float *y,
                      size_t ldy)
{
    const struct esp_format *f = esp_format_get(w->format);
    float lane[TILE][LANES] = {{0}};
    float block[BLOCK], xf[BLOCK];

    for (size_t c = 0; c < w->n_in; c += BLOCK) {
        const size_t len = w->n_in - c < BLOCK ? w->n_in - c : BLOCK;

        f->decode(w, o, c, len, block);
        for (size_t r = 0; r < n; r++) {
            for (size_t i = 0; i < len; i++)
                xf[i] = esp_bf16_to_f32(x[r * w->n_in + c + i]);
            lanes_add(lane[r], xf, block, len);
        }
    }
    for (size_t r = 0; r < n; r++)
        y[r * ldy + o] = lanes_sum(lane[r]);
}

static int32_t dot_codes(const int8_t *q, const uint8_t *code, size_t n)
{
    int32_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += q[i] * code[i];
    return sum;
}

/* One output of up to TILE rows of integer codes; terms is 1 or 2. |sum| <= 128 * 16256 * 255 < 2^31. */
static void tile_int8(const struct esp_weight *w, uint32_t o, const struct q_row *q, uint32_t n,
                      uint32_t terms, float *acc)
{
    const uint32_t bits = esp_format_get(w->format)->bits;
    const uint8_t *scales = w->scales + o * w->scale_row_bytes;
    const uint8_t *biases = w->biases + o * w->scale_row_bytes;
    uint8_t code[ESP_AFFINE_GROUP_MAX];

    for (size_t r = 0; r < n; r++)
        acc[r] = 0;
    for (size_t g = 0; g < w->n_in / w->group; g++) {
        const size_t i = g * w->group;
        const float scale = esp_scale_load(w->scale_type, scales, g);
        const float bias = esp_scale_load(w->scale_type, biases, g);

        esp_affine_unpack(bits, w->codes + o * w->row_bytes, i, w->group, code);
        for (size_t r = 0; r < n; r++) {
            int32_t sum = dot_codes(q[r].q1 + i, code, w->group);

            if (terms == 2)
                sum = 128 * sum + dot_codes(q[r].q2 + i, code, w->group);
            acc[r] = fmaf((float)sum, scale * q[r].s[g], acc[r]);
            acc[r] = fmaf((float)q[r].sum[g] * q[r].s[g], bias, acc[r]);
        }
    }
}

static void product_f32(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                        float *y, size_t ldy)
{
    const float *x = act;

    for (uint32_t o = o0; o < o1; o++) {
        for (uint32_t r = 0; r < n_row; r += TILE)
            tile_f32(w, o, x + (size_t)r * w->n_in, n_row - r < TILE ? n_row - r : TILE, y + r * ldy, ldy);
    }
}

static void product_bf16(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                         uint32_t o1, float *y, size_t ldy)
{
    const uint16_t *x = act;

    for (uint32_t o = o0; o < o1; o++) {
        for (uint32_t r = 0; r < n_row; r += TILE)
            tile_bf16(w, o, x + (size_t)r * w->n_in, n_row - r < TILE ? n_row - r : TILE, y + r * ldy, ldy);
    }
}

struct product_call {
    const struct esp_weight *w;
    const uint8_t *act;
    size_t row_bytes; /* of one prepared row */
    uint32_t terms;   /* int8 terms a value */
};

static void product_codes(const struct product_call *c, uint32_t n_row, uint32_t o0, uint32_t o1, float *y,
                          size_t ldy)
{
    struct q_row q[TILE];
    float acc[TILE];

    for (uint32_t r0 = 0; r0 < n_row; r0 += TILE) {
        const uint32_t n = n_row - r0 < TILE ? n_row - r0 : TILE;

        for (uint32_t r = 0; r < n; r++)
            q[r] = q_row_at(c->act + (r0 + r) * c->row_bytes, c->w->n_in, c->w->group);
        for (uint32_t o = o0; o < o1; o++) {
            tile_int8(c->w, o, q, n, c->terms, acc);
            for (uint32_t r = 0; r < n; r++)
                y[(r0 + r) * ldy + o] = acc[r];
        }
    }
}

static void product_int8(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                         uint32_t o1, float *y, size_t ldy)
{
    const struct product_call c = {w, act, prepared_int8(w->n_in, w->group), 1};

    product_codes(&c, n_row, o0, o1, y, ldy);
}

static void product_int8x2(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                           uint32_t o1, float *y, size_t ldy)
{
    const struct product_call c = {w, act, prepared_int8x2(w->n_in, w->group), 2};

    product_codes(&c, n_row, o0, o1, y, ldy);
}

void esp_ref_init_linear(struct esp_kernels *k)
{
    static const struct esp_linear by_act[ESP_ACT_COUNT] = {
        [ESP_ACT_F32] = {.prepared_bytes = prepared_f32, .prepare = NULL, .product = product_f32},
        [ESP_ACT_BF16] = {.prepared_bytes = prepared_bf16, .prepare = prepare_bf16, .product = product_bf16},
        [ESP_ACT_INT8X2] = {.prepared_bytes = prepared_int8x2,
                            .prepare = prepare_int8x2,
                            .product = product_int8x2},
        [ESP_ACT_INT8] = {.prepared_bytes = prepared_int8, .prepare = prepare_int8, .product = product_int8},
    };

    for (int f = 0; f < ESP_FORMAT_COUNT; f++) {
        for (int a = 0; a < ESP_ACT_COUNT; a++) {
            if (esp_act_resolve((enum esp_format_id)f, (enum esp_act)a) == (enum esp_act)a)
                k->linear[f][a] = by_act[a];
        }
    }
}
