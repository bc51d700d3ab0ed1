/*
 * Index sort: order, stability, all lengths around powers of two, memory failure.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include "base/mem.h"
#include "io/sort.h"

enum { MAX = 300 };

static int by_value(const void *ctx, uint32_t a, uint32_t b)
{
    const uint32_t *v = ctx;

    return v[a] < v[b] ? -1 : v[a] > v[b];
}

static void fill(uint32_t *v, size_t n, int pattern)
{
    uint32_t x = 12345;

    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        v[i] = pattern == 0   ? x >> 8
               : pattern == 1 ? (x >> 8) % 3
               : pattern == 2 ? (uint32_t)(n - i)
                              : (uint32_t)i;
    }
}

static void test_sorted_and_stable(void **state)
{
    uint32_t v[MAX];

    (void)state;
    for (int pattern = 0; pattern < 4; pattern++) {
        for (size_t n = 0; n <= MAX; n++) {
            uint32_t *idx, seen[MAX] = {0};

            fill(v, n, pattern);
            idx = esp_sort_new(n, by_value, v);
            assert_non_null(idx);
            for (size_t i = 0; i < n; i++) {
                assert_true(idx[i] < n && seen[idx[i]]++ == 0);
                if (i > 0)
                    assert_true(v[idx[i - 1]] < v[idx[i]] ||
                                (v[idx[i - 1]] == v[idx[i]] && idx[i - 1] < idx[i]));
            }
            esp_free(idx);
        }
    }
}

static void test_no_memory(void **state)
{
    const uint32_t v[3] = {3, 2, 1};
    uint32_t idx[3] = {0, 1, 2};

    (void)state;
    esp_mem_fail_at(0);
    assert_false(esp_sort_index(idx, 3, by_value, v));
    assert_int_equal(idx[0], 0);
    assert_int_equal(idx[2], 2);
    esp_mem_fail_at(1);
    assert_null(esp_sort_new(3, by_value, v));
    esp_mem_fail_at(-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sorted_and_stable),
        cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
