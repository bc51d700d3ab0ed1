/*
 * Safetensors writer: what it writes reads back equal, and a failed write leaves nothing behind.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/map.h"
#include "base/mem.h"
#include "io/safetensors.h"
#include "io/safetensors_write.h"

enum { MAX_TENSORS = 24, MAX_BYTES = 1 << 16 };

static uint32_t next_random(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

struct spec {
    char name[64];
    enum esp_dtype dtype;
    uint32_t n_dim;
    uint64_t shape[ESP_LIMIT_DIMS];
    size_t at, bytes;
};

/* A name with everything JSON must escape in it. */
static void random_name(char *out, uint32_t i, uint64_t *seed)
{
    static const char *const piece[] = {"\"", "\\", "/", "\n", "\x01", "\x7f", "\xc3\xa9", "\xf0\x9f\x98\x80",
                                        "a",  "."};
    size_t n = 0;

    for (uint32_t k = next_random(seed) % 6; k > 0; k--) {
        const char *p = piece[next_random(seed) % 10];

        memcpy(out + n, p, strlen(p));
        n += strlen(p);
    }
    snprintf(out + n, 16, "%u", i);
}

static void random_spec(struct spec *t, uint32_t i, size_t at, uint64_t *seed)
{
    size_t n = 1;

    memset(t, 0, sizeof *t);
    random_name(t->name, i, seed);
    t->dtype = (enum esp_dtype)(1 + next_random(seed) % ESP_DTYPE_BOOL);
    t->n_dim = next_random(seed) % 5;
    for (uint32_t k = 0; k < t->n_dim; k++) {
        t->shape[k] = next_random(seed) % 5;
        n *= t->shape[k];
    }
    t->at = at;
    t->bytes = n * esp_dtype_size(t->dtype);
}

static void write_all(const char *path, const struct spec *t, uint32_t n, const uint8_t *data, uint64_t *seed)
{
    struct esp_st_writer *w = NULL;
    size_t total = n ? t[n - 1].at + t[n - 1].bytes : 0, given = 0;
    esp_error err;

    test_ok(esp_st_writer_create(&w, path, &err), &err);
    test_ok(esp_st_writer_metadata(w, "format", "pt", &err), &err);
    test_ok(esp_st_writer_metadata(w, "quote\"d", "\t\\", &err), &err);
    for (uint32_t i = 0; i < n; i++)
        test_ok(esp_st_writer_declare(w, t[i].name, t[i].dtype, t[i].n_dim, t[i].shape, &err), &err);
    while (given < total) {
        size_t k = 1 + next_random(seed) % 700;

        k = k < total - given ? k : total - given;
        test_ok(esp_st_writer_data(w, data + given, k, &err), &err);
        given += k;
    }
    test_ok(esp_st_writer_finish(w, &err), &err);
    esp_st_writer_destroy(w);
}

static void test_random_files_read_back(void **state)
{
    static uint8_t data[MAX_BYTES];
    const char *dir = test_tmpdir();
    uint64_t seed = 1;

    (void)state;
    for (size_t i = 0; i < MAX_BYTES; i++)
        data[i] = (uint8_t)next_random(&seed);
    for (int round = 0; round < 60; round++) {
        struct spec t[MAX_TENSORS];
        const uint32_t n = next_random(&seed) % MAX_TENSORS;
        char path[128];
        struct esp_st_file *f = NULL;
        esp_error err;
        size_t at = 0;

        for (uint32_t i = 0; i < n; i++) {
            random_spec(&t[i], i, at, &seed);
            at += t[i].bytes;
        }
        assert_true(at <= MAX_BYTES);
        snprintf(path, sizeof path, "%s/r.safetensors", dir);
        write_all(path, t, n, data, &seed);
        test_ok(esp_st_open(&f, path, &err), &err);
        assert_int_equal(esp_st_count(f), n);
        assert_string_equal(esp_st_metadata(f, "quote\"d"), "\t\\");
        for (uint32_t i = 0; i < n; i++) {
            const struct esp_st_tensor *x = esp_st_find(f, t[i].name);

            assert_non_null(x);
            assert_int_equal(x->dtype, t[i].dtype);
            assert_int_equal(x->n_dim, t[i].n_dim);
            assert_memory_equal(x->shape, t[i].shape, sizeof x->shape);
            assert_int_equal(x->bytes, t[i].bytes);
            if (x->bytes)
                assert_memory_equal(x->data, data + t[i].at, x->bytes);
        }
        esp_st_close(f);
    }
}

static uint32_t count_files(const char *dir)
{
    DIR *d = opendir(dir);
    uint32_t n = 0;

    for (const struct dirent *e = readdir(d); e; e = readdir(d))
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void test_same_calls_same_bytes(void **state)
{
    const char *dir = test_tmpdir();
    uint8_t data[64] = {1, 2, 3};
    struct spec t[2] = {{"b", ESP_DTYPE_F32, 1, {4}, 0, 16}, {"a", ESP_DTYPE_U8, 2, {2, 3}, 16, 6}};
    struct esp_map x, y;
    char px[128], py[128];
    uint64_t seed = 1;
    esp_error err;

    (void)state;
    snprintf(px, sizeof px, "%s/x", dir);
    snprintf(py, sizeof py, "%s/y", dir);
    write_all(px, t, 2, data, &seed);
    write_all(py, t, 2, data, &seed); /* other pieces */
    test_ok(esp_map_open(&x, px, &err), &err);
    test_ok(esp_map_open(&y, py, &err), &err);
    assert_int_equal(x.size, y.size);
    assert_memory_equal(x.data, y.data, x.size);
    assert_int_equal((x.size - 22) % 8, 0);
    esp_map_close(&x);
    esp_map_close(&y);
    assert_int_equal(count_files(dir), 2);
}

static void test_failed_write_keeps_the_old_file(void **state)
{
    const char *dir = test_tmpdir(), *path = test_write(dir, "old", "old", 3);
    const uint64_t shape[1] = {4};
    struct esp_st_writer *w = NULL;
    esp_error err;
    struct stat st;

    (void)state;
    test_ok(esp_st_writer_create(&w, path, &err), &err);
    test_ok(esp_st_writer_declare(w, "a", ESP_DTYPE_U8, 1, shape, &err), &err);
    test_ok(esp_st_writer_data(w, "xyz", 3, &err), &err);
    test_refused(esp_st_writer_finish(w, &err), ESP_ESTATE, &err, "3 bytes of data given, 4 were declared");
    test_refused(esp_st_writer_data(w, "xyz", 3, &err), ESP_EINVAL, &err, "4 were declared");
    test_refused(esp_st_writer_declare(w, "b", ESP_DTYPE_U8, 1, shape, &err), ESP_ESTATE, &err,
                 "after the first data");
    esp_st_writer_destroy(w);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 3);
    assert_int_equal(count_files(dir), 1);
}

static void test_bad_declarations(void **state)
{
    const uint64_t shape[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, huge[2] = {UINT64_MAX / 2, 3}, three[1] = {3};
    const char *dir = test_tmpdir();
    char path[128];
    struct esp_st_writer *w = NULL;
    esp_error err;

    (void)state;
    snprintf(path, sizeof path, "%s/x", dir);
    test_ok(esp_st_writer_create(&w, path, &err), &err);
    test_refused(esp_st_writer_declare(w, "", ESP_DTYPE_U8, 0, shape, &err), ESP_EINVAL, &err, "cannot name");
    test_refused(esp_st_writer_declare(w, "__metadata__", ESP_DTYPE_U8, 0, shape, &err), ESP_EINVAL, &err,
                 "cannot name");
    test_refused(esp_st_writer_declare(w, "\xff", ESP_DTYPE_U8, 0, shape, &err), ESP_EINVAL, &err, "UTF-8");
    test_refused(esp_st_writer_declare(w, "a", ESP_DTYPE_U8, 9, shape, &err), ESP_EINVAL, &err,
                 "9 dimensions");
    test_refused(esp_st_writer_declare(w, "a", ESP_DTYPE_U8, 2, huge, &err), ESP_EINVAL, &err, "too large");
    test_refused(esp_st_writer_declare(w, "a", ESP_DTYPE_F4, 1, three, &err), ESP_EINVAL, &err,
                 "whole bytes");
    test_ok(esp_st_writer_metadata(w, "k", "1", &err), &err);
    test_ok(esp_st_writer_metadata(w, "kk", "1", &err), &err);
    test_refused(esp_st_writer_metadata(w, "k", "2", &err), ESP_EINVAL, &err, "duplicate metadata key 'k'");
    test_ok(esp_st_writer_declare(w, "a", ESP_DTYPE_U8, 1, three, &err), &err);
    test_ok(esp_st_writer_declare(w, "a", ESP_DTYPE_U8, 0, shape, &err), &err);
    test_refused(esp_st_writer_data(w, "1234", 4, &err), ESP_EINVAL, &err, "duplicate tensor name 'a'");
    esp_st_writer_destroy(w);
    esp_st_writer_destroy(NULL);
    test_ok(esp_st_writer_create(&w, "/nonexistent-folder/x", &err), &err);
    test_refused(esp_st_writer_finish(w, &err), ESP_EIO, &err, "/nonexistent-folder/x");
    esp_st_writer_destroy(w);
    assert_int_equal(count_files(dir), 0);
}

static esp_status write_once(const char *path, esp_error *err)
{
    const uint64_t shape[1] = {4};
    struct esp_st_writer *w = NULL;
    esp_status s = esp_st_writer_create(&w, path, err);

    if (s == ESP_OK)
        s = esp_st_writer_metadata(w, "k", "v", err);
    if (s == ESP_OK)
        s = esp_st_writer_declare(w, "a", ESP_DTYPE_U8, 1, shape, err);
    if (s == ESP_OK)
        s = esp_st_writer_data(w, "1234", 4, err);
    if (s == ESP_OK)
        s = esp_st_writer_finish(w, err);
    esp_st_writer_destroy(w);
    return s;
}

static void test_every_allocation_fails(void **state)
{
    const char *dir = test_tmpdir();
    char path[128];
    int64_t n = 0;

    (void)state;
    snprintf(path, sizeof path, "%s/x", dir);
    for (;; n++) {
        esp_error err;
        esp_status s;

        assert_int_equal(count_files(dir), 0);
        esp_mem_fail_at(n);
        s = write_once(path, &err);
        esp_mem_fail_at(-1);
        if (s == ESP_OK)
            break; /* the last allocation only serves the directory sync, which is optional */
        test_refused(s, ESP_ENOMEM, &err, path);
    }
    assert_true(n >= 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_files_read_back),          cmocka_unit_test(test_same_calls_same_bytes),
        cmocka_unit_test(test_failed_write_keeps_the_old_file), cmocka_unit_test(test_bad_declarations),
        cmocka_unit_test(test_every_allocation_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
