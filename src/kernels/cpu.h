/*
 * Which instructions this CPU has and its operating system saves. Private to the room; others ask for a level
 * (kernels.h).
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_CPU_H
#define ESP_KERNELS_CPU_H

#include <stdbool.h>

struct esp_cpu {
    bool avx2;       /* AVX2, FMA, F16C; registers of 256 bits are saved */
    bool avx512;     /* F, BW, DQ, VL, VNNI on top; registers of 512 bits and masks are saved */
    bool avx512bf16; /* BF16 on top of that */
    bool avx512vbmi; /* beside avx512 */
    bool amx;        /* tiles, int8 and bf16, on top of all of those; the kernel lets this process use them */
    bool amx_refused; /* the CPU has them, the kernel does not let this process */
    bool neon;
};

struct esp_cpu esp_cpu_detect(void);

#endif
