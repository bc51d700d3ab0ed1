/*
 * Ids and text against the reference library: the demo model's goldens, the miniature tokenizer, split
 * pieces, known ids of the real vocabulary (when ESPALIER_QWEN35 names its folder).
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/tok_help.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/map.h"
#include "base/mem.h"
#include "text/pretokenize.h"

static void assert_text(const struct esp_strbuf *b, const json_t *want)
{
    assert_int_equal(b->len, json_string_length(want));
    assert_memory_equal(esp_strbuf_str(b), json_string_value(want), b->len);
}

static void check_case(const struct esp_tokenizer *t, const json_t *c, const char *keep, const char *skip)
{
    const json_t *text = json_object_get(c, "text");
    struct esp_ids ids = tok_encode(t, json_string_value(text), json_string_length(text), ESP_TOK_TRUST_ALL);
    struct esp_strbuf b;

    tok_assert_ids(&ids, json_object_get(c, "ids"), json_string_value(text));
    b = tok_decode(t, &ids, 0);
    assert_text(&b, json_object_get(c, keep));
    esp_strbuf_free(&b);
    b = tok_decode(t, &ids, ESP_DETOK_SKIP_SPECIAL);
    assert_text(&b, json_object_get(c, skip));
    esp_strbuf_free(&b);
    esp_ids_free(&ids);
}

static void test_demo_goldens(void **state)
{
    struct esp_tokenizer *t = tok_open("models/demo");
    json_t *cases =
        json_load_file(test_path("models/demo-golden/tokenizer_golden.json"), JSON_ALLOW_NUL, NULL);

    (void)state;
    assert_non_null(cases);
    assert_true(json_array_size(cases) >= 50);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_case(t, json_array_get(cases, i), "decoded", "decoded_skip_special");
    json_decref(cases);
    esp_tokenizer_close(t);
}

static void test_field_case_9_mini(void **state)
{
    struct esp_tokenizer *t = tok_mini();
    json_t *root = test_json("tests/data/cases/tok_mini_expected.json");
    const json_t *cases = json_object_get(root, "cases");

    (void)state;
    assert_true(json_array_size(cases) >= 15);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_case(t, json_array_get(cases, i), "decode_keep_special", "decode_skip_special");
    json_decref(root);
    esp_tokenizer_close(t);
}

/* More of the miniature tokenizer's flags; ids from the same reference library. */
static void test_field_case_9_flags(void **state)
{
    static const struct {
        const char *text;
        size_t n;
        uint32_t ids[8];
    } cases[] = {
        {"r\u00e9sum\u00e9", 1, {315}},
        {"re\u0301sume\u0301 a", 2, {315, 271}}, /* looked for in the normal form */
        {"a dance b", 5, {97, 32, 314, 32, 98}},
        {"adance", 6, {97, 100, 97, 110, 99, 101}}, /* no single word */
        {"dance_", 6, {100, 97, 110, 99, 101, 95}},
        {"\u00e9 dance", 3, {276, 32, 314}},
        {"<|im_start|>x", 1, {316}}, /* the longest */
        {"<|im_start|>y", 2, {307, 121}},
        {"a<mask><mask> ", 4, {97, 312, 312, 32}},
        {"<sep> <mask>", 2, {313, 312}}, /* both want the space */
    };
    struct esp_tokenizer *t = tok_mini();

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct esp_ids ids = tok_encode(t, cases[i].text, strlen(cases[i].text), ESP_TOK_TRUST_ALL);

        if (ids.n != cases[i].n || memcmp(ids.data, cases[i].ids, ids.n * sizeof *ids.data) != 0)
            fail_msg("\"%s\": wrong ids", cases[i].text);
        esp_ids_free(&ids);
    }
    esp_tokenizer_close(t);
}

/* SHA-256, as FIPS 180-4 has it, of a message in memory. */
static void sha256_block(uint32_t h[8], const uint8_t *p)
{
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], s[8];

    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 |
               p[4 * i + 3];
#define ROR(x, n) ((x) >> (n) | (x) << (32 - (n)))
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] + (ROR(w[i - 15], 7) ^ ROR(w[i - 15], 18) ^ w[i - 15] >> 3) +
               (ROR(w[i - 2], 17) ^ ROR(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t a = s[7] + (ROR(s[4], 6) ^ ROR(s[4], 11) ^ ROR(s[4], 25)) +
                     ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
        uint32_t b =
            (ROR(s[0], 2) ^ ROR(s[0], 13) ^ ROR(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));

        memmove(s + 1, s, 7 * sizeof s[0]);
        s[4] += a;
        s[0] = a + b;
    }
#undef ROR
    for (int i = 0; i < 8; i++)
        h[i] += s[i];
}

static void sha256_hex(char out[65], const uint8_t *p, size_t len)
{
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t last[128] = {0};
    const size_t rest = len % 64, tail = rest < 56 ? 64 : 128;

    for (size_t i = 0; i + 64 <= len; i += 64)
        sha256_block(h, p + i);
    memcpy(last, p + (len - rest), rest);
    last[rest] = 0x80;
    for (int i = 0; i < 8; i++)
        last[tail - 1 - (size_t)i] = (uint8_t)((uint64_t)len * 8 >> (8 * i));
    for (size_t i = 0; i < tail; i += 64)
        sha256_block(h, last + i);
    for (int i = 0; i < 8; i++)
        snprintf(out + 8 * i, 9, "%08x", h[i]);
}

static void test_long_text(void **state)
{
    struct esp_tokenizer *t = tok_open("models/demo/tokenizer.json");
    json_t *want = test_json("models/demo-golden/tokenizer_long.json");
    struct esp_ids ids;
    uint8_t *bytes;
    char *text, hex[65];
    size_t len;
    esp_error err;

    (void)state;
    test_ok(esp_read_file(&text, &len, test_path("models/demo-golden/tokenizer_long.txt"), 1u << 20, &err),
            &err);
    ids = tok_encode(t, text, len, ESP_TOK_TRUST_ALL);
    assert_int_equal(ids.n, json_integer_value(json_object_get(want, "n_ids")));
    bytes = malloc(ids.n * 4);
    assert_non_null(bytes);
    for (size_t i = 0; i < ids.n * 4; i++)
        bytes[i] = (uint8_t)(ids.data[i / 4] >> 8 * (i % 4));
    sha256_hex(hex, bytes, ids.n * 4);
    assert_string_equal(hex, json_string_value(json_object_get(want, "sha256_of_ids_as_u32le")));
    free(bytes);
    esp_free(text);
    esp_ids_free(&ids);
    json_decref(want);
    esp_tokenizer_close(t);
}

static void check_pieces(const char *rule, const char *text, const json_t *want)
{
    struct esp_pretok p = {0};
    struct esp_pretok_cut cut;
    const char *piece = NULL;
    size_t len = 0, n = 0;
    esp_error err;

    test_ok(esp_pretok_add(&p, rule, strlen(rule), &err), &err);
    test_ok(esp_pretok_cut_init(&cut, &p, &err), &err);
    esp_pretok_cut_start(&cut, text, strlen(text));
    for (;; n++) {
        const json_t *w = json_array_get(want, n);

        test_ok(esp_pretok_cut_next(&cut, &piece, &len, &err), &err);
        if (len == 0)
            break;
        if (!w || json_string_length(w) != len || memcmp(piece, json_string_value(w), len) != 0)
            fail_msg("\"%s\": piece %zu is \"%.*s\"", text, n, (int)len, piece);
    }
    assert_int_equal(n, json_array_size(want));
    esp_pretok_cut_free(&cut);
    esp_pretok_free(&p);
}

static void test_field_case_9_splits(void **state)
{
    json_t *root = test_json("tests/data/cases/tokenizer_splits.json");
    const json_t *cases = json_object_get(root, "cases");

    (void)state;
    assert_true(json_array_size(cases) >= 5);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const char *nfc = json_string_value(json_object_get(c, "nfc"));

        check_pieces(json_string_value(json_object_get(root, "rule_qwen35")), nfc,
                     json_object_get(c, "qwen35"));
        check_pieces(json_string_value(json_object_get(root, "rule_qwen2")), nfc,
                     json_object_get(c, "qwen2"));
    }
    json_decref(root);
}

/* Letters and marks stay together: the rule of Qwen2 would cut these words. */
static void test_trap_26_marks_join_letters(void **state)
{
    static const char *const words[] = {"हिन्दी", "ภาษาไทยที่นี่", "مُحَمَّد", "q\u0323\u0307x", "\u1e9b\u0323"};
    json_t *root = test_json("tests/data/cases/tokenizer_splits.json");
    const char *rule = json_string_value(json_object_get(root, "rule_qwen35"));

    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        json_t *one = json_pack("[s]", words[i]);

        check_pieces(rule, words[i], one);
        json_decref(one);
    }
    json_decref(root);
}

/* Where PCRE2 and the reference's engine would differ if the pattern were used as it stands. */
static void test_engine_differences(void **state)
{
    json_t *root = test_json("tests/data/cases/tokenizer_splits.json");
    const char *rule = json_string_value(json_object_get(root, "rule_qwen35"));
    static const struct {
        const char *text, *pieces;
    } cases[] = {
        {"it'\u017f x", "[\"it\", \"'\\u017f\", \" x\"]"}, /* long s is an s without case */
        {"' 'LL\u212a", "[\"'\", \" '\", \"LL\\u212a\"]"}, /* the second ' belongs to the space */
        {"a\u180eb", "[\"a\", \"\\u180eb\"]"},             /* no white space since Unicode 6.3 */
        {"a \u180e\n", "[\"a\", \" \\u180e\\n\"]"},
        {"a\xc2\x85\u2028\u3000"
         "b",
         "[\"a\", \"\\u0085\\u2028\", \"\\u3000b\"]"},
        {"\U00031350\U00016d41\U00011f34",
         "[\"\\ud884\\udf50\\ud81b\\udd41\\ud807\\udf34\"]"},                 /* Unicode 15, 16 */
        {"\U00011f50\U00011f51", "[\"\\ud807\\udf50\", \"\\ud807\\udf51\"]"}, /* digits of 15 */
        {"\u00bd\u0664\u2167", "[\"\\u00bd\", \"\\u0664\", \"\\u2167\"]"},
        {" \n \n  x", "[\" \\n \\n\", \" \", \" x\"]"},
        {"!?\r\n\r\n ", "[\"!?\\r\\n\\r\\n\", \" \"]"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *want = json_loads(cases[i].pieces, 0, NULL);

        assert_non_null(want);
        check_pieces(rule, cases[i].text, want);
        json_decref(want);
    }
    json_decref(root);
}

static void test_split_stages(void **state)
{
    struct esp_pretok p = {0};
    struct esp_pretok_cut cut;
    const char *piece = NULL, *want[] = {"ab", "12", "3", " ", "c", "45", "d"};
    size_t len = 0, n = 0;
    esp_error err;

    (void)state;
    test_ok(esp_pretok_add(&p, "[a-z]+|\\s", 9, &err), &err);
    test_ok(esp_pretok_add(&p, "\\p{N}{1,2}", 10, &err), &err);
    test_ok(esp_pretok_cut_init(&cut, &p, &err), &err);
    for (int round = 0; round < 2; round++) {
        esp_pretok_cut_start(&cut, "ab123 c45d", 10);
        for (n = 0;; n++) {
            test_ok(esp_pretok_cut_next(&cut, &piece, &len, &err), &err);
            if (len == 0)
                break;
            assert_true(n < 7 && strlen(want[n]) == len);
            assert_memory_equal(piece, want[n], len);
        }
        assert_int_equal(n, 7);
    }
    esp_pretok_cut_start(&cut, "", 0);
    test_ok(esp_pretok_cut_next(&cut, &piece, &len, &err), &err);
    assert_int_equal(len, 0);
    esp_pretok_cut_free(&cut);
    esp_pretok_free(&p);
}

/* The real vocabulary is too large for the tree; its known ids are checked where it is at hand. */
static void test_field_case_9_known_ids(void **state)
{
    const char *dir = getenv("ESPALIER_QWEN35");
    json_t *root = test_json("tests/data/cases/tokenizer_known_ids.json");
    const json_t *known = json_object_get(root, "qwen3.5");
    struct esp_tokenizer *t = NULL;
    esp_error err;
    uint32_t id;

    (void)state;
    if (!dir) {
        json_decref(root);
        skip();
    }
    test_ok(esp_tokenizer_open(&t, dir, &err), &err);
    assert_true(esp_tokenizer_find(t, "<|im_start|>", 12, &id));
    assert_int_equal(id, json_integer_value(json_object_get(known, "<|im_start|>")));
    assert_true(esp_tokenizer_find(t, "</think>", 8, &id));
    assert_int_equal(id, json_integer_value(json_object_get(known, "</think>")));
    assert_int_equal(esp_tokenizer_n_ids(t) - 1,
                     json_integer_value(json_object_get(known, "highest_id_with_tokenizer_config")));
    json_decref(root);
    esp_tokenizer_close(t);
}

static void test_field_case_12_undefined_ids(void **state)
{
    static const uint32_t ids[] = {317, 318, 1000, 248077, 248319, ESP_LIMIT_VOCAB, UINT32_MAX};
    struct esp_tokenizer *t = tok_mini();
    struct esp_ids list = {(uint32_t *)(uintptr_t)ids, sizeof ids / sizeof ids[0], 0, 0};
    struct esp_strbuf b = tok_decode(t, &list, 0);

    (void)state;
    assert_int_equal(b.len, 0);
    esp_strbuf_free(&b);
    for (size_t i = 0; i < list.n; i++) {
        const char *bytes = NULL;
        size_t len = 9;

        esp_tokenizer_token_bytes(t, ids[i], &bytes, &len);
        assert_non_null(bytes);
        assert_int_equal(len, 0);
        assert_false(esp_tokenizer_is_special(t, ids[i]));
        assert_false(esp_tokenizer_is_added(t, ids[i]));
    }
    esp_tokenizer_close(t);
}

/* A sampler masks exactly the ids that are not defined. */
static void test_trap_34_defined_ids(void **state)
{
    struct esp_tokenizer *t = tok_mini();

    (void)state;
    assert_int_equal(esp_tokenizer_n_ids(t), 317);
    for (uint32_t id = 0; id < 317; id++) {
        const char *bytes;
        size_t len;
        uint32_t back;

        assert_true(esp_tokenizer_is_defined(t, id));
        esp_tokenizer_token_bytes(t, id, &bytes, &len);
        assert_true(len > 0);
        assert_true(esp_tokenizer_find(t, bytes, len, &back));
        assert_int_equal(back, id);
    }
    for (uint32_t id = 317; id < 1000; id++)
        assert_false(esp_tokenizer_is_defined(t, id));
    assert_true(esp_tokenizer_is_special(t, 307) && esp_tokenizer_is_added(t, 307));
    assert_true(!esp_tokenizer_is_special(t, 310) && esp_tokenizer_is_added(t, 310));
    assert_true(!esp_tokenizer_is_added(t, 263));
    assert_true(esp_tokenizer_bytes(t) > 5000 && esp_tokenizer_bytes(t) < 100000);
    esp_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo_goldens),           cmocka_unit_test(test_field_case_9_mini),
        cmocka_unit_test(test_field_case_9_flags),     cmocka_unit_test(test_long_text),
        cmocka_unit_test(test_field_case_9_splits),    cmocka_unit_test(test_trap_26_marks_join_letters),
        cmocka_unit_test(test_engine_differences),     cmocka_unit_test(test_split_stages),
        cmocka_unit_test(test_field_case_9_known_ids), cmocka_unit_test(test_field_case_12_undefined_ids),
        cmocka_unit_test(test_trap_34_defined_ids),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
