/*
 * Where the bits of trellis-coded weights lie in device memory, and what they mean: index arithmetic that the
 * kernels, the packing and a test on the host share (tests/cuda/coded_test.c compiles it as C).
 *
 * A weight is a window of 12 bits over k bits of its own, so a lane reads a run of consecutive weights as
 * whole words and needs only the first word of its neighbour's run besides. Which weights a lane holds is
 * free, as a tensor-core operand may permute its dimensions as long as the other operand and the outputs
 * follow:
 *
 *   axis 1 (runs along the inputs)   lane (g, t) of a tile of 16 outputs holds, of rows g and g + 8 and of
 * 256 inputs (a unit), inputs 64 t .. 64 t + 63. Block b of 32 inputs, as the kernels count, is then inputs
 *       64 t + 8 b + e of the unit, e = 0 .. 7: activations are stored in that order, cu_coded_place().
 *   axis 0 (runs along the outputs)  lane (g, t) of 256 outputs (16 tiles) holds, of the inputs 8 t + e of a
 *       block of 32, outputs 32 g .. 32 g + 31. Rows g and g + 8 of tile r are outputs 32 g + 2 r and one
 * more.
 *
 * Weight t of a block of 256 begins at bit (255 - t) k, so runs count down. Source: doc/formats/trellis.md.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_CODED_H
#define ESP_BACKEND_CUDA_PLUGIN_CODED_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define CU_BOTH static __host__ __device__ __forceinline__
#else
#define CU_BOTH static inline
#endif

enum {
    CU_UNIT = 256,         /* inputs of a unit (axis 1), outputs of a super tile (axis 0) */
    CU_HALF_BASE = 0x6400, /* f16 1024, whose last place is 1 */
    CU_HALF_LESS = 0x65fe, /* f16 1534: 1024 and the 510 that a sum of bytes exceeds its code value by */
    CU_RUN1 = 64,          /* weights of a lane's run, axis 1 */
    CU_RUN0 = 32           /* and axis 0 */
};

/* ---- values ---- */

CU_BOTH uint32_t cu_coded_hash(uint32_t state)
{
    return state * 34038481u + 76625530u;
}

/* Sum of the bytes of x, plus c. */
CU_BOTH uint32_t cu_coded_sum(uint32_t x, uint32_t c)
{
#ifdef __CUDA_ARCH__
    return __dp4a(x, 0x01010101u, c);
#else
    return c + (x & 0xff) + (x >> 8 & 0xff) + (x >> 16 & 0xff) + (x >> 24);
#endif
}

/* Code values of two states as halves of a word, each f16 1024 + the sum of bytes: 1534 too much, exactly. */
CU_BOTH uint32_t cu_coded_pair(uint32_t s0, uint32_t s1)
{
    const uint32_t high = cu_coded_sum(cu_coded_hash(s1), CU_HALF_BASE);

    return cu_coded_sum(cu_coded_hash(s0), high * 65536u + CU_HALF_BASE);
}

/* 12 bits from bit o (0 .. 31) of lo on, continued in hi. */
CU_BOTH uint32_t cu_coded_window(uint32_t lo, uint32_t hi, uint32_t o)
{
    uint32_t v = lo >> o;

    if (o > 20) {
#ifdef __CUDA_ARCH__
        v = __funnelshift_r(lo, hi, o);
#else
        v |= hi << (32 - o);
#endif
    }
    return o == 20 ? v : v & 0xfff;
}

/* State of weight j of a run of n weights of k bits; run[n k / 32] is the first word of the neighbour's run.
 */
CU_BOTH uint32_t cu_coded_state(const uint32_t *run, uint32_t n, uint32_t k, uint32_t j)
{
    const uint32_t bit = (n - 1 - j) * k;

    return cu_coded_window(run[bit / 32], run[bit / 32 + 1], bit % 32);
}

/* ---- places ---- */

/* Place of input i in activations for axis 1; runs of 8 stay together. */
CU_BOTH uint32_t cu_coded_place(uint32_t i)
{
    return (i & ~255u) | (i >> 3 & 7) << 5 | (i >> 6 & 3) << 3 | (i & 7);
}

/* Output of row `row` (0 .. 15) of a tile. */
CU_BOTH uint32_t cu_coded_output(uint32_t axis, uint32_t tile, uint32_t row)
{
    if (axis)
        return tile * 16 + row;
    return (tile & ~15u) * 16 + 32 * (row & 7) + 2 * (tile & 15) + (row >> 3);
}

/* The lane whose first word continues a run of this lane. */
CU_BOTH uint32_t cu_coded_neighbour(uint32_t axis, uint32_t lane)
{
    return axis ? (lane & 28) | ((lane + 3) & 3) : (lane + 28) & 31;
}

/* Words before those of a piece: (tile, unit) for axis 1, (super tile, block of 32 inputs) for axis 0. */
CU_BOTH size_t cu_coded_base(uint32_t axis, uint32_t k, uint32_t n_quad, uint32_t tile, uint32_t at)
{
    return axis ? ((size_t)tile * (n_quad / 2) + at) * k * 128 : ((size_t)tile * n_quad * 4 + at) * k * 256;
}

/*
 * Word i of a lane's in a piece. Axis 1: 2 k words of row g, then of row g + 8. Axis 0: k words of each of 8
 * inputs.
 */
CU_BOTH uint32_t cu_coded_word(uint32_t lane, uint32_t i)
{
    return (i >> 2) * 128 + lane * 4 + (i & 3);
}

/* State of weight j of run `run` (axis 1: 0, 1; axis 0: 0 .. 7) of a lane, straight from a piece. */
CU_BOTH uint32_t cu_coded_fetch(const uint32_t *piece, uint32_t axis, uint32_t k, uint32_t lane, uint32_t run,
                                uint32_t j)
{
    const uint32_t n = axis ? CU_RUN1 : CU_RUN0, words = n * k / 32, bit = (n - 1 - j) * k, w = bit / 32;
    const uint32_t lo = piece[cu_coded_word(lane, run * words + w)];
    const uint32_t hi = w + 1 < words ? piece[cu_coded_word(lane, run * words + w + 1)]
                                      : piece[cu_coded_word(cu_coded_neighbour(axis, lane), run * words)];

    return cu_coded_window(lo, hi, bit % 32);
}

/* Where the codes of stored rows [row0, row0 + n_row) lie, in words: block b of row r (counted from row0) at
 * b / 2 * pair + r * row + b % 2 * 8 k. */
struct cu_coded_source {
    uint32_t row0, n_row; /* row0: a multiple of 16 (axis 1) or of 128 (axis 0) */
    size_t row, pair;
    const uint32_t *words;
};

/* Packed word `i` of a lane in the piece (tile, at), of the held rows; zero outside them. */
CU_BOTH uint32_t cu_coded_pack(const struct cu_coded_source *s, uint32_t axis, uint32_t k, uint32_t tile,
                               uint32_t at, uint32_t lane, uint32_t i)
{
    const uint32_t g = lane >> 2, t = lane & 3, words = (axis ? CU_RUN1 : CU_RUN0) * k / 32;
    const uint32_t row = (axis ? tile * 16 + g + 8 * (i / words) : at * 32 + 8 * t + i / words) - s->row0;
    const uint32_t block = axis ? at : tile, chunk = axis ? 3 - t : 7 - g;

    if (row >= s->n_row)
        return 0;
    return s->words[block / 2 * s->pair + row * s->row + (block & 1) * 8 * k + chunk * words + i % words];
}

#endif
