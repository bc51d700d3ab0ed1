/*
 * What each CPU level's files offer to esp_kernels_init(): overrides of table entries. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_LEVELS_H
#define ESP_KERNELS_LEVELS_H

#include "kernels/kernels.h"

/* As esp_kernels_init() without the optional extensions of a level (BF16), so that kcheck sees both. */
void esp_kernels_init_plain(struct esp_kernels *k, enum esp_cpu_level level);

void esp_kernels_init_ref(struct esp_kernels *k);
#if defined(__x86_64__)
void esp_kernels_init_avx2(struct esp_kernels *k);
void esp_kernels_init_avx512(struct esp_kernels *k); /* needs F, BW, DQ, VL, VNNI */
void esp_kernels_init_avx512bf16(struct esp_kernels *k);
void esp_kernels_init_avx512vbmi(struct esp_kernels *k);
void esp_kernels_init_amx(struct esp_kernels *k);
#endif
#if defined(__aarch64__)
void esp_kernels_init_neon(struct esp_kernels *k);
#endif

#endif
