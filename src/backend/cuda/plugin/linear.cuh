/*
 * Products of a weight with rows of activations on the tensor cores, y[r][o] = sum_k x[r][k] W[o][k], in two
 * kernels with one arithmetic: `few` streams each weight once past up to 32 rows (decode), `tiled` multiplies
 * 128 x 128 tiles (prefill). Both compute an output in the same order, so their bits agree:
 *
 *   The inputs are cut into CU_PARTS parts. Within a part, blocks of 32 inputs follow one another; in a block
 * two steps of 16 inputs, in a step the terms of x. Dense weights accumulate a part in the tensor core's
 * accumulator. Grouped weights accumulate codes times x over a group, then part = fma(bias, sum of x, part),
 * part = fma(scale, codes, part). Parts are added in ascending order.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_LINEAR_CUH
#define ESP_BACKEND_CUDA_PLUGIN_LINEAR_CUH

#include "backend/cuda/plugin/operand.cuh"

/* ---- few rows: a warp is a part, a block is RT tiles of 16 outputs ----------------------------------------
 */

/* What a lane holds of SQ quads of RT tiles. */
template <int FMT, int RT> struct few_raw {
    enum {
        LQ = half_quad<FMT>::quad_loads,
        SQ = LQ * RT >= 4 ? 1 : 4 / (LQ * RT) /* at least 64 bytes in flight */
    };
    uint4 w[SQ][RT][LQ];
    uint2 sc[SQ][RT]
            [2]; /* scales of groups of 64 and 128 that end at block 1 and 3; groups of 32 load theirs late */
};

template <int FMT, int RT>
static __device__ __forceinline__ void few_load(few_raw<FMT, RT> *to, const cu_weight &w, uint32_t tile0,
                                                uint32_t q, uint32_t q1)
{
    enum { LQ = few_raw<FMT, RT>::LQ, SQ = few_raw<FMT, RT>::SQ };
    const uint32_t lane = threadIdx.x & 31;

#pragma unroll
    for (int s = 0; s < SQ; s++)
#pragma unroll
        for (int r = 0; r < RT; r++) {
            const uint32_t tile = min(tile0 + r, w.n_tile - 1);
            const uint8_t *src = w.codes + (((size_t)tile * w.n_quad + q + s) * LQ * 32 + lane) * 16;

            if (q + s >= q1)
                continue;
#pragma unroll
            for (int i = 0; i < LQ; i++)
                to->w[s][r][i] = load_weight(src + i * 512);
            if (is_dense(FMT) || w.group_kb == 1)
                continue;
            if (w.group_kb == 2)
                to->sc[s][r][0] = fetch_scales(w, tile, (q + s) * 4 + 1, lane >> 2);
            to->sc[s][r][1] = fetch_scales(w, tile, (q + s) * 4 + 3, lane >> 2);
        }
}

/* The products of SQ quads with NT * 8 rows. */
template <int FMT, int TERMS, int NT, int RT>
static __device__ __forceinline__ void
few_stage(float (&acc)[RT][NT][4], float (&c)[RT][NT][4], const few_raw<FMT, RT> &cur, const cu_weight &w,
          uint32_t tile0, uint32_t q, uint32_t q1, const cu_act &x, uint32_t row0, uint32_t n_row)
{
    enum { LH = half_quad<FMT>::loads, SQ = few_raw<FMT, RT>::SQ };
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, gmask = w.group_kb - 1;

#pragma unroll
    for (int s = 0; s < SQ; s++) {
        float2 xs[NT];

        if (q + s >= q1)
            break;
#pragma unroll
        for (int n = 0; n < NT; n++)
            xs[n] = make_float2(0, 0);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t kb = (q + s) * 4 + j;
            uint4 xv[NT][TERMS];

#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < TERMS; i++) {
                    const uint32_t row = row0 + n * 8 + g;

                    xv[n][i] = make_uint4(0, 0, 0, 0);
                    if (row < n_row)
                        xv[n][i] =
                            *reinterpret_cast<const uint4 *>(x.t[i] + (size_t)row * x.ld + kb * 32 + 8 * t);
                }
#pragma unroll
            for (int n = 0; n < NT && !is_dense(FMT); n++) {
                const float2 v =
                    *reinterpret_cast<const float2 *>(x.sums + (size_t)kb * x.max_row + row0 + n * 8 + 2 * t);

                xs[n].x += v.x;
                xs[n].y += v.y;
            }
#pragma unroll
            for (int r = 0; r < RT; r++) {
                uint32_t a[2][4];

                fragments<FMT>(a, &cur.w[s][r][FMT == CU_Q2 ? 0 : (j / 2) * LH], j / 2, j & 1);
                block_mma<FMT, TERMS, NT>(is_dense(FMT) ? acc[r] : c[r], a, xv);
            }
            if (is_dense(FMT) || (!(j & 1) && gmask != 0))
                continue;
#pragma unroll
            for (int r = 0; r < RT; r++) {
                const uint32_t tile = min(tile0 + r, w.n_tile - 1);
                uint2 raw = gmask == 3 ? cur.sc[s][r][1] : cur.sc[s][r][j / 2];

                if (gmask == 0)
                    raw = fetch_scales(w, tile, kb, g);
                const scales k = open_scales(w, tile, kb, g, raw);

#pragma unroll
                for (int n = 0; n < NT; n++) {
                    add_bias(acc[r][n], k, xs[n]);
                    if ((kb & gmask) == gmask)
                        close_group(acc[r][n], c[r][n], k);
                }
            }
#pragma unroll
            for (int n = 0; n < NT; n++)
                xs[n] = make_float2(0, 0);
        }
    }
}

/* Blocks of a multiprocessor: what registers allow without spilling. */
template <int NT, int RT> static constexpr int few_resident(void)
{
    return NT == 1 && RT == 1 ? 2 : 1;
}

/*
 * Blocks stay: block b computes the tile groups b, b + gridDim.x, ... and fetches the next group's weights
 * before it adds up the parts of the present one. Weights never change, so the first fetch does not wait for
 * the kernel before.
 */
template <int FMT, int TERMS, int NT, int RT>
static __global__ void __launch_bounds__(32 * CU_PARTS, few_resident<NT, RT>())
    few(const __grid_constant__ cu_linears l, const __grid_constant__ cu_act x, uint32_t n_row,
        uint32_t n_group)
{
    enum { SQ = few_raw<FMT, RT>::SQ };
    __shared__ float red[2][CU_PARTS][RT * NT * 4][32];
    const uint32_t lane = threadIdx.x & 31, part = threadIdx.x >> 5, row0 = blockIdx.y * (NT * 8);
    const uint32_t q0 = part * l.w[0].part_quads,
                   q1 = min(q0 + l.w[0].part_quads, l.w[0].n_quad); /* of all weights */
    uint32_t which, tile0 = find_tile(l, blockIdx.x, RT, &which), flip = 0;
    few_raw<FMT, RT> next;

    if (q0 < q1)
        few_load(&next, l.w[which], tile0, q0, q1);
    cu_let_next_start();
    cu_wait_for_inputs();
    for (uint32_t i = blockIdx.x; i < n_group; i += gridDim.x, flip ^= 1) {
        const cu_weight &w = l.w[which];
        const uint32_t tile = tile0, here = which;
        float acc[RT][NT][4] = {}, c[RT][NT][4] = {};

        if (i + gridDim.x < n_group)
            tile0 = find_tile(l, i + gridDim.x, RT, &which);
        for (uint32_t q = q0; q < q1; q += SQ) {
            const few_raw<FMT, RT> cur = next;

            if (q + SQ < q1)
                few_load(&next, w, tile, q + SQ, q1);
            else if (i + gridDim.x < n_group)
                few_load(&next, l.w[which], tile0, q0, q1);
            few_stage<FMT, TERMS, NT, RT>(acc, c, cur, w, tile, q, q1, x, row0, n_row);
        }
#pragma unroll
        for (int e = 0; e < RT * NT * 4; e++)
            red[flip][part][e][lane] = acc[e / (NT * 4)][e / 4 % NT][e % 4];
        __syncthreads(); /* the other half of red is free once all have passed the next one */
        for (uint32_t e = threadIdx.x; e < RT * NT * 4 * 32; e += 32 * CU_PARTS) {
            const uint32_t le = e & 31, k = e >> 5 & 3, n = (e >> 7) % NT, r = (e >> 7) / NT;
            const uint32_t o = (tile + r) * 16 + (le >> 2) + (k >= 2 ? 8 : 0);
            const uint32_t tok = row0 + n * 8 + 2 * (le & 3) + (k & 1);
            float sum = red[flip][0][e >> 5][le];

#pragma unroll
            for (int p = 1; p < CU_PARTS; p++)
                sum += red[flip][p][e >> 5][le];
            if (o < w.n_out && tok < n_row)
                l.y[here][(size_t)tok * w.n_out + o] = sum;
        }
    }
}

/* ---- many rows: a block is 8 tiles of outputs times 128 rows; warps are 2 x 4, each 64 outputs times 32
 * rows -------- */

enum {
    TILED_ROWS = 128,
    TILED_TILES = 8,
    TILED_THREADS = 256,
    TILED_PLANE = TILED_ROWS * 64, /* bytes of a block of 32 inputs of one term */
    TILED_SUMS = 2 * TILED_ROWS * 4,
    TILED_N = 4, /* groups of 8 rows a warp */
    TILED_R = 4  /* tiles of 16 outputs a warp */
};

template <int TERMS> struct tiled_shared {
    enum {
        stages = TERMS == 3 ? 2 : 4,
        stage = 2 * TERMS * TILED_PLANE + TILED_SUMS,
        bytes = stages * stage + TILED_R * TILED_N * 4 * TILED_THREADS * 4
    };
};

/* Fetch half-quad h of the rows' terms into its stage: planes [block][term][row][64 bytes], then sums
 * [block][row]. */
template <int TERMS>
static __device__ __forceinline__ void tiled_fetch(uint8_t *stages, const cu_act &x, uint32_t row0,
                                                   uint32_t h)
{
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(stages + (h % tiled_shared<TERMS>::stages) *
                                                                        tiled_shared<TERMS>::stage);

#pragma unroll
    for (int i = 0; i < 4 * TERMS; i++) {
        const uint32_t e = (i & 3) * TILED_THREADS + threadIdx.x, c = e & 3, jj = e >> 2 & 1, row = e >> 3;
        const uint32_t at = ((jj * TERMS + i / 4) * TILED_ROWS + row) * 64 + c * 16;

        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at),
                     "l"(x.t[i / 4] + (size_t)(row0 + row) * x.ld + h * 64 + jj * 32 + c * 8));
    }
    if (threadIdx.x < TILED_SUMS / 16) {
        const uint32_t jj = threadIdx.x / (TILED_ROWS / 4), row = threadIdx.x % (TILED_ROWS / 4) * 4;
        const uint32_t at = 2 * TERMS * TILED_PLANE + (jj * TILED_ROWS + row) * 4;

        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at),
                     "l"(x.sums + (size_t)(h * 2 + jj) * x.max_row + row0 + row));
    }
}

/* What a lane holds of its tiles in one half-quad. */
template <int FMT> struct tiled_raw {
    uint4 w[TILED_R][half_quad<FMT>::loads];
    uint2 sc[TILED_R]; /* of the group that ends with it; groups of 32 load theirs late */
};

template <int FMT>
static __device__ __forceinline__ void tiled_load(tiled_raw<FMT> *to, const cu_weight &w, uint32_t tile0,
                                                  uint32_t h)
{
    const uint32_t lane = threadIdx.x & 31;

#pragma unroll
    for (int r = 0; r < TILED_R; r++) {
        const uint32_t tile = min(tile0 + r, w.n_tile - 1);
        const uint8_t *src = w.codes + (size_t)tile * w.n_quad * (half_quad<FMT>::quad_loads * 512) +
                             (FMT == CU_Q2 ? h / 2 : h * half_quad<FMT>::loads) * 512 + lane * 16;

#pragma unroll
        for (int i = 0; i < half_quad<FMT>::loads; i++)
            to->w[r][i] = __ldg(reinterpret_cast<const uint4 *>(src + i * 512)); /* four warps want it */
        if (!is_dense(FMT) && w.group_kb != 1)
            to->sc[r] = fetch_scales(w, tile, h * 2 + 1, lane >> 2);
    }
}

template <int FMT, int TERMS>
static __global__ void __launch_bounds__(TILED_THREADS, 1)
    tiled(const __grid_constant__ cu_linears l, const __grid_constant__ cu_act x, uint32_t n_row)
{
#ifndef __CUDA_ARCH_FEAT_SM90_ALL /* there it is wide.cuh that multiplies many rows */
    enum { ST = tiled_shared<TERMS>::stages };
    extern __shared__ __align__(128) uint8_t shared[];
    float *total = reinterpret_cast<float *>(shared + ST * tiled_shared<TERMS>::stage); /* [acc][threads] */
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const uint32_t row0 = blockIdx.x * TILED_ROWS,
                   col0 = (warp >> 1) * (TILED_N * 8); /* the warp's first row in the block */
    const bool split = gridDim.z > 1;                  /* a block of its own for each part */
    uint32_t which;
    const uint32_t tile0 = find_tile(l, blockIdx.y, TILED_TILES, &which) + (warp & 1) * TILED_R;
    const cu_weight &w = l.w[which];
    const uint32_t gmask = w.group_kb - 1, per_part = w.part_quads * 2, n_half = w.n_quad * 2;
    const uint32_t h0 = split ? min(blockIdx.z * per_part, n_half) : 0,
                   h1 = split ? min(h0 + per_part, n_half) : n_half;
    uint32_t part_end = h0 + per_part, done = 0;
    tiled_raw<FMT> next;
    float acc[TILED_R][TILED_N][4] = {}, c[TILED_R][TILED_N][4] = {};

    if (h0 < h1)
        tiled_load(&next, w, tile0, h0);
    for (uint32_t s = h0; s < h0 + ST - 1; s++) {
        if (s < h1)
            tiled_fetch<TERMS>(shared, x, row0, s);
        asm volatile("cp.async.commit_group;");
    }
    for (uint32_t h = h0; h < h1; h++) {
        const tiled_raw<FMT> cur = next;
        const uint8_t *stage = shared + (h % ST) * tiled_shared<TERMS>::stage;

        asm volatile("cp.async.wait_group %0;" ::"n"(ST - 2));
        __syncthreads(); /* stage h has arrived for all, stage h - 1 is free */
        if (h + ST - 1 < h1)
            tiled_fetch<TERMS>(shared, x, row0, h + ST - 1);
        asm volatile("cp.async.commit_group;");
        if (h + 1 < h1)
            tiled_load(&next, w, tile0, h + 1);
#pragma unroll
        for (int jj = 0; jj < 2; jj++) {
            const uint32_t kb = h * 2 + jj;
            const float *sums =
                reinterpret_cast<const float *>(stage + 2 * TERMS * TILED_PLANE) + col0 + 2 * t;
            uint4 xv[TILED_N][TERMS];

#pragma unroll
            for (int n = 0; n < TILED_N; n++)
#pragma unroll
                for (int i = 0; i < TERMS; i++)
                    xv[n][i] = *reinterpret_cast<const uint4 *>(
                        stage + ((jj * TERMS + i) * TILED_ROWS + col0 + n * 8 + g) * 64 + t * 16);
#pragma unroll
            for (int r = 0; r < TILED_R; r++) {
                uint32_t a[2][4];

                fragments<FMT>(a, cur.w[r], (int)(h & 1), jj);
                block_mma<FMT, TERMS, TILED_N>(is_dense(FMT) ? acc[r] : c[r], a, xv);
            }
            if (is_dense(FMT) || (jj == 0 && gmask != 0))
                continue;
#pragma unroll
            for (int r = 0; r < TILED_R; r++) {
                const uint32_t tile = min(tile0 + r, w.n_tile - 1);
                const scales k =
                    open_scales(w, tile, kb, g, gmask ? cur.sc[r] : fetch_scales(w, tile, kb, g));

#pragma unroll
                for (int n = 0; n < TILED_N; n++) {
                    float2 xs = *reinterpret_cast<const float2 *>(sums + jj * TILED_ROWS + n * 8);

                    if (gmask) { /* both blocks of the half-quad, in order */
                        const float2 v = *reinterpret_cast<const float2 *>(sums + n * 8);

                        xs = make_float2(v.x + xs.x, v.y + xs.y);
                    }
                    add_bias(acc[r][n], k, xs);
                    if ((kb & gmask) == gmask)
                        close_group(acc[r][n], c[r][n], k);
                }
            }
        }
        if (h + 1 == part_end || h + 1 == h1) {
#pragma unroll
            for (int e = 0; e < TILED_R * TILED_N * 4; e++) {
                float *f = total + e * TILED_THREADS + threadIdx.x;
                float *a = &acc[e / (TILED_N * 4)][e / 4 % TILED_N][e % 4];

                *f = done ? *f + *a : *a;
                *a = 0;
            }
            done++;
            part_end += per_part;
        }
    }
#pragma unroll
    for (int e = 0; e < TILED_R * TILED_N * 4; e++) {
        const uint32_t row = g + (e % 4 >= 2 ? 8 : 0), tile = tile0 + e / (TILED_N * 4);
        const uint32_t o = FMT == CU_VALUES ? cu_coded_output(w.axis, w.tile0 + tile, row) : tile * 16 + row;
        const uint32_t tok = row0 + col0 + e / 4 % TILED_N * 8 + 2 * t + (e & 1);
        float sum = done ? total[e * TILED_THREADS + threadIdx.x] : 0.0f;

        if (o >= w.n_out || tok >= n_row || tile >= w.n_tile)
            continue;
        if (split) {
            float *to = l.parts + (size_t)w.n_part * n_row * part_column(l, which);

            to[((size_t)blockIdx.z * n_row + tok) * w.n_out + o] = sum;
            continue;
        }
        for (uint32_t p = done; p < w.n_part; p++)
            sum += 0.0f; /* empty parts, as in `few`: they turn -0 into 0 */
        l.y[which][(size_t)tok * w.n_out + o] = FMT == CU_VALUES ? coded_result(w, x, o, tok, sum) : sum;
    }
#endif
}

/* Parts [part][n_row][n_out] to y: outputs from `first` on. */
static __global__ void add_parts(const float *parts, float *y, uint32_t n_out, uint32_t first, uint32_t n_row)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, width = n_out - first, row = i / width;
    const size_t at = (size_t)row * n_out + first + i % width, apart = (size_t)n_row * n_out;
    float sum;

    if (row >= n_row)
        return;
    sum = parts[at];
#pragma unroll
    for (uint32_t p = 1; p < CU_PARTS; p++)
        sum += parts[p * apart + at];
    y[at] = sum;
}

/* ---- choosing
 * ------------------------------------------------------------------------------------------------------- */

template <int FMT, int TERMS, int NT, int RT>
static void start_few(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row)
{
    const uint32_t n_group = count_blocks(l, RT), most = l->n_multiprocessor * few_resident<NT, RT>();
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t c = {};

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3(n_group < most ? n_group : most, (n_row + NT * 8 - 1) / (NT * 8));
    c.blockDim = 32 * CU_PARTS;
    c.stream = s;
    c.attrs = &early;
    c.numAttrs = l->early ? 1 : 0;
    cudaLaunchKernelEx(&c, few<FMT, TERMS, NT, RT>, *l, *x, n_row, n_group);
}

template <int FMT, int TERMS>
static void launch_few(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row)
{
    if (n_row == 1)
        start_few<FMT, TERMS, 1, 1>(s, l, x, n_row);
    else if (n_row <= 8)
        start_few<FMT, TERMS, 1, 2>(s, l, x, n_row);
    else if (n_row <= 16)
        start_few<FMT, TERMS, 2, 2>(s, l, x, n_row);
    else
        start_few<FMT, TERMS, 4, 1>(s, l, x, n_row);
}

enum {
    FILL_BLOCKS = 96
}; /* with fewer blocks than most of a large device's multiprocessors, parts get their own */

/* Adds up what blocks of single parts left: those of CU_WIDE_BLOCK tiles from `first` on. */
static void add_split(cudaStream_t s, const cu_linears *l, uint32_t n_row, uint32_t first)
{
    const uint32_t from = weight_of_block(l, first);
    uint32_t skip = (first - blocks_before(l, from)) * (CU_WIDE_BLOCK * 16); /* outputs */
    const float *parts = l->parts;

    for (uint32_t i = from; i < l->n; i++, skip = 0) {
        const uint32_t n_out = l->w[i].n_out;

        if (skip < n_out)
            add_parts<<<(unsigned)(((size_t)n_row * (n_out - skip) + 255) / 256), 256, 0, s>>>(
                parts, l->y[i], n_out, skip, n_row);
        parts += (size_t)CU_PARTS * n_row * n_out;
    }
}

/* Whether there is room for what add_split() adds up. */
static bool split_fits(const cu_linears *l, uint32_t n_row, uint32_t first)
{
    const size_t columns = part_column(*l, l->n) - part_column(*l, weight_of_block(l, first));

    return CU_PARTS * n_row * columns * sizeof(float) <= l->parts_bytes;
}

template <int FMT, int TERMS>
static void launch_tiled(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row)
{
    dim3 grid((n_row + TILED_ROWS - 1) / TILED_ROWS, count_blocks(l, TILED_TILES));
    const bool split = grid.x * grid.y < FILL_BLOCKS && split_fits(l, n_row, 0);

    grid.z = split ? CU_PARTS : 1;
    tiled<FMT, TERMS><<<grid, TILED_THREADS, tiled_shared<TERMS>::bytes, s>>>(*l, *x, n_row);
    if (split)
        add_split(s, l, n_row, 0);
}

/* Whether all weights go into one launch of wide.cuh. */
static bool one_wide(const cu_linears *l)
{
    for (uint32_t i = 1; i < l->n; i++)
        if ((l->w[i].group_kb == 1) != (l->w[0].group_kb == 1))
            return false;
    return true;
}

/*
 * In the order of wide.h. Pairs of blocks of 128 outputs times 128 rows come in waves; parts as items of their
 * own make eight times as many short ones, and leave sums to be added. Of few rows only a last wave that
 * would not be full comes in parts, as sums of parts are more bytes than weights.
 */
template <class F>
static void launch_wide(F *wide, cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row)
{
    const uint32_t items = (count_blocks(l, 8) + 1) / 2 * ((n_row + CU_WIDE_ROWS - 1) / CU_WIDE_ROWS);
    const uint32_t pairs = l->n_multiprocessor / 2, whole = (items + pairs - 1) / pairs * CU_PARTS,
                   cut = (items * CU_PARTS + pairs - 1) / pairs;
    const uint32_t first = n_row <= CU_WIDE_ROWS && one_wide(l) ? items / pairs * pairs : 0;
    const bool split = cut + 1 < whole && split_fits(l, n_row, first * 2);

    wide(s, l, x, n_row, split ? (uint32_t)CU_PARTS : 1, first);
    if (split)
        add_split(s, l, n_row, first * 2);
}

template <int FMT, int TERMS>
static void launch_terms(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row)
{
    if (n_row <= CU_FEW_ROWS || !l->tiled)
        launch_few<FMT, TERMS>(s, l, x, n_row);
    else
        launch_tiled<FMT, TERMS>(s, l, x, n_row);
}

template <int FMT>
static void launch_linear(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row)
{
    if (x->n_term == 1)
        launch_terms<FMT, 1>(s, l, x, n_row);
    else if (x->n_term == 2)
        launch_terms<FMT, 2>(s, l, x, n_row);
    else
        launch_terms<FMT, 3>(s, l, x, n_row);
}

template <int FMT, int TERMS> static cudaError_t allow_tiled(void)
{
    static_assert((int)tiled_shared<TERMS>::bytes <= (int)CU_TILED_SHARED,
                  "the host asks the device for this much");
    return cudaFuncSetAttribute(tiled<FMT, TERMS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                tiled_shared<TERMS>::bytes);
}

template <int FMT> static cudaError_t setup_linear(void)
{
    cudaError_t e = allow_tiled<FMT, 1>();

    if (e == cudaSuccess)
        e = allow_tiled<FMT, 2>();
    return e == cudaSuccess ? allow_tiled<FMT, 3>() : e;
}

#endif
