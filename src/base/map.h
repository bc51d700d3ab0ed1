/*
 * A file as bytes: mapped read-only when possible, and the size is fixed at open. What the name means is
 * checked here: only regular files are opened.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_MAP_H
#define ESP_BASE_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/huge.h"
#include "base/status.h"

struct esp_map {
    const uint8_t *data; /* NULL when size is 0 */
    size_t size;
    char *name; /* as given to open, for messages */
};

/* Map path read-only. Errors: ESP_ENOTFOUND, ESP_EIO, ESP_EFORMAT (not a regular file), ESP_ENOMEM. */
esp_status esp_map_open(struct esp_map *out, const char *path, esp_error *err);
/* The same bytes in memory of this process, read now. Errors as above. */
esp_status esp_map_read(struct esp_map *out, const char *path, esp_error *err);
void esp_map_close(struct esp_map *m); /* a zeroed or closed map is fine */
/*
 * Bytes of a mapped file that are not needed soon: they leave this process' memory, and come back when
 * read.
 */
void esp_map_drop(const uint8_t *data, size_t bytes);

/* size bytes of zeroed memory as a map of its own, in huge pages unless huge is OFF; HUGETLB is as AUTO,
 * since a map ends where its bytes do. *data is writable. */
esp_status esp_map_memory(struct esp_map *out, size_t size, enum esp_huge huge, uint8_t **data,
                          esp_error *err);

/* Read a whole small file, at most max bytes, into memory with a final zero (esp_free). */
esp_status esp_read_file(char **out, size_t *len, const char *path, size_t max, esp_error *err);

/* Join dir and name with one slash into esp_alloc'ed memory; NULL when there is no memory. */
char *esp_path_join(const char *dir, const char *name);

#endif
