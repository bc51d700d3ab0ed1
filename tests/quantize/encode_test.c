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
#include <time.h>

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

/* Integer costs stay within 0.1 % of two passes in f32, at every level and with the short window. */
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
        for (uint32_t k = 1; k <= 4; k++) {
            const double two_pass = summary(k, "mean_mse_two_pass"), opt = summary(k, "mean_mse_opt");

            for (int search = 0; search < ESP_SEARCH_COUNT; search++) {
                double mse;

                if (search == ESP_SEARCH_F32 && level != 0)
                    continue;
                encode(e, k, (enum esp_search)search, input, N_BLOCK);
                mse = checked_mse(k, input, N_BLOCK);
                assert_true(mse >= opt * (1 - 1e-9));
                if (mse > two_pass * (search == ESP_SEARCH_WINDOW ? 1.001 : 1.0003))
                    fail_msg("k %u search %d: %.6f, two passes %.6f", k, search, mse, two_pass);
            }
        }
        drop(e, pool);
    }
}

/* Where two passes find the best edge, the f32 search finds the very path of the exhaustive one. */
static void test_optimal_paths(void **state)
{
    static const uint32_t least_equal[] = {0, 52, 62, 60,
                                           62}; /* of 64; 11, 0, 3, 1 edges are missed, ties differ */
    struct esp_pool *pool;
    struct esp_encoder *e = make(1, ESP_CPU_REF, &pool);

    (void)state;
    read_all("enc_input_64x256.f32le", input, sizeof input);
    for (uint32_t k = 1; k <= 4; k++) {
        char name[64];
        uint32_t n_equal = 0;

        snprintf(name, sizeof name, "enc_opt_states_k%u.u16le", k);
        read_all(name, want, sizeof want);
        encode(e, k, ESP_SEARCH_F32, input, N_BLOCK);
        for (size_t b = 0; b < N_BLOCK; b++)
            n_equal += memcmp(states + b * T, want + b * T, T * sizeof *states) == 0;
        if (n_equal < least_equal[k])
            fail_msg("k %u: %u of 64 paths are the optimal ones", k, n_equal);
        memcpy(states, want, sizeof states);
        for (size_t i = 0; i < N; i++)
            values[i] = (float)y_of(states[i]) / 147.800537109375f;
        assert_true(fabs(checked_mse(k, input, N_BLOCK) / summary(k, "mean_mse_opt") - 1) < 1e-6);
    }
    drop(e, pool);
}

/* Rows of the reference: target = w / f16(rms / alpha), errors against the optimum for that scale. */
static void test_rows(void **state)
{
    enum { COLS = 2560 };
    struct esp_pool *pool;
    struct esp_encoder *e = make(1, esp_cpu_best(), &pool);
    json_t *j = test_json("tests/data/vectors/trellis/enc_rows.json"), *c;
    size_t i;

    (void)state;
    read_all("enc_input_64x256.f32le", input, sizeof input);
    json_array_foreach(json_object_get(j, "cases"), i, c)
    {
        const uint32_t k = (uint32_t)json_integer_value(json_object_get(c, "k"));
        json_t *row;
        size_t r;

        json_array_foreach(json_object_get(c, "rows"), r, row)
        {
            const float scale = esp_f16_to_f32(
                (uint16_t)strtoul(json_string_value(json_object_get(row, "scale_f16_bits")), NULL, 16));
            const double opt = json_number_value(json_object_get(row, "rel_mse_opt"));
            static float u[COLS];
            double error = 0, power = 0;

            for (size_t n = 0; n < COLS; n++)
                u[n] = 0.02f * input[r * COLS + n] / scale;
            encode(e, k, ESP_SEARCH_WINDOW, u, COLS / T);
            checked_mse(k, u, COLS / T);
            for (size_t n = 0; n < COLS; n++) {
                const double w = 0.02f * input[r * COLS + n], d = w - (double)(scale * values[n]);

                error += d * d;
                power += w * w;
            }
            assert_true(error / power >= opt * (1 - 1e-6));
            if (error / power > opt * 1.004) /* ten blocks: a missed edge weighs more than in the mean */
                fail_msg("k %u row %zu: %.6f, optimum %.6f", k, r, error / power, opt);
        }
    }
    json_decref(j);
    drop(e, pool);
}

/* Integer costs against f32 ones on targets that a bad scale, outliers or dead rows make. */
static void test_extremes(void **state)
{
    enum { ZERO, CONSTANT, LARGE, OUTLIER, DENORMAL, HUGE, N_KIND };
    struct esp_pool *pool;
    struct esp_encoder *e = make(1, esp_cpu_best(), &pool);
    static float u[T];

    (void)state;
    read_all("enc_input_64x256.f32le", input, sizeof input);
    for (int kind = 0; kind < N_KIND; kind++)
        for (uint32_t k = 1; k <= 8; k++) {
            double exact, mse;

            for (size_t t = 0; t < T; t++)
                u[t] = kind == ZERO       ? 0
                       : kind == CONSTANT ? 1.5f
                       : kind == LARGE    ? 3 * input[t]
                       : kind == OUTLIER  ? (t == 77 ? 12.0f : input[t])
                       : kind == DENORMAL ? 1e-41f
                                          : (t % 2 ? 1e30f : -1e30f);
            encode(e, k, ESP_SEARCH_F32, u, 1);
            exact = checked_mse(k, u, 1);
            encode(e, k, ESP_SEARCH_TWO_PASS, u, 1);
            mse = checked_mse(k, u, 1);
            if (mse > exact * (k <= 4 ? 1.03 : 1.12) + 2e-5)
                fail_msg("kind %d k %u: %g, in f32 %g", kind, k, mse, exact);
        }
    drop(e, pool);
}

static void test_threads(void **state)
{
    struct esp_pool *pool;
    struct esp_encoder *e = make(1, esp_cpu_best(), &pool);
    struct esp_encode_rows job = {.k = 3, .n_row = 5, .n_col = 2560, .u = input, .ld = 2600, .states = want};
    esp_error err;

    (void)state;
    read_all("enc_input_64x256.f32le", input, sizeof input);
    test_ok(esp_encode_rows(e, &job, &err), &err);
    drop(e, pool);
    for (uint32_t n = 2; n <= 7; n += 5) {
        e = make(n, esp_cpu_best(), &pool);
        memset(states, 0xff, sizeof states);
        job.states = states;
        test_ok(esp_encode_rows(e, &job, &err), &err);
        assert_memory_equal(states, want, (size_t)5 * 2560 * sizeof *states);
        drop(e, pool);
    }
}

static void test_refusals(void **state)
{
    static const struct esp_encode_rows good = {
        .k = 3, .n_row = 2, .n_col = 512, .u = input, .ld = 512, .states = states};
    struct esp_pool *pool;
    struct esp_encoder *e = make(1, ESP_CPU_REF, &pool);
    struct esp_encode_rows job;
    esp_error err;

    (void)state;
    job = good;
    job.k = 0;
    test_refused(esp_encode_rows(e, &job, &err), ESP_EINVAL, &err, "0 bits");
    job.k = 9;
    test_refused(esp_encode_rows(e, &job, &err), ESP_EINVAL, &err, "9 bits");
    job = good;
    job.n_col = 500;
    test_refused(esp_encode_rows(e, &job, &err), ESP_EINVAL, &err, "multiple of 256");
    job.n_col = 0;
    test_refused(esp_encode_rows(e, &job, &err), ESP_EINVAL, &err, "multiple of 256");
    job = good;
    job.ld = 511;
    test_refused(esp_encode_rows(e, &job, &err), ESP_EINVAL, &err, "511 apart");
    job = good;
    job.n_row = UINT32_MAX;
    test_refused(esp_encode_rows(e, &job, &err), ESP_EINVAL, &err, "too many");
    job = good;
    job.search = ESP_SEARCH_COUNT;
    test_refused(esp_encode_rows(e, &job, &err), ESP_EINVAL, &err, "search 3");
    job = good;
    input[512 + 7] = INFINITY;
    test_refused(esp_encode_rows(e, &job, &err), ESP_ENUMERIC, &err, "row 1, column 7");
    input[512 + 7] = 0;
    job.n_row = 0;
    test_ok(esp_encode_rows(e, &job, &err), &err);
    drop(e, pool);
    for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++) {
        esp_status s;

        if (level_here((enum esp_cpu_level)level))
            continue;
        test_ok(esp_pool_create(&pool, 1, &err), &err);
        s = esp_encoder_create(&e, pool, (enum esp_cpu_level)level, &err);
        test_refused(s, ESP_EDEVICE, &err, esp_cpu_level_name((enum esp_cpu_level)level));
        esp_pool_destroy(pool);
    }
}

static void test_no_memory(void **state)
{
    struct esp_pool *pool;
    esp_status s = ESP_ENOMEM;
    esp_error err;
    int64_t fail_at;

    (void)state;
    test_ok(esp_pool_create(&pool, 1, &err), &err);
    for (fail_at = 0; s == ESP_ENOMEM; fail_at++) {
        struct esp_encoder *e = NULL;

        esp_mem_fail_at(fail_at);
        s = esp_encoder_create(&e, pool, ESP_CPU_REF, &err);
        esp_mem_fail_at(-1);
        assert_true(s == ESP_OK ? e != NULL : e == NULL);
        esp_encoder_destroy(e);
    }
    test_ok(s, &err);
    assert_int_equal(fail_at, 4);
    esp_pool_destroy(pool);
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* With ESPALIER_BENCH set: weights a second for every level and k, on one thread and on two in turn, by the
 * clock: other programs must be at rest, or this one has to have their processors. */
static void bench(void **state)
{
    (void)state;
    if (!getenv("ESPALIER_BENCH"))
        skip();
    read_all("enc_input_64x256.f32le", input, sizeof input);
    for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++)
        for (uint32_t k = 1; k <= 8 && level_here((enum esp_cpu_level)level); k++) {
            double best[2] = {1e9, 1e9};

            for (int run = 0; run < 10; run++) {
                struct esp_pool *pool;
                struct esp_encoder *e = make(1 + (uint32_t)run % 2, (enum esp_cpu_level)level, &pool);
                const int times = level ? 8 : 1;
                double s = seconds();

                for (int i = 0; i < times; i++)
                    encode(e, k, ESP_SEARCH_WINDOW, input, N_BLOCK);
                s = (seconds() - s) / times;
                best[run % 2] = s < best[run % 2] ? s : best[run % 2];
                drop(e, pool);
            }
            printf("trellis_encode/%s/k%u: %.2f Mweights/s of one core, two do %.2f times that\n",
                   esp_cpu_level_name((enum esp_cpu_level)level), k, N / best[0] * 1e-6, best[0] / best[1]);
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
        cmocka_unit_test(test_mse),      cmocka_unit_test(test_optimal_paths),
        cmocka_unit_test(test_rows),     cmocka_unit_test(test_levels_agree),
        cmocka_unit_test(test_extremes), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(bench),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
