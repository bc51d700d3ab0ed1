/*
 * Products with f32, bf16 and f16 weights for avx2; see dense_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx2.h"

#include "kernels/x86/dense_body.h"
#include "kernels/x86/parts.h"

void esp_dense_init_avx2(struct esp_kernels *k)
{
    dense_init(k);
}
