/*
 * Which products stream, and the way to the kernels of their format.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/stream.h"

int cu_stream_takes(const struct cu_weight *w, uint32_t n_term)
{
    if (n_term > 2 || w->n_quad > CU_STREAM_QUADS)
        return 0;
    return w->format == CU_BF16 || (w->format == CU_Q4 && w->group_kb == 2 && !w->scale_f32);
}

void cu_stream_run(cudaStream_t s, const struct cu_stream *k, const struct cu_act *x, uint32_t n_row)
{
    if (k->l.w[0].format == CU_BF16)
        cu_stream_bf16(s, k, x, n_row);
    else
        cu_stream_q4(s, k, x, n_row);
}

cudaError_t cu_stream_setup(void)
{
    const cudaError_t e = cu_stream_setup_bf16();

    return e == cudaSuccess ? cu_stream_setup_q4() : e;
}
