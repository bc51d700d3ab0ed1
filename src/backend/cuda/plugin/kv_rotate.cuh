/*
 * The signed Walsh-Hadamard rotation of turbo's values, by all threads of a block on a row in shared memory;
 * the order of operations is that of formats/turboquant.c, so the bits are the same.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_KV_ROTATE_CUH
#define ESP_BACKEND_CUDA_PLUGIN_KV_ROTATE_CUH

#include "backend/cuda/plugin/start.cuh"

/* Heads of 96: columns of 12 rows of 8 through the matrix of order 12. */
static __device__ __forceinline__ void mix_twelve(float *x, const int8_t *twelve)
{
    float sum[3] = {0, 0, 0}; /* blocks have at least 32 threads */

    for (uint32_t n = 0, e = threadIdx.x; e < 96; n++, e += blockDim.x)
        for (uint32_t k = 0; k < 12; k++) {
            const float v = x[k * 8 + e % 8];

            sum[n] += twelve[e / 8 * 12 + k] > 0 ? v : -v;
        }
    __syncthreads();
    for (uint32_t n = 0, e = threadIdx.x; e < 96; n++, e += blockDim.x)
        x[e] = sum[n];
    __syncthreads();
}

/* x[dim], ready for all; so is the result. */
static __device__ __forceinline__ void hadamard(float *x, uint32_t dim, const cu_kv_code &code)
{
    const uint32_t order = dim == 96 ? 8 : dim;

    for (uint32_t h = 1; h < order; h *= 2) {
        for (uint32_t p = threadIdx.x; p < dim / 2; p += blockDim.x) {
            const uint32_t j = p / h * 2 * h + p % h;
            const float a = x[j], b = x[j + h];

            x[j] = a + b;
            x[j + h] = a - b;
        }
        __syncthreads();
    }
    if (dim == 96)
        mix_twelve(x, code.twelve);
    for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x)
        x[i] *= code.norm;
    __syncthreads();
}

static __device__ __forceinline__ void apply_signs(float *x, uint32_t dim, const cu_kv_code &code)
{
    for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x)
        x[i] = code.signs[i / 32] >> i % 32 & 1 ? -x[i] : x[i];
    __syncthreads();
}

static __device__ __forceinline__ void rotate_row(float *x, uint32_t dim, const cu_kv_code &code)
{
    apply_signs(x, dim, code);
    hadamard(x, dim, code);
}

static __device__ __forceinline__ void unrotate_row(float *x, uint32_t dim, const cu_kv_code &code)
{
    hadamard(x, dim, code);
    apply_signs(x, dim, code);
}

#endif
