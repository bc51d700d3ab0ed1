/*
 * Up to 16 rows times 4-bit codes in groups of 64 with bf16 scales, the format that most quantized models
 * have, in the arithmetic of linear.cuh. There is much unpacking to hide here, so codes and scales travel to
 * shared memory by asynchronous copies of which each warp keeps several quads in flight, across tiles and
 * from before the kernel's inputs are ready: 55 KB a block, two blocks a multiprocessor.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_Q4_FEW_CUH
#define ESP_BACKEND_CUDA_PLUGIN_Q4_FEW_CUH

#include "backend/cuda/plugin/linear.cuh"

template <int RT> struct q4_ring {
    enum {
        depth = RT == 1 ? 6 : 3, /* quads of RT tiles */
        tile = 1024 + 128,       /* codes; scales and biases of two groups of 16 rows */
        slot = RT * tile,
        bytes = CU_PARTS * depth * slot
    };
};

static __device__ __forceinline__ void copy16(uint32_t to, const uint8_t *from)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Where a warp fetches next: quad q of tile group i, and the addresses of it. */
template <int RT> struct q4_cursor {
    uint32_t i, q;
    const uint8_t *codes[RT], *scales[RT]; /* as this lane copies them */
};

template <int RT>
static __device__ __forceinline__ void q4_aim(q4_cursor<RT> *c, const cu_linears &l, uint32_t i, uint32_t q)
{
    const uint32_t lane = threadIdx.x & 31;
    uint32_t which;
    const uint32_t tile0 = find_tile(l, i, RT, &which);
    const cu_weight &w = l.w[which];

    c->i = i;
    c->q = q;
#pragma unroll
    for (int r = 0; r < RT; r++) {
        const size_t quad = (size_t)min(tile0 + r, w.n_tile - 1) * w.n_quad + q;

        c->codes[r] = w.codes + quad * 1024 + lane * 16;
        c->scales[r] = w.scales + quad * 128 + (lane & 7) * 16;
    }
}

/* Start the copy of the cursor's quad to a slot and move on; past the last group nothing is copied. */
template <int RT>
static __device__ __forceinline__ void q4_fetch(q4_cursor<RT> *c, const cu_linears &l, uint32_t slot,
                                                uint32_t q0, uint32_t q1, uint32_t n_group)
{
    const uint32_t lane = threadIdx.x & 31;

    if (c->i < n_group) {
#pragma unroll
        for (int r = 0; r < RT; r++) {
            const uint32_t to = slot + r * q4_ring<RT>::tile;

            copy16(to + lane * 16, c->codes[r]);
            copy16(to + 512 + lane * 16, c->codes[r] + 512);
            if (lane < 8)
                copy16(to + 1024 + lane * 16, c->scales[r]);
            c->codes[r] += 1024;
            c->scales[r] += 128;
        }
        if (++c->q == q1) {
            c->i += gridDim.x;
            if (c->i < n_group)
                q4_aim<RT>(c, l, c->i, q0);
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Activations of blocks 2 h, 2 h + 1 of a quad, and their sums. */
template <int TERMS, int NT> struct q4_rows {
    uint4 x[2][NT][TERMS];
    float2 sum[NT];
};

template <int TERMS, int NT>
static __device__ __forceinline__ void q4_load_rows(q4_rows<TERMS, NT> *to, const cu_act &x, uint32_t row0,
                                                    uint32_t n_row, uint32_t kb)
{
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;

#pragma unroll
    for (int n = 0; n < NT; n++) {
        const uint32_t row = min(row0 + n * 8 + g, n_row - 1); /* columns past the last row are not stored */
        const float *sums = x.sums + (size_t)kb * x.max_row + row0 + n * 8 + 2 * t;
        const float2 a = *reinterpret_cast<const float2 *>(sums),
                     b = *reinterpret_cast<const float2 *>(sums + x.max_row);

        to->sum[n] = make_float2(a.x + b.x, a.y + b.y);
#pragma unroll
        for (int jj = 0; jj < 2; jj++)
#pragma unroll
            for (int i = 0; i < TERMS; i++)
                to->x[jj][n][i] =
                    *reinterpret_cast<const uint4 *>(x.t[i] + (size_t)row * x.ld + (kb + jj) * 32 + 8 * t);
    }
}

/* One quad out of a slot: two groups, each closed as few_stage() does. */
template <int TERMS, int NT, int RT>
static __device__ __forceinline__ void q4_quad(float (&acc)[RT][NT][4], const uint4 (&codes)[RT][2],
                                               const uint2 (&sc)[RT][2], const cu_act &x, uint32_t row0,
                                               uint32_t n_row, uint32_t q)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        q4_rows<TERMS, NT> rows;
        float c[RT][NT][4] = {};

        q4_load_rows<TERMS, NT>(&rows, x, row0, n_row, q * 4 + 2 * h);
#pragma unroll
        for (int jj = 0; jj < 2; jj++)
#pragma unroll
            for (int r = 0; r < RT; r++) {
                uint32_t a[2][4];

                fragments<CU_Q4>(a, &codes[r][h], h, jj);
                block_mma<CU_Q4, TERMS, NT>(c[r], a, rows.x[jj]);
            }
#pragma unroll
        for (int r = 0; r < RT; r++) {
            const scales k = {__uint_as_float(sc[r][h].x << 16), __uint_as_float(sc[r][h].x & 0xffff0000u),
                              __uint_as_float(sc[r][h].y << 16), __uint_as_float(sc[r][h].y & 0xffff0000u)};

#pragma unroll
            for (int n = 0; n < NT; n++) {
                close_group(acc[r][n], c[r][n], k);
                add_bias(acc[r][n], k, rows.sum[n]);
            }
        }
    }
}

/* Blocks stay, as in linear.cuh: block b computes the tile groups b, b + gridDim.x, ... */
template <int TERMS, int NT, int RT>
static __global__ void __launch_bounds__(32 * CU_PARTS, 2)
    q4_few(const __grid_constant__ cu_linears l, const __grid_constant__ cu_act x, uint32_t n_row,
           uint32_t n_group)
{
    typedef q4_ring<RT> ring;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float red[2][CU_PARTS][RT * NT * 4][32];
    const uint32_t lane = threadIdx.x & 31, part = threadIdx.x >> 5, row0 = blockIdx.y * (NT * 8);
    const uint32_t n_quad = l.w[0].n_quad, q0 = min(part * l.w[0].part_quads, n_quad),
                   q1 = min(q0 + l.w[0].part_quads, n_quad);
    const uint8_t *own = shared + part * (ring::depth * ring::slot);
    const uint32_t own_at = (uint32_t)__cvta_generic_to_shared(own);
    uint32_t slot = 0, flip = 0;
    q4_cursor<RT> ahead;

    q4_aim<RT>(&ahead, l, blockIdx.x, q0);
    if (q0 == q1)
        ahead.i = n_group; /* an empty part */
    for (uint32_t d = 0; d < ring::depth; d++)
        q4_fetch<RT>(&ahead, l, own_at + d * ring::slot, q0, q1, n_group);
    cu_let_next_start();
    cu_wait_for_inputs();
    for (uint32_t i = blockIdx.x; i < n_group; i += gridDim.x, flip ^= 1) {
        uint32_t here;
        const uint32_t tile = find_tile(l, i, RT, &here);
        float acc[RT][NT][4] = {};

        for (uint32_t q = q0; q < q1; q++) {
            const uint8_t *at = own + slot * ring::slot;
            uint4 codes[RT][2];
            uint2 sc[RT][2];

            asm volatile("cp.async.wait_group %0;" ::"n"(ring::depth - 1) : "memory");
            __syncwarp(); /* what other lanes copied has arrived too */
#pragma unroll
            for (int r = 0; r < RT; r++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    codes[r][h] = *reinterpret_cast<const uint4 *>(at + r * ring::tile + h * 512 + lane * 16);
                    sc[r][h] = *reinterpret_cast<const uint2 *>(at + r * ring::tile + 1024 + h * 64 +
                                                                (lane >> 2) * 8);
                }
            q4_quad<TERMS, NT, RT>(acc, codes, sc, x, row0, n_row, q);
            __syncwarp(); /* all have read the slot */
            q4_fetch<RT>(&ahead, l, own_at + slot * ring::slot, q0, q1, n_group);
            slot = slot + 1 == ring::depth ? 0 : slot + 1;
        }
#pragma unroll
        for (int e = 0; e < RT * NT * 4; e++)
            red[flip][part][e][lane] = acc[e / (NT * 4)][e / 4 % NT][e % 4];
        __syncthreads(); /* the other half of red is free once all have passed the next one */
        for (uint32_t e = threadIdx.x; e < RT * NT * 4 * 32; e += 32 * CU_PARTS) {
            const uint32_t le = e & 31, k = e >> 5 & 3, n = (e >> 7) % NT, r = (e >> 7) / NT;
            const uint32_t o = (tile + r) * 16 + (le >> 2) + (k >= 2 ? 8 : 0), n_out = l.w[here].n_out;
            const uint32_t tok = row0 + n * 8 + 2 * (le & 3) + (k & 1);
            float sum = red[flip][0][e >> 5][le];

#pragma unroll
            for (int p = 1; p < CU_PARTS; p++)
                sum += red[flip][p][e >> 5][le];
            if (o < n_out && tok < n_row)
                l.y[here][(size_t)tok * n_out + o] = sum;
        }
    }
}

template <int TERMS, int NT, int RT>
static void start_q4(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row)
{
    const uint32_t n_group = count_blocks(l, RT), most = l->n_multiprocessor * 2;
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t c = {};

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3(n_group < most ? n_group : most);
    c.blockDim = 32 * CU_PARTS;
    c.dynamicSmemBytes = q4_ring<RT>::bytes;
    c.stream = s;
    c.attrs = &early;
    c.numAttrs = l->early ? 1 : 0;
    cudaLaunchKernelEx(&c, q4_few<TERMS, NT, RT>, *l, *x, n_row, n_group);
}

template <int TERMS>
static void launch_q4(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row)
{
    if (n_row == 1)
        start_q4<TERMS, 1, 1>(s, l, x, n_row);
    else if (n_row <= 8)
        start_q4<TERMS, 1, 2>(s, l, x, n_row);
    else
        start_q4<TERMS, 2, 2>(s, l, x, n_row);
}

template <int TERMS, int NT, int RT> static cudaError_t allow_q4(void)
{
    return cudaFuncSetAttribute(q4_few<TERMS, NT, RT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                q4_ring<RT>::bytes);
}

template <int TERMS> static cudaError_t setup_q4(void)
{
    cudaError_t e = allow_q4<TERMS, 1, 1>();

    if (e == cudaSuccess)
        e = allow_q4<TERMS, 1, 2>();
    return e == cudaSuccess ? allow_q4<TERMS, 2, 2>() : e;
}

#endif
