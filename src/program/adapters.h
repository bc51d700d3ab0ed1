/*
 * LoRA adapters of a command: what --adapter names, loaded for its model, and which of them are in use.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_ADAPTERS_H
#define ESP_PROGRAM_ADAPTERS_H

#include "espalier/espalier.h"

#include "program/options.h"

struct esp_named_adapter {
    esp_adapter *handle;
    char id[129]; /* last part of its path */
    float scale;  /* 0: loaded and checked, never applied */
    bool on;
    esp_adapter_info info;
};

struct esp_adapters {
    struct esp_named_adapter of[ESP_ADAPTERS_MAX];
    size_t n;
};

/*
 * Open every DIR[:SCALE] of the flag; all are on. What stands behind the last colon is a scale when it is a
 * number and no folder has the whole name. ESP_EINVAL: too many, or the same one twice; else as
 * esp_adapter_open(). What was opened before a failure stays for esp_adapters_close().
 */
esp_status esp_adapters_open(struct esp_adapters *a, esp_model *m, const struct esp_opt_value *flag,
                             esp_error *err);
void esp_adapters_close(struct esp_adapters *a);
/* Put those that are on into the options of a sequence. */
void esp_adapters_use(const struct esp_adapters *a, esp_seq_opts *o);
/* For the options of an engine: what any choice of them needs. */
uint32_t esp_adapters_max_rank(const struct esp_adapters *a);
uint64_t esp_adapters_bytes(const struct esp_adapters *a);
/* Switch on those in "id+id" or "id,id" and all others off; "none" is none. ESP_EINVAL lists the ids. */
esp_status esp_adapters_select(struct esp_adapters *a, const char *ids, esp_error *err);

#endif
