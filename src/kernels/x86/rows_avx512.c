/*
 * Norms, elementwise work, convolution, conversions and searches for AVX-512; see rows_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx512.h"

#include "kernels/x86/rows_body.h"
#include "kernels/x86/parts.h"

void esp_rows_init_avx512(struct esp_kernels *k)
{
    rows_init(k);
}
