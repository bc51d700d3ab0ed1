/*
 * The one .npy form the tests need: little-endian int32, two dimensions, C order.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_NPY_H
#define ESP_TESTS_NPY_H

#include <stdint.h>

/* [*rows][*cols] values (free()), or a failed test. */
int32_t *test_npy(const char *path, uint32_t *rows, uint32_t *cols);

#endif
