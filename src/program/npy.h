/*
 * Token ids from a NumPy file: versions 1 to 3, little-endian int32 or int64, C order, one or two dimensions.
 * Everything else is refused by name.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_NPY_H
#define ESP_PROGRAM_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/map.h"
#include "base/status.h"

struct esp_npy {
    struct esp_map map;
    const uint8_t *data;
    uint32_t item; /* bytes of an element: 4 or 8 */
    uint32_t n_dim;
    size_t rows, cols; /* one dimension: rows is 1 */
};

/* Whether the file begins like a NumPy file; false also when it cannot be read. */
bool esp_npy_is(const char *path);
/* Errors: those of esp_map_open(); ESP_EFORMAT, ESP_EUNSUPPORTED with the fault. The file stays mapped. */
esp_status esp_npy_open(struct esp_npy *out, const char *path, esp_error *err);
void esp_npy_close(struct esp_npy *a); /* a zeroed one is fine */
/* Element i in C order. */
int64_t esp_npy_get(const struct esp_npy *a, size_t i);

#endif
