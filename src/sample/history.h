/*
 * A row's tokens and, for penalties, how often each id occurs in three windows of them. Counts move with
 * every token in and out, so a draw costs one visit per distinct id whatever the length; taking tokens back
 * is the same step reversed.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SAMPLE_HISTORY_H
#define ESP_SAMPLE_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum esp_sample_history_window {
    ESP_WINDOW_REPETITION,
    ESP_WINDOW_PRESENCE,
    ESP_WINDOW_FREQUENCY,
    ESP_WINDOW_COUNT
};

struct esp_sample_history_entry {
    uint32_t id;
    uint32_t count[ESP_WINDOW_COUNT]; /* not all 0 */
};

struct esp_sample_history {
    uint32_t *tokens; /* [cap] ids; the top bit marks a generated one */
    size_t len, cap, n_generated;
    size_t window[ESP_WINDOW_COUNT]; /* last N tokens, SIZE_MAX = all */
    uint32_t n_vocab;
    uint32_t *slot; /* [n_vocab] index into active + 1, 0 = none; NULL when nothing is counted */
    struct esp_sample_history_entry *active; /* ids that occur in some window, in no particular order */
    size_t n_active;
};

/* A history of at most cap tokens; counted says whether the windows are kept. Errors: ESP_ENOMEM. */
esp_status esp_sample_history_init(struct esp_sample_history *h, uint32_t n_vocab, size_t cap, bool counted,
                                   esp_error *err);
void esp_sample_history_clear(struct esp_sample_history *h);
size_t esp_sample_history_bytes(uint32_t n_vocab, size_t cap, bool counted);

/* Append, ids below n_vocab, all or nothing. Errors: ESP_EINVAL, ESP_ENOFIT. */
esp_status esp_sample_history_push(struct esp_sample_history *h, const uint32_t *ids, size_t n,
                                   bool generated, esp_error *err);
/* Remove the last n <= len tokens. */
void esp_sample_history_pop(struct esp_sample_history *h, size_t n);

#endif
