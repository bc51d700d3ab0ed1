/*
 * From one processed logit row to the set of ids that may be drawn, and the draw from it. Logits lie in
 * blocks of 64 with each block's maximum beside them: one pass over the row makes both, and after it a small
 * top_k looks into a few blocks only. The kept set is always in ascending id order.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SAMPLE_SELECT_H
#define ESP_SAMPLE_SELECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sample/sampler.h"

enum { ESP_SAMPLE_BLOCK = 64 }; /* one word of the allowed mask */

struct esp_sample_work {
    uint32_t n_vocab, n_blocks;
    void *memory;     /* one block behind all arrays */
    float *logit;     /* [n_blocks][64], padded with -inf */
    float *block_max; /* [n_blocks] */
    uint8_t *dirty;   /* [n_blocks] block_max is out of date (1), nothing of the block is known (2) */

    bool whole; /* all of a row was loaded */

    uint32_t n_kept;
    uint32_t *id;    /* [n_kept] ascending */
    double *weight;  /* [n_kept] exp((logit - max) / temperature) */
    uint8_t *flag;   /* [n_kept] all 0 between calls */
    uint64_t *order; /* [n_kept] (sort key << 32 | index into id), the best first */
    uint64_t *spare; /* second buffer of the sort */
    double *chunk;   /* [n_kept / 64, rounded up] sums of 64 weights */
};

/* An edit saturates: it never turns a finite logit into a ban or an infinity. */
float esp_sample_saturate(double x);
/* Change one logit; banned ids (-inf) stay banned, unknown ones unknown. */
void esp_sample_work_set(struct esp_sample_work *w, uint32_t id, float value);
/*
 * Copy logits in, banning ids outside allowed (may be NULL). *raw_max is the greatest before the mask. *bad
 * is the first index of a NaN or +inf, or n_vocab.
 */
void esp_sample_work_load(struct esp_sample_work *w, const float *logits, const uint64_t *allowed,
                          float *raw_max, uint32_t *bad);
/*
 * Instead of a row, the n values of these ids; every other id is as if banned and stays so. Those outside
 * allowed are banned too.
 */
void esp_sample_work_load_few(struct esp_sample_work *w, const struct esp_sample_few *few,
                              const uint64_t *allowed);
/* The greatest logit, after bringing block_max up to date. */
float esp_sample_work_max(struct esp_sample_work *w);
/* Lowest id whose logit equals max. */
uint32_t esp_sample_work_first(const struct esp_sample_work *w, float max);

/* Fill the kept set by p's filters; max = esp_sample_work_max() is finite, p->temperature > 0. Keeps at least
 * one id. */
void esp_sample_work_select(struct esp_sample_work *w, const struct esp_sample_params *p, float max);
/* XTC: of the kept ids that have at least threshold of the mass and no bit in exempt (NULL: none has), the
 * least likely stays alone. */
void esp_sample_work_exclude(struct esp_sample_work *w, const struct esp_sample_params *p);
/* The kept id at quantile u of [0, 1). */
uint32_t esp_sample_work_pick(struct esp_sample_work *w, double u);

#endif
