/*
 * The recurrent mixer: causal convolution and the gated delta rule on an open chunk, with the state layout
 * and the formulas of backend/cpu/op_delta.c and kernels/kernels.h (delta_rows, delta_fold). The rule here is
 * for shapes and devices that delta_chunk.cu does not take, in plain f32.
 *
 * A block of the rule owns COLS value columns of one value head of one sequence and walks the new rows in
 * order, up to ROWS at a time, cut at absolute chunk borders. Products with keys and with the state are
 * independent of one another; what is left is a triangular system, solved column by column: once u_j is
 * known, it is subtracted from all later rows at the same time, so every row still sums in ascending j. A
 * row's arithmetic is the same alone and among others.
 *
 * Blocks of one head share its keys and decays, so no block writes them to the slot while another may still
 * read the old ones: within a chunk only rows that nobody reads are written; where a chunk closes,
 * store_rows() writes them afterwards.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/delta.cuh"

enum { COLS = 32, ROWS = 32, THREADS = 256 };

/* ---- convolution
 * ---------------------------------------------------------------------------------------------------- */

enum {
    CONV_ROWS = 16
}; /* tokens of one block; at least CU_TAPS - 1, so that only the first block reads the old rows */

static __global__ void __launch_bounds__(256)
    conv(const __grid_constant__ cu_delta d, const float *x, const float *w, float *y, cu_batch b)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    const uint32_t c = blockIdx.x * 256 + threadIdx.x;
    const cu_seq s = b.seqs[blockIdx.z];
    const uint32_t i0 = blockIdx.y * CONV_ROWS, i1 = min(i0 + CONV_ROWS, s.n_tok);
    float *tail = reinterpret_cast<float *>(d.slots + s.slot * d.slot_bytes + d.layer_off + d.conv_off) + c;
    const float *in = x + (size_t)s.tok0 * d.conv_dim + c;
    float r[CU_TAPS], old[CU_TAPS - 1];

    if (c >= d.conv_dim || i0 >= s.n_tok)
        return;
    const float4 tap = reinterpret_cast<const float4 *>(w)[c];

#pragma unroll
    for (uint32_t j = 0; j < CU_TAPS - 1; j++) {
        old[j] = i0 == 0 ? tail[(size_t)j * d.conv_dim] : 0;
        r[j] = i0 == 0 ? old[j] : in[(size_t)(i0 + j - (CU_TAPS - 1)) * d.conv_dim];
    }
    for (uint32_t i = i0; i < i1; i++) {
        float sum = 0;

        r[3] = in[(size_t)i * d.conv_dim];
        sum = fmaf(tap.x, r[0], sum);
        sum = fmaf(tap.y, r[1], sum);
        sum = fmaf(tap.z, r[2], sum);
        sum = fmaf(tap.w, r[3], sum);
        y[((size_t)s.tok0 + i) * d.conv_dim + c] = cu_silu(sum);
        if (s.journal != CU_NO_JOURNAL)
            d.journals[(((size_t)s.journal * d.n_delta + d.layer) * d.journal_rows + i) * d.conv_dim + c] =
                r[3];
        r[0] = r[1], r[1] = r[2], r[2] = r[3];
    }
    if (i0 != 0 || s.journal != CU_NO_JOURNAL)
        return;
    for (uint32_t j = 0; j < CU_TAPS - 1; j++) { /* row j of [old rows, new rows] moved down by n_tok */
        const uint32_t from = j + s.n_tok;

        tail[(size_t)j * d.conv_dim] = from < CU_TAPS - 1 ? (from == 1 ? old[1] : old[2])
                                                          : in[(size_t)(from - (CU_TAPS - 1)) * d.conv_dim];
    }
}

void cu_conv(cudaStream_t s, const struct cu_delta *d, const float *x, const float *w, float *y,
             const struct cu_batch *b, const struct cu_shape *h)
{
    cu_start(s, conv, dim3((d->conv_dim + 255) / 256, (h->max_seq_tok + CONV_ROWS - 1) / CONV_ROWS, h->n_seq),
             256, 0, *d, x, w, y, *b);
}

/* ---- the delta rule
 * ------------------------------------------------------------------------------------------------- */

struct room {                /* shared memory of a block */
    float *k;                /* [CU_CHUNK][ld] unit keys of the chunk */
    float *s;                /* [COLS][ld] the block's rows of the state */
    float *q;                /* [rows][ld] unit queries times dk^-1/2 of the rows at hand */
    float *a, *b;            /* [rows][CU_CHUNK] decayed k_i . k_j and q_i . k_j; first log decays */
    float *u;                /* [CU_CHUNK][COLS] */
    float *sk, *sq;          /* [rows][COLS] S k_i and S q_i */
    float *g, *beta, *whole; /* [CU_CHUNK] log decays; [ROWS] write strengths; [ROWS] exp(E_i) */
    float *close;            /* [CU_CHUNK] decays towards the chunk's end */
};

static __host__ __device__ __forceinline__ size_t room_floats(uint32_t dk, uint32_t rows)
{
    return (size_t)(CU_CHUNK + COLS + rows) * (dk + 4) + 2 * rows * CU_CHUNK + CU_CHUNK * COLS +
           2 * rows * COLS + 2 * CU_CHUNK + 2 * ROWS;
}

static __device__ __forceinline__ room carve(float *p, uint32_t dk, uint32_t rows)
{
    room r;

    r.k = p;
    r.s = r.k + CU_CHUNK * (dk + 4);
    r.q = r.s + COLS * (dk + 4);
    r.a = r.q + rows * (dk + 4);
    r.b = r.a + rows * CU_CHUNK;
    r.u = r.b + rows * CU_CHUNK;
    r.sk = r.u + CU_CHUNK * COLS;
    r.sq = r.sk + rows * COLS;
    r.g = r.sq + rows * COLS;
    r.close = r.g + CU_CHUNK;
    r.beta = r.close + CU_CHUNK;
    r.whole = r.beta + ROWS;
    return r;
}

static __device__ __forceinline__ float fma4(float4 a, float4 b, float s)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, s))));
}

static __device__ __forceinline__ float sum8(float v)
{
    v += __shfl_xor_sync(0xffffffffu, v, 4);
    v += __shfl_xor_sync(0xffffffffu, v, 2);
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v;
}

/*
 * Dot products of rows [row0, row0 + n) with the keys up to each and with the state: tasks of one row and
 * four partners, 8 lanes a task.
 */
static __device__ __forceinline__ void products(const room &r, uint32_t dk, uint32_t row0, uint32_t n)
{
    const uint32_t e = threadIdx.x & 7, ld = dk + 4, key_tiles = (row0 + n + 3) / 4,
                   tiles = key_tiles + COLS / 4;
    const uint32_t n_task = n * tiles;

    for (uint32_t task0 = 0; task0 < n_task; task0 += THREADS / 8) {
        const uint32_t task = task0 + threadIdx.x / 8;
        const bool live = task < n_task;
        const uint32_t i = live ? task / tiles : 0,
                       tile = live ? task % tiles : 0; /* idle lanes shuffle along */
        const float *partner = tile < key_tiles ? r.k + tile * 4 * ld : r.s + (tile - key_tiles) * 4 * ld;
        const float *k = r.k + (row0 + i) * ld, *q = r.q + i * ld;
        float sk[4] = {0, 0, 0, 0}, sq[4] = {0, 0, 0, 0};

        for (uint32_t c = e * 4; c < dk; c += 32) {
            const float4 kv = *reinterpret_cast<const float4 *>(k + c),
                         qv = *reinterpret_cast<const float4 *>(q + c);

#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float4 p = *reinterpret_cast<const float4 *>(partner + j * ld + c);

                sk[j] = fma4(p, kv, sk[j]);
                sq[j] = fma4(p, qv, sq[j]);
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            sk[j] = sum8(sk[j]);
            sq[j] = sum8(sq[j]);
        }
        if (!live || e >= 4)
            continue;
        const float vk = e == 0 ? sk[0] : e == 1 ? sk[1] : e == 2 ? sk[2] : sk[3];
        const float vq = e == 0 ? sq[0] : e == 1 ? sq[1] : e == 2 ? sq[2] : sq[3];

        if (tile >= key_tiles) {
            r.sk[i * COLS + (tile - key_tiles) * 4 + e] = vk;
            r.sq[i * COLS + (tile - key_tiles) * 4 + e] = vq;
        } else if (tile * 4 + e <= row0 + i) {
            const uint32_t at = i * CU_CHUNK + tile * 4 + e;
            const float decay = expf(r.a[at]);

            r.a[at] = decay * vk;
            r.b[at] = decay * vq;
        }
    }
}

struct span_of { /* what a block works on */
    uint32_t vh, kh, col0, n_col;
    uint8_t *slot; /* the layer in the slot in use */
};

/* u of rows [row0, row0 + n), then o. v and o of the first row; rows are d.conv_dim and vh * dv apart. */
static __device__ __forceinline__ void solve(const cu_delta &d, const room &r, const span_of &w,
                                             uint32_t row0, uint32_t n, const float *v, float *o)
{
    const uint32_t c = threadIdx.x % COLS, first = threadIdx.x / COLS; /* rows first, first + 8, ... */
    float *slot_u = reinterpret_cast<float *>(w.slot + d.u_off) + (size_t)w.vh * CU_CHUNK * d.dv + w.col0;
    float sum[ROWS / 8];

#pragma unroll
    for (uint32_t m = 0; m < ROWS / 8; m++) {
        const uint32_t i = first + m * 8;

        sum[m] = 0;
        if (i < n)
            for (uint32_t j = 0; j < row0; j++)
                sum[m] = fmaf(r.a[i * CU_CHUNK + j], r.u[j * COLS + c], sum[m]);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (first == i % 8) {
            const float below = i < 8 ? sum[0] : i < 16 ? sum[1] : i < 24 ? sum[2] : sum[3];
            const float value = c < w.n_col ? v[(size_t)i * d.conv_dim + w.col0 + c] : 0.0f;
            const float u = r.beta[i] * (value - r.whole[i] * r.sk[i * COLS + c] - below);

            r.u[(row0 + i) * COLS + c] = u;
            if (c < w.n_col)
                slot_u[(size_t)(row0 + i) * d.dv + c] = u;
        }
        __syncthreads();
#pragma unroll
        for (uint32_t m = 0; m < ROWS / 8; m++) {
            const uint32_t later = first + m * 8;

            if (later > i && later < n)
                sum[m] = fmaf(r.a[later * CU_CHUNK + row0 + i], r.u[(row0 + i) * COLS + c], sum[m]);
        }
    }
    for (uint32_t i = first; i < n && c < w.n_col; i += 8) {
        float s = 0;

        for (uint32_t j = 0; j <= row0 + i; j++)
            s = fmaf(r.b[i * CU_CHUNK + j], r.u[j * COLS + c], s);
        o[(size_t)i * d.vh * d.dv + w.col0 + c] = fmaf(r.whole[i], r.sq[i * COLS + c], s);
    }
    __syncthreads();
}

/* Close the full chunk into slot `to`: S = exp(E) S + sum_j exp(L_j) u_j k_j^T. */
static __device__ __forceinline__ void fold(const cu_delta &d, const room &r, span_of *w, uint8_t *to)
{
    const uint32_t ld = d.dk + 4, per = d.dk / 4;
    float *out = reinterpret_cast<float *>(to + d.s_off) + ((size_t)w->vh * d.dv + w->col0) * d.dk;

    if (threadIdx.x == 0)
        log_decays(r.g, CU_CHUNK - 1, r.close, &r.whole[0]);
    __syncthreads();
    const float whole = r.whole[0];

    for (uint32_t e = threadIdx.x; e < CU_CHUNK; e += THREADS)
        r.close[e] = expf(r.close[e]);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < per * (COLS / 4); e += THREADS) {
        const uint32_t k = e % per * 4, c0 = e / per * 4;
        float4 sum[4];

#pragma unroll
        for (int m = 0; m < 4; m++) {
            const float4 s = *reinterpret_cast<const float4 *>(r.s + (c0 + m) * ld + k);

            sum[m] = make_float4(whole * s.x, whole * s.y, whole * s.z, whole * s.w);
        }
        for (uint32_t j = 0; j < CU_CHUNK; j++) {
            const float4 key = *reinterpret_cast<const float4 *>(r.k + j * ld + k);
            const float4 u = *reinterpret_cast<const float4 *>(r.u + j * COLS + c0);
            const float by[4] = {r.close[j] * u.x, r.close[j] * u.y, r.close[j] * u.z, r.close[j] * u.w};

#pragma unroll
            for (int m = 0; m < 4; m++) {
                sum[m].x = fmaf(by[m], key.x, sum[m].x);
                sum[m].y = fmaf(by[m], key.y, sum[m].y);
                sum[m].z = fmaf(by[m], key.z, sum[m].z);
                sum[m].w = fmaf(by[m], key.w, sum[m].w);
            }
        }
#pragma unroll
        for (int m = 0; m < 4; m++) {
            *reinterpret_cast<float4 *>(r.s + (c0 + m) * ld + k) = sum[m];
            if (c0 + m < w->n_col)
                *reinterpret_cast<float4 *>(out + (size_t)(c0 + m) * d.dk + k) = sum[m];
        }
    }
    w->slot = to;
    __syncthreads();
}

/* Committed open rows [0, n) and the state, from the slot. */
static __device__ __forceinline__ void load_open(const cu_delta &d, const room &r, const span_of &w,
                                                 uint32_t n)
{
    const uint32_t ld = d.dk + 4, per = d.dk / 4;
    const float *k = reinterpret_cast<const float *>(w.slot + d.k_off) + (size_t)w.kh * CU_CHUNK * d.dk;
    const float *u =
        reinterpret_cast<const float *>(w.slot + d.u_off) + (size_t)w.vh * CU_CHUNK * d.dv + w.col0;
    const float *g = reinterpret_cast<const float *>(w.slot + d.g_off) + (size_t)w.vh * CU_CHUNK;
    const float *s =
        reinterpret_cast<const float *>(w.slot + d.s_off) + ((size_t)w.vh * d.dv + w.col0) * d.dk;

    for (uint32_t e = threadIdx.x; e < COLS * per; e += THREADS) {
        const uint32_t c = e / per, i = e % per * 4;

        if (c < w.n_col)
            copy_4(r.s + c * ld + i, s + (size_t)c * d.dk + i);
        else
            *reinterpret_cast<float4 *>(r.s + c * ld + i) = make_float4(0, 0, 0, 0);
    }
    for (uint32_t e = threadIdx.x; e < n * per; e += THREADS)
        copy_4(r.k + e / per * ld + e % per * 4, k + (size_t)e * 4);
    for (uint32_t e = threadIdx.x; e < n * (COLS / 4); e += THREADS) {
        const uint32_t row = e / (COLS / 4), c = e % (COLS / 4) * 4;

        if (c < w.n_col) /* both are multiples of 4 */
            copy_4(r.u + row * COLS + c, u + (size_t)row * d.dv + c);
        else
            *reinterpret_cast<float4 *>(r.u + row * COLS + c) = make_float4(0, 0, 0, 0);
    }
    for (uint32_t e = threadIdx.x; e < n; e += THREADS)
        r.g[e] = g[e];
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

/* Keys, queries, gates and log decays of n new rows; direct: this block may write keys and decays to the
 * slot. */
static __device__ __forceinline__ void load_rows(const cu_delta &d, const room &r, const span_of &w,
                                                 uint32_t row0, uint32_t n, const float *c,
                                                 const float *gates, bool direct)
{
    const uint32_t ld = d.dk + 4, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const float scale = 1.0f / sqrtf((float)d.dk);

    for (uint32_t i = warp; i < n; i += THREADS / 32) {
        const float *row = c + (size_t)i * d.conv_dim;

        unit(row + w.kh * d.dk, scale, r.q + i * ld, d.dk);
        unit(row + (d.kh + w.kh) * d.dk, 1.0f, r.k + (row0 + i) * ld, d.dk);
        __syncwarp();
        if (direct && w.vh % (d.vh / d.kh) == 0)
            for (uint32_t k = lane; k < d.dk; k += 32)
                (reinterpret_cast<float *>(w.slot + d.k_off) +
                 ((size_t)w.kh * CU_CHUNK + row0 + i) * d.dk)[k] = r.k[(row0 + i) * ld + k];
    }
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const float g = gates[(size_t)i * 2 * d.vh + d.vh + w.vh];

        r.g[row0 + i] = g;
        r.beta[i] = gates[(size_t)i * 2 * d.vh + w.vh];
        if (direct)
            (reinterpret_cast<float *>(w.slot + d.g_off) + (size_t)w.vh * CU_CHUNK)[row0 + i] = g;
    }
    __syncthreads();
    if (threadIdx.x < n)
        log_decays(r.g, row0 + threadIdx.x, r.a + threadIdx.x * CU_CHUNK, &r.whole[threadIdx.x]);
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS)
    delta_rule(const __grid_constant__ cu_delta d, const float *c, const float *gates, float *o, cu_batch b,
               uint32_t rows, bool crosses)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    extern __shared__ __align__(16) float shared[];
    const room r = carve(shared, d.dk, rows);
    const cu_seq s = b.seqs[blockIdx.z];
    uint8_t *slot = d.slots + s.slot * d.slot_bytes + d.layer_off,
            *next = d.slots + s.slot_next * d.slot_bytes + d.layer_off;
    span_of w;
    uint32_t base = s.base;

    w.vh = blockIdx.y;
    w.kh = w.vh / (d.vh / d.kh);
    w.col0 = blockIdx.x * COLS;
    w.n_col = min(d.dv - w.col0, (uint32_t)COLS);
    w.slot = slot;
    load_open(d, r, w, s.n - base);
    for (uint32_t i = 0; i < s.n_tok;) {
        const uint32_t pos = s.n + i, tok = s.tok0 + i;
        uint32_t n;

        if (pos - base == CU_CHUNK) { /* rows before s.n are committed: their chunk closes in place */
            fold(d, r, &w, i == 0 ? slot : next);
            base = pos;
        }
        n = min(min(CU_CHUNK - (pos - base), s.n_tok - i), rows);
        load_rows(d, r, w, pos - base, n, c + (size_t)tok * d.conv_dim, gates + (size_t)tok * 2 * d.vh,
                  !crosses && blockIdx.x == 0);
        products(r, d.dk, pos - base, n);
        __syncthreads();
        solve(d, r, w, pos - base, n, c + (size_t)tok * d.conv_dim + 2 * d.kh * d.dk + w.vh * d.dv,
              o + ((size_t)tok * d.vh + w.vh) * d.dv);
        i += n;
    }
}

/* Keys and decays of the rows that stay open, where delta_rule() could not write them. A warp is one (row,
 * key head). */
static __global__ void __launch_bounds__(32)
    store_rows(const __grid_constant__ cu_delta d, const float *c, const float *gates, cu_batch b)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    const cu_seq s = b.seqs[blockIdx.z];
    const uint32_t end = s.n + s.n_tok, rep = d.vh / d.kh, kh = blockIdx.y;
    /* a write-through pass keeps its last chunk's rows, a journalled one all of them */
    const uint32_t from =
        s.journal != CU_NO_JOURNAL || s.slot != s.slot_next ? s.n : max(s.n, (end - 1) / CU_CHUNK * CU_CHUNK);
    const uint32_t pos = from + blockIdx.x, tok = s.tok0 + pos - s.n, row = pos % CU_CHUNK;
    const uint32_t to = pos / CU_CHUNK == s.n / CU_CHUNK ? s.slot : s.slot_next;
    uint8_t *slot = d.slots + to * d.slot_bytes + d.layer_off;

    if (pos >= end)
        return;
    unit(c + (size_t)tok * d.conv_dim + (d.kh + kh) * d.dk, 1.0f,
         reinterpret_cast<float *>(slot + d.k_off) + ((size_t)kh * CU_CHUNK + row) * d.dk, d.dk);
    for (uint32_t i = threadIdx.x; i < rep; i += 32)
        (reinterpret_cast<float *>(slot + d.g_off) + (size_t)(kh * rep + i) * CU_CHUNK)[row] =
            gates[(size_t)tok * 2 * d.vh + d.vh + kh * rep + i];
}

void cu_delta_rule(cudaStream_t s, const struct cu_delta *d, const float *c, const float *gates, float *o,
                   const struct cu_batch *b, const struct cu_shape *h)
{
    const uint32_t rows = h->max_seq_tok < ROWS ? h->max_seq_tok : ROWS;

    if (cu_delta_chunks_take(d))
        cu_delta_chunks(s, d, c, gates, o, b, h);
    else
        cu_start(s, delta_rule, dim3((d->dv + COLS - 1) / COLS, d->vh, h->n_seq), THREADS,
                 room_floats(d->dk, rows) * sizeof(float), *d, c, gates, o, *b, rows, h->crosses != 0);
    if (h->crosses)
        cu_start(s, store_rows, dim3(CU_CHUNK, d->kh, h->n_seq), 32, 0, *d, c, gates, *b);
}

cudaError_t cu_delta_setup(uint32_t dk)
{
    const cudaError_t e = cu_delta_chunks_setup();

    return e != cudaSuccess ? e
                            : cudaFuncSetAttribute(delta_rule, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   (int)(room_floats(dk, ROWS) * sizeof(float)));
}
