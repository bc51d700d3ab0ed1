/*
 * Search for trellis codes: rows of numbers in, state paths out. Every block of 256 numbers is searched by
 * itself (a tail-biting Viterbi search over 4096 states), so blocks are the unit of parallel work and a
 * block's path depends on nothing but its own 256 targets, k and the kind of search.
 *
 * Costs are 16-bit integers and every CPU level does the same integer arithmetic, scalar reference included:
 * paths are equal, byte for byte, for every level and every number of threads. Only ESP_SEARCH_F32, the slow
 * check, counts in f32 (also the same everywhere).
 *
 * Source  doc/formats/trellis.md (code, windows, successor rule); Forney, "The Viterbi algorithm", 1973; for
 * the tail-biting start: Anderson and Hladik, "Tailbiting MAP decoders", 1998, and arXiv:2406.11235.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_ENCODE_H
#define ESP_QUANTIZE_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/status.h"
#include "kernels/kernels.h"

struct esp_dev;
struct esp_encoder;

/* How the state that a block starts and ends in is found, and what costs are counted in. */
enum esp_search {
    ESP_SEARCH_WINDOW, /* a free search over 64 weights (96 for k <= 2) on both sides of the wrap: 1.5 passes
                        */
    ESP_SEARCH_TWO_PASS, /* a free search over the whole block, rotated by half: 2 passes, 0.04-0.1 % less
                            error */
    ESP_SEARCH_F32,      /* two passes, scalar, costs in f32: the reference to measure the others against */
    ESP_SEARCH_COUNT
};

/*
 * An encoder owns tables for every k and one scratch area a thread (about 1.1 MiB each); encoding allocates
 * nothing. pool is kept and must outlive the encoder; one call at a time. level: any level up to what
 * esp_kernels_init() grants on this machine; lower ones serve tests. Errors: ESP_ENOMEM; ESP_EDEVICE for a
 * level that this CPU does not have.
 */
esp_status esp_encoder_create(struct esp_encoder **out, struct esp_pool *pool, enum esp_cpu_level level,
                              esp_error *err);
void esp_encoder_destroy(struct esp_encoder *e); /* NULL is a no-op */

/*
 * Search on dev from now on, which must outlive the encoder and is its own while a call runs; NULL: on the
 * CPU. Paths are the same. ESP_SEARCH_F32 stays on the CPU. ESP_EUNSUPPORTED: the device has no search.
 */
esp_status esp_encoder_on(struct esp_encoder *e, struct esp_dev *dev, esp_error *err);

/* Take the memory that a device's search needs, so that its lack is found before work begins. */
esp_status esp_encoder_try(struct esp_dev *dev, esp_error *err);

struct esp_encode_rows {
    uint32_t k; /* bits a weight, 1..8 */
    enum esp_search search;
    uint32_t n_row, n_col; /* n_col a multiple of 256 */
    const float *u;        /* [n_row][ld] targets: weights already divided by their row's scale; finite */
    size_t ld;             /* elements from row to row, at least n_col */
    uint16_t *states;      /* [n_row][n_col] s_t of every weight, 0..4095 */
    float *values;         /* [n_row][n_col] exact code values v(s_t); NULL: not wanted */
};

/*
 * Encode rows on all threads of the pool. Within each block the path obeys s[t+1] = (s[t] << k | b) & 4095,
 * also from t = 255 to t = 0. Targets beyond +-13.86 (+-3.46 for k >= 5; the code itself ends at -3.03
 * and 3.07) count as that. The mean squared error is within 0.1 % of that of an f32 two-pass search for
 * N(0,1). A device gets rows that lie apart (ld > n_col) one by one. Errors: ESP_EINVAL for shapes;
 * ESP_ENUMERIC for a non-finite target, naming row and column; ESP_EDEVICE and ESP_ENOMEM of a device.
 */
esp_status esp_encode_rows(struct esp_encoder *e, const struct esp_encode_rows *job, esp_error *err);

#endif
