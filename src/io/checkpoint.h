/*
 * A model directory: its config, and all tensors of its safetensors files under one lookup. The index file
 * decides what a sharded model consists of; shards are opened by plain names inside the directory and nothing
 * else ever is.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_IO_CHECKPOINT_H
#define ESP_IO_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "io/config.h"
#include "io/safetensors.h"
#include "io/warnings.h"

/* Some files and their tensors in byte order of the names. */
struct esp_tensor_set {
    struct esp_st_file **file;
    uint32_t n_file;
    const struct esp_st_tensor **tensor;
    uint32_t n_tensor;
};

struct esp_checkpoint {
    char *dir;      /* as given to open */
    bool in_memory; /* not mapped */
    struct esp_config config;
    struct esp_tensor_set main; /* model.safetensors, or the shards of model.safetensors.index.json */
    struct esp_tensor_set side; /* mtp*.safetensors beside them that the index does not list; often empty */
    struct esp_warnings warnings;
};

/*
 * Open a model directory: config.json and generation_config.json (optional) are read, then
 * model.safetensors.index.json with its shards, else model.safetensors, then mtp*.safetensors.
 *
 * Rules for an index: shard names are plain file names ending in ".safetensors" (no slash, no "..", not
 * empty); every listed tensor is in its shard; a tensor that the index places in one shard and another shard
 * also holds is refused as a duplicate; a tensor that is in a shard but in no index entry is not visible, and
 * one warning counts them. When both an index and a model.safetensors that it does not list exist, the index
 * wins, with a warning.
 *
 * Errors: ESP_ENOTFOUND when the directory, its config, its tensors or a shard is missing, saying what was
 * expected; ESP_EFORMAT, ESP_EUNSUPPORTED, ESP_EIO, ESP_ENOMEM from the readers.
 */
esp_status esp_checkpoint_open(struct esp_checkpoint **out, const char *dir, esp_error *err);
/* The same with the files read into memory instead of mapped; what is dropped there cannot be read again. */
esp_status esp_checkpoint_read(struct esp_checkpoint **out, const char *dir, esp_error *err);
/* Only tensors: a folder without (or with an unrelated) config.json, such as a drafter's. config stays
 * zeroed. */
esp_status esp_checkpoint_open_tensors(struct esp_checkpoint **out, const char *dir, esp_error *err);
void esp_checkpoint_close(struct esp_checkpoint *c); /* NULL is fine */

/* Exact name, O(log n); NULL when absent. */
const struct esp_st_tensor *esp_tensor_set_find(const struct esp_tensor_set *s, const char *name);
/* First tensor whose name starts with prefix, or NULL; those with the prefix are neighbours from *at on. */
const struct esp_st_tensor *esp_tensor_set_prefix(const struct esp_tensor_set *s, const char *prefix,
                                                  uint32_t *at);
/* In main, exact name; NULL when absent. */
const struct esp_st_tensor *esp_checkpoint_find(const struct esp_checkpoint *c, const char *name);

#endif
