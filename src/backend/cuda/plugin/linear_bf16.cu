/*
 * Products with dense bf16 weights; one file a format, so that formats compile side by side.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/linear.cuh"

void cu_linear_bf16(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row)
{
    if (x->wide)
        launch_wide(cu_wide_bf16, s, l, x, n_row);
    else
        launch_linear<CU_BF16>(s, l, x, n_row);
}

cudaError_t cu_linear_setup_bf16(void)
{
    return setup_linear<CU_BF16>();
}
