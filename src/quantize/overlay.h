/*
 * A weight source over another one with some matrices replaced or all of them folded, in f32 and in memory:
 * for measuring what a change does to a model before anything is written.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_OVERLAY_H
#define ESP_QUANTIZE_OVERLAY_H

#include "quantize/fold.h"

struct esp_overlay {
    struct esp_source source; /* what nets are loaded from; no close of its own. has_mtp is false: measuring
                                 needs no drafts; set it where they are wanted */
    const struct esp_source *inner;
    const struct esp_fold *fold; /* NULL or off: none */
    const char *module;          /* one matrix of the text part to replace, or NULL */
    const float *values;         /* [n_out][n_in] of it, borrowed */
    float **owned;
    uint32_t n_owned, cap_owned;
};

void esp_overlay_init(struct esp_overlay *o, const struct esp_source *inner, const struct esp_fold *fold);
/* Nets loaded from it must be closed first. */
void esp_overlay_close(struct esp_overlay *o);
/* A stored matrix as f32 in new memory (esp_free); ESP_ENUMERIC with name and place when a value is not
 * finite. */
esp_status esp_weight_decode(float **out, const struct esp_weight *w, const char *name, esp_error *err);

#endif
