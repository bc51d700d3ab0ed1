/*
 * Products with trellis weights for AVX-512 with VNNI; see trellis_body.h and trellis_tiles.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx512.h"

#include "kernels/x86/trellis_avx512.h"

#define T_ROWS 4 /* 16 accumulators of 32 registers */

#include "kernels/x86/parts.h"
#include "kernels/x86/trellis_tiles.h"

void esp_trellis_init_avx512vnni(struct esp_kernels *k)
{
    trellis_init(k);
}
