/*
 * The trellis encoder against reference paths and errors, on every CPU level of this machine.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "formats/format.h"
#include "quantize/encode_parts.h"

enum { N_BLOCK = 64, T = 256, N = N_BLOCK * T };

static const char DIR[] = "tests/data/vectors/trellis/";

static float input[N];
static uint16_t states[N], want[N];
static float values[N];

static void *read_all(const char *name, void *out, size_t bytes)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof path, "%s%s", DIR, name);
    f = fopen(test_path(path), "rb");
    assert_non_null(f);
    assert_int_equal(fread(out, 1, bytes, f), bytes);
    fclose(f);
    return out;
}

static struct esp_encoder *make(uint32_t n_thread, enum esp_cpu_level level, struct esp_pool **pool)
{
    struct esp_encoder *e = NULL;
    esp_error err;

    test_ok(esp_pool_create(pool, n_thread, &err), &err);
    test_ok(esp_encoder_create(&e, *pool, level, &err), &err);
    return e;
}

static void drop(struct esp_encoder *e, struct esp_pool *pool)
{
    esp_encoder_destroy(e);
    esp_pool_destroy(pool);
}

static void encode(struct esp_encoder *e, uint32_t k, enum esp_search search, const float *u,
                   uint32_t n_block)
{
    const struct esp_encode_rows job = {.k = k,
                                        .search = search,
                                        .n_row = n_block,
                                        .n_col = T,
                                        .u = u,
                                        .ld = T,
                                        .states = states,
                                        .values = values};
    esp_error err;

    test_ok(esp_encode_rows(e, &job, &err), &err);
}

static bool level_here(enum esp_cpu_level level)
{
    enum esp_cpu_level l;

    return esp_cpu_level_parse(&l, esp_cpu_level_name(level), NULL) == ESP_OK;
}

static int32_t y_of(uint32_t s)
{
    const uint32_t x = s * 34038481u + 76625530u;

    return (int32_t)((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24)) - 510;
}

/* Successor rule all around, values of states, and the mean squared error. */
static double checked_mse(uint32_t k, const float *u, uint32_t n_block)
{
    double sum = 0;

    for (size_t b = 0; b < n_block; b++)
        for (size_t t = 0; t < T; t++) {
            const uint32_t s = states[b * T + t], next = states[b * T + (t + 1) % T];
            const float v = values[b * T + t];

            assert_true(s < 4096);
            if (((s << k) & 4095 & ~((1u << k) - 1)) != (next & ~((1u << k) - 1)))
                fail_msg("k %u block %zu t %zu: %u does not lead to %u", k, b, t, s, next);
            assert_true(v == (float)y_of(s) / 147.800537109375f);
            sum += ((double)u[b * T + t] - v) * ((double)u[b * T + t] - v);
        }
    return sum / ((double)n_block * T);
}

static double summary(uint32_t k, const char *field)
{
    char key[16];
    json_t *j = test_json("tests/data/vectors/trellis/enc_summary.json");
    double v;

    snprintf(key, sizeof key, "%u", k);
    v = json_number_value(json_object_get(json_object_get(json_object_get(j, "k"), key), field));
    assert_true(v > 0);
    json_decref(j);
    return v;
}

static void test_mse(void **state)
{
    (void)state;
    read_all("enc_input_64x256.f32le", input, sizeof input);
    for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++) {
        struct esp_pool *pool;
        struct esp_encoder *e;

        if (!level_here((enum esp_cpu_level)level))
            continue;
        e = make(1, (enum esp_cpu_level)level, &pool);
        for (uint32_t k = 1; k <= 4; k++)
            for (int search = 0; search < ESP_SEARCH_COUNT; search++) {
                const double two_pass = summary(k, "mean_mse_two_pass"), opt = summary(k, "mean_mse_opt");
                double mse;

                if (search == ESP_SEARCH_F32 && level != 0)
                    continue;
                encode(e, k, (enum esp_search)search, input, N_BLOCK);
                mse = checked_mse(k, input, N_BLOCK);
                printf("%s k %u search %d: mse %.6f, %+.3f %% of two passes\n",
                       esp_cpu_level_name((enum esp_cpu_level)level), k, search, mse,
                       100 * (mse / two_pass - 1));
                assert_true(mse >= opt * (1 - 1e-9));
            }
        drop(e, pool);
    }
}

/* Every level computes the same paths as the scalar reference, for all k, with targets from tame to absurd.
 */
static void test_levels_agree(void **state)
{
    static const float gains[] = {1, 0.01f, 3, 1e4f};

    (void)state;
    read_all("enc_input_64x256.f32le", input, sizeof input);
    for (size_t g = 0; g < sizeof gains / sizeof *gains; g++)
        for (uint32_t k = 1; k <= 8; k++) {
            static float u[8 * T];

            for (size_t i = 0; i < 8 * T; i++)
                u[i] = input[i] * gains[g];
            for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++) {
                struct esp_pool *pool;
                struct esp_encoder *e;

                if (!level_here((enum esp_cpu_level)level))
                    continue;
                e = make(1, (enum esp_cpu_level)level, &pool);
                encode(e, k, ESP_SEARCH_WINDOW, u, 8);
                checked_mse(k, u, 8);
                if (level == 0)
                    memcpy(want, states, sizeof want);
                else
                    assert_memory_equal(states, want, 8 * T * sizeof *states);
                drop(e, pool);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mse),
        cmocka_unit_test(test_levels_agree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
