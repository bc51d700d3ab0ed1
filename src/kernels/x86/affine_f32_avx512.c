/*
 * Products of affine weights with f32 activations for AVX-512; see affine_f32_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx512.h"

#include "kernels/x86/codes_avx512.h"

#include "kernels/x86/affine_f32_body.h"
#include "kernels/x86/parts.h"

void esp_affine_f32_init_avx512(struct esp_kernels *k)
{
    affine_f32_init(k);
}
