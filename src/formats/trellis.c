/*
 * Trellis blocks, scalar: states from bits and back, values, addresses of a stored matrix. Everything follows
 * from one rule (weight t is the 12-bit window at bit (255 - t) k of a block that wraps onto itself); the
 * rank-3 form differs in the address of a block alone. Source: doc/formats/trellis.md.
 *
 * SPDX-License-Identifier: MIT
 */
#include "formats/trellis.h"

#include <string.h>

#include "base/mem.h"

float esp_trellis_scale(const struct esp_weight *w, size_t stored_row)
{
    uint16_t half;

    memcpy(&half, w->scales + stored_row * w->scale_row_bytes, 2);
    return esp_f16_to_f32(half);
}

uint32_t esp_trellis_state(uint32_t k, const uint8_t *block, uint32_t t)
{
    const size_t bytes = esp_trellis_block_bytes(k);
    const size_t bit = (size_t)(ESP_TRELLIS_BLOCK - 1 - t) * k;
    uint32_t v = 0;

    for (size_t i = 0; i < 3;
         i++) /* 12 bits touch at most three bytes; past the end comes the block's start */
        v |= (uint32_t)block[(bit / 8 + i) % bytes] << 8 * i;
    return v >> bit % 8 & (ESP_TRELLIS_STATES - 1);
}

void esp_trellis_unpack(uint32_t k, const uint8_t *block, uint16_t states[ESP_TRELLIS_BLOCK])
{
    for (uint32_t t = 0; t < ESP_TRELLIS_BLOCK; t++)
        states[t] = (uint16_t)esp_trellis_state(k, block, t);
}

esp_status esp_trellis_pack(uint32_t k, const uint16_t states[ESP_TRELLIS_BLOCK], uint8_t *block,
                            esp_error *err)
{
    uint32_t bits = 0, have = 0;

    for (uint32_t t = 0; t < ESP_TRELLIS_BLOCK; t++) {
        const uint32_t older = states[(t + ESP_TRELLIS_BLOCK - 1) % ESP_TRELLIS_BLOCK];

        if (states[t] >= ESP_TRELLIS_STATES)
            return esp_fail(err, ESP_EINVAL, "state %u of a trellis block is %u; states are below %d", t,
                            states[t], ESP_TRELLIS_STATES);
        if (!esp_trellis_follows(k, older, states[t]))
            return esp_fail(err, ESP_EINVAL,
                            "state %u of a trellis block is %u, which does not follow %u at %u bits a weight",
                            t, states[t], older, k);
    }
    for (uint32_t t = ESP_TRELLIS_BLOCK; t-- > 0;) { /* the last weight has the lowest bits */
        bits |= (states[t] & ((1u << k) - 1)) << have;
        for (have += k; have >= 8; have -= 8) {
            *block++ = (uint8_t)bits;
            bits >>= 8;
        }
    }
    return ESP_OK;
}

void esp_trellis_values(const struct esp_weight *w, size_t stored_row, size_t c0, size_t n, int16_t *out)
{
    const uint32_t k = esp_trellis_bits(w->format);

    for (size_t c = c0; c < c0 + n; c++) {
        const uint8_t *block = esp_trellis_block(w, stored_row, c / ESP_TRELLIS_BLOCK);

        out[c - c0] = (int16_t)esp_trellis_value(esp_trellis_state(k, block, c % ESP_TRELLIS_BLOCK));
    }
}

static float weight_at(const struct esp_weight *w, size_t stored_row, size_t c, float scale)
{
    const uint8_t *block = esp_trellis_block(w, stored_row, c / ESP_TRELLIS_BLOCK);
    const uint32_t s = esp_trellis_state(esp_trellis_bits(w->format), block, c % ESP_TRELLIS_BLOCK);
    const float v = (float)esp_trellis_value(s) / ESP_TRELLIS_DIVISOR;

    return v * scale;
}

void esp_trellis_decode_stored(const struct esp_weight *w, size_t stored_row, size_t c0, size_t n, float *out)
{
    const float scale = esp_trellis_scale(w, stored_row);

    for (size_t i = 0; i < n; i++)
        out[i] = weight_at(w, stored_row, c0 + i, scale);
}

void esp_trellis_decode(const struct esp_weight *w, size_t row, size_t c0, size_t n, float *out)
{
    if (w->axis) {
        esp_trellis_decode_stored(w, row, c0, n, out);
        return;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = weight_at(w, c0 + i, row, esp_trellis_scale(w, c0 + i));
}

static esp_status check(const struct esp_weight *w, const char *name, const char *format, esp_error *err)
{
    const uint32_t unit = w->interleaved ? 2 * ESP_TRELLIS_BLOCK : ESP_TRELLIS_BLOCK;

    if (w->axis > 1)
        return esp_fail(err, ESP_EFORMAT, "%s: %s along axis %u; 0 and 1 are allowed", name, format, w->axis);
    if (w->interleaved && (w->axis != 0 || w->format != ESP_FORMAT_TRELLIS3))
        return esp_fail(
            err, ESP_EFORMAT,
            "%s: interleaved codes of %s along axis %u; only trellis3 along axis 0 is interleaved", name,
            format, w->axis);
    if (esp_trellis_cols(w) % unit)
        return esp_fail(err, ESP_EFORMAT, "%s: %u coded columns are not a multiple of %u", name,
                        esp_trellis_cols(w), unit);
    if (w->scale_type != ESP_SCALE_F16)
        return esp_fail(err, ESP_EFORMAT, "%s: scale type %u; %s has f16 scales", name,
                        (unsigned)w->scale_type, format);
    return ESP_OK;
}

esp_status esp_trellis_layout(struct esp_weight *w, const char *name, esp_error *err)
{
    const size_t block = esp_trellis_block_bytes(esp_trellis_bits(w->format));
    size_t row, total;

    ESP_TRY(check(w, name, esp_format_get(w->format)->name, err));
    if (!esp_mul_size(&row, esp_trellis_cols(w) / ESP_TRELLIS_BLOCK, block) ||
        !esp_mul_size(&total, row + 2, esp_trellis_rows(w)))
        return esp_fail(err, ESP_EFORMAT, "%s: %u x %u does not fit into memory", name, w->n_out, w->n_in);
    w->scale_row_bytes = 2;
    w->row_bytes = w->interleaved ? 2 * block : row;
    w->pair_bytes = w->interleaved ? 2 * block * esp_trellis_rows(w) : 2 * block;
    return ESP_OK;
}

struct esp_weight esp_trellis_stored_rows(const struct esp_weight *w, uint32_t row0, uint32_t n)
{
    struct esp_weight v = *w;

    ESP_ASSERT(row0 <= esp_trellis_rows(w) && n <= esp_trellis_rows(w) - row0);
    *(w->axis ? &v.n_out : &v.n_in) = n;
    v.codes += row0 * w->row_bytes; /* pair_bytes stays: pairs of columns are as far apart as before */
    if (v.scales)
        v.scales += row0 * w->scale_row_bytes;
    return v;
}

struct esp_weight esp_trellis_columns(const struct esp_weight *w, uint32_t col0, uint32_t n)
{
    const uint32_t unit = w->interleaved ? 2 * ESP_TRELLIS_BLOCK : ESP_TRELLIS_BLOCK;
    struct esp_weight v = *w;

    ESP_ASSERT(col0 % unit == 0 && n % unit == 0 && col0 <= esp_trellis_cols(w) &&
               n <= esp_trellis_cols(w) - col0);
    *(w->axis ? &v.n_in : &v.n_out) = n;
    v.codes = esp_trellis_block(w, 0, col0 / ESP_TRELLIS_BLOCK);
    return v;
}
