/*
 * Coding keys and values is the same on every CPU level, byte for byte and count for count: random rows, all
 * bit patterns, constant and offset groups, zeros of both signs, subnormals, numbers that need repair.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"

static const char *const schemes[] = {"q8",
                                      "q8:g32",
                                      "q6:g128",
                                      "q6:g32",
                                      "q4",
                                      "q4:g32",
                                      "q4:g128",
                                      "turbo:k8v3",
                                      "turbo:k8v2",
                                      "turbo:k5v4",
                                      "turbo:k4v5",
                                      "turbo:k2v8",
                                      "turbo:k4v4",
                                      "turbo:k4v3",
                                      "turbo:k8v3:own",
                                      "turbo:k8v8:own",
                                      "turbo:k5v5:least",
                                      "turbo:k2v2:least"};
enum { N_SCHEME = sizeof schemes / sizeof schemes[0] };

static uint64_t rng = 11;

static uint32_t next(void)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 32);
}

static float uniform(void)
{
    return (float)(next() >> 8) * 0x1p-24f;
}

static float any_bits(void)
{
    const uint32_t u = next();
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

/* One way of filling for each group of 32. */
static void fill(float *x, uint32_t d)
{
    for (uint32_t g = 0; g < d; g += 32) {
        const uint32_t kind = next() % 12;
        const float scale = exp2f((float)(next() % 40) - 24), offset = kind == 3 ? 300 * scale : 0;

        for (uint32_t i = g; i < g + 32 && i < d; i++) {
            x[i] = (uniform() + uniform() + uniform() - 1.5f) * scale + offset;
            if (kind == 0)
                x[i] = any_bits();
            if (kind == 1)
                x[i] = next() % 2 ? 0.0f : -0.0f;
            if (kind == 2)
                x[i] = scale; /* constant */
            if (kind == 4)
                x[i] = fabsf(x[i]) * (float)(next() % 2); /* begins at zero */
            if (kind == 5)
                x[i] = (float)(int)(x[i] / scale * 8) * scale; /* ties */
        }
    }
}

static void check(const struct esp_kernels *k, const char *name, uint32_t d, int n)
{
    struct esp_kv_scheme s;
    esp_error err;

    test_ok(esp_kv_parse(&s, name, &err), &err);
    if (esp_kv_check(&s, d, &err) != ESP_OK)
        return;
    for (int i = 0; i < n; i++)
        for (int which = 0; which < 2; which++) {
            const size_t bytes = which ? esp_kv_value_bytes(&s, d) : esp_kv_key_bytes(&s, d);
            uint8_t *want = malloc(bytes), *got = malloc(bytes); /* exactly: writes behind them are found */
            float *x = malloc(d * sizeof *x);
            uint32_t a, b;

            fill(x, d);
            memset(got, 0xa5, bytes);
            a = which ? esp_kv_encode_value(&s, d, x, want) : esp_kv_encode_key(&s, d, x, want);
            b = k->kv_encode[which](&s, d, x, got);
            if (a != b || memcmp(want, got, bytes) != 0)
                fail_msg("%s, %s of %u on %s, row %d: %u and %u repaired, or other bytes", name,
                         which ? "values" : "keys", d, k->isa, i, a, b);
            free(want);
            free(got);
            free(x);
        }
}

static void test_levels(void **state)
{
    static const uint32_t dims[] = {64, 96, 128, 256, 512};
    const char *rows = getenv("ESPALIER_FUZZ_ROWS");
    const int n = rows ? (int)strtol(rows, NULL, 10) : TEST_SANITIZED ? 10 : 60;

    (void)state;
    for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++) {
        enum esp_cpu_level l;
        struct esp_kernels k;

        if (esp_cpu_level_parse(&l, esp_cpu_level_name((enum esp_cpu_level)level), NULL) != ESP_OK)
            continue; /* not here */
        esp_kernels_init(&k, l);
        for (int s = 0; s < N_SCHEME; s++)
            for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++)
                check(&k, schemes[s], dims[d], n);
    }
}

/* ESPALIER_BENCH=1: nanoseconds of a row of 256 on every level. */
static void test_speed(void **state)
{
    static float x[64][256];
    static uint8_t row[ESP_KV_ROW_MAX];

    (void)state;
    if (!getenv("ESPALIER_BENCH"))
        return;
    for (int i = 0; i < 64 * 256; i++)
        x[i / 256][i % 256] = uniform() + uniform() - 1;
    for (int s = 0; s < N_SCHEME; s++) {
        printf("%-18s", schemes[s]);
        for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++) {
            struct esp_kv_scheme scheme;
            enum esp_cpu_level l;
            struct esp_kernels k;

            if (esp_cpu_level_parse(&l, esp_cpu_level_name((enum esp_cpu_level)level), NULL) != ESP_OK ||
                esp_kv_parse(&scheme, schemes[s], NULL) != ESP_OK)
                continue;
            esp_kernels_init(&k, l);
            printf("  %s", k.isa);
            for (int which = 0; which < 2; which++) {
                double best = 1e9;

                for (int round = 0; round < 20; round++) {
                    struct timespec a, b;

                    clock_gettime(CLOCK_MONOTONIC, &a);
                    for (int i = 0; i < 64; i++)
                        k.kv_encode[which](&scheme, 256, x[i], row);
                    clock_gettime(CLOCK_MONOTONIC, &b);
                    best = fmin(best, (double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec));
                }
                printf(" %6.0f", best / 64);
            }
        }
        printf("\n");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_levels), cmocka_unit_test(test_speed)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
