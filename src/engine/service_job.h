/*
 * A request of a service while it waits and runs: copies of what the caller gave, and the sequences of its
 * choices. Private to the service.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_SERVICE_JOB_H
#define ESP_ENGINE_SERVICE_JOB_H

#include <stdatomic.h>

#include "engine/engine.h"
#include "engine/service.h"

struct esp_service_job {
    struct esp_service_job *next;
    uint64_t id;
    double at;                    /* when it was taken */
    struct esp_service_request r; /* its arrays are ours */
    esp_token *tokens;
    size_t *marks;
    esp_logit_bias *bias;
    uint64_t *breakers;
    struct esp_constraint constraint; /* until a sequence has it; all zero: none */
    atomic_uint cancel;               /* bit per choice */
    /* The thread's own. */
    bool opened, sharing; /* sharing: choice 0 runs the prompt that the others will fork ... */
    bool ready;           /* ... and has */
    esp_seq *seqs[ESP_SERVICE_MAX_CHOICES];
    bool ended[ESP_SERVICE_MAX_CHOICES];
    uint32_t n_ended;
    esp_usage prompt_usage;
    struct esp_seq_pin *pins;
    bool scoring;      /* the prompt's log-probabilities are being made */
    uint32_t n_scored; /* tokens of the prompt that ran for them */
    float *logits;     /* [ESP_SERVICE_SCORE][n_vocab] */
    double told_at;    /* of the last progress event; 0: none */
};
enum { ESP_SERVICE_SCORE = 16 }; /* tokens of a prompt that are scored between two steps */

/* A copy of r; ESP_ENOMEM. The constraint belongs to the job then: clear j->constraint to keep it. */
esp_status esp_service_job_make(struct esp_service_job **out, const struct esp_service_request *r,
                                esp_error *err);
/* Its sequences are closed. NULL is a no-op. */
void esp_service_job_free(struct esp_service_job *j);
/* Open choice 0 and generate: its answer, or with several choices the prompt alone. On an error the job has
 * to be ended; what was opened is in seqs. */
esp_status esp_service_job_open(struct esp_service_job *j, esp_engine *g, esp_error *err);
/*
 * Run the next part of a prompt to be scored; its tokens [*first, *first + *n) now have log-probabilities by
 * the rows of j->logits. With the last part the generation begins.
 * After ESP_ENOFIT the same part can be tried again while j->scoring stands.
 */
esp_status esp_service_job_score(struct esp_service_job *j, uint32_t *first, uint32_t *n, esp_error *err);
/* The prompt has run: every other choice becomes a fork that shares its pages, and all generate. */
esp_status esp_service_job_fork(struct esp_service_job *j, esp_error *err);

#endif
