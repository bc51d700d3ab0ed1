/*
 * The delta rule for whole passes, on the tensor cores, in two kernels. The first (delta_within.cu) treats
 * every chunk by itself. The second walks a sequence's chunks: a warp owns 16 value columns of one value head,
 * whose part of the state stays in its registers from chunk to chunk; it needs nothing from other warps. Rows
 * are solved in pairs of tiles of eight: what earlier tiles take off is a product, within a tile rows follow
 * one another. Decode does the same operations on the same numbers: delta_one.cu.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/delta_mma.cuh"

enum { WALK_THREADS = 128, WALK_COLS = WALK_THREADS / 32 * 16, WITHIN_LD = CU_CHUNK + 8 };

template <int DK> struct stage_room { /* a chunk's rows */
    static const uint32_t ld = DK + 8;
    float k[CU_CHUNK * ld], q[CU_CHUNK * ld];
    float a[CU_CHUNK * WITHIN_LD], b[CU_CHUNK * WITHIN_LD];
    float close[CLOSE_LD];
    float2 strength[CU_CHUNK];
};

/* A lane's parts of the writes u of the chunk: tile of eight rows, element, lane. */
typedef float walk_writes[CU_CHUNK / 8][4][32];

struct walk_place { /* of a warp */
    cu_seq s;
    uint32_t seq, vh, kh, col0;
    uint8_t *slot; /* the layer in the slot that holds the chunk at hand */
};

static __device__ __forceinline__ void copy_8(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from)
                 : "memory");
}

/*
 * Rows [row0, end) of 4 * N floats each, from_ld and to_ld floats apart: N threads a row, each keeps its place
 * in a row.
 */
template <int N>
static __device__ __forceinline__ void copy_rows(float *to, uint32_t to_ld, const float *from, size_t from_ld,
                                                 uint32_t row0, uint32_t end)
{
    enum { ROWS = WALK_THREADS / N };
    const uint32_t first = row0 + threadIdx.x / N, at = threadIdx.x % N * 4;

    to += first * to_ld + at;
    from += first * from_ld + at;
#pragma unroll 4
    for (uint32_t i = first; i < end; i += ROWS) {
        copy_4(to, from);
        to += ROWS * to_ld;
        from += ROWS * from_ld;
    }
}

/* A chunk on its way to shared memory: the whole block calls. */
template <int DK>
static __device__ __forceinline__ void fetch_piece(const cu_delta &d, const walk_place &w, uint32_t chunk,
                                                   stage_room<DK> *r)
{
    const piece p = piece_of(w.s, chunk);
    /* of row 0, were it new; rows before the first new one are not touched */
    const float *keys = keys_at(d, 0, w.kh) + (ptrdiff_t)(int32_t)p.tok * (ptrdiff_t)(d.kh * 2 * DK),
                *within =
                    within_at(d, 0, w.vh) + (ptrdiff_t)(int32_t)p.tok * (ptrdiff_t)(d.vh * 2 * CU_CHUNK);

    if (p.closes) { /* all of its keys go into the state */
        const float *close = close_at(d, w.s, w.seq, chunk, w.vh);

        copy_rows<DK / 4>(
            r->k, r->ld,
            reinterpret_cast<const float *>(d.slots + w.s.slot * d.slot_bytes + d.layer_off + d.k_off) +
                (size_t)w.kh * CU_CHUNK * DK,
            DK, 0, p.row0);
        if (threadIdx.x < CLOSE_LD / 4)
            copy_4(r->close + threadIdx.x * 4, close + threadIdx.x * 4);
    }
    copy_rows<DK / 4>(r->k, r->ld, keys, d.kh * 2 * DK, p.row0, p.end);
    copy_rows<DK / 4>(r->q, r->ld, keys + DK, d.kh * 2 * DK, p.row0, p.end);
    copy_rows<CU_CHUNK / 4>(r->a, WITHIN_LD, within, d.vh * 2 * CU_CHUNK, p.row0, p.end);
    copy_rows<CU_CHUNK / 4>(r->b, WITHIN_LD, within + CU_CHUNK, d.vh * 2 * CU_CHUNK, p.row0, p.end);
    if (threadIdx.x < CU_CHUNK && threadIdx.x >= p.row0 && threadIdx.x < p.end)
        copy_8(&r->strength[threadIdx.x], strength_at(d, p.tok + threadIdx.x, w.vh));
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* S k_i and S q_i of tiles 2 pair and 2 pair + 1: results [k0, k1, q0, q1]. */
template <int DK>
static __device__ __forceinline__ void state_products(const float (&s)[DK / 8][4], const stage_room<DK> *r,
                                                      uint32_t pair, apart (&out)[4])
{
    const uint32_t lane = threadIdx.x & 31, at = (pair * 16 + (lane >> 2)) * r->ld + 2 * (lane & 3);

#pragma unroll
    for (int kb = 0; kb < DK / 8; kb++) {
        right x[4];

#pragma unroll
        for (int h = 0; h < 2; h++) {
            x[h] = right_of(pair_at(r->k + at + h * 8 * r->ld + kb * 8));
            x[2 + h] = right_of(pair_at(r->q + at + h * 8 * r->ld + kb * 8));
        }
        multiply<4>(out, left_of(s[kb][0], s[kb][1], s[kb][2], s[kb][3]), x);
    }
}

/* sums [below0, below1, out0, out1] of tiles 2 pair, 2 pair + 1 over the rows of tile j. */
template <int DK, int FIRST, int N>
static __device__ __forceinline__ void row_products(const float u[4], const stage_room<DK> *r, uint32_t pair,
                                                    uint32_t j, apart (&sums)[4])
{
    const uint32_t lane = threadIdx.x & 31,
                   at = (pair * 16 + (lane >> 2)) * WITHIN_LD + j * 8 + 2 * (lane & 3);
    right x[N];

#pragma unroll
    for (int n = 0; n < N; n++)
        x[n] = right_of(pair_at((FIRST + n < 2 ? r->a : r->b) + at + (FIRST + n) % 2 * 8 * WITHIN_LD));
    multiply<N>(sums + FIRST, left_of(u[0], u[1], u[2], u[3]), x);
}

/*
 * u of tile `tile`, row by row: old rows keep theirs, rows behind the last are 0; ALL: it has neither. value: v;
 * below: sums over earlier tiles, spoilt.
 */
template <int DK, bool ALL>
static __device__ __forceinline__ void solve_rows(const stage_room<DK> *r, const piece &p, uint32_t tile,
                                                  const float value[4], const float sk[4], float below[4],
                                                  float u[4])
{
    const uint32_t lane = threadIdx.x & 31, t = lane & 3, row = tile * 8 + 2 * t;
    const float4 strength = *reinterpret_cast<const float4 *>(&r->strength[row]); /* of both rows */
    const float whole[2] = {strength.x, strength.z}, beta[2] = {strength.y, strength.w};
    float a[2][8];

#pragma unroll
    for (int e = 0; e < 2; e++)
        cu_load8(r->a + (row + e) * WITHIN_LD + tile * 8, a[e]);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t e = i & 1, from = (lane & 28) | i >> 1, at = tile * 8 + i;
        float x = row_write(beta[e], value[e], whole[e], sk[e], below[e]);
        float y = row_write(beta[e], value[2 + e], whole[e], sk[2 + e], below[2 + e]);

        if (!ALL) {
            x = at < p.row0 ? u[e] : at < p.end ? x : 0.0f;
            y = at < p.row0 ? u[2 + e] : at < p.end ? y : 0.0f;
        }
        x = __shfl_sync(0xffffffffu, x, from);
        y = __shfl_sync(0xffffffffu, y, from);
        if (t == i >> 1) {
            u[e] = x;
            u[2 + e] = y;
        }
#pragma unroll
        for (uint32_t later = 0; later < 2; later++)
            if (2 * t + later > i) {
                below[later] = fmaf(a[later][i], x, below[later]);
                below[2 + later] = fmaf(a[later][i], y, below[2 + later]);
            }
    }
}

template <int DK>
static __device__ __forceinline__ void solve_tile(const stage_room<DK> *r, const piece &p, uint32_t tile,
                                                  const float value[4], const float sk[4], float below[4],
                                                  float u[4])
{
    if (p.row0 <= tile * 8 && tile * 8 + 8 <= p.end)
        solve_rows<DK, true>(r, p, tile, value, sk, below, u);
    else
        solve_rows<DK, false>(r, p, tile, value, sk, below, u);
}

/* Element e of a tile's result: which row of the tile, which of the warp's columns. */
static __device__ __forceinline__ uint32_t element_row(uint32_t e)
{
    return 2 * (threadIdx.x & 3) + (e & 1);
}

static __device__ __forceinline__ uint32_t element_col(uint32_t e)
{
    return ((threadIdx.x & 31) >> 2) + (e >> 1) * 8;
}

/* u of a tile to the lane's place and, where `keep` says so, to the slot. */
static __device__ __forceinline__ void put_writes(const cu_delta &d, const walk_place &w, const piece &p,
                                                  uint32_t tile, const float u[4], bool keep, walk_writes all)
{
    float *slot_u = reinterpret_cast<float *>(w.slot + d.u_off) + (size_t)w.vh * CU_CHUNK * d.dv + w.col0;

#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
        const uint32_t i = tile * 8 + element_row(e);

        all[tile][e][threadIdx.x & 31] = u[e];
        if (keep && i >= p.row0 && i < p.end)
            slot_u[(size_t)i * d.dv + element_col(e)] = u[e];
    }
}

static __device__ __forceinline__ void get_writes(const walk_writes all, uint32_t tile, float u[4])
{
#pragma unroll
    for (uint32_t e = 0; e < 4; e++)
        u[e] = all[tile][e][threadIdx.x & 31];
}

/* Rows 16 pair .. 16 pair + 15 of a chunk: writes, then outputs. */
template <int DK>
static __device__ __forceinline__ void
walk_pair(const cu_delta &d, const walk_place &w, const piece &p, const float (&s)[DK / 8][4],
          const stage_room<DK> *r, uint32_t pair, const float *c, float *o, bool keep, walk_writes all)
{
    float value[2][4], sk[2][4], sq[2][4], below[4], u[4];
    apart of_state[4] = {}, sums[4] = {};

#pragma unroll
    for (uint32_t h = 0; h < 2; h++)
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
            const uint32_t i = pair * 16 + h * 8 + element_row(e);

            value[h][e] = i >= p.row0 && i < p.end ? c[(size_t)(p.tok + i) * d.conv_dim + 2 * d.kh * DK +
                                                       w.vh * d.dv + w.col0 + element_col(e)]
                                                   : 0.0f;
        }
    state_products<DK>(s, r, pair, of_state);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        join(of_state[h], sk[h]);
        join(of_state[2 + h], sq[h]);
    }
    for (uint32_t j = 0; j < 2 * pair; j++) {
        get_writes(all, j, u);
        row_products<DK, 0, 4>(u, r, pair, j, sums);
    }
    get_writes(all, 2 * pair, u);
    join(sums[0], below);
    solve_tile<DK>(r, p, 2 * pair, value[0], sk[0], below, u);
    put_writes(d, w, p, 2 * pair, u, keep, all);
    row_products<DK, 1, 3>(u, r, pair, 2 * pair, sums);
    get_writes(all, 2 * pair + 1, u);
    join(sums[1], below);
    solve_tile<DK>(r, p, 2 * pair + 1, value[1], sk[1], below, u);
    put_writes(d, w, p, 2 * pair + 1, u, keep, all);
    row_products<DK, 3, 1>(u, r, pair, 2 * pair + 1, sums);
#pragma unroll
    for (uint32_t h = 0; h < 2; h++)
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
            const uint32_t i = pair * 16 + h * 8 + element_row(e);

            if (i >= p.row0 && i < p.end)
                o[((size_t)(p.tok + i) * d.vh + w.vh) * d.dv + w.col0 + element_col(e)] =
                    fmaf(r->strength[i].x, sq[h][e], joined(sums[2 + h], e));
        }
}

/* Close a full chunk: S = exp(E) S + sum_j exp(L_j) u_j k_j^T; to the slot where keep says so. */
template <int DK>
static __device__ __forceinline__ void close_chunk(const cu_delta &d, const walk_place &w,
                                                   float (&s)[DK / 8][4], const stage_room<DK> *r,
                                                   const walk_writes all, bool keep)
{
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const float whole = r->close[CU_CHUNK];
    float *out =
        reinterpret_cast<float *>(w.slot + d.s_off) + ((size_t)w.vh * d.dv + w.col0 + g) * DK + 2 * t;

#pragma unroll
    for (int n = 0; n < DK / 8; n += 8) {
        float acc[8][4];

#pragma unroll
        for (int m = 0; m < 8; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[m][e] = s[n + m][e] * whole;
#pragma unroll 2
        for (uint32_t j = 0; j < CU_CHUNK / 8; j++) {
            const float2 by = pair_at(r->close + j * 8 + 2 * t);
            const float *k = r->k + (j * 8 + 2 * t) * r->ld + n * 8 + g;
            float u[4];
            right x[8];

            get_writes(all, j, u);
#pragma unroll
            for (int m = 0; m < 8; m++)
                x[m] = right_of(make_float2(k[m * 8], k[r->ld + m * 8]));
            multiply<8>(acc, left_of(by.x * u[0], by.y * u[1], by.x * u[2], by.y * u[3]), x);
        }
#pragma unroll
        for (int m = 0; m < 8; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n + m][e] = acc[m][e];
    }
#pragma unroll
    for (int n = 0; n < DK / 8 && keep; n++) {
        *reinterpret_cast<float2 *>(out + n * 8) = make_float2(s[n][0], s[n][1]);
        *reinterpret_cast<float2 *>(out + (size_t)8 * DK + n * 8) = make_float2(s[n][2], s[n][3]);
    }
}

/* The state and the open rows' writes, from the slot. */
template <int DK>
static __device__ __forceinline__ void take_state(const cu_delta &d, const walk_place &w,
                                                  float (&s)[DK / 8][4], walk_writes all)
{
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, open = w.s.n - w.s.base;
    const float *from =
        reinterpret_cast<const float *>(w.slot + d.s_off) + ((size_t)w.vh * d.dv + w.col0 + g) * DK + 2 * t;
    const float *u =
        reinterpret_cast<const float *>(w.slot + d.u_off) + (size_t)w.vh * CU_CHUNK * d.dv + w.col0;

#pragma unroll
    for (int n = 0; n < DK / 8; n++) {
        const float2 a = pair_at(from + n * 8), b = pair_at(from + (size_t)8 * DK + n * 8);

        s[n][0] = a.x, s[n][1] = a.y, s[n][2] = b.x, s[n][3] = b.y;
    }
    for (uint32_t tile = 0; tile < CU_CHUNK / 8; tile++)
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
            const uint32_t i = tile * 8 + element_row(e);

            all[tile][e][lane] = i < open ? u[(size_t)i * d.dv + element_col(e)] : 0.0f;
        }
}

template <int DK>
static __global__ void __launch_bounds__(WALK_THREADS, 1)
    walk_chunks(const __grid_constant__ cu_delta d, const float *c, float *o, cu_batch b, uint32_t stages)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    extern __shared__ __align__(16) uint8_t shared[];
    stage_room<DK> *rooms = reinterpret_cast<stage_room<DK> *>(shared);
    walk_writes *writes = reinterpret_cast<walk_writes *>(rooms + stages) + threadIdx.x / 32;
    walk_place w;
    float s[DK / 8][4];

    w.seq = blockIdx.z;
    w.s = b.seqs[w.seq];
    w.vh = blockIdx.y;
    w.kh = w.vh / (d.vh / d.kh);
    w.col0 = blockIdx.x * WALK_COLS + threadIdx.x / 32 * 16;
    w.slot = d.slots + w.s.slot * d.slot_bytes + d.layer_off;
    const uint32_t n = pieces_of(w.s);
    const bool has = w.col0 < d.dv, apart = w.s.slot != w.s.slot_next;

    fetch_piece<DK>(d, w, 0, rooms);
    if (has)
        take_state<DK>(d, w, s, *writes);
    for (uint32_t i = 0; i < n; i++) {
        const piece p = piece_of(w.s, i);
        const stage_room<DK> *r = rooms + i % stages;

        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        if (stages > 1 && i + 1 < n)
            fetch_piece<DK>(d, w, i + 1, rooms + (i + 1) % stages);
        for (uint32_t pair = p.row0 / 16; has && pair < (p.end + 15) / 16 && p.row0 < p.end; pair++)
            walk_pair<DK>(d, w, p, s, r, pair, c, o, apart || !p.closes, *writes);
        if (p.closes) { /* a chunk of committed rows closes in place; of others, only the last state is kept */
            if (p.row0 < CU_CHUNK)
                w.slot = d.slots + w.s.slot_next * d.slot_bytes + d.layer_off;
            if (has)
                close_chunk<DK>(d, w, s, r, *writes, apart || i + 2 == n);
        }
        if (stages == 1 && i + 1 < n) {
            __syncthreads();
            fetch_piece<DK>(d, w, i + 1, rooms);
        }
    }
}

/* ---- choosing
 * ------------------------------------------------------------------------------------------------------ */

static uint32_t walk_bytes(uint32_t dk, uint32_t stages)
{
    return stages * (uint32_t)(dk == 128 ? sizeof(stage_room<128>) : sizeof(stage_room<64>)) +
           WALK_THREADS / 32 * (uint32_t)sizeof(walk_writes);
}

static uint32_t stages_of(uint32_t dk)
{
    const uint32_t most = cu_most_shared();

    if (delta_within_bytes(dk) > most)
        return 0;
    return walk_bytes(dk, 2) <= most ? 2 : walk_bytes(dk, 1) <= most ? 1 : 0;
}

static int shape_taken(const struct cu_delta *d)
{
    return (d->dk == 64 || d->dk == 128) && d->dv % 16 == 0 && d->dv <= 128;
}

int cu_delta_chunks_take(const struct cu_delta *d)
{
    return shape_taken(d) && stages_of(d->dk) > 0;
}

size_t cu_delta_work_floats(const struct cu_delta *d, uint32_t max_seq)
{
    return shape_taken(d) ? work_rows(*d) * (d->kh * 2 * d->dk + d->vh * (2 * CU_CHUNK + 2)) +
                                (work_rows(*d) / CU_CHUNK + 2 * (size_t)max_seq) * d->vh * CLOSE_LD
                          : 0;
}

template <int DK>
static void launch(cudaStream_t s, const cu_delta *d, const float *c, const float *gates, float *o,
                   const cu_batch *b, const cu_shape *h)
{
    const uint32_t stages = stages_of(DK);

    delta_within(s, d, c, gates, b, h);
    cu_start(s, walk_chunks<DK>, dim3((d->dv + WALK_COLS - 1) / WALK_COLS, d->vh, h->n_seq), WALK_THREADS,
             walk_bytes(DK, stages), *d, c, o, *b, stages);
}

void cu_delta_chunks(cudaStream_t s, const struct cu_delta *d, const float *c, const float *gates, float *o,
                     const struct cu_batch *b, const struct cu_shape *h)
{
    if (d->dk == 128)
        launch<128>(s, d, c, gates, o, b, h);
    else
        launch<64>(s, d, c, gates, o, b, h);
}

template <int DK> static cudaError_t allow(void)
{
    const uint32_t stages = stages_of(DK);
    cudaError_t e = cudaSuccess;

    if (stages == 0)
        return e; /* delta.cu does without */
    e = delta_within_setup(DK);
    return e != cudaSuccess ? e
                            : cudaFuncSetAttribute(walk_chunks<DK>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   (int)walk_bytes(DK, stages));
}

cudaError_t cu_delta_chunks_setup(void)
{
    const cudaError_t e = allow<128>();

    return e != cudaSuccess ? e : allow<64>();
}
