/*
 * What a run of verb eval keeps so that it can be interrupted: its samples, one line a finished item, and
 * beside them SAMPLES.state, which says what they are samples of and goes when all are there.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_EVAL_STATE_H
#define ESP_PROGRAM_EVAL_STATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/status.h"

struct esp_eval_state {
    const char *path; /* of the samples */
    char *state;      /* PATH.state; esp_free */
    FILE *samples;
    json_t *kept; /* finished items of the run before, in order; an empty array when there are none */
};

/*
 * Open path for samples of a run with these settings (an object; borrowed). With resume, the whole lines of
 * an interrupted run stay and are *out's kept; what follows them is cut off. ESP_ESTATE: an interrupted run
 * is there and resume is not set, or it had other settings. *out must be zeroed; close it in any case.
 */
esp_status esp_eval_state_open(struct esp_eval_state *out, const char *path, const json_t *settings,
                               bool resume, esp_error *err);
/* Add a finished item. */
esp_status esp_eval_state_add(struct esp_eval_state *s, const json_t *item, esp_error *err);
/* All items are there: the state goes. */
esp_status esp_eval_state_finish(struct esp_eval_state *s, esp_error *err);
void esp_eval_state_close(struct esp_eval_state *s);

#endif
