/*
 * The themes that make up a CPU level: each sets its entries of the table. Private to this folder.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_PARTS_H
#define ESP_KERNELS_X86_PARTS_H

#include "kernels/kernels.h"

void esp_dense_init_avx2(struct esp_kernels *k);
void esp_dense_init_avx512(struct esp_kernels *k);
void esp_affine_f32_init_avx2(struct esp_kernels *k);
void esp_affine_f32_init_avx512(struct esp_kernels *k);
void esp_affine_int_init_avx2(struct esp_kernels *k);
void esp_affine_int_init_avx512vnni(struct esp_kernels *k);
void esp_affine_int_init_avx512amx(struct esp_kernels *k);
void esp_trellis_init_avx2(struct esp_kernels *k);
void esp_trellis_init_avx512vnni(struct esp_kernels *k);
void esp_trellis_init_avx512vbmi(struct esp_kernels *k);
void esp_trellis_init_avx512amx(struct esp_kernels *k);
void esp_rows_init_avx2(struct esp_kernels *k);
void esp_rows_init_avx512(struct esp_kernels *k);
void esp_delta_init_avx2(struct esp_kernels *k);
void esp_delta_init_avx512(struct esp_kernels *k);
void esp_attend_init_avx2(struct esp_kernels *k);
void esp_attend_init_avx512(struct esp_kernels *k);
void esp_attend_kv_init_avx2(struct esp_kernels *k);
void esp_attend_kv_init_avx512vnni(struct esp_kernels *k);
void esp_kv_encode_init_avx2(struct esp_kernels *k);
void esp_kv_encode_init_avx512(struct esp_kernels *k);
void esp_peak_init_avx2(struct esp_kernels *k);
void esp_peak_init_avx512vnni(struct esp_kernels *k);
void esp_peak_init_avx512amx(struct esp_kernels *k);

#endif
