/*
 * The tile instructions of AMX, as text. The compilers' own names for them do not say which memory an
 * instruction reads and writes: GCC 12 drops stores to a configuration behind its first 8 bytes, and moves
 * stores to a tile's rows behind the load. Here a load and a store of a tile order all memory around them,
 * and the configuration is an operand as a whole.
 *
 * A product of tiles: C [rows][16] of 32 bits += A [rows][4 K bytes] times B [K][16] words of 4 bytes, so
 * that byte j of row k of B belongs to input 4k + j / 16 of lane j / 4. The eight tiles are used alike
 * everywhere: 0 to 3 are sums, 4 and 5 rows of activations, 6 and 7 weights; sum 2a + b is of A 4 + a and B
 * 6 + b.
 *
 * Tiles live from amx_configure() to amx_release(), which every product ends with, so that no thread is
 * switched with tiles in it for longer than it multiplies.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_AMX_H
#define ESP_KERNELS_X86_AMX_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/x86/inline.h"

enum {
    AMX_ROWS = 16,       /* rows of a tile */
    AMX_ROW_BYTES = 64,  /* of a full row */
    AMX_LANES = 16,      /* words of a full row */
    AMX_TILE = 16 * 64,  /* bytes */
    AMX_WORDS = 16 * 16, /* sums of a tile */
    AMX_SUMS = 4,        /* tiles of sums */
};

/* Operand of ldtilecfg, palette 1. */
struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

_Static_assert(sizeof(struct amx_config) == 64, "the instruction reads 64 bytes");

#define AMX_TEXT_(x)   #x
#define AMX_TEXT(x)    AMX_TEXT_(x)
#define amx_zero(tile) __asm__ volatile("tilezero %%tmm" AMX_TEXT(tile)::)
#define amx_load(tile, p, stride)                                                                            \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" AMX_TEXT(tile)::"r"((const void *)(p)),                    \
                     "r"((size_t)(stride))                                                                   \
                     : "memory")
#define amx_store(tile, p)                                                                                   \
    __asm__ volatile("tilestored %%tmm" AMX_TEXT(tile) ", (%0,%1,1)" ::"r"((void *)(p)),                     \
                     "r"((size_t)AMX_ROW_BYTES)                                                              \
                     : "memory")
/* sum += a times b: signed bytes of a, unsigned or signed bytes of b; pairs of bf16. */
#define amx_dot_su(sum, a, b)                                                                                \
    __asm__ volatile("tdpbsud %%tmm" AMX_TEXT(b) ", %%tmm" AMX_TEXT(a) ", %%tmm" AMX_TEXT(sum)::)
#define amx_dot_ss(sum, a, b)                                                                                \
    __asm__ volatile("tdpbssd %%tmm" AMX_TEXT(b) ", %%tmm" AMX_TEXT(a) ", %%tmm" AMX_TEXT(sum)::)
#define amx_dot_bf16(sum, a, b)                                                                              \
    __asm__ volatile("tdpbf16ps %%tmm" AMX_TEXT(b) ", %%tmm" AMX_TEXT(a) ", %%tmm" AMX_TEXT(sum)::)

/* Tiles 4 and 5 of n0 and n1 rows, k_bytes each row (a multiple of 4); n1 may be 0, then tile 5 and its sums
 * are not to be used. All tiles become zero. */
V_INLINE void amx_configure(uint32_t n0, uint32_t n1, uint32_t k_bytes)
{
    struct amx_config c;

    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int i = 0; i < AMX_SUMS; i++) {
        c.rows[i] = (uint8_t)(i < 2 ? n0 : n1 ? n1 : 1);
        c.row_bytes[i] = AMX_ROW_BYTES;
    }
    for (int i = 0; i < 2; i++) {
        c.rows[4 + i] = c.rows[2 * i];
        c.row_bytes[4 + i] = (uint16_t)k_bytes;
        c.rows[6 + i] = (uint8_t)(k_bytes / 4);
        c.row_bytes[6 + i] = AMX_ROW_BYTES;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(c));
}

/* Tiles 0 and 1, and with second 2 and 3, one behind the other. */
V_INLINE void amx_store_sums(int second, int32_t *out)
{
    amx_store(0, out);
    amx_store(1, out + AMX_WORDS);
    if (second) {
        amx_store(2, out + 2 * AMX_WORDS);
        amx_store(3, out + 3 * AMX_WORDS);
    }
}

V_INLINE void amx_release(void)
{
    __asm__ volatile("tilerelease" ::);
}

#endif
