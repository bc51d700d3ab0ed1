/*
 * The fast path of products with 4-bit codes: which calls it takes.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/q4_few.cuh"

#include "backend/cuda/plugin/q4_few.h"

int cu_q4_few(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row)
{
    if (n_row > 16 || !l->tiled || x->n_term == 3)
        return 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->w[i].group_kb != 2 || l->w[i].scale_f32)
            return 0;
    if (x->n_term == 1)
        launch_q4<1>(s, l, x, n_row);
    else
        launch_q4<2>(s, l, x, n_row);
    return 1;
}

cudaError_t cu_q4_few_setup(void)
{
    const cudaError_t e = setup_q4<1>();

    return e == cudaSuccess ? setup_q4<2>() : e;
}
