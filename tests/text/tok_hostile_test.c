/*
 * Field case 10: no text overflows a small stack, takes more than about linear time, or fails to come back.
 * Times are the least of several runs, of n and 2n characters.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/tok_help.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <utf8proc.h>

enum { N = 100000, RUNS = 3, STACK = 512 << 10 };

static const char *const units[] = {
    "a",
    " ",
    "\n",
    "7",
    "\U0001f600",
    "\u0301",
    "'",
    "\t",
    "\r",
    "\u3000",
    "\u2028",
    "\u00e9",
    "\u4e2d",
    "\xc3", /* cut */
    "'S",
    "'s",
    " \n",
    "\n ",
    " a",
    "a ",
    "!\n",
    "<|im_start",
    "<|im_end|>",
    "<",
    "\u0301\u0316",
    "a\u0316\u0301",
    "\u1100\u1161\u11a8",
    "\u0344",
    "  \t \u2003 ",
    "\u1ac5\u034d",
    "-",
    "==",
    "aA1",
    "\u200d",
    "\u093f",
};

struct job {
    const struct esp_tokenizer *t;
    const char *unit;
    const char *tail; /* after the repetitions */
    size_t n;
    double seconds;
    size_t n_ids;
    bool same; /* came back */
};

static double now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts); /* other processes do not count */
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static bool comes_back(const struct job *j, const struct esp_ids *ids, const char *text, size_t len)
{
    struct esp_strbuf b = tok_decode(j->t, ids, 0);
    bool same;

    (void)text;
    if ((uint8_t)j->unit[0] == 0xc3 && j->unit[1] == '\0') { /* not a character: U+FFFD each */
        same = b.len == 3 * j->n + strlen(j->tail) && memcmp(b.data, "\xef\xbf\xbd\xef\xbf\xbd", 6) == 0;
    } else {
        same = b.len == len && memcmp(b.data, text, len) == 0;
    }
    esp_strbuf_free(&b);
    return same;
}

static void *run(void *arg)
{
    struct job *j = arg;
    const size_t unit = strlen(j->unit), tail = strlen(j->tail), len = unit * j->n + tail;
    char *text = malloc(len + 1);

    j->seconds = 1e9;
    if (!text)
        return NULL;
    for (size_t i = 0; i < j->n; i++)
        memcpy(text + i * unit, j->unit, unit);
    memcpy(text + len - tail, j->tail, tail + 1);
    for (int r = 0; r < RUNS; r++) {
        const double start = now();
        struct esp_ids ids = tok_encode(j->t, text, len, ESP_TOK_TRUST_ALL);
        const double took = now() - start;

        if (took < j->seconds)
            j->seconds = took;
        j->n_ids = ids.n;
        if (r == 0)
            j->same = comes_back(j, &ids, text, len);
        esp_ids_free(&ids);
    }
    free(text);
    return NULL;
}

static void run_in_thread(struct job *j)
{
    pthread_attr_t attr;
    pthread_t thread;

    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, STACK), 0);
    assert_int_equal(pthread_create(&thread, &attr, run, j), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attr);
}

/* Whether the text of a unit is its own NFC, so that it must come back byte for byte. */
static bool is_nfc(const char *unit, const char *tail)
{
    char text[64];
    utf8proc_uint8_t *nfc;
    bool same;

    if ((uint8_t)unit[0] == 0xc3 && unit[1] == '\0')
        return true;
    snprintf(text, sizeof text, "%s%s%s", unit, unit, tail);
    nfc = utf8proc_NFC((const utf8proc_uint8_t *)text);
    assert_non_null(nfc);
    same = strcmp((const char *)nfc, text) == 0;
    free(nfc);
    return same;
}

static void check_units(const struct esp_tokenizer *t, const char *tail)
{
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        struct job one = {.t = t, .unit = units[i], .tail = tail, .n = N};
        struct job two = {.t = t, .unit = units[i], .tail = tail, .n = 2 * (size_t)N};
        double ratio = 3;

        for (int attempt = 0; attempt < 3 && ratio >= 3;
             attempt++) { /* a busy machine disturbs even CPU time */
            run_in_thread(&one);
            run_in_thread(&two);
            ratio = two.seconds / one.seconds;
        }
        if (ratio >= 3)
            fail_msg("unit %zu, tail \"%s\": %.4f s for %d, %.4f s for twice as many", i, tail, one.seconds,
                     N, two.seconds);
        if (one.seconds > 5)
            fail_msg("unit %zu: %.1f s", i, one.seconds);
        if (is_nfc(units[i], tail) && (!one.same || !two.same))
            fail_msg("unit %zu, tail \"%s\": does not come back", i, tail);
        assert_true(one.n_ids > 0 && two.n_ids > one.n_ids);
    }
}

static void test_field_case_10_demo(void **state)
{
    struct esp_tokenizer *t = tok_open("models/demo");

    (void)state;
    check_units(t, "");
    esp_tokenizer_close(t);
}

static void test_field_case_10_before_a_letter(void **state)
{
    struct esp_tokenizer *t = tok_open("models/demo");

    (void)state;
    check_units(t, "z");
    esp_tokenizer_close(t);
}

/* The miniature tokenizer has tokens with lstrip, rstrip, single_word and normalized. */
static void test_field_case_10_mini(void **state)
{
    struct esp_tokenizer *t = tok_mini();

    (void)state;
    check_units(t, " <sep>");
    esp_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_field_case_10_demo),
        cmocka_unit_test(test_field_case_10_before_a_letter),
        cmocka_unit_test(test_field_case_10_mini),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
