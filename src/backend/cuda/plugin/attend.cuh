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
    return kv.pages + (size_t)page * kv.page_bytes + kv.layer_off + (size_t)(head * 2 + which) * kv.plane;
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

#endif
