/*
 * What a MODEL argument means: a folder with config.json, or a snapshot in the Hub cache that other tools
 * fill.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_MODEL_FIND_H
#define ESP_PROGRAM_MODEL_FIND_H

#include <stdbool.h>

#include "base/strbuf.h"
#include "base/status.h"

/*
 * Path of the model in *out (esp_free). ESP_ENOTFOUND when nothing matches, with what was tried, or when
 * several do, with their names.
 */
esp_status esp_model_find(char **out, const char *name, esp_error *err);
/* Whether name is exactly a model's: a folder with config.json, or "org/name[@revision]" in the Hub cache. */
bool esp_model_is(const char *name);
/* Names of the models in the Hub cache, one a line. */
void esp_model_list(struct esp_strbuf *out);

#endif
