/*
 * Attention of many rows over a bf16 or coded cache: a block takes 128 queries of one KV head (the heads that
 * share it and successive tokens), a warp 16 of them, and walks the context in tiles of CU_TILE positions
 * that arrive in shared memory some steps ahead. Scores, numerators and a span's sums stay in registers; sums
 * of finished spans wait where the result goes. Coded rows arrive as they lie in the page and are decoded
 * from there into the tile, once for all queries. The operations and their order are those of attend.cu, so
 * the bits are those of small steps.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/kv.cuh"

enum {
    ROWS = 128,
    THREADS = 256,
    MIN_QUERIES = 256, /* of a sequence; for fewer, small blocks spread over more multiprocessors */
    TILES_OF_SPAN = CU_SPAN / CU_TILE
};

/* ---- where things lie
 * ----------------------------------------------------------------------------------------------------- */

/*
 * Rows of keys are read 16 bytes a lane from two rows at a time, rows of values by ldmatrix. Queries lie as
 * left factors: [term][16 rows][16 inputs][lane][16 bytes].
 */
template <int DIM> struct place_of {
    static const uint32_t ld_k = (DIM + 32) * 2, ld_v = (DIM + 8) * 2;
    static const uint32_t keys = CU_TILE * ld_k, values = CU_TILE * ld_v;
};

template <int DIM, int TERMS> struct room_of {
    static const uint32_t stages = TERMS == 1 ? 4 : 2; /* tiles of keys and of values in turn */
    static const uint32_t queries = TERMS * ROWS * DIM * 2;
    static const uint32_t pair = place_of<DIM>::keys + place_of<DIM>::values;
    static const uint32_t bytes = queries + stages / 2 * pair;
    static const uint32_t raw = queries + pair; /* coded: one tile of each, then rows as they lie */
};

static __host__ __device__ __forceinline__ uint32_t raw_bytes(const cu_kv &kv, uint32_t which)
{
    return CU_TILE * kv.row[which];
}

struct walk { /* of a block */
    cu_seq s;
    uint32_t rep, kv_head, q0, n_query; /* query q: head kv_head * rep + q % rep of token q / rep */
    uint32_t limit, n_tile;             /* positions that its last query sees */
};

static __device__ __forceinline__ bool find_walk(walk *w, const cu_attention &a, const cu_batch &b)
{
    w->s = b.seqs[blockIdx.z];
    w->rep = a.n_head / a.kv.n_kv;
    w->kv_head = blockIdx.y;
    w->n_query = w->s.n_tok * w->rep;
    const uint32_t n_block = (w->n_query + ROWS - 1) / ROWS;

    if (blockIdx.x >= n_block)
        return false;
    w->q0 = (n_block - 1 - blockIdx.x) * ROWS; /* long walks begin first */
    w->limit = w->s.n + (min(w->q0 + ROWS, w->n_query) - 1) / w->rep + 1;
    w->n_tile = (w->limit + CU_TILE - 1) / CU_TILE;
    return true;
}

static __device__ __forceinline__ size_t query_at(const walk &w, const cu_attention &a, uint32_t q)
{
    return ((size_t)(w.s.tok0 + q / w.rep) * a.n_head + w.kv_head * w.rep + q % w.rep) * a.kv.dim;
}

/* ---- copies
 * -------------------------------------------------------------------------------------------------------- */

/*
 * A thread takes 8 inputs of a row: those of lane t of a block of 32, in the order of tensor_scores(): 4 for
 * one product, 4 for the next.
 */
template <int DIM, int TERMS>
static __device__ __forceinline__ void take_queries(const walk &w, const cu_attention &a, uint8_t *to)
{
    for (uint32_t e = threadIdx.x; e < ROWS * (DIM / 8); e += THREADS) {
        const uint32_t row = e / (DIM / 8), c = e % (DIM / 8), block = c / 4, t = c % 4;
        uint32_t *at = reinterpret_cast<uint32_t *>(to) +
                       ((row / 16 * (DIM / 16) + block * 2) * 32 + row % 8 * 4 + t) * 4 + row / 8 % 2;
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};

        if (w.q0 + row < w.n_query)
            cu_load8(a.q + query_at(w, a, w.q0 + row) + c * 8, v);
#pragma unroll
        for (int term = 0; term < TERMS; term++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t pack = cu_bf16x2(v[2 * i], v[2 * i + 1]);

                v[2 * i] -= cu_bf16((uint16_t)(pack & 0xffff));
                v[2 * i + 1] -= cu_bf16((uint16_t)(pack >> 16));
                at[term * (ROWS * DIM / 2) + i / 2 * 128 + i % 2 * 2] = pack;
            }
    }
}

/* Keys (which 0) or values (1) of a tile on their way to shared memory; zeros behind the last position. */
template <int DIM>
static __device__ __forceinline__ void fetch(const walk &w, const cu_attention &a, const cu_batch &b,
                                             uint32_t tile, uint32_t which, uint32_t to)
{
    const uint32_t page = b.pages[w.s.page0 + tile / TILES_OF_SPAN];
    const uint32_t ld = which ? place_of<DIM>::ld_v : place_of<DIM>::ld_k;
    const uint8_t *from =
        kv_at(a.kv, page, w.kv_head, which) + (size_t)(tile % TILES_OF_SPAN) * CU_TILE * DIM * 2;

#pragma unroll
    for (uint32_t i = 0; i < CU_TILE * (DIM / 8) / THREADS; i++) {
        const uint32_t e = i * THREADS + threadIdx.x, row = e / (DIM / 8), c = e % (DIM / 8);

        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + row * ld + c * 16),
                     "l"(from + (size_t)e * 16), "r"(tile * CU_TILE + row < w.limit ? 16 : 0)
                     : "memory");
    }
}

/* Step i of a walk fetches keys (even) or values (odd) of tile i / 2. */
template <int DIM, int TERMS>
static __device__ __forceinline__ void fetch_step(const walk &w, const cu_attention &a, const cu_batch &b,
                                                  uint32_t i, uint32_t buffers)
{
    const uint32_t pair = place_of<DIM>::keys + place_of<DIM>::values;

    if (i < 2 * w.n_tile)
        fetch<DIM>(w, a, b, i / 2, i & 1,
                   buffers + i / 2 % (room_of<DIM, TERMS>::stages / 2) * pair +
                       (i & 1 ? place_of<DIM>::keys : 0));
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait for step i, for all warps to be done with the one before, and begin the one that takes its place. */
template <int DIM, int TERMS>
static __device__ __forceinline__ void next_step(const walk &w, const cu_attention &a, const cu_batch &b,
                                                 uint32_t i, uint32_t buffers)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(room_of<DIM, TERMS>::stages - 2) : "memory");
    __syncthreads();
    fetch_step<DIM, TERMS>(w, a, b, i + room_of<DIM, TERMS>::stages - 1, buffers);
}

/* ---- coded rows
 * ---------------------------------------------------------------------------------------------------- */

/* Where a block's parts lie in shared memory. */
struct coded_room {
    uint8_t *tile[2], *raw[2]; /* of keys, of values */
    float *levels;
};

template <int DIM, int TERMS>
static __device__ __forceinline__ coded_room coded_places(const cu_kv &kv, uint8_t *shared)
{
    coded_room r;

    r.tile[0] = shared + room_of<DIM, TERMS>::queries;
    r.tile[1] = r.tile[0] + place_of<DIM>::keys;
    r.raw[0] = shared + room_of<DIM, TERMS>::raw;
    r.raw[1] = r.raw[0] + raw_bytes(kv, 0);
    r.levels = reinterpret_cast<float *>(r.raw[1] + raw_bytes(kv, 1));
    return r;
}

/* All rows of a tile, as they lie, on their way; beyond the last tile nothing. */
static __device__ __forceinline__ void fetch_raw(const walk &w, const cu_attention &a, const cu_batch &b,
                                                 uint32_t tile, uint32_t which, uint8_t *to)
{
    if (tile < w.n_tile) {
        const uint32_t page = b.pages[w.s.page0 + tile / TILES_OF_SPAN], bytes = raw_bytes(a.kv, which);
        const uint8_t *from = kv_at(a.kv, page, w.kv_head, which) + tile % TILES_OF_SPAN * bytes;

        for (uint32_t e = threadIdx.x * 16; e < bytes; e += THREADS * 16)
            asm volatile(
                "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to) + e),
                "l"(from + e)
                : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/*
 * Keys (WHICH 0) or values of a tile, which were fetched, as bf16, for all warps; the next rows of the other
 * kind are on their way meanwhile.
 */
template <int DIM, int WHICH>
static __device__ __forceinline__ void decode_tile(const walk &w, const cu_attention &a, const cu_batch &b,
                                                   uint32_t tile, const coded_room &r)
{
    const uint32_t ld = WHICH ? place_of<DIM>::ld_v : place_of<DIM>::ld_k;

    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    fetch_raw(w, a, b, tile + WHICH, !WHICH, r.raw[!WHICH]);
#pragma unroll 2
    for (uint32_t i = 0; i < CU_TILE * (DIM / 8) / THREADS; i++) {
        const uint32_t e = i * THREADS + threadIdx.x, row = e / (DIM / 8), c = e % (DIM / 8);
        uint4 v = make_uint4(0, 0, 0, 0);

        if (tile * CU_TILE + row < w.limit)
            v = kv_octet<WHICH>(a.kv, r.raw[WHICH], row, c, r.levels);
        *reinterpret_cast<uint4 *>(r.tile[WHICH] + row * ld + c * 16) = v;
    }
    __syncthreads();
}

/* ---- one tile
 * ------------------------------------------------------------------------------------------------------ */

/* What a lane holds of its warp's queries g and g + 8: index 0 and 1. */
template <int DIM> struct sums {
    float acc[DIM / 8][4]; /* of the span at hand */
    float m[2], l[2];      /* of it */
    running r[2];          /* of the spans before */
    uint32_t sees[2];      /* positions */
};

/* Lane (g, t): scores of positions 8 n + 2 t, + 1 for queries g and g + 8. */
template <int DIM, int TERMS>
static __device__ __forceinline__ void tile_scores(const uint8_t *q, const uint8_t *k, float s[8][4])
{
    const uint32_t lane = threadIdx.x & 31, ld = place_of<DIM>::ld_k;
    const uint4 *x = reinterpret_cast<const uint4 *>(q) + threadIdx.x / 32 * (DIM / 16) * 32 + lane;
    const uint8_t *key = k + (lane >> 2) * ld + (lane & 3) * 16;

#pragma unroll
    for (int n = 0; n < 8; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll 2
    for (int kb = 0; kb < DIM / 32; kb++) {
        uint4 f[TERMS][2];

#pragma unroll
        for (int i = 0; i < TERMS; i++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                f[i][half] = x[i * (ROWS * DIM / 8) + (kb * 2 + half) * 32];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const uint4 y = *reinterpret_cast<const uint4 *>(key + n * 8 * ld + kb * 64);

#pragma unroll
            for (int i = 0; i < TERMS; i++) {
                cu_mma(s[n], f[i][0].x, f[i][0].y, f[i][0].z, f[i][0].w, y.x, y.y);
                cu_mma(s[n], f[i][1].x, f[i][1].y, f[i][1].z, f[i][1].w, y.z, y.w);
            }
        }
    }
}

/* Numerators of a tile in place, m and l of the span with it; less: what the span's sums shrink by. */
template <int DIM>
static __device__ __forceinline__ void tile_numerators(sums<DIM> &w, uint32_t pos0, float s[8][4],
                                                       float less[2])
{
    const uint32_t t = threadIdx.x & 3;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = -INFINITY, sum[2] = {0, 0};

        if (w.sees[half] < pos0 + CU_TILE)
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (pos0 + n * 8 + 2 * t + e >= w.sees[half])
                        s[n][half * 2 + e] = -INFINITY;
#pragma unroll
        for (int n = 0; n < 8; n++)
            top = fmaxf(top, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(w.m[half], fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2)));
        const float base = finite_top(top);

        less[half] = shrink(w.m[half], base);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s[n][half * 2 + e] = numerator(s[n][half * 2 + e], base);
                sum[e] += s[n][half * 2 + e];
            }
        sum[0] += sum[1];
        sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], 1);
        sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], 2);
        w.m[half] = top;
        w.l[half] = fmaf(w.l[half], less[half], sum[0]);
    }
}

/* Numerators as the left operand of products: p[term][16 positions][register]. */
template <int TERMS>
static __device__ __forceinline__ void as_terms(const float s[8][4], uint32_t p[TERMS][4][4])
{
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float x = s[2 * step + (e >> 1)][(e & 1) * 2], y = s[2 * step + (e >> 1)][(e & 1) * 2 + 1];

#pragma unroll
            for (int i = 0; i < TERMS; i++) {
                p[i][step][e] = cu_bf16x2(x, y);
                x -= cu_bf16((uint16_t)(p[i][step][e] & 0xffff));
                y -= cu_bf16((uint16_t)(p[i][step][e] >> 16));
            }
        }
}

template <int DIM, int TERMS>
static __device__ __forceinline__ void tile_values(sums<DIM> &w, const uint32_t p[TERMS][4][4], uint32_t v,
                                                   const float less[2])
{
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t at = v + (lane & 15) * place_of<DIM>::ld_v + (lane >> 4) * 16;

#pragma unroll
    for (int n = 0; n < DIM / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            w.acc[n][e] *= less[e >> 1];
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            uint32_t b[4];

            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                         : "r"(at + step * 16 * place_of<DIM>::ld_v + n * 32));
#pragma unroll
            for (int i = 0; i < TERMS; i++) {
                cu_mma(w.acc[2 * n], p[i][step][0], p[i][step][1], p[i][step][2], p[i][step][3], b[0], b[1]);
                cu_mma(w.acc[2 * n + 1], p[i][step][0], p[i][step][1], p[i][step][2], p[i][step][3], b[2],
                       b[3]);
            }
        }
}

/* ---- the end of a span
 * -------------------------------------------------------------------------------------------------- */

template <int DIM> static __device__ __forceinline__ void clear(sums<DIM> &w)
{
#pragma unroll
    for (int n = 0; n < DIM / 8; n++)
        w.acc[n][0] = w.acc[n][1] = w.acc[n][2] = w.acc[n][3] = 0;
    w.m[0] = w.m[1] = -INFINITY;
    w.l[0] = w.l[1] = 0;
}

/*
 * Merge the span into what a.y holds of the spans before, `first`: nothing yet; last: the result. Sums come
 * in batches, each asked for before the one ahead of it is stored.
 */
template <int DIM>
static __device__ __forceinline__ void merge_span(sums<DIM> &w, const walk &k, const cu_attention &a,
                                                  bool first, bool last)
{
    enum { BATCH = 8, PER = DIM / 8 / BATCH };
    const uint32_t lane = threadIdx.x & 31, q = k.q0 + threadIdx.x / 32 * 16 + (lane >> 2);
    float2 f[2], *y[2], next[BATCH];
    float inv[2];

#pragma unroll
    for (int half = 0; half < 2; half++) {
        f[half] = merge_factors(&w.r[half], w.m[half], w.l[half]);
        inv[half] = last ? inverse(w.r[half]) : 1.0f;
        y[half] =
            reinterpret_cast<float2 *>(a.y + query_at(k, a, min(q + half * 8, k.n_query - 1))) + (lane & 3);
    }
#pragma unroll
    for (int i = -1; i < 2 * PER; i++) {
        float2 sum[BATCH];

#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            sum[n] = next[n];
            if (i + 1 < 2 * PER)
                next[n] =
                    first ? make_float2(0, 0) : __ldcg(y[(i + 1) / PER] + ((i + 1) % PER * BATCH + n) * 4);
        }
        if (i < 0)
            continue;
        const int half = i / PER, n0 = i % PER * BATCH;

#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            sum[n].x = merged(sum[n].x, w.acc[n0 + n][half * 2], f[half]) * inv[half];
            sum[n].y = merged(sum[n].y, w.acc[n0 + n][half * 2 + 1], f[half]) * inv[half];
            if (q + half * 8 < k.n_query)
                __stcg(y[half] + (n0 + n) * 4, sum[n]);
        }
    }
    clear(w);
}

/* ---- the kernel
 * ---------------------------------------------------------------------------------------------------- */

template <int DIM, int TERMS, bool CODED>
static __global__ void __launch_bounds__(THREADS, 1)
    attend_many(const __grid_constant__ cu_attention a, const __grid_constant__ cu_batch b)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t buffers = (uint32_t)__cvta_generic_to_shared(shared) + room_of<DIM, TERMS>::queries;
    const uint32_t stages = room_of<DIM, TERMS>::stages, pair = room_of<DIM, TERMS>::pair;
    const coded_room room = coded_places<DIM, TERMS>(a.kv, shared);
    sums<DIM> w;
    walk k;

    if (!find_walk(&k, a, b))
        return;
    if (CODED) {
        fetch_raw(k, a, b, 0, 0, room.raw[0]);
        take_levels(a.kv, room.levels); /* before the barrier in decode_tile() */
    } else {
        for (uint32_t i = 0; i + 1 < stages; i++)
            fetch_step<DIM, TERMS>(k, a, b, i, buffers);
    }
    take_queries<DIM, TERMS>(k, a, shared); /* before the first barrier in next_step() */
    clear(w);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t q = k.q0 + threadIdx.x / 32 * 16 + ((threadIdx.x & 31) >> 2) + half * 8;

        w.r[half] = {-INFINITY, 0};
        w.sees[half] = q < k.n_query ? k.s.n + q / k.rep + 1 : 0;
    }
    for (uint32_t tile = 0; tile < k.n_tile; tile++) {
        const uint32_t at = CODED ? 0 : tile % (stages / 2) * pair;
        uint32_t p[TERMS][4][4];
        float s[8][4], less[2];

        if (CODED)
            decode_tile<DIM, 0>(k, a, b, tile, room);
        else
            next_step<DIM, TERMS>(k, a, b, 2 * tile, buffers);
        tile_scores<DIM, TERMS>(shared, shared + room_of<DIM, TERMS>::queries + at, s);
        tile_numerators(w, tile * CU_TILE, s, less);
        as_terms<TERMS>(s, p);
        if (CODED)
            decode_tile<DIM, 1>(k, a, b, tile, room);
        else
            next_step<DIM, TERMS>(k, a, b, 2 * tile + 1, buffers);
        tile_values<DIM, TERMS>(w, p, buffers + at + place_of<DIM>::keys, less);
        if (tile % TILES_OF_SPAN == TILES_OF_SPAN - 1 || tile + 1 == k.n_tile)
            merge_span(w, k, a, tile < TILES_OF_SPAN, tile + 1 == k.n_tile);
    }
}

/* ---- choosing
 * ------------------------------------------------------------------------------------------------------ */

template <int DIM> static uint32_t room(const cu_kv &kv, uint32_t n_term)
{
    const uint32_t coded = raw_bytes(kv, 0) + raw_bytes(kv, 1) + KV_LEVELS * 4;

    if (kv.code.kind)
        return coded + (n_term == 1 ? room_of<DIM, 1>::raw : room_of<DIM, 2>::raw);
    return n_term == 1 ? room_of<DIM, 1>::bytes : room_of<DIM, 2>::bytes;
}

int cu_attend_many_takes(const struct cu_attention *a, const struct cu_shape *h)
{
    return (a->kv.bf16 || a->kv.code.kind) && (a->kv.dim == 128 || a->kv.dim == 256) &&
           h->max_seq_tok * (a->n_head / a->kv.n_kv) >= MIN_QUERIES &&
           (a->kv.dim == 256 ? room<256>(a->kv, a->n_term) : room<128>(a->kv, a->n_term)) <= cu_most_shared();
}

template <int DIM, int TERMS>
static void launch(cudaStream_t s, const cu_attention *a, const cu_batch *b, dim3 grid)
{
    const uint32_t bytes = room<DIM>(a->kv, a->n_term);

    if (a->kv.code.kind)
        cu_start(s, attend_many<DIM, TERMS, true>, grid, THREADS, bytes, *a, *b);
    else
        cu_start(s, attend_many<DIM, TERMS, false>, grid, THREADS, bytes, *a, *b);
}

void cu_attend_many(cudaStream_t s, const struct cu_attention *a, const struct cu_batch *b,
                    const struct cu_shape *h)
{
    const dim3 grid((h->max_seq_tok * (a->n_head / a->kv.n_kv) + ROWS - 1) / ROWS, a->kv.n_kv, h->n_seq);

    if (a->kv.dim == 256 && a->n_term == 1)
        launch<256, 1>(s, a, b, grid);
    else if (a->kv.dim == 256)
        launch<256, 2>(s, a, b, grid);
    else if (a->n_term == 1)
        launch<128, 1>(s, a, b, grid);
    else
        launch<128, 2>(s, a, b, grid);
}

/* As much as a block may have: how much coded rows take is known by launch. */
template <int DIM, int TERMS> static cudaError_t allow(void)
{
    const cudaError_t e = cudaFuncSetAttribute(
        attend_many<DIM, TERMS, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)cu_most_shared());

    return e != cudaSuccess || room_of<DIM, TERMS>::bytes > cu_most_shared()
               ? e
               : cudaFuncSetAttribute(attend_many<DIM, TERMS, false>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)room_of<DIM, TERMS>::bytes);
}

cudaError_t cu_attend_many_setup(void)
{
    const cudaError_t all[] = {allow<256, 1>(), allow<256, 2>(), allow<128, 1>(), allow<128, 2>()};

    for (const cudaError_t e : all)
        if (e != cudaSuccess)
            return e;
    return cudaSuccess;
}
