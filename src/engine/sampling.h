/*
 * From what a sequence's options say about sampling to its sampler.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_SAMPLING_H
#define ESP_ENGINE_SAMPLING_H

#include "engine/engine.h"

/* The tokens that XTC leaves alone, into g->xtc_exempt: those that end a turn, and line ends. ESP_ENOMEM. */
esp_status esp_sampling_open(struct esp_engine *g, esp_error *err);
/* s->sampler for s->opts, whose lists are not needed afterwards. ESP_EINVAL, ESP_ENOMEM. */
esp_status esp_sampling_make(struct esp_seq *s, esp_error *err);

#endif
