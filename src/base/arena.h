/*
 * Arena: many small allocations with one lifetime and one stated maximum. Memory is zeroed and 16-byte
 * aligned. Blocks double in size, so an arena costs O(log n) mallocs; reset keeps the blocks for the next
 * round.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_ARENA_H
#define ESP_BASE_ARENA_H

#include <stddef.h>

struct esp_arena;

/* A new arena that never holds more than max_bytes of user data, or NULL when there is no memory. */
struct esp_arena *esp_arena_create(size_t max_bytes);
void esp_arena_destroy(struct esp_arena *a);

/* Zeroed bytes, or NULL when malloc failed or max_bytes would be passed. */
void *esp_arena_alloc(struct esp_arena *a, size_t size);
void *esp_arena_alloc_array(struct esp_arena *a, size_t n, size_t size);
/* Copy of s[0..len) with a final zero. */
char *esp_arena_strndup(struct esp_arena *a, const char *s, size_t len);

/* Forget every allocation, keep the blocks. */
void esp_arena_reset(struct esp_arena *a);
/* Bytes handed out since the last reset, and bytes taken from malloc. */
size_t esp_arena_used(const struct esp_arena *a);
size_t esp_arena_reserved(const struct esp_arena *a);

#endif
