/*
 * Why a prompt was not in the cache: compared with the texts that ran last.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_DIAGNOSE_H
#define ESP_SERVE_DIAGNOSE_H

#include "serve/job.h"

/* Note in j, whose prompt begins to run, how far the texts of the slots agree with it. */
void esp_diagnose(struct esp_job *j);
/* The turn of the prompt that position lies in; whether its first one is the system's. */
unsigned esp_diagnose_turn(const struct esp_job *j, size_t position);
bool esp_diagnose_system(const struct esp_job *j);

#endif
