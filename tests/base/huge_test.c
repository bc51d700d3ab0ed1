/* Blocks in huge pages: alignment, sizes, what is refused, and what the system says of them.
 * SPDX-License-Identifier: MIT */
#include "support/support.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/huge.h"
#include "base/map.h"

enum { N_KIND = 4 };

static bool file_says(const char *path, const char *part)
{
    char line[128] = "";
    FILE *f = fopen(path, "r");

    if (!f)
        return false;
    if (!fgets(line, sizeof line, f))
        line[0] = 0;
    fclose(f);
    return strstr(line, part) != NULL;
}

static void test_words(void **state)
{
    static const char *const words[N_KIND] = {"auto", "on", "off", "hugetlb"};
    enum esp_huge h;
    esp_error err;

    (void)state;
    for (int i = 0; i < N_KIND; i++) {
        test_ok(esp_huge_parse(&h, words[i], &err), &err);
        assert_int_equal(h, i);
    }
    test_ok(esp_huge_parse(&h, NULL, &err), &err);
    assert_int_equal(h, ESP_HUGE_AUTO);
    test_refused(esp_huge_parse(&h, "big", &err), ESP_EINVAL, &err, "auto, on, off, hugetlb");
}

static void test_round(void **state)
{
    (void)state;
    for (int h = 0; h < N_KIND; h++) {
        assert_int_equal(esp_huge_round((enum esp_huge)h, 0), 0);
        assert_int_equal(esp_huge_round((enum esp_huge)h, ESP_HUGE_PAGE - 1), ESP_HUGE_PAGE - 1);
        assert_int_equal(esp_huge_round((enum esp_huge)h, 3 * (size_t)ESP_HUGE_PAGE),
                         3 * (size_t)ESP_HUGE_PAGE);
    }
    assert_int_equal(esp_huge_round(ESP_HUGE_ON, ESP_HUGE_PAGE + 1), ESP_HUGE_PAGE + 1);
    assert_int_equal(esp_huge_round(ESP_HUGE_HUGETLB, ESP_HUGE_PAGE + 1), 2 * (size_t)ESP_HUGE_PAGE);
}

/* Every byte of a block is there, zero, and may be written; large ones begin where a huge page can. */
static void test_blocks(void **state)
{
    static const size_t sizes[] = {
        0, 1, 4096, ESP_HUGE_PAGE - 1, ESP_HUGE_PAGE, ESP_HUGE_PAGE + 5, 5 * (size_t)ESP_HUGE_PAGE + 4097};

    (void)state;
    for (int h = 0; h < N_KIND; h++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const bool large = sizes[i] >= ESP_HUGE_PAGE;
            void *block = NULL;
            uint8_t *p;
            esp_error err;
            const esp_status s = esp_huge_take(&block, sizes[i], (enum esp_huge)h, &err);

            if (h == ESP_HUGE_HUGETLB && large && s != ESP_OK) {
                test_refused(s, ESP_ENOFIT, &err, "nr_hugepages");
                continue;
            }
            test_ok(s, &err);
            p = block;
            if (large && h != ESP_HUGE_OFF)
                assert_int_equal((uintptr_t)p % ESP_HUGE_PAGE, 0);
            for (size_t k = 0; k < sizes[i]; k += 4096)
                assert_int_equal(p[k], 0);
            if (sizes[i])
                p[sizes[i] - 1] = 1;
            esp_huge_give(block, sizes[i], (enum esp_huge)h);
        }
    }
    esp_huge_give(NULL, 100, ESP_HUGE_AUTO);
}

static void test_too_large(void **state)
{
    void *p;
    esp_error err;

    (void)state;
    test_refused(esp_huge_take(&p, SIZE_MAX - 5, ESP_HUGE_ON, &err), ESP_ENOMEM, &err, "no memory");
    test_refused(esp_huge_take(&p, SIZE_MAX / 2, ESP_HUGE_OFF, &err), ESP_ENOMEM, &err, "no memory");
}

/* The hint is on the memory: the kernel lists it. ("hg", "nh" in VmFlags.) */
static bool has_flag(const void *p, const char *flag)
{
    char line[512];
    bool here = false, found = false;
    FILE *f = fopen("/proc/self/smaps", "r");

    assert_non_null(f);
    while (!found && fgets(line, sizeof line, f)) {
        unsigned long from, to;

        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            here = (uintptr_t)p >= from && (uintptr_t)p < to;
        else if (here && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, flag) != NULL;
    }
    fclose(f);
    return found;
}

static void test_hints(void **state)
{
    const size_t bytes = 4 * (size_t)ESP_HUGE_PAGE;
    struct esp_map map;
    uint8_t *data;
    esp_error err;

    (void)state;
    if (esp_huge_check(&err) != ESP_OK) {
        assert_true(strstr(err.message, "transparent") != NULL);
        skip();
    }
    assert_false(file_says("/sys/kernel/mm/transparent_hugepage/enabled", "[never]"));
    test_ok(esp_map_memory(&map, bytes, ESP_HUGE_HUGETLB, &data, &err), &err);
    assert_true(has_flag(data, " hg"));
    esp_map_close(&map);
    test_ok(esp_map_memory(&map, bytes, ESP_HUGE_OFF, &data, &err), &err);
    assert_true(has_flag(data, " nh"));
    esp_map_close(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),     cmocka_unit_test(test_round), cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_too_large), cmocka_unit_test(test_hints),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
