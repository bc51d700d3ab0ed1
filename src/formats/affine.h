/*
 * MLX affine rows: unsigned codes of 2 to 8 bits in one bit stream a row, and a scale and a bias for each
 * group of inputs. The byte layout and the quantizer are in doc/formats/affine.md; this is the scalar
 * definition of both.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_FORMATS_AFFINE_H
#define ESP_FORMATS_AFFINE_H

#include "formats/format.h"

enum { ESP_AFFINE_GROUP_MAX = 128 }; /* largest legal group */

/*
 * Codes [j0, j0 + n) of the bit stream at row, one a byte. j0 * bits must be a whole number of bytes (any
 * multiple of 8 is). Reads no byte beyond the one that holds the last code's last bit.
 */
void esp_affine_unpack(uint32_t bits, const uint8_t *row, size_t j0, size_t n, uint8_t *out);
/* The reverse, from code 0: writes the (n * bits + 7) / 8 bytes of n codes; spare bits of the last byte are
 * zero. */
void esp_affine_pack(uint32_t bits, const uint8_t *codes, size_t n, uint8_t *row);

/* Element i of a plane of scales or biases, which may have any alignment. */
float esp_scale_load(enum esp_scale_type type, const uint8_t *plane, size_t i);
void esp_scale_store(enum esp_scale_type type, uint8_t *plane, size_t i, float v);
/* Bytes of one scale: 4 or 2. */
size_t esp_scale_bytes(enum esp_scale_type type);

/*
 * Step and offset of a group whose smallest and largest elements are lo and hi, in f32; codes go up to top.
 * The end of the range with the larger magnitude becomes the offset, and the step points from it towards
 * zero, so that zero is a code whenever the range holds it. A tie takes the maximum.
 */
void esp_affine_step(float lo, float hi, uint32_t top, float *scale, float *bias);

/* The decode and encode of every affine row of the format table. */
void esp_affine_decode(const struct esp_weight *w, size_t row, size_t c0, size_t n, float *out);
void esp_affine_encode(const struct esp_weight *like, const float *x, size_t n, uint8_t *codes,
                       uint8_t *scales, uint8_t *biases);

#endif
