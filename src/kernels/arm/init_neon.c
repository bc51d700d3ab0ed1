/*
 * The NEON level, put together from its themes. What no theme sets stays the reference.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/arm/parts.h"
#include "kernels/levels.h"

void esp_kernels_init_neon(struct esp_kernels *k)
{
    esp_trellis_init_neon(k);
    esp_affine_init_neon(k);
    esp_dense_init_neon(k);
    esp_rows_init_neon(k);
    esp_attend_init_neon(k);
}
