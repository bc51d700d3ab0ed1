/*
 * Reading a safetensors file: the header is checked completely at open, so that a tensor handed out later is
 * known to be whole, to own its bytes alone, and to have the size its shape says. Layout:
 * doc/formats/safetensors.md.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_IO_SAFETENSORS_H
#define ESP_IO_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/limits.h"
#include "base/status.h"

struct esp_st_file;

struct esp_st_tensor {
    const char *name; /* UTF-8, unescaped, lives as long as the file */
    enum esp_dtype dtype;
    uint32_t n_dim;                 /* 0 for a scalar */
    uint64_t shape[ESP_LIMIT_DIMS]; /* outermost first; the product of the non-zero ones fits 64 bits */
    const uint8_t *data;            /* bytes of them, little-endian, ANY alignment: copy or load unaligned */
    size_t bytes;                   /* equals shape x dtype; 0 when a dimension is 0 */
    const struct esp_st_file *file;
};

/*
 * Map path and check it. Refused (ESP_EFORMAT unless said, every message starts with the path):
 *   header   shorter than promised, longer than ESP_LIMIT_HEADER_BYTES, not '{' first, not UTF-8, not JSON,
 *            "\u0000"
 *   entries  a name or metadata key that occurs twice ("duplicate"), unknown dtype or field, missing field,
 *            more than ESP_LIMIT_DIMS dimensions or ESP_LIMIT_TENSORS tensors, shape x dtype different from
 *            the byte range
 *   data     bytes owned by two tensors or by none (both neighbours are named), a file shorter than the
 *            header promises (both sizes are given), bytes after the last tensor
 * Also ESP_ENOTFOUND, ESP_EIO, ESP_ENOMEM. No allocation is sized by a number read from the file; the index
 * takes about 120 bytes a tensor plus the names. Tensors of a dtype without reader (F8_E4M3 ...) are listed;
 * see esp_st_check().
 */
esp_status esp_st_open(struct esp_st_file **out, const char *path, esp_error *err);
/* The same with the file read into memory instead of mapped. */
esp_status esp_st_read(struct esp_st_file **out, const char *path, esp_error *err);
/* The same over memory that the caller keeps alive and unchanged; name stands in messages. */
esp_status esp_st_open_memory(struct esp_st_file **out, const void *data, size_t size, const char *name,
                              esp_error *err);
void esp_st_close(struct esp_st_file *f); /* NULL is fine */

const char *esp_st_name(const struct esp_st_file *f); /* path as opened */
size_t esp_st_size(const struct esp_st_file *f);      /* bytes of the file */

uint32_t esp_st_count(const struct esp_st_file *f);
/* Tensor i in the order of the header, i < count. */
const struct esp_st_tensor *esp_st_get(const struct esp_st_file *f, uint32_t i);
/* Tensor i in byte order of the names. */
const struct esp_st_tensor *esp_st_sorted(const struct esp_st_file *f, uint32_t i);
/* Exact name, O(log n); NULL when absent. */
const struct esp_st_tensor *esp_st_find(const struct esp_st_file *f, const char *name);

/* The __metadata__ map: value of a key or NULL; number of pairs; pair i in the order of the header. */
const char *esp_st_metadata(const struct esp_st_file *f, const char *key);
uint32_t esp_st_metadata_count(const struct esp_st_file *f);
void esp_st_metadata_get(const struct esp_st_file *f, uint32_t i, const char **key, const char **value);

/* ESP_EUNSUPPORTED naming file, tensor and dtype unless its values can be read. Call it before using data. */
esp_status esp_st_check(const struct esp_st_tensor *t, esp_error *err);
/* Number of elements (1 for a scalar). */
uint64_t esp_st_elements(const struct esp_st_tensor *t);
/* "[2,3]" into out, cut when too small; returns out. */
const char *esp_st_shape_text(const struct esp_st_tensor *t, char *out, size_t cap);

#endif
