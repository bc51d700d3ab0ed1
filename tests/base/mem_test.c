/* Allocation: zeroing, alignment, checked sizes, injected failures. SPDX-License-Identifier: MIT */
#include "support/support.h"

#include <string.h>

#include "base/mem.h"

static void test_sizes(void **state)
{
    size_t out = 7;

    (void)state;
    assert_true(esp_mul_size(&out, 6, 9));
    assert_int_equal(out, 54);
    assert_true(esp_mul_size(&out, SIZE_MAX, 1));
    assert_true(esp_mul_size(&out, 0, SIZE_MAX));
    assert_int_equal(out, 0);
    assert_false(esp_mul_size(&out, SIZE_MAX / 2 + 1, 2));
    assert_true(esp_add_size(&out, SIZE_MAX - 1, 1));
    assert_true(out == SIZE_MAX);
    assert_false(esp_add_size(&out, SIZE_MAX, 1));
}

static void test_zeroed(void **state)
{
    uint8_t *p;

    (void)state;
    for (size_t size = 0; size < 300; size += 37) {
        p = esp_alloc(size);
        assert_non_null(p);
        for (size_t i = 0; i < size; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xa5, size);
        esp_free(p);
    }
    p = esp_alloc_array(5, 3);
    assert_memory_equal(p, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 15);
    esp_free(p);
    assert_null(esp_alloc_array(SIZE_MAX / 2, 3));
    esp_free(NULL);
    esp_free_aligned(NULL);
}

static void test_aligned(void **state)
{
    (void)state;
    for (size_t align = 64; align <= 65536; align *= 4)
        for (size_t size = 0; size < 5000; size = size * 3 + 1) {
            uint8_t *p = esp_alloc_aligned(size, align);

            assert_non_null(p);
            assert_int_equal((uintptr_t)p % align, 0);
            for (size_t i = 0; i < size; i++)
                assert_int_equal(p[i], 0);
            esp_free_aligned(p);
        }
    assert_null(esp_alloc_aligned(SIZE_MAX - 10, 64));
}

static void test_reallocate(void **state)
{
    char *p = esp_realloc(NULL, 4), *q;

    (void)state;
    assert_non_null(p);
    memcpy(p, "abc", 4);
    esp_mem_fail_at(0);
    q = esp_realloc(p, 1000);
    esp_mem_fail_at(-1);
    assert_null(q);
    assert_string_equal(p, "abc"); /* the old block stays */
    p = esp_realloc(p, 1000);
    assert_string_equal(p, "abc");
    p = esp_realloc(p, 0);
    assert_non_null(p);
    esp_free(p);
}

static void test_strndup(void **state)
{
    char *p = esp_strndup("a\0b", 3);

    (void)state;
    assert_memory_equal(p, "a\0b", 4);
    esp_free(p);
    p = esp_strndup(NULL, 0);
    assert_string_equal(p, "");
    esp_free(p);
    assert_null(esp_strndup("", SIZE_MAX));
}

static void test_fail_at(void **state)
{
    void *p;

    (void)state;
    for (int at = 0; at < 4; at++) {
        esp_mem_fail_at(at);
        for (int i = 0; i < 8; i++) {
            p = i % 2 ? esp_alloc_aligned(10, 64) : esp_alloc(10);
            if (i == at)
                assert_null(p);
            else
                assert_non_null(p); /* only the chosen one fails, and only once */
            esp_free(p);
        }
        assert_int_equal(esp_mem_fail_at(-1), 8);
    }
    p = esp_alloc(1);
    assert_non_null(p);
    esp_free(p);
    assert_int_equal(esp_mem_fail_at(-1), 1);
    assert_int_equal(esp_mem_fail_at(-1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),      cmocka_unit_test(test_zeroed),  cmocka_unit_test(test_aligned),
        cmocka_unit_test(test_reallocate), cmocka_unit_test(test_strndup), cmocka_unit_test(test_fail_at),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
