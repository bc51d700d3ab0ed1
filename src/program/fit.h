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

struct esp_fit_speed {
    double prefill_tps, decode_tps; /* one sequence */
    bool measured;                  /* of this model; else what the machine's limits allow */
    const char *source;             /* the file of records; NULL: nothing is known */
};

struct esp_fit {
    const struct esp_session *session; /* its engine_opts are what is asked about */
    struct esp_machine machine;
    bool other_machine, has_records; /* what --machine gave: a machine to fit into, or records of speed */
    esp_memory_plan plan;            /* of those options */
    uint32_t ctx, rows;
    uint64_t budget;
    uint32_t max_ctx_1, max_ctx_rows, max_rows_4096, max_rows; /* esp_fit_search() */
    struct esp_fit_speed speed;                                /* esp_fit_predict() */
};

/* Positions in the pool when every row may fill its context; pages hold 256. */
uint64_t esp_fit_tokens(uint32_t ctx, uint32_t rows);
/* Fill in the longest contexts and most rows; everything above them must be there. */
esp_status esp_fit_search(struct esp_fit *f, esp_error *err);
/* Fill in the speed, from a file of records (bench --save). ESP_EFORMAT: there is none in it. */
esp_status esp_fit_predict(struct esp_fit *f, const char *path, esp_error *err);
/* The speed as a new JSON object; NULL when nothing is known. */
json_t *esp_fit_predicted(const struct esp_fit *f);
/* Whether the plan fits into the budget, and what it needs beside a device into the machine's memory. */
bool esp_fit_fits(const struct esp_fit *f);
/* Changes of flags that would lower the plan, with what they gain: a JSON array. */
json_t *esp_fit_suggestions(const struct esp_fit *f);
/* The report as a new JSON object. */
json_t *esp_fit_document(const struct esp_fit *f);

#endif
