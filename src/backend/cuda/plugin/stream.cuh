/*
 * Products of up to 32 rows whose weights stream through a ring in shared memory: each of a block's 8 warps
 * has a part of the inputs and copies what comes next into slots of its own, across tiles and from before
 * the kernel's inputs are ready. A block takes half of a multiprocessor's registers and shared memory, so
 * the next product's first weights arrive while this one works. With one row its terms lie in shared memory
 * too. The arithmetic is that of linear.cuh; the columns of the other seven rows are copies, which cost
 * nothing.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_STREAM_CUH
#define ESP_BACKEND_CUDA_PLUGIN_STREAM_CUH

#include "backend/cuda/plugin/operand.cuh"
#include "backend/cuda/plugin/stream_out.cuh"
#include "backend/cuda/plugin/stream_rows.cuh"

/* What is copied at once, half a quad or a whole one, and its bytes of a tile. */
template <int FMT> struct stream_unit;
template <> struct stream_unit<CU_BF16> {
    enum { halves = 1, codes = 2048, scales = 0, all = 2048 };
};
template <> struct stream_unit<CU_Q4> { /* groups of 64, bf16 scales */
    enum { halves = 2, codes = 1024, scales = 128, all = 1152 };
};

static __device__ __forceinline__ void stream_copy16(uint32_t to, const uint8_t *from)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Where a warp fetches next: unit u of tile group i, and the addresses of it as this lane copies them. */
template <int RT> struct stream_cursor {
    uint32_t i, u;
    const uint8_t *codes[RT], *scales[RT];
};

/* Tile r of group i: gate and up lie side by side. */
template <int RT, bool PAIR>
static __device__ __forceinline__ uint32_t stream_tile(const cu_linears &l, uint32_t i, uint32_t r,
                                                       uint32_t *which)
{
    if (PAIR) {
        *which = r % 2;
        return i * (RT / 2) + r / 2;
    }
    return find_tile(l, i, RT, which) + r;
}

template <int FMT, int RT, bool PAIR>
static __device__ __forceinline__ void stream_aim(stream_cursor<RT> *c, const cu_linears &l, uint32_t i,
                                                  uint32_t u)
{
    typedef stream_unit<FMT> unit;
    const uint32_t lane = threadIdx.x & 31;

    c->i = i;
    c->u = u;
#pragma unroll
    for (int r = 0; r < RT; r++) {
        uint32_t which;
        const uint32_t tile = stream_tile<RT, PAIR>(l, i, r, &which);
        const cu_weight &w = l.w[which];
        const size_t at = (size_t)min(tile, w.n_tile - 1) * (w.n_quad * 2 / unit::halves) + u;

        c->codes[r] = w.codes + at * unit::codes + lane * 16;
        c->scales[r] = unit::scales ? w.scales + at * unit::scales + (lane & 7) * 16 : nullptr;
    }
}

/* Start the copy of the cursor's unit to a slot and move on; past the last group nothing is copied. */
template <int FMT, int RT, bool PAIR>
static __device__ __forceinline__ void stream_fetch(stream_cursor<RT> *c, const cu_linears &l, uint32_t slot,
                                                    uint32_t u0, uint32_t u1, uint32_t n_group,
                                                    uint32_t stride)
{
    typedef stream_unit<FMT> unit;
    const uint32_t lane = threadIdx.x & 31;

    if (c->i < n_group) {
#pragma unroll
        for (int r = 0; r < RT; r++) {
            const uint32_t to = slot + r * unit::all;

#pragma unroll
            for (int j = 0; j < unit::codes / 512; j++)
                stream_copy16(to + j * 512 + lane * 16, c->codes[r] + j * 512);
            c->codes[r] += unit::codes;
            if (unit::scales) {
                if (lane < unit::scales / 16)
                    stream_copy16(to + unit::codes + lane * 16, c->scales[r]);
                c->scales[r] += unit::scales;
            }
        }
        if (++c->u == u1) {
            c->i += stride;
            if (c->i < n_group)
                stream_aim<FMT, RT, PAIR>(c, l, c->i, u0);
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* ---- a unit ---- */

/* Two blocks of RT tiles: raw is what half a quad holds of a lane. ONE: only the column of row 0 counts. */
template <int FMT, int TERMS, int NT, int RT, bool ONE>
static __device__ __forceinline__ void
stream_half(float (&acc)[RT][NT][4], const uint4 (&raw)[RT][half_quad<FMT>::loads], const uint2 (&sc)[RT],
            const stream_rows<TERMS, NT> &rows, const float2 (&sums)[NT], int h)
{
    float c[RT][NT][4] = {};

#pragma unroll
    for (int jj = 0; jj < 2; jj++) {
        uint32_t a[RT][2][4];

#pragma unroll
        for (int r = 0; r < RT; r++)
            fragments<FMT>(a[r], raw[r], h, jj);
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int i = 0; i < TERMS; i++)
#pragma unroll
                for (int r = 0; r < RT; r++)
#pragma unroll
                    for (int n = 0; n < NT; n++)
                        cu_mma(is_dense(FMT) ? acc[r][n] : c[r][n], a[r][s][0], a[r][s][1], a[r][s][2],
                               a[r][s][3], word(rows.x[jj][n][i], s * 2), word(rows.x[jj][n][i], s * 2 + 1));
    }
    if (is_dense(FMT))
        return;
#pragma unroll
    for (int r = 0; r < RT; r++) {
        const scales k = {__uint_as_float(sc[r].x << 16), __uint_as_float(sc[r].x & 0xffff0000u),
                          __uint_as_float(sc[r].y << 16), __uint_as_float(sc[r].y & 0xffff0000u)};

#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e += ONE ? 2 : 1) {
                acc[r][n][e] = fmaf(e < 2 ? k.b0 : k.b8, e & 1 ? sums[n].y : sums[n].x, acc[r][n][e]);
                acc[r][n][e] = fmaf(e < 2 ? k.s0 : k.s8, c[r][n][e], acc[r][n][e]);
            }
    }
}

/*
 * Unit `at` of a part, out of a slot. Several rows: their activations come from the caches, those of the half
 * quad that follows are under way while `ahead` is used; after the part's last, of n_half, comes the next tile's
 * first.
 */
template <int FMT, int TERMS, int NT, int RT, bool ONE>
static __device__ __forceinline__ void
stream_slot(float (&acc)[RT][NT][4], const uint8_t *slot, const uint8_t *room, const float *room_sums,
            stream_rows<TERMS, NT> *ahead, const cu_act &x, const stream_lines<NT> &lines, uint32_t at,
            uint32_t n_half)
{
    typedef stream_unit<FMT> unit;
    enum { LH = half_quad<FMT>::loads };
    const uint32_t lane = threadIdx.x & 31;

#pragma unroll
    for (int h = 0; h < unit::halves; h++) {
        const uint32_t here = at * unit::halves + h, next = here + 1 == n_half ? 0 : here + 1;
        stream_rows<TERMS, NT> rows = *ahead;
        float2 sums[NT] = {};
        uint4 raw[RT][LH];
        uint2 sc[RT];

        stream_load_rows<TERMS, NT, ONE>(ONE ? &rows : ahead, room, x, lines, ONE ? here : next);
#pragma unroll
        for (int n = 0; n < NT && !is_dense(FMT); n++)
            sums[n] =
                ONE ? make_float2(room_sums[here], 0)
                    : *reinterpret_cast<const float2 *>(room_sums + here * (NT * 8) + n * 8 + (lane & 3) * 2);
#pragma unroll
        for (int r = 0; r < RT; r++) {
#pragma unroll
            for (int j = 0; j < LH; j++)
                raw[r][j] =
                    *reinterpret_cast<const uint4 *>(slot + r * unit::all + (h * LH + j) * 512 + lane * 16);
            if (unit::scales)
                sc[r] = *reinterpret_cast<const uint2 *>(slot + r * unit::all + unit::codes + h * 64 +
                                                         (lane >> 2) * 8);
        }
        stream_half<FMT, TERMS, NT, RT, ONE>(acc, raw, sc, rows, sums, h);
    }
}

/* ---- the kernel ---- */

template <int FMT, int TERMS, int NT, int RT, int DEPTH, bool ONE, int TEAMS>
struct stream_room { /* shared memory */
    enum { slot = RT * stream_unit<FMT>::all, ring = TEAMS * CU_PARTS * DEPTH * slot };

    static __host__ __device__ __forceinline__ uint32_t part_rows(const cu_linears &l)
    {
        return ONE             ? stream_row_bytes(l.w[0].part_quads, TERMS)
               : is_dense(FMT) ? 0
                               : stream_sum_bytes(l.w[0].part_quads, NT * 8);
    }
    static __host__ __device__ __forceinline__ uint32_t rows(const cu_linears &l)
    {
        return CU_PARTS * part_rows(l);
    }
    static __host__ __device__ __forceinline__ uint32_t bytes(const cu_linears &l)
    {
        return ring + rows(l) + TEAMS * (uint32_t)sizeof(stream_red<NT, RT, ONE>);
    }
};

/*
 * Blocks of a multiprocessor. Where it is two, a block's shared memory has to be more than a third of it: a
 * third block of the next kernel beside them would leave other multiprocessors with less work.
 */
static __host__ __device__ constexpr uint32_t stream_resident(int TERMS, int NT, int RT, int TEAMS)
{
    return NT * TERMS > 2 || RT > 2 || TEAMS > 1 ? 1 : 2;
}

/*
 * Blocks stay: block b computes the tile groups b, b + gridDim.x, ... A block may be teams of 8 warps that work
 * like blocks of their own, but share the row of activations.
 */
template <int FMT, int TERMS, int NT, int RT, int DEPTH, bool ONE, bool PAIR, int TEAMS>
static __global__ void __launch_bounds__(32 * CU_PARTS * TEAMS, stream_resident(TERMS, NT, RT, TEAMS))
    stream(const __grid_constant__ cu_stream k, const __grid_constant__ cu_act x, uint32_t n_row,
           uint32_t n_group)
{
    typedef stream_unit<FMT> unit;
    typedef stream_room<FMT, TERMS, NT, RT, DEPTH, ONE, TEAMS> room;
    enum {
        TWO = ONE && RT == 1 && FMT == CU_Q4
    }; /* units at once: more sums that do not wait for each other */
    extern __shared__ __align__(128) uint8_t shared[];
    const cu_linears &l = k.l;
    const uint32_t lane = threadIdx.x & 31, part = threadIdx.x >> 5 & (CU_PARTS - 1),
                   row0 = blockIdx.y * (NT * 8);
    const uint32_t team = TEAMS > 1 ? threadIdx.x / (32 * CU_PARTS) : 0,
                   thread = threadIdx.x % (32 * CU_PARTS);
    const uint32_t first = blockIdx.x + team * gridDim.x, stride = gridDim.x * TEAMS;
    stream_red<NT, RT, ONE> &red =
        reinterpret_cast<stream_red<NT, RT, ONE> *>(shared + room::ring + room::rows(l))[team];
    const uint32_t n_unit = l.w[0].n_quad * 2 / unit::halves, per = l.w[0].part_quads * 2 / unit::halves;
    const uint32_t u0 = min(part * per, n_unit), u1 = min(u0 + per, n_unit);
    const uint8_t *own = shared + (threadIdx.x >> 5) * (DEPTH * room::slot);
    const uint32_t own_at = (uint32_t)__cvta_generic_to_shared(own);
    uint8_t *row = shared + room::ring + part * room::part_rows(l);
    float *row_sums = reinterpret_cast<float *>(row + (ONE ? l.w[0].part_quads * 4 * TERMS * 64 : 0));
    uint32_t slot = 0, flip = 0;
    const uint32_t kb0 = u0 * 2 * unit::halves, n_half = (u1 - u0) * unit::halves;
    stream_rows<TERMS, NT> rows = {};
    stream_lines<NT> lines = {};
    stream_cursor<RT> ahead;

    stream_aim<FMT, RT, PAIR>(&ahead, l, first, u0);
    if (u0 == u1)
        ahead.i = n_group; /* an empty part */
    for (uint32_t d = 0; d < DEPTH; d++)
        stream_fetch<FMT, RT, PAIR>(&ahead, l, own_at + d * room::slot, u0, u1, n_group, stride);
    if (k.order != CU_STREAM_FIRST)
        cu_let_next_start();
    if (k.order != CU_STREAM_BESIDE)
        cu_wait_for_inputs();
    if (k.order == CU_STREAM_FIRST)
        cu_let_next_start();
    if (ONE) {
        stream_take_row<FMT, TERMS, TEAMS>(row, row_sums, x, kb0, n_half * 2, team);
    } else if (n_half) {
        stream_find_lines(&lines, x, row0, n_row, kb0);
        stream_load_rows<TERMS, NT, ONE>(&rows, row, x, lines, 0);
        if (!is_dense(FMT))
            stream_take_sums<NT>(row_sums, x, kb0, n_half * 2, row0);
    }
    for (uint32_t i = first; i < n_group; i += stride, flip ^= 1) {
        float acc[RT][NT][4] = {};

        uint32_t u = u0;

        if (TWO) {
            for (; u + 1 < u1; u += 2) {
                const uint32_t second = slot + 1 == DEPTH ? 0 : slot + 1;

                asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 2) : "memory");
                __syncwarp(); /* what other lanes copied has arrived too */
                stream_slot<FMT, TERMS, NT, RT, ONE>(acc, own + slot * room::slot, row, row_sums, &rows, x,
                                                     lines, u - u0, n_half);
                stream_slot<FMT, TERMS, NT, RT, ONE>(acc, own + second * room::slot, row, row_sums, &rows, x,
                                                     lines, u + 1 - u0, n_half);
                __syncwarp(); /* all have read the slots */
                stream_fetch<FMT, RT, PAIR>(&ahead, l, own_at + slot * room::slot, u0, u1, n_group, stride);
                stream_fetch<FMT, RT, PAIR>(&ahead, l, own_at + second * room::slot, u0, u1, n_group, stride);
                slot = second + 1 == DEPTH ? 0 : second + 1;
            }
        }
        for (; u < u1; u++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 1) : "memory");
            __syncwarp();
            stream_slot<FMT, TERMS, NT, RT, ONE>(acc, own + slot * room::slot, row, row_sums, &rows, x, lines,
                                                 u - u0, n_half);
            __syncwarp();
            stream_fetch<FMT, RT, PAIR>(&ahead, l, own_at + slot * room::slot, u0, u1, n_group, stride);
            slot = slot + 1 == DEPTH ? 0 : slot + 1;
        }
        if (!ONE) {
#pragma unroll
            for (int e = 0; e < RT * NT * 4; e++)
                red.v[flip][part][e][lane] = acc[e / (NT * 4)][e / 4 % NT][e % 4];
        } else if ((lane & 3) == 0) {
#pragma unroll
            for (int e = 0; e < RT * 2; e++)
                red.v[flip][part][e][lane >> 2] = acc[e >> 1][0][e & 1 ? 2 : 0];
        }
        /* the other half of red is free once all have passed the next barrier */
        if (TEAMS > 1)
            asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(32 * CU_PARTS) : "memory");
        else
            __syncthreads();
        if constexpr (PAIR) {
#pragma unroll
            for (uint32_t r = 0; r < RT; r += 2)
                if (i * (RT / 2) + r / 2 < l.w[0].n_tile)
                    stream_gated<NT, RT, ONE>(k, red, flip, r, i * (RT / 2) + r / 2, row0, n_row);
        } else
            stream_outputs<NT, RT, ONE>(k, red, flip, i, row0, n_row, thread);
    }
    if (k.order == CU_STREAM_BESIDE)
        cu_wait_for_inputs();
}

/* ---- choosing ---- */

template <int FMT, int TERMS, int NT, int RT, int DEPTH, bool ONE, bool PAIR, int TEAMS>
static void stream_start(cudaStream_t s, const cu_stream *k, const cu_act *x, uint32_t n_row)
{
    typedef stream_room<FMT, TERMS, NT, RT, DEPTH, ONE, TEAMS> room;
    const cu_linears *l = &k->l;
    const uint32_t n_group = PAIR ? (l->w[0].n_tile + RT / 2 - 1) / (RT / 2) : count_blocks(l, RT);
    const uint32_t most = l->n_multiprocessor * stream_resident(TERMS, NT, RT, TEAMS);
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t c = {};

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3(n_group < most ? n_group : most, (n_row + NT * 8 - 1) / (NT * 8));
    c.blockDim = 32 * CU_PARTS * TEAMS;
    c.dynamicSmemBytes = room::bytes(*l);
    c.stream = s;
    c.attrs = &early;
    c.numAttrs = l->early ? 1 : 0;
    cudaLaunchKernelEx(&c, stream<FMT, TERMS, NT, RT, DEPTH, ONE, PAIR, TEAMS>, *k, *x, n_row, n_group);
}

/* How deep rings are. */
template <int FMT, int NT, int RT, bool ONE> struct stream_depth;
template <> struct stream_depth<CU_Q4, 1, 2, true> {
    enum { deep = 4, shallow = 2, teams = 1 };
};
template <> struct stream_depth<CU_Q4, 1, 1, true> {
    enum { deep = 5, shallow = 4, teams = 3 };
};
template <> struct stream_depth<CU_BF16, 1, 2, true> {
    enum { deep = 2, shallow = 2, teams = 1 };
};
template <> struct stream_depth<CU_BF16, 1, 1, true> {
    enum { deep = 4, shallow = 3, teams = 2 };
};
template <> struct stream_depth<CU_Q4, 1, 2, false> {
    enum { deep = 4 };
};
template <> struct stream_depth<CU_Q4, 1, 1, false> {
    enum { deep = 8 };
};
template <> struct stream_depth<CU_Q4, 2, 2, false> {
    enum { deep = 3 };
};
template <> struct stream_depth<CU_Q4, 2, 4, false> {
    enum { deep = 3 };
};
template <> struct stream_depth<CU_Q4, 4, 2, false> {
    enum { deep = 5 };
};
template <> struct stream_depth<CU_BF16, 1, 2, false> {
    enum { deep = 2 };
};
template <> struct stream_depth<CU_BF16, 1, 1, false> {
    enum { deep = 5 };
};
template <> struct stream_depth<CU_BF16, 2, 2, false> {
    enum { deep = 2 };
};
template <> struct stream_depth<CU_BF16, 1, 4, false> {
    enum { deep = 2 };
};
template <> struct stream_depth<CU_BF16, 4, 2, false> {
    enum { deep = 3 };
};

enum { STREAM_DEEP_ROWS = 40000 }; /* bytes of a row's terms that a deep ring leaves room for */

template <int FMT, int TERMS, int RT, bool PAIR>
static void stream_one(cudaStream_t s, const cu_stream *k, const cu_act *x)
{
    typedef stream_depth<FMT, 1, RT, true> depth;

    if (stream_room<FMT, TERMS, 1, RT, depth::deep, true, depth::teams>::rows(k->l) <= STREAM_DEEP_ROWS)
        stream_start<FMT, TERMS, 1, RT, depth::deep, true, PAIR, depth::teams>(s, k, x, 1);
    else
        stream_start<FMT, TERMS, 1, RT, depth::shallow, true, PAIR, depth::teams>(s, k, x, 1);
}

template <int FMT, int TERMS, int NT, int RT, bool PAIR>
static void stream_some(cudaStream_t s, const cu_stream *k, const cu_act *x, uint32_t n_row)
{
    enum { DEPTH = stream_depth<FMT, NT, RT, false>::deep };

    if (NT > 1 && stream_room<FMT, TERMS, NT, RT, DEPTH, false, 1>::bytes(k->l) > CU_TILED_SHARED)
        stream_some<FMT, TERMS, 1, 2, PAIR>(s, k, x, n_row); /* sums of very long rows */
    else
        stream_start<FMT, TERMS, NT, RT, DEPTH, false, PAIR, 1>(s, k, x, n_row);
}

/*
 * Tiles at once of wide products. Up to 8 rows: codes want two blocks a multiprocessor, as they take work to
 * decode. 9 to 16 rows: with few bytes of weights rows are what has to be saved.
 */
template <int FMT> struct stream_tiles {
    enum { few = FMT == CU_Q4 ? 2 : 4, wide = FMT == CU_Q4 ? 4 : 2 };
};

template <int FMT, int TERMS>
static void stream_launch_terms(cudaStream_t s, const cu_stream *k, const cu_act *x, uint32_t n_row)
{
    enum { FEW = stream_tiles<FMT>::few, WIDE = stream_tiles<FMT>::wide };
    typedef stream_depth<FMT, 1, 1, true> narrow;
    typedef stream_room<FMT, TERMS, 1, 1, narrow::shallow, true, narrow::teams> most;
    const bool one = n_row == 1 && most::bytes(k->l) <= CU_TILED_SHARED;
    /* few tiles: one at a time, so that all multiprocessors have about as many */
    const bool wide = count_blocks(&k->l, 2) >= 3 * k->l.n_multiprocessor;

    if (one && k->swiglu)
        stream_one<FMT, TERMS, 2, true>(s, k, x);
    else if (one && wide)
        stream_one<FMT, TERMS, 2, false>(s, k, x);
    else if (one)
        stream_one<FMT, TERMS, 1, false>(s, k, x);
    else if (n_row <= 8 && k->swiglu)
        stream_some<FMT, TERMS, 1, FEW, true>(s, k, x, n_row);
    else if (n_row <= 8 && wide)
        stream_some<FMT, TERMS, 1, FEW, false>(s, k, x, n_row);
    else if (n_row <= 8)
        stream_some<FMT, TERMS, 1, 2, false>(s, k, x, n_row);
    else if (n_row <= 16 && k->swiglu)
        stream_some<FMT, TERMS, 2, WIDE, true>(s, k, x, n_row);
    else if (n_row <= 16 && wide)
        stream_some<FMT, TERMS, 2, WIDE, false>(s, k, x, n_row);
    else if (n_row <= 16)
        stream_some<FMT, TERMS, 2, 2, false>(s, k, x, n_row);
    else if (k->swiglu)
        stream_some<FMT, TERMS, 4, 2, true>(s, k, x, n_row);
    else
        stream_some<FMT, TERMS, 4, 2, false>(s, k, x, n_row);
}

template <int FMT, int TERMS, int NT, int RT, int DEPTH, bool ONE, bool PAIR, int TEAMS>
static cudaError_t stream_allow(void)
{
    return cudaFuncSetAttribute(stream<FMT, TERMS, NT, RT, DEPTH, ONE, PAIR, TEAMS>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, CU_TILED_SHARED);
}

template <int FMT, int TERMS, int RT, bool PAIR> static cudaError_t stream_allow_one(void)
{
    typedef stream_depth<FMT, 1, RT, true> depth;
    const cudaError_t e = stream_allow<FMT, TERMS, 1, RT, depth::deep, true, PAIR, depth::teams>();

    return e == cudaSuccess ? stream_allow<FMT, TERMS, 1, RT, depth::shallow, true, PAIR, depth::teams>() : e;
}

template <int FMT, int TERMS, int NT, int RT, bool PAIR> static cudaError_t stream_allow_some(void)
{
    return stream_allow<FMT, TERMS, NT, RT, stream_depth<FMT, NT, RT, false>::deep, false, PAIR, 1>();
}

template <int FMT, int TERMS> static cudaError_t stream_setup_terms(void)
{
    enum { FEW = stream_tiles<FMT>::few, WIDE = stream_tiles<FMT>::wide };
    const cudaError_t all[] = {
        stream_allow_one<FMT, TERMS, 2, true>(),        stream_allow_one<FMT, TERMS, 2, false>(),
        stream_allow_one<FMT, TERMS, 1, false>(),       stream_allow_some<FMT, TERMS, 1, FEW, true>(),
        stream_allow_some<FMT, TERMS, 1, FEW, false>(), stream_allow_some<FMT, TERMS, 1, 2, false>(),
        stream_allow_some<FMT, TERMS, 2, WIDE, true>(), stream_allow_some<FMT, TERMS, 2, WIDE, false>(),
        stream_allow_some<FMT, TERMS, 2, 2, false>(),   stream_allow_some<FMT, TERMS, 4, 2, true>(),
        stream_allow_some<FMT, TERMS, 4, 2, false>()};

    for (cudaError_t e : all)
        if (e != cudaSuccess)
            return e;
    return cudaSuccess;
}

template <int FMT>
static void stream_launch(cudaStream_t s, const cu_stream *k, const cu_act *x, uint32_t n_row)
{
    if (x->n_term == 1)
        stream_launch_terms<FMT, 1>(s, k, x, n_row);
    else
        stream_launch_terms<FMT, 2>(s, k, x, n_row);
}

template <int FMT> static cudaError_t stream_setup(void)
{
    const cudaError_t e = stream_setup_terms<FMT, 1>();

    return e == cudaSuccess ? stream_setup_terms<FMT, 2>() : e;
}

#endif
