/*
 * A net on the CPU, run over lists of tokens from an empty state each: for calibration and for comparing
 * models. Exact f32 activations unless told otherwise.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_RUNNER_H
#define ESP_QUANTIZE_RUNNER_H

#include "model/net.h"
#include "state/state.h"

struct esp_runner {
    struct esp_net *net; /* borrowed, or owned when opened from a source */
    bool owns_net;
    struct esp_dev *dev;
    struct esp_state_pools *pools;
    struct esp_plan *plan;
    uint32_t n_vocab, max_tok;
    int32_t (*pos)[3];
    uint32_t *rows;
};

struct esp_runner_opts {
    enum esp_cpu_level level;
    uint32_t threads;         /* 0: one per core */
    uint32_t context;         /* longest list of tokens */
    uint32_t max_tok;         /* tokens of a pass; 0: 512 */
    bool act_auto;            /* activations as the engine has them by default */
    const char *kv;           /* cached keys and values; NULL: f32 */
    uint32_t kv_start;        /* first positions that a coded kv keeps exact */
    enum esp_recurrent state; /* how recurrent states are kept */
};

esp_status esp_runner_open(struct esp_runner *r, struct esp_net *net, const struct esp_runner_opts *o,
                           esp_error *err);
/* The same over a net of its own, made of config and src. */
esp_status esp_runner_open_source(struct esp_runner *r, const struct esp_config *config,
                                  const struct esp_source *src, const struct esp_runner_opts *o,
                                  esp_error *err);
void esp_runner_close(struct esp_runner *r); /* a zeroed one is fine */

/* Called with logits [n_row][n_vocab] behind tokens first .. first + n_row - 1 of the list. */
typedef esp_status (*esp_logits_fn)(void *user, uint32_t first, uint32_t n_row, const float *logits,
                                    esp_error *err);

/* What to take from a run; all may be NULL. */
struct esp_run_out {
    esp_tap_fn tap;
    esp_logits_fn logits;
    void *user;
    float *buffer; /* [max_tok][n_vocab], with logits */
};
/* One pass of at most max_tok tokens behind a state of r->pools. */
esp_status esp_runner_pass(struct esp_runner *r, struct esp_state *state, const int32_t *ids, uint32_t n,
                           const struct esp_run_out *out, esp_error *err);
/* A whole list from an empty state. */
esp_status esp_runner_run(struct esp_runner *r, const int32_t *ids, uint32_t n, const struct esp_run_out *out,
                          esp_error *err);

#endif
