/*
 * Appending to the cache, and small steps of attention layers in two kernels beside the spans themselves:
 * queries, keys and values of the new rows together, and merging with the output gate that follows. The
 * operations are those of rows.cu and attend.cu.
 *
 * SPDX-License-Identifier: MIT
 */
#include <type_traits>

#include "backend/cuda/plugin/attend.cuh"
#include "backend/cuda/plugin/kv_encode.cuh"
#include "backend/cuda/plugin/rope.cuh"

/* Keys or values of one token. */
static __global__ void kv_append(cu_kv kv, const float *k, const float *v, cu_batch b)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    const uint32_t tok = blockIdx.x, width = kv.n_kv * kv.dim;
    const cu_seq s = b.seqs[b.tok_seq[tok]];
    const uint32_t pos = s.n + tok - s.tok0, page = b.pages[s.page0 + pos / CU_SPAN];
    const float *src = (blockIdx.y ? v : k) + (size_t)tok * width;

    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) {
        uint8_t *row =
            kv_at(kv, page, i / kv.dim, blockIdx.y) + (size_t)(pos % CU_SPAN) * kv.dim * (kv.bf16 ? 2 : 4);

        if (kv.bf16)
            reinterpret_cast<__nv_bfloat16 *>(row)[i % kv.dim] = __float2bfloat16_rn(src[i]);
        else
            reinterpret_cast<float *>(row)[i % kv.dim] = src[i];
    }
}

/* The row of a head of a sequence's token, which is `tok` of the batch. */
static __device__ __forceinline__ uint8_t *coded_row(const cu_kv &kv, const cu_batch &b, uint32_t tok,
                                                     uint32_t head, uint32_t which)
{
    const cu_seq s = b.seqs[b.tok_seq[tok]];
    const uint32_t pos = s.n + tok - s.tok0;

    return kv_at(kv, b.pages[s.page0 + pos / CU_SPAN], head, which) + pos % CU_SPAN * kv.row[which];
}

/* A block is a (token, head): key heads, then value heads. */
static __global__ void __launch_bounds__(64)
    kv_append_coded(const __grid_constant__ cu_kv kv, const float *k, const float *v,
                    const __grid_constant__ cu_batch b)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    __shared__ encode_room room;
    const uint32_t tok = blockIdx.y, which = blockIdx.x >= kv.n_kv, head = blockIdx.x - which * kv.n_kv;
    const float *x = (which ? v : k) + ((size_t)tok * kv.n_kv + head) * kv.dim;

    for (uint32_t i = threadIdx.x; i < kv.dim; i += blockDim.x)
        room.x[i] = x[i];
    encode_row(kv, which, &room, coded_row(kv, b, tok, head, which));
}

void cu_kv_append(cudaStream_t s, const struct cu_kv *kv, const float *k, const float *v,
                  const struct cu_batch *b, uint32_t n_tok)
{
    if (kv->code.kind) {
        cu_start(s, kv_append_coded, dim3(2 * kv->n_kv, n_tok), 64, 0, *kv, k, v, *b);
        return;
    }
    cu_start(s, kv_append, dim3(n_tok, 2), 256, 0, *kv, k, v, *b);
}

struct no_room {
    float x[1];
};

/* A block is a (token, head): query heads, then key heads, then value heads. */
template <bool CODED>
static __global__ void __launch_bounds__(64)
    rope_append(const __grid_constant__ cu_append p, const __grid_constant__ cu_batch b)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    __shared__ rope_room room;
    __shared__ std::conditional_t<CODED, encode_room, no_room> coded;
    const uint32_t tok = blockIdx.y, dim = p.kv.dim, n_kv = p.kv.n_kv;
    uint32_t head = blockIdx.x;

    if (head < p.q_heads.n_head) {
        const size_t at = (size_t)tok * p.q_heads.n_head + head;

        norm_for_rope(&room, p.q + at * p.q_heads.stride, p.q_gamma, p.q_eps, dim);
        for (uint32_t j = threadIdx.x; j < dim; j += blockDim.x)
            p.q_out[at * dim + j] = rotated(room, p.rope, tok, j) * p.q_scale;
        return;
    }
    head -= p.q_heads.n_head;
    const bool value = head >= n_kv;
    const cu_seq s = b.seqs[b.tok_seq[tok]];
    const uint32_t pos = s.n + tok - s.tok0;

    head -= value ? n_kv : 0;
    uint8_t *row =
        kv_at(p.kv, b.pages[s.page0 + pos / CU_SPAN], head, value) + pos % CU_SPAN * p.kv.row[value];
    const size_t at = (size_t)tok * n_kv + head;

    if (!value)
        norm_for_rope(&room, p.k + at * p.k_stride, p.k_gamma, p.k_eps, dim);
    for (uint32_t j = threadIdx.x; j < dim; j += blockDim.x) {
        const float v = value ? p.v[at * dim + j] : rotated(room, p.rope, tok, j) * p.k_scale;

        if (!value)
            p.k_out[at * dim + j] = v;
        if (CODED)
            coded.x[j] = v;
        else if (p.kv.bf16)
            reinterpret_cast<__nv_bfloat16 *>(row)[j] = __float2bfloat16_rn(v);
        else
            reinterpret_cast<float *>(row)[j] = v;
    }
    if constexpr (CODED)
        encode_row(p.kv, value, &coded, row);
}

void cu_rope_append(cudaStream_t s, const struct cu_append *p, const struct cu_batch *b, uint32_t n_tok)
{
    const dim3 grid(p->q_heads.n_head + 2 * p->kv.n_kv, n_tok);

    if (p->kv.code.kind)
        cu_start(s, rope_append<true>, grid, 64, 0, *p, *b);
    else
        cu_start(s, rope_append<false>, grid, p->kv.dim <= 256 ? 32 : 64, 0, *p, *b);
}

/* A block is a (token, head): its spans in ascending order, then the gate. */
static __global__ void __launch_bounds__(MERGE_THREADS)
    merge_gate(const __grid_constant__ cu_attention a, const __grid_constant__ cu_batch b, const float *gate,
               uint32_t stride, const __grid_constant__ cu_act act)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    __shared__ float row[HEAD_MAX];
    __shared__ merge_room room;
    const uint32_t tok = blockIdx.y, head = blockIdx.x, dim = a.kv.dim, k = threadIdx.x * 8;
    const cu_seq s = b.seqs[b.tok_seq[tok]];
    float acc[MERGE_PER], v[8], u[8];
    const float by = merge_spans(a, tok, head, (s.n + tok - s.tok0) / CU_SPAN + 1, &room, acc);

#pragma unroll
    for (int j = 0; j < MERGE_PER; j++)
        if (threadIdx.x + j * MERGE_THREADS < dim)
            row[threadIdx.x + j * MERGE_THREADS] = acc[j] * by;
    __syncthreads();
    if (a.kv.code.kind == CU_KV_TURBO)
        unrotate_row(row, dim, a.kv.code);
    if (k >= dim)
        return;
    cu_load8(row + k, v);
    cu_load8(gate + ((size_t)tok * a.n_head + head) * stride + dim + k, u);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] *= cu_sigmoid(u[i]);
    cu_store8(a.y + ((size_t)tok * a.n_head + head) * dim + k, v);
    if (act.n_term)
        cu_emit8(act, tok, head * dim + k, v);
}

void cu_merge_gate(cudaStream_t s, const struct cu_attention *a, const struct cu_batch *b, uint32_t n_tok,
                   const float *gate, uint32_t stride, const struct cu_act *act)
{
    cu_start(s, merge_gate, dim3(a->n_head, n_tok), MERGE_THREADS, 0, *a, *b, gate, stride, *act);
}
