/*
 * The delta rule on the tensor cores: matrices of f32 as two tf32 terms each, three products for one (22 bits
 * of each factor), sums in f32. What decode and prefill share: terms, the order of a row's operations, and
 * where results of a chunk's first kernel lie for the second.
 *
 * Lane (g = lane / 4, t = lane % 4) of an 8 x 8 product holds inputs 2t and 2t + 1: a product's result is in
 * the layout of the left factor of the next, so states and writes go from one to another in registers.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_DELTA_MMA_CUH
#define ESP_BACKEND_CUDA_PLUGIN_DELTA_MMA_CUH

#include "backend/cuda/plugin/delta.cuh"

struct left { /* 16 x 8 */
    uint32_t hi[4], lo[4];
};

struct right { /* 8 x 8 */
    uint32_t hi[2], lo[2];
};

/* The matrix units do not read a factor's 13 lowest bits. */
static __device__ __forceinline__ void two_terms(float x, uint32_t *hi, uint32_t *lo)
{
    *hi = __float_as_uint(x) & 0xffffe000u;
    *lo = __float_as_uint(x - __uint_as_float(*hi));
}

/* r: rows g and g + 8 of inputs 2t, 2t + 1, in the order of a result. */
static __device__ __forceinline__ left left_of(float g0, float g1, float h0, float h1)
{
    left x;

    two_terms(g0, &x.hi[0], &x.lo[0]);
    two_terms(h0, &x.hi[1], &x.lo[1]);
    two_terms(g1, &x.hi[2], &x.lo[2]);
    two_terms(h1, &x.hi[3], &x.lo[3]);
    return x;
}

/* Inputs 2t and 2t + 1 of column g. */
static __device__ __forceinline__ right right_of(float2 v)
{
    right x;

    two_terms(v.x, &x.hi[0], &x.lo[0]);
    two_terms(v.y, &x.hi[1], &x.lo[1]);
    return x;
}

static __device__ __forceinline__ void mma_tf32(float acc[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* acc[i] += a b[i] for states; every sum takes its three products in the same order, whatever N is. */
template <int N>
static __device__ __forceinline__ void multiply(float (*acc)[4], const left &a, const right *b)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        mma_tf32(acc[i], a.lo, b[i].hi);
#pragma unroll
    for (int i = 0; i < N; i++)
        mma_tf32(acc[i], a.hi, b[i].lo);
#pragma unroll
    for (int i = 0; i < N; i++)
        mma_tf32(acc[i], a.hi, b[i].hi);
}

/* Sums of rows keep the three products apart, so that none waits for another, until they are joined. */
struct apart {
    float p[3][4];
};

template <int N> static __device__ __forceinline__ void multiply(apart *acc, const left &a, const right *b)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        mma_tf32(acc[i].p[0], a.lo, b[i].hi);
#pragma unroll
    for (int i = 0; i < N; i++)
        mma_tf32(acc[i].p[1], a.hi, b[i].lo);
#pragma unroll
    for (int i = 0; i < N; i++)
        mma_tf32(acc[i].p[2], a.hi, b[i].hi);
}

static __device__ __forceinline__ float joined(const apart &x, int e)
{
    return x.p[0][e] + x.p[1][e] + x.p[2][e];
}

static __device__ __forceinline__ void join(const apart &x, float out[4])
{
#pragma unroll
    for (int e = 0; e < 4; e++)
        out[e] = joined(x, e);
}

static __device__ __forceinline__ float2 pair_at(const float *p)
{
    return *reinterpret_cast<const float2 *>(p);
}

/* u of a row: below is what earlier rows of the chunk take off. */
static __device__ __forceinline__ float row_write(float beta, float value, float whole, float sk, float below)
{
    return beta * (fmaf(-whole, sk, value) - below);
}

/* ---- what the first kernel of a pass leaves for the second
 * ----------------------------------------------------------------- */

enum { CLOSE_LD = CU_CHUNK + 4 }; /* decays towards a chunk's end, then that of the state */

static __host__ __device__ __forceinline__ size_t work_rows(const cu_delta &d)
{
    return d.work_tok;
}

/* [tok][kh][2][dk] unit keys, then unit queries times dk^-1/2 */
static __device__ __forceinline__ float *keys_at(const cu_delta &d, uint32_t tok, uint32_t kh)
{
    return d.work + ((size_t)tok * d.kh + kh) * 2 * d.dk;
}

/* [tok][vh][2][CU_CHUNK] decayed k_i . k_j below the diagonal, then q_i . k_j up to it, zeros above */
static __device__ __forceinline__ float *within_at(const cu_delta &d, uint32_t tok, uint32_t vh)
{
    return d.work + work_rows(d) * d.kh * 2 * d.dk + ((size_t)tok * d.vh + vh) * 2 * CU_CHUNK;
}

/* [tok][vh] exp(E_i) and the write strength */
static __device__ __forceinline__ float2 *strength_at(const cu_delta &d, uint32_t tok, uint32_t vh)
{
    float *p = d.work + work_rows(d) * (d.kh * 2 * d.dk + d.vh * 2 * CU_CHUNK);

    return reinterpret_cast<float2 *>(p) + (size_t)tok * d.vh + vh;
}

/* Of a chunk that closes: number `chunk` of those that sequence seq touches, of which there are at most
 * n_tok / CU_CHUNK + 2. */
static __device__ __forceinline__ float *close_at(const cu_delta &d, const cu_seq &s, uint32_t seq,
                                                  uint32_t chunk, uint32_t vh)
{
    float *p = d.work + work_rows(d) * (d.kh * 2 * d.dk + d.vh * (2 * CU_CHUNK + 2));

    return p + ((size_t)(s.tok0 / CU_CHUNK + 2 * seq + chunk) * d.vh + vh) * CLOSE_LD;
}

/* A chunk that a sequence's new rows touch. */
struct piece {
    uint32_t row0, end; /* rows of the chunk that are new */
    uint32_t tok;       /* of row 0, were it new */
    bool closes;
};

static __device__ __forceinline__ uint32_t pieces_of(const cu_seq &s)
{
    return (s.n - s.base + s.n_tok + CU_CHUNK - 1) / CU_CHUNK;
}

static __device__ __forceinline__ piece piece_of(const cu_seq &s, uint32_t i)
{
    const uint32_t open = s.n - s.base;
    piece p;

    p.row0 = i == 0 ? open : 0;
    p.end = min((uint32_t)CU_CHUNK, open + s.n_tok - i * CU_CHUNK);
    p.tok = s.tok0 + i * CU_CHUNK - open;
    p.closes = i + 1 < pieces_of(s);
    return p;
}

/* The first kernel, for heads of 64 or 128 keys. */
uint32_t delta_within_bytes(uint32_t dk); /* of shared memory */
cudaError_t delta_within_setup(uint32_t dk);
void delta_within(cudaStream_t s, const cu_delta *d, const float *c, const float *gates, const cu_batch *b,
                  const cu_shape *h);

#endif
