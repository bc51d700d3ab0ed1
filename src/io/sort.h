/*
 * Sorting an array of indices by what they stand for. A bottom-up merge sort: n log n whatever the input,
 * which the C library does not promise, and no recursion; names in files may have been chosen to hurt.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_IO_SORT_H
#define ESP_IO_SORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Negative, 0 or positive as for strcmp. */
typedef int (*esp_sort_fn)(const void *ctx, uint32_t a, uint32_t b);

/* Sort idx[0..n), stable. False when there is no memory for n more indices; idx is then unchanged. */
bool esp_sort_index(uint32_t *idx, size_t n, esp_sort_fn cmp, const void *ctx);
/* A new array holding 0..n-1, sorted (esp_free), or NULL. */
uint32_t *esp_sort_new(size_t n, esp_sort_fn cmp, const void *ctx);

#endif
