/*
 * Appending to the cache, and small steps of attention layers in two kernels beside the spans themselves:
 * queries, keys and values of the new rows together, and merging with the output gate that follows. The
 * operations are those of rows.cu and attend.cu.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/attend.cuh"
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

void cu_kv_append(cudaStream_t s, const struct cu_kv *kv, const float *k, const float *v,
                  const struct cu_batch *b, uint32_t n_tok)
{
    cu_start(s, kv_append, dim3(n_tok, 2), 256, 0, *kv, k, v, *b);
}

/* A block is a (token, head): query heads, then key heads, then value heads. */
static __global__ void __launch_bounds__(64)
    rope_append(const __grid_constant__ cu_append p, const __grid_constant__ cu_batch b)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    __shared__ rope_room room;
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
    uint8_t *row = kv_at(p.kv, b.pages[s.page0 + pos / CU_SPAN], head, value) +
                   (size_t)(pos % CU_SPAN) * dim * (p.kv.bf16 ? 2 : 4);
    const size_t at = (size_t)tok * n_kv + head;

    if (!value)
        norm_for_rope(&room, p.k + at * p.k_stride, p.k_gamma, p.k_eps, dim);
    for (uint32_t j = threadIdx.x; j < dim; j += blockDim.x) {
        const float v = value ? p.v[at * dim + j] : rotated(room, p.rope, tok, j) * p.k_scale;

        if (!value)
            p.k_out[at * dim + j] = v;
        if (p.kv.bf16)
            reinterpret_cast<__nv_bfloat16 *>(row)[j] = __float2bfloat16_rn(v);
        else
            reinterpret_cast<float *>(row)[j] = v;
    }
}

void cu_rope_append(cudaStream_t s, const struct cu_append *p, const struct cu_batch *b, uint32_t n_tok)
{
    cu_start(s, rope_append, dim3(p->q_heads.n_head + 2 * p->kv.n_kv, n_tok), p->kv.dim <= 256 ? 32 : 64, 0,
             *p, *b);
}

/* A block is a (token, head): its spans in ascending order, then the gate. */
static __global__ void __launch_bounds__(128)
    merge_gate(const __grid_constant__ cu_attention a, const __grid_constant__ cu_batch b, const float *gate,
               uint32_t stride, const __grid_constant__ cu_act act)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    __shared__ float row[HEAD_MAX];
    const uint32_t tok = blockIdx.y, head = blockIdx.x, dim = a.kv.dim, k = threadIdx.x * 8;
    const cu_seq s = b.seqs[b.tok_seq[tok]];
    const uint32_t n_span = (s.n + tok - s.tok0) / CU_SPAN + 1;
    float acc[4] = {0, 0, 0, 0}, v[8], u[8];
    running r = {-INFINITY, 0};

    for (uint32_t i = 0; i < n_span; i++) {
        const float *p = part_at(a, tok, head, i);
        const float2 f = merge_factors(&r, p[dim], p[dim + 1]);

#pragma unroll
        for (int j = 0; j < 4; j++)
            if (threadIdx.x + j * 128 < dim)
                acc[j] = merged(acc[j], p[threadIdx.x + j * 128], f);
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (threadIdx.x + j * 128 < dim)
            row[threadIdx.x + j * 128] = acc[j] * inverse(r);
    __syncthreads();
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
    cu_start(s, merge_gate, dim3(a->n_head, n_tok), 128, 0, *a, *b, gate, stride, *act);
}
