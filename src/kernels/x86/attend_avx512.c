/*
 * Attention over cached spans for AVX-512; see attend_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx512.h"

#include "kernels/x86/attend_body.h"
#include "kernels/x86/parts.h"

void esp_attend_init_avx512(struct esp_kernels *k)
{
    attend_init(k);
}
