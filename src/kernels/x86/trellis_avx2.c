/*
 * Products with trellis weights for AVX2; see trellis_body.h and trellis_tiles.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx2.h"

#include "kernels/x86/trellis_avx2.h"

#define T_ROWS 2 /* 8 accumulators of 16 registers */

#include "kernels/x86/parts.h"
#include "kernels/x86/trellis_tiles.h"

void esp_trellis_init_avx2(struct esp_kernels *k)
{
    trellis_init(k);
}
