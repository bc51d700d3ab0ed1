/*
 * The offline fold: norm gains go into the matrices that read behind the norm, and the residual stream
 * changes its basis. Which tensor takes what is one table by name. Folded norms become the stored form of
 * gain 1. A tied head gets a matrix of its own, because the final gain sits between it and the embedding.
 *
 * The MTP layer shares the head, so two things about it cannot be exact: its input norm sees the trunk's
 * output without the final gain, and its own last gain cannot pass through the basis. Both take the best
 * constant instead: drafts may be accepted a little less often, texts do not change.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_FOLD_H
#define ESP_QUANTIZE_FOLD_H

#include "io/config.h"
#include "model/source.h"
#include "quantize/basis.h"

struct esp_fold {
    bool on;
    uint32_t hidden;
    const struct esp_source *src;
    bool mtp_shifted;  /* as norms_shifted, for the MTP part */
    float *final_gain; /* [hidden] */
    struct esp_basis basis;
    float *scratch; /* [2 * hidden] */
};

/* off: a fold that changes nothing. ESP_EUNSUPPORTED when the hidden size has no basis. */
esp_status esp_fold_open(struct esp_fold *f, const struct esp_config *c, const struct esp_source *src,
                         bool mtp_shifted, bool on, uint64_t seed, esp_error *err);
void esp_fold_close(struct esp_fold *f);

/* Whether fold changes this tensor at all ("layers.3.mlp.up_proj.weight"). */
bool esp_fold_touches(const struct esp_fold *f, enum esp_part part, const char *name);
/*
 * Fold a decoded tensor in place; matrices are [n_out][n_in], vectors have n_out = 1. The head of a tied
 * model is folded from a copy of the embedding under (ESP_PART_HEAD, "weight").
 */
esp_status esp_fold_apply(const struct esp_fold *f, enum esp_part part, const char *name, float *w,
                          size_t n_out, size_t n_in, esp_error *err);
/* Gain [hidden] of a norm of the text part, as it is before folding. */
esp_status esp_fold_gain(const struct esp_fold *f, const char *norm, float *out, esp_error *err);

#endif
