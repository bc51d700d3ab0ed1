/*
 * Running a test on the kernel table of every CPU level that this machine has.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_KERNELS_EACH_LEVEL_H
#define ESP_TESTS_KERNELS_EACH_LEVEL_H

#include "support/support.h"

#include "kernels/kernels.h"

static inline void each_level(void (*test)(const struct esp_kernels *k))
{
    for (int i = 0; i < ESP_CPU_LEVEL_COUNT; i++) {
        enum esp_cpu_level level;
        struct esp_kernels k;

        if (esp_cpu_level_parse(&level, esp_cpu_level_name((enum esp_cpu_level)i), NULL) != ESP_OK)
            continue;
        esp_kernels_init(&k, level);
        test(&k);
    }
}

#endif
