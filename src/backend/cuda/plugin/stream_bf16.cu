/*
 * Streamed products with bf16 weights.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/stream.cuh"

void cu_stream_bf16(cudaStream_t s, const struct cu_stream *k, const struct cu_act *x, uint32_t n_row)
{
    stream_launch<CU_BF16>(s, k, x, n_row);
}

cudaError_t cu_stream_setup_bf16(void)
{
    return stream_setup<CU_BF16>();
}
