/*
 * What the files of the trellis encoder share: the encoder's fields and the search of one block. Private to
 * the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_ENCODE_PARTS_H
#define ESP_QUANTIZE_ENCODE_PARTS_H

#include "backend/backend.h"
#include "base/limits.h"
#include "quantize/encode.h"
#include "quantize/viterbi.h"

struct esp_encoder {
    struct esp_pool *pool;
    struct esp_dev *dev; /* that searches; NULL: the pool's threads do */
    esp_viterbi_fn steps;
    struct esp_viterbi_code (*code)[ESP_VITERBI_RANGES]; /* [8] for k = 1..8 */
    struct esp_viterbi_scratch *scratch;                 /* [n_thread] */
};

/* Path of u [256], finite, into states [256]; tid is the calling thread's number in the pool's region. */
void esp_encoder_block(struct esp_encoder *e, uint32_t tid, uint32_t k, enum esp_search search,
                       const float *u, uint16_t *states);

/* The same with feedback inside the block (viterbi.h); costs are integers for every kind of search. */
void esp_encoder_block_fed(struct esp_encoder *e, uint32_t tid, uint32_t k, enum esp_search search,
                           const struct esp_viterbi_feed *feed, uint16_t *states);

/* Whether such a search is the device's. */
bool esp_encoder_is_on(const struct esp_encoder *e, enum esp_search search);

/*
 * Paths of n blocks u [n][256] on the device, into states [n][256]. feed: its w [n][256] and taps, the same
 * for all blocks; its u is not read. NULL: no feedback inside blocks. Call outside regions of the pool.
 */
esp_status esp_encoder_blocks(struct esp_encoder *e, uint32_t k, enum esp_search search, uint32_t n,
                              const float *u, const struct esp_viterbi_feed *feed, uint16_t *states,
                              esp_error *err);

/* Memory that a device's search reads and writes fastest; NULL: none left. Free it before the encoder. */
void *esp_encoder_alloc(struct esp_encoder *e, size_t count, size_t size);
void esp_encoder_free(struct esp_encoder *e, void *p);

esp_status esp_encode_check_k(uint32_t k, esp_error *err);
esp_status esp_encode_check_finite(const float *x, uint32_t n_row, uint32_t n_col, size_t ld,
                                   const char *what, esp_error *err);

#endif
