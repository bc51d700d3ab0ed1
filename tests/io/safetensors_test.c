/*
 * Safetensors reader: the collected hostile files, one test a rule, damage at every byte, and every
 * allocation failing.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "io/safetensors.h"

/* A file in memory from its header text and n_data bytes of data. */
struct image {
    uint8_t bytes[4096];
    size_t size;
};

static struct image make(const char *header, size_t n_data)
{
    struct image m = {.size = 8 + strlen(header) + n_data};
    const uint64_t len = strlen(header);

    assert_true(m.size <= sizeof m.bytes);
    for (unsigned i = 0; i < 8; i++)
        m.bytes[i] = (uint8_t)(len >> (8 * i));
    memcpy(m.bytes + 8, header, len);
    for (size_t i = 0; i < n_data; i++)
        m.bytes[8 + len + i] = (uint8_t)i;
    return m;
}

static void refused(const char *header, size_t n_data, const char *part)
{
    const struct image m = make(header, n_data);
    struct esp_st_file *f = NULL;
    esp_error err;

    test_refused(esp_st_open_memory(&f, m.bytes, m.size, "f.safetensors", &err), ESP_EFORMAT, &err, part);
    assert_null(f);
    assert_ptr_equal(strstr(err.message, "f.safetensors: "), err.message);
}

static struct esp_st_file *accepted(const struct image *m)
{
    struct esp_st_file *f = NULL;
    esp_error err;

    test_ok(esp_st_open_memory(&f, m->bytes, m->size, "f.safetensors", &err), &err);
    return f;
}

#define T(name, dtype, shape, from, to)                                                                      \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" from "," to "]}"

/* ---- collected files ---- */

/* Processor time: what else runs on the machine does not count. */
static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static long peak_kib(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

static void check_odd_but_valid(const struct esp_st_file *f)
{
    const struct esp_st_tensor *t = esp_st_find(f, "z_last");
    const float want[4] = {1, 2, 3, 4};
    float scalar;

    assert_int_equal(esp_st_count(f), 4);
    assert_int_equal(esp_st_metadata_count(f), 0);
    assert_non_null(t);
    assert_int_equal(t->dtype, ESP_DTYPE_F32);
    assert_memory_equal(t->data, want, sizeof want);
    t = esp_st_find(f, "empty");
    assert_int_equal(esp_st_elements(t), 0);
    assert_int_equal(t->bytes, 0);
    t = esp_st_find(f, "a_first");
    assert_int_equal(t->n_dim, 0);
    assert_int_equal(esp_st_elements(t), 1);
    memcpy(&scalar, t->data, sizeof scalar);
    assert_true(scalar == 7.5f);
    t = esp_st_find(f, "n\xc3\xa9");
    assert_non_null(t);
    assert_memory_equal(t->data, "\1\2\3\4", 4);
    assert_string_equal(esp_st_get(f, 0)->name, "z_last");
    assert_string_equal(esp_st_sorted(f, 0)->name, "a_first");
}

/* What a message must contain, by file; the manifest has it in words. */
static const char *const message_parts[][2] = {
    {"header_len_u64max", "18446744073709551615"},
    {"overlap_alias", "overlap"},
    {"duplicate_key", "duplicate"},
    {"shape_bytes_disagree", "needs 32 bytes"},
    {"truncated_data", "truncated"},
    {"header_invalid_utf8", "UTF-8"},
};

/* Field cases 1 to 7: every safetensors file of the manifest. */
static void test_cases_1_to_7_manifest(void **state)
{
    json_t *manifest = test_json("tests/data/cases/manifest_binary.json"), *entry;
    size_t i, seen = 0;

    (void)state;
    json_array_foreach(manifest, i, entry)
    {
        const char *file = json_string_value(json_object_get(entry, "file"));
        const bool good = strncmp(json_string_value(json_object_get(entry, "expect")), "accepted", 8) == 0;
        char relative[256];
        struct esp_st_file *f = NULL;
        esp_error err = {ESP_OK, ""};
        const long before = peak_kib();
        const double start = now_s();
        esp_status s;

        if (strncmp(file, "st/", 3) != 0 || !strstr(file, ".safetensors") || strstr(file, ".json"))
            continue;
        seen++;
        snprintf(relative, sizeof relative, "tests/data/cases/%s", file);
        s = esp_st_open(&f, test_path(relative), &err);
        assert_true(now_s() - start < 1);
        assert_true(peak_kib() - before < 64 * 1024);
        if (good) {
            test_ok(s, &err);
            check_odd_but_valid(f);
            esp_st_close(f);
            continue;
        }
        test_refused(s, ESP_EFORMAT, &err, file + 3);
        assert_null(strchr(err.message, '\n'));
        for (size_t k = 0; k < sizeof message_parts / sizeof message_parts[0]; k++)
            if (strstr(file, message_parts[k][0]) && !strstr(err.message, message_parts[k][1]))
                fail_msg("%s: \"%s\" lacks \"%s\"", file, err.message, message_parts[k][1]);
    }
    assert_int_equal(seen, 7);
    json_decref(manifest);
}

static void test_case_4_both_sizes(void **state)
{
    struct esp_st_file *f = NULL;
    esp_error err;

    (void)state;
    test_refused(esp_st_open(&f, test_path("tests/data/cases/st/truncated_data.safetensors"), &err),
                 ESP_EFORMAT, &err, "128 bytes");
    assert_non_null(strstr(err.message, "found 88"));
    refused("{" T("a", "F32", "4", "0", "16") "}", 15, "truncated");
    refused("{" T("a", "U8", "9223372036854775807", "0", "9223372036854775807") "}", 4, "truncated");
    refused("{" T("a", "U8", "18446744073709551615", "0", "18446744073709551615") "}", 4, "truncated");
}

/* ---- rules ---- */

static void test_case_1_header_length(void **state)
{
    uint8_t raw[16] = {0};
    struct esp_st_file *f = NULL;
    esp_error err;

    (void)state;
    for (size_t n = 0; n < 8; n++)
        test_refused(esp_st_open_memory(&f, raw, n, "x", &err), ESP_EFORMAT, &err, "at least 8");
    test_refused(esp_st_open_memory(&f, raw, 8, "x", &err), ESP_EFORMAT, &err, "'{'");
    raw[0] = 9;
    test_refused(esp_st_open_memory(&f, raw, 16, "x", &err), ESP_EFORMAT, &err,
                 "truncated: header of 9 bytes");
    memset(raw, 0xff, 8);
    raw[7] = 0x7f;
    test_refused(esp_st_open_memory(&f, raw, 16, "x", &err), ESP_EFORMAT, &err, "above the limit");
    refused(" {}", 0, "begin with '{'");
    refused("[]", 0, "begin with '{'");
}

static void test_case_2_ownership(void **state)
{
    (void)state;
    refused("{" T("a", "U8", "4", "0", "4") "," T("b", "U8", "4", "2", "6") "}", 6, "'a' and 'b' overlap");
    refused("{" T("a", "U8", "4", "0", "4") "," T("b", "U8", "4", "0", "4") "}", 4, "overlap");
    refused("{" T("a", "U8", "4", "0", "4") "," T("b", "U8", "2", "5", "7") "}", 7, "bytes 4 to 5");
    refused("{" T("a", "U8", "4", "1", "5") "}", 5, "before tensor 'a'");
    refused("{" T("a", "U8", "4", "0", "4") "}", 5, "1 bytes after the last tensor a");
    refused("{}", 3, "3 bytes after");
    refused("{" T("a", "U8", "4", "0", "4") "," T("b", "U8", "0", "2", "2") "}", 4, "overlap");
    refused("{" T("a", "F32", "2,3", "0", "20") "}", 20, "needs 24 bytes");
    refused("{" T("a", "F32", "2,3", "20", "0") "}", 20, "give -20");
    refused("{" T("a", "F32", "", "0", "0") "}", 0, "needs 4 bytes");
    refused("{" T("a", "F32", "4611686018427387904", "0", "0") "}", 0, "fits 64 bits");
    refused("{" T("a", "U8", "4294967296,4294967296", "0", "0") "}", 0, "fits 64 bits");
    refused("{" T("a", "U8", "0,4294967296,4294967296", "0", "0") "}", 0, "fits 64 bits");
    refused("{" T("a", "F4", "3", "0", "1") "}", 1, "whole bytes");
}

static void test_case_3_duplicates(void **state)
{
    (void)state;
    refused("{" T("a", "U8", "1", "0", "1") "," T("b", "U8", "1", "1", "2") "," T("\\u0061", "U8", "1", "2",
                                                                                  "3") "}",
            3, "duplicate tensor name 'a'");
    refused("{\"__metadata__\":{\"k\":\"1\",\"j\":\"2\",\"k\":\"1\"}}", 0, "duplicate metadata key 'k'");
    refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate key '__metadata__'");
    refused("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
            "duplicate key 'dtype'");
}

static void test_case_5_unusual(void **state)
{
    const struct image m =
        make("{\"b\" : {\"shape\":[ 2 , 1],\"data_offsets\":[0,2],\"dtype\":\"\x42OOL\"},\n\t" T(
                 "", "I64", "1", "2",
                 "10") ","
                       "\"__metadata__\":{\"format\":\"pt\",\"\\ud83d\\ude00\":\"\\n\"}," T(
                           "e", "F64", "0", "10", "10") "," T("d", "U8", "1,1,1,1,1,1,1,1", "10", "11") "}  ",
             11);
    struct esp_st_file *f = accepted(&m);
    char text[64];

    (void)state;
    assert_int_equal(esp_st_count(f), 4);
    assert_string_equal(esp_st_metadata(f, "format"), "pt");
    assert_string_equal(esp_st_metadata(f, "\xf0\x9f\x98\x80"), "\n");
    assert_null(esp_st_metadata(f, "none"));
    assert_int_equal(esp_st_find(f, "")->bytes, 8); /* unaligned, and named by nothing */
    assert_int_equal(esp_st_find(f, "d")->n_dim, 8);
    assert_string_equal(esp_st_shape_text(esp_st_find(f, "b"), text, sizeof text), "[2,1]");
    assert_null(esp_st_find(f, "bb"));
    esp_st_close(f);
}

static void test_case_7_header_text(void **state)
{
    (void)state;
    refused("{\"a\\u0000\":1}", 0, "zero character");
    refused("{\"\\ud800\":1}", 0, "surrogate");
    refused("{\"\\ud800\\u0041\":1}", 0, "surrogate");
    refused("{\"\\udc00\":1}", 0, "surrogate");
    refused("{\"\xff\":1}", 0, "not UTF-8");
    refused("{\"a\nb\":1}", 0, "control character");
    refused("{\"\\x\":1}", 0, "unknown escape");
    refused("{\"a", 0, "unfinished string");
    refused("{\"a\\", 0, "unfinished string");
    refused("{\"a\\u12", 0, "four hex digits");
    refused("{", 0, "expected");
    refused("{,}", 0, "'\"' expected");
    refused("{}{}", 0, "after the end");
    refused("{\"a\":1}", 0, "'{' expected");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "'\"' expected");
    refused("{\"__metadata__\":[]}", 0, "'{' expected");
    refused("{" T("a", "F33", "1", "0", "4") "}", 4, "unknown dtype 'F33'");
    refused("{" T("a", "U8", "-1", "0", "4") "}", 4, "count");
    refused("{" T("a", "U8", "4.0", "0", "4") "}", 4, "fraction");
    refused("{" T("a", "U8", "4e0", "0", "4") "}", 4, "fraction");
    refused("{" T("a", "U8", "04", "0", "4") "}", 4, "leading zero");
    refused("{" T("a", "U8", "18446744073709551616", "0", "4") "}", 4, "2^64-1");
    refused("{" T("a", "U8", "1,1,1,1,1,1,1,1,1", "0", "1") "}", 1, "more than 8 dimensions");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "no 'data_offsets'");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1,
            "unknown field 'x'");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, "']' expected");
}

static void test_unsupported_dtype_is_listed(void **state)
{
    const struct image m =
        make("{" T("w", "F8_E4M3", "2,2", "0", "4") "," T("s", "BF16", "1", "4", "6") "}", 6);
    struct esp_st_file *f = accepted(&m);
    esp_error err;

    (void)state;
    assert_int_equal(esp_st_count(f), 2);
    test_refused(esp_st_check(esp_st_find(f, "w"), &err), ESP_EUNSUPPORTED, &err, "'w' has dtype F8_E4M3");
    test_ok(esp_st_check(esp_st_find(f, "s"), &err), &err);
    esp_st_close(f);
}

static void test_dtype_table(void **state)
{
    size_t n;

    (void)state;
    for (unsigned i = 1; i < ESP_DTYPE_COUNT; i++) {
        const char *name = esp_dtype_name((enum esp_dtype)i);

        assert_int_equal(esp_dtype_parse(name, strlen(name)), i);
        assert_true(esp_dtype_bits((enum esp_dtype)i) > 0);
        assert_true(esp_dtype_bytes(&n, (enum esp_dtype)i, 8));
        assert_int_equal(n, esp_dtype_bits((enum esp_dtype)i));
    }
    assert_int_equal(esp_dtype_parse("F3", 2), ESP_DTYPE_NONE);
    assert_int_equal(esp_dtype_parse("F322", 4), ESP_DTYPE_NONE);
    assert_false(esp_dtype_bytes(&n, ESP_DTYPE_F32, SIZE_MAX / 4 + 1));
    assert_false(esp_dtype_bytes(&n, ESP_DTYPE_NONE, 1));
}

static void test_not_a_file(void **state)
{
    struct esp_st_file *f = NULL;
    esp_error err;

    (void)state;
    test_refused(esp_st_open(&f, test_path("tests/data/none.safetensors"), &err), ESP_ENOTFOUND, &err,
                 "none.safetensors");
    test_refused(esp_st_open(&f, test_path("tests/data"), &err), ESP_EFORMAT, &err, "not a regular file");
}

/* ---- damage ---- */

/* Touch everything a caller may touch. */
static void walk(const struct esp_st_file *f, const struct image *m)
{
    size_t total = 0;

    for (uint32_t i = 0; i < esp_st_count(f); i++) {
        const struct esp_st_tensor *t = esp_st_get(f, i);

        total += t->bytes;
        assert_true(t->data >= m->bytes && t->data + t->bytes <= m->bytes + m->size);
        assert_ptr_equal(esp_st_find(f, t->name), t);
    }
    assert_true(total <= m->size);
}

static void test_every_byte_changed(void **state)
{
    const struct image good =
        make("{\"__metadata__\":{\"a\":\"b\"}," T("x.y", "F32", "2", "0", "8") "," T(
                 "e", "U8", "0,3", "8", "8") "," T("\\u00e9", "I16", "1,2", "8", "12") "} ",
             12);
    uint32_t n_loaded = 0, n_refused = 0;

    (void)state;
    for (size_t at = 0; at < good.size; at++) {
        for (unsigned v = 1; v < 256; v++) {
            struct image m = good;
            struct esp_st_file *f = NULL;
            esp_error err = {ESP_OK, ""};

            m.bytes[at] ^= (uint8_t)v;
            if (esp_st_open_memory(&f, m.bytes, m.size, "m", &err) == ESP_OK) {
                walk(f, &m);
                esp_st_close(f);
                n_loaded++;
            } else {
                assert_int_equal(err.status, ESP_EFORMAT);
                assert_true(err.message[0] != 0);
                n_refused++;
            }
        }
    }
    assert_true(n_loaded > 12 * 255); /* all of the data area, and some letters of names */
    assert_true(n_refused > 40000);
}

static void test_every_truncation(void **state)
{
    struct esp_map map;
    esp_error err;

    (void)state;
    test_ok(esp_map_open(&map, test_path("tests/data/cases/st/odd_but_valid.safetensors"), &err), &err);
    for (size_t n = 0; n < map.size; n++) {
        struct esp_st_file *f = NULL;

        test_refused(esp_st_open_memory(&f, map.data, n, "m", &err), ESP_EFORMAT, &err, NULL);
    }
    esp_map_close(&map);
}

static void test_every_allocation_fails(void **state)
{
    const char *path = test_path("tests/data/cases/st/odd_but_valid.safetensors");
    int64_t n = 0;

    (void)state;
    for (;; n++) {
        struct esp_st_file *f = NULL;
        esp_error err;
        esp_status s;

        esp_mem_fail_at(n);
        s = esp_st_open(&f, path, &err);
        esp_mem_fail_at(-1);
        if (s == ESP_OK) {
            esp_st_close(f);
            break;
        }
        test_refused(s, ESP_ENOMEM, &err, "odd_but_valid");
        assert_null(f);
    }
    assert_true(n >= 8);
}

/* Field case 1 at the other end: many tensors with equal beginnings, in hostile order, stay cheap. */
static void test_many_tensors(void **state)
{
    enum { N = 100000 };
    struct esp_strbuf b;
    struct esp_st_file *f = NULL;
    esp_error err;
    char *file;
    size_t header;
    double start;

    (void)state;
    esp_strbuf_init(&b, 1 << 26);
    esp_strbuf_printf(&b, "????????{");
    for (uint32_t i = 0; i < N; i++)
        esp_strbuf_printf(
            &b, "%s\"model.layers.%05u.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%u,%u]}",
            i ? "," : "", (i * 7919u) % N, i, i + 1);
    esp_strbuf_putc(&b, '}');
    header = b.len - 8;
    for (uint32_t i = 0; i < N; i++)
        esp_strbuf_putc(&b, (char)i);
    assert_false(b.failed);
    file = b.data;
    for (unsigned i = 0; i < 8; i++)
        file[i] = (char)(header >> (8 * i));
    start = now_s();
    test_ok(esp_st_open_memory(&f, file, b.len, "many", &err), &err);
    assert_true(now_s() - start < 6); /* under valgrind; comparing each with each takes more without it */
    assert_int_equal(esp_st_count(f), N);
    for (uint32_t i = 1; i < N; i++)
        assert_true(strcmp(esp_st_sorted(f, i - 1)->name, esp_st_sorted(f, i)->name) < 0);
    esp_st_close(f);
    esp_strbuf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases_1_to_7_manifest),
        cmocka_unit_test(test_case_1_header_length),
        cmocka_unit_test(test_case_2_ownership),
        cmocka_unit_test(test_case_3_duplicates),
        cmocka_unit_test(test_case_4_both_sizes),
        cmocka_unit_test(test_case_5_unusual),
        cmocka_unit_test(test_case_7_header_text),
        cmocka_unit_test(test_unsupported_dtype_is_listed),
        cmocka_unit_test(test_dtype_table),
        cmocka_unit_test(test_not_a_file),
        cmocka_unit_test(test_every_byte_changed),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_every_allocation_fails),
        cmocka_unit_test(test_many_tensors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
