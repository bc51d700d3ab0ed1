/*
 * The greatest logits of rows, found on the device (graph/batch.h: struct esp_few).
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_FEW_H
#define ESP_BACKEND_CUDA_PLUGIN_FEW_H

#include <cuda_runtime_api.h>
#include <stdint.h>

struct esp_few;

#ifdef __cplusplus
extern "C" {
#endif

enum { CU_FEW_SHARES = 4096 };
/*
 * logits [n_row][n_vocab] to few [n_row]; their n is more than ESP_FEW where they have no room. shares: room
 * for n_row * CU_FEW_SHARES.
 */
void cu_few(cudaStream_t s, const float *logits, uint32_t n_vocab, uint32_t n_row, uint32_t *shares,
            struct esp_few *few);

#ifdef __cplusplus
}
#endif
#endif
