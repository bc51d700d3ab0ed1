/*
 * --device: which device a word means, what is refused, what "auto" does, and whose memory is counted. The
 * CUDA devices are a stand-in that computes on the CPU (device/cuda_double.c), so answers can be compared.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/spawn/spawn.h"
#include "support/support.h"

#define P ESP_PROGRAM
#define M "models/demo"

static const struct run_how with = {.env = {"ESPALIER_CUDA_LIBRARY=" ESP_CUDA_DOUBLE}};
static const struct run_how none = {.env = {"ESPALIER_CUDA_LIBRARY=/nonexistent.so"}};
static const struct run_how small = {
    .env = {"ESPALIER_CUDA_LIBRARY=" ESP_CUDA_DOUBLE, "ESPALIER_DOUBLE_MEMORY=20000000"}};

static const struct run_how medium = {
    .env = {"ESPALIER_CUDA_LIBRARY=" ESP_CUDA_DOUBLE, "ESPALIER_DOUBLE_MEMORY=400000000"}};

static void refused(const struct run_how *how, const char *const argv[], int code, const char *part)
{
    struct run r = run_with(how, argv);

    run_code(&r, code);
    run_says(&r, part);
    run_free(&r);
}
#define REFUSED(how, code, part, ...) refused(how, (const char *const[]){__VA_ARGS__, NULL}, code, part)

static void test_words(void **state)
{
    (void)state;
    REFUSED(&with, 2, "'gpu' is not one of auto, cpu, cuda, cuda:N", P, "fit", M, "--device", "gpu");
    REFUSED(&with, 2, "is not one of", P, "fit", M, "--device", "cuda:");
    REFUSED(&with, 2, "is not one of", P, "fit", M, "--device", "cuda:0,1");
    REFUSED(&with, 5, "no device 2; 2 present", P, "fit", M, "--device", "cuda:2");
    REFUSED(&none, 5, "/nonexistent.so", P, "fit", M, "--device", "cuda");
    REFUSED(&none, 5, "/nonexistent.so", P, "generate", M, "-p", "x", "--device", "cuda:0");
}

static void answers(const struct run_how *how, const char *device, const char *says, char *out, size_t cap)
{
    struct run r = RUN(how, P, "generate", M, "-v", "-p", "Once upon a time", "-n", "12", "--temp", "0",
                       "--device", device);

    run_code(&r, 0);
    if (says)
        run_says(&r, says);
    snprintf(out, cap, "%s", r.out);
    run_free(&r);
}

static void test_auto(void **state)
{
    char cpu[512], other[512];

    (void)state;
    answers(&with, "cpu", NULL, cpu, sizeof cpu);
    answers(&with, "auto", "computing on cuda:0 (stand-in)", other, sizeof other);
    assert_string_equal(cpu, other);
    answers(&with, "cuda:1", NULL, other, sizeof other);
    assert_string_equal(cpu, other);
    answers(&none, "auto", "computing on the CPU: the CUDA backend cannot be loaded", other, sizeof other);
    assert_string_equal(cpu, other);
    answers(&small, "auto", "on the CPU instead of cuda:0 (stand-in)", other, sizeof other);
    assert_string_equal(cpu, other);
}

/* Flags of placement choose the device, as far as one device can do what they say. */
static void test_placement(void **state)
{
    static const char *const cuda[][2] = {{"--gpu-layers", "all"}, {"-ngl", "99"}, {"--place", ".*=cuda:0"}};
    static const char *const cpu[][2] = {{"--gpu-layers", "0"}, {"--place", "mlp=cpu"}};
    struct run r;

    (void)state;
    for (size_t i = 0; i < sizeof cuda / sizeof cuda[0]; i++) {
        r = RUN(&with, P, "fit", M, "--json", cuda[i][0], cuda[i][1]);
        run_code(&r, 0);
        run_prints(&r, "\"cuda:0\"");
        run_free(&r);
    }
    for (size_t i = 0; i < sizeof cpu / sizeof cpu[0]; i++) {
        r = RUN(&with, P, "fit", M, "--json", cpu[i][0], cpu[i][1]);
        run_code(&r, 0);
        run_prints(&r, "\"host\"");
        run_free(&r);
    }
    REFUSED(&with, 2, "layers lie on one device as a whole; 0,", P, "fit", M, "-ngl", "1");
    REFUSED(&with, 2, "--device cuda:1 and --place", P, "fit", M, "--device", "cuda:1", "--place",
            "mlp=cuda:0");
    REFUSED(&with, 4, "the budget is 1000000", P, "generate", M, "-p", "x", "--device", "cuda",
            "--memory-budget", "8G,cuda:0=1000000");
    REFUSED(&with, 4, "--memory-budget gives it 1000", P, "serve", M, "--dry-run", "--device", "cuda",
            "--memory-budget", "host=1000");
    /* too small, and nothing else was allowed */
    REFUSED(&small, 4, "", P, "generate", M, "-p", "x", "--fit", "off");
}

/* What only the CPU can do: refused by name, and a reason for "auto" to stay there. */
static void test_abilities(void **state)
{
    struct run r;

    (void)state;
    REFUSED(&with, 3, "kv_start 9 is for device cpu", P, "generate", M, "-p", "x", "--kv", "q8", "--kv-start",
            "9", "--device", "cuda");
    REFUSED(&with, 3, "states as f32", P, "fit", M, "--state", "q8", "--device", "cuda");
    if (!TEST_SANITIZED) /* whose leak check the filter refuses */
        REFUSED(&with, 3, "--device cuda:1 and --seccomp", P, "serve", M, "--seccomp", "--device", "cuda:1",
                "--port", "0");
    r = RUN(&with, P, "generate", M, "-p", "x", "-n", "2", "--kv", "q8", "--kv-start", "9", "--device",
            "auto");
    run_code(&r, 0);
    run_says(&r, "computing on the CPU instead of cuda:0 (stand-in)");
    run_free(&r);
}

static json_t *fit(const struct run_how *how, const char *device, int code)
{
    struct run r = RUN(how, P, "fit", M, "--json", "--device", device);
    json_t *j;

    run_code(&r, code);
    j = run_json(&r, 0);
    run_free(&r);
    return j;
}

static json_int_t at(const json_t *j, const char *group, const char *key)
{
    const json_t *v = json_object_get(json_object_get(j, group), key);

    assert_true(json_is_integer(v));
    return json_integer_value(v);
}

static bool suggests(const json_t *j, const char *change)
{
    const json_t *s;
    size_t i;

    json_array_foreach(json_object_get(j, "suggestions"), i,
                       s) if (strcmp(json_string_value(json_object_get(s, "change")), change) ==
                              0) return true;
    return false;
}

static void test_memory(void **state)
{
    json_t *cpu = fit(&with, "cpu", 0), *cuda = fit(&with, "cuda:1", 0), *no = fit(&small, "cuda:0", 4);
    const json_t *d = json_array_get(json_object_get(json_object_get(cuda, "machine"), "devices"), 0);

    (void)state;
    assert_int_equal(at(cpu, "terms", "host"), 0);
    assert_int_equal(at(cuda, "terms", "weights"), 12345678);
    assert_int_equal(at(cuda, "terms", "fixed"), 0);
    assert_true(at(cuda, "terms", "host") > at(cpu, "terms", "weights"));
    assert_int_equal(at(cuda, "at", "budget_bytes"), 8000000000);
    assert_string_equal(json_string_value(json_object_get(d, "id")), "cuda:1");
    assert_int_equal(json_integer_value(json_object_get(d, "memory")), 8500000000);
    assert_true(json_is_null(json_object_get(cuda, "limiting")));
    assert_string_equal(json_string_value(json_object_get(no, "limiting")), "cuda:0");
    assert_true(suggests(no, "--kv q8") && suggests(no, "--device cpu"));
    json_decref(cpu);
    json_decref(cuda);
    json_decref(no);
    REFUSED(&small, 4, "the free memory of the device is 20000000", P, "generate", M, "-p", "x", "--device",
            "cuda");
    REFUSED(&with, 4, "the budget is 1000000", P, "generate", M, "-p", "x", "--device", "cuda",
            "--memory-budget", "1000000");
}

static void test_reports(void **state)
{
    struct run r;
    json_t *j;

    (void)state;
    r = RUN(&medium, P, "bench", M, "-p", "0", "-n", "1", "-r", "1", "--no-warmup", "--json", "--device",
            "cuda");
    run_code(&r, 0);
    j = run_json(&r, 0);
    assert_string_equal(json_string_value(json_object_get(j, "device")), "cuda:0 (stand-in)");
    assert_true(json_number_value(json_object_get(j, "bandwidth_bytes_per_s")) > 1e8);
    json_decref(j);
    run_free(&r);
    r = RUN(&with, P, "devices", "--json");
    run_code(&r, 0);
    j = run_json(&r, 0);
    assert_int_equal(json_array_size(json_object_get(j, "devices")), 3);
    json_decref(j);
    run_free(&r);
    r = RUN(&with, P, "devices");
    run_prints(&r, "cuda:1 (stand-in)");
    run_free(&r);
    r = RUN(&none, P, "devices", "-v");
    run_code(&r, 0);
    run_prints(&r, "cannot be loaded");
    run_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),  cmocka_unit_test(test_auto),    cmocka_unit_test(test_abilities),
        cmocka_unit_test(test_memory), cmocka_unit_test(test_reports), cmocka_unit_test(test_placement),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
