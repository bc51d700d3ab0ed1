/*
 * MLX affine rows, scalar: packing, decoding, and the round-to-nearest quantizer of MLX reproduced bit for
 * bit. Every bit width goes through one rule (code j is bits [j * bits, (j + 1) * bits) of a little-endian
 * stream), because the odd widths straddle bytes and a special case for each would be five chances to be
 * wrong. Source: doc/formats/affine.md.
 *
 * SPDX-License-Identifier: MIT
 */
#include "formats/affine.h"

#include <math.h>
#include <string.h>

static const float SCALE_MIN =
    1e-7f; /* MLX's floor for a group's step, so that constant groups divide by no zero */

void esp_affine_unpack(uint32_t bits, const uint8_t *row, size_t j0, size_t n, uint8_t *out)
{
    const uint32_t mask = (1u << bits) - 1;

    for (size_t j = 0; j < n; j++) {
        const size_t bit = (j0 + j) * bits;
        const uint32_t shift = bit % 8;
        uint32_t v = (uint32_t)row[bit / 8] >> shift;

        if (shift + bits > 8) /* only then: the next byte may lie beyond the row */
            v |= (uint32_t)row[bit / 8 + 1] << (8 - shift);
        out[j] = (uint8_t)(v & mask);
    }
}

void esp_affine_pack(uint32_t bits, const uint8_t *codes, size_t n, uint8_t *row)
{
    const uint32_t mask = (1u << bits) - 1;

    memset(row, 0, (n * bits + 7) / 8);
    for (size_t j = 0; j < n; j++) {
        const size_t bit = j * bits;
        const uint32_t shift = bit % 8;
        const uint32_t v = (codes[j] & mask) << shift;

        row[bit / 8] = (uint8_t)(row[bit / 8] | v);
        if (shift + bits > 8)
            row[bit / 8 + 1] = (uint8_t)(v >> 8);
    }
}

size_t esp_scale_bytes(enum esp_scale_type type)
{
    return type == ESP_SCALE_F32 ? 4 : 2;
}

float esp_scale_load(enum esp_scale_type type, const uint8_t *plane, size_t i)
{
    uint16_t half;
    float v;

    if (type == ESP_SCALE_F32) {
        memcpy(&v, plane + 4 * i, 4);
        return v;
    }
    memcpy(&half, plane + 2 * i, 2);
    return type == ESP_SCALE_BF16 ? esp_bf16_to_f32(half) : esp_f16_to_f32(half);
}

void esp_scale_store(enum esp_scale_type type, uint8_t *plane, size_t i, float v)
{
    uint16_t half;

    if (type == ESP_SCALE_F32) {
        memcpy(plane + 4 * i, &v, 4);
        return;
    }
    half = type == ESP_SCALE_BF16 ? esp_f32_to_bf16(v) : esp_f32_to_f16(v);
    memcpy(plane + 2 * i, &half, 2);
}

void esp_affine_decode(const struct esp_weight *w, size_t row, size_t c0, size_t n, float *out)
{
    const uint32_t bits = esp_format_get(w->format)->bits;
    const uint8_t *codes = w->codes + row * w->row_bytes;
    const uint8_t *scales = w->scales + row * w->scale_row_bytes;
    const uint8_t *biases = w->biases + row * w->scale_row_bytes;
    uint8_t code[ESP_AFFINE_GROUP_MAX];

    for (size_t c = c0; c < c0 + n; c += w->group) {
        const float scale = esp_scale_load(w->scale_type, scales, c / w->group);
        const float bias = esp_scale_load(w->scale_type, biases, c / w->group);

        esp_affine_unpack(bits, codes, c, w->group, code);
        for (size_t j = 0; j < w->group; j++) {
            const float product = scale * (float)code[j]; /* rounded here and again by the sum */

            out[c - c0 + j] = product + bias;
        }
    }
}

void esp_affine_step(float lo, float hi, uint32_t top, float *scale, float *bias)
{
    float s = (hi - lo) / (float)top, edge = lo, q0;

    s = s > SCALE_MIN ? s : SCALE_MIN;
    if (!(fabsf(lo) > fabsf(hi))) {
        edge = hi;
        s = -s;
    }
    *bias = 0;
    q0 = rintf(edge / s);
    if (q0 != 0) {
        s = edge / q0;
        *bias = edge;
    }
    *scale = s;
}

static void group_range(const float *x, size_t n, uint32_t top, float *scale, float *bias)
{
    float lo = x[0], hi = x[0];

    for (size_t j = 1; j < n; j++) {
        lo = x[j] < lo ? x[j] : lo;
        hi = x[j] > hi ? x[j] : hi;
    }
    esp_affine_step(lo, hi, top, scale, bias);
}

void esp_affine_encode(const struct esp_weight *like, const float *x, size_t n, uint8_t *codes,
                       uint8_t *scales, uint8_t *biases)
{
    const uint32_t bits = esp_format_get(like->format)->bits;
    const uint32_t top = (1u << bits) - 1;
    uint8_t code[ESP_AFFINE_GROUP_MAX];

    ESP_ASSERT(like->group > 0);
    for (size_t c = 0; c < n; c += like->group) {
        float scale, bias;

        group_range(x + c, like->group, top, &scale, &bias);
        for (size_t j = 0; j < like->group; j++) {
            /* against the unrounded scale and bias, as MLX does; the comparisons send NaN to 0 */
            const float q = rintf((x[c + j] - bias) / scale);

            code[j] = (uint8_t)(q > 0 ? (q < (float)top ? q : (float)top) : 0);
        }
        esp_affine_pack(bits, code, like->group, codes + c * bits / 8);
        esp_scale_store(like->scale_type, scales, c / like->group, scale);
        esp_scale_store(like->scale_type, biases, c / like->group, bias);
    }
}
