/* JSON in: what is accepted and refused, depth, duplicates, places in messages. SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"

static void refuse(const char *text, unsigned flags, const char *part)
{
    json_t *j = NULL;
    esp_error e;

    test_refused(esp_json_parse(&j, text, strlen(text), "file.json", flags, &e), ESP_EFORMAT, &e, part);
    assert_null(j);
    assert_non_null(strstr(e.message, "file.json"));
}

static void accept(const char *text)
{
    json_t *j = NULL;
    esp_error e;

    test_ok(esp_json_parse(&j, text, strlen(text), "t", ESP_JSON_NO_DUPLICATES, &e), &e);
    assert_non_null(j);
    json_decref(j);
}

static void test_accepted(void **state)
{
    static const char *const good[] = {
        "{}",
        "[]",
        "null",
        " 1 ",
        "\"a\"",
        "-0.5e3",
        "9223372036854775807",
        "{\"a\":[1,{\"b\":null}]}",
        "\n[\t1\r]\n",
        "\"[[[[\\\"{{\"",
        "\"\\ud83d\\ude00\"",
    };

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        accept(good[i]);
}

static void test_refused_texts(void **state)
{
    static const char *const bad[] = {
        "",      " ",     "{",   "[1,]", "{\"a\"}",     "{a:1}",       "01",
        "1 2",   "[1] x", "nul", "\"a",  "\"\\ud800\"", "\"\\u0000\"", "9223372036854775808",
        "1e999", "NaN",   "'a'", "[1}",  "\"a\tb\"",    "// c\n1",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refuse(bad[i], 0, NULL);
    refuse("{\n  \"a\": ]\n}", 0, "line 2");
    refuse("\"\xff\"", 0, "invalid UTF-8 at byte 1");
    refuse("\"\xed\xa0\x80\"", 0, "UTF-8");
    refuse("\xef\xbb\xbf{}", 0, "invalid JSON"); /* a byte order mark is no JSON */
}

static void test_zero_byte(void **state)
{
    json_t *j = NULL;
    esp_error e;

    (void)state;
    test_refused(esp_json_parse(&j, "[1]\0", 4, "z", 0, &e), ESP_EFORMAT, &e, "invalid JSON");
    test_refused(esp_json_parse(&j, "[\"\\u0000\"]", 10, "z", 0, &e), ESP_EFORMAT, &e,
                 "no text has that character");
    test_refused(esp_json_parse(&j, NULL, 0, "z", 0, &e), ESP_EFORMAT, &e, "z: ");
}

static void test_duplicates(void **state)
{
    const char *text = "{\"k\": 1, \"k\": 2}";
    json_t *j;
    esp_error e;

    (void)state;
    refuse(text, ESP_JSON_NO_DUPLICATES, "duplicate");
    refuse("[{\"o\": {\"k\": 1, \"\\u006b\": 2}}]", ESP_JSON_NO_DUPLICATES,
           "duplicate"); /* the same key, escaped */
    test_ok(esp_json_parse(&j, text, strlen(text), "t", 0, &e), &e);
    assert_int_equal(json_integer_value(json_object_get(j, "k")), 2); /* the last one wins */
    json_decref(j);
}

/* Nested arrays, objects, or both in turn, n deep. */
static void nested(char *out, int n, int kind)
{
    size_t len = 0;

    for (int i = 0; i < n; i++) {
        const char *open = kind == 0 || (kind == 2 && i % 2) ? "[" : "{\"a\":";

        memcpy(out + len, open, strlen(open));
        len += strlen(open);
    }
    out[len++] = '1';
    for (int i = n - 1; i >= 0; i--)
        out[len++] = kind == 0 || (kind == 2 && i % 2) ? ']' : '}';
    out[len] = 0;
}

static void test_depth(void **state)
{
    static char text[8 * 100000];

    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        nested(text, ESP_LIMIT_JSON_DEPTH, kind);
        accept(text);
        nested(text, ESP_LIMIT_JSON_DEPTH + 1, kind);
        refuse(text, 0, "nested 129 deep, at most 128");
        nested(text, 100000, kind);
        refuse(text, 0, "nested 100000 deep");
    }
    memset(text, '[', 5000); /* never closed */
    text[5000] = 0;
    refuse(text, 0, "nested 5000 deep");
}

static void test_order(void **state)
{
    const char *text = "{\"z\":1,\"a\":2,\"m\":3}";
    json_t *j;
    char *back;
    esp_error e;

    (void)state;
    test_ok(esp_json_parse(&j, text, strlen(text), "t", 0, &e), &e);
    back = json_dumps(j, JSON_COMPACT);
    assert_string_equal(back, text); /* templates print tool schemas: key order is kept */
    free(back);
    json_decref(j);
}

static void test_load(void **state)
{
    const char *path = test_write(test_tmpdir(), "a.json", "{\"a\": 1}", 8);
    json_t *j = NULL;
    esp_error e;

    (void)state;
    test_ok(esp_json_load(&j, path, 8, 0, &e), &e);
    assert_int_equal(json_integer_value(json_object_get(j, "a")), 1);
    json_decref(j);
    j = NULL;
    test_refused(esp_json_load(&j, path, 7, 0, &e), ESP_EFORMAT, &e, "at most 7");
    test_refused(esp_json_load(&j, "/nonexistent/a.json", 7, 0, &e), ESP_ENOTFOUND, &e,
                 "/nonexistent/a.json");
    esp_mem_fail_at(0);
    test_refused(esp_json_load(&j, path, 8, 0, &e), ESP_ENOMEM, &e, path);
    esp_mem_fail_at(-1);
    path = test_write(test_tmpdir(), "bad.json", "{\"a\": 1", 7);
    test_refused(esp_json_load(&j, path, 8, 0, &e), ESP_EFORMAT, &e, path);
    assert_null(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),  cmocka_unit_test(test_refused_texts),
        cmocka_unit_test(test_zero_byte), cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_depth),     cmocka_unit_test(test_order),
        cmocka_unit_test(test_load),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
