/*
 * What public engine and sequence handles hold. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_ENGINE_H
#define ESP_ENGINE_ENGINE_H

#include "engine/model.h"
#include "sample/sampler.h"
#include "state/state.h"

enum { MAX_SEQS = 1024, MAX_TOP = ESP_SAMPLE_MAX_TOP };

struct esp_seq {
    struct esp_engine *engine;
    struct esp_seq *next;       /* of the engine's list, in order of opening */
    struct esp_state *state;
    struct esp_sampler *sampler;
    esp_seq_opts opts;          /* bias copied into the sampler */
    int32_t *tokens;            /* [context] appended and emitted */
    uint32_t n_token;
    bool armed;
    size_t n_left;              /* tokens that may still be emitted */
    /* Of the step being built. */
    uint32_t step_n;            /* tokens in it, 0: not part */
    uint32_t step_row;          /* row of logits, NO_ROW: none wanted */
};
#define NO_ROW UINT32_MAX

struct pending_event { /* of a finished step, not yet handed out */
    esp_event event;
    esp_logprob top[MAX_TOP];
    char message[ESP_ERROR_MESSAGE_BYTES];
};

struct esp_engine {
    struct esp_model *model;
    struct esp_dev *dev;
    struct esp_state_pools *pools;
    struct esp_plan *plan;
    esp_engine_opts opts;       /* every default resolved */
    struct esp_seq *seqs;
    uint32_t n_seq;
    struct esp_sample_work *sample_work;
    /* A step's arrays, allocated once. */
    int32_t *ids;               /* [chunk] */
    int32_t (*pos)[3];
    uint32_t *out_rows;
    struct esp_batch_seq *batch_seqs; /* [max_seqs] */
    struct esp_seq **batch_owner;
    float *logits;              /* [max_seqs][n_vocab] */
    struct pending_event *events; /* [2 * max_seqs] */
    uint32_t n_event, first_event;
    uint32_t turn;              /* rotates which sequence's prompt goes first */
    esp_stats stats;
};

/* Options with every default filled in, checked. */
esp_status esp_engine_resolve(const struct esp_model *m, const esp_engine_opts *in, esp_engine_opts *out, esp_error *err);
/* What follows from resolved options: layout, pool sizes, plan limits. */
struct esp_engine_shape {
    struct esp_layout layout;
    struct esp_pool_sizes pools;
    struct esp_plan_opts plan;
};
esp_status esp_engine_shape(const struct esp_model *m, const esp_engine_opts *o, struct esp_engine_shape *out,
                            esp_error *err);
/* The device that resolved options name. */
esp_status esp_engine_device(struct esp_dev **out, const struct esp_model *m, const esp_engine_opts *o, esp_error *err);
/* Make room for one slot by dropping a snapshot of some idle sequence; false when there is none. */
bool esp_engine_reclaim(struct esp_engine *g);
/* Begin a pass, dropping snapshots when slots run out. */
esp_status esp_engine_begin(struct esp_seq *s, uint32_t n, struct esp_batch_seq *out, esp_error *err);

#endif
