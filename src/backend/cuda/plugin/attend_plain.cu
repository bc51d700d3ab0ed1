/*
 * Attention over an f32 cache, and for heads that the tensor cores' kernels do not take: spans and merging of
 * attend.cu in plain f32, exact and slow.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/attend_block.cuh"

static __device__ __forceinline__ float kv_element(const cu_kv &kv, const uint8_t *base, size_t i)
{
    return kv.bf16 ? cu_bf16(reinterpret_cast<const uint16_t *>(base)[i])
                   : reinterpret_cast<const float *>(base)[i];
}

/*
 * Softmax numerators of a span's scores [QUERIES][SCORE_LD] in place; m and l of the span. Warp w does
 * queries 2w, 2w+1. Scores of positions that a query does not see are not read.
 */
static __device__ __forceinline__ void softmax(const block &k, uint32_t span, float *score, float *m,
                                               float *l)
{
    const uint32_t lane = threadIdx.x & 31;

    for (uint32_t i = threadIdx.x / 32 * 2; i < threadIdx.x / 32 * 2 + 2; i++) {
        const uint32_t vis = visible(k, span, i);
        float v[CU_SPAN / 32], top = -INFINITY, sum = 0;

#pragma unroll
        for (int j = 0; j < CU_SPAN / 32; j++) {
            v[j] = lane + j * 32 < vis ? score[i * SCORE_LD + lane + j * 32] : -INFINITY;
            top = fmaxf(top, v[j]);
        }
#pragma unroll
        for (int mask = 16; mask; mask >>= 1)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
#pragma unroll
        for (int j = 0; j < CU_SPAN / 32; j++) {
            v[j] = lane + j * 32 < vis ? expf(v[j] - top) : 0.0f;
            sum += v[j];
            score[i * SCORE_LD + lane + j * 32] = v[j];
        }
        sum = cu_warp_sum(sum);
        if (lane == 0) {
            m[i] = top;
            l[i] = sum;
        }
    }
}

template <bool SPLIT>
static __global__ void __launch_bounds__(THREADS)
    attend_plain(const __grid_constant__ cu_attention a, const __grid_constant__ cu_batch b)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    __shared__ float score[QUERIES * SCORE_LD], span_m[QUERIES], span_l[QUERIES];
    extern __shared__ __align__(16) float plain_shared[]; /* [QUERIES][dim] running sums, unused when split */
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, dim = a.kv.dim;
    running r[QUERIES];
    block k;

    if (!find_block(&k, a, b, SPLIT ? blockIdx.z % b.n_seq : blockIdx.z,
                    SPLIT ? blockIdx.z / b.n_seq : blockIdx.x))
        return;
    const uint32_t last = (k.pos + k.n_tok - 1) / CU_SPAN, first = SPLIT ? blockIdx.x : 0;

    if (first > last)
        return;
    for (uint32_t i = 0; i < QUERIES; i++)
        r[i] = {-INFINITY, 0};
    for (uint32_t e = threadIdx.x; !SPLIT && e < QUERIES * dim; e += THREADS)
        plain_shared[e] = 0;
    for (uint32_t span = first; span <= (SPLIT ? first : last); span++) {
        const uint32_t page = b.pages[k.s.page0 + span], limit = visible(k, span, k.n_query - 1);
        const uint8_t *kb = kv_at(a.kv, page, k.kv_head, 0), *vb = kv_at(a.kv, page, k.kv_head, 1);

        for (uint32_t p = warp; p < limit; p += THREADS / 32)
            for (uint32_t i = 0; i < k.n_query; i++) {
                float s = 0;

                for (uint32_t c = lane; c < dim; c += 32)
                    s = fmaf(a.q[query_at(k, a, i) + c], kv_element(a.kv, kb, (size_t)p * dim + c), s);
                s = cu_warp_sum(s);
                if (lane == 0)
                    score[i * SCORE_LD + p] = s;
            }
        __syncthreads();
        softmax(k, span, score, span_m, span_l);
        __syncthreads();
        for (uint32_t i = 0; i < k.n_query; i++) {
            const uint32_t vis = visible(k, span, i);
            const float2 f = merge_factors(&r[i], span_m[i], span_l[i]);
            float *part =
                SPLIT ? part_at(a, k.tok + i / k.rep, k.kv_head * k.rep + i % k.rep, span) : nullptr;

            for (uint32_t c = threadIdx.x; c < dim; c += THREADS) {
                float s = 0;

                for (uint32_t p = 0; p < vis; p++)
                    s = fmaf(score[i * SCORE_LD + p], kv_element(a.kv, vb, (size_t)p * dim + c), s);
                if (SPLIT)
                    part[c] = s;
                else
                    plain_shared[i * dim + c] = merged(plain_shared[i * dim + c], s, f);
            }
            if (SPLIT && threadIdx.x == 0) {
                part[dim] = span_m[i];
                part[dim + 1] = span_l[i];
            }
        }
        __syncthreads();
    }
    for (uint32_t i = 0; !SPLIT && i < k.n_query; i++)
        for (uint32_t c = threadIdx.x; c < dim; c += THREADS)
            a.y[query_at(k, a, i) + c] = plain_shared[i * dim + c] * inverse(r[i]);
}

void attend_plain_start(cudaStream_t s, const cu_attention *a, const cu_batch *b, dim3 grid, bool split)
{
    if (split)
        cu_start(s, attend_plain<true>, grid, THREADS, 0, *a, *b);
    else
        cu_start(s, attend_plain<false>, grid, THREADS, QUERIES * a->kv.dim * 4, *a, *b);
}

cudaError_t attend_plain_setup(uint32_t dim)
{
    return cudaFuncSetAttribute(attend_plain<false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)(QUERIES * dim * 4));
}
