/*
 * The quantizer's library is loaded, not linked: other verbs never look for it, and quantizing without it, or
 * with something else of its name, says so before any work is done.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "program/spawn/spawn.h"
#include "quantize/blas.h"
#include "support/support.h"

#define P ESP_PROGRAM
#define M "models/demo"

static char search[400], output[400];

/* A folder that is searched first and has the library's name for the file from. */
static struct run_how hide(const char *from)
{
    const char *dir = test_tmpdir();
    char line[1000];
    struct stat st;

    snprintf(search, sizeof search, "LD_LIBRARY_PATH=%s", dir);
    snprintf(output, sizeof output, "%s/out", dir);
    snprintf(line, sizeof line, "cp -L %s %s/libopenblas.so.0", from, dir);
    assert_int_equal(system(line), 0);
    assert_int_not_equal(stat(output, &st), 0);
    return (struct run_how){.env = {search, NULL}};
}

static void refused(const char *from, const char *part)
{
    const struct run_how how = hide(from);
    struct run r = RUN(&how, P, "quantize", M, "-o", output, "--no-eval");
    struct stat st;

    run_code(&r, 3);
    run_says(&r, part);
    run_silent(&r);
    run_free(&r);
    assert_int_not_equal(stat(output, &st), 0);
    r = RUN(&how, P, "fit", M);
    run_code(&r, 0);
    run_free(&r);
    r = RUN(&how, P, "quantize", M, "-o", output, "--no-eval", "--method", "rtn");
    run_code(&r, 0);
    run_free(&r);
}

static void test_missing(void **state)
{
    (void)state;
    refused("CMakeLists.txt", "Debian has it as libopenblas0");
}

static void test_other_library(void **state)
{
    char from[300] = "";
    FILE *f = popen("ldd " P " | sed -n 's/.*libxxhash.* => \\([^ ]*\\).*/\\1/p'", "r");

    (void)state;
    assert_non_null(f);
    if (!fgets(from, sizeof from, f))
        from[0] = 0;
    pclose(f);
    from[strcspn(from, "\n")] = 0;
    if (!from[0])
        skip(); /* linked statically */
    refused(from, "has no openblas_get_num_threads");
}

/* What is called is what the prototypes say: small products by hand. */
static void test_functions(void **state)
{
    const float a[4] = {1, 2, 3, 4}, x[2] = {5, 6};
    double p[4] = {4, 2, 2, 5}, v[2] = {3, 4};
    const double d[4] = {1, 2, 3, 4};
    float c[4] = {0}, y[2] = {0}, t[4] = {1, 0, 0, 1};
    const int two = 2;
    struct esp_blas b, inner;
    int info = -1, before;
    esp_error err;

    (void)state;
    test_ok(esp_blas_open(&b, &err), &err);
    before = b.threads;
    assert_int_equal(b.get_threads(), 1);
    test_ok(esp_blas_open(&inner, &err), &err);
    esp_blas_close(&inner);
    assert_int_equal(b.get_threads(), 1);
    b.sgemm(ESP_BLAS_ROWS, ESP_BLAS_PLAIN, ESP_BLAS_TRANS, 2, 2, 2, 1, a, 2, a, 2, 0, c, 2);
    assert_true(c[0] == 5 && c[1] == 11 && c[2] == 11 && c[3] == 25);
    b.sgemv(ESP_BLAS_ROWS, ESP_BLAS_PLAIN, 2, 2, 1, a, 2, x, 1, 0, y, 1);
    assert_true(y[0] == 17 && y[1] == 39);
    b.strmm(ESP_BLAS_ROWS, ESP_BLAS_RIGHT, ESP_BLAS_UPPER, ESP_BLAS_PLAIN, ESP_BLAS_NON_UNIT, 2, 2, 1, a, 2,
            t, 2);
    assert_true(t[0] == 1 && t[1] == 2 && t[2] == 0 && t[3] == 4);
    b.dscal(2, 0.5, v, 1);
    assert_true(v[0] == 1.5 && v[1] == 2);
    b.dpotrf("U", &two, p, &two, &info, 1); /* by columns: p[0], p[2], p[3] */
    assert_int_equal(info, 0);
    assert_true(p[0] == 2 && p[2] == 1 && p[3] == 2);
    b.dtrsm(ESP_BLAS_ROWS, ESP_BLAS_LEFT, ESP_BLAS_LOWER, ESP_BLAS_PLAIN, ESP_BLAS_NON_UNIT, 2, 1, 1, d, 2, v,
            1);
    assert_true(v[0] == 1.5 && v[1] == (2 - 3 * 1.5) / 4);
    b.dgemm(ESP_BLAS_ROWS, ESP_BLAS_PLAIN, ESP_BLAS_PLAIN, 1, 1, 2, 1, d, 2, d, 1, 0, v, 1);
    assert_true(v[0] == 1 * 1 + 2 * 2);
    esp_blas_close(&b);
    test_ok(esp_blas_open(&b, &err), &err);
    assert_int_equal(b.threads, before);
    esp_blas_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_other_library),
        cmocka_unit_test(test_functions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
