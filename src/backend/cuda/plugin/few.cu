/*
 * The greatest logits of a row in two passes over it. Each of SHARES shares of a row has a greatest logit; of these the
 * RANK-th in order is a value that at least so many logits reach, and hardly more: everything from there on is
 * taken, in any order, so the set is exact whoever is first. Numbers compare as sampling does: -0 and +0 are
 * one. A row is spread over blocks, as one multiprocessor would read a megabyte for tens of microseconds.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdint.h>

#include "backend/cuda/plugin/few.h"
#include "backend/cuda/plugin/start.cuh"

enum {
    THREADS = 256,
    BLOCKS = CU_FEW_SHARES / THREADS, /* of a row */
    RANK = 160,                       /* hardly more logits reach it */
    AHEAD = 8,                        /* loads in flight */
    FEW = 512,                        /* ESP_FEW; run.c compares */
    BAD = 0xffffffff                  /* the greatest of a share with NaN or +inf: no number has these bits */
};

struct few_row { /* struct esp_few */
    uint32_t n, id[FEW];
    float value[FEW];
};

/* An unsigned integer that orders like x, never 0; x is not NaN. */
static __device__ __forceinline__ uint32_t ordered(float x)
{
    const uint32_t u = __float_as_uint(x + 0.0f);

    return u >> 31 ? ~u : u | 0x80000000u;
}

/* f(id, value) for the thread's share of a row. */
template <class F> static __device__ __forceinline__ void each(const float *row, uint32_t n, F f)
{
    for (uint32_t at = blockIdx.x * THREADS + threadIdx.x; at < n; at += CU_FEW_SHARES * AHEAD) {
        float v[AHEAD];

#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            v[i] = at + i * CU_FEW_SHARES < n ? row[at + i * CU_FEW_SHARES] : -INFINITY;
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            if (at + i * CU_FEW_SHARES < n)
                f(at + i * CU_FEW_SHARES, v[i]);
    }
}

/* The greatest logit of each share, [row][CU_FEW_SHARES]. */
static __global__ void __launch_bounds__(THREADS)
    few_of_shares(const float *logits, uint32_t n, uint32_t *shares, few_row *out)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    uint32_t most = 0;
    bool bad = false;

    each(logits + (size_t)blockIdx.y * n, n, [&](uint32_t, float x) {
        bad |= !(x < INFINITY);
        most = max(most, ordered(x));
    });
    shares[(size_t)blockIdx.y * CU_FEW_SHARES + blockIdx.x * THREADS + threadIdx.x] = bad ? BAD : most;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        out[blockIdx.y].n = 0;
}

/* All logits from the RANK-th greatest of the shares on; n counts those too that have no room. */
static __global__ void __launch_bounds__(THREADS)
    few_of_rows(const float *logits, uint32_t n, const uint32_t *shares, few_row *out)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    __shared__ uint32_t reach[32];
    few_row *few = out + blockIdx.y;
    uint32_t most[BLOCKS], limit = 0;
    bool bad = false;

#pragma unroll
    for (uint32_t i = 0; i < BLOCKS; i++) {
        most[i] = shares[(size_t)blockIdx.y * CU_FEW_SHARES + i * THREADS + threadIdx.x];
        bad |= most[i] == BAD;
    }
    if (threadIdx.x < 32)
        reach[threadIdx.x] = 0;
    if (__syncthreads_or(bad))
        return;
    for (int bit = 31; bit >= 0; bit--) { /* the greatest limit that RANK shares reach */
        uint32_t here = 0;

#pragma unroll
        for (uint32_t i = 0; i < BLOCKS; i++)
            here += most[i] >= (limit | 1u << bit);
        here = __reduce_add_sync(0xffffffffu, here);
        if (threadIdx.x % 32 == 0)
            atomicAdd(&reach[bit], here);
        __syncthreads();
        limit |= reach[bit] >= RANK ? 1u << bit : 0;
    }
    each(logits + (size_t)blockIdx.y * n, n, [&](uint32_t id, float x) {
        if (ordered(x) >= limit) {
            const uint32_t at = atomicAdd(&few->n, 1u);

            if (at < FEW) {
                few->id[at] = id;
                few->value[at] = x;
            }
        }
    });
}

void cu_few(cudaStream_t s, const float *logits, uint32_t n_vocab, uint32_t n_row, uint32_t *shares,
            struct esp_few *few)
{
    few_row *out = reinterpret_cast<few_row *>(few);

    cu_start(s, few_of_shares, dim3(BLOCKS, n_row), THREADS, 0, logits, n_vocab, shares, out);
    cu_start(s, few_of_rows, dim3(BLOCKS, n_row), THREADS, 0, logits, n_vocab, shares, out);
}
