/*
 * What the delta rule needs of a chunk that does not depend on the state, for all chunks of a pass at once: a
 * block is a (chunk, key head) and makes unit keys and queries, their products within the chunk and decays.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/delta_mma.cuh"

enum {
    PREPARE_THREADS = 256,
    HEADS_AT_ONCE =
        PREPARE_THREADS / CU_CHUNK, /* value heads of a key head whose decays are summed together */
    DOT_LD = CU_CHUNK + 4,
    DECAY_LD = CU_CHUNK + 1
};

template <int DK> struct prepare_room {
    static const uint32_t ld = DK + 8;
    union {
        struct {
            float k[CU_CHUNK * ld], q[CU_CHUNK * ld];
        } rows;
        float decay[HEADS_AT_ONCE * CU_CHUNK * DECAY_LD]; /* once the products are there */
    };
    float kk[CU_CHUNK * DOT_LD], qk[CU_CHUNK * DOT_LD]; /* [i][j] */
    float g[HEADS_AT_ONCE][CU_CHUNK], whole[HEADS_AT_ONCE];
};

struct prepare_place {
    cu_seq s;
    piece p;
    uint32_t seq, chunk, kh;
    uint8_t *slot;
    bool direct; /* keys and decays may go to the slot */
};

/* Unit keys (which 1) or queries (0) of a warp's new rows, to shared memory, to the next kernel, to the slot.
 */
template <int DK>
static __device__ __forceinline__ void unit_rows(const cu_delta &d, const prepare_place &w, const float *c,
                                                 uint32_t which, float *to)
{
    enum { WARPS = PREPARE_THREADS / 32, PER = CU_CHUNK / WARPS };
    const uint32_t warp = threadIdx.x >> 5, at = (threadIdx.x & 31) * 4;
    const float scale = which ? 1.0f : 1.0f / sqrtf((float)DK);
    float4 x[PER];

#pragma unroll
    for (uint32_t m = 0; m < PER; m++) {
        const uint32_t i = warp + m * WARPS;

        x[m] = make_float4(0, 0, 0, 0);
        if (i >= w.p.row0 && i < w.p.end && at < DK)
            x[m] = *reinterpret_cast<const float4 *>(c + (size_t)(w.p.tok + i) * d.conv_dim +
                                                     (which * d.kh + w.kh) * DK + at);
    }
#pragma unroll
    for (uint32_t m = 0; m < PER; m++) {
        const uint32_t i = warp + m * WARPS;

        if (i < w.p.row0 || i >= w.p.end)
            continue;
        const float4 y = unit4(x[m], scale);

        if (at >= DK)
            continue;
        *reinterpret_cast<float4 *>(to + i * prepare_room<DK>::ld + at) = y;
        *reinterpret_cast<float4 *>(keys_at(d, w.p.tok + i, w.kh) + (which ? 0 : DK) + at) = y;
        if (which && w.direct)
            *reinterpret_cast<float4 *>(reinterpret_cast<float *>(w.slot + d.k_off) +
                                        ((size_t)w.kh * CU_CHUNK + i) * DK + at) = y;
    }
}

template <int DK>
static __device__ __forceinline__ void take_rows(const cu_delta &d, const prepare_place &w, const float *c,
                                                 prepare_room<DK> *r)
{
    const float *old = reinterpret_cast<const float *>(w.slot + d.k_off) + (size_t)w.kh * CU_CHUNK * DK;

    for (uint32_t e = threadIdx.x; e < w.p.row0 * (DK / 4); e += PREPARE_THREADS)
        copy_4(r->rows.k + e / (DK / 4) * prepare_room<DK>::ld + e % (DK / 4) * 4, old + (size_t)e * 4);
    unit_rows<DK>(d, w, c, 1, r->rows.k);
    unit_rows<DK>(d, w, c, 0, r->rows.q);
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* k_i . k_j and q_i . k_j of 16 j and 16 i. Rows that do not exist spoil only their own products. */
template <int DK> static __device__ __forceinline__ void dots(prepare_room<DK> *r, uint32_t j0, uint32_t i0)
{
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, ld = prepare_room<DK>::ld;
    const float *left_row = r->rows.k + (j0 + g) * ld + 2 * t, *k = r->rows.k + (i0 + g) * ld + 2 * t,
                *q = r->rows.q + (i0 + g) * ld + 2 * t;
    apart acc[4] = {};

#pragma unroll 2
    for (uint32_t kb = 0; kb < DK / 8; kb++) {
        const float2 a = pair_at(left_row + kb * 8), b = pair_at(left_row + 8 * ld + kb * 8);
        right x[4];

#pragma unroll
        for (int n = 0; n < 2; n++) {
            x[n] = right_of(pair_at(k + n * 8 * ld + kb * 8));
            x[2 + n] = right_of(pair_at(q + n * 8 * ld + kb * 8));
        }
        multiply<4>(acc, left_of(a.x, a.y, b.x, b.y), x);
    }
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t at = (i0 + n * 8 + 2 * t + (e & 1)) * DOT_LD + j0 + g + (e >> 1) * 8;

            r->kk[at] = joined(acc[n], e);
            r->qk[at] = joined(acc[2 + n], e);
        }
}

/* Decays of up to HEADS_AT_ONCE value heads from head vh0 on: a thread sums one row's. */
template <int DK>
static __device__ __forceinline__ void decays(const cu_delta &d, const prepare_place &w, const float *gates,
                                              uint32_t vh0, uint32_t n_head, prepare_room<DK> *r)
{
    const uint32_t head = threadIdx.x / CU_CHUNK, i = threadIdx.x % CU_CHUNK, vh = vh0 + head;
    const bool fresh = i >= w.p.row0 && i < w.p.end;
    float *kept = reinterpret_cast<float *>(w.slot + d.g_off) + (size_t)vh * CU_CHUNK + i;
    const float *gate = gates + (size_t)(w.p.tok + i) * 2 * d.vh + vh;
    float whole;

    if (head < n_head && i < w.p.end) {
        const float g = fresh ? gate[d.vh] : *kept;

        r->g[head][i] = g;
        if (fresh && w.direct)
            *kept = g;
    }
    __syncthreads();
    if (head < n_head && (fresh || (w.p.closes && i == CU_CHUNK - 1))) {
        log_decays(r->g[head], i, r->decay + (head * CU_CHUNK + i) * DECAY_LD, &whole);
        if (fresh)
            *strength_at(d, w.p.tok + i, vh) = make_float2(whole, *gate);
        if (i == CU_CHUNK - 1)
            r->whole[head] = whole;
    }
    __syncthreads();
}

template <int DK>
static __device__ __forceinline__ void store_within(const cu_delta &d, const prepare_place &w, uint32_t vh0,
                                                    uint32_t n_head, const prepare_room<DK> *r)
{
    const uint32_t j = threadIdx.x % CU_CHUNK, row = threadIdx.x / CU_CHUNK;

    for (uint32_t head = 0; head < n_head; head++)
        for (uint32_t i = w.p.row0 + row; i < w.p.end; i += PREPARE_THREADS / CU_CHUNK) {
            float *to = within_at(d, w.p.tok + i, vh0 + head);
            const float decay = j <= i ? expf(r->decay[(head * CU_CHUNK + i) * DECAY_LD + j]) : 0.0f;

            to[j] = j < i ? decay * r->kk[i * DOT_LD + j] : 0.0f;
            to[CU_CHUNK + j] = j <= i ? decay * r->qk[i * DOT_LD + j] : 0.0f;
        }
    for (uint32_t head = row; w.p.closes && head < n_head; head += PREPARE_THREADS / CU_CHUNK) {
        float *to = close_at(d, w.s, w.seq, w.chunk, vh0 + head);

        to[j] = expf(r->decay[(head * CU_CHUNK + CU_CHUNK - 1) * DECAY_LD + j]);
        if (j == 0)
            to[CU_CHUNK] = r->whole[head];
    }
    __syncthreads(); /* decays are written again */
}

template <int DK>
static __global__ void __launch_bounds__(PREPARE_THREADS, 2)
    prepare_chunks(const __grid_constant__ cu_delta d, const float *c, const float *gates, cu_batch b,
                   bool crosses)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    extern __shared__ __align__(16) uint8_t shared[];
    prepare_room<DK> *r = reinterpret_cast<prepare_room<DK> *>(shared);
    const uint32_t rep = d.vh / d.kh;
    prepare_place w;

    w.seq = blockIdx.z;
    w.s = b.seqs[w.seq];
    w.chunk = blockIdx.x;
    w.kh = blockIdx.y;
    if (w.chunk >= pieces_of(w.s))
        return;
    w.p = piece_of(w.s, w.chunk);
    w.slot = d.slots + w.s.slot * d.slot_bytes + d.layer_off;
    w.direct = !crosses;
    if (w.p.row0 < w.p.end) {
        take_rows<DK>(d, w, c, r);
        __syncthreads();
        for (uint32_t e = threadIdx.x / 32; e < 16; e += PREPARE_THREADS / 32)
            if (e / 4 <= e % 4) /* on and below the diagonal */
                dots<DK>(r, e / 4 * 16, e % 4 * 16);
        __syncthreads();
    }
    for (uint32_t head = 0; head < rep; head += HEADS_AT_ONCE) {
        const uint32_t n = min(rep - head, (uint32_t)HEADS_AT_ONCE);

        decays<DK>(d, w, gates, w.kh * rep + head, n, r);
        store_within<DK>(d, w, w.kh * rep + head, n, r);
    }
}

/* ---- choosing
 * ------------------------------------------------------------------------------------------------------ */

uint32_t delta_within_bytes(uint32_t dk)
{
    return (uint32_t)(dk == 128 ? sizeof(prepare_room<128>) : sizeof(prepare_room<64>));
}

cudaError_t delta_within_setup(uint32_t dk)
{
    return cudaFuncSetAttribute(dk == 128 ? prepare_chunks<128> : prepare_chunks<64>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, (int)delta_within_bytes(dk));
}

void delta_within(cudaStream_t s, const cu_delta *d, const float *c, const float *gates, const cu_batch *b,
                  const cu_shape *h)
{
    cu_start(s, d->dk == 128 ? prepare_chunks<128> : prepare_chunks<64>,
             dim3(h->max_seq_tok / CU_CHUNK + 2, d->kh, h->n_seq), PREPARE_THREADS, delta_within_bytes(d->dk), *d,
             c, gates, *b, h->crosses != 0);
}
