/*
 * Arithmetic peaks of AVX2: multiply-adds of f32; products of 16 bits, which serve two int8 terms at once,
 * and of 8 bits for one, each with the addition that it needs.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/peak.h"

#include <immintrin.h>

#define FMA(s) __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(s) : "x"(a), "x"(a))
#define WORDS(s)                                                                                             \
    __asm__ volatile("vpmaddwd %3, %2, %0\n\tvpaddd %0, %1, %1" : "=&x"(t), "+x"(s) : "x"(a), "x"(a))
#define BYTES(s)                                                                                             \
    __asm__ volatile("vpmaddubsw %3, %2, %0\n\tvpaddw %0, %1, %1" : "=&x"(t), "+x"(s) : "x"(a), "x"(a))

static void f32(uint32_t rounds)
{
    const __m256 a = _mm256_setzero_ps();
    __m256 s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a, s8 = a, s9 = a, s10 = a, s11 = a;

    for (uint32_t r = 0; r < rounds; r++) {
        PEAK_EACH(FMA);
    }
}

static void int8x2(uint32_t rounds)
{
    const __m256i a = _mm256_setzero_si256();
    __m256i s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a, s8 = a, s9 = a, s10 = a, s11 = a,
            t;

    for (uint32_t r = 0; r < rounds; r++) {
        PEAK_EACH(WORDS);
    }
}

static void int8(uint32_t rounds)
{
    const __m256i a = _mm256_setzero_si256();
    __m256i s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a, s8 = a, s9 = a, s10 = a, s11 = a,
            t;

    for (uint32_t r = 0; r < rounds; r++) {
        PEAK_EACH(BYTES);
    }
}

void esp_peak_init_avx2(struct esp_kernels *k)
{
    k->peak[ESP_ACT_F32] = k->peak[ESP_ACT_BF16] = (struct esp_peak){f32, PEAK_SUMS * 2 * 8};
    k->peak[ESP_ACT_INT8X2] = (struct esp_peak){int8x2, PEAK_SUMS * 2 * 16};
    k->peak[ESP_ACT_INT8] = (struct esp_peak){int8, PEAK_SUMS * 2 * 32};
}
