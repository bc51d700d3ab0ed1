/*
 * Attention over cached spans for AVX2; see attend_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx2.h"

#include "kernels/x86/attend_body.h"
#include "kernels/x86/parts.h"

void esp_attend_init_avx2(struct esp_kernels *k)
{
    attend_init(k);
}
