/*
 * The arithmetic peaks beside which kcheck sets integer products: byte dot products of AVX-512 VNNI and
 * byte products of AMX tiles from registers alone, by the kernels' own loops (kernels.h, peak), and the
 * latter with each step's four tiles loaded from the first-level cache, which is the most that a matrix
 * product by blocks of two by two tiles can do.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kcheck.h"

#include "kernels/kernels.h"

enum { ROUNDS = 4096 };

static void run_peak(void *ctx)
{
    const struct esp_peak *p = ctx;

    p->run(ROUNDS);
}

/* GFLOP/s of one int8 term at a level, 0 where the machine does not have it. */
static double int8_peak(const char *name)
{
    static struct esp_kernels k;
    enum esp_cpu_level level;

    if (esp_cpu_level_parse(&level, name, NULL) != ESP_OK)
        return 0;
    esp_kernels_init(&k, level);
    return (double)k.peak[ESP_ACT_INT8].ops * ROUNDS / kc_time(run_peak, &k.peak[ESP_ACT_INT8]) * 1e-9;
}

double kc_dot_peak(void)
{
    return int8_peak("avx512");
}

#if defined(__x86_64__)
#include "kernels/x86/amx.h"

enum { TILE_STEPS = ROUNDS, STEP_OPS = AMX_SUMS * 2 * 16 * 16 * 64 };

#define TILES __attribute__((target("amx-tile,amx-int8")))

TILES static void tiles_from_cache(void *ctx)
{
    enum { STEPS = 8 }; /* whose tiles take 32 KiB */
    const uint8_t *p = ctx;

    amx_configure(AMX_ROWS, AMX_ROWS, AMX_ROW_BYTES);
    for (int i = 0; i < TILE_STEPS; i++) {
        const uint8_t *at = p + (size_t)(i % STEPS) * 4 * AMX_TILE;

        amx_load(6, at, AMX_ROW_BYTES);
        amx_load(4, at + AMX_TILE, AMX_ROW_BYTES);
        amx_dot_su(0, 4, 6);
        amx_load(7, at + 2 * AMX_TILE, AMX_ROW_BYTES);
        amx_dot_su(1, 4, 7);
        amx_load(5, at + 3 * AMX_TILE, AMX_ROW_BYTES);
        amx_dot_su(2, 5, 6);
        amx_dot_su(3, 5, 7);
    }
    amx_release();
}

void kc_tile_peak(double peak[2])
{
    static uint8_t tiles[32 * AMX_TILE] __attribute__((aligned(64)));
    enum esp_cpu_level level;

    peak[0] = int8_peak("amx");
    peak[1] = 0;
    if (esp_cpu_level_parse(&level, "amx", NULL) != ESP_OK)
        return;
    peak[1] = (double)TILE_STEPS * STEP_OPS / kc_time(tiles_from_cache, tiles) * 1e-9;
}

#else

void kc_tile_peak(double peak[2])
{
    peak[0] = peak[1] = 0;
}

#endif
