/*
 * Reading the vectors in tests/data/vectors/trellis: words and bit patterns are hexadecimal, highest digit
 * first.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_FORMATS_TRELLIS_VECTOR_H
#define ESP_TESTS_FORMATS_TRELLIS_VECTOR_H

#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "formats/trellis.h"

enum { TV_BYTES_MAX = 32 * 1024 };

struct trellis_vector {
    json_t *json;
    struct esp_weight w;
    uint8_t codes[TV_BYTES_MAX], scales[256];
};

static inline uint32_t tv_u32(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    return (uint32_t)json_integer_value(v);
}

static inline uint32_t tv_bits(const json_t *list, size_t i)
{
    const char *s = json_string_value(json_array_get(list, i));

    assert_non_null(s);
    return (uint32_t)strtoul(s, NULL, 16);
}

static inline float tv_float(uint32_t bits)
{
    float v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline uint32_t tv_float_bits(float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* Append a list of words at out + n; returns the new n. */
static inline size_t tv_append(const json_t *words, uint8_t *out, size_t n, size_t cap)
{
    json_t *word;
    size_t i;

    json_array_foreach(words, i, word)
    {
        const uint32_t v = (uint32_t)strtoul(json_string_value(word), NULL, 16);

        assert_true(n + 4 <= cap);
        for (size_t b = 0; b < 4; b++)
            out[n++] = (uint8_t)(v >> 8 * b);
    }
    return n;
}

/* All words of a list of lists, some of which have one level more; returns the number of bytes. */
static inline size_t tv_words(const json_t *rows, uint8_t *out, size_t cap)
{
    json_t *row, *inner;
    size_t n = 0, r, i;

    json_array_foreach(rows, r, row)
    {
        if (!json_is_array(json_array_get(row, 0))) {
            n = tv_append(row, out, n, cap);
            continue;
        }
        json_array_foreach(row, i, inner) n = tv_append(inner, out, n, cap);
    }
    return n;
}

/* Load a dec_* or matvec_* file; json_decref(v->json) afterwards. */
static inline void tv_load(struct trellis_vector *v, const char *name)
{
    char path[128];
    const json_t *shape, *scales;
    size_t bytes;
    esp_error err;

    snprintf(path, sizeof path, "tests/data/vectors/trellis/%s.json", name);
    v->json = test_json(path);
    shape = json_object_get(v->json, "codes_shape");
    scales = json_object_get(v->json, "scales_f16_bits");
    assert_int_equal(tv_u32(v->json, "L"), ESP_TRELLIS_STATE_BITS);
    assert_int_equal(tv_u32(v->json, "T"), ESP_TRELLIS_BLOCK);
    v->w = (struct esp_weight){.format = esp_trellis_format(tv_u32(v->json, "k")),
                               .scale_type = ESP_SCALE_F16,
                               .n_out = tv_u32(v->json, "out_features"),
                               .n_in = tv_u32(v->json, "in_features"),
                               .axis = (uint8_t)tv_u32(v->json, "axis"),
                               .interleaved = json_array_size(shape) == 3,
                               .codes = v->codes,
                               .scales = v->scales};
    test_ok(esp_weight_layout(&v->w, name, &err), &err);
    bytes = tv_words(json_object_get(v->json, "codes_u32_hex"), v->codes, sizeof v->codes);
    assert_int_equal(json_array_size(scales), esp_trellis_rows(&v->w));
    assert_int_equal(bytes + 2 * json_array_size(scales), esp_weight_bytes(&v->w));
    for (size_t i = 0; i < json_array_size(scales); i++) {
        const uint16_t half = (uint16_t)tv_bits(scales, i);

        memcpy(v->scales + 2 * i, &half, 2);
    }
}

#endif
