/*
 * Products with trellis weights for AVX-512 with VBMI, whose multishift takes sixteen windows of up to 3 bits
 * a weight out of 64 bits at once; otherwise as trellis_avx512vnni.c.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx512.h"

#include "kernels/x86/trellis_avx512.h"

#define T_ROWS 4 /* 16 accumulators of 32 registers */

#include "kernels/x86/parts.h"
#include "kernels/x86/trellis_int_avx512.h"
#include "kernels/x86/trellis_tiles.h"

void esp_trellis_init_avx512vbmi(struct esp_kernels *k)
{
    trellis_init(k);
}

void esp_trellis_int_avx512vbmi(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                                uint32_t o1, float *y, size_t ldy)
{
    t_product_int(w, act, n_row, o0, o1, y, ldy);
}
