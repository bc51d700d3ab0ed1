/*
 * The kernels of wide.h for all formats.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/wide.h"

cudaError_t cu_wide_setup(void)
{
    static cudaError_t (*const all[])(void) = {cu_wide_setup_bf16, cu_wide_setup_values, cu_wide_setup_q2,
                                               cu_wide_setup_q4, cu_wide_setup_q8};

    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++) {
        const cudaError_t e = all[i]();

        if (e != cudaSuccess)
            return e;
    }
    return cudaSuccess;
}
