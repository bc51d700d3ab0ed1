/*
 * Products with f32 and f16 weights in f32 arithmetic, and the preparation of activations for the tensor
 * cores. Models are not shipped in these formats; this path is for exact comparisons, so it is simple rather
 * than fast: a warp computes one output of up to 8 rows, lanes stride the inputs, a fixed tree adds the
 * lanes.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/start.cuh"

enum { ROWS = 8 };

static __global__ void __launch_bounds__(256)
    dense(const __grid_constant__ cu_linears l, const float *x, uint32_t n_row)
{
    cu_let_next_start();
    cu_wait_for_inputs();
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
    cu_start(s, dense, dim3((n_out + 7) / 8, (n_row + ROWS - 1) / ROWS), 256, 0, *l, x, n_row);
}

static __global__ void prepare(const float *x, uint32_t width, cu_act out)
{
    cu_let_next_start();
    cu_wait_for_inputs();
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
    cu_start(s, prepare, dim3((out->ld / 8 + 127) / 128, n_row), 128, 0, x, width, *out);
}

/* ---- for coded weights ---- */

enum { CODED_THREADS = 1024 };

/* Element k .. k + 8 of a row, times the scales of inputs, zeros past the width. */
static __device__ __forceinline__ void coded_inputs(const float *x, const float *scale, uint32_t width,
                                                    uint32_t k, float v[8])
{
    if (width % 8 == 0 && k < width) {
        cu_load8(x + k, v);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            v[i] = k + i < width ? x[k + i] : 0.0f;
    }
    if (!scale)
        return;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        v[i] *= scale[k + i]; /* padded as codes are */
}

/* A block is a row. */
static __global__ void __launch_bounds__(CODED_THREADS)
    prepare_coded(const float *x, uint32_t width, const float *scale, uint32_t permute, cu_act out)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    __shared__ float red[32];
    const uint32_t row = blockIdx.x;
    float v[8], most = 0, up;

    x += (size_t)row * width;
    for (uint32_t k = threadIdx.x * 8; k < out.ld; k += CODED_THREADS * 8) {
        coded_inputs(x, scale, width, k, v);
#pragma unroll
        for (int i = 0; i < 8; i++)
            most = fmaxf(most, fabsf(v[i]));
    }
    most = cu_block_max(most, red);
    up = cu_coded_power(most);
    if (threadIdx.x == 0)
        out.sums[row] = 1.0f / up;
    for (uint32_t k = threadIdx.x * 8; k < out.ld; k += CODED_THREADS * 8) {
        coded_inputs(x, scale, width, k, v);
        cu_emit8_coded(out, row, permute ? cu_coded_place(k) : k, v, up);
    }
}

void cu_prepare_coded(cudaStream_t s, const float *x, uint32_t width, uint32_t n_row,
                      const struct cu_weight *w, const struct cu_act *out)
{
    cu_start(s, prepare_coded, n_row, CODED_THREADS, 0, x, width,
             w->axis ? nullptr : reinterpret_cast<const float *>(w->scales), w->axis, *out);
}
