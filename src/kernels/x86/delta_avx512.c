/*
 * The gated delta rule for AVX-512; see delta_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx512.h"

#include "kernels/x86/delta_body.h"
#include "kernels/x86/parts.h"

void esp_delta_init_avx512(struct esp_kernels *k)
{
    delta_init(k);
}
