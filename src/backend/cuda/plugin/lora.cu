/*
 * Low-rank adapters beside products: t = A x, then y += scale * B t, in f32. A warp makes one element of t for
 * up to ROWS rows, lanes striding the inputs and a fixed tree adding them; a thread makes one output. An
 * element is a fixed function of its own row, whoever shares the step.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/start.cuh"

enum { ROWS = 8, WARPS = 8 };

/* Blocks: WARPS ranks, ROWS rows, a site. */
static __global__ void __launch_bounds__(32 * WARPS) shrink(const __grid_constant__ cu_lora_sites sites)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    const cu_lora_site &s = sites.s[blockIdx.z];
    const uint32_t lane = threadIdx.x & 31, r = blockIdx.x * WARPS + (threadIdx.x >> 5),
                   row0 = blockIdx.y * ROWS;
    float sum[ROWS] = {0};

    if (r >= s.rank || row0 >= s.n_row)
        return;
    const uint32_t n = min(s.n_row - row0, (uint32_t)ROWS);
    const float *a = s.a + (size_t)r * s.n_in, *x = s.x + (size_t)row0 * s.n_in;

    for (uint32_t i = lane; i < s.n_in; i += 32) {
        const float w = a[i];

#pragma unroll
        for (uint32_t k = 0; k < ROWS; k++)
            if (k < n)
                sum[k] = fmaf(w, x[(size_t)k * s.n_in + i], sum[k]);
    }
#pragma unroll
    for (uint32_t k = 0; k < ROWS; k++) {
        const float all = cu_warp_sum(sum[k]);

        if (k < n && lane == 0)
            s.t[(size_t)(row0 + k) * s.rank + r] = all;
    }
}

/* Blocks: 32 * WARPS outputs, ROWS rows, a site. */
static __global__ void __launch_bounds__(32 * WARPS) expand(const __grid_constant__ cu_lora_sites sites)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    const cu_lora_site &s = sites.s[blockIdx.z];
    const uint32_t o = blockIdx.x * 32 * WARPS + threadIdx.x, row0 = blockIdx.y * ROWS;
    float sum[ROWS] = {0};

    if (o >= s.n_out || row0 >= s.n_row)
        return;
    const uint32_t n = min(s.n_row - row0, (uint32_t)ROWS);
    const float *b = s.b + (size_t)o * s.rank, *t = s.t + (size_t)row0 * s.rank;

    for (uint32_t i = 0; i < s.rank; i++) {
        const float w = b[i];

#pragma unroll
        for (uint32_t k = 0; k < ROWS; k++)
            if (k < n)
                sum[k] = fmaf(w, t[(size_t)k * s.rank + i], sum[k]);
    }
#pragma unroll
    for (uint32_t k = 0; k < ROWS; k++)
        if (k < n) {
            float *y = s.y + (size_t)(row0 + k) * s.n_out + o;

            *y = fmaf(s.scale, sum[k], *y);
        }
}

void cu_lora(cudaStream_t s, const struct cu_lora_sites *sites)
{
    uint32_t rank = 0, rows = 0, outs = 0;

    for (uint32_t i = 0; i < sites->n; i++) {
        rank = max(rank, sites->s[i].rank);
        rows = max(rows, sites->s[i].n_row);
        outs = max(outs, sites->s[i].n_out);
    }
    if (sites->n == 0)
        return;
    cu_start(s, shrink, dim3((rank + WARPS - 1) / WARPS, (rows + ROWS - 1) / ROWS, sites->n), 32 * WARPS, 0,
             *sites);
    cu_start(s, expand, dim3((outs + 32 * WARPS - 1) / (32 * WARPS), (rows + ROWS - 1) / ROWS, sites->n),
             32 * WARPS, 0, *sites);
}
