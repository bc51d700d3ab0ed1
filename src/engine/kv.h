/*
 * How an engine keeps keys and values: a scheme by name for every attention layer, or a file that says it
 * layer by layer (doc/engine.md, "Keys and values").
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_KV_H
#define ESP_ENGINE_KV_H

#include "graph/layout.h"
#include "io/config.h"

/*
 * Set l->kv, and l->layers[].scheme where coded, from name: what esp_kv_parse() takes, NULL for bf16, or the
 * path of a kv_config.json (it has a slash or ends in ".json"). ESP_EINVAL for other names, and for files
 * that name a layer twice, none, or a recurrent one; ESP_EUNSUPPORTED when heads do not fit; errors of
 * reading the file.
 */
esp_status esp_kv_choose(struct esp_layout *l, const struct esp_config *config, const char *name,
                         esp_error *err);
/* Whether name would be read as a file. */
bool esp_kv_is_file(const char *name);
/*
 * What l's keys and values are, as text that differs whenever bytes may: "bf16", "turbo:k8v3", or for layers
 * that differ "mixed-" and a hash.
 */
void esp_kv_describe(const struct esp_layout *l, char out[ESP_KV_NAME]);

#endif
