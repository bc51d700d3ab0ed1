/*
 * The offline fold: norm gains go into the matrices that read behind the norm, and the residual stream
 * changes its basis. Which tensor takes what is one table by name. Folded norms become the stored form of
 * gain 1. A tied head gets a matrix of its own, because the final gain sits between it and the embedding.
 *
 * The MTP layer shares embedding and head with the trunk, but sits between two gains that no basis can carry:
 * its input norm reads the trunk's output times the final gain, and its own last gain meets a head that holds
 * the trunk's. So it stays in the plain basis, its norms keep their gains, and three tensors are made for it:
 * signs of the basis both ways, and the final gain. doc/formats/fold.md has the formulas.
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

/* Tensors of the MTP part that a folded model has and its source has not. */
enum esp_fold_made {
    ESP_FOLD_TO_PLAIN,   /* "to_plain" [H][H]: 1 and -1, times 1 / sqrt(H) the rows of Q */
    ESP_FOLD_PLAIN_NORM, /* "plain_norm" [H]: the trunk's final gain, stored as norms of the part are */
    ESP_FOLD_TO_BASIS,   /* "to_basis" [H][H]: to_plain transposed */
    ESP_FOLD_MADE_COUNT
};
const char *esp_fold_made_name(enum esp_fold_made m); /* of the module */
/* out: [H][H], for the norm [H]. Not for a fold that is off. */
void esp_fold_make(const struct esp_fold *f, enum esp_fold_made m, float *out);

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
