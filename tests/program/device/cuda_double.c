/*
 * A stand-in for espalier_cuda.so: two "CUDA devices" that are the CPU under another name, with a memory of
 * ESPALIER_DOUBLE_MEMORY bytes (default 8 GB). What the program does with devices is tested with it where
 * there are none.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/plugin.h"

enum { DEVICES = 2 };

static struct esp_backend_ops ops;

static esp_status memory(struct esp_dev *d, uint64_t *left, uint64_t *total, esp_error *err)
{
    const char *said = getenv("ESPALIER_DOUBLE_MEMORY");

    (void)d;
    (void)err;
    *left = said ? strtoull(said, NULL, 10) : 8000000000U;
    *total = *left + 500000000;
    return ESP_OK;
}

/* Not what the model's own bytes are, so that it shows which were counted. */
static uint64_t weight_bytes(const struct esp_dev *d, const struct esp_tape *t)
{
    (void)d;
    return t->n_op ? 12345678 : 0;
}

ESP_API esp_status esp_cuda_plugin(struct esp_dev **out, const struct esp_cuda_key *key, uint32_t index,
                                   esp_error *err);

esp_status esp_cuda_plugin(struct esp_dev **out, const struct esp_cuda_key *key, uint32_t index,
                           esp_error *err)
{
    const struct esp_cuda_key own = esp_cuda_key();

    if (memcmp(key, &own, sizeof own) != 0)
        return esp_fail(err, ESP_EDEVICE, "the stand-in was built from another version of espalier");
    if (index >= DEVICES)
        return esp_fail(err, ESP_EDEVICE, "CUDA: no device %u; %d present, numbered from 0", index, DEVICES);
    ESP_TRY(esp_cpu_open(out, esp_cpu_best(), 1, err));
    ops = *(*out)->ops;
    ops.name = "cuda";
    ops.memory = memory;
    ops.weight_bytes = weight_bytes;
    (*out)->ops = &ops;
    snprintf((*out)->name, sizeof(*out)->name, "cuda:%u (stand-in)", index);
    return ESP_OK;
}
