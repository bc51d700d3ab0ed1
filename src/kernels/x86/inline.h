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

#endif
