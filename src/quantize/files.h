/*
 * The few file operations that a resumable job needs: whole files that appear complete or not at all.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_FILES_H
#define ESP_QUANTIZE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct esp_part_bytes {
    const void *data;
    size_t bytes;
};

bool esp_file_exists(const char *path);
/* Write the pieces one after another to path: temporary file, sync, rename. */
esp_status esp_file_write(const char *path, const struct esp_part_bytes *parts, uint32_t n, esp_error *err);
/* Byte for byte, by the same way. */
esp_status esp_file_copy(const char *to, const char *from, esp_error *err);
esp_status esp_folder_make(const char *path, esp_error *err); /* existing is fine */
/* Remove a folder and the plain files in it; one level. */
esp_status esp_folder_remove(const char *path, esp_error *err);
/* Remove temporary files ("NAME.tmp...") that a killed writer left in the folder. */
esp_status esp_folder_sweep(const char *path, esp_error *err);
/* Bytes that a new file beside path could take. */
esp_status esp_disk_free(uint64_t *out, const char *path, esp_error *err);

#endif
