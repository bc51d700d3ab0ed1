/*
 * How the recurrent state of a linear-attention layer is kept between steps: one value head's matrix
 * S[dv][dk], read in every step and rewritten when a chunk of ESP_CHUNK positions closes. Because rounding
 * happens at fixed positions alone, what is read does not depend on how a text was cut.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_FORMATS_RECURRENT_H
#define ESP_FORMATS_RECURRENT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/*
 * F32   as computed.
 * BF16  rounded to nearest even.
 * Q8    int8 codes with one scale a group of a row, 127 steps to the largest magnitude, and error feedback:
 *       the rounding error of every code is kept as well, in sixteenths of a step (4 bits). Reading a state
 *       for outputs takes the codes alone; folding new positions in takes codes and errors, so that what is
 *       smaller than a step adds up over chunks instead of being lost in each. A head is int8 codes [dv][dk],
 *       then nibbles (error + 8) [dv][dk / 2], even element low, then bf16 scales [dv][dk / group]; group is
 *       32, or 16 where dk is no multiple of 32. All-zero bytes are the zero state. A group with a number
 *       that is not finite becomes NaN as a whole.
 */
enum esp_recurrent { ESP_RECURRENT_F32, ESP_RECURRENT_BF16, ESP_RECURRENT_Q8, ESP_RECURRENT_COUNT };

/* "f32", "bf16", "q8"; ESP_EINVAL lists them. */
esp_status esp_recurrent_parse(enum esp_recurrent *out, const char *name, esp_error *err);
const char *esp_recurrent_name(enum esp_recurrent kind);

/* Bytes of one head; dk is a multiple of 16. */
size_t esp_recurrent_bytes(enum esp_recurrent kind, uint32_t dv, uint32_t dk);
/* What outputs are computed from. */
void esp_recurrent_read(enum esp_recurrent kind, uint32_t dv, uint32_t dk, const uint8_t *head, float *s);
/* What new positions are folded into: errors included. */
void esp_recurrent_resume(enum esp_recurrent kind, uint32_t dv, uint32_t dk, const uint8_t *head, float *s);
/* Keep s. */
void esp_recurrent_write(enum esp_recurrent kind, uint32_t dv, uint32_t dk, const float *s, uint8_t *head);

#endif
