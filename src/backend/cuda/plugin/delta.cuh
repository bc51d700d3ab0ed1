/*
 * What the kernels of the delta rule share: the operations whose order decides a row's bits.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_DELTA_CUH
#define ESP_BACKEND_CUDA_PLUGIN_DELTA_CUH

#include "backend/cuda/plugin/start.cuh"

#define L2_EPS 1e-6f /* inside the square root of the q and k norms, as in the model reference */

/* One warp: out = x / sqrt(sum x^2 + eps) * scale over n elements, n a multiple of 4. */
static __device__ __forceinline__ void unit(const float *x, float scale, float *out, uint32_t n)
{
    const uint32_t lane = threadIdx.x & 31;
    float4 v[2];
    float sum = 0, inv;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t k = i * 128 + lane * 4;

        v[i] = k < n ? *reinterpret_cast<const float4 *>(x + k) : make_float4(0, 0, 0, 0);
        sum = fmaf(v[i].x, v[i].x, sum);
        sum = fmaf(v[i].y, v[i].y, sum);
        sum = fmaf(v[i].z, v[i].z, sum);
        sum = fmaf(v[i].w, v[i].w, sum);
    }
    inv = 1.0f / sqrtf(cu_warp_sum(sum) + L2_EPS);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t k = i * 128 + lane * 4;

        if (k < n)
            *reinterpret_cast<float4 *>(out + k) = make_float4(v[i].x * inv * scale, v[i].y * inv * scale,
                                                               v[i].z * inv * scale, v[i].w * inv * scale);
    }
}

/* The same for up to 128 elements, four a lane: zeros where there are none. */
static __device__ __forceinline__ float4 unit4(float4 x, float scale)
{
    float sum = 0, inv;

    sum = fmaf(x.x, x.x, sum);
    sum = fmaf(x.y, x.y, sum);
    sum = fmaf(x.z, x.z, sum);
    sum = fmaf(x.w, x.w, sum);
    inv = 1.0f / sqrtf(cu_warp_sum(sum) + L2_EPS);
    return make_float4(x.x * inv * scale, x.y * inv * scale, x.z * inv * scale, x.w * inv * scale);
}

/* exp(sum of g[j+1..i]) comes from these running sums, from j = i downwards; *whole = exp(sum of g[0..i]). */
static __device__ __forceinline__ void log_decays(const float *g, uint32_t i, float *out, float *whole)
{
    float sum = 0;
    uint32_t j = i;

    for (; j >= 8; j -= 8) { /* loads first: each sum waits for the one before, not for memory too */
        float v[8];

#pragma unroll
        for (uint32_t m = 0; m < 8; m++)
            v[m] = g[j - m];
#pragma unroll
        for (uint32_t m = 0; m < 8; m++) {
            out[j - m] = sum;
            sum += v[m];
        }
    }
    for (; j > 0; j--) {
        out[j] = sum;
        sum += g[j];
    }
    out[0] = sum;
    *whole = expf(sum + g[0]);
}

/* Four floats into shared memory, without waiting: a block reads up to 60 KB and has no other work meanwhile.
 */
static __device__ __forceinline__ void copy_4(float *to, const float *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from)
                 : "memory");
}

#endif
