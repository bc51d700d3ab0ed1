/*
 * Up to 32 rows times weights coded along their outputs: a warp is 256 outputs (16 tiles) times a part of the
 * inputs, which are many more parts than elsewhere, so that matrices of few outputs fill a device. Parts go
 * through memory and are added by a kernel of their own.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/coded.cuh"

enum { WARPS = 4 };

/* What a lane holds of a step of 16 inputs: runs of 4 inputs. */
template <int K> struct step_raw {
    uint4 v[K ? K : 1];
};

/* Step s of the whole weight, two a block of 32 inputs. */
template <int K>
static __device__ __forceinline__ void step_load(step_raw<K> *to, const cu_weight &w, uint32_t super,
                                                 uint32_t s)
{
    const uint8_t *src = w.codes + cu_coded_base(0, K, w.n_quad, super, s / 2) * 4 + (s & 1) * (K * 512) +
                         (threadIdx.x & 31) * 16;

#pragma unroll
    for (int i = 0; i < K; i++)
        to->v[i] = load_weight(src + i * 512);
}

template <int K, int TERMS, int NT>
static __device__ __forceinline__ void step_products(float (*acc)[NT][4], const step_raw<K> &raw,
                                                     const cu_act &x, uint32_t row0, uint32_t n_row,
                                                     uint32_t s)
{
    const uint32_t next = cu_coded_neighbour(0, threadIdx.x & 31);
    uint32_t run[4][K + 1];
    uint2 xv[NT][TERMS];

    coded_rows<TERMS, NT>(xv, x, row0, n_row, s / 2, s & 1);
#pragma unroll
    for (int i = 0; i < 4 * K; i++)
        run[i / K][i % K] = word(raw.v[i / 4], i & 3);
#pragma unroll
    for (int i = 0; i < 4; i++)
        run[i][K] = __shfl_sync(0xffffffffu, run[i][0], next);
#pragma unroll
    for (int r = 0; r < 16; r++) {
        uint32_t a[4];

#pragma unroll
        for (int i = 0; i < 4; i++) { /* output 2 r + (i & 1) of the run, inputs 2 (i / 2) and one more */
            const int j = 2 * r + (i & 1);

            a[i] = cu_coded_values(cu_coded_state(run[i / 2 * 2], CU_RUN0, K, j),
                                   cu_coded_state(run[i / 2 * 2 + 1], CU_RUN0, K, j));
        }
        coded_mma<TERMS, NT>(acc[r], a, xv);
    }
}

template <int TERMS, int NT>
static __device__ __forceinline__ void step_products_any(float (*acc)[NT][4], const cu_weight &w,
                                                         uint32_t super, const cu_act &x, uint32_t row0,
                                                         uint32_t n_row, uint32_t s)
{
    const uint32_t lane = threadIdx.x & 31, e = 4 * (s & 1);
    const uint32_t *piece =
        reinterpret_cast<const uint32_t *>(w.codes) + cu_coded_base(0, w.bits, w.n_quad, super, s / 2);
    uint2 xv[NT][TERMS];

    coded_rows<TERMS, NT>(xv, x, row0, n_row, s / 2, s & 1);
#pragma unroll
    for (int r = 0; r < 16; r++) {
        uint32_t a[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] =
                cu_coded_values(cu_coded_fetch(piece, 0, w.bits, lane, e + i / 2 * 2, 2 * r + (i & 1)),
                                cu_coded_fetch(piece, 0, w.bits, lane, e + i / 2 * 2 + 1, 2 * r + (i & 1)));
        coded_mma<TERMS, NT>(acc[r], a, xv);
    }
}

/* K: bits, or 0 for any. Blocks: super tiles innermost, then WARPS parts each. */
template <int K, int TERMS, int NT>
static __global__ void __launch_bounds__(32 * WARPS, NT == 1 ? 4 : 2)
    coded_few0(const __grid_constant__ cu_linears l, const __grid_constant__ cu_act x, uint32_t n_row)
{
    const cu_weight &w = l.w[0];
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, row0 = blockIdx.y * (NT * 8);
    const uint32_t n_super = w.n_tile / 16, super = blockIdx.x % n_super,
                   part = blockIdx.x / n_super * WARPS + (threadIdx.x >> 5);
    const uint32_t s0 = min(part * w.part_quads, w.n_quad) * 8,
                   s1 = min((part + 1) * w.part_quads, w.n_quad) * 8;
    float acc[16][NT][4] = {};
    step_raw<K> next;

    if (K != 0 && s0 < s1)
        step_load<K>(&next, w, super, s0);
    cu_let_next_start();
    cu_wait_for_inputs();
    for (uint32_t s = s0; s < s1; s++) {
        if constexpr (K != 0) {
            const step_raw<K> cur = next;

            if (s + 1 < s1)
                step_load<K>(&next, w, super, s + 1);
            step_products<K, TERMS, NT>(acc, cur, x, row0, n_row, s);
        } else {
            step_products_any<TERMS, NT>(acc, w, super, x, row0, n_row, s);
        }
    }
    if (part >= w.n_part)
        return;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            const uint32_t tok = row0 + n * 8 + 2 * t + odd;
            float *to = l.parts + ((size_t)part * n_row + tok) * w.n_out + super * CU_UNIT + CU_RUN0 * g;

            if (tok >= n_row)
                continue;
#pragma unroll
            for (int r = 0; r < 16; r += 2) /* outputs 2 r .. 2 r + 3 of the run */
                *reinterpret_cast<float4 *>(to + 2 * r) = make_float4(
                    acc[r][n][odd], acc[r][n][2 + odd], acc[r + 1][n][odd], acc[r + 1][n][2 + odd]);
        }
}

template <int K, int TERMS, int NT>
static void start(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row)
{
    const cu_weight *w = &l->w[0];
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t c = {};

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3(w->n_tile / 16 * ((w->n_part + WARPS - 1) / WARPS), (n_row + NT * 8 - 1) / (NT * 8));
    c.blockDim = 32 * WARPS;
    c.stream = s;
    c.attrs = &early;
    c.numAttrs = l->early ? 1 : 0;
    cudaLaunchKernelEx(&c, coded_few0<K, TERMS, NT>, *l, *x, n_row);
}

template <int K, int TERMS>
static void start_terms(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row)
{
    if (n_row <= 8)
        start<K, TERMS, 1>(s, l, x, n_row);
    else
        start<K, TERMS, 2>(s, l, x, n_row);
}

template <int K> static void start_fast(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row)
{
    if (x->n_term == 1)
        start_terms<K, 1>(s, l, x, n_row);
    else
        start_terms<K, 2>(s, l, x, n_row);
}

void cu_coded_few0(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row)
{
    if (x->n_term == 3)
        start<0, 3, 1>(s, l, x, n_row);
    else if (l->w[0].bits == 2)
        start_fast<2>(s, l, x, n_row);
    else if (l->w[0].bits == 3)
        start_fast<3>(s, l, x, n_row);
    else if (l->w[0].bits == 4)
        start_fast<4>(s, l, x, n_row);
    else if (x->n_term == 1)
        start<0, 1, 1>(s, l, x, n_row);
    else
        start<0, 2, 1>(s, l, x, n_row);
}
