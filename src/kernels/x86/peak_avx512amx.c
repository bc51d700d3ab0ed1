/*
 * Arithmetic peak of AMX tiles: byte products on four sums from registers.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/amx.h"
#include "kernels/x86/peak.h"

static void int8(uint32_t rounds)
{
    amx_configure(AMX_ROWS, AMX_ROWS, AMX_ROW_BYTES);
    for (uint32_t i = 0; i < rounds; i++) {
        amx_dot_su(0, 4, 6);
        amx_dot_su(1, 4, 7);
        amx_dot_su(2, 5, 6);
        amx_dot_su(3, 5, 7);
    }
    amx_release();
}

void esp_peak_init_avx512amx(struct esp_kernels *k)
{
    const uint32_t ops = AMX_SUMS * 2 * 16 * 16 * 64;

    k->peak[ESP_ACT_INT8X2] = (struct esp_peak){int8, ops / 2};
    k->peak[ESP_ACT_INT8] = (struct esp_peak){int8, ops};
}
