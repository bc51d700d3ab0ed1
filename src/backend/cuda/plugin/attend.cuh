/*
 * What the attention kernels share: where keys, values and partial results lie, and how partials merge.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_ATTEND_CUH
#define ESP_BACKEND_CUDA_PLUGIN_ATTEND_CUH

#include "backend/cuda/plugin/start.cuh"

static __device__ __forceinline__ uint8_t *kv_at(const cu_kv &kv, uint32_t page, uint32_t head,
                                                 uint32_t which)
{
    return kv.pages + (size_t)page * kv.page_bytes + kv.layer_off +
           ((size_t)head * (kv.row[0] + kv.row[1]) + (which ? kv.row[0] : 0)) * CU_SPAN;
}

struct running {
    float m, l;
};

enum { CU_TILE = 64 }; /* positions of a span that enter its partial result together */

static __device__ __forceinline__ float exp_base2(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#define LOG2_E 1.4426950408889634f

/* What an exponent is taken against: a span of which nothing was seen yet has no largest score. */
static __device__ __forceinline__ float finite_top(float m)
{
    return m == -INFINITY ? 0.0f : m;
}

/*
 * Within a span, tiles of CU_TILE positions in ascending order: a tile's numerators against the largest score
 * so far, what came before times shrink(); so a span's sums need one pass. A tile that a query does not see
 * changes nothing.
 */
static __device__ __forceinline__ float numerator(float score, float top)
{
    return exp_base2(fmaf(score, LOG2_E, -(top * LOG2_E)));
}

static __device__ __forceinline__ float shrink(float m_before, float top)
{
    return exp_base2((m_before - top) * LOG2_E); /* 1 where the largest stays, 0 before the first tile */
}

/* Factors that merge a partial (m2, l2) into r, which is updated; an empty partial changes nothing. */
static __device__ __forceinline__ float2 merge_factors(running *r, float m2, float l2)
{
    const float top = fmaxf(r->m, m2);
    float2 f;

    if (l2 == 0)
        return make_float2(1, 0);
    f.x = expf(r->m - top); /* 0 before the first span */
    f.y = expf(m2 - top);
    r->m = top;
    r->l = fmaf(l2, f.y, r->l * f.x);
    return f;
}

static __device__ __forceinline__ float merged(float acc, float part, float2 f)
{
    return f.y == 0 && f.x == 1 ? acc : fmaf(part, f.y, acc * f.x);
}

/* What a sum over all spans is multiplied by in the end. */
static __device__ __forceinline__ float inverse(const running &r)
{
    return 1.0f / r.l;
}

/* A partial: dim sums, then m and l. */
static __device__ __forceinline__ float *part_at(const cu_attention &a, uint32_t tok, uint32_t head,
                                                 uint32_t span)
{
    return a.parts + (((size_t)tok * a.n_head + head) * a.part_spans + span) * (a.kv.dim + 8);
}

/*
 * Merging all partials of a (token, head) by a block of MERGE_THREADS: merge_factors() of many spans at once,
 * as a largest score so far is a prefix, then the sums in ascending order with their loads some spans ahead.
 * The bits are those of merge_factors() and merged() span after span.
 */
enum {
    MERGE_THREADS = 128,
    MERGE_AHEAD = 8,
    MERGE_PER = 4 /* elements of a head that a thread has, at most */
};

struct merge_room {
    float2 f[MERGE_THREADS];
    float l[MERGE_THREADS], top[MERGE_THREADS / 32];
};

/*
 * Factors of spans [first, first + MERGE_THREADS) to the room; m: the largest score of those before,
 * updated.
 */
static __device__ __forceinline__ void chunk_factors(const float *part, uint32_t stride, uint32_t dim,
                                                     uint32_t n, merge_room *room, float *m)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const bool any = threadIdx.x < n;
    const float *p = part + (size_t)threadIdx.x * stride + dim;
    const float l = any ? p[1] : 0.0f, own = any && l != 0 ? p[0] : -INFINITY;
    float top = own, before = *m, last;

#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, top, d);

        top = lane >= (uint32_t)d ? fmaxf(top, other) : top;
    }
    last = __shfl_up_sync(0xffffffffu, top, 1);
    if (lane == 31)
        room->top[warp] = top;
    __syncthreads();
#pragma unroll
    for (uint32_t w = 0; w < MERGE_THREADS / 32; w++) {
        before = w < warp ? fmaxf(before, room->top[w]) : before;
        *m = fmaxf(*m, room->top[w]);
    }
    last = lane ? fmaxf(before, last) : before;
    top = fmaxf(before, top);
    room->l[threadIdx.x] = l;
    room->f[threadIdx.x] = l == 0 ? make_float2(1, 0) : make_float2(expf(last - top), expf(own - top));
    __syncthreads();
}

/* acc[j]: the sum of element threadIdx.x + j * MERGE_THREADS; returns what it is multiplied by in the end. */
static __device__ __forceinline__ float merge_spans(const cu_attention &a, uint32_t tok, uint32_t head,
                                                    uint32_t n_span, merge_room *room, float acc[MERGE_PER])
{
    const uint32_t stride = a.kv.dim + 8, dim = a.kv.dim;
    running r = {-INFINITY, 0};

#pragma unroll
    for (int j = 0; j < MERGE_PER; j++)
        acc[j] = 0;
    for (uint32_t first = 0; first < n_span; first += MERGE_THREADS) {
        const uint32_t n = min(n_span - first, (uint32_t)MERGE_THREADS);
        const float *part = part_at(a, tok, head, first);

        chunk_factors(part, stride, dim, n, room, &r.m);
        for (uint32_t i = 0; i < n; i += MERGE_AHEAD) {
            float v[MERGE_AHEAD][MERGE_PER];

#pragma unroll
            for (uint32_t k = 0; k < MERGE_AHEAD; k++)
#pragma unroll
                for (uint32_t j = 0; j < MERGE_PER; j++) {
                    const uint32_t e = threadIdx.x + j * MERGE_THREADS;

                    v[k][j] = i + k < n && e < dim ? part[(size_t)(i + k) * stride + e] : 0.0f;
                }
#pragma unroll
            for (uint32_t k = 0; k < MERGE_AHEAD; k++) {
                if (i + k >= n)
                    break;
                const float2 f = room->f[i + k];
                const float l = room->l[i + k];

                r.l = l == 0 ? r.l : fmaf(l, f.y, r.l * f.x);
#pragma unroll
                for (uint32_t j = 0; j < MERGE_PER; j++)
                    acc[j] = merged(acc[j], v[k][j], f);
            }
        }
        __syncthreads(); /* the room is filled again */
    }
    return inverse(r);
}

#endif
