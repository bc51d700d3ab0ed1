/*
 * Products of a weight with rows of activations on the tensor cores, y[r][o] = sum_k x[r][k] W[o][k], in two
 * kernels with one arithmetic: `few` streams each weight once past up to 32 rows (decode), `tiled` multiplies
 * 128 x 128 tiles (prefill). Both compute an output in the same order, so their bits agree:
 *
 *   The inputs are cut into CU_PARTS parts. Within a part, blocks of 32 inputs follow one another; in a block
 * two steps of 16 inputs, in a step the terms of x. Dense weights accumulate a part in the tensor core's
 * accumulator. Grouped weights accumulate codes times x over a group, then part = fma(scale, codes, part),
 * part = fma(bias, sum of x, part). Parts are added in ascending order.
 *
 * Codes are small integers, exact in bf16, so grouped weights lose nothing on the way. A tensor-core operand
 * may permute its inner dimension as long as the other operand follows: lane t of a row holds inputs 8t ..
 * 8t+7 of a block, which makes every load 16 bytes wide on both sides. Source: PTX ISA, mma.m16n8k16 fragment
 * layout.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_LINEAR_CUH
#define ESP_BACKEND_CUDA_PLUGIN_LINEAR_CUH

#include "backend/cuda/plugin/device.cuh"

/* 16-byte loads that one lane makes for half a quad (two blocks). q2 holds both halves in one load. */
template <int FMT> struct half_quad;
template <> struct half_quad<CU_BF16> {
    enum { loads = 4, quad_loads = 8 };
};
template <> struct half_quad<CU_Q8> {
    enum { loads = 2, quad_loads = 4 };
};
template <> struct half_quad<CU_Q4> {
    enum { loads = 1, quad_loads = 2 };
};
template <> struct half_quad<CU_Q2> {
    enum { loads = 1, quad_loads = 1 };
};

static __device__ __forceinline__ uint4 load_weight(const uint8_t *p)
{
    uint4 v;

    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

static __device__ __forceinline__ uint32_t word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Codes below 128 in both halves of v as bf16: 0x4300 | c is 128 + c, exactly. */
static __device__ __forceinline__ uint32_t small_codes(uint32_t v)
{
    uint32_t r;

    v |= 0x43004300u;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(v), "r"(0x43004300u));
    return r;
}

/* Pair p (inputs 8t+2p, 8t+2p+1) of row g + 8 * half in block jj (0, 1) of half-quad hq (0, 1). */
template <int FMT>
static __device__ __forceinline__ uint32_t pair_of(const uint4 *raw, int hq, int jj, int p, int half)
{
    if (FMT == CU_BF16)
        return word(raw[jj * 2 + half], p);
    if (FMT == CU_Q4)
        return small_codes(word(raw[0], jj * 2 + half) >> (4 * p) & 0x000f000fu);
    if (FMT == CU_Q2)
        return small_codes(word(raw[0], hq * 2 + jj) >> (2 * p + 8 * half) & 0x00030003u);
    const uint32_t v = word(raw[jj], half * 2 + p / 2) >> (16 * (p & 1));

    /* 0x4b000000 | c is 2^23 + c in f32 */
    return cu_bf16x2(__uint_as_float(0x4b000000u | (v & 0xff)) - 8388608.0f,
                     __uint_as_float(0x4b000000u | (v >> 8 & 0xff)) - 8388608.0f);
}

/* The A operand of both steps of a block: [step][a0..a3]. */
template <int FMT>
static __device__ __forceinline__ void fragments(uint32_t a[2][4], const uint4 *raw, int hq, int jj)
{
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int p = 0; p < 2; p++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                a[s][p * 2 + half] = pair_of<FMT>(raw, hq, jj, s * 2 + p, half);
}

/* One block: both steps, all terms, into acc. */
template <int TERMS>
static __device__ __forceinline__ void block_mma(float acc[4], const uint32_t a[2][4], const uint4 *x)
{
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int i = 0; i < TERMS; i++)
            cu_mma(acc, a[s][0], a[s][1], a[s][2], a[s][3], word(x[i], s * 2), word(x[i], s * 2 + 1));
}

struct scales {
    float s0, b0, s8, b8;
}; /* of rows g and g + 8 */

static __device__ __forceinline__ scales load_scales(const cu_weight &w, uint32_t tile, uint32_t group,
                                                     uint32_t g)
{
    const size_t i = ((size_t)tile * (w.n_quad * 4 / w.group_kb) + group) * 8 + g;

    if (w.scale_f32) {
        const float4 v = __ldg(reinterpret_cast<const float4 *>(w.scales) + i);

        return {v.x, v.y, v.z, v.w};
    }
    const uint2 v = __ldg(reinterpret_cast<const uint2 *>(w.scales) + i);

    return {__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16),
            __uint_as_float(v.y & 0xffff0000u)};
}

/* Close a group: codes times x in c, sums of x of the tokens 2t and 2t+1 in xs. */
static __device__ __forceinline__ void close_group(float part[4], float c[4], const scales &s, float2 xs)
{
    part[0] = fmaf(s.b0, xs.x, fmaf(s.s0, c[0], part[0]));
    part[1] = fmaf(s.b0, xs.y, fmaf(s.s0, c[1], part[1]));
    part[2] = fmaf(s.b8, xs.x, fmaf(s.s8, c[2], part[2]));
    part[3] = fmaf(s.b8, xs.y, fmaf(s.s8, c[3], part[3]));
    c[0] = c[1] = c[2] = c[3] = 0;
}

/* Which weight and first tile block `i` works on, with `per` tiles a block. */
static __device__ __forceinline__ uint32_t find_tile(const cu_linears &l, uint32_t i, uint32_t per,
                                                     uint32_t *which)
{
    uint32_t k = 0;

    while (k + 1 < l.n && i >= (l.w[k].n_tile + per - 1) / per)
        i -= (l.w[k++].n_tile + per - 1) / per;
    *which = k;
    return i * per;
}

static inline uint32_t count_blocks(const cu_linears *l, uint32_t per)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < l->n; i++)
        n += (l->w[i].n_tile + per - 1) / per;
    return n;
}

/* ---- few rows: a warp is a part, a block is RT tiles of 16 outputs
 * ------------------------------------------------ */

template <int FMT, int TERMS, int NT, int RT>
static __global__ void __launch_bounds__(32 * CU_PARTS)
    few(const __grid_constant__ cu_linears l, const cu_act x, uint32_t n_row)
{
    enum {
        LQ = half_quad<FMT>::quad_loads,
        LH = half_quad<FMT>::loads,
        SQ = LQ * RT >= 4 ? 1 : 4 / (LQ * RT), /* quads loaded at once */
    };
    __shared__ float red[CU_PARTS][RT * NT * 4][32];
    const uint32_t lane = threadIdx.x & 31, part = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const uint32_t row0 = blockIdx.y * (NT * 8);
    uint32_t which;
    const uint32_t tile0 = find_tile(l, blockIdx.x, RT, &which);
    const cu_weight &w = l.w[which];
    const uint32_t q0 = part * w.part_quads, q1 = min(q0 + w.part_quads, w.n_quad);
    const uint8_t *src[RT];
    const uint16_t *xp[NT][TERMS];
    bool live[NT];
    uint4 raw[SQ][RT][LQ];
    float acc[RT][NT][4], c[RT][NT][4];

#pragma unroll
    for (int r = 0; r < RT; r++)
        src[r] = w.codes + ((size_t)min(tile0 + r, w.n_tile - 1) * w.n_quad * LQ * 32 + lane) * 16;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        live[n] = row0 + n * 8 + g < n_row;
        xp[n][0] = x.t0 + (size_t)(row0 + n * 8 + g) * x.ld + 8 * t;
        if (TERMS == 2)
            xp[n][TERMS - 1] = x.t1 + (size_t)(row0 + n * 8 + g) * x.ld + 8 * t;
    }
#pragma unroll
    for (int r = 0; r < RT; r++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[r][n][i] = c[r][n][i] = 0;
#pragma unroll
    for (int s = 0; s < SQ; s++)
#pragma unroll
        for (int r = 0; r < RT; r++)
#pragma unroll
            for (int i = 0; i < LQ; i++)
                if (q0 + s < q1)
                    raw[s][r][i] = load_weight(src[r] + (size_t)(q0 + s) * (LQ * 512) + i * 512);

    for (uint32_t q = q0; q < q1; q += SQ) {
        uint4 cur[SQ][RT][LQ];

#pragma unroll
        for (int s = 0; s < SQ; s++)
#pragma unroll
            for (int r = 0; r < RT; r++)
#pragma unroll
                for (int i = 0; i < LQ; i++) {
                    cur[s][r][i] = raw[s][r][i];
                    if (q + SQ + s < q1)
                        raw[s][r][i] = load_weight(src[r] + (size_t)(q + SQ + s) * (LQ * 512) + i * 512);
                }
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
                    for (int i = 0; i < TERMS; i++)
                        xv[n][i] = live[n]
                                       ? __ldg(reinterpret_cast<const uint4 *>(xp[n][i] + (size_t)kb * 32))
                                       : make_uint4(0, 0, 0, 0);
                if (FMT != CU_BF16) {
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        const float2 v = *reinterpret_cast<const float2 *>(x.sums + (size_t)kb * x.max_row +
                                                                           row0 + n * 8 + 2 * t);

                        xs[n].x += v.x;
                        xs[n].y += v.y;
                    }
                }
#pragma unroll
                for (int r = 0; r < RT; r++) {
                    uint32_t a[2][4];

                    fragments<FMT>(a, &cur[s][r][FMT == CU_Q2 ? 0 : (j / 2) * LH], j / 2, j & 1);
#pragma unroll
                    for (int n = 0; n < NT; n++)
                        block_mma<TERMS>(FMT == CU_BF16 ? acc[r][n] : c[r][n], a, xv[n]);
                }
                if (FMT != CU_BF16 && (j + 1) % w.group_kb == 0) {
#pragma unroll
                    for (int r = 0; r < RT; r++) {
                        const scales sc = load_scales(w, min(tile0 + r, w.n_tile - 1), kb / w.group_kb, g);

#pragma unroll
                        for (int n = 0; n < NT; n++)
                            close_group(acc[r][n], c[r][n], sc, xs[n]);
                    }
#pragma unroll
                    for (int n = 0; n < NT; n++)
                        xs[n] = make_float2(0, 0);
                }
            }
        }
    }

#pragma unroll
    for (int r = 0; r < RT; r++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                red[part][(r * NT + n) * 4 + i][lane] = acc[r][n][i];
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < RT * NT * 4 * 32; e += 32 * CU_PARTS) {
        const uint32_t le = e & 31, i = e >> 5 & 3, n = (e >> 7) % NT, r = (e >> 7) / NT;
        const uint32_t o = (tile0 + r) * 16 + (le >> 2) + (i >= 2 ? 8 : 0),
                       tok = row0 + n * 8 + 2 * (le & 3) + (i & 1);
        float sum = red[0][e >> 5][le];

#pragma unroll
        for (int p = 1; p < CU_PARTS; p++)
            sum += red[p][e >> 5][le];
        if (o < w.n_out && tok < n_row)
            l.y[which][(size_t)tok * w.n_out + o] = sum;
    }
}

/* ---- many rows: a block is 8 tiles of outputs times 128 rows; warps are 4 x 2, each 32 outputs times 64
 * rows -------- */

enum {
    TILED_ROWS = 128,
    TILED_TILES = 8,
    TILED_STAGES = 4,
    TILED_PLANE = TILED_ROWS * 64 /* bytes: a block of 32 inputs */
};

template <int TERMS> struct tiled_shared {
    enum { stage = 2 * TERMS * TILED_PLANE, bytes = TILED_STAGES * stage + 64 * 256 * 4 };
};

/* Fetch half-quad h of the rows' terms into its stage, planes [block][term][row][64 bytes]. */
template <int TERMS>
static __device__ __forceinline__ void tiled_fetch(uint8_t *stages, const cu_act &x, uint32_t row0,
                                                   uint32_t h)
{
    const uint32_t to =
        (uint32_t)__cvta_generic_to_shared(stages + (h % TILED_STAGES) * tiled_shared<TERMS>::stage);

#pragma unroll
    for (int i = 0; i < 4 * TERMS; i++) {
        const uint32_t e = i * 256 + threadIdx.x, c = e & 3, jj = e >> 2 & 1, row = e >> 3 & 127,
                       term = e >> 10;
        const uint16_t *p =
            (TERMS == 2 && term ? x.t1 : x.t0) + (size_t)(row0 + row) * x.ld + h * 64 + jj * 32 + c * 8;

        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         to + ((jj * TERMS + term) * TILED_ROWS + row) * 64 + c * 16),
                     "l"(p));
    }
}

template <int FMT, int TERMS>
static __global__ void __launch_bounds__(256, 1)
    tiled(const __grid_constant__ cu_linears l, const cu_act x, uint32_t n_row)
{
    enum { LH = half_quad<FMT>::loads, LQ = half_quad<FMT>::quad_loads };
    extern __shared__ __align__(128) uint8_t shared[];
    float *total =
        reinterpret_cast<float *>(shared + TILED_STAGES * tiled_shared<TERMS>::stage); /* [64][256] */
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const uint32_t row0 = blockIdx.x * TILED_ROWS,
                   col0 = (warp >> 2) * 64; /* col0: the warp's first row of x in the block */
    uint32_t which;
    const uint32_t tile0 = find_tile(l, blockIdx.y, TILED_TILES, &which) + (warp & 3) * 2;
    const cu_weight &w = l.w[which];
    const uint32_t n_half = w.n_quad * 2;
    const uint8_t *src[2];
    uint4 raw[2][LH];
    float acc[2][8][4], c[2][8][4];
    uint32_t part_end = w.part_quads * 2, done = 0;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        src[r] = w.codes + ((size_t)min(tile0 + r, w.n_tile - 1) * w.n_quad * LQ * 32 + lane) * 16;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[r][n][i] = c[r][n][i] = 0;
#pragma unroll
        for (int i = 0; i < LH; i++)
            raw[r][i] = load_weight(src[r] + i * 512);
    }
    for (uint32_t s = 0; s < TILED_STAGES - 1; s++) {
        if (s < n_half)
            tiled_fetch<TERMS>(shared, x, row0, s);
        asm volatile("cp.async.commit_group;");
    }
    for (uint32_t h = 0; h < n_half; h++) {
        uint4 cur[2][LH];
        const uint8_t *stage = shared + (h % TILED_STAGES) * tiled_shared<TERMS>::stage;

        asm volatile("cp.async.wait_group %0;" ::"n"(TILED_STAGES - 2));
        __syncthreads(); /* stage h has arrived for all, stage h - 1 is free */
        if (h + TILED_STAGES - 1 < n_half)
            tiled_fetch<TERMS>(shared, x, row0, h + TILED_STAGES - 1);
        asm volatile("cp.async.commit_group;");
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < LH; i++) {
                cur[r][i] = raw[r][i];
                if (h + 1 < n_half)
                    raw[r][i] = load_weight(
                        src[r] + (FMT == CU_Q2 ? (size_t)(h + 1) / 2 : (size_t)(h + 1) * LH) * 512 + i * 512);
            }
#pragma unroll
        for (int jj = 0; jj < 2; jj++) {
            const uint32_t kb = h * 2 + jj;
            uint32_t a[2][2][4];

            fragments<FMT>(a[0], cur[0], (int)(h & 1), jj);
            fragments<FMT>(a[1], cur[1], (int)(h & 1), jj);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                uint4 xv[TERMS];

#pragma unroll
                for (int i = 0; i < TERMS; i++)
                    xv[i] = *reinterpret_cast<const uint4 *>(
                        stage + ((jj * TERMS + i) * TILED_ROWS + col0 + n * 8 + g) * 64 + t * 16);
                block_mma<TERMS>(FMT == CU_BF16 ? acc[0][n] : c[0][n], a[0], xv);
                block_mma<TERMS>(FMT == CU_BF16 ? acc[1][n] : c[1][n], a[1], xv);
            }
            if (FMT != CU_BF16 && (kb + 1) % w.group_kb == 0) {
                const scales s0 = load_scales(w, min(tile0, w.n_tile - 1), kb / w.group_kb, g);
                const scales s1 = load_scales(w, min(tile0 + 1, w.n_tile - 1), kb / w.group_kb, g);

#pragma unroll
                for (int n = 0; n < 8; n++) {
                    float2 xs = make_float2(0, 0);

                    for (uint32_t b = kb + 1 - w.group_kb; b <= kb; b++) {
                        const float2 v = *reinterpret_cast<const float2 *>(x.sums + (size_t)b * x.max_row +
                                                                           row0 + col0 + n * 8 + 2 * t);

                        xs.x += v.x;
                        xs.y += v.y;
                    }
                    close_group(acc[0][n], c[0][n], s0, xs);
                    close_group(acc[1][n], c[1][n], s1, xs);
                }
            }
        }
        if (h + 1 == part_end || h + 1 == n_half) {
#pragma unroll
            for (int r = 0; r < 2; r++)
#pragma unroll
                for (int n = 0; n < 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float *f = total + ((r * 8 + n) * 4 + i) * 256 + threadIdx.x;

                        *f = done ? *f + acc[r][n][i] : acc[r][n][i];
                        acc[r][n][i] = 0;
                    }
            done++;
            part_end += w.part_quads * 2;
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t o = (tile0 + r) * 16 + g + (i >= 2 ? 8 : 0),
                               tok = row0 + col0 + n * 8 + 2 * t + (i & 1);
                float sum = total[((r * 8 + n) * 4 + i) * 256 + threadIdx.x];

                for (uint32_t p = done; p < CU_PARTS; p++)
                    sum += 0.0f; /* empty parts, as in `few`: they turn -0 into 0 */
                if (o < w.n_out && tok < n_row)
                    l.y[which][(size_t)tok * w.n_out + o] = sum;
            }
}

/* ---- choosing
 * ------------------------------------------------------------------------------------------------------- */

template <int FMT, int TERMS>
static void launch_few(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row)
{
    if (n_row == 1)
        few<FMT, TERMS, 1, 1><<<count_blocks(l, 1), 32 * CU_PARTS, 0, s>>>(*l, *x, n_row);
    else if (n_row <= 8)
        few<FMT, TERMS, 1, 2><<<count_blocks(l, 2), 32 * CU_PARTS, 0, s>>>(*l, *x, n_row);
    else if (n_row <= 16)
        few<FMT, TERMS, 2, 2><<<count_blocks(l, 2), 32 * CU_PARTS, 0, s>>>(*l, *x, n_row);
    else
        few<FMT, TERMS, 4, 1>
            <<<dim3(count_blocks(l, 1), (n_row + 31) / 32), 32 * CU_PARTS, 0, s>>>(*l, *x, n_row);
}

template <int FMT>
static void launch_linear(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row)
{
    const dim3 grid((n_row + TILED_ROWS - 1) / TILED_ROWS, count_blocks(l, TILED_TILES));

    if (n_row <= CU_FEW_ROWS || !l->tiled) {
        if (x->n_term == 2)
            launch_few<FMT, 2>(s, l, x, n_row);
        else
            launch_few<FMT, 1>(s, l, x, n_row);
    } else if (x->n_term == 2) {
        tiled<FMT, 2><<<grid, 256, tiled_shared<2>::bytes, s>>>(*l, *x, n_row);
    } else {
        tiled<FMT, 1><<<grid, 256, tiled_shared<1>::bytes, s>>>(*l, *x, n_row);
    }
}

template <int FMT> static cudaError_t setup_linear(void)
{
    cudaError_t e = cudaFuncSetAttribute(tiled<FMT, 1>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         tiled_shared<1>::bytes);

    static_assert((int)tiled_shared<2>::bytes <= (int)CU_TILED_SHARED,
                  "the host asks the device for this much");
    if (e == cudaSuccess)
        e = cudaFuncSetAttribute(tiled<FMT, 2>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 tiled_shared<2>::bytes);
    return e;
}

#endif
