/*
 * Products of many rows with 2-bit affine codes; one file a format, so that formats compile side by side.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/wide.cuh"

void cu_wide_q2(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row,
                uint32_t n_split, uint32_t n_whole)
{
    wide_launch<CU_Q2>(s, l, x, n_row, n_split, n_whole);
}

cudaError_t cu_wide_setup_q2(void)
{
    return wide_setup<CU_Q2>();
}
