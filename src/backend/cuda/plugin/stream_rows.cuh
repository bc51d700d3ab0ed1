/*
 * Activations of streamed products: one row's terms in shared memory, a part a warp, several rows straight
 * from the caches.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_STREAM_ROWS_CUH
#define ESP_BACKEND_CUDA_PLUGIN_STREAM_ROWS_CUH

#include "backend/cuda/plugin/operand.cuh"

/* Bytes of a warp in shared memory: of one row's terms and sums, or of the sums of several rows. */
static __host__ __device__ __forceinline__ uint32_t stream_row_bytes(uint32_t part_quads, uint32_t n_term)
{
    return part_quads * 4 * (n_term * 64 + 4);
}

static __host__ __device__ __forceinline__ uint32_t stream_sum_bytes(uint32_t part_quads, uint32_t n_row)
{
    return part_quads * 2 * n_row * 4;
}

/* Sum of x over the group of 64 that begins with block kb. */
static __device__ __forceinline__ float stream_sum(const cu_act &x, uint32_t kb, uint32_t row)
{
    const float *at = x.sums + (size_t)kb * x.max_row + row;
    float a = at[0], b = at[x.max_row];

    if (x.more) {
        const float *more = x.more + (size_t)kb * x.max_row + row;
        const float c = more[0], d = more[x.max_row];

        a += c;
        b += d;
    }
    return a + b;
}

/* Chunk c, of 16 bytes, of row 0's terms from block kb0 on: [block][term][64 bytes]. */
template <int TERMS>
static __device__ __forceinline__ const uint16_t *stream_chunk(const cu_act &x, uint32_t kb0, uint32_t c)
{
    const uint32_t kb = c / (4 * TERMS), i = c / 4 % TERMS;

    return (i ? x.t[TERMS - 1] : x.t[0]) + (kb0 + kb) * 32 + (c & 3) * 8;
}

/*
 * Row 0 of blocks [kb0, kb0 + n) to the room of a part, terms and sums of 64, by the warps of all teams that share
 * it: first weights are not waited for, and all that is read is under way before anything is written.
 */
template <int FMT, int TERMS, int TEAMS>
static __device__ __forceinline__ void stream_take_row(uint8_t *to, float *sums, const cu_act &x,
                                                       uint32_t kb0, uint32_t n, uint32_t team)
{
    enum { LANES = 32 * TEAMS, AHEAD = 5 };
    const uint32_t lane = (threadIdx.x & 31) + team * 32, chunks = n * TERMS * 4;
    float sum = 0;

    if (!is_dense(FMT) && lane < n / 2)
        sum = stream_sum(x, kb0 + 2 * lane, 0);
    for (uint32_t c0 = lane; c0 < chunks; c0 += LANES * AHEAD) {
        uint4 v[AHEAD];

#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (c0 + j * LANES < chunks)
                v[j] = *reinterpret_cast<const uint4 *>(stream_chunk<TERMS>(x, kb0, c0 + j * LANES));
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (c0 + j * LANES < chunks)
                *reinterpret_cast<uint4 *>(to + (size_t)(c0 + j * LANES) * 16) = v[j];
    }
    if (!is_dense(FMT) && lane < n / 2)
        sums[lane] = sum;
    for (uint32_t k = lane + LANES; !is_dense(FMT) && k < n / 2; k += LANES)
        sums[k] = stream_sum(x, kb0 + 2 * k, 0);
    if (TEAMS > 1)
        __syncthreads();
    else
        __syncwarp();
}

/* Sums of 64 of all rows to the warp's room, [group][NT * 8]. */
template <int NT>
static __device__ __forceinline__ void stream_take_sums(float *to, const cu_act &x, uint32_t kb0, uint32_t n,
                                                        uint32_t row0)
{
    for (uint32_t k = threadIdx.x & 31; k < n / 2 * (NT * 8); k += 32)
        to[k] = stream_sum(x, kb0 + k / (NT * 8) * 2, row0 + k % (NT * 8));
    __syncwarp();
}

/* Activations of blocks kb and kb + 1. */
template <int TERMS, int NT> struct stream_rows {
    uint4 x[2][NT][TERMS];
};

/* Where in a term this lane reads several rows from: bytes. */
template <int NT> struct stream_lines {
    uint32_t at[NT];
};

template <int NT>
static __device__ __forceinline__ void stream_find_lines(stream_lines<NT> *to, const cu_act &x, uint32_t row0,
                                                         uint32_t n_row, uint32_t kb0)
{
    const uint32_t lane = threadIdx.x & 31;

#pragma unroll
    for (int n = 0; n < NT; n++) {
        /* columns past the last row are not stored */
        const uint32_t row = min(row0 + n * 8 + (lane >> 2), n_row - 1);

        to->at[n] = (row * x.ld + kb0 * 32) * 2 + (lane & 3) * 16;
    }
}

/* Half quad `here` of the part: of one row from the warp's room, of several from the caches. */
template <int TERMS, int NT, bool ONE>
static __device__ __forceinline__ void stream_load_rows(stream_rows<TERMS, NT> *to, const uint8_t *room,
                                                        const cu_act &x, const stream_lines<NT> &lines,
                                                        uint32_t here)
{
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int jj = 0; jj < 2; jj++)
#pragma unroll
            for (int i = 0; i < TERMS; i++)
                to->x[jj][n][i] = *reinterpret_cast<const uint4 *>(
                    ONE ? room + (here * 2 + jj) * (TERMS * 64) + i * 64 + (threadIdx.x & 3) * 16
                        : reinterpret_cast<const uint8_t *>(x.t[i]) + (lines.at[n] + here * 128) + jj * 64);
}

#endif
