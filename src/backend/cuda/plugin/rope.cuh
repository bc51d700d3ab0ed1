/*
 * A head's norm and rotation, for kernels whose block is one (token, head).
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_ROPE_CUH
#define ESP_BACKEND_CUDA_PLUGIN_ROPE_CUH

#include "backend/cuda/plugin/start.cuh"

enum { HEAD_MAX = 512 };

struct rope_room {
    float red[32], row[HEAD_MAX];
};

/* The normed head to room->row: 8 elements a thread. */
static __device__ __forceinline__ void norm_for_rope(rope_room *room, const float *in, const float *gamma,
                                                     float eps, uint32_t dim)
{
    const uint32_t k = threadIdx.x * 8;
    float v[8], u[8], sum = 0, inv;

    if (k < dim) {
        cu_load8(in + k, v);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum = fmaf(v[i], v[i], sum);
    }
    inv = 1.0f / sqrtf(cu_block_sum(sum, room->red) / (float)dim + eps);
    if (k < dim) {
        cu_load8(gamma + k, u);
#pragma unroll
        for (int i = 0; i < 8; i++)
            room->row[k + i] = v[i] * inv * u[i];
    }
    __syncthreads();
}

static __device__ __forceinline__ float rotated(const rope_room &room, const cu_rope &r, uint32_t tok,
                                                uint32_t j)
{
    const float *cs = r.table + (size_t)tok * 2 * r.n_half, *row = room.row;
    const float e = row[j];

    if (j < r.n_half)
        return e * cs[j] - row[j + r.n_half] * cs[r.n_half + j];
    if (j < 2 * r.n_half)
        return e * cs[j - r.n_half] + row[j - r.n_half] * cs[j];
    return e;
}

#endif
