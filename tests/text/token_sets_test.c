/*
 * Sets of tokens by their text, on the small real vocabulary. SPDX-License-Identifier: MIT
 */
#include "text/tok_help.h"

#include <string.h>

#include "text/token_sets.h"

enum { WORDS = 64 };

static bool has(const uint64_t *bits, uint32_t id)
{
    return bits[id / 64] >> (id % 64) & 1;
}

static const char *bytes_of(const struct esp_tokenizer *t, uint32_t id, size_t *len)
{
    const char *bytes = "";

    *len = 0;
    esp_tokenizer_token_bytes(t, id, &bytes, len);
    return bytes;
}

static void test_texts(void **state)
{
    const char *const texts[] = {"e", ":"}, *const empty[] = {"a", ""};
    struct esp_tokenizer *t = tok_mini();
    uint64_t bits[WORDS] = {0};
    const struct esp_token_set set = {bits, WORDS};
    uint32_t n = 0;
    esp_error err;

    (void)state;
    assert_true(esp_tokenizer_n_ids(t) <= WORDS * 64);
    test_ok(esp_token_set_add_texts(&set, t, texts, 2, &err), &err);
    for (uint32_t id = 0; id < esp_tokenizer_n_ids(t); id++) {
        size_t len;
        const char *b = bytes_of(t, id, &len);
        const bool wanted = len && (memchr(b, 'e', len) || memchr(b, ':', len));

        assert_int_equal(has(bits, id), wanted);
        n += wanted;
    }
    assert_true(n >= 2);
    test_refused(esp_token_set_add_texts(&set, t, empty, 2, &err), ESP_EINVAL, &err, "text 1 is empty");
    esp_tokenizer_close(t);
}

/* A text longer than all tokens: the last token of its encoding, and that one alone. */
static void test_long_text(void **state)
{
    const char *const texts[] = {"no single token has all of this text"};
    struct esp_tokenizer *t = tok_mini();
    struct esp_ids ids = tok_encode(t, texts[0], strlen(texts[0]), 0);
    uint64_t bits[WORDS] = {0};
    const struct esp_token_set set = {bits, WORDS}, narrow = {bits, 0};
    esp_error err;

    (void)state;
    test_ok(esp_token_set_add_texts(&narrow, t, texts, 1, &err), &err); /* no room: nothing is written */
    test_ok(esp_token_set_add_texts(&set, t, texts, 1, &err), &err);
    for (uint32_t id = 0; id < WORDS * 64; id++)
        assert_int_equal(has(bits, id), id == ids.data[ids.n - 1]);
    esp_ids_free(&ids);
    esp_tokenizer_close(t);
}

static void test_line_ends(void **state)
{
    struct esp_tokenizer *t = tok_mini();
    uint64_t bits[WORDS] = {0};
    const struct esp_token_set set = {bits, WORDS};
    uint32_t n = 0;

    (void)state;
    esp_token_set_add_line_ends(&set, t);
    for (uint32_t id = 0; id < esp_tokenizer_n_ids(t); id++) {
        size_t len, i = 0;
        const char *b = bytes_of(t, id, &len);

        while (i < len && (b[i] == '\n' || b[i] == '\r'))
            i++;
        assert_int_equal(has(bits, id), len > 0 && i == len);
        n += len > 0 && i == len;
    }
    assert_true(n >= 1);
    esp_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_long_text),
        cmocka_unit_test(test_line_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
