/*
 * The x86 levels, put together from their themes.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/levels.h"
#include "kernels/x86/parts.h"

void esp_kernels_init_avx512vbmi(struct esp_kernels *k)
{
    esp_trellis_init_avx512vbmi(k);
}

void esp_kernels_init_amx(struct esp_kernels *k)
{
    esp_affine_int_init_avx512amx(k);
    esp_trellis_init_avx512amx(k);
    esp_peak_init_avx512amx(k);
}

void esp_kernels_init_avx2(struct esp_kernels *k)
{
    esp_dense_init_avx2(k);
    esp_affine_f32_init_avx2(k);
    esp_affine_int_init_avx2(k);
    esp_trellis_init_avx2(k);
    esp_rows_init_avx2(k);
    esp_delta_init_avx2(k);
    esp_attend_init_avx2(k);
    esp_attend_kv_init_avx2(k);
    esp_kv_encode_init_avx2(k);
    esp_peak_init_avx2(k);
}

void esp_kernels_init_avx512(struct esp_kernels *k)
{
    esp_dense_init_avx512(k);
    esp_affine_f32_init_avx512(k);
    esp_affine_int_init_avx512vnni(k);
    esp_trellis_init_avx512vnni(k);
    esp_rows_init_avx512(k);
    esp_delta_init_avx512(k);
    esp_attend_init_avx512(k);
    esp_attend_kv_init_avx512vnni(k);
    esp_kv_encode_init_avx512(k);
    esp_peak_init_avx512vnni(k);
}
