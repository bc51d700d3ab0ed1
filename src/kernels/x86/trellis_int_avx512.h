/*
 * The integer product of trellis_avx512vbmi.c, which takes few rows for trellis_avx512amx.c as well.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_TRELLIS_INT_AVX512_H
#define ESP_KERNELS_X86_TRELLIS_INT_AVX512_H

#include "kernels/kernels.h"

/* kernels.h, product; rows of one term and of two. */
void esp_trellis_int_avx512vbmi(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                                uint32_t o1, float *y, size_t ldy);

#endif
