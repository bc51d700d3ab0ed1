/*
 * NumPy files: what is read, and that every other kind is refused with its fault.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>

#include "program/npy.h"
#include "support/support.h"

/* Write a file with this header text and n_data bytes of rising int32 or int64 values. */
static const char *make(const char *header, unsigned version, size_t n_data, size_t item)
{
    static char file[8192];
    const size_t len = strlen(header);
    size_t n = 10;

    memcpy(file, "\x93NUMPY", 6);
    file[6] = (char)version;
    file[7] = 0;
    file[8] = (char)(len & 255);
    file[9] = (char)(len >> 8);
    if (version > 1) {
        file[10] = file[11] = 0;
        n = 12;
    }
    memcpy(file + n, header, len);
    n += len;
    for (size_t i = 0; i < n_data / item; i++) {
        const int64_t v = (int64_t)i - 1;

        memcpy(file + n + i * item, &v, item); /* little-endian machines alone run this */
    }
    return test_write(test_tmpdir(), "a.npy", file, n + n_data);
}

static void test_reads(void **state)
{
    struct esp_npy a;
    esp_error err;

    (void)state;
    test_ok(esp_npy_open(
                &a, make("{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }   \n", 1, 24, 4), &err),
            &err);
    assert_int_equal(a.rows, 2);
    assert_int_equal(a.cols, 3);
    assert_int_equal(a.n_dim, 2);
    assert_int_equal(esp_npy_get(&a, 0), -1);
    assert_int_equal(esp_npy_get(&a, 5), 4);
    esp_npy_close(&a);
    test_ok(esp_npy_open(&a, make("{'shape':(4,),\"descr\":\"<i8\",'fortran_order':True}", 2, 32, 8), &err),
            &err);
    assert_int_equal(a.n_dim, 1);
    assert_int_equal(a.cols, 4);
    assert_int_equal(esp_npy_get(&a, 3), 2);
    esp_npy_close(&a);
    test_ok(
        esp_npy_open(&a, make("{'descr': '<i4', 'fortran_order': False, 'shape': (0, 3)}", 3, 0, 4), &err),
        &err);
    esp_npy_close(&a);
    test_ok(esp_npy_open(&a, test_path("models/demo-golden/val.npy"), &err), &err);
    assert_int_equal(a.rows, 64);
    assert_int_equal(a.cols, 1024);
    esp_npy_close(&a);
}

static void test_headers(void **state)
{
    static const char *const bad[] = {
        "",
        "{}",
        "{",
        "{'descr': '<i4'}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3)",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3)} x",
        "{'descr': '<i4', 'descr': '<i4', 'shape': (6,)}",
        "{'descr': '<i4', 'fortran_order': Maybe, 'shape': (6,)}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': ()}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2, 3)}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (-6,)}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (6,), 'more': 1}",
        "['<i4']",
        "{'descr': '<i4' 'fortran_order': False, 'shape': (6,)}",
        "{'descr': '<i4i4i4i4', 'fortran_order': False, 'shape': (6,)}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (6}",
    };
    struct esp_npy a;
    esp_error err;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        test_refused(esp_npy_open(&a, make(bad[i], 1, 24, 4), &err), ESP_EFORMAT, &err,
                     "a.npy: the header is not");
}

static void test_contents(void **state)
{
    struct esp_npy a;
    esp_error err;
    const char *file;

    (void)state;
    test_refused(
        esp_npy_open(&a, make("{'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", 1, 24, 4), &err),
        ESP_EUNSUPPORTED, &err, "'<f4'");
    test_refused(
        esp_npy_open(&a, make("{'descr': '>i4', 'fortran_order': False, 'shape': (6,)}", 1, 24, 4), &err),
        ESP_EUNSUPPORTED, &err, "'>i4'");
    test_refused(
        esp_npy_open(&a, make("{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3)}", 1, 24, 4), &err),
        ESP_EUNSUPPORTED, &err, "column order");
    test_refused(
        esp_npy_open(&a, make("{'descr': '<i4', 'fortran_order': False, 'shape': (7,)}", 1, 24, 4), &err),
        ESP_EFORMAT, &err, "24 bytes of data");
    test_refused(
        esp_npy_open(&a, make("{'descr': '<i4', 'fortran_order': False, 'shape': (5,)}", 1, 24, 4), &err),
        ESP_EFORMAT, &err, "24 bytes of data");
    test_refused(
        esp_npy_open(
            &a, make("{'descr': '<i8', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", 1, 24, 4),
            &err),
        ESP_EFORMAT, &err, "says otherwise");
    test_refused(esp_npy_open(&a, make("{}", 4, 0, 4), &err), ESP_EUNSUPPORTED, &err, "version 4");
    file = test_write(test_tmpdir(), "b.npy", "\x93NUMPY\1\0\xff\xff{}", 12);
    test_refused(esp_npy_open(&a, file, &err), ESP_EFORMAT, &err, "does not fit");
    file = test_write(test_tmpdir(), "c.npy", "\x93NUMPY", 6);
    test_refused(esp_npy_open(&a, file, &err), ESP_EFORMAT, &err, "not a NumPy file");
    assert_true(esp_npy_is(file));
    assert_false(esp_npy_is("/no/such/file"));
    assert_false(esp_npy_is("/dev/null"));
    test_refused(esp_npy_open(&a, "/no/such/file", &err), ESP_ENOTFOUND, &err, "/no/such/file");
}

/* Cut a good file at every length: refused each time, but for the whole. */
static void test_every_cut(void **state)
{
    static const char header[] = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }";
    char file[128];
    const size_t len = 10 + sizeof header - 1 + 24;
    FILE *f = fopen(make(header, 1, 24, 4), "rb");

    (void)state;
    assert_non_null(f);
    assert_int_equal(fread(file, 1, sizeof file, f), len);
    fclose(f);
    for (size_t n = 0; n < len; n++) {
        struct esp_npy a;

        assert_int_not_equal(esp_npy_open(&a, test_write(test_tmpdir(), "cut.npy", file, n), NULL), ESP_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_contents),
        cmocka_unit_test(test_every_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
