/*
 * The gated delta rule for AVX2; see delta_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx2.h"

#include "kernels/x86/delta_body.h"
#include "kernels/x86/parts.h"

void esp_delta_init_avx2(struct esp_kernels *k)
{
    delta_init(k);
}
