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
#endif
