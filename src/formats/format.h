/*
 * What the bytes of a weight mean. One row a format: its name, bits, planes and scalar decode and encode.
 * Nothing here knows instruction sets; kernels index their tables by esp_format_id.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_FORMATS_FORMAT_H
#define ESP_FORMATS_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum esp_format_id {
    ESP_FORMAT_F32,
    ESP_FORMAT_BF16,
    ESP_FORMAT_F16,
    ESP_FORMAT_AFFINE2, /* MLX affine: unsigned codes, group scale and bias; doc/formats/affine.md */
    ESP_FORMAT_AFFINE3,
    ESP_FORMAT_AFFINE4,
    ESP_FORMAT_AFFINE5,
    ESP_FORMAT_AFFINE6,
    ESP_FORMAT_AFFINE8,
    ESP_FORMAT_COUNT
};

/* Element type of the scale and bias planes. */
enum esp_scale_type { ESP_SCALE_F32, ESP_SCALE_BF16, ESP_SCALE_F16 };

/*
 * A weight matrix W[n_out][n_in], y = W x. Borrowed memory: usually a mapped file, so pointers may have any
 * alignment down to one byte; rows are contiguous. A row range is a view: esp_weight_rows().
 */
struct esp_weight {
    enum esp_format_id format;
    enum esp_scale_type scale_type; /* affine only */
    uint32_t n_out;
    uint32_t n_in;
    uint32_t group;         /* affine: 32, 64 or 128 inputs share scale and bias; divides n_in. Else 0 */
    const uint8_t *codes;   /* [n_out][row_bytes] */
    const uint8_t *scales;  /* affine: [n_out][n_in / group] of scale_type */
    const uint8_t *biases;  /* affine: as scales */
    size_t row_bytes;       /* bytes of one row of codes */
    size_t scale_row_bytes; /* bytes of one row of scales, and of biases */
};

struct esp_format {
    const char *name; /* "bf16", "affine4" */
    uint32_t bits;    /* of one code; scales and biases come on top */
    bool grouped;     /* has scales, biases and a group */
    /* Value of row `row`, columns [c0, c0 + n), as f32; if grouped, c0 and n are multiples of the group. */
    void (*decode)(const struct esp_weight *w, size_t row, size_t c0, size_t n, float *out);
    /*
     * Nearest row of codes (RTN) for x[0..n); scales and biases are NULL unless grouped. Affine follows MLX's
     * quantizer bit for bit (doc/formats/affine.md, section 4).
     */
    void (*encode)(const struct esp_weight *like, const float *x, size_t n, uint8_t *codes, uint8_t *scales,
                   uint8_t *biases);
};

const struct esp_format *esp_format_get(enum esp_format_id id);
/* Look a name up ("bf16", "affine4", ...); ESP_EINVAL lists the known ones. */
esp_status esp_format_by_name(enum esp_format_id *out, const char *name, esp_error *err);

/*
 * Fill row_bytes and scale_row_bytes from format, n_in, group and scale_type. ESP_EFORMAT, naming `name`,
 * when these do not fit together or all planes would not fit into memory.
 */
esp_status esp_weight_layout(struct esp_weight *w, const char *name, esp_error *err);
/* Bytes of all planes. */
size_t esp_weight_bytes(const struct esp_weight *w);
/* Rows [row0, row0 + n) of w as a weight of their own; no copy. */
struct esp_weight esp_weight_rows(const struct esp_weight *w, uint32_t row0, uint32_t n);

/* Scalar conversions, the definition for every other path. Narrowing rounds to nearest even and keeps NaN. */
float esp_bf16_to_f32(uint16_t v);
uint16_t esp_f32_to_bf16(float v);
float esp_f16_to_f32(uint16_t v);
uint16_t esp_f32_to_f16(float v);

#endif
