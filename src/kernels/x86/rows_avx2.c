/*
 * Norms, elementwise work, convolution, conversions and searches for AVX2; see rows_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx2.h"

#include "kernels/x86/rows_body.h"
#include "kernels/x86/parts.h"

void esp_rows_init_avx2(struct esp_kernels *k)
{
    rows_init(k);
}
