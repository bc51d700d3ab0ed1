/*
 * Products of many rows with dense bf16 weights; one file a format, so that formats compile side by side.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/wide.cuh"

void cu_wide_bf16(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row,
                  uint32_t n_split, uint32_t n_whole)
{
    wide_launch<CU_BF16>(s, l, x, n_row, n_split, n_whole);
}

cudaError_t cu_wide_setup_bf16(void)
{
    return wide_setup<CU_BF16>();
}

int cu_wide_known(void)
{
    cudaFuncAttributes a;

    /* without the instructions of 90a the kernel is empty, and takes few registers */
    return cudaFuncGetAttributes(&a, wide<CU_BF16, 1, 64, false>) == cudaSuccess && a.numRegs > 64;
}
