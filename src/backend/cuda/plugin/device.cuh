/*
 * Device functions that several kernels share: conversions, fixed-order reductions, and writing a value
 * together with its form for products.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_DEVICE_CUH
#define ESP_BACKEND_CUDA_PLUGIN_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/plugin/coded.h"
#include "backend/cuda/plugin/kernels.h"
#include "backend/cuda/plugin/wide.h"

static __device__ __forceinline__ float cu_bf16(uint16_t v)
{
    return __uint_as_float((uint32_t)v << 16);
}

/* Low half: a; high half: b; round to nearest even. */
static __device__ __forceinline__ uint32_t cu_bf16x2(float a, float b)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);

    return *reinterpret_cast<uint32_t *>(&v);
}

static __device__ __forceinline__ float cu_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static __device__ __forceinline__ float cu_silu(float x)
{
    return x / (1.0f + expf(-x));
}

/*
 * bf16 terms of activations are kept times UP, bf16 weights and codes over it, so that codes of 4 bits, which are
 * numbers around 2^-129 as they lie (operand.cuh), have sums that f32 holds as well as any. Bits are those
 * without it as long as activations are below 2^63 and above 2^-126, weights above 2^-62.
 */
#define CU_UP        0x1p64f
#define CU_DOWN      0x1p-64f
#define CU_NIBBLE_UP 0x1p65f /* what scales of codes of 4 bits are kept times: 2^129 over UP */

/*
 * Programmatic launches: the kernel before says when the next may start, and the next waits here until the
 * one before has finished and its results can be seen. Without such a launch both do nothing.
 */
static __device__ __forceinline__ void cu_let_next_start(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

static __device__ __forceinline__ void cu_wait_for_inputs(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Sum over a warp: every lane gets the same bits (a butterfly of commuting additions). */
static __device__ __forceinline__ float cu_warp_sum(float v)
{
#pragma unroll
    for (int m = 16; m; m >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, m);
    return v;
}

/* Sum over a block of whole warps, the same for every thread; red has 32 floats. */
static __device__ __forceinline__ float cu_block_sum(float v, float *red)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = blockDim.x >> 5;
    float s;

    v = cu_warp_sum(v);
    __syncthreads(); /* red may still be read from an earlier sum */
    if (lane == 0)
        red[warp] = v;
    __syncthreads();
    s = red[0];
    for (uint32_t i = 1; i < n; i++)
        s += red[i];
    return s;
}

static __device__ __forceinline__ void cu_load8(const float *p, float v[8])
{
    const float4 a = *reinterpret_cast<const float4 *>(p), b = *reinterpret_cast<const float4 *>(p + 4);

    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

static __device__ __forceinline__ void cu_store8(float *p, const float v[8])
{
    *reinterpret_cast<float4 *>(p) = make_float4(v[0], v[1], v[2], v[3]);
    *reinterpret_cast<float4 *>(p + 4) = make_float4(v[4], v[5], v[6], v[7]);
}

/* Elements [k, k + 8) of a term, two a word, to their places. */
static __device__ __forceinline__ void cu_put8(const cu_act &a, uint32_t term, uint32_t row, uint32_t k,
                                               const uint32_t pack[4])
{
    if (!a.wide) {
        *reinterpret_cast<uint4 *>(a.t[term] + (size_t)row * a.ld + k) =
            make_uint4(pack[0], pack[1], pack[2], pack[3]);
        return;
    }
    uint8_t *line = reinterpret_cast<uint8_t *>(a.t[term]) + cu_wide_line(a.ld, row, k);

#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        *reinterpret_cast<uint32_t *>(line + cu_wide_word(row, k, i)) = pack[i];
}

/*
 * Elements [k, k + 8) of row `row` in the form for products. The four lanes that hold 32 consecutive elements
 * (lane % 4 rising) call together; width is a multiple of 32 there. In the order of wide.h it is the eight
 * lanes of 64 elements.
 */
static __device__ __forceinline__ void cu_emit8(const cu_act &a, uint32_t row, uint32_t k, const float v[8])
{
    const uint32_t four = 0xfu << (threadIdx.x & 28);
    float rest[8], sum = 0;

#pragma unroll
    for (int i = 0; i < 8; i++)
        rest[i] = v[i] * CU_UP;
#pragma unroll
    for (uint32_t term = 0; term < CU_MAX_TERM; term++) {
        uint32_t pack[4];

        if (term >= a.n_term)
            break;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            pack[i] = cu_bf16x2(rest[2 * i], rest[2 * i + 1]);
            rest[2 * i] -= cu_bf16((uint16_t)(pack[i] & 0xffff));
            rest[2 * i + 1] -= cu_bf16((uint16_t)(pack[i] >> 16));
        }
        cu_put8(a, term, row, k, pack);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum += (v[i] * CU_UP - rest[i]) * CU_DOWN; /* what the terms add up to */
    sum += __shfl_xor_sync(four, sum, 1);
    sum += __shfl_xor_sync(four, sum, 2);
    if (a.wide) {
        const float other = __shfl_xor_sync(0xffu << (threadIdx.x & 24), sum, 4);
        float *to = a.sums + cu_wide_sum(a.ld, row, k);

        if ((k & 31) == 0)
            to[(k & 32 ? 2 : 1) * CU_WIDE_ROWS] = sum;
        if ((k & 63) == 0)
            to[0] = sum + other;
        return;
    }
    if ((k & 31) == 0)
        a.sums[(size_t)(k >> 5) * a.max_row + row] = sum;
}

/* Largest over a block of whole warps of values that are not negative, the same for every thread. */
static __device__ __forceinline__ float cu_block_max(float v, float *red)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = blockDim.x >> 5;
    float most;

#pragma unroll
    for (int m = 16; m; m >>= 1)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, m));
    __syncthreads(); /* red may still be read from an earlier one */
    if (lane == 0)
        red[warp] = v;
    __syncthreads();
    most = red[0];
    for (uint32_t i = 1; i < n; i++)
        most = fmaxf(most, red[i]);
    return most;
}

/* The power of two that brings a row's largest magnitude to [2^13, 2^14); 1 where it is infinite. */
static __device__ __forceinline__ float cu_coded_power(float most)
{
    const int e = (int)(__float_as_uint(most) >> 23 & 0xff) - 127, up = 13 - e < 126 ? 13 - e : 126;

    return e == 128 ? 1.0f : __uint_as_float((uint32_t)(up + 127) << 23);
}

/* Elements of a row times `up`, as f16 terms: 8 from place k on. */
static __device__ __forceinline__ void cu_emit8_coded(const cu_act &a, uint32_t row, uint32_t k,
                                                      const float v[8], float up)
{
    float rest[8];

#pragma unroll
    for (int i = 0; i < 8; i++)
        rest[i] = v[i] * up;
#pragma unroll
    for (uint32_t term = 0; term < CU_MAX_TERM; term++) {
        uint32_t pack[4];

        if (term >= a.n_term)
            break;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const __half2 h = __floats2half2_rn(rest[2 * i], rest[2 * i + 1]);

            pack[i] = *reinterpret_cast<const uint32_t *>(&h);
            rest[2 * i] -= __low2float(h);
            rest[2 * i + 1] -= __high2float(h);
        }
        cu_put8(a, term, row, k, pack);
    }
}

/* f16 code values of two trellis states: coded.h. */
static __device__ __forceinline__ uint32_t cu_coded_values(uint32_t s0, uint32_t s1)
{
    const uint32_t pair = cu_coded_pair(s0, s1), less = (uint32_t)CU_HALF_LESS << 16 | CU_HALF_LESS;
    const __half2 v =
        __hsub2(*reinterpret_cast<const __half2 *>(&pair), *reinterpret_cast<const __half2 *>(&less));

    return *reinterpret_cast<const uint32_t *>(&v);
}

/* acc += A (16 x 16, rows) * B (16 x 8, columns), bf16 in, f32 sums. Lane layout: PTX ISA, mma.m16n8k16. */
static __device__ __forceinline__ void cu_mma(float acc[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                              uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The same with f16 in. */
static __device__ __forceinline__ void cu_mma_f16(float acc[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                                  uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

#endif
