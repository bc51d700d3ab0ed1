/*
 * Arithmetic peaks of AVX-512 with VNNI: multiply-adds of f32, and byte dot products, of which two terms
 * need two.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/peak.h"

#include <immintrin.h>

#define FMA(s)  __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(s) : "v"(a), "v"(a))
#define DOTS(s) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(s) : "v"(a), "v"(a))

static void f32(uint32_t rounds)
{
    const __m512 a = _mm512_setzero_ps();
    __m512 s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a, s8 = a, s9 = a, s10 = a, s11 = a;

    for (uint32_t r = 0; r < rounds; r++) {
        PEAK_EACH(FMA);
    }
}

static void int8(uint32_t rounds)
{
    const __m512i a = _mm512_setzero_si512();
    __m512i s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a, s8 = a, s9 = a, s10 = a, s11 = a;

    for (uint32_t r = 0; r < rounds; r++) {
        PEAK_EACH(DOTS);
    }
}

void esp_peak_init_avx512vnni(struct esp_kernels *k)
{
    k->peak[ESP_ACT_F32] = k->peak[ESP_ACT_BF16] = (struct esp_peak){f32, PEAK_SUMS * 2 * 16};
    k->peak[ESP_ACT_INT8X2] = (struct esp_peak){int8, PEAK_SUMS * 2 * 64 / 2};
    k->peak[ESP_ACT_INT8] = (struct esp_peak){int8, PEAK_SUMS * 2 * 64};
}
