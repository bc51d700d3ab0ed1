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
    ESP_FORMAT_TRELLIS1, /* 12-bit windows over k bits a weight, row scale; doc/formats/trellis.md */
    ESP_FORMAT_TRELLIS2,
    ESP_FORMAT_TRELLIS3,
    ESP_FORMAT_TRELLIS4,
    ESP_FORMAT_TRELLIS5,
    ESP_FORMAT_TRELLIS6,
    ESP_FORMAT_TRELLIS7,
    ESP_FORMAT_TRELLIS8,
    ESP_FORMAT_COUNT
};

/* Element type of the scale and bias planes. */
enum esp_scale_type { ESP_SCALE_F32, ESP_SCALE_BF16, ESP_SCALE_F16 };

/*
 * A weight matrix W[n_out][n_in], y = W x. Borrowed memory: usually a mapped file, so pointers may have any
 * alignment down to one byte; the bytes of a row are contiguous. Ranges of outputs and of inputs are views:
 * esp_weight_rows(), esp_weight_cols().
 *
 * Trellis weights are stored by row of W (axis 1: a stored row is an output) or by column (axis 0: a stored
 * row is an input and its coded columns are outputs). "Row" of codes and scales below then means stored row.
 * Coded columns are a multiple of 256, or 512 when interleaved.
 */
struct esp_weight {
    enum esp_format_id format;
    enum esp_scale_type scale_type; /* affine; trellis: ESP_SCALE_F16 */
    uint32_t n_out;
    uint32_t n_in;
    uint32_t group;   /* affine: 32, 64 or 128 inputs share a scale and a bias; n_in is a multiple. Else 0 */
    uint8_t axis;     /* trellis: see above. Else 0 */
    bool interleaved; /* trellis3, axis 0: stored as [cols / 512][rows][two blocks]. Else false */
    const uint8_t *codes;   /* rows row_bytes apart */
    const uint8_t *scales;  /* affine: [n_out][n_in / group] of scale_type; trellis: one f16 a stored row */
    const uint8_t *biases;  /* affine: as scales. Else NULL */
    const uint8_t *packed;  /* a kernel table's own copy of all planes (kernels.h, pack), or NULL */
    size_t row_bytes;       /* from one row of codes to the next; their own length unless w is a view */
    size_t scale_row_bytes; /* from one row of scales to the next, and of biases */
    size_t pair_bytes;      /* trellis: from one pair of blocks (512 columns) of a row to the next. Else 0 */
};

struct esp_format {
    const char *name; /* "bf16", "affine4" */
    uint32_t bits;    /* of one code; scales and biases come on top */
    bool grouped;     /* has scales, biases and a group */
    bool integer;     /* code values are integers, so that products with int8 activations exist */
    /* Exact value of row `row`, columns [c0, c0 + n), as f32; for grouped formats c0 and n are multiples of
     * the group. */
    void (*decode)(const struct esp_weight *w, size_t row, size_t c0, size_t n, float *out);
    /*
     * Nearest row of codes (RTN) for x[0..n); scales and biases are NULL unless grouped. Affine follows MLX's
     * quantizer bit for bit (doc/formats/affine.md, section 4).
     * NULL for trellis formats: their encoder is a search over paths, in quantize/.
     */
    void (*encode)(const struct esp_weight *like, const float *x, size_t n, uint8_t *codes, uint8_t *scales,
                   uint8_t *biases);
};

const struct esp_format *esp_format_get(enum esp_format_id id);
/* Look a name up ("bf16", "affine4", ...); ESP_EINVAL lists the known ones. */
esp_status esp_format_by_name(enum esp_format_id *out, const char *name, esp_error *err);

/* Fill row_bytes, scale_row_bytes and pair_bytes from the fields before them; ESP_EFORMAT, naming the value,
 * when these do not fit together. */
esp_status esp_weight_layout(struct esp_weight *w, const char *name, esp_error *err);
/* Bytes of all planes. */
size_t esp_weight_bytes(const struct esp_weight *w);
/*
 * Outputs [row0, row0 + n), or inputs [col0, col0 + n), of w as a weight of their own; no copy. Borders are
 * multiples of esp_weight_out_unit() and esp_weight_in_unit(); the end of w is one too.
 */
struct esp_weight esp_weight_rows(const struct esp_weight *w, uint32_t row0, uint32_t n);
struct esp_weight esp_weight_cols(const struct esp_weight *w, uint32_t col0, uint32_t n);
uint32_t esp_weight_out_unit(const struct esp_weight *w);
uint32_t esp_weight_in_unit(const struct esp_weight *w);
/* Product calls (kernels.h) may cut the outputs of w at multiples of this: 1, or 64 for trellis along axis 0.
 */
uint32_t esp_weight_out_align(const struct esp_weight *w);
/* Whether one prepared activation row (kernels.h) serves both weights, which have the same inputs and kernel.
 */
bool esp_weight_same_input(const struct esp_weight *a, const struct esp_weight *b);

/* Scalar conversions, the definition for every other path. Narrowing rounds to nearest even and keeps NaN. */
float esp_bf16_to_f32(uint16_t v);
uint16_t esp_f32_to_bf16(float v);
float esp_f16_to_f32(uint16_t v);
uint16_t esp_f32_to_f16(float v);

#endif
