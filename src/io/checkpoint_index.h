/*
 * The shard index of a checkpoint, model.safetensors.index.json: which tensor is in which file. Private to
 * io.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_IO_CHECKPOINT_INDEX_H
#define ESP_IO_CHECKPOINT_INDEX_H

#include <stdint.h>

#include "base/status.h"

struct esp_index_entry {
    const char *tensor;
    const char *shard; /* name as in the file; checked to be a plain file name */
    uint32_t shard_id; /* position in esp_index.shard */
};

struct esp_index {
    char *name;                    /* path, for messages */
    char *text;                    /* all strings */
    struct esp_index_entry *entry; /* in byte order of the tensor names, no two equal */
    uint32_t n_entry;
    const char **shard; /* different shard names, in byte order */
    uint32_t n_shard;
};

/* Errors: ESP_ENOTFOUND, ESP_EIO, ESP_ENOMEM, ESP_EFORMAT (not JSON, no weight_map, duplicates, unsafe shard
 * names). */
esp_status esp_index_load(struct esp_index *out, const char *path, esp_error *err);
void esp_index_free(struct esp_index *x); /* a zeroed one is fine */
/* Entry of a tensor, or NULL. */
const struct esp_index_entry *esp_index_find(const struct esp_index *x, const char *tensor);

#endif
