/*
 * The reference level: every entry of the table, one file a theme.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/levels.h"

#include "kernels/ref/ref.h"

void esp_kernels_init_ref(struct esp_kernels *k)
{
    static const struct esp_path paths[] = {{"scalar", ESP_SHAPE_ANY, 1}, {NULL, ESP_SHAPE_ANY, 0}};

    esp_ref_init_linear(k);
    esp_ref_init_trellis(k); /* after linear, which fills every entry */
    for (int f = 0; f < ESP_FORMAT_COUNT; f++) {
        for (int a = 0; a < ESP_ACT_COUNT; a++)
            k->linear[f][a].paths = paths;
    }
    esp_ref_init_norm(k);
    esp_ref_init_conv(k);
    esp_ref_init_delta(k);
    esp_ref_init_attend(k);
    esp_ref_init_vec(k);
}
