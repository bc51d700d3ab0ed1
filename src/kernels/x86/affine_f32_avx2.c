/*
 * Products of affine weights with f32 activations for AVX2; see affine_f32_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx2.h"

#include "kernels/x86/codes_avx2.h"

#include "kernels/x86/affine_f32_body.h"
#include "kernels/x86/parts.h"

void esp_affine_f32_init_avx2(struct esp_kernels *k)
{
    affine_f32_init(k);
}
