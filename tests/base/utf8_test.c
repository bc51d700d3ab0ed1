/* UTF-8: strictness, incomplete tails, replacement spans. SPDX-License-Identifier: MIT */
#include "support/support.h"

#include <string.h>

#include "base/utf8.h"

static void test_strict(void **state)
{
    static const char *const bad[] = {"\xc0\x80", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                      "\x80",     "\xff",         "a\xc3"};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(esp_utf8_valid(bad[i], strlen(bad[i]), NULL));
    assert_true(esp_utf8_valid("\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80", 10, NULL));
}

static void test_round_trip(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        char b[4];
        uint32_t back;
        size_t n;

        if (cp >= 0xd800 && cp <= 0xdfff)
            continue;
        n = esp_utf8_encode(cp, b);
        assert_int_equal(esp_utf8_decode(b, n, &back), n);
        assert_int_equal(back, cp);
        for (size_t cut = 1; cut < n; cut++) {
            assert_int_equal(esp_utf8_incomplete_tail(b, cut), cut);
            assert_int_equal(esp_utf8_decode(b, cut, &back), 0);
        }
        assert_int_equal(esp_utf8_incomplete_tail(b, n), 0);
    }
}

static void test_bad_span(void **state)
{
    (void)state;
    assert_int_equal(esp_utf8_bad_span("\xe2\x82(", 3),
                     2); /* as Python: one U+FFFD for the started character */
    assert_int_equal(esp_utf8_bad_span("\xff\xff", 2), 1);
    assert_int_equal(esp_utf8_bad_span("\xed\xa0\x80", 3), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strict),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_bad_span),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
