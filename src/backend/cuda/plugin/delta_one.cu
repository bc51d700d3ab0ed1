/*
 * The delta rule for one new row of each sequence, with the gated norm that follows: decode. A block is a
 * value head. What it reads of the slot was written by earlier steps, so it arrives while the kernel before
 * still works: the state in registers, open keys and writes in shared memory. The arithmetic is that of
 * delta.cu and rows.cu, bit for bit; chunks that close in this step are left to delta.cu.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/delta.cuh"

enum { THREADS = 256, DIM = 128, GROUPS = THREADS / 8 }; /* groups of 8 lanes make a dot product */

struct one_shared {
    float k[CU_CHUNK][DIM]; /* unit keys, the new one last */
    float u[CU_CHUNK][DIM];
    float q[DIM], o[DIM];
    float sk[DIM], sq[DIM]; /* S k and S q */
    float g[CU_CHUNK], decay[CU_CHUNK], a[CU_CHUNK], b[CU_CHUNK];
    float whole, beta;
};

struct one_place {
    uint32_t vh, kh, tok, n; /* n: open rows before this one */
    uint8_t *slot;
};

/* Open rows to shared memory and the state to registers: row group + 32 m, inputs 4 e + 32 i of it. */
static __device__ __forceinline__ void fetch_slot(const cu_delta &d, const one_place &w, one_shared *r,
                                                  float4 (&s)[4][4])
{
    const uint32_t e = threadIdx.x & 7, group = threadIdx.x >> 3;
    const float *k = reinterpret_cast<const float *>(w.slot + d.k_off) + (size_t)w.kh * CU_CHUNK * d.dk;
    const float *u = reinterpret_cast<const float *>(w.slot + d.u_off) + (size_t)w.vh * CU_CHUNK * d.dv;
    const float *g = reinterpret_cast<const float *>(w.slot + d.g_off) + (size_t)w.vh * CU_CHUNK;
    const float *state = reinterpret_cast<const float *>(w.slot + d.s_off) + (size_t)w.vh * d.dv * d.dk;

#pragma unroll
    for (uint32_t m = 0; m < 4; m++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t c = group + GROUPS * m, at = e * 4 + 32 * i;

            s[m][i] = make_float4(0, 0, 0, 0);
            if (c < d.dv && at < d.dk)
                s[m][i] = *reinterpret_cast<const float4 *>(state + (size_t)c * d.dk + at);
        }
    for (uint32_t i = threadIdx.x; i < w.n * (d.dk / 4); i += THREADS)
        copy_4(&r->k[i / (d.dk / 4)][i % (d.dk / 4) * 4], k + (size_t)i * 4);
    for (uint32_t i = threadIdx.x; i < w.n * (d.dv / 4); i += THREADS)
        copy_4(&r->u[i / (d.dv / 4)][i % (d.dv / 4) * 4], u + (size_t)i * 4);
    for (uint32_t i = threadIdx.x; i < w.n; i += THREADS)
        r->g[i] = g[i];
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
                (reinterpret_cast<float *>(w.slot + d.k_off) +
                 ((size_t)w.kh * CU_CHUNK + w.n) * d.dk)[k] = r->k[w.n][k];
    } else if (threadIdx.x == 64) {
        const float g = gates[(size_t)w.tok * 2 * d.vh + d.vh + w.vh];

        r->g[w.n] = g;
        r->beta = gates[(size_t)w.tok * 2 * d.vh + w.vh];
        (reinterpret_cast<float *>(w.slot + d.g_off) + (size_t)w.vh * CU_CHUNK)[w.n] = g;
        log_decays(r->g, w.n, r->decay, &r->whole);
    }
}

static __device__ __forceinline__ void dot_products(const cu_delta &d, const one_place &w, one_shared *r,
                                                    const float4 (&s)[4][4])
{
    const uint32_t e = threadIdx.x & 7, group = threadIdx.x >> 3;
    float4 kv[4], qv[4];

#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        if (e * 4 + 32 * i < d.dk) {
            kv[i] = *reinterpret_cast<const float4 *>(&r->k[w.n][e * 4 + 32 * i]);
            qv[i] = *reinterpret_cast<const float4 *>(&r->q[e * 4 + 32 * i]);
        }
#pragma unroll
    for (uint32_t m = 0; m < 6; m++) { /* four rows of the state, two keys */
        const uint32_t j = group + GROUPS * (m < 4 ? m : m - 4);
        float sk = 0, sq = 0;

#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (e * 4 + 32 * i < d.dk) {
                const float4 p =
                    m < 4 ? s[m < 4 ? m : 0][i] : *reinterpret_cast<const float4 *>(&r->k[j][e * 4 + 32 * i]);

                sk = fma4(p, kv[i], sk);
                sq = fma4(p, qv[i], sq);
            }
        sk = sum8(sk);
        sq = sum8(sq);
        if (e == 0 && m < 4 && j < d.dv) {
            r->sk[j] = sk;
            r->sq[j] = sq;
        } else if (e == 0 && m >= 4 && j <= w.n) {
            const float decay = expf(r->decay[j]);

            r->a[j] = decay * sk;
            r->b[j] = decay * sq;
        }
    }
}

/* u of the new row, then its output: thread c is a value column. */
static __device__ __forceinline__ void solve(const cu_delta &d, const one_place &w, one_shared *r, float value)
{
    const uint32_t c = threadIdx.x;
    float below = 0, s = 0, u;

    if (c >= d.dv)
        return;
#pragma unroll 8
    for (uint32_t j = 0; j < w.n; j++) {
        const float v = r->u[j][c];

        below = fmaf(r->a[j], v, below);
        s = fmaf(r->b[j], v, s);
    }
    u = r->beta * (value - r->whole * r->sk[c] - below);
    s = fmaf(r->b[w.n], u, s);
    (reinterpret_cast<float *>(w.slot + d.u_off) + ((size_t)w.vh * CU_CHUNK + w.n) * d.dv)[c] = u;
    r->o[c] = fmaf(r->whole, r->sq[c], s);
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

static __global__ void __launch_bounds__(THREADS, 2)
    delta_one(const __grid_constant__ cu_delta d, const __grid_constant__ cu_delta_norm norm, const float *c,
              const float *gates, cu_batch b)
{
    extern __shared__ __align__(16) uint8_t shared[];
    one_shared *r = reinterpret_cast<one_shared *>(shared);
    const cu_seq seq = b.seqs[blockIdx.y]; /* batches and slots are older than the kernel before */
    float4 s[4][4];
    float value = 0;
    one_place w;

    w.vh = blockIdx.x;
    w.kh = w.vh / (d.vh / d.kh);
    w.tok = seq.tok0;
    w.n = seq.n - seq.base;
    w.slot = d.slots + seq.slot * d.slot_bytes + d.layer_off;
    fetch_slot(d, w, r, s);
    cu_let_next_start();
    cu_wait_for_inputs();
    if (threadIdx.x < d.dv)
        value = c[(size_t)w.tok * d.conv_dim + 2 * d.kh * d.dk + w.vh * d.dv + threadIdx.x];
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    take_row(d, w, r, c, gates);
    __syncthreads();
    dot_products(d, w, r, s);
    __syncthreads();
    solve(d, w, r, value);
    __syncthreads();
    if (threadIdx.x < 32)
        norm_head(w, r, norm, d.dv, d.vh);
}

int cu_delta_one_takes(const struct cu_delta *d)
{
    return d->dk % 32 == 0 && d->dk <= DIM && d->dv % 32 == 0 && d->dv <= DIM;
}

void cu_delta_one(cudaStream_t s, const struct cu_delta *d, const float *c, const float *gates,
                  const struct cu_delta_norm *n, const struct cu_batch *b)
{
    cu_start(s, delta_one, dim3(d->vh, b->n_seq), THREADS, sizeof(one_shared), *d, *n, c, gates, *b);
}

cudaError_t cu_delta_one_setup(void)
{
    return cudaFuncSetAttribute(delta_one, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)sizeof(one_shared));
}
