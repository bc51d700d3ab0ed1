/*
 * What the two files of integer products with affine weights share, affine_int_avx512vnni.c and
 * affine_int_avx512amx.c: prepared rows, and the products for few rows with their list of tiles. Included
 * after strip_avx512.h.
 *
 * Prepared row: steps s [n_group, padded to 16], s * (sum of the group's codes) [same], then for each group
 * its q1, a byte an input, and with two terms its q2.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_AFFINE_INT_AVX512_H
#define ESP_KERNELS_X86_AFFINE_INT_AVX512_H

#include "kernels/x86/strip_avx512.h"

/* An odd number of cache lines, so that the rows of a tile do not share the sets of a cache. */
V_INLINE size_t int_bytes(uint32_t n_in, uint32_t group, int terms)
{
    return pad_to(8 * pad_to(n_in / group, VW) + (size_t)terms * n_in, 64) | 64;
}

/* Products by VNNI for any number of rows, of one and of two terms; kernels.h, product. */
void esp_affine_int8_avx512vnni(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                                uint32_t o1, float *y, size_t ldy);
void esp_affine_int8x2_avx512vnni(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                                  uint32_t o1, float *y, size_t ldy);
/* strip_pack_run() of any width of code. */
uint8_t *esp_strip_pack_run_avx512vnni(const struct esp_weight *w, uint32_t o, uint32_t n_out, size_t i0,
                                       size_t n, uint8_t *out);

#define STRIP_TILES(shape, how)                                                                              \
    {"strips of 32 outputs" how ", tile of 1 row", shape, 1},                                                \
        {"strips of 32 outputs" how ", tile of 2 rows", shape, 2},                                           \
        {"strips of 32 outputs" how ", tile of 3 rows", shape, 3},                                           \
    {                                                                                                        \
        "strips of 32 outputs" how ", tile of 4 rows", shape, 4                                              \
    }
#define STRIP_TILE_8(shape, how)                                                                             \
    {                                                                                                        \
        "strips of 32 outputs" how ", tile of 8 rows", shape, 8                                              \
    }
#define ON_THE_WAY ", packed on the way"
/* The tiles of one term, and of two. */
#define STRIP_INT8_PATHS                                                                                     \
    STRIP_TILES(ESP_SHAPE_PACKED, ""), STRIP_TILE_8(ESP_SHAPE_PACKED, ""),                                   \
        STRIP_TILES(ESP_SHAPE_STORED, ON_THE_WAY), STRIP_TILE_8(ESP_SHAPE_STORED, ON_THE_WAY)
#define STRIP_INT8X2_PATHS STRIP_TILES(ESP_SHAPE_PACKED, ""), STRIP_TILES(ESP_SHAPE_STORED, ON_THE_WAY)

#endif
