/*
 * Attention over spans of coded keys and values for AVX-512 with VNNI; see attend_kv_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx512.h"

#include "kernels/x86/kv_codes_avx512.h"

#include "kernels/x86/attend_kv_many.h"
#include "kernels/x86/parts.h"

void esp_attend_kv_init_avx512vnni(struct esp_kernels *k)
{
    k->attend_codes = attend_codes;
    k->int8_codes = true;
}
