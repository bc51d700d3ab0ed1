/*
 * TurboQuant, scalar: the signed Walsh-Hadamard rotation, keys as affine codes of groups of 32, values as
 * codebook indices of the rotated vector with a scale a group. doc/formats/turboquant.md has the bytes and
 * where they come from.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_FORMATS_TURBOQUANT_H
#define ESP_FORMATS_TURBOQUANT_H

#include "formats/kv.h"
#include "formats/turboquant_tables.h"

/* 64, 96, 128, 256 or 512. */
bool esp_turbo_head(uint32_t head_dim);
bool esp_turbo_key_bits(uint32_t bits);
bool esp_turbo_value_bits(uint32_t bits);

/* x = H (sign * x) / sqrt(d), and back: sign * (H x / sqrt(d)); in place, d as esp_turbo_head(). */
void esp_turbo_rotate(float *x, uint32_t d);
void esp_turbo_unrotate(float *x, uint32_t d);

/* One group of 32 finite keys within +-65504: codes as stored (two's complement for 8 bits), f16 scale and
 * zero. */
struct esp_turbo_group {
    uint8_t codes[ESP_KV_GROUP];
    uint16_t scale, zero;
};
void esp_turbo_key_group(const float *x, uint32_t bits, struct esp_turbo_group *out);
/* Exactly (code + zero) * scale, rounded once. */
void esp_turbo_key_values(const struct esp_turbo_group *g, uint32_t bits, float *out);

/*
 * The published coding of a group with this range, for encoders that find ranges and codes in their own way:
 * codes are clamp(rint(x / step - zero), lo, hi). False when this is no group for it, or an end of the range
 * is a zero, whose sign could matter: esp_turbo_key_group() knows.
 */
struct esp_turbo_key_plan {
    float step, zero, lo, hi;
    uint16_t scale16, zero16;
};
bool esp_turbo_key_plan(float min, float max, uint32_t bits, struct esp_turbo_key_plan *out);
/* Root mean square of a group by its sum of squares, what values are divided by for their codes, and the
 * scale as stored. */
float esp_turbo_value_rms(float sum);
float esp_turbo_value_step(float rms);
uint16_t esp_turbo_value_scale(float scale);
/* Signs of a rotation, a bit each: 1 is minus. */
const uint32_t *esp_turbo_signs(uint32_t head_dim);

/* The codebook that a scheme's values use. */
const struct esp_turbo_codebook *esp_turbo_codebook_of(const struct esp_kv_scheme *s);
/* One group of 32 rotated values; zero is not used. */
void esp_turbo_value_group(const float *y, const struct esp_kv_scheme *s, struct esp_turbo_group *out);
/* Number of the codebook's edges below x: a value on an edge takes the lower code, NaN the first. */
uint8_t esp_turbo_code(const struct esp_turbo_codebook *b, uint32_t bits, float x);

#endif
