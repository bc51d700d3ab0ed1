/*
 * The themes that make up the NEON level: each sets its entries of the table. Private to this folder.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_ARM_PARTS_H
#define ESP_KERNELS_ARM_PARTS_H

#include "kernels/kernels.h"

void esp_trellis_init_neon(struct esp_kernels *k);
void esp_affine_init_neon(struct esp_kernels *k);
void esp_dense_init_neon(struct esp_kernels *k);
void esp_rows_init_neon(struct esp_kernels *k);
void esp_attend_init_neon(struct esp_kernels *k);

#endif
