/*
 * The memory report: what a plan takes, what would fit, what would make it smaller. The verb fit prints it, a
 * server answers GET /fit with it.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_FIT_H
#define ESP_PROGRAM_FIT_H

#include <jansson.h>

#include "program/machine.h"
#include "program/session.h"

struct esp_fit {
    const struct esp_session *session; /* its engine_opts are what is asked about */
    struct esp_machine machine;
    esp_memory_plan plan; /* of those options */
    uint32_t ctx, rows;
    uint64_t budget;
    uint32_t max_ctx_1, max_ctx_rows, max_rows_4096, max_rows; /* esp_fit_search() */
};

/* Positions in the pool when every row may fill its context; pages hold 256. */
uint64_t esp_fit_tokens(uint32_t ctx, uint32_t rows);
/* Fill in the longest contexts and most rows; everything above them must be there. */
esp_status esp_fit_search(struct esp_fit *f, esp_error *err);
/* Whether the plan fits into the budget, and what it needs beside a device into the machine's memory. */
bool esp_fit_fits(const struct esp_fit *f);
/* Changes of flags that would lower the plan, with what they gain: a JSON array. */
json_t *esp_fit_suggestions(const struct esp_fit *f);
/* The report as a new JSON object. */
json_t *esp_fit_document(const struct esp_fit *f);

#endif
