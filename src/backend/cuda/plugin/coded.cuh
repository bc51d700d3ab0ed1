/*
 * Operands of the tensor cores out of trellis codes. With the bits of a weight known at compile time a lane's
 * run lies in registers and every shift is a constant: a window, its hash and the sum of the hash's bytes
 * cost four instructions a weight, packing and the constant two a pair.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_CODED_CUH
#define ESP_BACKEND_CUDA_PLUGIN_CODED_CUH

#include "backend/cuda/plugin/coded.h"
#include "backend/cuda/plugin/operand.cuh"

/* Both terms or all three of a step of a block: NT groups of 8 rows by TERMS. */
template <int TERMS, int NT>
static __device__ __forceinline__ void coded_mma(float (*acc)[4], const uint32_t a[4],
                                                 const uint2 (*x)[TERMS])
{
#pragma unroll
    for (int i = 0; i < TERMS; i++)
#pragma unroll
        for (int n = 0; n < NT; n++)
            cu_mma_f16(acc[n], a[0], a[1], a[2], a[3], x[n][i].x, x[n][i].y);
}

/* Activations 8 t + 4 s .. of block kb of rows row0 + 8 n + g. */
template <int TERMS, int NT>
static __device__ __forceinline__ void coded_rows(uint2 (*to)[TERMS], const cu_act &x, uint32_t row0,
                                                  uint32_t n_row, uint32_t kb, uint32_t s)
{
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;

#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < TERMS; i++) {
            /* columns past the last row are not stored */
            const uint32_t row = min(row0 + n * 8 + g, n_row - 1);

            to[n][i] =
                *reinterpret_cast<const uint2 *>(x.t[i] + (size_t)row * x.ld + kb * 32 + 8 * t + 4 * s);
        }
}

#endif
