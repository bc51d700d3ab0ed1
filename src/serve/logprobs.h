/*
 * Log-probabilities of tokens as JSON.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_LOGPROBS_H
#define ESP_SERVE_LOGPROBS_H

#include <jansson.h>

struct esp_job;
struct esp_service_event;
struct esp_token_names; /* texts and bytes of tokens that have been told */

/* {"token", "logprob", "bytes", "token_id", "top_logprobs"} of an event; names are kept at the server. */
json_t *esp_logprob_row(const struct esp_job *j, const struct esp_service_event *x);
void esp_token_names_close(struct esp_token_names *n); /* NULL is a no-op */

#endif
