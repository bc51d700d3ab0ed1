/* Byte strings: growth, the maximum, sticky failure, taking the memory. SPDX-License-Identifier: MIT */
#include "support/support.h"

#include <string.h>

#include "base/mem.h"
#include "base/strbuf.h"

static void test_append(void **state)
{
    struct esp_strbuf b;

    (void)state;
    esp_strbuf_init(&b, 1000);
    assert_string_equal(esp_strbuf_str(&b), "");
    assert_true(esp_strbuf_puts(&b, "ab"));
    assert_true(esp_strbuf_putc(&b, 'c'));
    assert_true(esp_strbuf_add(&b, "\0d", 2));
    assert_true(esp_strbuf_add(&b, NULL, 0));
    assert_true(esp_strbuf_printf(&b, "%s%03d", "e", 7));
    assert_int_equal(b.len, 9);
    assert_memory_equal(esp_strbuf_str(&b), "abc\0de007", 10);
    esp_strbuf_clear(&b);
    assert_string_equal(esp_strbuf_str(&b), "");
    assert_true(esp_strbuf_puts(&b, "again"));
    assert_string_equal(esp_strbuf_str(&b), "again");
    esp_strbuf_free(&b);
    assert_int_equal(b.max, 1000);
    assert_true(esp_strbuf_puts(&b, "usable after free"));
    esp_strbuf_free(&b);
}

static void test_growth(void **state)
{
    struct esp_strbuf b;

    (void)state;
    esp_strbuf_init(&b, 100000);
    esp_mem_fail_at(-1);
    for (int i = 0; i < 100000; i++)
        assert_true(esp_strbuf_putc(&b, (char)('a' + i % 26)));
    assert_true(esp_mem_fail_at(-1) < 20); /* amortised: doubling from 64 */
    assert_true(b.cap <= 100001);          /* and never past the maximum with its zero */
    for (int i = 0; i < 100000; i++)
        assert_int_equal(b.data[i], 'a' + i % 26);
    assert_false(esp_strbuf_putc(&b, 'x'));
    esp_strbuf_free(&b);
}

static void test_maximum(void **state)
{
    struct esp_strbuf b;

    (void)state;
    esp_strbuf_init(&b, 5);
    assert_true(esp_strbuf_puts(&b, "12345"));
    assert_true(esp_strbuf_puts(&b, ""));
    assert_false(b.failed);
    assert_false(esp_strbuf_putc(&b, '6'));
    assert_true(b.failed);
    assert_string_equal(esp_strbuf_str(&b), "12345"); /* what came before stays */
    esp_strbuf_clear(&b);
    assert_false(b.failed);
    assert_true(esp_strbuf_puts(&b, "123"));
    assert_false(esp_strbuf_printf(&b, "%d", 456));
    assert_false(esp_strbuf_putc(&b, '4')); /* sticky although it would fit */
    assert_string_equal(esp_strbuf_str(&b), "123");
    esp_strbuf_free(&b);
    esp_strbuf_init(&b, 0);
    assert_true(esp_strbuf_puts(&b, ""));
    assert_false(esp_strbuf_putc(&b, 'a'));
    esp_strbuf_free(&b);
    esp_strbuf_init(&b, SIZE_MAX); /* sums with the final zero must not wrap */
    assert_true(esp_strbuf_putc(&b, 'a'));
    assert_false(esp_strbuf_add(&b, "", SIZE_MAX - 1));
    esp_strbuf_free(&b);
}

static void test_take(void **state)
{
    struct esp_strbuf b;
    char *p;

    (void)state;
    esp_strbuf_init(&b, 100);
    p = esp_strbuf_take(&b);
    assert_string_equal(p, "");
    esp_free(p);
    esp_strbuf_puts(&b, "mine");
    p = esp_strbuf_take(&b);
    assert_string_equal(p, "mine");
    assert_null(b.data);
    assert_int_equal(b.len, 0);
    assert_true(esp_strbuf_puts(&b, "other"));
    assert_string_equal(p, "mine");
    esp_free(p);
    esp_strbuf_free(&b);
}

static void test_no_memory(void **state)
{
    struct esp_strbuf b;

    (void)state;
    esp_strbuf_init(&b, 1000);
    esp_mem_fail_at(0);
    assert_false(esp_strbuf_puts(&b, "a"));
    esp_mem_fail_at(-1);
    assert_true(b.failed);
    assert_string_equal(esp_strbuf_str(&b), "");
    esp_strbuf_clear(&b);
    assert_true(esp_strbuf_puts(&b, "kept"));
    esp_mem_fail_at(0);
    assert_false(esp_strbuf_printf(&b, "%200d", 1));
    esp_mem_fail_at(-1);
    assert_string_equal(esp_strbuf_str(&b), "kept");
    esp_strbuf_free(&b);
    esp_mem_fail_at(0);
    assert_null(esp_strbuf_take(&b));
    esp_mem_fail_at(-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append), cmocka_unit_test(test_growth),    cmocka_unit_test(test_maximum),
        cmocka_unit_test(test_take),   cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
