/*
 * What becomes of every tensor of a checkpoint. Rules, in order: the recipe, --keep, the method's default,
 * and last whether the shape fits. What no rule quantizes keeps its bytes: embeddings, head, norms,
 * convolutions, in_proj_a and in_proj_b (errors of the gates add up in the recurrent state), A_log, dt_bias,
 * vision, MTP.
 *
 * The trellis method codes the MLPs; the attention and delta projections become affine of max(4, bits) bits,
 * as other readers of the format expect. A recipe may say otherwise.
 *
 * Sizes that do not fit: affine needs n_in to be a multiple of the group, trellis needs a multiple of 256
 * inputs (axis 1) or outputs (axis 0). A matrix that fits neither keeps its 16 bits and is listed.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_PLAN_H
#define ESP_QUANTIZE_PLAN_H

#include <jansson.h>

#include "espalier/quantize.h"

#include "io/names.h"
#include "quantize/fold.h"
#include "quantize/hessian.h"

enum esp_quantize_method {
    ESP_METHOD_KEEP,
    ESP_METHOD_RTN,
    ESP_METHOD_GPTQ,
    ESP_METHOD_TRELLIS,
    ESP_METHOD_COUNT
};

struct esp_choice {
    enum esp_quantize_method method;
    uint32_t bits, group, axis; /* group: affine; axis: trellis */
    enum esp_dtype dtype;       /* KEEP: stored type; NONE: as it is */
};

struct esp_plan_row {
    const struct esp_st_tensor *t; /* the head of a tied model under a fold: the embedding. Made for the MTP
                                      layer: a shape without data */
    enum esp_part part;            /* ESP_PART_COUNT: none of ours */
    char name[160];                /* inside the part: "layers.3.mlp.up_proj.weight" */
    char stored[256];              /* in the output */
    bool matrix;                   /* two dimensions, ".weight" */
    bool layer_matrix;             /* a matrix that the rules may quantize; layer and site are set */
    uint32_t layer;
    enum esp_site site;
    uint32_t n_out, n_in;
    struct esp_choice choice;
    bool made;                  /* the source has no such tensor */
    enum esp_fold_made made_as; /* of the MTP part */
    bool fixed;                 /* named by the recipe: not for the allocation of bits */
    const char *why;            /* static text, for kept layer matrices */
    bool computed;              /* its bytes are not the source's */
    double loss;                /* relative; < 0: not measured */
};

struct esp_plan_list {
    struct esp_plan_row *rows;
    uint32_t n;
    bool makes_head;            /* one row is a head that the source shares with the embedding */
    struct esp_st_tensor *made; /* of rows that the fold makes for the MTP layer */
};

struct esp_plan_input {
    const struct esp_checkpoint *ck;
    const struct esp_names *names;
    const struct esp_fold *fold;
    const esp_quantize_opts *opts;
    enum esp_quantize_method method;
    uint32_t bits, group;
};

const char *esp_method_name(enum esp_quantize_method m);
esp_status esp_method_parse(enum esp_quantize_method *out, const char *name, esp_error *err);

esp_status esp_plan_make(struct esp_plan_list *out, const struct esp_plan_input *in, esp_error *err);
void esp_plan_free(struct esp_plan_list *p);

/* Stored tensors of a row: weight and, when quantized, scales and biases. */
struct esp_plane {
    char name[272];
    enum esp_dtype dtype;
    uint32_t n_dim;
    uint64_t shape[ESP_LIMIT_DIMS];
    size_t bytes;
};
uint32_t esp_plan_planes(const struct esp_plan_row *r, struct esp_plane out[3]);
uint64_t esp_plan_row_bytes(const struct esp_plan_row *r);
/* Bits per weight of a choice for a shape, everything included. */
double esp_choice_bits(const struct esp_choice *c, uint32_t n_out, uint32_t n_in);
/* Whether the choice fits the shape; sets the axis of trellis choices. */
bool esp_choice_fits(struct esp_choice *c, const char *name, uint32_t n_out, uint32_t n_in);
/* The affine weight (without planes) that a choice describes; scales are bf16. */
struct esp_weight esp_choice_weight(const struct esp_choice *c, uint32_t n_out, uint32_t n_in);

/* The plan as a recipe; a new reference, NULL without memory. */
json_t *esp_plan_recipe(const struct esp_plan_list *p, bool folded, uint64_t seed);

#endif
