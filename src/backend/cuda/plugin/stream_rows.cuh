/*
 * Activations of streamed products: one row's terms in shared memory, a part a warp, several rows straight
 * from the caches.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_STREAM_ROWS_CUH
#define ESP_BACKEND_CUDA_PLUGIN_STREAM_ROWS_CUH

#include "backend/cuda/plugin/operand.cuh"

/* Bytes of one row's terms and sums in shared memory, of a warp. */
static __host__ __device__ __forceinline__ uint32_t stream_row_bytes(uint32_t part_quads, uint32_t n_term)
{
    return part_quads * 4 * (n_term * 64 + 4);
}

static __device__ __forceinline__ float stream_sum(const cu_act &x, uint32_t kb, uint32_t row)
{
    const float *at = x.sums + (size_t)kb * x.max_row + row;
    const float v = *at;

    return x.more ? v + x.more[at - x.sums] : v;
}

/* Chunk c, of 16 bytes, of row 0's terms from block kb0 on: [block][term][64 bytes]. */
template <int TERMS>
static __device__ __forceinline__ const uint16_t *stream_chunk(const cu_act &x, uint32_t kb0, uint32_t c)
{
    const uint32_t kb = c / (4 * TERMS), i = c / 4 % TERMS;

    return (i ? x.t[TERMS - 1] : x.t[0]) + (kb0 + kb) * 32 + (c & 3) * 8;
}

/* Row 0 of blocks [kb0, kb0 + n) to the warp's room, terms and sums: first weights are not waited for. */
template <int TERMS>
static __device__ __forceinline__ void stream_take_row(uint8_t *to, float *sums, const cu_act &x,
                                                       uint32_t kb0, uint32_t n)
{
    const uint32_t lane = threadIdx.x & 31, chunks = n * TERMS * 4;

    for (uint32_t c0 = 0; c0 < chunks; c0 += 32 * 5) {
        uint4 v[5];

#pragma unroll
        for (int j = 0; j < 5; j++)
            if (c0 + j * 32 + lane < chunks)
                v[j] = *reinterpret_cast<const uint4 *>(stream_chunk<TERMS>(x, kb0, c0 + j * 32 + lane));
#pragma unroll
        for (int j = 0; j < 5; j++)
            if (c0 + j * 32 + lane < chunks)
                *reinterpret_cast<uint4 *>(to + (size_t)(c0 + j * 32 + lane) * 16) = v[j];
    }
    for (uint32_t k = lane; k < n; k += 32)
        sums[k] = stream_sum(x, kb0 + k, 0);
    __syncwarp();
}

/* The same by two teams together, in long rows: all is under way at once, weights that were started too. */
template <int TERMS>
static __device__ __forceinline__ void stream_take_long_row(uint8_t *to, float *sums, const cu_act &x,
                                                            uint32_t kb0, uint32_t n, uint32_t team)
{
    const uint32_t lane = (threadIdx.x & 31) + team * 32;
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);

    for (uint32_t c = lane; c < n * TERMS * 4; c += 64)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + c * 16),
                     "l"(stream_chunk<TERMS>(x, kb0, c))
                     : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    for (uint32_t k = lane; k < n; k += 64)
        sums[k] = stream_sum(x, kb0 + k, 0);
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
}

/* Activations of blocks kb, kb + 1 and their sum; ONE: from the warp's room, of which `at` is block kb. */
template <int TERMS, int NT> struct stream_rows {
    uint4 x[2][NT][TERMS];
    float2 sum[NT];
};

template <int FMT, int TERMS, int NT, bool ONE>
static __device__ __forceinline__ void stream_load_rows(stream_rows<TERMS, NT> *to, const uint8_t *at,
                                                        const float *sums, const cu_act &x, uint32_t row0,
                                                        uint32_t n_row, uint32_t kb)
{
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;

#pragma unroll
    for (int n = 0; n < NT; n++) {
        const uint32_t row = min(row0 + n * 8 + g, n_row - 1); /* columns past the last row are not stored */

#pragma unroll
        for (int jj = 0; jj < 2; jj++)
#pragma unroll
            for (int i = 0; i < TERMS; i++)
                to->x[jj][n][i] = ONE ? *reinterpret_cast<const uint4 *>(at + (jj * TERMS + i) * 64 + t * 16)
                                      : *reinterpret_cast<const uint4 *>(x.t[i] + (size_t)row * x.ld +
                                                                         (kb + jj) * 32 + 8 * t);
        if (is_dense(FMT))
            continue;
        if (ONE) {
            to->sum[n].x = to->sum[n].y = sums[0] + sums[1];
            continue;
        }
        const size_t s = (size_t)kb * x.max_row + row0 + n * 8 + 2 * t;
        float2 a = *reinterpret_cast<const float2 *>(x.sums + s),
               b = *reinterpret_cast<const float2 *>(x.sums + s + x.max_row);

        if (x.more) {
            const float2 c = *reinterpret_cast<const float2 *>(x.more + s),
                         d = *reinterpret_cast<const float2 *>(x.more + s + x.max_row);

            a = make_float2(a.x + c.x, a.y + c.y);
            b = make_float2(b.x + d.x, b.y + d.y);
        }
        to->sum[n] = make_float2(a.x + b.x, a.y + b.y);
    }
}

#endif
