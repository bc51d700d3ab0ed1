/*
 * An adapter bound to a model: every pair checked against its base weight, converted to f32 in the internal
 * layout.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_MODEL_LORA_H
#define ESP_MODEL_LORA_H

#include "graph/lora.h"
#include "model/net.h"

struct esp_lora {
    struct esp_arena *arena;
    struct esp_lora_set set;
    uint64_t bytes;    /* resident */
    uint64_t revision; /* of the file, mixed with the scale */
    uint32_t n_module; /* pairs that apply; those with scale 0 are not among them */
    struct esp_warnings warnings;
};

/*
 * Load the adapter folder dir for net; scale multiplies every module's own (1: as trained). All or nothing:
 * ESP_EFORMAT lists every module that the model lacks or whose shapes do not fit, with both shapes;
 * ESP_ENUMERIC for values that are not finite. Other errors: io/adapter.h. The net must outlive the adapter.
 */
esp_status esp_lora_load(struct esp_lora **out, const struct esp_net *net, const char *dir, float scale,
                         esp_error *err);
void esp_lora_close(struct esp_lora *l); /* NULL is fine */

#endif
