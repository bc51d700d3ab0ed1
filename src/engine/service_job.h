/*
 * A request inside the service: a copy of what was submitted, and the sequences that its choices became.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_SERVICE_JOB_H
#define ESP_ENGINE_SERVICE_JOB_H

#include <stdatomic.h>

#include "engine/service.h"

struct esp_service_job {
    struct esp_service_job *next;
    uint64_t id;
    struct esp_service_request r; /* its arrays are ours */
    esp_token *tokens;
    size_t *marks;
    esp_logit_bias *bias;
    atomic_bool cancel;
    /* The thread's own. */
    bool opened, sharing; /* sharing: choice 0 runs the prompt that the others will fork ... */
    bool ready;           /* ... and has */
    esp_seq *seqs[ESP_SERVICE_MAX_CHOICES];
    bool ended[ESP_SERVICE_MAX_CHOICES];
    uint32_t n_ended;
    esp_usage prompt_usage;
};

/* Copy r with its arrays; nothing is opened. n_choice 0 becomes 1. ESP_ENOMEM. */
esp_status esp_service_job_make(struct esp_service_job **out, const struct esp_service_request *r,
                                esp_error *err);
/* Its sequences must be closed. NULL is fine. */
void esp_service_job_free(struct esp_service_job *j);

#endif
