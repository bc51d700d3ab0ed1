/*
 * Where a model's weights come from: a checkpoint folder, or random numbers for benchmarks. A model file asks
 * by part and module path and gets matrices as they are stored and vectors as f32.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_MODEL_SOURCE_H
#define ESP_MODEL_SOURCE_H

#include <stdbool.h>

#include "base/huge.h"
#include "formats/format.h"
#include "io/names.h"

struct esp_source {
    void *ctx;
    bool norms_shifted;     /* stored norm weights of the trunk include the +1 */
    bool mtp_norms_shifted; /* those of the MTP layer do */
    bool has_mtp;
    bool mtp_basis; /* hidden rows are in another basis than the MTP layer works in: it has to_plain,
                       plain_norm, to_basis, see doc/formats/fold.md */
    bool tied;      /* the head is the embedding */
    /* Matrix of `module` ("layers.3.mlp.up_proj"): any format, exactly [n_out][n_in]. Memory stays with the
     * source. */
    esp_status (*matrix)(void *ctx, enum esp_part part, const char *module, uint32_t n_out, uint32_t n_in,
                         struct esp_weight *out, esp_error *err);
    /* Exactly n values of tensor `name` ("norm.weight"), whatever its shape, as f32 in stored order. */
    esp_status (*vector)(void *ctx, enum esp_part part, const char *name, uint32_t n, float *out,
                         esp_error *err);
    /* w, a matrix got from here, will not be read again: its memory may go. NULL: nothing to do. */
    void (*release)(void *ctx, const struct esp_weight *w);
    void (*close)(struct esp_source *s); /* frees ctx and s */
};

/* Over an open checkpoint, which must outlive the source. */
esp_status esp_source_checkpoint(struct esp_source **out, struct esp_checkpoint *c, esp_error *err);
/* SHAPES: matrices have their sizes but no bytes, for plans. SMALL_PAGES: weights that are made in memory
 * lie in no huge pages. */
enum esp_source_kind { ESP_SOURCE_WEIGHTS, ESP_SOURCE_SMALL_PAGES, ESP_SOURCE_SHAPES };
/* What a map of memory for matrices of that kind asks for. */
static inline enum esp_huge esp_source_huge(enum esp_source_kind k)
{
    return k == ESP_SOURCE_SMALL_PAGES ? ESP_HUGE_OFF : ESP_HUGE_AUTO;
}
/*
 * Random weights of one format in memory; affine formats use groups of `group`, bf16 scales;
 * trellis formats are those of the MLPs, beside affine matrices of 4 bits.
 */
esp_status esp_source_random(struct esp_source **out, enum esp_format_id format, uint32_t group, bool tied,
                             enum esp_source_kind kind, uint64_t seed, esp_error *err);
/*
 * Over inner, which it closes with itself once it was made: trellis matrices come out as affine ones of 8
 * bits in memory of its own, groups of 64 inputs (32 where 64 does not divide them), f16 scales; others as
 * they are. n_thread threads work on each, while matrix() runs.
 */
esp_status esp_source_expand(struct esp_source **out, struct esp_source *inner, enum esp_source_kind kind,
                             uint32_t n_thread, esp_error *err);
/* How many matrices of an expanding source were trellis until now. */
uint32_t esp_source_expanded(const struct esp_source *s);

#endif
