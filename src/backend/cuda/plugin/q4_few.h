/*
 * The fast path of products with 4-bit codes, for linear_q4.cu.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_Q4_FEW_H
#define ESP_BACKEND_CUDA_PLUGIN_Q4_FEW_H

#include "backend/cuda/plugin/kernels.h"

/* Up to 16 rows, groups of 64, bf16 scales, one or two terms: start it and say 1. Otherwise 0: nothing is
 * done. */
int cu_q4_few(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row);
cudaError_t cu_q4_few_setup(void); /* only where tiled kernels run */

#endif
