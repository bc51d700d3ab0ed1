/*
 * Products with f32, bf16 and f16 weights for avx512; see dense_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx512.h"

#include "kernels/x86/dense_body.h"
#include "kernels/x86/parts.h"

void esp_dense_init_avx512(struct esp_kernels *k)
{
    dense_init(k);
}
