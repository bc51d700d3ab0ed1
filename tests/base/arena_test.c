/* Arena: alignment, zeroing, its maximum, reuse after reset, no memory. SPDX-License-Identifier: MIT */
#include "support/support.h"

#include <string.h>

#include "base/arena.h"
#include "base/mem.h"

static void test_many(void **state)
{
    struct esp_arena *a = esp_arena_create(1 << 20);
    uint8_t *got[2000];
    size_t total = 0;

    (void)state;
    assert_non_null(a);
    for (size_t i = 0; i < 2000; i++) {
        size_t size = i % 97;

        got[i] = esp_arena_alloc(a, size);
        assert_non_null(got[i]);
        assert_int_equal((uintptr_t)got[i] % 16, 0);
        for (size_t j = 0; j < size; j++)
            assert_int_equal(got[i][j], 0);
        memset(got[i], (int)(i & 0xff), size);
        total += size;
    }
    for (size_t i = 0; i < 2000; i++) /* nobody wrote into another's bytes */
        for (size_t j = 0; j < i % 97; j++)
            assert_int_equal(got[i][j], i & 0xff);
    assert_true(esp_arena_used(a) >= total);
    assert_true(esp_arena_reserved(a) >= esp_arena_used(a));
    esp_arena_destroy(a);
    esp_arena_destroy(NULL);
}

static void test_maximum(void **state)
{
    struct esp_arena *a = esp_arena_create(1000); /* 62 units of 16 bytes */

    (void)state;
    assert_null(esp_arena_alloc(a, 1001));
    assert_null(esp_arena_alloc(a, SIZE_MAX));
    assert_null(esp_arena_alloc(a, SIZE_MAX - 15));
    assert_null(esp_arena_alloc_array(a, SIZE_MAX / 4, 8));
    assert_null(esp_arena_strndup(a, "", SIZE_MAX));
    assert_int_equal(esp_arena_used(a), 0);
    for (int i = 0; i < 62; i++)
        assert_non_null(esp_arena_alloc(a, 16));
    assert_null(esp_arena_alloc(a, 1));
    assert_int_equal(esp_arena_used(a), 992);
    esp_arena_reset(a);
    assert_int_equal(esp_arena_used(a), 0);
    assert_non_null(esp_arena_alloc(a, 992));
    esp_arena_destroy(a);
}

static void fill(struct esp_arena *a, size_t largest)
{
    for (size_t size = 1; size <= largest; size *= 2) {
        uint8_t *p = esp_arena_alloc(a, size);

        assert_non_null(p);
        for (size_t i = 0; i < size; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xee, size); /* so that a reused byte would show */
    }
}

static void test_reset(void **state)
{
    struct esp_arena *a = esp_arena_create(64 << 20);
    size_t reserved;

    (void)state;
    esp_arena_reset(a); /* before the first block */
    fill(a, 1 << 18);
    reserved = esp_arena_reserved(a);
    for (int round = 0; round < 10; round++) {
        esp_arena_reset(a);
        fill(a, 1 << 18);
        assert_int_equal(esp_arena_reserved(a), reserved); /* the same round takes no new block */
    }
    esp_arena_reset(a);
    assert_non_null(esp_arena_alloc(a, 20 << 20)); /* larger than every kept block */
    assert_non_null(esp_arena_alloc(a, 1));
    esp_arena_destroy(a);
}

static void test_strndup(void **state)
{
    struct esp_arena *a = esp_arena_create(1000);

    (void)state;
    assert_string_equal(esp_arena_strndup(a, "abcdef", 3), "abc");
    assert_string_equal(esp_arena_strndup(a, NULL, 0), "");
    esp_arena_destroy(a);
}

static void test_no_memory(void **state)
{
    struct esp_arena *a;

    (void)state;
    esp_mem_fail_at(0);
    assert_null(esp_arena_create(100));
    esp_mem_fail_at(-1);
    a = esp_arena_create(1 << 20);
    esp_mem_fail_at(0);
    assert_null(esp_arena_alloc(a, 100)); /* the first block */
    esp_mem_fail_at(-1);
    assert_int_equal(esp_arena_used(a), 0);
    assert_non_null(esp_arena_alloc(a, 4000));
    esp_mem_fail_at(0);
    assert_null(esp_arena_alloc(a, 5000));   /* the second block */
    assert_non_null(esp_arena_alloc(a, 90)); /* what is left of the first serves on */
    esp_mem_fail_at(-1);
    assert_non_null(esp_arena_alloc(a, 5000));
    esp_arena_destroy(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many),    cmocka_unit_test(test_maximum),   cmocka_unit_test(test_reset),
        cmocka_unit_test(test_strndup), cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
