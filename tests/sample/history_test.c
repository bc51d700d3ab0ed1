/*
 * The sampler's history: windowed counts under random pushes and pops, limits, min_tokens.
 * SPDX-License-Identifier: MIT
 */
#include "sample/sample_help.h"

#include "base/rng.h"

/* Random pushes and pops against counting the windows anew. */
static void test_history(void **state)
{
    enum { V = 9 };
    const float logits[V] = {3, -2, 1, 0, 5, -4, 2, 2, -1};
    struct esp_sample_work *w = make_work(V);
    uint32_t r = 0;

    (void)state;
    for (int round = 0; round < 40; round++) {
        uint32_t tokens[MAX_HISTORY];
        bool generated[MAX_HISTORY];
        size_t len = 0, n_gen = 0;
        struct esp_sample_params p;
        struct esp_sampler *s;

        esp_sample_params_init(&p);
        p.repetition_penalty = 1.25;
        p.presence_penalty = 0.5;
        p.frequency_penalty = 0.25;
        p.repetition_context_size = round % 7;
        p.presence_context_size = round % 5;
        p.frequency_context_size = round % 11 == 10 ? INT64_MAX : round % 11;
        s = make_sampler(&p, w);
        for (int op = 0; op < 200; op++) {
            const struct esp_rng_key key = {.seed = 5, .position = r++}, key2 = {.seed = 6, .position = r};
            double u = esp_rng_uniform(&key), v = esp_rng_uniform(&key2);
            const double pen[3] = {(double)p.repetition_context_size, (double)p.presence_context_size,
                                   (double)p.frequency_context_size};
            float out[V];

            if (u < 0.4 && len > 0) {
                size_t n = (size_t)(v * (double)(len < 6 ? len + 1 : 6));

                assert_int_equal(esp_sampler_pop(s, n, NULL), ESP_OK);
                for (; n > 0; n--)
                    n_gen -= generated[--len];
            } else if (len < MAX_HISTORY) {
                tokens[len] = (uint32_t)(v * V);
                generated[len] = u < 0.8;
                if (generated[len])
                    assert_int_equal(esp_sampler_push(s, tokens[len], NULL), ESP_OK);
                else
                    assert_int_equal(esp_sampler_push_prompt(s, &tokens[len], 1, NULL), ESP_OK);
                n_gen += generated[len++];
            }
            assert_int_equal(esp_sampler_length(s), len);
            assert_int_equal(esp_sampler_n_generated(s), n_gen);
            assert_int_equal(esp_sampler_process(s, logits, NULL, out, NULL), ESP_OK);
            for (uint32_t id = 0; id < V; id++) {
                double x = (double)logits[id];
                int count[3] = {0};

                for (size_t i = 0; i < len; i++)
                    for (int k = 0; k < 3; k++)
                        count[k] += tokens[i] == id && (k == 0 || generated[i]) &&
                                    (pen[k] == 0 || (double)(len - i) <= pen[k]);
                if (count[0])
                    x = x > 0 ? x / 1.25 : x * 1.25;
                x -= count[1] ? 0.5 : 0;
                x -= 0.25 * count[2];
                assert_true(out[id] == (float)x);
            }
        }
        esp_sampler_destroy(s);
    }
    esp_sample_work_destroy(w);
}

static void test_history_limits(void **state)
{
    struct esp_sample_work *w = make_work(8);
    struct esp_sample_params p;
    uint32_t ids[MAX_HISTORY + 1] = {0};
    struct esp_sampler *s;
    esp_error err;

    (void)state;
    esp_sample_params_init(&p);
    s = make_sampler(&p, w);
    test_refused(esp_sampler_push_prompt(s, ids, MAX_HISTORY + 1, &err), ESP_ENOFIT, &err,
                 "65 tokens after 0");
    ids[3] = 8;
    test_refused(esp_sampler_push_prompt(s, ids, 5, &err), ESP_EINVAL, &err, "token 3 has id 8");
    assert_int_equal(esp_sampler_length(s), 0);
    ids[3] = 0;
    test_ok(esp_sampler_push_prompt(s, ids, MAX_HISTORY, &err), &err);
    test_refused(esp_sampler_push(s, 1, &err), ESP_ENOFIT, &err, "the history holds 64");
    test_refused(esp_sampler_pop(s, 65, &err), ESP_EINVAL, &err, "65 of 64");
    test_ok(esp_sampler_pop(s, 64, &err), &err);
    assert_int_equal(esp_sampler_length(s), 0);
    esp_sampler_destroy(s);
    esp_sampler_destroy(NULL);
    esp_sample_work_destroy(w);
    esp_sample_work_destroy(NULL);
}

static void test_min_tokens(void **state)
{
    const float logits[4] = {9, 8, 1, 0};
    const uint32_t ends[2] = {0, 1};
    const uint64_t only_ends = 3;
    struct esp_sample_work *w = make_work(4);
    struct esp_sample_params p;
    struct esp_sampler *s;

    (void)state;
    esp_sample_params_init(&p);
    p.temperature = 0;
    p.min_tokens = 2;
    p.end_ids = ends;
    p.n_end = 2;
    s = make_sampler(&p, w);
    assert_int_equal(esp_sampler_push_prompt(s, ends, 2, NULL), ESP_OK); /* the prompt does not count */
    assert_int_equal(draw(s, logits, NULL, 0), 2);
    assert_int_equal(draw(s, logits, &only_ends, 0),
                     0); /* a grammar that allows nothing else may end the row */
    assert_int_equal(esp_sampler_push(s, 2, NULL), ESP_OK);
    assert_int_equal(esp_sampler_push(s, 3, NULL), ESP_OK);
    assert_int_equal(draw(s, logits, NULL, 2), 0);
    assert_int_equal(esp_sampler_pop(s, 1, NULL), ESP_OK);
    assert_int_equal(draw(s, logits, NULL, 1), 2);
    esp_sampler_destroy(s);
    esp_sample_work_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_history),
        cmocka_unit_test(test_history_limits),
        cmocka_unit_test(test_min_tokens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
