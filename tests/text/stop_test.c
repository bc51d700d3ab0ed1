/*
 * Stop strings: the shared cases, every cut of a text, and random streams against a search that sees the
 * whole text. SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "text/stop.h"

static struct esp_stop *make(const struct esp_stop_string *s, size_t n)
{
    struct esp_stop *m = NULL;
    esp_error err;

    test_ok(esp_stop_create(&m, s, n, &err), &err);
    return m;
}

static uint32_t random_below(uint32_t *counter, uint32_t n)
{
    const struct esp_rng_key key = {.seed = 99, .position = (*counter)++};

    return (uint32_t)(esp_rng_uniform(&key) * n);
}

/* The rule itself on a whole text: earliest start, then longest, then lowest index. Returns -1 or the
 * string's index. */
static int oracle(const char *text, size_t len, const struct esp_stop_string *s, size_t n, size_t *start)
{
    for (*start = 0; *start < len; ++*start) {
        int best = -1;

        for (size_t i = 0; i < n; i++)
            if (s[i].len <= len - *start && memcmp(text + *start, s[i].text, s[i].len) == 0 &&
                (best < 0 || s[i].len > s[best].len))
                best = (int)i;
        if (best >= 0)
            return best;
    }
    return -1;
}

/* Longest suffix of text that is a proper prefix of some string. */
static size_t oracle_held(const char *text, size_t len, const struct esp_stop_string *s, size_t n)
{
    size_t held = 0;

    for (size_t i = 0; i < n; i++)
        for (size_t k = 1; k < s[i].len && k <= len; k++)
            if (k > held && memcmp(text + len - k, s[i].text, k) == 0)
                held = k;
    return held;
}

/* Field case 23: sampling ends at the match; no part of it is in any delta. */
static void test_cases(void **state)
{
    json_t *file = test_json("tests/data/cases/stop_strings.json"), *c;
    size_t i, n_run = 0;

    (void)state;
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        json_t *stop = json_object_get(c, "stop"), *pieces = json_object_get(c, "pieces_hex"), *v;
        const char *want = json_string_value(json_object_get(c, "expect_text"));
        struct esp_stop_string s[ESP_STOP_MAX_STRINGS];
        struct esp_strbuf out;
        struct esp_stop *m;
        esp_error err;
        size_t k;

        json_array_foreach(stop, k, v) s[k] =
            (struct esp_stop_string){json_string_value(v), json_string_length(v)};
        m = make(s, json_array_size(stop));
        esp_strbuf_init(&out, 1000);
        json_array_foreach(pieces, k, v)
        {
            const char *hex = json_string_value(v);
            char bytes[64];
            size_t len = 0;

            for (; hex[2 * len]; len++) {
                unsigned b;

                assert_int_equal(sscanf(hex + 2 * len, "%2x", &b), 1);
                bytes[len] = (char)b;
            }
            test_ok(esp_stop_feed(m, bytes, len, &out, &err), &err);
            assert_true(strncmp(want, esp_strbuf_str(&out), out.len) ==
                        0); /* never more than the final text */
        }
        test_ok(esp_stop_flush(m, &out, &err), &err);
        assert_string_equal(esp_strbuf_str(&out), want);
        assert_int_equal(esp_stop_matched(m) >= 0,
                         strcmp(json_string_value(json_object_get(c, "expect_end")), "stop") == 0);
        esp_strbuf_free(&out);
        esp_stop_destroy(m);
        n_run++;
    }
    assert_int_equal(n_run, 4);
    json_decref(file);
}

/* Feed text in pieces given by the bits of cuts (bit i: a cut after byte i) and compare with the rule. */
static void check_cut(struct esp_stop *m, const struct esp_stop_string *s, size_t n, const char *text,
                      size_t len, uint64_t cuts)
{
    size_t start, from = 0;
    int want = oracle(text, len, s, n, &start);
    struct esp_strbuf out;

    esp_strbuf_init(&out, len + 1);
    esp_stop_reset(m);
    for (size_t i = 0; i < len; i++) {
        if (i + 1 < len && !(cuts >> (i % 64) & 1))
            continue;
        assert_int_equal(esp_stop_feed(m, text + from, i + 1 - from, &out, NULL), ESP_OK);
        from = i + 1;
        if (esp_stop_matched(m) < 0) { /* everything that is not held has been released */
            assert_int_equal(out.len + esp_stop_held(m), i + 1);
            if (!esp_stop_pending(m))
                assert_int_equal(esp_stop_held(m), oracle_held(text, i + 1, s, n));
        }
    }
    assert_int_equal(esp_stop_flush(m, &out, NULL), ESP_OK);
    assert_int_equal(esp_stop_matched(m), want);
    assert_int_equal(esp_stop_held(m), 0);
    assert_int_equal(out.len, want >= 0 ? start : len);
    assert_memory_equal(esp_strbuf_str(&out), text, out.len);
    esp_strbuf_free(&out);
}

static void test_all_cuts(void **state)
{
    static const struct {
        const char *text, *stop[3];
        int matched;
    } cases[] = {
        {"xabcdy", {"abcd", "bc", NULL}, 0},     /* the inner one ends first, the outer one starts first */
        {"xabcey", {"abcd", "bc", NULL}, 1},     /* the outer one fails after the inner one was seen */
        {"one\n\ntwo", {"\n", "\n\n", NULL}, 1}, /* equal start: longest */
        {"one\ntwo", {"\n\n", "\n", NULL}, 1},
        {"aaaaab", {"aab", "aaaab", NULL}, 1}, /* falls back and stays alive */
        {"ababac", {"abac", NULL, NULL}, 0},
        {"abab", {"ababx", "ba", "b"}, 1}, /* the end of the stream decides */
        {"abxcdabcd", {"abcd", "cda", NULL}, 1},
        {"nothing", {"hint", "gg", NULL}, -1},
        {"dup", {"u", "u", NULL}, 0},
        {"\xc3\xa8\xc3\xa9", {"\xc3\xa9", NULL, NULL}, 0},
    };

    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct esp_stop_string s[3];
        size_t n = 0, len = strlen(cases[c].text), start;
        struct esp_stop *m;

        for (; n < 3 && cases[c].stop[n]; n++)
            s[n] = (struct esp_stop_string){cases[c].stop[n], strlen(cases[c].stop[n])};
        assert_int_equal(oracle(cases[c].text, len, s, n, &start), cases[c].matched);
        m = make(s, n);
        for (uint64_t cuts = 0; cuts < UINT64_C(1) << (len - 1); cuts++)
            check_cut(m, s, n, cases[c].text, len, cuts);
        esp_stop_destroy(m);
    }
}

static void test_random(void **state)
{
    uint32_t r = 0;

    (void)state;
    for (int round = 0; round < 4000; round++) {
        char text[61], strings[4][8];
        struct esp_stop_string s[4];
        size_t n = 1 + random_below(&r, 4), len = 1 + random_below(&r, 60);
        uint32_t letters = 2 + random_below(&r, 2);
        struct esp_stop *m;

        for (size_t i = 0; i < n; i++) {
            s[i] = (struct esp_stop_string){strings[i], 1 + random_below(&r, 7)};
            for (size_t j = 0; j < s[i].len; j++)
                strings[i][j] = (char)('a' + random_below(&r, letters));
        }
        for (size_t j = 0; j < len; j++)
            text[j] = (char)('a' + random_below(&r, letters));
        m = make(s, n);
        check_cut(m, s, n, text, len, 0);
        check_cut(m, s, n, text, len, UINT64_MAX);
        check_cut(m, s, n, text, len,
                  (uint64_t)random_below(&r, UINT32_MAX) << 32 | random_below(&r, UINT32_MAX));
        esp_stop_destroy(m);
    }
}

/* Longest strings, long runs of near matches byte by byte: the hold buffer wraps many times. */
static void test_longest(void **state)
{
    enum { N = 100000 };
    static char text[N], stop[2][ESP_STOP_MAX_BYTES];
    const struct esp_stop_string s[2] = {{stop[0], sizeof stop[0]}, {stop[1], sizeof stop[1]}};
    struct esp_stop *m = make(NULL, 0);

    (void)state;
    memset(text, 'a', N);
    check_cut(m, NULL, 0, text, 1000, UINT64_MAX); /* no strings: all passes, none is held */
    esp_stop_destroy(m);
    memset(stop, 'a', sizeof stop);
    stop[0][ESP_STOP_MAX_BYTES - 1] = 'b';
    stop[1][ESP_STOP_MAX_BYTES - 1] = 'c';
    m = make(s, 2);
    {
        struct esp_strbuf out;

        esp_strbuf_init(&out, N);
        for (size_t i = 0; i < N; i++) {
            assert_int_equal(esp_stop_feed(m, text + i, 1, &out, NULL), ESP_OK);
            assert_int_equal(esp_stop_held(m), i + 1 < 255 ? i + 1 : 255);
        }
        assert_int_equal(esp_stop_feed(m, "cz", 2, &out, NULL), ESP_OK);
        assert_int_equal(esp_stop_matched(m), 1);
        assert_int_equal(out.len, N - 255);
        assert_int_equal(esp_stop_feed(m, "more", 4, &out, NULL), ESP_OK);
        assert_int_equal(esp_stop_flush(m, &out, NULL), ESP_OK);
        assert_int_equal(out.len, N - 255);
        esp_strbuf_free(&out);
    }
    esp_stop_destroy(m);
}

static void test_refusals(void **state)
{
    static char big[ESP_STOP_MAX_BYTES + 1];
    struct esp_stop_string s[ESP_STOP_MAX_STRINGS + 1];
    struct esp_stop *m = NULL;
    struct esp_strbuf out;
    esp_error err;

    (void)state;
    memset(big, 'x', sizeof big);
    for (size_t i = 0; i < ESP_STOP_MAX_STRINGS + 1; i++)
        s[i] = (struct esp_stop_string){big, ESP_STOP_MAX_BYTES};
    test_refused(esp_stop_create(&m, s, ESP_STOP_MAX_STRINGS + 1, &err), ESP_EINVAL, &err, "17 strings");
    s[3].len++;
    test_refused(esp_stop_create(&m, s, 16, &err), ESP_EINVAL, &err, "stop[3]: 257 bytes");
    s[3].len = 0;
    test_refused(esp_stop_create(&m, s, 16, &err), ESP_EINVAL, &err, "stop[3]: empty");
    s[3] = (struct esp_stop_string){"a\xff", 2};
    test_refused(esp_stop_create(&m, s, 16, &err), ESP_EINVAL, &err, "stop[3]: invalid UTF-8 at byte 1");
    assert_null(m);
    s[3].len = 1;
    m = make(s, 16);
    esp_strbuf_init(&out, 3);
    test_refused(esp_stop_feed(m, "bcdefg", 6, &out, &err), ESP_ENOMEM, &err, "at most 3");
    esp_strbuf_free(&out);
    esp_stop_destroy(m);
    esp_stop_destroy(NULL);
}

static void test_no_memory(void **state)
{
    const struct esp_stop_string s[2] = {{"User:", 5}, {"\n\n", 2}};
    int64_t n_failed = 0;

    (void)state;
    for (;; n_failed++) {
        struct esp_stop *m = NULL;
        struct esp_strbuf out;
        esp_status status;
        esp_error err;

        esp_strbuf_init(&out, 100);
        esp_mem_fail_at(n_failed);
        status = esp_stop_create(&m, s, 2, &err);
        if (status == ESP_OK)
            status = esp_stop_feed(m, "hello User", 10, &out, &err);
        if (status == ESP_OK)
            status = esp_stop_flush(m, &out, &err);
        esp_mem_fail_at(-1);
        if (status == ESP_OK)
            assert_string_equal(esp_strbuf_str(&out), "hello User");
        else
            assert_int_equal(status, ESP_ENOMEM);
        esp_strbuf_free(&out);
        esp_stop_destroy(m);
        if (status == ESP_OK)
            break;
    }
    assert_true(n_failed >= 4); /* matcher, queue, nodes, text */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),   cmocka_unit_test(test_all_cuts), cmocka_unit_test(test_random),
        cmocka_unit_test(test_longest), cmocka_unit_test(test_refusals), cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
