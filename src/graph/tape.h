/*
 * A model's arithmetic as a straight list of ops over values, recorded once. Plain data: no device, no
 * branch, no sort. A value has a width and a symbolic number of rows; it is written by one op and read by
 * later ones. Recording returns values, so a model file reads like the formula. Failures are remembered and
 * reported by esp_tape_finish().
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_GRAPH_TAPE_H
#define ESP_GRAPH_TAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "formats/format.h"

enum esp_op_kind {
#define X(NAME, name) ESP_OP_##NAME,
#include "graph/ops.def"
#undef X
    ESP_OP_COUNT
};

const char *esp_op_name(enum esp_op_kind kind);

enum esp_rows { ESP_ROWS_TOKEN, ESP_ROWS_OUTPUT, ESP_ROWS_COUNT };

typedef uint32_t esp_val; /* index of a value */
#define ESP_NO_VAL UINT32_MAX

struct esp_value {
    enum esp_rows rows;
    uint32_t width;    /* f32 elements in a row */
    uint32_t born;     /* op that writes it */
    uint32_t last_use; /* last op that reads it; born when none does */
    const char *name;  /* for taps, NULL when unnamed */
};

struct esp_op {
    enum esp_op_kind kind;
    esp_val a, b, out; /* ESP_NO_VAL where the op has none */
    const struct esp_weight *w;
    const float *vec0, *vec1; /* small f32 parameters, see ops.def */
    uint32_t layer;           /* index among the layers of its kind: attention or delta */
    uint32_t n_head, stride;  /* per-head ops */
    float eps, scale;
};

struct esp_rope { /* rotation of the first 2 * n_half elements of a head */
    uint32_t n_half;
    const float *freq;   /* [n_half] angle per position */
    const uint8_t *axis; /* [n_half] which of the three positions turns it */
    float mscale;        /* factor on cosine and sine, 1 without YaRN */
};

struct esp_tape {
    struct esp_arena *arena; /* holds everything below */
    struct esp_op *ops;
    uint32_t n_op, cap_op;
    struct esp_value *values;
    uint32_t n_value, cap_value;
    uint32_t n_vocab; /* width of the logits */
    struct esp_rope rope;
    bool failed; /* out of memory, or a shape did not fit; fault says which */
    char fault[160];
};

/* Start an empty tape whose memory comes from arena. */
void esp_tape_init(struct esp_tape *t, struct esp_arena *arena);
/* ESP_EINVAL with the first fault of recording, if any. */
esp_status esp_tape_finish(struct esp_tape *t, esp_error *err);

esp_val t_embed(struct esp_tape *t, const struct esp_weight *w);
/* Rows of `width` that the batch brings (esp_batch.input). */
esp_val t_input(struct esp_tape *t, uint32_t width);
esp_val t_concat(struct esp_tape *t, esp_val a, esp_val b);
esp_val t_rmsnorm(struct esp_tape *t, esp_val x, const float *gamma, float eps);
esp_val t_linear(struct esp_tape *t, esp_val x, const struct esp_weight *w);
esp_val t_add(struct esp_tape *t, esp_val a, esp_val b);
esp_val t_head_rope(struct esp_tape *t, esp_val x, const float *gamma, float eps, uint32_t n_head,
                    uint32_t stride, uint32_t head_dim, float scale);
void t_kv_append(struct esp_tape *t, esp_val k, esp_val v, uint32_t layer);
esp_val t_attend(struct esp_tape *t, esp_val q, uint32_t layer, uint32_t n_head);
esp_val t_head_gate(struct esp_tape *t, esp_val x, esp_val qg, uint32_t n_head, uint32_t stride);
esp_val t_conv(struct esp_tape *t, esp_val p, const float *w, uint32_t layer);
esp_val t_gates(struct esp_tape *t, esp_val b, esp_val a, const float *a_neg, const float *dt_bias);
esp_val t_delta(struct esp_tape *t, esp_val c, esp_val gates, uint32_t layer, uint32_t vh, uint32_t dv);
esp_val t_gated_norm(struct esp_tape *t, esp_val o, esp_val z, const float *gamma, float eps,
                     uint32_t n_head);
esp_val t_swiglu(struct esp_tape *t, esp_val gate, esp_val up);
esp_val t_gather(struct esp_tape *t, esp_val x);
/* Offer x as the hidden rows that drafters and tools may ask for (esp_batch.hidden). */
void t_hidden(struct esp_tape *t, esp_val x);
void t_logits(struct esp_tape *t, esp_val x, const struct esp_weight *head);
/* Name a value for taps; fmt takes one unsigned number. */
void t_name(struct esp_tape *t, esp_val v, const char *prefix, uint32_t i, const char *suffix);

#endif
