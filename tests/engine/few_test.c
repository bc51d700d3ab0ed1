/*
 * A device that hands over the greatest logits of rows gives the texts of one that hands over all of them:
 * greedy and seeded, with filters, penalties, biases, bans, log-probabilities, drafts, alone and in batches;
 * and it is known that draws did come from few, and that rows were fetched where few did not suffice. Ends
 * with 77 without a device.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/drafts.h"
#include "support/net.h"

#include <stdio.h>
#include <stdlib.h>

enum { N = TEST_REQUESTS };

static esp_engine *open_engine(const char *few, esp_spec spec)
{
    esp_engine_opts o = spec ? test_drafts_options(spec, 3)
                             : (esp_engine_opts){.max_seqs = N, .rows = N, .queue = N, .kv_tokens = 512 * N};

    assert_int_equal(setenv("ESPALIER_CUDA_FEW", few, 1), 0);
    return test_drafts_engine(o);
}

static void drive(esp_engine *g, bool record)
{
    for (int i = 0; i < N; i++)
        test_drafts.runs[i] = (struct test_run){.r = &test_drafts.r[i]};
    if (!record) {
        test_drive(g, test_drafts.runs, N, false);
        return;
    }
    for (int i = 0; i < N; i++)
        test_drive(g, &test_drafts.runs[i], 1, true);
}

static const esp_logit_bias lower[] = {{.token = 11, .bias = -100}, {.token = 300, .bias = -2}},
                            higher[] = {{.token = 40, .bias = 4}};

/* A way of sampling for request i; all seeds differ. */
static void choose(esp_sampling *s, int way, int i)
{
    *s = (esp_sampling){.seed = (uint64_t)(way * 100 + i)};
    switch (way) {
    case 0: /* greedy, with what lowers */
        s->repetition_penalty = i % 2 ? 1.2 : 0;
        s->bias = lower, s->n_bias = i % 3 ? 2 : 0;
        break;
    case 1: /* what models are published with */
        s->temperature = 0.7, s->top_k = 20, s->top_p = 0.8;
        s->presence_penalty = i % 2 ? 1.5 : 0;
        break;
    case 2: /* every filter behind top_k */
        s->temperature = 1.3, s->top_k = 30 - 4 * i, s->min_p = 0.02, s->typical_p = 0.9;
        s->xtc_probability = 0.5, s->xtc_threshold = 0.1, s->dry_multiplier = i % 2 ? 0.8 : 0;
        break;
    case 3: /* what needs whole rows, beside one that does not */
        s->temperature = i == 0 ? 0 : 0.9;
        s->top_p = i % 2 ? 0.9 : 0;
        s->bias = higher, s->n_bias = i == 2;
        break;
    default: /* more than there are */
        s->temperature = 1, s->top_k = 200;
    }
}

enum { WAYS = 5 };

static void test_texts_same(void **state)
{
    uint64_t n_few = 0, n_whole = 0;

    (void)state;
    for (int way = 0; way < WAYS; way++) {
        esp_engine *g;

        for (int i = 0; i < N; i++) {
            choose(&test_drafts.r[i].opts.sampling, way, i);
            test_drafts.r[i].opts.logprobs = i == 5;
            test_drafts.r[i].opts.top_logprobs = i == 5 ? 3 : 0;
        }
        g = open_engine("0", ESP_SPEC_OFF);
        assert_null(g->few);
        drive(g, true);
        assert_int_equal(g->n_few, 0);
        esp_engine_close(g);
        for (esp_spec spec = ESP_SPEC_OFF; spec <= ESP_SPEC_MTP; spec += ESP_SPEC_MTP - ESP_SPEC_OFF) {
            g = open_engine("1", spec);
            assert_non_null(g->few);
            drive(g, false);
            if (way < 3) /* the one with log-probabilities alone needs whole rows, and little else does */
                assert_true(g->n_few > 3 * g->n_whole && g->n_whole > 0);
            else
                assert_true(g->n_whole > 0);
            n_few += g->n_few;
            n_whole += g->n_whole;
            esp_engine_close(g);
        }
    }
    printf("%llu tokens from few logits, %llu rows fetched\n", (unsigned long long)n_few,
           (unsigned long long)n_whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts_same)};
    int failed;

    if (!getenv("ESPALIER_TEST_DEVICE")) {
        fprintf(stderr, "skipped: ESPALIER_TEST_DEVICE is not set\n");
        return 77;
    }
    test_need_device();
    test_drafts_open(24);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_drafts_close();
    return failed;
}
