/*
 * What kernels of products share: packed weights as operands of the tensor cores, their scales, and which
 * tile a block works on.
 *
 * Codes are small integers, exact in bf16, so grouped weights lose nothing on the way. A tensor-core operand
 * may permute its inner dimension as long as the other operand follows: lane t of a row holds inputs 8t ..
 * 8t+7 of a block, which makes every load 16 bytes wide on both sides. Source: PTX ISA, mma.m16n8k16 fragment
 * layout.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_OPERAND_CUH
#define ESP_BACKEND_CUDA_PLUGIN_OPERAND_CUH

#include "backend/cuda/plugin/device.cuh"

/* 16-byte loads that one lane makes for half a quad (two blocks). q2 holds both halves in one load. */
template <int FMT> struct half_quad;
template <> struct half_quad<CU_BF16> {
    enum { loads = 4, quad_loads = 8 };
};
template <> struct half_quad<CU_VALUES> {
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

static __device__ __forceinline__ uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;

    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

/* Codes below 128 in both halves of v & mask, over UP: 0x4300 | c is 128 + c as bf16. */
static __device__ __forceinline__ uint32_t small_codes(uint32_t v, uint32_t mask)
{
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(v), "r"(mask), "r"(0x43004300u)); /* (v & mask) | */
    return fma_pair(v, 0x1f801f80u, 0xa300a300u); /* times 2^-64, less 2^-57 */
}

/*
 * Pair p of the codes of 4 bits in v, times 2^-129: bits of a bf16 below 0x100 are that integer times 2^-133,
 * which tensor cores take as it is. So a code costs a mask in one place of two, in the other, where it would be
 * sixteen times smaller, a product too, on a pipe that is free.
 */
static __device__ __forceinline__ uint32_t nibbles(uint32_t v, int p)
{
    const uint32_t at = p < 2 ? v : v >> 8;

    return p & 1 ? at & 0x00f000f0u : fma_pair(at & 0x000f000fu, 0x41804180u, 0x80008000u);
}

static __host__ __device__ constexpr bool is_dense(int format)
{
    return format == CU_BF16 || format == CU_VALUES;
}

/* Pair p (inputs 8t+2p, 8t+2p+1) of row g + 8 * half in block jj (0, 1) of half-quad hq (0, 1). */
template <int FMT>
static __device__ __forceinline__ uint32_t pair_of(const uint4 *raw, int hq, int jj, int p, int half)
{
    if (is_dense(FMT))
        return word(raw[jj * 2 + half], p);
    if (FMT == CU_Q4)
        return nibbles(word(raw[0], jj * 2 + half), p);
    if (FMT == CU_Q2)
        return small_codes(word(raw[0], hq * 2 + jj) >> (2 * p + 8 * half), 0x00030003u);
    const uint32_t v = word(raw[jj], half * 2 + p / 2) >> (16 * (p & 1));

    /* 0x4b000000 | c is 2^23 + c in f32 */
    return cu_bf16x2(fmaf(__uint_as_float(0x4b000000u | (v & 0xff)), CU_DOWN, -8388608.0f * CU_DOWN),
                     fmaf(__uint_as_float(0x4b000000u | (v >> 8 & 0xff)), CU_DOWN, -8388608.0f * CU_DOWN));
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

/*
 * One block: both steps, all terms, into the accumulators of N groups of rows. Groups are innermost, so that
 * a product need not wait for the one before.
 */
template <int FMT, int TERMS, int N>
static __device__ __forceinline__ void block_mma(float (*acc)[4], const uint32_t a[2][4],
                                                 const uint4 (*x)[TERMS])
{
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int i = 0; i < TERMS; i++)
#pragma unroll
            for (int n = 0; n < N; n++)
                if (FMT == CU_VALUES)
                    cu_mma_f16(acc[n], a[s][0], a[s][1], a[s][2], a[s][3], word(x[n][i], s * 2),
                               word(x[n][i], s * 2 + 1));
                else
                    cu_mma(acc[n], a[s][0], a[s][1], a[s][2], a[s][3], word(x[n][i], s * 2),
                           word(x[n][i], s * 2 + 1));
}

struct scales {
    float s0, b0, s8, b8; /* of rows g and g + 8 */
};

static __device__ __forceinline__ size_t scales_at(const cu_weight &w, uint32_t tile, uint32_t kb, uint32_t g)
{
    return ((size_t)tile * (w.n_quad * 4 >> w.group_shift) + (kb >> w.group_shift)) * 8 + g;
}

/* bf16 scales, ahead of their use. */
static __device__ __forceinline__ uint2 fetch_scales(const cu_weight &w, uint32_t tile, uint32_t kb,
                                                     uint32_t g)
{
    return w.scale_f32 ? make_uint2(0, 0)
                       : __ldg(reinterpret_cast<const uint2 *>(w.scales) + scales_at(w, tile, kb, g));
}

/* What fetch_scales() brought; f32 scales are rare and loaded here. */
static __device__ __forceinline__ scales open_scales(const cu_weight &w, uint32_t tile, uint32_t kb,
                                                     uint32_t g, uint2 v)
{
    if (w.scale_f32) {
        const float4 f = __ldg(reinterpret_cast<const float4 *>(w.scales) + scales_at(w, tile, kb, g));

        return {f.x, f.y, f.z, f.w};
    }
    return {__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16),
            __uint_as_float(v.y & 0xffff0000u)};
}

/* Codes times x of a finished group. */
static __device__ __forceinline__ void close_group(float part[4], float c[4], const scales &s)
{
    part[0] = fmaf(s.s0, c[0], part[0]);
    part[1] = fmaf(s.s0, c[1], part[1]);
    part[2] = fmaf(s.s8, c[2], part[2]);
    part[3] = fmaf(s.s8, c[3], part[3]);
    c[0] = c[1] = c[2] = c[3] = 0;
}

/* Sums of x of the tokens 2t and 2t + 1. */
static __device__ __forceinline__ void add_bias(float part[4], const scales &s, float2 xs)
{
    part[0] = fmaf(s.b0, xs.x, part[0]);
    part[1] = fmaf(s.b0, xs.y, part[1]);
    part[2] = fmaf(s.b8, xs.x, part[2]);
    part[3] = fmaf(s.b8, xs.y, part[3]);
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

/* Outputs of the weights before `which`: where its parts start. */
static __host__ __device__ __forceinline__ size_t part_column(const cu_linears &l, uint32_t which)
{
    size_t n = 0;

    for (uint32_t i = 0; i < which; i++)
        n += l.w[i].n_out;
    return n;
}

static inline uint32_t blocks_of(const cu_weight *w)
{
    return (w->n_tile + CU_WIDE_BLOCK - 1) / CU_WIDE_BLOCK;
}

static inline uint32_t blocks_before(const cu_linears *l, uint32_t weight)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < weight; i++)
        n += blocks_of(&l->w[i]);
    return n;
}

/* The weight that has block `block` of CU_WIDE_BLOCK tiles; the last where there are not so many. */
static inline uint32_t weight_of_block(const cu_linears *l, uint32_t block)
{
    uint32_t i = 0;

    for (; i + 1 < l->n && block >= blocks_of(&l->w[i]); i++)
        block -= blocks_of(&l->w[i]);
    return i;
}

/* A product with code values: the scale of an output, if outputs have one, then the power of the row. */
static __device__ __forceinline__ float coded_result(const cu_weight &w, const cu_act &x, uint32_t o,
                                                     uint32_t tok, float sum)
{
    if (w.axis)
        sum = __fmul_rn(sum, reinterpret_cast<const float *>(w.scales)[o]);
    return __fmul_rn(sum, x.sums[tok]);
}

#endif
