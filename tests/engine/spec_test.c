/*
 * Speculation changes time and never text: tokens and log-probabilities with every drafter and depth equal
 * those without, in batches with random arrivals, over chunk and page borders, at the end of a budget, a turn
 * or a context; and drafts that are always wrong, or always right, change nothing either. Every depth to 8
 * with ESPALIER_TEST_LONG. Traps 3, 6 and 7, case 32 of the field.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/drafts.h"
#include "support/net.h"

#include <stdio.h>
#include <string.h>

static void equal_at(esp_spec spec, uint32_t depth)
{
    esp_engine *g = test_drafts_engine(test_drafts_options(spec, depth));
    esp_stats st = test_drafts_run(g, 0);

    printf("%s, depth %u: %llu of %llu drafts right in %llu rounds, first %.2f\n", st.spec_name, depth,
           (unsigned long long)st.spec_accepted, (unsigned long long)st.spec_drafted,
           (unsigned long long)st.spec_rounds, (double)st.spec_right_at[0] / (double)st.spec_asked_at[0]);
    assert_true(st.spec_rounds > 20 && st.spec_drafted >= st.spec_rounds);
    /* A draft model is the model itself, and draws with the keys of the positions it predicts; its own cache
     * is bf16, so over coded ones it is not quite the same. */
    if (spec == ESP_SPEC_DRAFT && !test_drafts.keep.kv)
        assert_int_equal(st.spec_accepted, st.spec_drafted);
    else
        assert_true(st.spec_accepted > 0 && st.spec_accepted < st.spec_drafted);
    assert_int_equal(st.slots_used, 0);
    assert_int_equal(st.pages_used, 0);
    for (uint32_t i = 0; i < g->pools->mem.n_journal; i++)
        assert_int_equal(g->pools->journal_used[i], 0);
    esp_engine_close(g);
}

/* At these depths, ended by 0; with ESPALIER_TEST_LONG at all from 1 to 8. */
static void equal(esp_spec spec, const uint32_t *depths)
{
    for (; *depths && !test_long(); depths++)
        equal_at(spec, *depths);
    for (uint32_t depth = 1; depth <= 8 && test_long(); depth++)
        equal_at(spec, depth);
}

static void test_ngram(void **state)
{
    (void)state;
    equal(ESP_SPEC_NGRAM, (const uint32_t[]){8, TEST_SLOW ? 0 : 1, 0});
}

static void test_mtp(void **state)
{
    (void)state;
    equal(ESP_SPEC_MTP, (const uint32_t[]){2, TEST_SLOW ? 0 : 7, 0});
}

static void test_draft(void **state)
{
    (void)state;
    equal(ESP_SPEC_DRAFT, (const uint32_t[]){3, 0});
}

/* Adaptive depth, a rate below which rows stop, one row that asks for no drafts. */
static void test_adaptive(void **state)
{
    esp_engine_opts o = test_drafts_options(ESP_SPEC_AUTO, 0);
    esp_engine *g;
    esp_stats st;

    (void)state;
    o.spec_always = false;
    o.draft_model = NULL;
    g = test_drafts_engine(o);
    st = test_drafts_run(g, 5);
    assert_string_equal(st.spec_name, "mtp");
    esp_engine_close(g);
    o.spec = ESP_SPEC_NGRAM;
    o.spec_always = true;
    o.spec_min_rate = 1;
    g = test_drafts_engine(o);
    st = test_drafts_run(g, 0);
    assert_true(st.spec_drafted < 7 * (32 + 10)); /* each row stopped when it was judged */
    esp_engine_close(g);
    o.spec_min_rate = 0;
    g = test_drafts_engine(o);
    for (int i = 0; i < TEST_REQUESTS; i++)
        test_drafts.r[i].opts.no_spec = true;
    st = test_drafts_run(g, 0);
    assert_int_equal(st.spec_drafted, 0);
    for (int i = 0; i < TEST_REQUESTS; i++)
        test_drafts.r[i].opts.no_spec = false;
    esp_engine_close(g);
}

static void test_wrong(void **state)
{
    struct esp_drafter d;
    esp_engine *g = test_double_open(test_drafts_options(ESP_SPEC_NGRAM, 5), &d, 1);
    esp_stats st = test_drafts_run(g, 0);

    (void)state;
    assert_int_equal(st.spec_accepted, 0);
    assert_true(st.spec_drafted > 100);
    esp_engine_close(g);
}

/* Bursts as long as they get, cut by budgets, cancelled neighbours, and a pool without room for drafts. */
static void test_right(void **state)
{
    struct esp_drafter d;
    esp_engine_opts o = test_drafts_options(ESP_SPEC_NGRAM, 8);
    esp_engine *g = test_double_open(o, &d, 0);
    esp_stats st = test_drafts_run(g, 0);

    (void)state;
    assert_int_equal(st.spec_accepted, st.spec_drafted);
    assert_true(st.generated_tokens > 4 * st.spec_rounds);
    test_drafts_run(g, 4);
    for (size_t n = 1; n <= 3; n++) { /* budgets of 1 to 3 */
        size_t want = test_drafts.r[0].n_want;
        struct test_run x = {.r = &test_drafts.r[0]};

        test_drafts.r[0].n_new = test_drafts.r[0].n_want = n;
        test_drafts.runs[0] = x;
        test_drive(g, test_drafts.runs, 1, false);
        test_drafts.r[0].n_new = test_drafts.r[0].n_want = want;
    }
    esp_engine_close(g);
    o.admission = ESP_ADMISSION_WORST;
    o.kv_tokens = 512;
    g = test_double_open(o, &d, 0);
    test_drafts_run(g, 0);
    esp_engine_close(g);
}

/* An end token inside a burst: nothing behind it is emitted, and the state is the one without drafts. */
static void test_end(void **state)
{
    esp_logit_bias bias = {.token = 4084, .bias = 4.5f};
    struct test_text keep[TEST_REQUESTS];
    struct esp_drafter d;
    esp_engine *g;
    int n_end = 0;

    (void)state;
    memcpy(keep, test_drafts.r, sizeof keep);
    assert_true(esp_token_is_end(test_drafts.model, bias.token));
    for (int i = 0; i < TEST_REQUESTS; i++) {
        test_drafts.r[i].opts.sampling.temperature = 0.9f;
        test_drafts.r[i].opts.sampling.bias = &bias;
        test_drafts.r[i].opts.sampling.n_bias = 1;
    }
    for (int pass = 0; pass < (TEST_SLOW ? 1 : 2); pass++) {
        for (int i = 0; i < TEST_REQUESTS; i++)
            test_drafts.r[i].opts.sampling.ignore_end = false;
        test_drafts_record();
        for (int i = 0; i < TEST_REQUESTS; i++)
            n_end += test_drafts.r[i].finish == ESP_FINISH_END && test_drafts.r[i].n_want > 0;
        g = pass ? test_drafts_engine(test_drafts_options(ESP_SPEC_MTP, 3))
                 : test_double_open(test_drafts_options(ESP_SPEC_NGRAM, 8), &d, 0);
        test_drafts_run(g, 0);
        esp_engine_close(g);
    }
    printf("%d texts end by themselves\n", n_end);
    assert_true(n_end >= 2);
    memcpy(test_drafts.r, keep, sizeof keep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ngram), cmocka_unit_test(test_mtp),
                                       cmocka_unit_test(test_draft), cmocka_unit_test(test_adaptive),
                                       cmocka_unit_test(test_wrong), cmocka_unit_test(test_right),
                                       cmocka_unit_test(test_end)};
    const struct CMUnitTest coded[] = {cmocka_unit_test(test_mtp), cmocka_unit_test(test_draft),
                                       cmocka_unit_test(test_right)};
    int failed;

    test_need_device();
    test_drafts_open(TEST_SLOW ? 16 : 40);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_drafts.keep = (esp_engine_opts){.kv = "turbo:k8v4", .kv_start = 45, .state = "q8"};
    if (getenv("ESPALIER_TEST_DEVICE")) /* codes all positions, and no states */
        test_drafts.keep = (esp_engine_opts){.kv = "turbo:k8v4"};
    test_drafts_record();
    failed |= cmocka_run_group_tests(coded, NULL, NULL);
    test_drafts_close();
    return failed;
}
