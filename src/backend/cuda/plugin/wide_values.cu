/*
 * Products of many rows with expanded trellis code values; one file a format, so that formats compile side by side.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/wide.cuh"

void cu_wide_values(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row,
                    uint32_t n_split, uint32_t n_whole)
{
    wide_launch<CU_VALUES>(s, l, x, n_row, n_split, n_whole);
}

cudaError_t cu_wide_setup_values(void)
{
    return wide_setup<CU_VALUES>();
}
