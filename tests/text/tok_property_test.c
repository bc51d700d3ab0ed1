/*
 * Properties over random text: what comes back is the text's NFC, whether or not tokens are recognised; and
 * merging by heap gives what merging by the book gives.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/tok_help.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/pretokenize_tables.h"

static uint64_t seed = 20260101;

static uint32_t below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

/* A character from one of the areas that matter; none that the reference's normaliser does not know, and no
 * NUL. */
static uint32_t random_cp(void)
{
    static const uint32_t area[][2] = {
        {1, 0x7f},          {0x20, 0x7e},       {0xa0, 0x24f},    {0x300, 0x36f},   {0x370, 0x5ff},
        {0x600, 0x1fff},    {0x2000, 0x33ff},   {0x1100, 0x11ff}, {0xac00, 0xd7a3}, {0xf900, 0xfaff},
        {0x1d100, 0x1d1ff}, {0x1f300, 0x1faff}, {1, 0x10ffff},    {0x9, 0xd},       {0x3099, 0x309a}};

    for (;;) {
        const uint32_t *a = area[below(sizeof area / sizeof area[0])];
        const uint32_t cp = a[0] + below(a[1] - a[0] + 1);
        const struct esp_cp_range *r = esp_norm_unknown;

        while (r->last && (cp < r->first || cp > r->last))
            r++;
        if (!r->last && (cp < 0xd800 || cp > 0xdfff))
            return cp;
    }
}

static size_t random_text(char *out, size_t n_chars)
{
    static const char *const words[] = {"<|im_end|>", "<think>", "</think>", "Hello", " world",
                                        "'s",         "'LL",     "  ",       "\n\n"};
    size_t len = 0;

    for (size_t i = 0; i < n_chars; i++) {
        if (below(8) == 0) {
            const char *w = words[below(sizeof words / sizeof words[0])];

            memcpy(out + len, w, strlen(w));
            len += strlen(w);
        } else {
            len += esp_utf8_encode(random_cp(), out + len);
        }
    }
    out[len] = '\0';
    return len;
}

static void test_decode_of_encode_is_nfc(void **state)
{
    struct esp_tokenizer *t = tok_open("models/demo");

    (void)state;
    for (int round = 0; round < 6000; round++) {
        char text[1024];
        const size_t len = random_text(text, 1 + below(80));
        struct esp_ids ids =
            tok_encode(t, text, len, 0); /* a recognised token would part '>' from a mark behind it */
        struct esp_strbuf b = tok_decode(t, &ids, 0);
        utf8proc_uint8_t *nfc = utf8proc_NFC((const utf8proc_uint8_t *)text);

        assert_non_null(nfc);
        if (strcmp((const char *)nfc, esp_strbuf_str(&b)) != 0)
            fail_msg("round %d: \"%s\" comes back as \"%s\"", round, text, esp_strbuf_str(&b));
        free(nfc);
        esp_strbuf_free(&b);
        esp_ids_free(&ids);
    }
    esp_tokenizer_close(t);
}

/* Decoding equals decoding of the parts when a text is cut at an added token. */
static void test_tokens_cut_text(void **state)
{
    struct esp_tokenizer *t = tok_open("models/demo");
    uint32_t end;

    (void)state;
    assert_true(esp_tokenizer_find(t, "<|im_end|>", 10, &end));
    for (int round = 0; round < 500; round++) {
        char a[512], b[512], all[1100];
        const size_t na = random_text(a, 1 + below(30)), nb = random_text(b, 1 + below(30));
        struct esp_ids ia = tok_encode(t, a, na, ESP_TOK_TRUST_ALL),
                       ib = tok_encode(t, b, nb, ESP_TOK_TRUST_ALL), i;

        memcpy(all, a, na);
        memcpy(all + na, "<|im_end|>", 10);
        memcpy(all + na + 10, b, nb);
        i = tok_encode(t, all, na + 10 + nb, ESP_TOK_TRUST_ALL);
        assert_int_equal(i.n, ia.n + 1 + ib.n);
        assert_memory_equal(i.data, ia.data, ia.n * sizeof *i.data);
        assert_int_equal(i.data[ia.n], end);
        assert_memory_equal(i.data + ia.n + 1, ib.data, ib.n * sizeof *i.data);
        esp_ids_free(&i);
        esp_ids_free(&ia);
        esp_ids_free(&ib);
    }
    esp_tokenizer_close(t);
}

/* The definition: merge the leftmost pair of the lowest rank until no pair can merge. */
static size_t merge_by_the_book(const struct esp_bpe *b, uint32_t *id, size_t n)
{
    for (;;) {
        size_t at = n;
        uint32_t rank = b->n_merges;

        for (size_t i = 0; i + 1 < n; i++) {
            for (uint32_t r = 0; r < rank; r++) {
                if (b->merge[r].left == id[i] && b->merge[r].right == id[i + 1]) {
                    rank = r;
                    at = i;
                    break;
                }
            }
        }
        if (at == n)
            return n;
        id[at] = b->merge[rank].result;
        memmove(id + at + 1, id + at + 2, (n - at - 2) * sizeof *id);
        n--;
    }
}

/* Tokens of three letters up to length 5, merges in random order: every overlap that can happen does. */
static void build_random_bpe(struct esp_bpe *b, json_t *vocab)
{
    uint32_t next = 256;
    esp_error err;

    for (uint32_t i = 0; i < 256; i++) {
        char s[8];
        uint32_t cp = i, shifted = 0;

        if (!((i >= 0x21 && i <= 0x7e) || (i >= 0xa1 && i != 0xad))) {
            for (uint32_t k = 0; k < i; k++)
                shifted += !((k >= 0x21 && k <= 0x7e) || (k >= 0xa1 && k != 0xad));
            cp = 0x100 + shifted;
        }
        test_ok(esp_bpe_add_token(b, s, esp_utf8_encode(cp, s), i, &err), &err);
    }
    json_object_set_new(vocab, "a", json_integer(0));
    json_object_set_new(vocab, "b", json_integer(0));
    json_object_set_new(vocab, "c", json_integer(0));
    for (int tries = 0; tries < 60; tries++) {
        char joined[16] = "";
        const char *side[2] = {NULL, NULL};

        for (int k = 0; k < 2; k++) {
            void *it = json_object_iter(vocab);

            for (uint32_t skip = below((uint32_t)json_object_size(vocab)); skip; skip--)
                it = json_object_iter_next(vocab, it);
            side[k] = json_object_iter_key(it);
        }
        if (strlen(side[0]) + strlen(side[1]) > 5)
            continue;
        memcpy(joined, side[0], strlen(side[0]));
        memcpy(joined + strlen(side[0]), side[1], strlen(side[1]) + 1);
        if (json_object_get(vocab, joined))
            continue;
        test_ok(esp_bpe_add_token(b, joined, strlen(joined), next++, &err), &err);
        json_object_set_new(vocab, joined, json_pack("[s,s]", side[0], side[1]));
    }
}

static void add_merges_shuffled(struct esp_bpe *b, const json_t *vocab)
{
    const json_t *pair[64];
    size_t n = 0;
    void *it;
    esp_error err;

    for (it = json_object_iter((json_t *)(uintptr_t)vocab); it;
         it = json_object_iter_next((json_t *)(uintptr_t)vocab, it))
        if (json_is_array(json_object_iter_value(it)))
            pair[n++] = json_object_iter_value(it);
    test_ok(esp_bpe_end_tokens(b, &err), &err);
    for (; n > 0; n--) {
        const size_t k = below((uint32_t)n);
        const char *l = json_string_value(json_array_get(pair[k], 0)),
                   *r = json_string_value(json_array_get(pair[k], 1));

        test_ok(esp_bpe_add_merge(b, l, strlen(l), r, strlen(r), &err), &err);
        pair[k] = pair[n - 1];
    }
    test_ok(esp_bpe_end_merges(b, &err), &err);
}

static void test_merge_order(void **state)
{
    (void)state;
    for (int model = 0; model < 60; model++) {
        struct esp_bpe b = {0};
        struct esp_bpe_work w = {0};
        json_t *vocab = json_object();

        build_random_bpe(&b, vocab);
        add_merges_shuffled(&b, vocab);
        if (model & 1)
            esp_bpe_work_cache(&w);
        for (int round = 0; round < 60; round++) {
            uint32_t want[40];
            char s[40];
            const size_t len = 1 + below(40);
            struct esp_ids got;
            esp_error err;

            for (size_t i = 0; i < len; i++) {
                s[i] = (char)('a' + below(3));
                want[i] = (uint32_t)s[i];
            }
            esp_ids_init(&got, 1000);
            test_ok(esp_bpe_encode(&b, &w, s, len, &got, &err), &err);
            if (w.cache) { /* once more, from the cache when short; each list starts the table's indices anew
                            */
                const size_t n = got.n;

                test_ok(esp_bpe_encode(&b, &w, s, len, &got, &err), &err);
                assert_int_equal(got.n, 2 * n);
                assert_memory_equal(got.data, got.data + n, n * sizeof *got.data);
                got.n = n;
                esp_bpe_work_free(&w);
                esp_bpe_work_cache(&w);
            }
            assert_int_equal(got.n, merge_by_the_book(&b, want, len));
            assert_memory_equal(got.data, want, got.n * sizeof *want);
            esp_ids_free(&got);
        }
        esp_bpe_work_free(&w);
        esp_bpe_free(&b);
        json_decref(vocab);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_of_encode_is_nfc),
        cmocka_unit_test(test_tokens_cut_text),
        cmocka_unit_test(test_merge_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
