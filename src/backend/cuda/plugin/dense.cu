/*
 * Products with f32 and f16 weights in f32 arithmetic, and the preparation of activations for the tensor
 * cores. Models are not shipped in these formats; this path is for exact comparisons, so it is simple rather
 * than fast: a warp computes one output of up to 8 rows, lanes stride the inputs, a fixed tree adds the
 * lanes.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/device.cuh"

enum { ROWS = 8 };

static __global__ void __launch_bounds__(256)
    dense(const __grid_constant__ cu_linears l, const float *x, uint32_t n_row)
{
    const uint32_t lane = threadIdx.x & 31;
    uint32_t o = blockIdx.x * 8 + (threadIdx.x >> 5), which = 0;
    const uint32_t row0 = blockIdx.y * ROWS, n = min(n_row - row0, (uint32_t)ROWS);
    float sum[ROWS] = {0};

    while (which < l.n && o >= l.w[which].n_out)
        o -= l.w[which++].n_out;
    if (which == l.n)
        return;
    const cu_weight &w = l.w[which];

    for (uint32_t k = lane; k < w.n_in; k += 32) {
        const size_t at = (size_t)o * w.n_in + k;
        const float v = w.format == CU_F32 ? reinterpret_cast<const float *>(w.codes)[at]
                                           : __half2float(reinterpret_cast<const __half *>(w.codes)[at]);

#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++)
            if (r < n)
                sum[r] = fmaf(x[(size_t)(row0 + r) * w.n_in + k], v, sum[r]);
    }
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
        const float s = cu_warp_sum(sum[r]);

        if (r < n && lane == 0)
            l.y[which][(size_t)(row0 + r) * w.n_out + o] = s;
    }
}

void cu_linear_dense(cudaStream_t s, const struct cu_linears *l, const float *x, uint32_t n_row)
{
    uint32_t n_out = 0;

    for (uint32_t i = 0; i < l->n; i++)
        n_out += l->w[i].n_out;
    dense<<<dim3((n_out + 7) / 8, (n_row + ROWS - 1) / ROWS), 256, 0, s>>>(*l, x, n_row);
}

static __global__ void prepare(const float *x, uint32_t width, cu_act out)
{
    cu_let_next_start();
    const uint32_t row = blockIdx.y, k = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    float v[8];

    if (k >= out.ld)
        return; /* whole groups of four lanes: ld is a multiple of 128 */
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        v[i] = k + i < width ? x[(size_t)row * width + k + i] : 0.0f;
    cu_emit8(out, row, k, v);
}

void cu_prepare(cudaStream_t s, const float *x, uint32_t width, uint32_t n_row, const struct cu_act *out)
{
    prepare<<<dim3((out->ld / 8 + 127) / 128, n_row), 128, 0, s>>>(x, width, *out);
}
