/*
 * Trellis-coded rows: 256 weights in 256 k bits, each weight a 12-bit window of the block, overlapping its
 * neighbours. A weight is y(state) / 147.8005 times the scale of its stored row. What is here is about blocks
 * and addresses; which path of states approximates given weights best is the quantizer's business. Layout and
 * constants: doc/formats/trellis.md.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_FORMATS_TRELLIS_H
#define ESP_FORMATS_TRELLIS_H

#include "formats/format.h"

enum {
    ESP_TRELLIS_BLOCK = 256,     /* weights of a block, "T" and "group_size" in a config */
    ESP_TRELLIS_STATE_BITS = 12, /* "L" in a config */
    ESP_TRELLIS_STATES = 1 << ESP_TRELLIS_STATE_BITS,
    ESP_TRELLIS_BITS_MAX = 8,
    ESP_TRELLIS_BLOCK_BYTES_MAX = ESP_TRELLIS_BLOCK / 8 * ESP_TRELLIS_BITS_MAX,
};

/* What a code value y is divided by: about sqrt(4 * (256^2 - 1) / 12), the deviation of a sum of four bytes.
 */
#define ESP_TRELLIS_DIVISOR 147.800537109375f
/* Its reciprocal in f32, for paths that multiply; bits 0x3bddb447. */
#define ESP_TRELLIS_RECIPROCAL 0x1.bb688ep-8f

/* y of a state: the sum of the four bytes of state * 34038481 + 76625530 modulo 2^32, less 510: -448 .. 454.
 */
static inline int32_t esp_trellis_value(uint32_t state)
{
    const uint32_t x = state * 34038481u + 76625530u;
    const uint32_t pairs = (x & 0x00ff00ff) + (x >> 8 & 0x00ff00ff);

    return (int32_t)((pairs & 0xffff) + (pairs >> 16)) - 510;
}

/* Bytes of a block of k-bit weights. */
static inline size_t esp_trellis_block_bytes(uint32_t k)
{
    return (size_t)ESP_TRELLIS_BLOCK / 8 * k;
}

static inline bool esp_is_trellis(enum esp_format_id f)
{
    return f >= ESP_FORMAT_TRELLIS1 && f <= ESP_FORMAT_TRELLIS8;
}

/* Format of k bits, 1 <= k <= 8; and back. */
static inline enum esp_format_id esp_trellis_format(uint32_t k)
{
    return (enum esp_format_id)(ESP_FORMAT_TRELLIS1 + k - 1);
}

static inline uint32_t esp_trellis_bits(enum esp_format_id f)
{
    return (uint32_t)f - ESP_FORMAT_TRELLIS1 + 1;
}

/* Number of stored rows (one scale each), and of coded columns. */
static inline uint32_t esp_trellis_rows(const struct esp_weight *w)
{
    return w->axis ? w->n_out : w->n_in;
}

static inline uint32_t esp_trellis_cols(const struct esp_weight *w)
{
    return w->axis ? w->n_in : w->n_out;
}

/* Block b (columns 256 b ..) of a stored row. */
static inline const uint8_t *esp_trellis_block(const struct esp_weight *w, size_t stored_row, size_t b)
{
    return w->codes + b / 2 * w->pair_bytes + stored_row * w->row_bytes +
           b % 2 * esp_trellis_block_bytes(esp_trellis_bits(w->format));
}

/* Scale of a stored row, exact. */
float esp_trellis_scale(const struct esp_weight *w, size_t stored_row);

/* State of weight t of a block: 12 bits from bit (255 - t) k on, wrapping to bit 0 of the same block. */
uint32_t esp_trellis_state(uint32_t k, const uint8_t *block, uint32_t t);
/* All states of a block, by t. */
void esp_trellis_unpack(uint32_t k, const uint8_t *block, uint16_t states[ESP_TRELLIS_BLOCK]);
/*
 * The block of a closed path of states: unpacking gives the same states. ESP_EINVAL, naming t, when a state
 * is not 12 bits or does not follow its predecessor (state 0 follows state 255); the block is then untouched.
 */
esp_status esp_trellis_pack(uint32_t k, const uint16_t states[ESP_TRELLIS_BLOCK], uint8_t *block,
                            esp_error *err);
/* states[t] follows states[t - 1]: the low 12 - k bits of the older are the high ones of the newer. */
static inline bool esp_trellis_follows(uint32_t k, uint32_t older, uint32_t newer)
{
    return ((older << k) & (ESP_TRELLIS_STATES - 1)) >> k == newer >> k;
}

/* Integer values y of coded columns [c0, c0 + n) of a stored row. */
void esp_trellis_values(const struct esp_weight *w, size_t stored_row, size_t c0, size_t n, int16_t *out);
/* The same as weights: f32(y / divisor, correctly rounded) * scale, the product rounded to f32. */
void esp_trellis_decode_stored(const struct esp_weight *w, size_t stored_row, size_t c0, size_t n,
                               float *out);
/* decode of the format table: row of W whatever the axis. */
void esp_trellis_decode(const struct esp_weight *w, size_t row, size_t c0, size_t n, float *out);

/* esp_weight_layout() and the views for a trellis weight. */
esp_status esp_trellis_layout(struct esp_weight *w, const char *name, esp_error *err);
struct esp_weight esp_trellis_stored_rows(const struct esp_weight *w, uint32_t row0, uint32_t n);
struct esp_weight esp_trellis_columns(const struct esp_weight *w, uint32_t col0, uint32_t n);

#endif
