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

/* logits [n_row][n_vocab] to few [n_row]. */
void cu_few(cudaStream_t s, const float *logits, uint32_t n_vocab, uint32_t n_row, struct esp_few *few);

#ifdef __cplusplus
}
#endif
#endif
