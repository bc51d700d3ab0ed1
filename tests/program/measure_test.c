/*
 * perplexity, fit, bench and devices over the stand-in library, whose tokens are all equally likely: the
 * perplexity is its vocabulary of 264, exactly.
 *
 * SPDX-License-Identifier: MIT
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/map.h"
#include "base/mem.h"

#include "program/spawn/spawn.h"
#include "support/support.h"

#define P ESP_PROGRAM_DOUBLE
#define M "models/demo"

static json_t *json_of(struct run r, int code)
{
    json_t *j;

    run_code(&r, code);
    j = run_json(&r, 0);
    run_free(&r);
    return j;
}

static json_int_t whole(const json_t *j, const char *key)
{
    assert_true(json_is_integer(json_object_get(j, key)));
    return json_integer_value(json_object_get(j, key));
}

static const char *text_file(size_t n)
{
    static char text[4096];

    memset(text, 'x', n);
    return test_write(test_tmpdir(), "text", text, n);
}

/* tokens and windows for a text of n bytes */
static void expect_windows(size_t n, const char *ctx, const char *stride, json_int_t tokens,
                           json_int_t windows)
{
    json_t *j = json_of(
        RUN(NULL, P, "perplexity", M, "--data", text_file(n), "--ctx", ctx, "--stride", stride, "--json"), 0);

    assert_int_equal(whole(j, "tokens"), tokens);
    assert_int_equal(whole(j, "windows"), windows);
    assert_true(fabs(json_number_value(json_object_get(j, "nll")) - log(264)) < 1e-9);
    assert_true(fabs(json_number_value(json_object_get(j, "ppl")) - 264) < 1e-6);
    json_decref(j);
}

static void test_windows(void **state)
{
    (void)state;
    expect_windows(100, "10", "0", 90, 10); /* ten windows, the first token of each is not predicted */
    expect_windows(95, "10", "0", 9 * 9 + 4, 10);
    expect_windows(91, "10", "0", 9 * 9, 9); /* a last window of one token predicts nothing */
    expect_windows(100, "10", "5", 9 + 18 * 5, 19);
    expect_windows(7, "10", "0", 6, 1);
    expect_windows(12, "10", "9", 9 + 2, 2);
    expect_windows(2, "2", "1", 1, 1);
}

static void test_perplexity_gate(void **state)
{
    struct run r = RUN(NULL, P, "ppl", M, "--data", text_file(50), "--max", "264.1");

    (void)state;
    run_code(&r, 0);
    run_prints(&r, "ppl 264.0000");
    run_free(&r);
    r = RUN(NULL, P, "ppl", M, "--data", text_file(50), "--max", "263.9");
    run_code(&r, 7);
    run_prints(&r, "ppl 264.0000"); /* the result is printed all the same */
    run_says(&r, "above the limit");
    run_free(&r);
}

static void test_perplexity_refuses(void **state)
{
    static const char npy[] =
        "\x93NUMPY\1\0\x41\0{'descr': '<i4', 'fortran_order': False, 'shape': (2,)}         \n";
    char file[96];
    struct run r = RUN(NULL, P, "ppl", M);

    (void)state;
    run_code(&r, 2);
    run_says(&r, "--data FILE");
    run_free(&r);
    r = RUN(NULL, P, "ppl", M, "--data", text_file(1));
    run_code(&r, 3);
    run_says(&r, "at least 2");
    run_free(&r);
    r = RUN(NULL, P, "ppl", M, "--data", text_file(50), "--stride", "20", "--ctx", "10");
    run_code(&r, 2);
    run_says(&r, "would be skipped");
    run_free(&r);
    r = RUN(NULL, P, "ppl", M, "--data", text_file(50), "--ctx", "10000");
    run_code(&r, 0); /* a window is never longer than the text */
    run_free(&r);
    memcpy(file, npy, sizeof npy - 1);
    memcpy(file + sizeof npy - 1, "\1\0\0\0\x08\1\0\0", 8); /* ids 1 and 264 */
    r = RUN(NULL, P, "ppl", M, "--data", test_write(test_tmpdir(), "a.npy", file, sizeof npy - 1 + 8));
    run_code(&r, 3);
    run_says(&r, "element 1 is 264");
    run_silent(&r);
    run_free(&r);
    memcpy(file + sizeof npy - 1, "\xff\0\0\0\1\0\0\0", 8); /* 255: logits are NaN behind it */
    r = RUN(NULL, P, "ppl", M, "--data", test_write(test_tmpdir(), "b.npy", file, sizeof npy - 1 + 8));
    run_code(&r, 1);
    run_says(&r, "not finite");
    run_silent(&r);
    run_free(&r);
}

static void test_fit(void **state)
{
    json_t *j = json_of(
        RUN(NULL, P, "fit", M, "--json", "--ctx", "1024", "--rows", "2", "--memory-budget", "20M"), 0);
    json_t *at = json_object_get(j, "at"), *max = json_object_get(j, "max_context");
    const json_int_t fixed = 2000000 + 500000 + 1000000 + 2 * 303000;

    (void)state;
    assert_true(json_is_true(json_object_get(j, "fits")));
    assert_int_equal(whole(at, "total_bytes"), fixed + 2 * 1024 * 1024);
    assert_int_equal(whole(at, "budget_bytes"), 20000000);
    assert_int_equal(whole(at, "headroom_bytes"), 20000000 - fixed - 2 * 1024 * 1024);
    /* pages of 256 tokens of 1024 bytes: the budget holds 30 of them for each of two rows, and no more */
    assert_int_equal(whole(max, "rows_B"), (20000000 - fixed) / (2 * 256 * 1024) * 256);
    assert_int_equal(whole(max, "rows_1"), 8192);
    assert_int_equal(whole(json_object_get(j, "terms"), "state_per_row"), 100000);
    json_decref(j);
    j = json_of(RUN(NULL, P, "fit", M, "--json", "--memory-budget", "4M"), 4);
    assert_true(json_is_false(json_object_get(j, "fits")));
    assert_string_equal(json_string_value(json_object_get(j, "limiting")), "host");
    assert_true(whole(json_object_get(j, "at"), "headroom_bytes") < 0);
    json_decref(j);
    struct run r = RUN(NULL, P, "fit", M, "--memory-budget", "8M", "--rows", "2");

    run_code(&r, 4);
    run_prints(&r, "does not fit");
    run_prints(&r, "try --rows 1");
    run_prints(&r, "try --ctx ");
    run_free(&r);
    r = RUN(NULL, P, "fit", "--synthetic", "qwen3.5-9b", "--weights", "affine4");
    run_code(&r, 0);
    run_free(&r);
}

static double real(const json_t *j, const char *key)
{
    assert_true(json_is_number(json_object_get(j, key)));
    return json_number_value(json_object_get(j, key));
}

/* Rows of one run by name. */
static json_t *bench_row(const struct run *r, const char *test)
{
    for (uint32_t i = 0; i < run_lines(r); i++) {
        json_t *j = run_json(r, i);

        if (strcmp(json_string_value(json_object_get(j, "test")), test) == 0)
            return j;
        json_decref(j);
    }
    fail_msg("no row %s", test);
    return NULL;
}

/*
 * What the stand-in's shapes come to: a token costs 4e6 in products, 5e5 beside them and 1e3 for each
 * position that it sees, a row of logits 2e6. Its weights are 2e6 bytes, a position 1024, a state 1e5.
 */
static void test_bench_limits(void **state)
{
    struct run r =
        RUN(NULL, P, "bench", M, "-p", "600", "-n", "4", "-b", "3", "-d", "8", "-r", "2", "--json");
    json_t *j = bench_row(&r, "pp600");
    double token = 4e6 + 5e5, bytes;

    (void)state;
    assert_true(fabs(real(j, "ops_per_token") - (600 * token + 2e6 + 1e3 * 600 * 601 / 2) / 600) < 1);
    bytes = real(j, "weight_bytes") * 2 + 1024 * (512 + 600) +
            2 * 2e5; /* two chunks, the second sees the first's keys */
    assert_true(fabs(real(j, "bytes_per_token") - bytes / 600) < 1);
    assert_true(fabs(real(j, "bandwidth_share") * real(j, "bandwidth_bytes_per_s") /
                         (real(j, "bytes_per_token") * real(j, "median_tps")) -
                     1) < 1e-6);
    json_decref(j);
    j = bench_row(&r, "tg4 b3 d8");
    assert_true(fabs(real(j, "ops_per_token") - (token + 2e6 + 1e3 * 10)) < 1);
    assert_true(fabs(real(j, "bytes_per_token") - (real(j, "weight_bytes") / 3 + 1024 * 10 + 2e5)) < 1);
    assert_true(real(j, "p50_s") <= real(j, "p95_s") && real(j, "p95_s") <= real(j, "p99_s"));
    assert_true(real(j, "ttft_s") > 0);
#if defined(__x86_64__)
    if (!getenv("ESPALIER_CPU")) { /* the reference has no limit of its own */
        const json_t *rate = json_object_get(j, "arithmetic_ops_per_s");
        const double f32 = real(rate, "f32"), int8x2 = real(rate, "int8x2");
        const double seconds = (1e6 + 5e5 + 1e4) / f32 + 5e6 / int8x2;

        assert_true(fabs(real(j, "arithmetic_share") / (seconds * real(j, "median_tps")) - 1) < 1e-6);
        assert_null(json_object_get(rate, "int8")); /* the model has no such products */
        assert_string_equal(json_string_value(json_object_get(j, "bound")),
                            real(j, "arithmetic_share") > real(j, "bandwidth_share") ? "arithmetic"
                                                                                     : "memory");
    }
#endif
    json_decref(j);
    run_free(&r);
}

static void test_bench(void **state)
{
    char base[256], slow[256];
    struct run r;
    FILE *f;
    json_t *j;

    (void)state;
    snprintf(base, sizeof base, "%s/base.jsonl", test_tmpdir());
    snprintf(slow, sizeof slow, "%s/slow.jsonl", test_tmpdir());
    r = RUN(NULL, P, "bench", M, "-p", "16,32", "-n", "4", "-b", "1,3", "-d", "0,8", "-r", "2", "--format",
            "jsonl", "-o", base);
    run_code(&r, 0);
    run_silent(&r);
    run_free(&r);
    r = RUN(NULL, P, "bench", M, "-p", "16", "-n", "0", "-r", "3", "--json");
    run_code(&r, 0);
    assert_int_equal(run_lines(&r), 1);
    j = run_json(&r, 0);
    assert_string_equal(json_string_value(json_object_get(j, "test")), "pp16");
    assert_int_equal(json_array_size(json_object_get(j, "samples_tps")), 3);
    assert_true(json_number_value(json_object_get(j, "bandwidth_bytes_per_s")) > 1e8);
    json_decref(j);
    run_free(&r);
    r = RUN(NULL, P, "bench", M, "-p", "16", "-n", "4", "-r", "2", "--baseline", base, "--tolerance", "100%");
    run_code(&r, 0);
    run_says(&r, "tg4: ");
    run_free(&r);
    f = fopen(slow, "w");
    assert_non_null(f);
    fprintf(f, "{\"test\":\"pp16\",\"mean_tps\":1e15}\n");
    fclose(f);
    r = RUN(NULL, P, "bench", M, "-p", "16", "-n", "0", "-r", "1", "--baseline", slow);
    run_code(&r, 7);
    run_says(&r, "slower");
    run_free(&r);
    r = RUN(NULL, P, "bench", M, "-p", "16", "-n", "0", "-r", "1", "--baseline", "no/such/file");
    run_code(&r, 3);
    run_silent(&r); /* found out before anything was measured */
    run_free(&r);
    r = RUN(NULL, P, "bench", M, "-p", "17", "-n", "0", "-r", "1", "--baseline", slow);
    run_code(&r, 3);
    run_says(&r, "nothing could be compared");
    run_free(&r);
    r = RUN(NULL, P, "bench", M, "-p", "0", "-n", "0");
    run_code(&r, 2);
    run_says(&r, "nothing to measure");
    run_free(&r);
    r = RUN(NULL, P, "bench", M, "-p", "100000");
    run_code(&r, 4);
    run_says(&r, "made for 8192");
    run_silent(&r);
    run_free(&r);
}

/* --save adds records to a file, whatever is printed; each names its machine, build and model. */
static void test_bench_save(void **state)
{
    char file[256], *text = NULL;
    const char *second;
    size_t len;
    json_t *a, *b, *j, *predicted;
    esp_error err;
    struct run r;

    (void)state;
    snprintf(file, sizeof file, "%s/saved.jsonl", test_tmpdir());
    for (int i = 0; i < 2; i++) {
        r = RUN(NULL, P, "bench", M, "-p", "16", "-n", "0", "-r", "1", "--save", file);
        run_code(&r, 0);
        run_prints(&r, "| pp16 |");
        run_free(&r);
    }
    test_ok(esp_read_file(&text, &len, file, 1 << 20, &err), &err);
    second = strchr(text, '\n');
    assert_non_null(second);
    a = json_loadb(text, (size_t)(second - text), 0, NULL);
    b = json_loads(second + 1, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(a);
    assert_non_null(b);
    assert_true(json_equal(json_object_get(a, "machine"), json_object_get(b, "machine")));
    assert_true(json_equal(json_object_get(a, "model_id"), json_object_get(b, "model_id")));
    assert_int_equal(json_string_length(json_object_get(a, "model_id")), 16);
    assert_int_equal(json_string_length(json_object_get(json_object_get(a, "machine"), "id")), 16);
    assert_true(json_is_string(json_object_get(json_object_get(a, "build"), "compiler")));
    json_decref(a);
    json_decref(b);
    esp_free(text);
    r = RUN(NULL, P, "bench", M, "-p", "16", "-n", "0", "-r", "1", "--baseline", file, "--tolerance", "100%");
    run_code(&r, 0); /* such a file is a baseline */
    run_free(&r);
    j = json_of(RUN(NULL, P, "fit", M, "--json", "--machine", file),
                0); /* no generation was measured: limits */
    predicted = json_object_get(j, "predicted");
    assert_string_equal(json_string_value(json_object_get(predicted, "basis")), "roofline");
    assert_true(real(predicted, "decode_tps") > 0);
    json_decref(j);
    r = RUN(NULL, P, "bench", M, "-p", "16", "-n", "4", "-r", "1", "--save", file);
    run_code(&r, 0);
    run_free(&r);
    j = json_of(RUN(NULL, P, "fit", M, "--json", "--machine", file), 0);
    predicted = json_object_get(j, "predicted");
    assert_string_equal(json_string_value(json_object_get(predicted, "basis")), "measured");
    assert_true(real(predicted, "prefill_tps") > 0 && real(predicted, "ttft_s_at_ctx") > 0);
    json_decref(j);
    r = RUN(NULL, P, "fit", M, "--machine", test_write(test_tmpdir(), "none", "{}\n", 3));
    run_code(&r, 3);
    run_says(&r, "no record");
    run_free(&r);
    r = RUN(NULL, P, "bench", M, "-p", "16", "-n", "0", "-r", "1", "--save", "/no/such/folder/file");
    run_code(&r, 1);
    run_silent(&r); /* before anything was measured */
    run_free(&r);
}

/* Counters of packages are read where the system shows them; parts of a package are in it already. */
static void test_bench_energy(void **state)
{
    static const char *const made[][2] = {{"intel-rapl:0", "energy_uj"},
                                          {"intel-rapl:0", "max_energy_range_uj"},
                                          {"intel-rapl:0:0", "energy_uj"}};
    char folder[256], path[512], variable[300];
    struct run_how how = {.env = {variable, NULL}};
    struct run r;
    json_t *j;

    (void)state;
    snprintf(folder, sizeof folder, "%s", test_tmpdir());
    snprintf(variable, sizeof variable, "ESPALIER_POWERCAP=%s", folder);
    r = RUN(&how, P, "bench", M, "-p", "16", "-n", "0", "-r", "1", "--json");
    j = run_json(&r, 0);
    assert_null(json_object_get(j, "joules_per_token"));
    json_decref(j);
    run_free(&r);
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, made[i][0]);
        mkdir(path, 0700);
        test_write(path, made[i][1], "1000000\n", 8);
    }
    r = RUN(&how, P, "bench", M, "-p", "16", "-n", "0", "-r", "1");
    run_code(&r, 0);
    run_prints(&r, "| J/token |");
    run_prints(&r, "| 0.000 |"); /* a counter that stands still */
    run_free(&r);
}

static void test_bench_rows(void **state)
{
    static const char *const names[] = {"pp16",   "tg2",    "tg4",       "tg2 b3",   "tg4 b3",
                                        "tg2 d8", "tg4 d8", "tg2 b3 d8", "tg4 b3 d8"};
    struct run r = RUN(NULL, P, "bench", M, "-p", "16", "-n", "2,4", "-b", "1,3", "-d", "0,8", "-r", "1",
                       "--format", "csv");
    char want[64];

    (void)state;
    run_code(&r, 0);
    assert_int_equal(run_lines(&r), 10);
    for (size_t i = 0; i < 9; i++) {
        snprintf(want, sizeof want, ",%s,", names[i]);
        run_prints(&r, want);
    }
    run_free(&r);
}

static void test_devices(void **state)
{
    json_t *j = json_of(RUN(NULL, P, "devices", "--json"), 0),
           *d = json_array_get(json_object_get(j, "devices"), 0);

    (void)state;
    assert_true(whole(d, "cores") >= 1);
    assert_true(whole(d, "threads") >= whole(d, "cores"));
    assert_true(whole(d, "memory") > 1 << 20);
    assert_null(json_object_get(d, "read_bytes_per_s"));
    json_decref(j);
    j = json_of(RUN(NULL, P, "devices", "--json", "-v"), 0);
    d = json_array_get(json_object_get(j, "devices"), 0);
    assert_true(json_number_value(json_object_get(d, "read_bytes_per_s")) > 1e8);
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_perplexity_gate),
        cmocka_unit_test(test_perplexity_refuses),
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_bench),
        cmocka_unit_test(test_bench_limits),
        cmocka_unit_test(test_bench_save),
        cmocka_unit_test(test_bench_energy),
        cmocka_unit_test(test_bench_rows),
        cmocka_unit_test(test_devices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
