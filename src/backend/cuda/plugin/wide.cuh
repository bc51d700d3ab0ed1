/*
 * Products of many rows on compute capability 9.0: a block computes 128 outputs times N rows with two groups
 * of four warps, 64 outputs each, whose weights go from their packed order straight into the registers of
 * warpgroup products (codes are decoded there); rows of activations are the operand in shared memory. A third
 * group keeps stages of 64 inputs coming: rows by bulk copies, weights by small ones, as a warp issues bulk
 * copies one by one. Two blocks of a cluster work on
 * neighbouring outputs of the same rows, and each fetches half of the rows for both. Blocks stay: a cluster
 * takes items until none are left, and its copies run ahead into the next one.
 *
 * The arithmetic is that of linear.cuh, bit for bit: steps of 16 inputs in the same order, groups closed and
 * parts added in the same way. Groups are closed outside the tensor cores, so the two groups of warps take
 * turns, and what does not depend on products is done while they run: the next stage's decoding, biases.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_WIDE_CUH
#define ESP_BACKEND_CUDA_PLUGIN_WIDE_CUH

#include "backend/cuda/plugin/operand.cuh"
#include "backend/cuda/plugin/wide_mma.cuh"

enum {
    WIDE_CLUSTER = 2,
    WIDE_TEAM = 128,              /* threads of a group of warps */
    WIDE_THREADS = 3 * WIDE_TEAM, /* the one that fetches, two that multiply */
    WIDE_TILES = CU_WIDE_BLOCK,
    WIDE_SIDE = 16,    /* row blocks that go through the outputs together: what the L2 cache holds */
    WIDE_SCALES = 256, /* bytes of a tile's scales at most */
    WIDE_STAGES = 12
};

struct wide_job {
    uint32_t n_item, n_block, n_pair, n_row, n_row_block;
    uint32_t n_whole;   /* items before those that are a part each */
    uint32_t first_cut; /* the first weight that has some of these */
};

/* What a stage of 64 inputs holds, in bytes from its start. */
template <int FMT, int TERMS, int N> struct wide_room {
    enum {
        codes = half_quad<FMT>::loads * 512, /* of a tile */
        grouped = is_dense(FMT) ? 0 : 1,
        term = N * 128,
        w = TERMS * term,
        scales = w + WIDE_TILES * codes,
        sums = scales + grouped * WIDE_TILES * WIDE_SCALES,
        stage = sums + grouped * 1024,
        total =
            grouped * (N / 2) * 2 * WIDE_TEAM * 4, /* sums of parts; without groups they are in registers */
        fit = (CU_WIDE_SHARED - 2048 - total) / stage,
        stages = fit < WIDE_STAGES ? fit : WIDE_STAGES,
        fetchers = stages < WIDE_TEAM / 32 ? 2 : WIDE_TEAM / 32,
        bytes = 2048 + total + stages * stage
    };
    static_assert((int)stages >= 2, "a stage is filled while another is read");
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct wide_item {
    uint32_t which, tile0, row_block, part;
    uint32_t h0, h1, per_part; /* half quads */
    bool stores, split;
};

static __device__ __forceinline__ wide_item wide_find(const cu_linears &l, const wide_job &job, uint32_t i,
                                                      uint32_t rank)
{
    const uint32_t cut = job.n_pair * job.n_row_block - job.n_whole, side = WIDE_SIDE * job.n_pair;
    wide_item it;

    it.split = i >= job.n_whole;
    it.part = it.split ? (i - job.n_whole) / cut : 0;
    i -= it.part * cut;
    const uint32_t first = i / side * WIDE_SIDE, width = min((uint32_t)WIDE_SIDE, job.n_row_block - first);

    i %= side;
    it.row_block = first + i % width;
    const uint32_t block = i / width * WIDE_CLUSTER + rank;

    it.stores = block < job.n_block;
    it.tile0 = find_tile(l, min(block, job.n_block - 1), WIDE_TILES, &it.which);
    const cu_weight &w = l.w[it.which];
    const uint32_t n_half = w.n_quad * 2;

    it.per_part = w.part_quads * 2;
    it.h0 = it.split ? min(it.part * it.per_part, n_half) : 0;
    it.h1 = it.split ? min(it.h0 + it.per_part, n_half) : n_half;
    return it;
}

/*
 * ---- fetching: up to four warps, each every fourth stage, as what one has to do between two is a long chain. No
 * more than stages: a warp that waits for a slot then knows that its fill before the last was read, and the
 * parity of a barrier tells the last two apart ----
 */

/* What a lane copies of an item's stages. */
template <int FMT> struct wide_source {
    const uint8_t *codes[WIDE_TILES], *scales;
    uint32_t n_group, shift, small, scale_shift, tile0, last; /* small: two groups of 32 a stage */
};

template <int FMT>
static __device__ __forceinline__ wide_source<FMT> wide_aim(const cu_weight &w, const wide_item &it)
{
    const size_t tile_bytes = (size_t)w.n_quad * (half_quad<FMT>::quad_loads * 512);
    wide_source<FMT> s;

    s.tile0 = it.tile0;
    s.last = w.n_tile - 1;
#pragma unroll
    for (uint32_t t = 0; t < WIDE_TILES; t++)
        s.codes[t] = w.codes + min(it.tile0 + t, s.last) * tile_bytes + (threadIdx.x & 31) * 16;
    s.scales = w.scales;
    s.shift = w.group_shift;
    s.n_group = w.n_quad * 4 >> w.group_shift;
    s.small = w.group_kb == 1 ? 1 : 0;
    s.scale_shift = 2 + (w.scale_f32 ? 1 : 0); /* of the 16 bytes that a group's scales are */
    return s;
}

/* Scales of the stage's tiles, and sums of its rows. */
template <int FMT>
static __device__ __forceinline__ void wide_fetch_scales(const wide_source<FMT> &s, uint32_t h,
                                                         uint32_t scales_to, uint32_t sums_to,
                                                         const float *sums)
{
    const uint32_t lane = threadIdx.x & 31, shift = s.scale_shift + s.small;

    for (uint32_t k = lane; k < (uint32_t)WIDE_TILES << shift; k += 32) {
        const uint32_t tile = k >> shift, chunk = k & ((1u << shift) - 1);
        const size_t group = (size_t)min(s.tile0 + tile, s.last) * s.n_group + (h * 2 >> s.shift);

        wide_copy16(scales_to + tile * WIDE_SCALES + chunk * 16,
                    s.scales + (group << (s.scale_shift + 4)) + chunk * 16);
    }
    for (uint32_t k = lane; k < 32u << s.small; k += 32)
        wide_copy16(sums_to + k * 16, sums + s.small * CU_WIDE_ROWS + k * 4);
}

template <int FMT, int TERMS, int N>
static __device__ __forceinline__ void wide_fetch(const cu_linears &l, const cu_act &x, const wide_job &job,
                                                  uint32_t ring_at, uint32_t full, uint32_t empty,
                                                  uint32_t rank)
{
    typedef wide_room<FMT, TERMS, N> room;
    enum { EACH = room::codes / 512 }; /* copies of a tile */
    const uint32_t clusters = gridDim.x / WIDE_CLUSTER, lane = threadIdx.x & 31, k_tiles = x.ld / 64;
    uint32_t turn = threadIdx.x >> 5;
    wide_ring r = {0, 1};

    for (uint32_t i = blockIdx.x / WIDE_CLUSTER; i < job.n_item; i += clusters) {
        const wide_item it = wide_find(l, job, i, rank);
        const wide_source<FMT> src = wide_aim<FMT>(l.w[it.which], it);
        const size_t x_tile = (size_t)it.row_block * k_tiles;

        for (uint32_t h = it.h0; h < it.h1; h++, wide_next(&r, room::stages)) {
            const uint32_t to = ring_at + r.slot * room::stage, bar = full + r.slot * 8;
            const uint32_t off = (FMT == CU_Q2 ? h / 2 : h * half_quad<FMT>::loads) * 512;

            if (turn) {
                turn--;
                continue;
            }
            turn = room::fetchers - 1;
            wide_wait(empty + r.slot * 8, r.phase);
            if (lane == 0) {
                const size_t at = (x_tile + h) * CU_WIDE_TILE + rank * (room::term / 2);

                wide_expect(bar, TERMS * room::term);
#pragma unroll
                for (int k = 0; k < TERMS; k++)
                    wide_copy_both(to + k * room::term + rank * (room::term / 2),
                                   reinterpret_cast<const uint8_t *>(x.t[k]) + at, room::term / 2, bar);
            }
            __syncwarp();
#pragma unroll
            for (int j = 0; j < WIDE_TILES * EACH; j++)
                wide_copy16(to + room::w + j * 512 + lane * 16, src.codes[j / EACH] + off + j % EACH * 512);
            if (room::grouped)
                wide_fetch_scales<FMT>(src, h, to + room::scales, to + room::sums,
                                       x.sums + (x_tile + h) * CU_WIDE_SUMS);
            wide_arrive_copied(bar);
        }
    }
}

/* ---- multiplying: two groups of four warps ---- */

/* Block jj of 32 inputs, both steps, all terms. */
template <int TERMS, int N, bool F16>
static __device__ __forceinline__ void wide_block(float (&c)[N / 2], const uint32_t (&a)[2][4], uint32_t x_at,
                                                  int jj, uint32_t keep)
{
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int i = 0; i < TERMS; i++)
            wide_mma<N, F16>(c, a[s], wide_operand(x_at + i * (N * 128) + jj * 64 + s * 32),
                             s || i ? 1u : keep);
}

/* What closing groups of a weight depends on. */
struct wide_groups {
    uint32_t kb;
    bool f32;
};

static __device__ __forceinline__ scales wide_scales(const uint8_t *at, bool f32)
{
    const uint32_t g = threadIdx.x >> 2 & 7;

    if (f32) {
        const float4 f = reinterpret_cast<const float4 *>(at)[g];

        return {f.x, f.y, f.z, f.w};
    }
    const uint2 v = reinterpret_cast<const uint2 *>(at)[g];

    return {__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16),
            __uint_as_float(v.y & 0xffff0000u)};
}

/* Biases times sums of x. */
template <int N>
static __device__ __forceinline__ void wide_bias(float (&part)[N / 2], const scales &k, const float *sums)
{
    const uint32_t t = threadIdx.x & 3;

#pragma unroll
    for (int i = 0; i < N / 16; i++) {
        const float4 xs = *reinterpret_cast<const float4 *>(sums + t * 32 + (((uint32_t)i ^ t) << 2));

#pragma unroll
        for (int j = 0; j < 2; j++) {
            float *p = part + (2 * i + j) * 4;

            p[0] = fmaf(k.b0, j ? xs.z : xs.x, p[0]);
            p[1] = fmaf(k.b0, j ? xs.w : xs.y, p[1]);
            p[2] = fmaf(k.b8, j ? xs.z : xs.x, p[2]);
            p[3] = fmaf(k.b8, j ? xs.w : xs.y, p[3]);
        }
    }
}

/* Codes times x of a group that has ended. */
template <int N>
static __device__ __forceinline__ void wide_scale(float (&part)[N / 2], const float (&c)[N / 2],
                                                  const scales &k)
{
#pragma unroll
    for (int e = 0; e < N / 2; e++)
        part[e] = fmaf(e & 2 ? k.s8 : k.s0, c[e], part[e]);
}

/* The team waits for its turn at the tensor cores, and gives the turn to the other. */
static __device__ __forceinline__ void wide_my_turn(uint32_t team)
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "n"(2 * WIDE_TEAM) : "memory");
}

static __device__ __forceinline__ void wide_your_turn(uint32_t team)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(2 - team), "n"(2 * WIDE_TEAM) : "memory");
}

/* What goes on while products run is done by now: decoding of the next operand, and sums. */
template <int M>
static __device__ __forceinline__ void wide_meanwhile(uint32_t (&a)[2][2][4], float (&part)[M])
{
#pragma unroll
    for (int i = 0; i < 16; i++)
        asm volatile("" : "+r"(a[i / 8][i / 4 % 2][i % 4])::"memory");
#pragma unroll
    for (int e = 0; e < M; e++)
        asm volatile("" : "+f"(part[e])::"memory");
}

/* Starts the products of a stage of grouped weights; SMALL, groups of 32: all but closing the second. */
template <int TERMS, int N, bool SMALL>
static __device__ __forceinline__ void
wide_issue(float (&part)[N / 2], float (&c)[N / 2], const uint32_t (&a)[2][2][4], const wide_groups &w,
           uint32_t h, uint32_t x_at, const uint8_t *sc, const float *sums, uint32_t team)
{
    wide_my_turn(team);
    wide_fence();
    if constexpr (SMALL) {
        const scales k = wide_scales(sc, w.f32);

        wide_block<TERMS, N, false>(c, a[0], x_at, 0, 0);
        wide_commit();
        wide_bias<N>(part, k, sums);
        wide_done(c);
        wide_scale<N>(part, c, k);
        wide_fence();
        wide_block<TERMS, N, false>(c, a[1], x_at, 1, 0);
    } else {
        wide_block<TERMS, N, false>(c, a[0], x_at, 0, w.kb == 4 && (h & 1));
        wide_block<TERMS, N, false>(c, a[1], x_at, 1, 1);
    }
    wide_commit();
    wide_your_turn(team);
}

/* A stage's weights as operands; waits for them. */
template <int FMT, int TERMS, int N>
static __device__ __forceinline__ void wide_take(uint32_t (&a)[2][2][4], const uint8_t *ring, uint32_t full,
                                                 const wide_ring &r, uint32_t h)
{
    typedef wide_room<FMT, TERMS, N> room;
    enum { LH = half_quad<FMT>::loads };
    const uint8_t *at = ring + r.slot * room::stage + room::w + ((threadIdx.x >> 5) - 4) * room::codes +
                        (threadIdx.x & 31) * 16;
    uint4 raw[LH];

    wide_wait(full + r.slot * 8, r.phase);
#pragma unroll
    for (int j = 0; j < LH; j++)
        raw[j] = *reinterpret_cast<const uint4 *>(at + j * 512);
#pragma unroll
    for (int jj = 0; jj < 2; jj++)
        fragments<FMT>(a[jj], raw, (int)(h & 1), jj);
}

/* An item's outputs. */
template <int FMT, int N>
static __device__ __forceinline__ void wide_store(const cu_linears &l, const cu_act &x, const wide_job &job,
                                                  const wide_item &it, uint32_t mine,
                                                  const float (&sum)[N / 2])
{
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, tile = it.tile0 + mine;
    const cu_weight &w = l.w[it.which];
    float *y = l.y[it.which];

    if (!it.stores || tile >= w.n_tile)
        return;
    if (it.split)
        y = l.parts +
            (size_t)w.n_part * job.n_row * (part_column(l, it.which) - part_column(l, job.first_cut)) +
            (size_t)it.part * job.n_row * w.n_out;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t row = g + 8 * half;
        const uint32_t o = FMT == CU_VALUES ? cu_coded_output(w.axis, w.tile0 + tile, row) : tile * 16 + row;

        if (o >= w.n_out)
            continue;
#pragma unroll
        for (int e = 0; e < N / 4; e++) { /* column 8 (e / 2) + 2 t + e % 2 */
            const uint32_t tok = it.row_block * CU_WIDE_ROWS + e / 2 * 8 + 2 * t + (e & 1);
            const float v = sum[e / 2 * 4 + half * 2 + (e & 1)];

            if (tok < job.n_row)
                y[(size_t)tok * w.n_out + o] =
                    FMT == CU_VALUES && !it.split ? coded_result(w, x, o, tok, v) : v;
        }
    }
}

/* Adds a part to those before it: in registers, or in shared memory where groups need the registers. */
template <int N, bool GROUPED>
static __device__ __forceinline__ void wide_add(float (&part)[N / 2], float (&total)[GROUPED ? 1 : N / 2],
                                                float *room, bool first)
{
#pragma unroll
    for (int e = 0; e < N / 2; e++) {
        if (GROUPED) {
            float *f = room + e * (2 * WIDE_TEAM);

            *f = first ? part[e] : *f + part[e];
            part[e] = 0;
        } else {
            total[e] = first ? part[e] : total[e] + part[e];
        }
    }
}

template <int FMT, int TERMS, int N, bool SMALL>
static __device__ __forceinline__ void wide_multiply(const cu_linears &l, const cu_act &x,
                                                     const wide_job &job, uint8_t *ring, float *room_of_total,
                                                     uint32_t full, uint32_t empty, uint32_t rank)
{
    typedef wide_room<FMT, TERMS, N> room;
    constexpr bool GROUPED = !is_dense(FMT);
    const uint32_t lane = threadIdx.x & 31, team = threadIdx.x / WIDE_TEAM - 1, mine = (threadIdx.x >> 5) - 4,
                   clusters = gridDim.x / WIDE_CLUSTER;
    float *own = room_of_total + threadIdx.x - WIDE_TEAM;
    wide_ring r = {0, 0};

    for (uint32_t i = blockIdx.x / WIDE_CLUSTER; i < job.n_item; i += clusters) {
        const wide_item it = wide_find(l, job, i, rank);
        const cu_weight &w = l.w[it.which];
        float c[N / 2], part[N / 2], total[GROUPED ? 1 : N / 2];
        const wide_groups groups = {w.group_kb, w.scale_f32 != 0};
        uint32_t part_end = it.h0 + it.per_part, done = 0, fresh = 1, a[2][2][4];

#pragma unroll
        for (int e = 0; e < N / 2; e++)
            c[e] = part[e] = 0;
        if (it.h0 < it.h1)
            wide_take<FMT, TERMS, N>(a, ring, full, r, it.h0);
        for (uint32_t h = it.h0; h < it.h1; h++) {
            const uint8_t *stage = ring + r.slot * room::stage,
                          *sc = stage + room::scales + mine * WIDE_SCALES;
            const float *sums = reinterpret_cast<const float *>(stage + room::sums);
            const uint32_t x_at = wide_shared(stage), bar = empty + r.slot * 8;
            uint32_t next[2][2][4];

            if constexpr (GROUPED) {
                wide_issue<TERMS, N, SMALL>(part, c, a, groups, h, x_at, sc, sums, team);
            } else {
                wide_fence();
                wide_block<TERMS, N, FMT == CU_VALUES>(c, a[0], x_at, 0, !fresh);
                wide_block<TERMS, N, FMT == CU_VALUES>(c, a[1], x_at, 1, 1);
                wide_commit();
            }
            wide_next(&r, room::stages);
            if (h + 1 < it.h1)
                wide_take<FMT, TERMS, N>(next, ring, full, r, h + 1);
            if constexpr (GROUPED) {
                const scales k = wide_scales(sc + (SMALL ? (groups.f32 ? 128 : 64) : 0), groups.f32);

                wide_bias<N>(part, k, sums + (SMALL ? CU_WIDE_ROWS : 0));
                if (h + 1 < it.h1)
                    wide_meanwhile(next, part);
                wide_done(c);
                if (groups.kb != 4 || (h & 1))
                    wide_scale<N>(part, c, k);
            } else {
                if (h + 1 < it.h1)
                    wide_meanwhile(next, total);
                wide_done(c);
            }
            fresh = 0;
            __syncwarp();
            if (lane < WIDE_CLUSTER)
                wide_arrive(bar, lane);
#pragma unroll
            for (int k = 0; k < 16; k++)
                a[k / 8][k / 4 % 2][k % 4] = next[k / 8][k / 4 % 2][k % 4];
            if (h + 1 == part_end && h + 1 < it.h1) {
                wide_add<N, GROUPED>(GROUPED ? part : c, total, own, done == 0);
                done++;
                fresh = 1;
                part_end += it.per_part;
            }
        }
#pragma unroll
        for (int e = 0; e < N / 2; e++) {
            float v = GROUPED ? part[e] : c[e];

            if (done)
                v = (GROUPED ? own[e * (2 * WIDE_TEAM)] : total[GROUPED ? 0 : e]) + v;
            if (!it.split && done + 1 < w.n_part)
                v += 0.0f; /* empty parts, as in `few`: they turn -0 into 0 */
            part[e] = v;
        }
        wide_store<FMT, N>(l, x, job, it, mine, part);
    }
}

#endif

template <int FMT, int TERMS, int N, bool SMALL>
static __global__ void __launch_bounds__(WIDE_THREADS, 1)
    wide(const __grid_constant__ cu_linears l, const __grid_constant__ cu_act x,
         const __grid_constant__ wide_job job)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef wide_room<FMT, TERMS, N> room;
    extern __shared__ __align__(1024) uint8_t wide_memory[];
    uint8_t *ring = wide_memory + (1024 - (wide_shared(wide_memory) & 1023) & 1023);
    float *total = reinterpret_cast<float *>(ring + room::stages * room::stage);
    const uint32_t full = wide_shared(total) + room::total, empty = full + 8 * WIDE_STAGES;
    const uint32_t rank = wide_cluster_rank();

    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < room::stages; i++) {
            wide_init(full + i * 8, 1 + 32);
            wide_init(empty + i * 8, WIDE_CLUSTER * 2 * WIDE_TEAM / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    wide_cluster_sync();
    if (threadIdx.x < WIDE_TEAM) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (threadIdx.x < room::fetchers * 32)
            wide_fetch<FMT, TERMS, N>(l, x, job, wide_shared(ring), full, empty, rank);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        if (!is_dense(FMT) && threadIdx.x >= 2 * WIDE_TEAM)
            wide_your_turn(1);
        wide_multiply<FMT, TERMS, N, SMALL>(l, x, job, ring, total, full, empty, rank);
        if (!is_dense(FMT) && threadIdx.x < 2 * WIDE_TEAM)
            wide_my_turn(0); /* nobody is left waiting */
    }
    __syncwarp();
    wide_cluster_sync(); /* the other block may still write here */
#endif
}

/* ---- choosing ---- */

template <int FMT, int TERMS, int N, bool SMALL>
static void wide_start(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row, uint32_t n_split,
                       uint32_t n_whole)
{
    const uint32_t n_block = count_blocks(l, WIDE_TILES),
                   n_pair = (n_block + WIDE_CLUSTER - 1) / WIDE_CLUSTER,
                   n_row_block = (n_row + CU_WIDE_ROWS - 1) / CU_WIDE_ROWS,
                   most = l->n_multiprocessor / WIDE_CLUSTER, n = n_pair * n_row_block,
                   first = n_split > 1 ? n_whole : n;
    const wide_job job = {first + (n - first) * n_split, n_block, n_pair, n_row, n_row_block, first,
                          weight_of_block(l, first * WIDE_CLUSTER)};
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t c = {};

    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {WIDE_CLUSTER, 1, 1};
    c.gridDim = dim3(WIDE_CLUSTER * (job.n_item < most ? job.n_item : most));
    c.blockDim = WIDE_THREADS;
    c.dynamicSmemBytes = wide_room<FMT, TERMS, N>::bytes;
    c.stream = s;
    c.attrs = &cluster;
    c.numAttrs = 1;
    cudaLaunchKernelEx(&c, wide<FMT, TERMS, N, SMALL>, *l, *x, job);
}

template <int FMT, bool SMALL>
static void wide_rows(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row, uint32_t n_split,
                      uint32_t n_whole)
{
    if (x->n_term == 3)
        wide_start<FMT, 3, 128, SMALL>(s, l, x, n_row, n_split, n_whole);
    else if (x->n_term == 2)
        wide_start<FMT, 2, 128, SMALL>(s, l, x, n_row, n_split, n_whole);
    else if (n_row > 64)
        wide_start<FMT, 1, 128, SMALL>(s, l, x, n_row, n_split, n_whole);
    else
        wide_start<FMT, 1, 64, SMALL>(s, l, x, n_row, n_split, n_whole);
}

/* Weights with groups of 32 and others are not for one launch. */
template <int FMT>
static void wide_launch(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row,
                        uint32_t n_split, uint32_t n_whole)
{
    cu_linears one = *l;

    if constexpr (is_dense(FMT)) {
        wide_rows<FMT, false>(s, l, x, n_row, n_split, n_whole);
        return;
    }
    for (uint32_t i = 0; i < l->n;) {
        const bool small = l->w[i].group_kb == 1;

        one.parts = l->parts + (n_split > 1 ? (size_t)n_split * n_row * part_column(*l, i) : 0);
        for (one.n = 0; i < l->n && (l->w[i].group_kb == 1) == small; i++, one.n++) {
            one.w[one.n] = l->w[i];
            one.y[one.n] = l->y[i];
        }
        if (small)
            wide_rows<FMT, !is_dense(FMT)>(s, &one, x, n_row, n_split, n_whole);
        else
            wide_rows<FMT, false>(s, &one, x, n_row, n_split, n_whole);
    }
}

template <int FMT, int TERMS, int N> static cudaError_t wide_allow(void)
{
    const cudaError_t e =
        cudaFuncSetAttribute(wide<FMT, TERMS, N, false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             wide_room<FMT, TERMS, N>::bytes);

    return e == cudaSuccess ? cudaFuncSetAttribute(wide<FMT, TERMS, N, !is_dense(FMT)>,
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   wide_room<FMT, TERMS, N>::bytes)
                            : e;
}

template <int FMT> static cudaError_t wide_setup(void)
{
    const cudaError_t all[] = {wide_allow<FMT, 1, 64>(), wide_allow<FMT, 1, 128>(), wide_allow<FMT, 2, 128>(),
                               wide_allow<FMT, 3, 128>()};

    for (cudaError_t e : all)
        if (e != cudaSuccess)
            return e;
    return cudaSuccess;
}

#endif
