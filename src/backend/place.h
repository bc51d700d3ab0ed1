/*
 * Where a tape's values lie in a plan's scratch memory. The same for every backend.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_PLACE_H
#define ESP_BACKEND_PLACE_H

#include "backend/backend.h"

/* Bytes of v at the plan's limits, a multiple of 64. */
size_t esp_value_bytes(const struct esp_value *v, const struct esp_plan_opts *o);
/* Fill off[t->n_value] with byte offsets so that values alive at the same time do not overlap; returns the
 * bytes in all. */
size_t esp_place_values(const struct esp_tape *t, const struct esp_plan_opts *o, size_t *off);

#endif
