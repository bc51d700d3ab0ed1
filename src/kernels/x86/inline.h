/*
 * Two promises the kernel bodies need from the compiler at -O2: helpers that take constant arguments melt
 * into their callers, and loops over tile dimensions unroll, so that accumulator arrays become registers.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_INLINE_H
#define ESP_KERNELS_X86_INLINE_H

#define V_INLINE static inline __attribute__((always_inline, unused))

#if defined(__clang__)
#define V_UNROLL _Pragma("clang loop unroll(full)")
#else
#define V_UNROLL _Pragma("GCC unroll 16")
#endif

/* v is in a register from here on: else a compiler short of registers reads it from memory at every use. */
#define V_KEEP(v) __asm__("" : "+v"(v))

#include <immintrin.h>
#include <stdint.h>

/* First n of four results. By copies: a masked store may become a masked extract, which faults on lanes it
 * skips. */
V_INLINE void v_store4(float *y, __m128 v, uint32_t n)
{
    float t[4];

    if (n >= 4) {
        _mm_storeu_ps(y, v);
        return;
    }
    _mm_storeu_ps(t, v);
    for (uint32_t j = 0; j < n; j++)
        y[j] = t[j];
}

#endif
