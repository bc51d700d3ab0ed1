/*
 * Products of a few rows that stream their weights through shared memory, and what may be done with an output
 * on the spot instead of by a kernel of its own. The arithmetic is that of linear.cuh, bit for bit.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_STREAM_H
#define ESP_BACKEND_CUDA_PLUGIN_STREAM_H

#include "backend/cuda/plugin/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CU_STREAM_ROWS = 32,
    CU_STREAM_QUADS = 1024, /* inputs over 128 at most: sums of eight rows lie in shared memory */
    CU_STREAM_WHOLE = 16384 /* inputs up to which all rows are one block's */
};

enum cu_finish_kind {
    CU_STORE,    /* y[row][n_out] */
    CU_CONV,     /* causal convolution with one new row a sequence: y[row][n_out]; v0: taps */
    CU_STRENGTH, /* sigmoid, to y[row][2 n_out] */
    CU_DECAY     /* v0 * softplus(. + v1), to the second half of y[row][2 n_out] */
};

struct cu_finish {
    uint32_t kind;
    const float *v0, *v1;
    float *y;
};

/*
 * Two launches of products of one input: the first lets the next start once its inputs are there, so that one
 * need not wait for them and works beside it; it ends after the first.
 */
enum cu_stream_order { CU_STREAM_ALONE, CU_STREAM_FIRST, CU_STREAM_BESIDE };

struct cu_stream {
    uint32_t order;
    struct cu_linears l; /* y is that of finish */
    struct cu_finish finish[CU_MAX_LINEAR];
    struct cu_delta d; /* CU_CONV: whose rows */
    struct cu_batch b;
    /*
     * Not 0: l holds two weights of equal shape, gate and up; silu(gate) times up goes to `gated` in product
     * form alone. The sum of a block of 32 is in two halves, gated.sums and gated.more.
     */
    uint32_t swiglu;
    struct cu_act gated;
};

/* Whether the weight is of a kind that cu_stream_run() takes with so many terms. */
int cu_stream_takes(const struct cu_weight *w, uint32_t n_term);
/* Up to CU_STREAM_ROWS rows; all weights of one format that cu_stream_takes(). */
void cu_stream_run(cudaStream_t s, const struct cu_stream *k, const struct cu_act *x, uint32_t n_row);
cudaError_t cu_stream_setup(void); /* only where tiled kernels run */

void cu_stream_q4(cudaStream_t s, const struct cu_stream *k, const struct cu_act *x, uint32_t n_row);
void cu_stream_bf16(cudaStream_t s, const struct cu_stream *k, const struct cu_act *x, uint32_t n_row);
cudaError_t cu_stream_setup_q4(void);
cudaError_t cu_stream_setup_bf16(void);

#ifdef __cplusplus
}
#endif
#endif
