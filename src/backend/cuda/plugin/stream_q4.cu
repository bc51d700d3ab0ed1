/*
 * Streamed products with 4-bit codes in groups of 64, the format that most quantized models have.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/stream.cuh"

void cu_stream_q4(cudaStream_t s, const struct cu_stream *k, const struct cu_act *x, uint32_t n_row)
{
    stream_launch<CU_Q4>(s, k, x, n_row);
}

cudaError_t cu_stream_setup_q4(void)
{
    return stream_setup<CU_Q4>();
}
