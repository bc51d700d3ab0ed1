/*
 * What ran lately, by the ids of answers: token ids with what a request was made of, so that a client can
 * ask why its next one found less in the cache than it hoped. In memory alone, the oldest go first. Private
 * to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_DIAG_H
#define ESP_SERVE_DIAG_H

#include "serve/job.h"

struct esp_diag;

/* At most so many, and at most 64 MiB of ids. 0: nothing is kept. */
esp_status esp_diag_open(struct esp_diag **out, uint32_t entries, esp_error *err);
void esp_diag_close(struct esp_diag *d);
void esp_diag_count(const struct esp_diag *d, uint64_t *entries, uint64_t *bytes);
/* The job has ended and its answer is out; its prompt is taken over. */
void esp_diag_keep(struct esp_diag *d, struct esp_job *j);
/* What of a chat tells where two of them differ. Any thread. */
void esp_diag_facts(struct esp_diag_facts *out, const json_t *messages, const json_t *tools, bool thinking);

enum esp_diag_what {
    ESP_DIAG_SAME,        /* the earlier text goes on, or is all there */
    ESP_DIAG_NOT_FOUND,   /* no such answer is remembered */
    ESP_DIAG_UNAVAILABLE, /* nothing is, or the prompt has not begun to run */
    ESP_DIAG_MODEL,       /* another adapter */
    ESP_DIAG_TOOLS,
    ESP_DIAG_SYSTEM,
    ESP_DIAG_THINKING,  /* switched, and that is where the texts part */
    ESP_DIAG_COMPACTED, /* fewer messages than before */
    ESP_DIAG_MESSAGES
};
struct esp_diag_result {
    enum esp_diag_what what;
    uint64_t same;   /* tokens in common from the beginning */
    uint64_t missed; /* tokens of the prompt that the earlier text would have covered had it not changed */
};
/* How the prompt of j follows the answer with this id. */
struct esp_diag_result esp_diag_compare(const struct esp_diag *d, const struct esp_job *j, const char *id);

#endif
