/*
 * Code points that newer Unicode versions treat in another way; see pretokenize_tables.c.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TEXT_PRETOKENIZE_TABLES_H
#define ESP_TEXT_PRETOKENIZE_TABLES_H

#include <stdbool.h>
#include <stdint.h>

struct esp_cp_range {
    uint32_t first, last; /* {0, 0} ends a list */
};

extern const struct esp_cp_range esp_new_letters[];
extern const struct esp_cp_range esp_new_marks[];
extern const struct esp_cp_range esp_new_numbers[];
extern const struct esp_cp_range esp_new_digits[];
/* Characters that the normaliser leaves alone; sorted. */
extern const struct esp_cp_range esp_norm_unknown[];

#endif
