/*
 * Log-probabilities (field case 25) against long double, their order, and the exponential below them.
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>

#include "sample/exp.h"
#include "sample/sampler.h"

static void test_case_25_logprobs(void **state)
{
    enum { V = 500 };
    float logits[V];
    long double total = 0;
    struct esp_sample_logprob chosen, top[ESP_SAMPLE_MAX_TOP];
    esp_error err;
    uint32_t n;

    (void)state;
    for (uint32_t i = 0; i < V; i++) {
        logits[i] = i % 50 == 7 ? -INFINITY : (float)(i * 31 % 100) * 0.37f - 20.0f;
        total += i % 50 == 7 ? 0 : expl((long double)logits[i]);
    }
    for (uint32_t n_top = 0; n_top <= ESP_SAMPLE_MAX_TOP; n_top++)
        for (uint32_t id = 0; id < V; id += 3) {
            const struct esp_logprob_query q = {id, n_top};

            test_ok(esp_sample_logprobs(logits, V, q, &chosen, top, &n, &err), &err);
            assert_int_equal(n, n_top);
            assert_int_equal(chosen.id, id);
            if (id % 50 == 7)
                assert_true(chosen.logprob == -(double)INFINITY);
            else
                assert_true(fabsl((long double)chosen.logprob - ((long double)logits[id] - logl(total))) <
                            1e-13L);
            for (uint32_t i = 1; i < n; i++)
                assert_true(top[i].logprob < top[i - 1].logprob ||
                            (top[i].logprob == top[i - 1].logprob && top[i].id > top[i - 1].id));
            for (uint32_t i = 0; i < n; i++) { /* each is greater than all that are not listed */
                uint32_t better = 0;

                for (uint32_t j = 0; j < V; j++)
                    better +=
                        logits[j] > logits[top[i].id] || (logits[j] == logits[top[i].id] && j < top[i].id);
                assert_int_equal(better, i);
            }
        }
    test_refused(esp_sample_logprobs(logits, V, (struct esp_logprob_query){0, 21}, &chosen, top, &n, &err),
                 ESP_EINVAL, &err, "top_logprobs: 21");
    test_refused(esp_sample_logprobs(logits, V, (struct esp_logprob_query){V, 0}, &chosen, top, &n, &err),
                 ESP_EINVAL, &err, "no token has id 500");
    test_ok(esp_sample_logprobs(logits, 3, (struct esp_logprob_query){0, 20}, &chosen, top, &n, &err), &err);
    assert_int_equal(n, 3);
    logits[0] = logits[1] = logits[2] = -INFINITY;
    logits[3] = 5; /* the list goes on into banned ids, lowest first */
    test_ok(esp_sample_logprobs(logits, 4, (struct esp_logprob_query){3, 2}, &chosen, top, &n, &err), &err);
    assert_true(chosen.logprob == 0 && top[0].id == 3 && top[1].id == 0 &&
                top[1].logprob == -(double)INFINITY);
}

static void test_exp(void **state)
{
    (void)state;
    assert_true(esp_exp_neg(0) == 1 && esp_exp_neg(-0.0) == 1);
    assert_true(esp_exp_neg(-701) == 0 && esp_exp_neg(-(double)INFINITY) == 0);
    for (int i = 0; i <= 700000; i++) {
        double x = -i * 1e-3 - (i % 7) * 1e-11, y = esp_exp_neg(x < -700 ? -700 : x);
        long double want = expl((long double)(x < -700 ? -700 : x));

        assert_true(fabsl((long double)y - want) <= want * 4.5e-16L); /* 2 ulp */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_case_25_logprobs),
        cmocka_unit_test(test_exp),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
