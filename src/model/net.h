/*
 * A loaded model: its weights bound to fields, its tape recorded. An architecture is one file with one row in
 * the registry; nothing outside this room knows layer order or tensor names.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_MODEL_NET_H
#define ESP_MODEL_NET_H

#include "base/arena.h"
#include "graph/layout.h"
#include "graph/tape.h"
#include "io/config.h"

#include "model/source.h"

struct esp_net {
    struct esp_arena *arena;  /* everything below but the matrices' bytes */
    struct esp_config config; /* its JSON parts are not kept */
    struct esp_tape tape;     /* the trunk */
    struct esp_tape mtp;      /* the draft layer; n_op 0: the model has none, or it was not wanted */
    struct esp_tape mtp_keys; /* its keys and values alone, without logits */
    uint32_t mtp_layer;       /* attention layer of the cache that the draft layer uses: the last one */
    struct esp_layout layout; /* kv type is the engine's to set, then esp_layout_finish() */
    const struct esp_weight **weights; /* every matrix once; a tied head is the embedding */
    const char **weight_names;         /* their module paths, such as "layers.3.mlp.up_proj" */
    uint32_t n_weight, cap_weight;
    uint32_t n_trunk_weight; /* the first ones; the rest is the draft layer's */
    uint64_t n_params;       /* elements of the trunk's matrices and vectors */
    uint64_t vector_bytes;   /* f32 copies of norms, gates and convolutions */
};

struct esp_arch_ops {
    enum esp_arch arch;
    /* Bind weights from src and record the tape into net, whose arena and config are set. */
    esp_status (*load)(struct esp_net *net, const struct esp_source *src, esp_error *err);
};

/*
 * Load the architecture that config names. The matrices' memory stays with src, which must outlive the net.
 * ESP_EUNSUPPORTED names an architecture that is read but cannot be run.
 */
esp_status esp_net_load(struct esp_net **out, const struct esp_config *config, const struct esp_source *src,
                        esp_error *err);
void esp_net_close(struct esp_net *net); /* NULL is fine */

/* Bytes of the trunk's matrices as stored, and of the draft layer's own. */
uint64_t esp_net_weight_bytes(const struct esp_net *net);
uint64_t esp_net_mtp_bytes(const struct esp_net *net);
/* "bf16", "affine4 g64, bf16": formats by bytes, most first. */
void esp_net_formats(const struct esp_net *net, char *out, size_t cap);

/* Config of a published shape ("qwen3.5-4b"); ESP_ENOTFOUND lists them. */
esp_status esp_shape_config(struct esp_config *out, const char *name, esp_error *err);
/* Name of the published shape that c has, or NULL. */
const char *esp_shape_of(const struct esp_config *c);

/* For architecture files: fetch into the arena, count, and remember the first failure. */
struct esp_binder {
    struct esp_net *net;
    const struct esp_source *src;
    enum esp_part part;
    char prefix[64]; /* put before every name, such as "layers.3." */
    esp_status status;
    esp_error *err;
};
const struct esp_weight *esp_bind_matrix(struct esp_binder *b, const char *module, uint32_t n_out,
                                         uint32_t n_in);
const float *esp_bind_vector(struct esp_binder *b, const char *name, uint32_t n);
/* A norm weight as gamma: 1 is added unless the source's norms are shifted already. */
const float *esp_bind_norm(struct esp_binder *b, const char *name, uint32_t n);

/* Rotation of config c as tape data; axis rule of interleaved mRoPE. NULL arrays when memory is out. */
struct esp_rope esp_net_rope(struct esp_arena *a, const struct esp_config *c);

extern const struct esp_arch_ops esp_arch_qwen35;

#endif
