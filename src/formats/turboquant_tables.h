/*
 * Constants of TurboQuant; see turboquant_tables.c and doc/formats/turboquant.md.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_FORMATS_TURBOQUANT_TABLES_H
#define ESP_FORMATS_TURBOQUANT_TABLES_H

#include <stdint.h>

/* Levels of a normal variable of variance 1, ascending, and the borders between them. */
struct esp_turbo_codebook {
    const float *levels; /* [2^bits] */
    const float *edges;  /* [2^bits - 1] */
};

/* By bits: 2, 3, 4, 5 and 8 are there. */
extern const struct esp_turbo_codebook esp_turbo_published[9];
extern const struct esp_turbo_codebook esp_turbo_own[9];

/* Bit i % 32 of word i / 32: element i is negated. */
extern const uint32_t esp_turbo_signs64[], esp_turbo_signs96[], esp_turbo_signs128[], esp_turbo_signs256[],
    esp_turbo_signs512[];
extern const int8_t esp_turbo_hadamard12[12][12];

#endif
