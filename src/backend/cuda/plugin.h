/*
 * What espalier_cuda.so offers to the library that loads it: one entry, and a key that is equal only when
 * both were built from the same layouts of the types they share.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_H
#define ESP_BACKEND_CUDA_PLUGIN_H

#include "backend/backend.h"

#define ESP_CUDA_ENTRY "esp_cuda_plugin"

struct esp_cuda_key {
    uint32_t revision; /* of the meaning of what follows */
    uint32_t n_op, n_format;
    uint32_t ops_bytes, dev_bytes, buf_bytes, op_bytes, value_bytes, weight_bytes, batch_bytes, seq_bytes,
        pools_bytes, paths_bytes;
};

static inline struct esp_cuda_key esp_cuda_key(void)
{
    return (struct esp_cuda_key){.revision = 4,
                                 .n_op = ESP_OP_COUNT,
                                 .n_format = ESP_FORMAT_COUNT,
                                 .ops_bytes = sizeof(struct esp_backend_ops),
                                 .dev_bytes = sizeof(struct esp_dev),
                                 .buf_bytes = sizeof(struct esp_buf),
                                 .op_bytes = sizeof(struct esp_op),
                                 .value_bytes = sizeof(struct esp_value),
                                 .weight_bytes = sizeof(struct esp_weight),
                                 .batch_bytes = sizeof(struct esp_batch),
                                 .seq_bytes = sizeof(struct esp_batch_seq),
                                 .pools_bytes = sizeof(struct esp_pools),
                                 .paths_bytes = sizeof(struct esp_paths)};
}

/* Open device `index`; ESP_EDEVICE when the key differs or the device cannot be used. */
typedef esp_status (*esp_cuda_plugin_fn)(struct esp_dev **out, const struct esp_cuda_key *key, uint32_t index,
                                         esp_error *err);

#endif
