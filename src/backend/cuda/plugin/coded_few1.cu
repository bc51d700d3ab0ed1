/*
 * Up to 32 rows times weights coded along their inputs: a warp is a part, a block a tile of 16 outputs, and
 * blocks stay for further tiles, as in linear.cuh's `few`. The next unit of codes is fetched before the
 * present one is decoded. Bits other than 2, 3 and 4, and three terms, take the windows straight from memory:
 * right and slow.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/coded.cuh"

/* A unit of a tile in registers: what is loaded, and runs of rows g and g + 8 with their neighbour's word. */
template <int K> struct unit_raw {
    uint4 v[K ? K : 1];
};

template <int K>
static __device__ __forceinline__ void unit_load(unit_raw<K> *to, const cu_weight &w, uint32_t tile,
                                                 uint32_t u)
{
    const uint8_t *src = w.codes + cu_coded_base(1, K, w.n_quad, tile, u) * 4 + (threadIdx.x & 31) * 16;

#pragma unroll
    for (int i = 0; i < K; i++)
        to->v[i] = load_weight(src + i * 512);
}

template <int K, int TERMS, int NT>
static __device__ __forceinline__ void unit_products(float (*acc)[4], const unit_raw<K> &raw, const cu_act &x,
                                                     uint32_t row0, uint32_t n_row, uint32_t u)
{
    const uint32_t next = cu_coded_neighbour(1, threadIdx.x & 31);
    uint32_t run[2][2 * K + 1];

#pragma unroll
    for (int i = 0; i < 4 * K; i++)
        run[i / (2 * K)][i % (2 * K)] = word(raw.v[i / 4], i & 3);
    run[0][2 * K] = __shfl_sync(0xffffffffu, run[0][0], next);
    run[1][2 * K] = __shfl_sync(0xffffffffu, run[1][0], next);
#pragma unroll
    for (int b = 0; b < 8; b++)
#pragma unroll
        for (int s = 0; s < 2; s++) {
            uint2 xv[NT][TERMS];
            uint32_t a[4];

            coded_rows<TERMS, NT>(xv, x, row0, n_row, u * 8 + b, s);
#pragma unroll
            for (int i = 0; i < 4; i++) { /* row g + 8 (i & 1), inputs 2 (i / 2) and one more */
                const int j = 8 * b + 4 * s + i / 2 * 2;

                a[i] = cu_coded_values(cu_coded_state(run[i & 1], CU_RUN1, K, j),
                                       cu_coded_state(run[i & 1], CU_RUN1, K, j + 1));
            }
            coded_mma<TERMS, NT>(acc, a, xv);
        }
}

/* The same for any k, without registers for codes. */
template <int TERMS, int NT>
static __device__ void unit_products_any(float (*acc)[4], const cu_weight &w, uint32_t tile, const cu_act &x,
                                         uint32_t row0, uint32_t n_row, uint32_t u)
{
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t *piece =
        reinterpret_cast<const uint32_t *>(w.codes) + cu_coded_base(1, w.bits, w.n_quad, tile, u);

    for (uint32_t e = 0; e < CU_RUN1; e += 4) { /* a step */
        uint2 xv[NT][TERMS];
        uint32_t a[4];

        coded_rows<TERMS, NT>(xv, x, row0, n_row, u * 8 + e / 8, e / 4 & 1);
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = cu_coded_values(cu_coded_fetch(piece, 1, w.bits, lane, i & 1, e + i / 2 * 2),
                                   cu_coded_fetch(piece, 1, w.bits, lane, i & 1, e + i / 2 * 2 + 1));
        coded_mma<TERMS, NT>(acc, a, xv);
    }
}

/* K: bits, or 0 for any. */
template <int K, int TERMS, int NT>
static __global__ void __launch_bounds__(32 * CU_PARTS, 2)
    coded_few1(const __grid_constant__ cu_linears l, const __grid_constant__ cu_act x, uint32_t n_row,
               uint32_t n_tile)
{
    __shared__ float red[2][CU_PARTS][NT * 4][32];
    const uint32_t lane = threadIdx.x & 31, part = threadIdx.x >> 5, row0 = blockIdx.y * (NT * 8);
    const uint32_t per = l.w[0].part_quads / 2, u0 = part * per,
                   u1 = min(u0 + per, l.w[0].n_quad / 2); /* units of all weights */
    uint32_t which, tile = find_tile(l, blockIdx.x, 1, &which), flip = 0;
    unit_raw<K> next;

    if (K != 0 && u0 < u1)
        unit_load<K>(&next, l.w[which], tile, u0);
    cu_let_next_start();
    cu_wait_for_inputs();
    for (uint32_t i = blockIdx.x; i < n_tile; i += gridDim.x, flip ^= 1) {
        const cu_weight &w = l.w[which];
        const uint32_t here = which, at = tile;
        float acc[NT][4] = {};

        if (i + gridDim.x < n_tile)
            tile = find_tile(l, i + gridDim.x, 1, &which);
        for (uint32_t u = u0; u < u1; u++) {
            if constexpr (K != 0) {
                const unit_raw<K> cur = next;

                if (u + 1 < u1)
                    unit_load<K>(&next, w, at, u + 1);
                else if (i + gridDim.x < n_tile)
                    unit_load<K>(&next, l.w[which], tile, u0);
                unit_products<K, TERMS, NT>(acc, cur, x, row0, n_row, u);
            } else {
                unit_products_any<TERMS, NT>(acc, w, at, x, row0, n_row, u);
            }
        }
#pragma unroll
        for (int e = 0; e < NT * 4; e++)
            red[flip][part][e][lane] = acc[e / 4][e % 4];
        __syncthreads(); /* the other half of red is free once all have passed the next one */
        for (uint32_t e = threadIdx.x; e < NT * 4 * 32; e += 32 * CU_PARTS) {
            const uint32_t le = e & 31, k = e >> 5 & 3;
            const uint32_t o = at * 16 + (le >> 2) + (k >= 2 ? 8 : 0);
            const uint32_t tok = row0 + (e >> 7) * 8 + 2 * (le & 3) + (k & 1);
            float sum = red[flip][0][e >> 5][le];

#pragma unroll
            for (int p = 1; p < CU_PARTS; p++)
                sum += red[flip][p][e >> 5][le];
            if (o < w.n_out && tok < n_row)
                l.y[here][(size_t)tok * w.n_out + o] = coded_result(w, x, o, tok, sum);
        }
    }
}

template <int K, int TERMS, int NT>
static void start(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row)
{
    const uint32_t n_tile = count_blocks(l, 1), most = l->n_multiprocessor * 2;
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t c = {};

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3(n_tile < most ? n_tile : most, (n_row + NT * 8 - 1) / (NT * 8));
    c.blockDim = 32 * CU_PARTS;
    c.stream = s;
    c.attrs = &early;
    c.numAttrs = l->early ? 1 : 0;
    cudaLaunchKernelEx(&c, coded_few1<K, TERMS, NT>, *l, *x, n_row, n_tile);
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

void cu_coded_few1(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row)
{
    if (x->n_term == 3)
        start<0, 3, 2>(s, l, x, n_row);
    else if (l->w[0].bits == 2)
        start_fast<2>(s, l, x, n_row);
    else if (l->w[0].bits == 3)
        start_fast<3>(s, l, x, n_row);
    else if (l->w[0].bits == 4)
        start_fast<4>(s, l, x, n_row);
    else if (x->n_term == 1)
        start<0, 1, 2>(s, l, x, n_row);
    else
        start<0, 2, 2>(s, l, x, n_row);
}
