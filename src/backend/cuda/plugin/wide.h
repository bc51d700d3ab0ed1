/*
 * Products of many rows on devices with warpgroup matrix instructions (compute capability 9.0, code for 90a),
 * and the order in which they read activations: what a stage of the kernel copies to shared memory lies in
 * one piece, already as the instruction wants it there.
 *
 *   A term is cut into tiles of 128 rows times 64 inputs, 16 KB: row blocks outermost, a line of 128 bytes a
 * row, the 16-byte chunks of a line exchanged by row % 8 (the 128-byte swizzle). Within a block of 32 inputs
 * an input's place is that which it has in the steps of mma.m16n8k16 of linear.cuh: input 8 t + 4 s + 2 h + e
 * lies at 16 s + 8 h + 2 t + e.
 *   sums: for each tile three rows of 128 floats: of its 64 inputs, of the first 32, of the last 32. In a row
 * those that a lane needs for its columns are 16 bytes each, without bank conflicts: cu_wide_place().
 *   Coded weights' sums are [row], as ever.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_WIDE_H
#define ESP_BACKEND_CUDA_PLUGIN_WIDE_H

#include "backend/cuda/plugin/coded.h"
#include "backend/cuda/plugin/kernels.h"

enum {
    CU_WIDE_ROWS = 128,
    CU_WIDE_TILE = CU_WIDE_ROWS * 128, /* bytes */
    CU_WIDE_SUMS = 3 * CU_WIDE_ROWS,   /* floats of a tile */
    CU_WIDE_BLOCK = 8,                 /* tiles of 16 outputs of a block */
    CU_WIDE_SHARED = 227 * 1024        /* bytes of shared memory that the kernels take at most */
};

/* Byte of a term at which the line of row and input k begins. */
CU_BOTH size_t cu_wide_line(uint32_t ld, uint32_t row, uint32_t k)
{
    return ((size_t)(row / CU_WIDE_ROWS) * (ld / 64) + k / 64) * CU_WIDE_TILE + row % CU_WIDE_ROWS * 128;
}

/* Byte in the line of inputs k + 2 i and k + 2 i + 1; k is a multiple of 8. */
CU_BOTH uint32_t cu_wide_word(uint32_t row, uint32_t k, uint32_t i)
{
    return ((k & 32) * 2 + i * 16 + (k >> 3 & 3) * 4) ^ ((row & 7) << 4);
}

CU_BOTH uint32_t cu_wide_place(uint32_t row)
{
    const uint32_t j = row >> 3 & 15, t = row >> 1 & 3;

    return t * 32 + ((j >> 1 ^ t) << 2) + (j & 1) * 2 + (row & 1);
}

/* The float at which the sum of row over the 64 inputs from k on lies. */
CU_BOTH size_t cu_wide_sum(uint32_t ld, uint32_t row, uint32_t k)
{
    return ((size_t)(row / CU_WIDE_ROWS) * (ld / 64) + k / 64) * CU_WIDE_SUMS + cu_wide_place(row);
}

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Activations in wide order; coded weights as values (cu_expand()) of a range of tiles. n_split: 1, or n_part
 * of the weights, and then sums of parts go to l->parts, [weight][part][n_row][n_out], counted from the first
 * weight that has some. Not so of the first n_whole items, two blocks times CU_WIDE_ROWS rows each: their
 * parts are added on the spot.
 */
void cu_wide_bf16(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row,
                  uint32_t n_split, uint32_t n_whole);
void cu_wide_values(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row,
                    uint32_t n_split, uint32_t n_whole);
void cu_wide_q2(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row,
                uint32_t n_split, uint32_t n_whole);
void cu_wide_q4(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row,
                uint32_t n_split, uint32_t n_whole);
void cu_wide_q8(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row,
                uint32_t n_split, uint32_t n_whole);
cudaError_t cu_wide_setup_bf16(void);
cudaError_t cu_wide_setup_values(void);
cudaError_t cu_wide_setup_q2(void);
cudaError_t cu_wide_setup_q4(void);
cudaError_t cu_wide_setup_q8(void);
cudaError_t cu_wide_setup(void); /* all of them */
/* Whether this build has these kernels for the current device, which is of compute capability 9.0. */
int cu_wide_known(void);

#ifdef __cplusplus
}
#endif
#endif
