/*
 * Reading the vectors in tests/data/vectors/affine: hex strings are little-endian element streams.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_FORMATS_HEX_H
#define ESP_TESTS_FORMATS_HEX_H

#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "formats/affine.h"
#include "formats/format.h"

/* Bytes of a hex string at out; returns their number. */
static inline size_t hex_bytes(const json_t *text, uint8_t *out, size_t cap)
{
    const char *s = json_string_value(text);
    size_t n;

    assert_non_null(s);
    n = strlen(s) / 2;
    assert_true(n <= cap);
    for (size_t i = 0; i < n; i++) {
        const char pair[3] = {s[2 * i], s[2 * i + 1], 0};

        out[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return n;
}

static inline enum esp_scale_type hex_type(const char *name)
{
    if (strcmp(name, "f32") == 0)
        return ESP_SCALE_F32;
    assert_true(strcmp(name, "bf16") == 0 || strcmp(name, "f16") == 0);
    return strcmp(name, "bf16") == 0 ? ESP_SCALE_BF16 : ESP_SCALE_F16;
}

/* Elements of a hex string as f32; returns their number. */
static inline size_t hex_floats(const json_t *text, enum esp_scale_type type, float *out, size_t cap)
{
    uint8_t bytes[4096];
    const size_t n = hex_bytes(text, bytes, sizeof bytes) / esp_scale_bytes(type);

    assert_true(n <= cap);
    for (size_t i = 0; i < n; i++)
        out[i] = esp_scale_load(type, bytes, i);
    return n;
}

static inline enum esp_format_id affine_of_bits(uint32_t bits)
{
    for (int f = ESP_FORMAT_AFFINE2; f <= ESP_FORMAT_AFFINE8; f++) {
        if (esp_format_get((enum esp_format_id)f)->bits == bits)
            return (enum esp_format_id)f;
    }
    fail_msg("no affine format of %u bits", bits);
    return ESP_FORMAT_COUNT;
}

static inline uint32_t json_u32(const json_t *object, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(object, key));
}

#endif
