/*
 * The arithmetic peaks beside which kcheck sets integer products. Byte dot products of AVX-512 VNNI on
 * registers alone, in twelve sums, enough to cover the latency of each. Byte products of AMX tiles on four
 * sums: from registers alone, and with each step's four tiles loaded from the first-level cache, which is the
 * most that a matrix product by blocks of two by two tiles can do.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kcheck.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/x86/amx.h"

enum { SUMS = 12, ROUNDS = 4096, OPS = 128 /* of one instruction: 64 multiply-adds */ };

struct peak_call {
    int32_t sum; /* keeps the work alive */
};

#define SUM(x) __asm__("vpdpbusd %2, %1, %0" : "+v"(x) : "v"(a), "v"(b)) /* as text: no compiler folds it */

__attribute__((target("avx512f,avx512vnni"))) static void dots(void *ctx)
{
    struct peak_call *call = ctx;
    const __m512i a = _mm512_set1_epi32(0x01020304), b = _mm512_set1_epi32(0x01010101);
    __m512i s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a, s8 = a, s9 = a, s10 = a, s11 = a;

    for (int r = 0; r < ROUNDS; r++) {
        SUM(s0);
        SUM(s1);
        SUM(s2);
        SUM(s3);
        SUM(s4);
        SUM(s5);
        SUM(s6);
        SUM(s7);
        SUM(s8);
        SUM(s9);
        SUM(s10);
        SUM(s11);
    }
    s0 = _mm512_add_epi32(_mm512_add_epi32(s0, s1), _mm512_add_epi32(s2, s3));
    s4 = _mm512_add_epi32(_mm512_add_epi32(s4, s5), _mm512_add_epi32(s6, s7));
    s8 = _mm512_add_epi32(_mm512_add_epi32(s8, s9), _mm512_add_epi32(s10, s11));
    s0 = _mm512_add_epi32(_mm512_add_epi32(s0, s4), s8);
    call->sum += _mm_cvtsi128_si32(_mm512_castsi512_si128(s0));
}

double kc_dot_peak(void)
{
    struct peak_call call = {0};

    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vnni"))
        return 0;
    return (double)SUMS * ROUNDS * OPS / kc_time(dots, &call) * 1e-9;
}

enum { TILE_STEPS = 4096, STEP_OPS = AMX_SUMS * 2 * 16 * 16 * 64 };

#define TILES __attribute__((target("amx-tile,amx-int8")))

TILES static void tiles_from_registers(void *ctx)
{
    (void)ctx;
    amx_configure(AMX_ROWS, AMX_ROWS, AMX_ROW_BYTES);
    for (int i = 0; i < TILE_STEPS; i++) {
        amx_dot_su(0, 4, 6);
        amx_dot_su(1, 4, 7);
        amx_dot_su(2, 5, 6);
        amx_dot_su(3, 5, 7);
    }
    amx_release();
}

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

    peak[0] = peak[1] = 0;
    if (esp_cpu_level_parse(&level, "amx", NULL) != ESP_OK)
        return;
    peak[0] = (double)TILE_STEPS * STEP_OPS / kc_time(tiles_from_registers, NULL) * 1e-9;
    peak[1] = (double)TILE_STEPS * STEP_OPS / kc_time(tiles_from_cache, tiles) * 1e-9;
}

#else

void kc_tile_peak(double peak[2])
{
    peak[0] = peak[1] = 0;
}

double kc_dot_peak(void)
{
    return 0;
}

#endif
