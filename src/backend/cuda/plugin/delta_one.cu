/*
 * The delta rule for one new row of each sequence, with the gated norm that follows: decode. A block is a
 * value head, a warp 16 of its value columns. What it reads of the slot was written by earlier steps, so it
 * arrives while the kernel before still works: the state in registers, open keys and writes in shared memory.
 * The arithmetic is that of delta_chunk.cu and rows.cu, bit for bit: the row is column 0 of a product (its
 * query column 1) whose other columns are zeros. Chunks that close in this step are left to delta_chunk.cu.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/delta_mma.cuh"

enum { THREADS = 256, DIM = 128, KEY_LD = DIM + 8, WRITE_LD = DIM + 4 };

struct one_shared {
    float k[CU_CHUNK][KEY_LD]; /* unit keys, the new one last */
    float u[CU_CHUNK][WRITE_LD];
    float q[DIM], o[DIM];
    float g[CU_CHUNK], decay[CU_CHUNK], a[CU_CHUNK], b[CU_CHUNK];
    float a_before[CU_CHUNK], b_before[CU_CHUNK]; /* of the tiles before the row's own, else 0 */
    float whole, beta;
};

struct one_place {
    uint32_t vh, kh, tok, n; /* n: open rows before this one */
    uint8_t *slot;
};

/* Open rows to shared memory, and the warp's part of the state to registers as left factors. */
template <int DK>
static __device__ __forceinline__ void fetch_slot(const cu_delta &d, const one_place &w, one_shared *r,
                                                  float (&s)[DK / 8][4])
{
    const uint32_t lane = threadIdx.x & 31, col = threadIdx.x / 32 * 16 + (lane >> 2);
    const float *k = reinterpret_cast<const float *>(w.slot + d.k_off) + (size_t)w.kh * CU_CHUNK * DK;
    const float *u = reinterpret_cast<const float *>(w.slot + d.u_off) + (size_t)w.vh * CU_CHUNK * d.dv;
    const float *g = reinterpret_cast<const float *>(w.slot + d.g_off) + (size_t)w.vh * CU_CHUNK;
    const float *state =
        reinterpret_cast<const float *>(w.slot + d.s_off) + ((size_t)w.vh * d.dv + col) * DK + 2 * (lane & 3);

#pragma unroll
    for (uint32_t n = 0; n < DK / 8; n++) {
        float2 a = make_float2(0, 0), b = a;

        if (col < d.dv) { /* and then col + 8 too */
            a = pair_at(state + n * 8);
            b = pair_at(state + (size_t)8 * DK + n * 8);
        }
        s[n][0] = a.x, s[n][1] = a.y, s[n][2] = b.x, s[n][3] = b.y;
    }
    for (uint32_t i = threadIdx.x; i < w.n * (DK / 4); i += THREADS)
        copy_4(&r->k[i / (DK / 4)][i % (DK / 4) * 4], k + (size_t)i * 4);
    for (uint32_t i = threadIdx.x; i < w.n * (d.dv / 4); i += THREADS)
        copy_4(&r->u[i / (d.dv / 4)][i % (d.dv / 4) * 4], u + (size_t)i * 4);
    for (uint32_t i = threadIdx.x; i < w.n; i += THREADS)
        r->g[i] = g[i];
    for (uint32_t i = w.n + threadIdx.x / 32; i < CU_CHUNK; i += THREADS / 32) /* rows to come */
        if (lane * 4 < d.dv)
            *reinterpret_cast<float4 *>(&r->u[i][lane * 4]) = make_float4(0, 0, 0, 0);
    if (threadIdx.x < CU_CHUNK)
        r->a_before[threadIdx.x] = r->b_before[threadIdx.x] = r->a[threadIdx.x] = r->b[threadIdx.x] = 0;
}

/* The new row's query, key and gates; its key and log decay go to the slot too. */
static __device__ __forceinline__ void take_row(const cu_delta &d, const one_place &w, one_shared *r,
                                                const float *c, const float *gates)
{
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const float *row = c + (size_t)w.tok * d.conv_dim;

    if (warp == 0) {
        unit(row + w.kh * d.dk, 1.0f / sqrtf((float)d.dk), r->q, d.dk);
    } else if (warp == 1) {
        unit(row + (d.kh + w.kh) * d.dk, 1.0f, r->k[w.n], d.dk);
        __syncwarp();
        if (w.vh % (d.vh / d.kh) == 0)
            for (uint32_t k = lane; k < d.dk; k += 32)
                (reinterpret_cast<float *>(w.slot + d.k_off) + ((size_t)w.kh * CU_CHUNK + w.n) * d.dk)[k] =
                    r->k[w.n][k];
    } else if (threadIdx.x == 64) {
        const float g = gates[(size_t)w.tok * 2 * d.vh + d.vh + w.vh];

        r->g[w.n] = g;
        r->beta = gates[(size_t)w.tok * 2 * d.vh + w.vh];
        (reinterpret_cast<float *>(w.slot + d.g_off) + (size_t)w.vh * CU_CHUNK)[w.n] = g;
        log_decays(r->g, w.n, r->decay, &r->whole);
    }
}

/* Columns 0 and 1 of a right factor: inputs at `at` of two rows. */
static __device__ __forceinline__ right two_columns(const float *first, const float *second, uint32_t at)
{
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2;

    return right_of(g == 0   ? pair_at(first + at + 2 * (lane & 3))
                    : g == 1 ? pair_at(second + at + 2 * (lane & 3))
                             : make_float2(0, 0));
}

/*
 * Lanes with t = 0: S k and S q of columns g and g + 8 of the warp's. The first warps: products with 16 keys
 * each, decayed, to r->a and r->b.
 */
template <int DK>
static __device__ __forceinline__ void dot_products(const one_place &w, one_shared *r,
                                                    const float (&s)[DK / 8][4], float of_state[4])
{
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, j0 = threadIdx.x / 32 * 16;
    const bool keys = j0 <= w.n;
    const float *k = &r->k[keys ? j0 + g : 0][2 * t];
    apart acc[1] = {}, sums[1] = {};

#pragma unroll
    for (uint32_t n = 0; n < DK / 8; n++) {
        const right x = two_columns(r->k[w.n], r->q, n * 8);

        multiply<1>(sums, left_of(s[n][0], s[n][1], s[n][2], s[n][3]), &x);
        if (keys) {
            const float2 a = pair_at(k + n * 8), b = pair_at(k + 8 * KEY_LD + n * 8);

            multiply<1>(acc, left_of(a.x, a.y, b.x, b.y), &x);
        }
    }
    join(sums[0], of_state);
    if (!keys || t != 0)
        return;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t j = j0 + g + half * 8;

        if (j <= w.n) {
            const float decay = expf(r->decay[j]);

            const float a = decay * joined(acc[0], half * 2), b = decay * joined(acc[0], half * 2 + 1);

            r->a[j] = a;
            r->b[j] = b;
            r->a_before[j] = j < w.n / 8 * 8 ? a : 0.0f;
            r->b_before[j] = j < w.n / 8 * 8 ? b : 0.0f;
        }
    }
}

/* Writes of tile j of the warp's columns as a left factor. */
static __device__ __forceinline__ left writes_of(const one_shared *r, uint32_t j)
{
    const uint32_t lane = threadIdx.x & 31, col = threadIdx.x / 32 * 16 + (lane >> 2);
    const float *u = &r->u[j * 8 + 2 * (lane & 3)][col];

    return left_of(u[0], u[WRITE_LD], u[8], u[WRITE_LD + 8]);
}

/* u of the new row, then its output: lanes with t = 0 have columns g and g + 8 of the warp's. */
static __device__ __forceinline__ void solve(const cu_delta &d, const one_place &w, one_shared *r,
                                             const float value[2], const float of_state[4])
{
    const uint32_t lane = threadIdx.x & 31, t = lane & 3, col = threadIdx.x / 32 * 16 + (lane >> 2),
                   tile = w.n / 8;
    apart sums[1] = {};
    right x;

    if (threadIdx.x / 32 * 16 >= d.dv)
        return;
        /* all tiles, for they are on their way together: those not before the row's add zeros */
#pragma unroll
    for (uint32_t j = 0; j < CU_CHUNK / 8 - 1; j++) {
        x = two_columns(r->a_before, r->b_before, j * 8);
        multiply<1>(sums, writes_of(r, j), &x);
    }
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        float below = joined(sums[0], half * 2), u;

        if (t != 0)
            break;
#pragma unroll
        for (uint32_t j = 0; j < 7; j++) {
            const float more = fmaf(r->a[tile * 8 + j], r->u[tile * 8 + j][col + half * 8], below);

            below = tile * 8 + j < w.n ? more : below;
        }
        u = row_write(r->beta, value[half], r->whole, of_state[half * 2], below);
        r->u[w.n][col + half * 8] = u;
        (reinterpret_cast<float *>(w.slot + d.u_off) +
         ((size_t)w.vh * CU_CHUNK + w.n) * d.dv)[col + half * 8] = u;
    }
    __syncwarp();
    x = two_columns(r->a, r->b, tile * 8);
    multiply<1>(sums, writes_of(r, tile), &x);
    if (t == 0) {
        r->o[col] = fmaf(r->whole, of_state[1], joined(sums[0], 1));
        r->o[col + 8] = fmaf(r->whole, of_state[3], joined(sums[0], 3));
    }
}

/* The first warp: rmsnorm of the head times silu(z), as rows.cu does it. */
static __device__ __forceinline__ void norm_head(const one_place &w, const one_shared *r,
                                                 const cu_delta_norm &n, uint32_t dim, uint32_t n_head)
{
    const uint32_t k = threadIdx.x * 8;
    const size_t base = ((size_t)w.tok * n_head + w.vh) * dim;
    float v[8], u[8], z[8], sum = 0, inv;

    if (k < dim) {
        cu_load8(r->o + k, v);
        cu_load8(n.gamma + k, u);
        cu_load8(n.z + base + k, z);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum = fmaf(v[i], v[i], sum);
    }
    inv = 1.0f / sqrtf(cu_warp_sum(sum) / (float)dim + n.eps);
    if (k >= dim)
        return;
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = v[i] * inv * u[i] * cu_silu(z[i]);
    cu_store8(n.y + base + k, v);
    if (n.act.n_term)
        cu_emit8(n.act, w.tok, w.vh * dim + k, v);
}

template <int DK>
static __global__ void __launch_bounds__(THREADS, 2)
    delta_one(const __grid_constant__ cu_delta d, const __grid_constant__ cu_delta_norm norm, const float *c,
              const float *gates, cu_batch b)
{
    extern __shared__ __align__(16) uint8_t shared[];
    one_shared *r = reinterpret_cast<one_shared *>(shared);
    const cu_seq seq = b.seqs[blockIdx.y]; /* batches and slots are older than the kernel before */
    const uint32_t col = threadIdx.x / 32 * 16 + ((threadIdx.x & 31) >> 2);
    float s[DK / 8][4], of_state[4], value[2] = {0, 0};
    one_place w;

    w.vh = blockIdx.x;
    w.kh = w.vh / (d.vh / d.kh);
    w.tok = seq.tok0;
    w.n = seq.n - seq.base;
    w.slot = d.slots + seq.slot * d.slot_bytes + d.layer_off;
    fetch_slot<DK>(d, w, r, s);
    cu_let_next_start();
    cu_wait_for_inputs();
    if ((threadIdx.x & 3) == 0 && col < d.dv) {
        const float *v = c + (size_t)w.tok * d.conv_dim + 2 * d.kh * DK + w.vh * d.dv + col;

        value[0] = v[0];
        value[1] = v[8];
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    take_row(d, w, r, c, gates);
    __syncthreads();
    dot_products<DK>(w, r, s, of_state);
    __syncthreads();
    solve(d, w, r, value, of_state);
    __syncthreads();
    if (threadIdx.x < 32)
        norm_head(w, r, norm, d.dv, d.vh);
}

int cu_delta_one_takes(const struct cu_delta *d)
{
    return cu_delta_chunks_take(d) && d->dv % 32 == 0;
}

/*
 * Shared memory of a block. Where each can have a multiprocessor of its own it takes more than half of one: most are
 * still busy with the products before when this kernel starts, and blocks would share the first that are not (27B,
 * one row: 5.51 instead of 5.34 ms a step).
 */
static uint32_t one_bytes(uint32_t n_block)
{
    const uint32_t more = cu_most_shared() / 2 + 1024;

    return n_block <= cu_multiprocessors() && more > sizeof(one_shared) ? more : (uint32_t)sizeof(one_shared);
}

void cu_delta_one(cudaStream_t s, const struct cu_delta *d, const float *c, const float *gates,
                  const struct cu_delta_norm *n, const struct cu_batch *b)
{
    cu_start(s, d->dk == 128 ? delta_one<128> : delta_one<64>, dim3(d->vh, b->n_seq), THREADS,
             one_bytes(d->vh * b->n_seq), *d, *n, c, gates, *b);
}

cudaError_t cu_delta_one_setup(void)
{
    const int bytes = (int)one_bytes(0);
    const cudaError_t e =
        cudaFuncSetAttribute(delta_one<128>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);

    return e != cudaSuccess
               ? e
               : cudaFuncSetAttribute(delta_one<64>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}
