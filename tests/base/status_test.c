/* Error records: names, safe messages, cutting, prefixes. SPDX-License-Identifier: MIT */
#include "support/support.h"

#include <string.h>

#include "base/utf8.h"

static void test_names(void **state)
{
    (void)state;
    for (int s = ESP_OK; s <= ESP_ENUMERIC; s++) {
        assert_string_not_equal(esp_status_name((esp_status)s), "unknown");
        for (int t = ESP_OK; t < s; t++)
            assert_string_not_equal(esp_status_name((esp_status)s), esp_status_name((esp_status)t));
    }
    assert_string_equal(esp_status_name((esp_status)(ESP_ENUMERIC + 1)), "unknown");
    assert_string_equal(esp_status_name((esp_status)-1), "unknown");
}

static void test_message(void **state)
{
    esp_error e = {0};

    (void)state;
    assert_int_equal(esp_fail(&e, ESP_EFORMAT, "%s: %d bytes", "x", 7), ESP_EFORMAT);
    assert_int_equal(e.status, ESP_EFORMAT);
    assert_string_equal(e.message, "x: 7 bytes");
    assert_int_equal(esp_fail(NULL, ESP_EIO, "nobody listens"), ESP_EIO);
    assert_int_equal(esp_fail_in(NULL, ESP_EIO, "nobody listens"), ESP_EIO);
}

static void test_hostile_bytes(void **state)
{
    esp_error e;

    (void)state;
    esp_fail(&e, ESP_EFORMAT, "%s", "a\x1b[31mb\nc\x7f\xff\xc3(\xc2\x9b\xed\xa0\x80");
    /* in two parts, since two question marks and a bracket are a trigraph */
    assert_string_equal(e.message, "a?[31mb?c???"
                                   "(?????");
    assert_true(esp_utf8_valid(e.message, strlen(e.message), NULL));
    esp_fail(&e, ESP_EFORMAT, "%s", "gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80"); /* valid text stays as it is */
    assert_string_equal(e.message, "gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80");
}

/* A cut message must stay valid wherever the cut falls in a character of one to four bytes. */
static void test_cut(void **state)
{
    static const char *const chars[] = {"a", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    char text[2 * ESP_ERROR_MESSAGE_BYTES];
    esp_error e;

    (void)state;
    for (size_t c = 0; c < 4; c++)
        for (size_t shift = 0; shift < 4; shift++) {
            size_t n = shift, w = strlen(chars[c]), len;

            memset(text, 'x', n);
            while (n + w < sizeof text) {
                memcpy(text + n, chars[c], w);
                n += w;
            }
            text[n] = 0;
            esp_fail(&e, ESP_EINVAL, "%s", text);
            len = strlen(e.message);
            assert_in_range(len, ESP_ERROR_MESSAGE_BYTES - 4, ESP_ERROR_MESSAGE_BYTES - 1);
            assert_string_equal(e.message + len - 3, "...");
            assert_true(esp_utf8_valid(e.message, len, NULL));
            assert_null(strchr(e.message, '?'));
        }
}

static void test_longest_fits(void **state)
{
    char text[ESP_ERROR_MESSAGE_BYTES];
    esp_error e;

    (void)state;
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = 0;
    esp_fail(&e, ESP_EINVAL, "%s", text);
    assert_string_equal(e.message, text);
}

static void test_prefix(void **state)
{
    esp_error e;

    (void)state;
    esp_fail(&e, ESP_EFORMAT, "shape [3]");
    assert_int_equal(esp_fail_in(&e, ESP_EINVAL, "tensor %s", "w"), ESP_EINVAL);
    assert_int_equal(e.status, ESP_EINVAL);
    assert_string_equal(e.message, "tensor w: shape [3]");
}

static esp_status pass_up(esp_status s, int *reached)
{
    ESP_TRY(s);
    *reached = 1;
    return ESP_OK;
}

static void test_try(void **state)
{
    int reached = 0;

    (void)state;
    assert_int_equal(pass_up(ESP_ENOFIT, &reached), ESP_ENOFIT);
    assert_int_equal(reached, 0);
    assert_int_equal(pass_up(ESP_OK, &reached), ESP_OK);
    assert_int_equal(reached, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),         cmocka_unit_test(test_message),
        cmocka_unit_test(test_hostile_bytes), cmocka_unit_test(test_cut),
        cmocka_unit_test(test_longest_fits),  cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_try),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
