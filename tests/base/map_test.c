/* Files as bytes: what is refused, empty files, limits, no memory. SPDX-License-Identifier: MIT */
#include "support/support.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/map.h"
#include "base/mem.h"

static void test_map(void **state)
{
    const char *path = test_write(test_tmpdir(), "f", "hello\0world", 11);
    struct esp_map m = {0};
    esp_error e;

    (void)state;
    test_ok(esp_map_open(&m, path, &e), &e);
    assert_int_equal(m.size, 11);
    assert_memory_equal(m.data, "hello\0world", 11);
    assert_string_equal(m.name, path);
    esp_map_close(&m);
    assert_null(m.data);
    esp_map_close(&m); /* closing twice is fine */
    test_ok(esp_map_open(&m, path, NULL), NULL);
    esp_map_close(&m);
}

static void test_read(void **state)
{
    const char *path = test_write(test_tmpdir(), "r", "hello\0world", 11),
               *empty = test_write(test_tmpdir(), "e", "", 0);
    struct esp_map m = {.size = 77};
    esp_error e;

    (void)state;
    test_refused(esp_map_read(&m, "/no/such/file", &e), ESP_ENOTFOUND, &e, "/no/such/file");
    test_refused(esp_map_read(&m, "/tmp", &e), ESP_EFORMAT, &e, "not a regular file");
    assert_int_equal(m.size, 77);
    test_ok(esp_map_read(&m, path, &e), &e);
    assert_int_equal(truncate(path, 0), 0); /* nothing is read from the file again */
    assert_int_equal(m.size, 11);
    assert_memory_equal(m.data, "hello\0world", 11);
    esp_map_close(&m);
    test_ok(esp_map_read(&m, empty, &e), &e);
    assert_int_equal(m.size, 0);
    esp_map_close(&m);
}

static void test_empty(void **state)
{
    const char *path = test_write(test_tmpdir(), "empty", "", 0);
    struct esp_map m = {0};
    esp_error e;
    char *text;
    size_t len = 9;

    (void)state;
    test_ok(esp_map_open(&m, path, &e), &e);
    assert_int_equal(m.size, 0);
    assert_null(m.data);
    esp_map_close(&m);
    test_ok(esp_read_file(&text, &len, path, 0, &e), &e);
    assert_int_equal(len, 0);
    assert_string_equal(text, "");
    esp_free(text);
}

static void refuse_both(const char *path, esp_status wanted, const char *part)
{
    struct esp_map m = {.size = 77};
    char *text = NULL;
    size_t len = 78;
    esp_error e;

    test_refused(esp_map_open(&m, path, &e), wanted, &e, part);
    assert_int_equal(m.size, 77); /* outputs are untouched on failure */
    test_refused(esp_read_file(&text, &len, path, 1000, &e), wanted, &e, part);
    assert_null(text);
    assert_int_equal(len, 78);
}

static void test_refusals(void **state)
{
    const char *dir = test_tmpdir();
    char *fifo = esp_path_join(dir, "fifo"), *gone = esp_path_join(dir, "gone");
    const char *file = test_write(dir, "file", "x", 1);
    char *below = esp_path_join(file, "x"), *loop = esp_path_join(dir, "loop");

    (void)state;
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(symlink("loop", loop), 0);
    refuse_both(dir, ESP_EFORMAT, "not a regular file");
    refuse_both(fifo, ESP_EFORMAT, "not a regular file"); /* and opening it does not block */
    refuse_both("/dev/null", ESP_EFORMAT, "not a regular file");
    refuse_both(gone, ESP_ENOTFOUND, "gone");
    refuse_both(below, ESP_ENOTFOUND, "x");
    refuse_both("", ESP_ENOTFOUND, NULL);
    refuse_both(loop, ESP_EIO, "loop");
    esp_free(fifo);
    esp_free(gone);
    esp_free(below);
    esp_free(loop);
}

static void test_read_limit(void **state)
{
    const char *path = test_write(test_tmpdir(), "f", "12345", 5);
    esp_error e;
    char *text;
    size_t len;

    (void)state;
    test_ok(esp_read_file(&text, &len, path, 5, &e), &e);
    assert_int_equal(len, 5);
    assert_string_equal(text, "12345");
    esp_free(text);
    test_refused(esp_read_file(&text, &len, path, 4, &e), ESP_EFORMAT, &e, "5 bytes, at most 4");
}

static void test_join(void **state)
{
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"},
        {"/", "b", "/b"},  {"a", "", "a/"},    {"", "", ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *p = esp_path_join(cases[i][0], cases[i][1]);

        assert_string_equal(p, cases[i][2]);
        esp_free(p);
    }
}

static void test_no_memory(void **state)
{
    const char *path = test_write(test_tmpdir(), "f", "12345", 5);
    struct esp_map m = {0};
    esp_error e;
    char *text;
    size_t len;

    (void)state;
    esp_mem_fail_at(0);
    test_refused(esp_map_open(&m, path, &e), ESP_ENOMEM, &e, "memory");
    esp_mem_fail_at(0);
    test_refused(esp_read_file(&text, &len, path, 5, &e), ESP_ENOMEM, &e, "memory for 5 bytes");
    esp_mem_fail_at(0);
    assert_null(esp_path_join("a", "b"));
    esp_mem_fail_at(-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map),       cmocka_unit_test(test_read),       cmocka_unit_test(test_empty),
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_read_limit), cmocka_unit_test(test_join),
        cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
