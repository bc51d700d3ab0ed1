/*
 * Writing a safetensors file as a stream: declare every tensor, then give their bytes in the same order. The
 * file appears under its name only when complete: written beside it under a temporary name, synced, renamed.
 * The same calls give the same bytes.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_IO_SAFETENSORS_WRITE_H
#define ESP_IO_SAFETENSORS_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

struct esp_st_writer;

/* Start a file that will be called path. Nothing is created on disk before esp_st_writer_data() or _finish().
 */
esp_status esp_st_writer_create(struct esp_st_writer **out, const char *path, esp_error *err);
/*
 * Add a __metadata__ pair; before the first data. Pairs are written in order of the calls. ESP_EINVAL for a
 * repeated key and for text that is not UTF-8.
 */
esp_status esp_st_writer_metadata(struct esp_st_writer *w, const char *key, const char *value,
                                  esp_error *err);
/*
 * Declare the next tensor; before the first data. Its bytes follow those of the one declared before, without
 * padding: declare wide types first where readers gain from alignment (the data area starts at a multiple of
 * 8). ESP_EINVAL for an empty, non-UTF-8 or repeated name (repeats are found when the header is written),
 * sizes that overflow, and more than ESP_LIMIT_DIMS dimensions.
 */
esp_status esp_st_writer_declare(struct esp_st_writer *w, const char *name, enum esp_dtype dtype,
                                 uint32_t n_dim, const uint64_t *shape, esp_error *err);
/* The next bytes of the data area, in pieces of any size. ESP_EINVAL when more comes than was declared. */
esp_status esp_st_writer_data(struct esp_st_writer *w, const void *data, size_t bytes, esp_error *err);
/* All bytes were given: sync and rename. On any failure, here or before, the target keeps its old content. */
esp_status esp_st_writer_finish(struct esp_st_writer *w, esp_error *err);
/* Release; removes the temporary file when the writer was not finished. NULL is fine. */
void esp_st_writer_destroy(struct esp_st_writer *w);

#endif
