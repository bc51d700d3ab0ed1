/*
 * What every backend refuses before it runs a batch.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CHECK_H
#define ESP_BACKEND_CHECK_H

#include "backend/backend.h"

/* ESP_EINVAL or ESP_ENOFIT when b does not fit the plan's limits, the pools, or the tape's vocabulary. */
esp_status esp_batch_check(const struct esp_batch *b, const struct esp_tape *t, const struct esp_pools *p,
                           const struct esp_plan_opts *o, esp_error *err);

#endif
