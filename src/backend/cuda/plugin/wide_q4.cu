/*
 * Products of many rows with affine codes of up to 4 bits; one file a format, so that formats compile side by side.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/wide.cuh"

void cu_wide_q4(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row,
                uint32_t n_split, uint32_t n_whole)
{
    wide_launch<CU_Q4>(s, l, x, n_row, n_split, n_whole);
}

cudaError_t cu_wide_setup_q4(void)
{
    return wide_setup<CU_Q4>();
}
