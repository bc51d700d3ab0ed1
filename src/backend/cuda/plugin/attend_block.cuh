/*
 * What a block of the attention kernels of attend.cu and attend_plain.cu works on: up to QUERIES queries of one KV
 * head.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_ATTEND_BLOCK_CUH
#define ESP_BACKEND_CUDA_PLUGIN_ATTEND_BLOCK_CUH

#include "backend/cuda/plugin/attend.cuh"

enum {
    QUERIES = 16,
    THREADS = 256,
    SCORE_LD = CU_SPAN + 8 /* floats between the scores of two queries */
};

struct block { /* up to QUERIES queries of one KV head: query i is head rep0 + i % rep of token tok + i / rep
                */
    cu_seq s;
    uint32_t rep, n_tok, n_query, kv_head, tok,
        pos; /* tok: in the batch; pos: cache index of its first token */
};

/* blockIdx.y: KV head, blockIdx.z: sequence; i: which block of tokens. False when there is nothing to do. */
static __device__ __forceinline__ bool find_block(block *k, const cu_attention &a, const cu_batch &b,
                                                  uint32_t seq, uint32_t i)
{
    uint32_t per;

    k->s = b.seqs[seq];
    k->rep = a.n_head / a.kv.n_kv;
    per = max(QUERIES / k->rep, 1u);
    if (i * per >= k->s.n_tok)
        return false;
    k->n_tok = min(per, k->s.n_tok - i * per);
    k->n_query = k->n_tok * k->rep;
    k->kv_head = blockIdx.y;
    k->tok = k->s.tok0 + i * per;
    k->pos = k->s.n + i * per;
    return true;
}

/* How many positions of a span query i sees. */
static __device__ __forceinline__ uint32_t visible(const block &k, uint32_t span, uint32_t i)
{
    const uint32_t end = k.pos + i / k.rep + 1;

    return i >= k.n_query || end <= span * CU_SPAN ? 0 : min(end - span * CU_SPAN, (uint32_t)CU_SPAN);
}

static __device__ __forceinline__ size_t query_at(const block &k, const cu_attention &a, uint32_t i)
{
    return ((size_t)(k.tok + i / k.rep) * a.n_head + k.kv_head * k.rep + i % k.rep) * a.kv.dim;
}

/* attend_plain.cu; split: a block computes one span and leaves a partial. */
void attend_plain_start(cudaStream_t s, const cu_attention *a, const cu_batch *b, dim3 grid, bool split);
cudaError_t attend_plain_setup(uint32_t dim);

#endif
