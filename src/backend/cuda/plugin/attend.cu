/*
 * Attention over the paged cache. Positions are reduced span by span (CU_SPAN positions at absolute borders):
 * each span's partial result is formed by itself and merged into the running one in ascending order, by one
 * formula. Steps of few tokens compute their spans in parallel and merge afterwards; long steps walk the
 * spans in one block (many rows: attend_many.cu). The bits are the same, since all do the same operations on
 * the same numbers.
 *
 * bf16 caches go through the tensor cores: queries and probabilities as one bf16 term each, or two (about 16
 * bits), keys and values as they are. Coded caches go the same way: what a code decodes to is rounded to bf16
 * on the way, keys in registers, values in shared memory. f32 caches take a plain f32 kernel: attend_plain.cu.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/attend_block.cuh"
#include "backend/cuda/plugin/kv.cuh"
#include "backend/cuda/plugin/kv_rotate.cuh"

enum {
    RAW_MOST = 32 << 10, /* bytes of a span's coded values that are worth shared memory */
    SLICE = 32           /* positions of V that go through shared memory together */
};

/* ---- merging
 * -------------------------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(MERGE_THREADS)
    merge(const __grid_constant__ cu_attention a, const __grid_constant__ cu_batch b)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    __shared__ merge_room room;
    const uint32_t tok = blockIdx.y, head = blockIdx.x;
    const cu_seq s = b.seqs[b.tok_seq[tok]];
    float acc[MERGE_PER], *y = a.y + ((size_t)tok * a.n_head + head) * a.kv.dim;
    const float by = merge_spans(a, tok, head, (s.n + tok - s.tok0) / CU_SPAN + 1, &room, acc);

#pragma unroll
    for (int j = 0; j < MERGE_PER; j++)
        if (threadIdx.x + j * MERGE_THREADS < a.kv.dim)
            y[threadIdx.x + j * MERGE_THREADS] = acc[j] * by;
}

/* A block is a (token, head). */
static __global__ void __launch_bounds__(128) unrotate(const __grid_constant__ cu_attention a)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    __shared__ float row[512];
    float *y = a.y + ((size_t)blockIdx.y * a.n_head + blockIdx.x) * a.kv.dim;

    for (uint32_t i = threadIdx.x; i < a.kv.dim; i += 128)
        row[i] = y[i];
    __syncthreads();
    unrotate_row(row, a.kv.dim, a.kv.code);
    for (uint32_t i = threadIdx.x; i < a.kv.dim; i += 128)
        y[i] = row[i];
}

void cu_unrotate(cudaStream_t s, const struct cu_attention *a, uint32_t n_tok)
{
    cu_start(s, unrotate, dim3(a->n_head, n_tok), 128, 0, *a);
}

/* ---- bf16 cache
 * ----------------------------------------------------------------------------------------------------- */

struct tensor_shared { /* offsets in bytes */
    uint32_t q, score, p, v, raw, levels, total;
};

/*
 * Coded rows: as few terms as there are, and values only where they are small, so that two blocks or three
 * fit a multiprocessor; others are read from the page, which is in the L2 cache by then.
 */
static __host__ __device__ __forceinline__ tensor_shared tensor_layout(const cu_kv &kv, uint32_t n_term,
                                                                       uint32_t n_buffer)
{
    const uint32_t terms = kv.code.kind ? n_term : 2;
    tensor_shared o;

    o.q = 0;                                             /* [terms][QUERIES][dim + 32] bf16 */
    o.score = o.q + terms * QUERIES * (kv.dim + 32) * 2; /* [QUERIES][SCORE_LD] f32 */
    o.p = o.score + QUERIES * SCORE_LD * 4;              /* [terms][QUERIES][SCORE_LD] bf16 */
    o.v = o.p + terms * QUERIES * SCORE_LD * 2;          /* [n_buffer][SLICE][dim + 8] bf16 */
    o.raw = o.v + n_buffer * SLICE * (kv.dim + 8) * 2;   /* values of a span as they lie in the page */
    o.levels = o.raw + (kv.code.kind && CU_SPAN * kv.row[1] <= RAW_MOST ? CU_SPAN * kv.row[1] : 0);
    o.total = o.levels + (kv.code.kind ? KV_LEVELS * 4 : 0);
    return o;
}

/*
 * Slices of V in shared memory. Spans in parallel are few blocks that wait for memory more than for anything else:
 * ALL of a span is on its way at once, where it fits.
 */
template <bool ALL> static __host__ __device__ constexpr uint32_t value_buffers(void)
{
    return ALL ? CU_SPAN / SLICE : 2;
}

/* x as bf16 terms, `apart` elements from one another. */
static __device__ __forceinline__ void split_terms(float x, uint32_t n_term, __nv_bfloat16 *to,
                                                   uint32_t apart)
{
    const __nv_bfloat16 h = __float2bfloat16_rn(x);

    to[0] = h;
    if (n_term > 1)
        to[apart] = __float2bfloat16_rn(x - __bfloat162float(h));
}

/*
 * Numerators of a span's scores [QUERIES][SCORE_LD] in place, tile by tile; factors [QUERIES][tiles] of what
 * came before each; m and l of the span. Warp w does queries 2w, 2w+1; eight lanes do a tile, lane e of them
 * columns e, e + 8, ...: sums are formed as a warp of attend_many.cu forms them. Scores of positions that a
 * query does not see are not read.
 */
static __device__ __forceinline__ void tile_softmax(const block &k, uint32_t span, float *score,
                                                    float *shrunk, float *m, float *l)
{
    const uint32_t lane = threadIdx.x & 31, tile = lane >> 3;

    for (uint32_t i = threadIdx.x / 32 * 2; i < threadIdx.x / 32 * 2 + 2; i++) {
        const uint32_t vis = visible(k, span, i), first = tile * CU_TILE + (lane & 7);
        float v[CU_TILE / 8], top = -INFINITY, before = -INFINITY, most = -INFINITY, sum = 0, all = 0;

#pragma unroll
        for (int j = 0; j < CU_TILE / 8; j++) {
            v[j] = first + j * 8 < vis ? score[i * SCORE_LD + first + j * 8] : -INFINITY;
            top = fmaxf(top, v[j]);
        }
#pragma unroll
        for (int mask = 4; mask; mask >>= 1)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
#pragma unroll
        for (uint32_t n = 0; n < CU_SPAN / CU_TILE; n++) {
            const float other = __shfl_sync(0xffffffffu, top, (int)n * 8);

            before = n < tile ? fmaxf(before, other) : before;
            most = n <= tile ? fmaxf(most, other) : most;
        }
        const float base = finite_top(most), less = shrink(before, base);

#pragma unroll
        for (int j = 0; j < CU_TILE / 8; j++) {
            const float p = numerator(v[j], base);

            sum += p;
            score[i * SCORE_LD + first + j * 8] = p;
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        sum += __shfl_xor_sync(0xffffffffu, sum, 4);
        if ((lane & 7) == 0)
            shrunk[i * (CU_SPAN / CU_TILE) + tile] = less;
#pragma unroll
        for (uint32_t n = 0; n < CU_SPAN / CU_TILE; n++)
            all = fmaf(all, __shfl_sync(0xffffffffu, less, (int)n * 8),
                       __shfl_sync(0xffffffffu, sum, (int)n * 8));
        if (lane == 31) {
            m[i] = most;
            l[i] = all;
        }
    }
}

/* Scores of the warp's 32 positions for all queries. */
template <bool CODED>
static __device__ __forceinline__ void tensor_scores(const cu_kv &kv, const uint8_t *k, uint32_t limit,
                                                     uint32_t n_term, const uint8_t *q, float *score)
{
    const uint32_t dim = kv.dim, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2,
                   t = lane & 3;
    enum { AHEAD = CODED ? 1 : 4 }; /* blocks of 32 elements on their way at once */
    const uint32_t ldq = (dim + 32) * 2;
    float acc[4][4] = {};

    if (warp * 32 >= limit)
        return;
    for (uint32_t kb0 = 0; kb0 < dim / 32; kb0 += AHEAD) {
        uint4 key[AHEAD][4];

#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++)
#pragma unroll
            for (int n = 0; n < 4 && kb0 + j < dim / 32; n++)
                key[j][n] =
                    CODED ? kv_octet<0>(kv, k, warp * 32 + n * 8 + g, (kb0 + j) * 4 + t, nullptr)
                          : *reinterpret_cast<const uint4 *>(k + (size_t)(warp * 32 + n * 8 + g) * dim * 2 +
                                                             (kb0 + j) * 64 + t * 16);
#pragma unroll
        for (uint32_t j = 0; j < AHEAD && kb0 + j < dim / 32; j++)
            for (uint32_t i = 0; i < n_term; i++) {
                const uint8_t *row = q + (size_t)(i * QUERIES + g) * ldq + (kb0 + j) * 64 + t * 16;
                const uint4 a = *reinterpret_cast<const uint4 *>(row),
                            b = *reinterpret_cast<const uint4 *>(row + (size_t)8 * ldq);

#pragma unroll
                for (int n = 0; n < 4; n++) {
                    cu_mma(acc[n], a.x, b.x, a.y, b.y, key[j][n].x, key[j][n].y);
                    cu_mma(acc[n], a.z, b.z, a.w, b.w, key[j][n].z, key[j][n].w);
                }
            }
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            score[(g + (e >= 2 ? 8 : 0)) * SCORE_LD + warp * 32 + n * 8 + 2 * t + (e & 1)] = acc[n][e];
}

/* Fetch positions [p0, p0 + SLICE) of V; zeros from `limit` on, so that stale rows cannot meet a zero
 * probability. */
static __device__ __forceinline__ void fetch_values(const uint8_t *v, uint32_t dim, uint32_t p0,
                                                    uint32_t limit, uint8_t *to)
{
    const uint32_t per = dim / 8, shared = (uint32_t)__cvta_generic_to_shared(to);

    for (uint32_t e = threadIdx.x; e < SLICE * per; e += THREADS) {
        const uint32_t row = e / per, c = e % per, bytes = p0 + row < limit ? 16 : 0;

        asm volatile(
            "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared + row * (dim + 8) * 2 + c * 16),
            "l"(v + ((size_t)(p0 + row) * dim + c * 8) * 2), "r"(bytes));
    }
    asm volatile("cp.async.commit_group;");
}

/* All values of a span that are seen, as they lie: `bytes` up to a multiple of 16. */
static __device__ __forceinline__ void fetch_raw(const uint8_t *v, uint32_t bytes, uint8_t *to)
{
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(to);

    for (uint32_t e = threadIdx.x * 16; e < bytes; e += THREADS * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared + e), "l"(v + e));
    asm volatile("cp.async.commit_group;");
}

/* fetch_values() of coded rows. */
static __device__ __forceinline__ void decode_values(const cu_kv &kv, const uint8_t *raw, const float *levels,
                                                     uint32_t p0, uint32_t limit, uint8_t *to)
{
    const uint32_t per = kv.dim / 8;

    for (uint32_t e = threadIdx.x; e < SLICE * per; e += THREADS) {
        const uint32_t row = e / per, c = e % per;
        uint4 v = make_uint4(0, 0, 0, 0);

        if (p0 + row < limit)
            v = kv_octet<1>(kv, raw, p0 + row, c, levels);
        *reinterpret_cast<uint4 *>(to + row * (kv.dim + 8) * 2 + c * 16) = v;
    }
}

/* acc[pair][tile] += P V over one slice; the warp owns columns 16 * (warp + 8 * pair). */
template <int NP>
static __device__ __forceinline__ void slice_values(float acc[NP][2][4], const uint8_t *p, const uint8_t *v,
                                                    uint32_t dim, uint32_t p0, uint32_t n_term)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const uint32_t vs = (uint32_t)__cvta_generic_to_shared(v);

#pragma unroll
    for (int step = 0; step < SLICE / 16; step++) {
        uint32_t a[2][4];

#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
#pragma unroll
            for (int e = 0; e < 4 && i < n_term; e++)
                a[i][e] = *reinterpret_cast<const uint32_t *>(
                    p +
                    ((i * QUERIES + g + (e & 1) * 8) * SCORE_LD + p0 + step * 16 + (e >> 1) * 8 + 2 * t) * 2);
#pragma unroll
        for (int n = 0; n < NP; n++) {
            const uint32_t col = (warp + 8 * n) * 16;
            uint32_t b[4];

            if (col >= dim)
                continue;
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                         : "r"(vs + ((step * 16 + (lane & 15)) * (dim + 8) + col + (lane >> 4) * 8) * 2));
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                if (i >= n_term)
                    break;
                cu_mma(acc[n][0], a[i][0], a[i][1], a[i][2], a[i][3], b[0], b[1]);
                cu_mma(acc[n][1], a[i][0], a[i][1], a[i][2], a[i][3], b[2], b[3]);
            }
        }
    }
}

template <int NP, bool CODED, bool ALL>
static __device__ __forceinline__ void span_values(float acc[NP][2][4], const cu_kv &kv, const uint8_t *v,
                                                   uint32_t limit, uint32_t n_term, const float *shrunk,
                                                   uint8_t *shared, const tensor_shared &o)
{
    const uint32_t g = (threadIdx.x & 31) >> 2, dim = kv.dim;
    const uint32_t n_slice = (limit + SLICE - 1) / SLICE, buffer = SLICE * (dim + 8) * 2;

    if (ALL) {
        asm volatile("cp.async.wait_group 0;");
        __syncthreads();
    }
    for (uint32_t i = 0; i < n_slice; i++) {
        if (ALL) {
        } else if (CODED) {
            if (i + 1 < n_slice)
                decode_values(kv, o.raw < o.levels ? shared + o.raw : v,
                              reinterpret_cast<const float *>(shared + o.levels), (i + 1) * SLICE, limit,
                              shared + o.v + ((i + 1) & 1) * buffer);
        } else if (i + 1 < n_slice) {
            fetch_values(v, dim, (i + 1) * SLICE, limit, shared + o.v + ((i + 1) & 1) * buffer);
            asm volatile("cp.async.wait_group 1;");
        } else {
            asm volatile("cp.async.wait_group 0;");
        }
        if (!ALL)
            __syncthreads();
        if (i && i % (CU_TILE / SLICE) == 0) { /* a tile begins */
            const uint32_t tile = i / (CU_TILE / SLICE);
            const float f0 = shrunk[g * (CU_SPAN / CU_TILE) + tile],
                        f1 = shrunk[(g + 8) * (CU_SPAN / CU_TILE) + tile];

#pragma unroll
            for (int n = 0; n < NP; n++)
#pragma unroll
                for (int e = 0; e < 8; e++)
                    acc[n][e >> 2][e & 3] *= e & 2 ? f1 : f0;
        }
        slice_values<NP>(acc, shared + o.p, shared + o.v + (ALL ? i : i & 1) * buffer, dim, i * SLICE,
                         n_term);
        if (!ALL)
            __syncthreads(); /* the buffer is fetched into again */
    }
}

/* A block's queries as terms, [term][QUERIES][dim + 32]. */
static __device__ __forceinline__ void take_queries(const block &k, const cu_attention &a, __nv_bfloat16 *to)
{
    enum { AHEAD = 8 };
    const uint32_t dim = a.kv.dim;

    for (uint32_t e0 = threadIdx.x; e0 < QUERIES * dim; e0 += THREADS * AHEAD) {
        float v[AHEAD];

#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            const uint32_t e = e0 + j * THREADS, i = e / dim;

            v[j] = e < QUERIES * dim && i < k.n_query ? a.q[query_at(k, a, i) + e % dim] : 0.0f;
        }
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            const uint32_t e = e0 + j * THREADS;

            if (e < QUERIES * dim)
                split_terms(v[j], a.n_term, &to[e / dim * (dim + 32) + e % dim], QUERIES * (dim + 32));
        }
    }
}

/* Keys and values of a block's span on their way to the L2 cache while the kernel before still works: all but
 * the last rows are older. */
static __device__ __forceinline__ void fetch_span(const cu_attention &a, const cu_batch &b)
{
#if __CUDA_ARCH__ >= 900
    block k;

    if (threadIdx.x >= 2 || !find_block(&k, a, b, blockIdx.z % b.n_seq, blockIdx.z / b.n_seq))
        return;
    const uint32_t rows = visible(k, blockIdx.x, k.n_query - 1),
                   bytes = (rows * a.kv.row[threadIdx.x] + 15) / 16 * 16;

    if (rows)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                         kv_at(a.kv, b.pages[k.s.page0 + blockIdx.x], k.kv_head, threadIdx.x)),
                     "r"(bytes)
                     : "memory");
#endif
}

template <int NP, bool SPLIT, bool CODED, bool ALL>
static __global__ void __launch_bounds__(THREADS)
    attend_tensor(const __grid_constant__ cu_attention a, const __grid_constant__ cu_batch b)
{
    if (SPLIT)
        fetch_span(a, b);
    cu_let_next_start();
    cu_wait_for_inputs();
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float span_m[QUERIES], span_l[QUERIES], shrunk[QUERIES * (CU_SPAN / CU_TILE)];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3,
                   dim = a.kv.dim;
    const tensor_shared o = tensor_layout(a.kv, a.n_term, value_buffers<ALL>());
    float *score = reinterpret_cast<float *>(shared + o.score);
    float sum[NP][2][4] = {};
    running r[2] = {{-INFINITY, 0}, {-INFINITY, 0}}; /* of queries g and g + 8 */
    block k;

    if (!find_block(&k, a, b, SPLIT ? blockIdx.z % b.n_seq : blockIdx.z,
                    SPLIT ? blockIdx.z / b.n_seq : blockIdx.x))
        return;
    const uint32_t last = (k.pos + k.n_tok - 1) / CU_SPAN; /* span of the last query's own position */
    const uint32_t first = SPLIT ? blockIdx.x : 0;

    if (first > last)
        return;
    take_queries(k, a, reinterpret_cast<__nv_bfloat16 *>(shared + o.q));
    if (CODED)
        take_levels(a.kv, reinterpret_cast<float *>(shared + o.levels));
    __syncthreads();
    for (uint32_t span = first; span <= (SPLIT ? first : last); span++) {
        const uint32_t page = b.pages[k.s.page0 + span], limit = visible(k, span, k.n_query - 1);
        const uint8_t *values = kv_at(a.kv, page, k.kv_head, 1);
        float acc[NP][2][4] = {};

        if (CODED && o.raw < o.levels)
            fetch_raw(values, limit * a.kv.row[1], shared + o.raw);
        for (uint32_t i = 0; !CODED && i < (ALL ? (limit + SLICE - 1) / SLICE : 1); i++)
            fetch_values(values, dim, i * SLICE, limit, shared + o.v + i * (SLICE * (dim + 8) * 2));
        tensor_scores<CODED>(a.kv, kv_at(a.kv, page, k.kv_head, 0), limit, a.n_term, shared + o.q, score);
        if (CODED)
            asm volatile("cp.async.wait_group 0;");
        __syncthreads();
        if (CODED)
            decode_values(a.kv, o.raw < o.levels ? shared + o.raw : values,
                          reinterpret_cast<const float *>(shared + o.levels), 0, limit, shared + o.v);
        tile_softmax(k, span, score, shrunk, span_m, span_l);
        __syncwarp();
        for (uint32_t i = warp * 2; i < warp * 2 + 2; i++) /* the warp's own two queries, as terms */
            for (uint32_t j = lane; j < CU_SPAN; j += 32)
                split_terms(score[i * SCORE_LD + j], a.n_term,
                            reinterpret_cast<__nv_bfloat16 *>(shared + o.p) + i * SCORE_LD + j,
                            QUERIES * SCORE_LD);
        __syncthreads();
        span_values<NP, CODED, ALL>(acc, a.kv, values, limit, a.n_term, shrunk, shared, o);
        if (SPLIT) {
#pragma unroll
            for (int n = 0; n < NP; n++)
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    const uint32_t i = g + (e & 2 ? 8 : 0),
                                   c = (warp + 8 * n) * 16 + (e >> 2) * 8 + 2 * t + (e & 1);

                    if (i < k.n_query && c < dim)
                        part_at(a, k.tok + i / k.rep, k.kv_head * k.rep + i % k.rep, span)[c] =
                            acc[n][e >> 2][e & 3];
                }
            if (threadIdx.x < k.n_query) {
                const uint32_t i = threadIdx.x;
                float *p = part_at(a, k.tok + i / k.rep, k.kv_head * k.rep + i % k.rep, span) + dim;

                p[0] = span_m[i];
                p[1] = span_l[i];
            }
            return;
        }
        const float2 f0 = merge_factors(&r[0], span_m[g], span_l[g]),
                     f1 = merge_factors(&r[1], span_m[g + 8], span_l[g + 8]);

#pragma unroll
        for (int n = 0; n < NP; n++)
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum[n][e >> 2][e & 3] = merged(sum[n][e >> 2][e & 3], acc[n][e >> 2][e & 3], e & 2 ? f1 : f0);
        __syncthreads(); /* span_m, span_l and the scores are written again */
    }
#pragma unroll
    for (int n = 0; n < NP; n++)
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const uint32_t i = g + (e & 2 ? 8 : 0), c = (warp + 8 * n) * 16 + (e >> 2) * 8 + 2 * t + (e & 1);

            if (i < k.n_query && c < dim)
                a.y[query_at(k, a, i) + c] = sum[n][e >> 2][e & 3] * inverse(r[e & 2 ? 1 : 0]);
        }
}

/* ---- choosing
 * ------------------------------------------------------------------------------------------------------- */

template <bool ALL> static uint32_t tensor_bytes(const cu_kv &kv, uint32_t n_term)
{
    return tensor_layout(kv, n_term, value_buffers<ALL>()).total;
}

/* Whether all values of a span fit into shared memory: heads of up to 256 on large devices. */
template <int NP, bool SPLIT, bool CODED> static bool takes_all(const cu_kv &kv, uint32_t n_term)
{
    return SPLIT && !CODED && NP <= 2 && tensor_bytes<true>(kv, n_term) <= cu_most_shared();
}

template <int NP, bool SPLIT, bool CODED>
static void start_tensor(cudaStream_t s, const cu_attention *a, const cu_batch *b, dim3 grid)
{
    /* more blocks than multiprocessors: two of them share one */
    if (grid.x * grid.y * grid.z <= cu_multiprocessors() && takes_all<NP, SPLIT, CODED>(a->kv, a->n_term))
        cu_start(s, attend_tensor < NP, SPLIT, CODED, SPLIT && !CODED && NP <= 2 >, grid, THREADS,
                 tensor_bytes<true>(a->kv, a->n_term), *a, *b);
    else
        cu_start(s, attend_tensor<NP, SPLIT, CODED, false>, grid, THREADS,
                 tensor_bytes<false>(a->kv, a->n_term), *a, *b);
}

template <bool SPLIT, bool CODED>
static void launch_tensor(cudaStream_t s, const cu_attention *a, const cu_batch *b, dim3 grid)
{
    if (a->kv.dim <= 128)
        start_tensor<1, SPLIT, CODED>(s, a, b, grid);
    else if (a->kv.dim <= 256)
        start_tensor<2, SPLIT, CODED>(s, a, b, grid);
    else
        start_tensor<4, SPLIT, CODED>(s, a, b, grid);
}

template <bool SPLIT> static void launch(cudaStream_t s, const cu_attention *a, const cu_batch *b, dim3 grid)
{
    if (a->kv.code.kind) /* heads are a multiple of 32 then */
        launch_tensor<SPLIT, true>(s, a, b, grid);
    else if (a->kv.bf16 && a->kv.dim % 32 == 0)
        launch_tensor<SPLIT, false>(s, a, b, grid);
    else
        attend_plain_start(s, a, b, grid, SPLIT);
}

void cu_attend_spans(cudaStream_t s, const struct cu_attention *a, const struct cu_batch *b,
                     const struct cu_shape *h)
{
    const uint32_t rep = a->n_head / a->kv.n_kv, per = rep < QUERIES ? QUERIES / rep : 1;

    launch<true>(s, a, b, dim3(h->max_span, a->kv.n_kv, h->n_seq * ((h->max_seq_tok + per - 1) / per)));
}

void cu_attend(cudaStream_t s, const struct cu_attention *a, const struct cu_batch *b,
               const struct cu_shape *h)
{
    const uint32_t rep = a->n_head / a->kv.n_kv, per = rep < QUERIES ? QUERIES / rep : 1;
    const uint32_t n_block = (h->max_seq_tok + per - 1) / per;

    if (h->n_tok <= CU_SPLIT_TOKENS && h->max_span > 1) {
        cu_attend_spans(s, a, b, h);
        cu_start(s, merge, dim3(a->n_head, h->n_tok), MERGE_THREADS, 0, *a, *b);
    } else if (cu_attend_many_takes(a, h)) {
        cu_attend_many(s, a, b, h);
    } else {
        launch<false>(s, a, b, dim3(n_block, a->kv.n_kv, h->n_seq));
    }
    if (a->kv.code.kind == CU_KV_TURBO)
        cu_unrotate(s, a, h->n_tok);
}

template <int NP, bool SPLIT, bool CODED> static cudaError_t allow(const cu_kv &kv, uint32_t n_term)
{
    const cudaError_t e = cudaFuncSetAttribute(attend_tensor<NP, SPLIT, CODED, false>,
                                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               (int)tensor_bytes<false>(kv, n_term));

    if (e != cudaSuccess || !takes_all<NP, SPLIT, CODED>(kv, n_term))
        return e;
    return cudaFuncSetAttribute(attend_tensor < NP, SPLIT, CODED, SPLIT && !CODED && NP <= 2 >,
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)tensor_bytes<true>(kv, n_term));
}

template <bool SPLIT, bool CODED> static cudaError_t allow_dim(const cu_kv &kv, uint32_t n_term)
{
    return kv.dim <= 128   ? allow<1, SPLIT, CODED>(kv, n_term)
           : kv.dim <= 256 ? allow<2, SPLIT, CODED>(kv, n_term)
                           : allow<4, SPLIT, CODED>(kv, n_term);
}

template <bool CODED> static cudaError_t allow_both(const cu_kv &kv, uint32_t n_term)
{
    const cudaError_t e = allow_dim<true, CODED>(kv, n_term);

    return e == cudaSuccess ? allow_dim<false, CODED>(kv, n_term) : e;
}

cudaError_t cu_attend_setup(uint32_t dim)
{
    cudaError_t e = attend_plain_setup(dim);
    cu_kv kv = {};

    kv.dim = dim;
    if (e == cudaSuccess)
        e = cu_attend_many_setup();
    return e == cudaSuccess ? allow_both<false>(kv, 2) : e;
}

cudaError_t cu_attend_coded_setup(const struct cu_attention *a)
{
    return allow_both<true>(a->kv, a->n_term);
}
