/*
 * Low-rank adapters as plain data: y += scale * B (A x) beside a base weight. A set is one adapter; rows of a
 * batch name the sets that apply to them. Nothing is merged into base weights, so rows with different sets
 * share a step.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_GRAPH_LORA_H
#define ESP_GRAPH_LORA_H

#include "formats/format.h"

enum { ESP_LORA_STACK = 4 }; /* adapters that one row may stack */

struct esp_lora_pair {
    const struct esp_weight *base; /* the weight it stands beside, by address */
    struct esp_weight a;           /* [rank][n_in] f32 */
    struct esp_weight b;           /* [n_out][rank] f32 */
    float scale;                   /* never 0: such pairs are left out */
};

struct esp_lora_set {
    const struct esp_lora_pair *pairs; /* ascending by base address */
    uint32_t n;
    uint32_t max_rank;
    uint64_t revision; /* of its values: sets with the same one are the same */
};

/* The pair of set beside base, or NULL. */
const struct esp_lora_pair *esp_lora_find(const struct esp_lora_set *set, const struct esp_weight *base);

#endif
