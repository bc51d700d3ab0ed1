/*
 * Random numbers as a function, not as a stream: a draw is computed from what it is for (seed, choice,
 * position, draw number), so batching, caching and speculation cannot change it. The function is Philox4x32
 * with 10 rounds, which needs 32-bit multiplications only and is therefore the same on every CPU and on a
 * GPU.
 *
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_RNG_H
#define ESP_BASE_RNG_H

#include <stdint.h>

#include "base/status.h"

/* What a random number is for. Two different keys give independent numbers. */
struct esp_rng_key {
    uint64_t seed;
    uint64_t
        position;    /* absolute output position: prompt tokens do not count, the first generated one is 0 */
    uint32_t choice; /* index of the choice when a request asks for several */
    uint32_t draw;   /* several numbers at one position: 0, 1, ... */
};

/*
 * Philox4x32-10: counter words (low and high half of position, choice, draw), key words (low and high half of
 * seed). out holds the four output words.
 */
void esp_rng_words(const struct esp_rng_key *key, uint32_t out[4]);

/* Uniform in [0, 1): a multiple of 2^-53, made of the upper 53 bits of (out[1] << 32 | out[0]). */
double esp_rng_uniform(const struct esp_rng_key *key);

/* A seed for a request that brought none, from the operating system; never from a clock. Errors: ESP_EIO. */
esp_status esp_rng_seed(uint64_t *out, esp_error *err);

#endif
