/*
 * What the tensors of a checkpoint are called, decided once: tools put different prefixes in front of the
 * same names, and some add 1 to the norm weights and transpose the convolution on the way. Callers ask for a
 * part and the name inside that part ("layers.3.mlp.up_proj.weight") and are told the layout. Source: qwen3_5
 * checkpoints, doc/formats.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_IO_NAMES_H
#define ESP_IO_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "io/checkpoint.h"

enum esp_part {
    ESP_PART_TEXT,   /* "embed_tokens.weight", "norm.weight", "layers.3. ..." */
    ESP_PART_HEAD,   /* "weight", "scales", "biases" of lm_head */
    ESP_PART_MTP,    /* "fc.weight", "norm.weight", "layers.0. ..." */
    ESP_PART_VISION, /* "patch_embed.proj.weight", "blocks.0. ...", "merger. ..." */
    ESP_PART_COUNT
};

enum esp_conv_layout {
    ESP_CONV_NONE, /* no conv1d weight in that part */
    ESP_CONV_C1K,  /* [C,1,K] as trained: raw */
    ESP_CONV_CK1   /* [C,K,1]: passed through a converter */
};

struct esp_names {
    const struct esp_tensor_set
        *set[ESP_PART_COUNT];           /* where the part lives; NULL when the checkpoint lacks it */
    const char *prefix[ESP_PART_COUNT]; /* with its dot, "" for bare keys; static strings */
    enum esp_conv_layout conv;
    bool norms_shifted;     /* trunk: stored norm weights already include the +1 (all but linear_attn.norm) */
    bool mtp_norms_shifted; /* the same for the MTP layer */
    bool tied;              /* the head is the embedding; when false the head part exists */
    const char *norms_why;  /* the evidence used, for reports: "conv1d shape", "metadata", "prefix" */
    const char *mtp_norms_why;
};

/*
 * Decide. Prefixes are tried in this order, the first that has tensors wins and another one present is a
 * warning: text    "model.language_model." "language_model.model." "model." "" head    "lm_head."
 * "language_model.lm_head." "model.language_model.lm_head." vision  "model.visual." "visual." "vision_tower."
 * "language_model.vision_tower." MTP     "mtp." "language_model.mtp." "model.mtp." in the main files, then
 * those and "" in mtp*.safetensors
 *
 * Norms. A metadata entry espalier.norm_weights (espalier.mtp_norm_weights for MTP) of "gamma" or "gamma-1"
 * in the part's files decides; a config key norm_weights beside it likewise. Else the trunk is raw exactly if
 * a conv1d.weight has a last dimension other than 1, and files that disagree among themselves are refused.
 * Trunks without convolution or with a one-tap one go by prefix ("language_model." is converted), with a
 * warning. MTP never follows the trunk: "mtp." and "model.mtp." are raw, "language_model.mtp." and bare keys
 * are shifted. When the mean norm weights of trunk and MTP then differ by more than 0.5, a warning says so.
 *
 * Tied head. A head tensor present: it is used, unless its bytes equal the embedding's or the config says
 * tied and its shape cannot be the head's; then tied. With tied in the config and a different head present
 * there is a warning. None present: the config (top level before text_config) must say tied, else
 * ESP_EFORMAT.
 *
 * ESP_EFORMAT also when no text prefix fits. Warnings are appended to c->warnings.
 */
esp_status esp_names_resolve(struct esp_names *out, struct esp_checkpoint *c, esp_error *err);

/* Like esp_names_resolve for a drafter folder: only the MTP part is looked for ("" prefix allowed in its main
 * files). */
esp_status esp_names_resolve_drafter(struct esp_names *out, struct esp_checkpoint *c, esp_error *err);

/* Tensor by part and printf-style name inside it; NULL when absent (also when the name is longer than 511
 * bytes). */
const struct esp_st_tensor *esp_names_find(const struct esp_names *n, enum esp_part part, const char *fmt,
                                           ...) __attribute__((format(printf, 3, 4)));
/* The same, but an absent tensor is ESP_ENOTFOUND with its full name, and a dtype without reader
 * ESP_EUNSUPPORTED. */
esp_status esp_names_need(const struct esp_st_tensor **out, const struct esp_names *n, enum esp_part part,
                          esp_error *err, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* "text", "head", "mtp", "vision" */
const char *esp_part_name(enum esp_part part);

#endif
