/*
 * The one place that calls malloc. Everything else takes memory from an arena, a fixed pool, or these
 * wrappers, so that a test can make the n-th allocation fail and so that sizes are checked before they are
 * multiplied.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_MEM_H
#define ESP_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed memory, or NULL. size 0 gives a valid pointer. Freed by esp_free. */
void *esp_alloc(size_t size);
void *esp_alloc_array(size_t n, size_t size);
/* Grow or shrink; the old block stays valid when NULL is returned. New bytes are not zeroed. */
void *esp_realloc(void *p, size_t size);
void esp_free(void *p);
/* Copy of s[0..len) with a final zero, or NULL. */
char *esp_strndup(const char *s, size_t len);

/* Zeroed, aligned to align (a power of two >= 64), in whole pages when large. Freed by esp_free_aligned. */
void *esp_alloc_aligned(size_t size, size_t align);
void esp_free_aligned(void *p);

/* *out = a*b or a+b; false and untouched on overflow. */
bool esp_mul_size(size_t *out, size_t a, size_t b);
bool esp_add_size(size_t *out, size_t a, size_t b);

/*
 * Fault injection for tests: the allocation number n from now (0 = the next) fails once; a negative n
 * switches it off. Returns how many allocations were made since the last call. Not thread-safe; only for
 * single-threaded tests.
 */
uint64_t esp_mem_fail_at(int64_t n);

#endif
