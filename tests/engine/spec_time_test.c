/*
 * Speculation that does not pay stops itself. Drafts that are always wrong are given up after a few, whatever
 * the clock says; and with ESPALIER_BENCH set, CPU times of answers with and without drafts, in pairs taken
 * in turn, for texts that draft well and badly: the figures of doc/speculation.md.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/drafts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_ANSWER = 256, N_PAIR = 9, MAX_PROMPT = 128, MOST_WRONG = 40 };

static int32_t wrong_id(const struct esp_seq *s)
{
    return (s->tokens[s->n_token - 1] + 1) % 2; /* ids 0 and 1 are punctuation and no answer repeats them */
}

static bool ready(struct esp_seq *s)
{
    (void)s;
    return true;
}

static void propose(struct esp_engine *g, struct esp_draft_ask *asks, uint32_t n)
{
    (void)g;
    for (struct esp_draft_ask *a = asks; a < asks + n; a++)
        for (; a->n < a->want; a->n++)
            a->out[a->n] = wrong_id(a->seq);
}

/* Generate; CPU seconds from the first token on. */
static double answer(esp_engine *g, const esp_token *prompt, size_t n, float temperature, esp_usage *usage)
{
    esp_seq_opts o = {.sampling = {.ignore_end = true, .temperature = temperature, .seed = 3}};
    esp_finish f = ESP_FINISH_NONE;
    double t0 = 0;
    esp_seq *s;
    esp_error err;

    test_ok(esp_seq_open(&s, g, &o, &err), &err);
    test_ok(esp_seq_append(s, prompt, n, &err), &err);
    test_ok(esp_seq_generate(s, N_ANSWER, &err), &err);
    while (f == ESP_FINISH_NONE) {
        esp_event e[12];
        size_t m;

        test_ok(esp_engine_step(g, e, 12, &m, &err), &err);
        if (m && t0 <= 0)
            t0 = esp_spec_now(g);
        if (m)
            f = e[m - 1].finish;
    }
    t0 = esp_spec_now(g) - t0;
    assert_int_equal(f, ESP_FINISH_LENGTH);
    esp_seq_usage(s, usage);
    esp_seq_close(s);
    return t0;
}

static void test_gives_up(void **state)
{
    struct esp_drafter d = esp_drafter_ngram;
    esp_engine *g = test_drafts_engine((esp_engine_opts){.max_seqs = 1, .spec = ESP_SPEC_NGRAM});
    const struct test_text *r = &test_drafts.r[2];
    esp_usage u;

    (void)state;
    d.ready = ready;
    d.propose = propose;
    g->spec.drafter = &d;
    answer(g, r->prompt, r->n, 0, &u);
    printf("%llu drafts, %llu right, in %d tokens\n", (unsigned long long)u.drafted,
           (unsigned long long)u.accepted, N_ANSWER);
    assert_true(u.drafted > 0 && u.drafted <= MOST_WRONG);
    esp_engine_close(g);
}

/* ---- figures ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Median of off / on over N_PAIR pairs, which start with either in turn, and its quartiles. */
static void pairs(esp_engine *off, esp_engine *on, const char *name, const char *text, float temperature)
{
    double ratio[N_PAIR], time[N_PAIR];
    esp_token prompt[MAX_PROMPT];
    esp_usage u, none;
    esp_error err;
    size_t n;

    test_ok(esp_tokenize(test_drafts.model, text, strlen(text), false, prompt, MAX_PROMPT, &n, &err), &err);
    answer(on, prompt, n, temperature, &u); /* the first one measures costs */
    for (int i = 0; i < N_PAIR; i++) {
        double a = i % 2 ? 0 : answer(off, prompt, n, temperature, &none),
               b = answer(on, prompt, n, temperature, &u);

        a = i % 2 ? answer(off, prompt, n, temperature, &none) : a;
        ratio[i] = a / b;
        time[i] = a;
    }
    qsort(ratio, N_PAIR, sizeof *ratio, by_value);
    qsort(time, N_PAIR, sizeof *time, by_value);
    printf("| %s, %g | %.0f | %s | %.2f | %.2f to %.2f | %llu of %llu |\n", name, (double)temperature,
           1e3 * time[N_PAIR / 2], on->spec.drafter->name, ratio[N_PAIR / 2], ratio[N_PAIR / 4],
           ratio[N_PAIR - 1 - N_PAIR / 4], (unsigned long long)u.accepted, (unsigned long long)u.drafted);
}

static void test_times(void **state)
{
    static const char *const texts[][2] = {
        {"story",
         "Once upon a time there was a little girl who lived in a cottage at the edge of the forest."},
        {"novel",
         "It was the habit of the old gentleman to walk every evening to the end of the lane, where"},
        {"numbers", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,"}};
    const char *wish = getenv("ESPALIER_BENCH");

    (void)state;
    if (!wish)
        return;
    for (esp_spec k = ESP_SPEC_MTP; k <= ESP_SPEC_NGRAM; k++) {
        esp_engine_opts o = {.max_seqs = 1};
        esp_engine *off, *on;

        if (strcmp(wish, esp_drafter_get(k)->name) != 0 && strcmp(wish, "1") != 0)
            continue;
        off = test_drafts_engine(o);
        o.spec = k;
        on = test_drafts_engine(o);
        for (int t = 0; t < 3; t++)
            for (int hot = 0; hot < 2; hot++)
                pairs(off, on, texts[t][0], texts[t][1], (float)hot);
        esp_engine_close(on);
        esp_engine_close(off);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gives_up), cmocka_unit_test(test_times)};
    int failed;

    test_drafts_open(1);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_drafts_close();
    return failed;
}
