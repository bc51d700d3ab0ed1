/*
 * Products with affine codes of up to 4 bits; one file a format, so that formats compile side by side.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/linear.cuh"

void cu_linear_q4(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row)
{
    if (x->wide)
        launch_wide(cu_wide_q4, s, l, x, n_row);
    else
        launch_linear<CU_Q4>(s, l, x, n_row);
}

cudaError_t cu_linear_setup_q4(void)
{
    return setup_linear<CU_Q4>();
}
