/*
 * What each layer of a model keeps of a text: keys and values, recurrent states.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_INSPECT_MEMORY_H
#define ESP_PROGRAM_INSPECT_MEMORY_H

#include <jansson.h>

#include "graph/layout.h"
#include "io/config.h"

#include "program/options.h"

/* The layout of config's layers as --kv, --kv-start and --state say; what an engine refuses is refused. */
esp_status esp_inspect_layout(struct esp_layout *out, const struct esp_config *config,
                              const struct esp_options *o, esp_error *err);
/* It as a table, and as a new JSON object. */
void esp_inspect_memory_print(const struct esp_layout *l, const struct esp_config *config);
json_t *esp_inspect_memory_json(const struct esp_layout *l, const struct esp_config *config);

#endif
