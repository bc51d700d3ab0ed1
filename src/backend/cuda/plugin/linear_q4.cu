/*
 * Products with affine codes of up to 4 bits; one file a format, so that formats compile side by side.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/linear.cuh"

#include "backend/cuda/plugin/q4_few.h"

void cu_linear_q4(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row)
{
    if (!cu_q4_few(s, l, x, n_row))
        launch_linear<CU_Q4>(s, l, x, n_row);
}

cudaError_t cu_linear_setup_q4(void)
{
    const cudaError_t e = cu_q4_few_setup();

    return e == cudaSuccess ? setup_linear<CU_Q4>() : e;
}
