/*
 * Regular expressions and GBNF as text: random expressions against PCRE2, whose partial matching says whether
 * a text can be gone on with; refusals with their places; bounds.
 *
 * SPDX-License-Identifier: MIT
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "help.h"

#include "base/strbuf.h"

static struct esp_vocab *bytes;

static void write_random(struct esp_rng_key *k, struct esp_strbuf *b, int depth)
{
    static const char *const atoms[] = {"a",   "b", "\xc3\xa9", "[ab]",     "[^b]", "\\d",
                                        "\\w", ".", "\\.",      "[a-c\\d]", "\\S"};
    static const char *const counts[] = {"*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"};

    for (uint32_t n = 1 + draw(k, 3); n > 0; n--) {
        if (depth > 0 && draw(k, 3) == 0) {
            esp_strbuf_puts(b, draw(k, 2) ? "(" : "(?:");
            write_random(k, b, depth - 1);
            if (draw(k, 2)) {
                esp_strbuf_puts(b, "|");
                write_random(k, b, depth - 1);
            }
            esp_strbuf_puts(b, ")");
        } else {
            esp_strbuf_puts(b, atoms[draw(k, 11)]);
        }
        if (draw(k, 3) == 0)
            esp_strbuf_puts(b, counts[draw(k, 7)]);
    }
}

/* -1 cannot be gone on with, 0 can, 1 matches as a whole */
static int ask_pcre(pcre2_code *code, const char *text, size_t len)
{
    pcre2_match_data *d = pcre2_match_data_create(1, NULL);
    int whole = pcre2_match(code, (PCRE2_SPTR)text, len, 0, 0, d, NULL);
    int part = pcre2_match(code, (PCRE2_SPTR)text, len, 0, PCRE2_PARTIAL_HARD, d, NULL);

    pcre2_match_data_free(d);
    return whole >= 0 ? 1 : part == PCRE2_ERROR_PARTIAL ? 0 : -1;
}

static void random_expressions_agree_with_pcre(void **state)
{
    struct esp_rng_key k = {.seed = 99};
    static const char *const letters[] = {"a", "b", "c", "\xc3\xa9", "7", ".", " ", "_"};
    int n = 300, n_text[3] = {0};

    (void)state;
#ifdef __SANITIZE_ADDRESS__
    n = 60;
#endif
    while (n-- > 0) {
        struct esp_strbuf re, whole;
        struct esp_grammar *g = NULL;
        pcre2_code *code;
        esp_error err;
        int e;
        size_t at;

        esp_strbuf_init(&re, 10000);
        write_random(&k, &re, 2);
        esp_strbuf_init(&whole, 10000);
        esp_strbuf_printf(&whole, "\\A(?:%s)\\z", re.data);
        code = pcre2_compile((PCRE2_SPTR)whole.data, whole.len, PCRE2_UTF | PCRE2_NO_START_OPTIMIZE, &e, &at,
                             NULL);
        assert_non_null(code);
        test_ok(esp_grammar_regex(&g, bytes, re.data, re.len, &err), &err);
        for (int i = 0; i < 30; i++) {
            char text[64];
            size_t len = 0;
            int want, got;

            for (uint32_t c = 1 + draw(&k, 6); c > 0; c--) {
                const char *l = letters[draw(&k, 8)];

                memcpy(text + len, l, strlen(l));
                len += strlen(l);
            }
            want = ask_pcre(code, text, len);
            got = judge(g, text, len);
            if (want != got)
                fail_msg("\"%.*s\" under %s: %d, PCRE2 says %d", (int)len, text, re.data, got, want);
            n_text[want + 1]++;
        }
        pcre2_code_free(code);
        esp_grammar_release(g);
        esp_strbuf_free(&re);
        esp_strbuf_free(&whole);
    }
    print_message("%d refused, %d beginnings, %d whole\n", n_text[0], n_text[1], n_text[2]);
    assert_true(n_text[0] > 100 && n_text[1] > 100 && n_text[2] > 100);
}

static const struct {
    const char *text;
    esp_status status;
    const char *part;
} regex_refusals[] = {
    {"a(", ESP_EFORMAT, "column 3: a ( without its )"},
    {"a)b", ESP_EFORMAT, "column 2: a ) without its ("},
    {"*a", ESP_EFORMAT, "nothing to repeat"},
    {"a**", ESP_EFORMAT, "count behind a count"},
    {"[a", ESP_EFORMAT, "without its ]"},
    {"[]", ESP_EFORMAT, "empty class"},
    {"[b-a]", ESP_EFORMAT, "from a character up"},
    {"a{3,2}", ESP_EFORMAT, "m <= n"},
    {"a\\", ESP_EFORMAT, "backslash at the end"},
    {"\\x4", ESP_EFORMAT, "two hexadecimal digits"},
    {"(?=a)", ESP_EUNSUPPORTED, "look-around"},
    {"(?<n>a)", ESP_EUNSUPPORTED, "look-around, names"},
    {"a\\b", ESP_EUNSUPPORTED, "word boundaries"},
    {"(a)\\1", ESP_EUNSUPPORTED, "back-references"},
    {"\\p{L}", ESP_EUNSUPPORTED, "Unicode properties"},
    {"a^b", ESP_EUNSUPPORTED, "at the ends"},
    {"(^a)", ESP_EUNSUPPORTED, "at the ends"},
    {"a++", ESP_EUNSUPPORTED, "possessive"},
    {"a\xff", ESP_EFORMAT, "invalid UTF-8"},
    {"(a|b)*a(a|b){30}", ESP_ENOFIT, "too large"},
    {"a{2000000}", ESP_ENOFIT, "repetition count"},
};

static const struct {
    const char *text;
    esp_status status;
    const char *part;
} gbnf_refusals[] = {
    {"", ESP_EFORMAT, "no rule called root"},
    {"a ::= \"x\"", ESP_EFORMAT, "no rule called root"},
    {"root ::= x", ESP_EFORMAT, "line 1, column 10: the rule \"x\" is not defined"},
    {"root = \"x\"", ESP_EFORMAT, "line 1, column 6: expected ::="},
    {"root ::= \"x", ESP_EFORMAT, "closing quote"},
    {"root ::= [a", ESP_EFORMAT, "without its ]"},
    {"root ::= (\"a\"", ESP_EFORMAT, "a ( without its )"},
    {"root ::= \"a\")", ESP_EFORMAT, "a ) without its ("},
    {"root ::= \"a\"\nroot ::= \"b\"", ESP_EFORMAT, "line 2, column 1: the rule is defined twice"},
    {"root ::= \"\\q\"", ESP_EFORMAT, "unknown escape"},
    {"root ::= *", ESP_EFORMAT, "nothing to repeat"},
    {"root ::= \"a\"{2,1}", ESP_EFORMAT, "m <= n"},
    {"root ::= \"a\" $", ESP_EFORMAT, "unknown here"},
    {"root ::= root \"a\" | \"b\"", ESP_EFORMAT, "left recursion"},
    {"root ::= x \"a\" | \"b\"\nx ::= \"\" root", ESP_EFORMAT, "left recursion"},
    {"root ::= \"a\" root", ESP_EFORMAT, "never be completed"},
    {"root ::= \"\\x00\"", ESP_EFORMAT, "never be completed"},
};

static void refusals_say_what_and_where(void **state)
{
    struct esp_grammar *g = NULL;
    esp_error err;

    (void)state;
    for (size_t i = 0; i < sizeof regex_refusals / sizeof regex_refusals[0]; i++)
        test_refused(
            esp_grammar_regex(&g, bytes, regex_refusals[i].text, strlen(regex_refusals[i].text), &err),
            regex_refusals[i].status, &err, regex_refusals[i].part);
    for (size_t i = 0; i < sizeof gbnf_refusals / sizeof gbnf_refusals[0]; i++)
        test_refused(esp_grammar_gbnf(&g, bytes, gbnf_refusals[i].text, strlen(gbnf_refusals[i].text), &err),
                     gbnf_refusals[i].status, &err, gbnf_refusals[i].part);
    assert_null(g);
}

static void gbnf_is_read_as_written(void **state)
{
    static const char text[] = "# a comment\n"
                               "root ::= (  # in a group lines do not matter\n"
                               "  greeting\n"
                               "  | \"bye\" ) \" \" name-1{1,2}\n"
                               "       | [^a-z\\]]   # a bar may begin a line\n"
                               "\r\n"
                               "greeting ::= \"h\\x65llo\" | \"\\u00e9\\U0001F600\"\n"
                               "name-1 ::= [A-C_] .? ";
    static const char *const ok[] = {"hello A", "bye BxC", "\xc3\xa9\xf0\x9f\x98\x80 _", "A", "\xe2\x82\xac"};
    static const char *const bad[] = {"hello", "bye x", "a", "]", "hello ABCDE", "A "};
    struct esp_grammar *g = NULL;
    esp_error err;

    (void)state;
    test_ok(esp_grammar_gbnf(&g, bytes, text, sizeof text - 1, &err), &err);
    for (size_t i = 0; i < sizeof ok / sizeof ok[0]; i++)
        assert_int_equal(judge(g, ok[i], strlen(ok[i])), 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_not_equal(judge(g, bad[i], strlen(bad[i])), 1);
    esp_grammar_release(g);
}

static void a_choice_is_one_of_its_texts(void **state)
{
    const char *const texts[] = {"yes", "yesterday", "no", ""};
    struct esp_grammar *g = NULL;
    esp_error err;

    (void)state;
    test_ok(esp_grammar_choice(&g, bytes, texts, 4, &err), &err);
    assert_int_equal(judge(g, "", 0), 1);
    assert_int_equal(judge(g, "yes", 3), 1);
    assert_int_equal(judge(g, "yest", 4), 0);
    assert_int_equal(judge(g, "nope", 4), -1);
    esp_grammar_release(g);
    test_refused(esp_grammar_choice(&g, bytes, texts, 0, &err), ESP_EINVAL, &err, "0 texts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_expressions_agree_with_pcre),
        cmocka_unit_test(refusals_say_what_and_where),
        cmocka_unit_test(gbnf_is_read_as_written),
        cmocka_unit_test(a_choice_is_one_of_its_texts),
    };
    int r;

    bytes = open_bytes();
    r = cmocka_run_group_tests(tests, NULL, NULL);
    esp_vocab_destroy(bytes);
    return r;
}
