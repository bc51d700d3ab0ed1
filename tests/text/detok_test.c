/*
 * Field case 13: characters cut by tokens stay whole, every delta is valid UTF-8, streaming and whole
 * decoding agree.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/tok_help.h"

#include "base/utf8.h"

static size_t from_hex(char *out, const char *hex)
{
    size_t n = 0;

    for (; hex[2 * n]; n++) {
        unsigned v = 0;

        for (int k = 0; k < 2; k++) {
            const char c = hex[2 * n + (size_t)k];

            v = v * 16 + (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
        }
        out[n] = (char)v;
    }
    return n;
}

/* Feed bytes in pieces of the given size; every delta must be valid on its own. */
static struct esp_strbuf stream(const char *bytes, size_t len, size_t piece)
{
    struct esp_detok d;
    struct esp_strbuf b;
    esp_error err;

    esp_detok_init(&d, NULL, 0);
    esp_strbuf_init(&b, 1 << 20);
    for (size_t at = 0; at < len; at += piece) {
        const size_t before = b.len, n = len - at < piece ? len - at : piece;

        test_ok(esp_detok_push_bytes(&d, bytes + at, n, &b, &err), &err);
        assert_true(esp_utf8_valid(esp_strbuf_str(&b) + before, b.len - before, NULL));
    }
    test_ok(esp_detok_finish(&d, &b, &err), &err);
    return b;
}

static void test_field_case_13_streams(void **state)
{
    json_t *root = test_json("tests/data/cases/utf8_streams.json");
    const json_t *cases = json_object_get(root, "cases");

    (void)state;
    assert_true(json_array_size(cases) >= 4);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *pieces = json_object_get(c, "pieces_hex");
        const char *want = json_string_value(json_object_get(c, "expect_text"));
        char all[256];
        size_t len = 0;
        struct esp_detok d;
        struct esp_strbuf b;
        esp_error err;

        esp_detok_init(&d, NULL, 0);
        esp_strbuf_init(&b, 1000);
        for (size_t k = 0; k < json_array_size(pieces); k++) {
            const size_t n = from_hex(all + len, json_string_value(json_array_get(pieces, k))),
                         before = b.len;

            test_ok(esp_detok_push_bytes(&d, all + len, n, &b, &err), &err);
            assert_true(esp_utf8_valid(esp_strbuf_str(&b) + before, b.len - before, NULL));
            len += n;
        }
        test_ok(esp_detok_finish(&d, &b, &err), &err);
        assert_string_equal(esp_strbuf_str(&b), want);
        esp_strbuf_free(&b);
        for (size_t piece = 1; piece <= len; piece++) {
            b = stream(all, len, piece);
            assert_string_equal(esp_strbuf_str(&b), want);
            esp_strbuf_free(&b);
        }
    }
    json_decref(root);
}

/* All strings of up to five bytes over an alphabet that meets every rule of UTF-8, cut everywhere. */
static void test_every_cut_agrees(void **state)
{
    static const char alphabet[] = "a\x80\x9f\xa0\xbf\xc2\xe0\xed\xf0\xf4\xff";
    const size_t base = sizeof alphabet - 1;
    size_t total = 1;

    (void)state;
    for (int i = 0; i < 5; i++)
        total *= base;
    for (size_t code = 0; code < total; code++) {
        char s[5];
        struct esp_strbuf whole;
        size_t rest = code;

        for (int i = 0; i < 5; i++, rest /= base)
            s[i] = alphabet[rest % base];
        whole = stream(s, 5, 5);
        for (size_t piece = 1; piece < 5; piece++) {
            struct esp_strbuf b = stream(s, 5, piece);

            if (strcmp(esp_strbuf_str(&b), esp_strbuf_str(&whole)) != 0)
                fail_msg("string %zu cut every %zu bytes differs", code, piece);
            esp_strbuf_free(&b);
        }
        esp_strbuf_free(&whole);
    }
}

/* One replacement for each maximal ill-formed part, and no byte more or less. */
static void test_replacements(void **state)
{
    static const char *const cases[][2] = {
        {"\xf0\x9f\x98", "\ufffd"},   {"\xf0\x9f\x98\xf0\x9f\x98\x80", "\ufffd\U0001f600"},
        {"\xe2\x82(", "\ufffd("},     {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
        {"\xc0\x80", "\ufffd\ufffd"}, {"\xf5\x80", "\ufffd\ufffd"},
        {"\xc3", "\ufffd"},           {"\xc3\xc3\xa9", "\ufffd\u00e9"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct esp_strbuf b = stream(cases[i][0], strlen(cases[i][0]), 1);

        assert_string_equal(esp_strbuf_str(&b), cases[i][1]);
        esp_strbuf_free(&b);
    }
}

static void test_special_tokens(void **state)
{
    /* half an emoji, a special token, the other half; <think> is added but not special */
    static const uint32_t ids[] = {279, 308, 152, 128, 309, 97, 999999, 310, 307};
    struct esp_tokenizer *t = tok_mini();
    struct esp_ids list = {(uint32_t *)(uintptr_t)ids, sizeof ids / sizeof ids[0], 0, 0};
    struct esp_strbuf b = tok_decode(t, &list, ESP_DETOK_SKIP_SPECIAL);

    (void)state;
    assert_string_equal(esp_strbuf_str(&b), "\U0001f600<think>a</think>");
    esp_strbuf_free(&b);
    b = tok_decode(t, &list, 0);
    assert_string_equal(esp_strbuf_str(&b), "\ufffd<|im_end|>\ufffd\ufffd<think>a</think><|im_start|>");
    esp_strbuf_free(&b);
    esp_tokenizer_close(t);
}

/* An added token is its content, also where its characters are of the byte alphabet. */
static void test_added_tokens_are_literal(void **state)
{
    static const uint32_t id = 315;
    struct esp_tokenizer *t = tok_mini();
    struct esp_ids list = {(uint32_t *)(uintptr_t)&id, 1, 0, 0};
    struct esp_strbuf b = tok_decode(t, &list, 0);

    (void)state;
    assert_string_equal(esp_strbuf_str(&b), "r\u00e9sum\u00e9");
    esp_strbuf_free(&b);
    esp_tokenizer_close(t);
}

/* Ids at random: joined deltas equal the whole, and each delta stands alone. */
static void test_streaming_equals_whole(void **state)
{
    struct esp_tokenizer *t = tok_open("models/demo");
    uint64_t seed = 7;

    (void)state;
    for (int round = 0; round < 2000; round++) {
        uint32_t ids[24];
        struct esp_ids list = {ids, 24, 0, 0};
        const unsigned flags = round & 1 ? ESP_DETOK_SKIP_SPECIAL : 0;
        struct esp_strbuf whole, b;
        struct esp_detok d;
        esp_error err;

        for (size_t i = 0; i < 24; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            ids[i] = round % 3 ? (uint32_t)(seed >> 33) % 4100 : 94 + (uint32_t)(seed >> 33) % 162;
        }
        whole = tok_decode(t, &list, flags);
        esp_strbuf_init(&b, 1 << 20);
        esp_detok_init(&d, t, flags);
        for (size_t i = 0; i < 24; i++) {
            const size_t before = b.len;

            test_ok(esp_detok_push(&d, ids[i], &b, &err), &err);
            assert_true(esp_utf8_valid(esp_strbuf_str(&b) + before, b.len - before, NULL));
        }
        test_ok(esp_detok_finish(&d, &b, &err), &err);
        assert_int_equal(b.len, whole.len);
        assert_memory_equal(esp_strbuf_str(&b), esp_strbuf_str(&whole), b.len);
        esp_strbuf_free(&b);
        esp_strbuf_free(&whole);
    }
    esp_tokenizer_close(t);
}

static void test_no_room(void **state)
{
    struct esp_detok d;
    struct esp_strbuf b;
    esp_error err;

    (void)state;
    esp_detok_init(&d, NULL, 0);
    esp_strbuf_init(&b, 3);
    test_ok(esp_detok_push_bytes(&d, "ab\xc3", 3, &b, &err), &err);
    test_refused(esp_detok_push_bytes(&d, "\xa9z", 2, &b, &err), ESP_ENOMEM, &err, "at most 3");
    esp_strbuf_clear(&b); /* the caller makes room and goes on */
    test_ok(esp_detok_push_bytes(&d, "\xa9z", 2, &b, &err), &err);
    assert_string_equal(esp_strbuf_str(&b), "\u00e9z");
    esp_strbuf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_field_case_13_streams),
        cmocka_unit_test(test_every_cut_agrees),
        cmocka_unit_test(test_replacements),
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_added_tokens_are_literal),
        cmocka_unit_test(test_streaming_equals_whole),
        cmocka_unit_test(test_no_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
