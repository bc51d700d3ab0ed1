/*
 * How far models are from a base model on the same tokens: KL divergence of next-token distributions,
 * agreement of the most likely token, negative log-likelihood. Models run in lock step, so that only a few
 * rows of logits are ever held.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_COMPARE_H
#define ESP_QUANTIZE_COMPARE_H

#include "espalier/quantize.h"

#include "quantize/hessian.h"
#include "quantize/progress.h"
#include "quantize/runner.h"

struct esp_compare_job {
    struct esp_runner *base;
    struct esp_runner *other; /* [n_other] of the base's vocabulary, opened for windows of the longest list */
    size_t n_other;
    const struct esp_token_lists *text;
    const struct esp_progress_to *progress;
    const char *item; /* for progress */
};
/* out [n_other]. ESP_ENUMERIC for logits that are not finite. */
esp_status esp_compare_run(const struct esp_compare_job *job, esp_comparison *out, esp_error *err);

#endif
