/*
 * The format table, and what follows from it: names, plane sizes, row views. A format is a row of the table;
 * code that needs to know what weight bytes mean asks the row. Dense formats are handled here, affine in
 * affine.c, trellis in trellis.c.
 *
 * SPDX-License-Identifier: MIT
 */
#include "formats/format.h"

#include <string.h>

#include "base/mem.h"
#include "formats/affine.h"
#include "formats/trellis.h"

static void decode_f32(const struct esp_weight *w, size_t row, size_t c0, size_t n, float *out)
{
    memcpy(out, w->codes + row * w->row_bytes + 4 * c0, 4 * n);
}

static void decode_bf16(const struct esp_weight *w, size_t row, size_t c0, size_t n, float *out)
{
    const uint8_t *p = w->codes + row * w->row_bytes + 2 * c0;

    for (size_t i = 0; i < n; i++)
        out[i] = esp_scale_load(ESP_SCALE_BF16, p, i);
}

static void decode_f16(const struct esp_weight *w, size_t row, size_t c0, size_t n, float *out)
{
    const uint8_t *p = w->codes + row * w->row_bytes + 2 * c0;

    for (size_t i = 0; i < n; i++)
        out[i] = esp_scale_load(ESP_SCALE_F16, p, i);
}

static void encode_dense(enum esp_scale_type type, const float *x, size_t n, uint8_t *codes)
{
    for (size_t i = 0; i < n; i++)
        esp_scale_store(type, codes, i, x[i]);
}

static void encode_f32(const struct esp_weight *like, const float *x, size_t n, uint8_t *codes,
                       uint8_t *scales, uint8_t *biases)
{
    (void)like;
    (void)scales;
    (void)biases;
    encode_dense(ESP_SCALE_F32, x, n, codes);
}

static void encode_bf16(const struct esp_weight *like, const float *x, size_t n, uint8_t *codes,
                        uint8_t *scales, uint8_t *biases)
{
    (void)like;
    (void)scales;
    (void)biases;
    encode_dense(ESP_SCALE_BF16, x, n, codes);
}

static void encode_f16(const struct esp_weight *like, const float *x, size_t n, uint8_t *codes,
                       uint8_t *scales, uint8_t *biases)
{
    (void)like;
    (void)scales;
    (void)biases;
    encode_dense(ESP_SCALE_F16, x, n, codes);
}

static const struct esp_format FORMATS[ESP_FORMAT_COUNT] = {
    [ESP_FORMAT_F32] = {"f32", 32, false, false, decode_f32, encode_f32},
    [ESP_FORMAT_BF16] = {"bf16", 16, false, false, decode_bf16, encode_bf16},
    [ESP_FORMAT_F16] = {"f16", 16, false, false, decode_f16, encode_f16},
    [ESP_FORMAT_AFFINE2] = {"affine2", 2, true, true, esp_affine_decode, esp_affine_encode},
    [ESP_FORMAT_AFFINE3] = {"affine3", 3, true, true, esp_affine_decode, esp_affine_encode},
    [ESP_FORMAT_AFFINE4] = {"affine4", 4, true, true, esp_affine_decode, esp_affine_encode},
    [ESP_FORMAT_AFFINE5] = {"affine5", 5, true, true, esp_affine_decode, esp_affine_encode},
    [ESP_FORMAT_AFFINE6] = {"affine6", 6, true, true, esp_affine_decode, esp_affine_encode},
    [ESP_FORMAT_AFFINE8] = {"affine8", 8, true, true, esp_affine_decode, esp_affine_encode},
    [ESP_FORMAT_TRELLIS1] = {"trellis1", 1, false, true, esp_trellis_decode, NULL},
    [ESP_FORMAT_TRELLIS2] = {"trellis2", 2, false, true, esp_trellis_decode, NULL},
    [ESP_FORMAT_TRELLIS3] = {"trellis3", 3, false, true, esp_trellis_decode, NULL},
    [ESP_FORMAT_TRELLIS4] = {"trellis4", 4, false, true, esp_trellis_decode, NULL},
    [ESP_FORMAT_TRELLIS5] = {"trellis5", 5, false, true, esp_trellis_decode, NULL},
    [ESP_FORMAT_TRELLIS6] = {"trellis6", 6, false, true, esp_trellis_decode, NULL},
    [ESP_FORMAT_TRELLIS7] = {"trellis7", 7, false, true, esp_trellis_decode, NULL},
    [ESP_FORMAT_TRELLIS8] = {"trellis8", 8, false, true, esp_trellis_decode, NULL},
};

const struct esp_format *esp_format_get(enum esp_format_id id)
{
    return &FORMATS[id];
}

esp_status esp_format_by_name(enum esp_format_id *out, const char *name, esp_error *err)
{
    for (int i = 0; i < ESP_FORMAT_COUNT; i++) {
        if (strcmp(name, FORMATS[i].name) == 0) {
            *out = (enum esp_format_id)i;
            return ESP_OK;
        }
    }
    return esp_fail(
        err, ESP_EINVAL,
        "weight format \"%s\" is not known; known are f32, bf16, f16, affine2, affine3, affine4, affine5, "
        "affine6, affine8, and trellis1 to trellis8",
        name);
}

static esp_status check_group(const struct esp_weight *w, const char *name, const char *format,
                              esp_error *err)
{
    if (w->group != 32 && w->group != 64 && w->group != 128)
        return esp_fail(err, ESP_EFORMAT, "%s: %s with groups of %u inputs; 32, 64 and 128 are allowed", name,
                        format, w->group);
    if (w->n_in % w->group)
        return esp_fail(err, ESP_EFORMAT, "%s: %u inputs are not a multiple of the group of %u", name,
                        w->n_in, w->group);
    if ((unsigned)w->scale_type > ESP_SCALE_F16)
        return esp_fail(err, ESP_EFORMAT, "%s: scale type %u; f32, bf16 and f16 are allowed", name,
                        (unsigned)w->scale_type);
    return ESP_OK;
}

esp_status esp_weight_layout(struct esp_weight *w, const char *name, esp_error *err)
{
    const struct esp_format *f;
    size_t row, scale_row = 0, total;

    if ((unsigned)w->format >= ESP_FORMAT_COUNT)
        return esp_fail(err, ESP_EFORMAT, "%s: weight format %u does not exist", name, (unsigned)w->format);
    f = &FORMATS[w->format];
    if (!w->n_out || !w->n_in)
        return esp_fail(err, ESP_EFORMAT, "%s: a matrix of %u x %u; both must be at least 1", name, w->n_out,
                        w->n_in);
    if (f->grouped)
        ESP_TRY(check_group(w, name, f->name, err));
    else if (w->group)
        return esp_fail(err, ESP_EFORMAT, "%s: %s has no groups, but a group of %u is given", name, f->name,
                        w->group);
    if (esp_is_trellis(w->format))
        return esp_trellis_layout(w, name, err);
    if (!esp_mul_size(&row, w->n_in, f->bits))
        return esp_fail(err, ESP_EFORMAT, "%s: a row of %u inputs is too long", name, w->n_in);
    row /= 8;                   /* whole: bits is a multiple of 8, or n_in one of 32 */
    if (f->grouped && w->group) /* checked above */
        scale_row = w->n_in / w->group * esp_scale_bytes(w->scale_type);
    if (!esp_mul_size(&total, row + 2 * scale_row, w->n_out))
        return esp_fail(err, ESP_EFORMAT, "%s: %u x %u does not fit into memory", name, w->n_out, w->n_in);
    w->row_bytes = row;
    w->scale_row_bytes = scale_row;
    return ESP_OK;
}

size_t esp_weight_bytes(const struct esp_weight *w)
{
    const size_t codes = (size_t)w->n_in * esp_format_get(w->format)->bits / 8 * w->n_out;

    if (esp_is_trellis(w->format))
        return (size_t)w->n_out * w->n_in / 8 * esp_trellis_bits(w->format) + (size_t)2 * esp_trellis_rows(w);
    return w->group ? codes + 2 * (size_t)(w->n_in / w->group) * esp_scale_bytes(w->scale_type) * w->n_out
                    : codes;
}

static uint32_t column_unit(const struct esp_weight *w)
{
    return w->interleaved ? 2 * ESP_TRELLIS_BLOCK : ESP_TRELLIS_BLOCK;
}

uint32_t esp_weight_out_unit(const struct esp_weight *w)
{
    return esp_is_trellis(w->format) && w->axis == 0 ? column_unit(w) : 1;
}

uint32_t esp_weight_in_unit(const struct esp_weight *w)
{
    if (esp_is_trellis(w->format))
        return w->axis == 0 ? 1 : column_unit(w);
    return w->group ? w->group : 1;
}

uint32_t esp_weight_out_align(const struct esp_weight *w)
{
    return esp_is_trellis(w->format) && w->axis == 0 ? 64 : 1;
}

bool esp_weight_same_input(const struct esp_weight *a, const struct esp_weight *b)
{
    if (esp_is_trellis(a->format) && a->axis == 0) /* scales of the inputs are multiplied into the row */
        return esp_is_trellis(b->format) && b->axis == 0 && a->scales == b->scales;
    return a->group == b->group && a->axis == b->axis;
}

struct esp_weight esp_weight_rows(const struct esp_weight *w, uint32_t row0, uint32_t n)
{
    struct esp_weight v = *w;

    if (esp_is_trellis(w->format))
        return w->axis ? esp_trellis_stored_rows(w, row0, n) : esp_trellis_columns(w, row0, n);
    ESP_ASSERT(row0 <= w->n_out && n <= w->n_out - row0);
    v.n_out = n;
    v.packed = NULL;
    v.codes += row0 * w->row_bytes;
    if (w->scales) {
        v.scales += row0 * w->scale_row_bytes;
        v.biases += row0 * w->scale_row_bytes;
    }
    return v;
}

struct esp_weight esp_weight_cols(const struct esp_weight *w, uint32_t col0, uint32_t n)
{
    struct esp_weight v = *w;

    if (esp_is_trellis(w->format))
        return w->axis ? esp_trellis_columns(w, col0, n) : esp_trellis_stored_rows(w, col0, n);
    ESP_ASSERT(col0 % esp_weight_in_unit(w) == 0 && n % esp_weight_in_unit(w) == 0);
    ESP_ASSERT(col0 <= w->n_in && n <= w->n_in - col0);
    v.n_in = n;
    v.packed = NULL;
    v.codes += (size_t)col0 * esp_format_get(w->format)->bits / 8;
    if (w->scales) {
        v.scales += col0 / w->group * esp_scale_bytes(w->scale_type);
        v.biases += col0 / w->group * esp_scale_bytes(w->scale_type);
    }
    return v;
}
