/*
 * The greatest logits of a row in two passes over it by one block. Each thread finds the greatest of its
 * share; of these the RANK-th in order is a value that at least so many logits reach, and hardly more:
 * everything from there on is taken, in any order, so the set is exact whatever the threads do. Numbers
 * compare as sampling does: -0 and +0 are one.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdint.h>

#include "backend/cuda/plugin/few.h"
#include "backend/cuda/plugin/start.cuh"

enum {
    THREADS = 1024,
    RANK = 160, /* about 175 logits of 1024 shares reach it */
    AHEAD = 8,  /* loads in flight */
    FEW = 512   /* ESP_FEW; run.c compares */
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
    for (uint32_t at = threadIdx.x; at < n; at += THREADS * AHEAD) {
        float v[AHEAD];

#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            v[i] = at + i * THREADS < n ? row[at + i * THREADS] : -INFINITY;
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            if (at + i * THREADS < n)
                f(at + i * THREADS, v[i]);
    }
}

static __global__ void __launch_bounds__(THREADS) few_of_rows(const float *logits, uint32_t n, few_row *out)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    __shared__ uint32_t n_found;
    const float *row = logits + (size_t)blockIdx.x * n;
    few_row *few = out + blockIdx.x;
    uint32_t most = 0, limit = 0;
    bool bad = false;

    if (threadIdx.x == 0)
        n_found = 0;
    each(row, n, [&](uint32_t, float x) {
        bad |= !(x < INFINITY);
        most = max(most, ordered(x));
    });
    if (__syncthreads_or(bad)) {
        if (threadIdx.x == 0)
            few->n = 0;
        return;
    }
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1) /* the greatest limit that RANK threads reach */
        if (__syncthreads_count(most >= (limit | bit)) >= RANK)
            limit |= bit;
    each(row, n, [&](uint32_t id, float x) {
        if (ordered(x) >= limit) {
            const uint32_t at = atomicAdd(&n_found, 1u);

            if (at < FEW) {
                few->id[at] = id;
                few->value[at] = x;
            }
        }
    });
    __syncthreads();
    if (threadIdx.x == 0)
        few->n = n_found <= FEW ? n_found : 0;
}

void cu_few(cudaStream_t s, const float *logits, uint32_t n_vocab, uint32_t n_row, struct esp_few *few)
{
    cu_start(s, few_of_rows, dim3(n_row), THREADS, 0, logits, n_vocab, reinterpret_cast<few_row *>(few));
}
