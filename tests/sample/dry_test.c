/*
 * DRY and XTC: penalties of repetitions against the shortest program that could be right, over random texts
 * of few letters; what XTC leaves out, how often, and what it never touches. Both are functions of the
 * history and the position alone.
 *
 * SPDX-License-Identifier: MIT
 */
#include "sample/sample_help.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

enum { V = 130, LETTERS = 4 };

static double uniform(uint32_t *counter)
{
    const struct esp_rng_key key = {.seed = 11, .position = (*counter)++};

    return esp_rng_uniform(&key);
}

/* ---- DRY ---- */

static bool is_breaker(const struct esp_sample_params *p, uint32_t id)
{
    return id / 64 < p->n_dry_word && (p->dry_breakers[id / 64] >> (id % 64) & 1);
}

/* The longest repetition that id would go on with: every earlier place of id, read backwards letter by
 * letter. */
static size_t repetition(const struct esp_sample_params *p, const uint32_t *text, size_t n, uint32_t id)
{
    const size_t window = p->dry_context_size ? (size_t)p->dry_context_size : n;
    const size_t from = n > window ? n - window : 0;
    size_t best = 0;

    for (size_t at = from + 1; at < n && !is_breaker(p, id); at++) {
        size_t len = 0;

        while (text[at] == id && len < at - from && text[at - 1 - len] == text[n - 1 - len] &&
               !is_breaker(p, text[at - 1 - len]))
            len++;
        best = len > best ? len : best;
    }
    return best;
}

static void check_text(const struct esp_sample_params *p, struct esp_sample_work *w, const uint32_t *text,
                       size_t n, uint32_t *n_penalised)
{
    struct esp_sampler *s = make_sampler(p, w);
    float logits[V], out[V];
    esp_error err;

    for (uint32_t i = 0; i < V; i++)
        logits[i] = (float)(i % 7);
    test_ok(esp_sampler_push_prompt(s, text, n / 2, &err), &err);
    for (size_t i = n / 2; i < n; i++)
        test_ok(esp_sampler_push(s, text[i], &err), &err);
    test_ok(esp_sampler_process(s, logits, NULL, out, &err), &err);
    for (uint32_t i = 0; i < V; i++) {
        const size_t len = repetition(p, text, n, i);
        const double penalty =
            len >= (size_t)p->dry_allowed_length
                ? p->dry_multiplier * pow(p->dry_base, (double)len - (double)p->dry_allowed_length)
                : 0;

        *n_penalised += penalty > 0;
        if (!(fabs((double)out[i] - ((double)logits[i] - penalty)) <= 1e-5 * (1 + penalty)))
            fail_msg("id %u: %g of %g; a repetition of %zu takes %g", i, (double)out[i], (double)logits[i],
                     len, penalty);
    }
    esp_sampler_destroy(s);
}

static void test_dry_oracle(void **state)
{
    const uint64_t breakers[3] = {0, 0, 2}; /* id 129 */
    struct esp_sample_work *w = make_work(V);
    uint32_t r = 0, n_penalised = 0;

    (void)state;
    for (int round = 0; round < 3000; round++) {
        struct esp_sample_params p;
        uint32_t text[MAX_HISTORY];
        const size_t n = (size_t)(uniform(&r) * (MAX_HISTORY + 1));

        for (size_t i = 0; i < n; i++)
            text[i] = uniform(&r) < 0.1 ? 129 : (uint32_t)(uniform(&r) * LETTERS) * 30;
        esp_sample_params_init(&p);
        p.dry_multiplier = 0.8;
        p.dry_base = 1 + uniform(&r);
        p.dry_allowed_length = 1 + (int64_t)(uniform(&r) * 4);
        p.dry_context_size = uniform(&r) < 0.5 ? 0 : 1 + (int64_t)(uniform(&r) * MAX_HISTORY);
        if (uniform(&r) < 0.5) {
            p.dry_breakers = breakers;
            p.n_dry_word = uniform(&r) < 0.8 ? 3 : 2; /* ids beyond the words are none */
        }
        check_text(&p, w, text, n, &n_penalised);
    }
    assert_true(n_penalised > 2000);
    esp_sample_work_destroy(w);
}

/* A long loop takes all that there is, and still bans nothing. */
static void test_dry_saturates(void **state)
{
    const float logits[2] = {5, 5};
    struct esp_sample_work *w = make_work(2);
    struct esp_sample_params p;
    struct esp_sampler *s;
    uint64_t only = 1;
    esp_error err;

    (void)state;
    esp_sample_params_init(&p);
    p.temperature = 0;
    p.dry_multiplier = 100;
    p.dry_base = 100;
    s = make_sampler(&p, w);
    for (int i = 0; i < MAX_HISTORY; i++)
        test_ok(esp_sampler_push(s, 0, &err), &err);
    assert_int_equal(draw(s, logits, NULL, 0), 1);
    assert_int_equal(draw(s, logits, &only, 0), 0);
    test_ok(esp_sampler_pop(s, MAX_HISTORY - 2, &err), &err); /* "0 0": one token repeated, which is free */
    assert_int_equal(draw(s, logits, NULL, 0), 0);
    test_ok(esp_sampler_push(s, 0, &err), &err);
    assert_int_equal(draw(s, logits, NULL, 0), 1);
    esp_sampler_destroy(s);
    esp_sample_work_destroy(w);
}

/* ---- XTC ---- */

static void test_xtc_leaves_out(void **state)
{
    /* Of the mass: 0.4, 0.3, 0.15, 0.1, 0.05. */
    static const double share[5] = {0.4, 0.3, 0.15, 0.1, 0.05};
    static const struct {
        double threshold;
        uint64_t exempt;
        unsigned kept; /* bits */
    } cases[] = {{0.35, 0, 0x1f}, {0.25, 0, 0x1e}, {0.12, 0, 0x1c}, {0, 0, 0x10},    {0.25, 1, 0x1f},
                 {0.12, 2, 0x1e}, {0.12, 4, 0x1e}, {0.09, 8, 0x1c}, {0.12, 7, 0x1f}, {0.6, 0, 0x1f}};
    struct esp_sample_work *w = make_work(5);
    float logits[5];

    (void)state;
    for (int i = 0; i < 5; i++)
        logits[i] = (float)log(share[i]);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct esp_sample_params p;
        struct esp_sampler *s;
        unsigned seen = 0;

        esp_sample_params_init(&p);
        p.temperature = 1;
        p.xtc_probability = 1;
        p.xtc_threshold = cases[c].threshold;
        p.xtc_exempt = cases[c].exempt ? &cases[c].exempt : NULL;
        s = make_sampler(&p, w);
        for (uint64_t position = 0; position < 400; position++)
            seen |= 1u << draw(s, logits, NULL, position);
        if (seen != cases[c].kept)
            fail_msg("case %zu: ids %x of %x", c, seen, cases[c].kept);
        esp_sampler_destroy(s);
    }
    esp_sample_work_destroy(w);
}

/* At the share of positions that was asked for, at the same ones each time, and the draw itself stays the
 * same where nothing is left out. */
static void test_xtc_share(void **state)
{
    enum { N = 4000 };
    const float logits[4] = {2, 1.5f, 1, 0};
    struct esp_sample_work *w = make_work(4);
    struct esp_sample_params p;
    struct esp_sampler *plain, *some, *greedy;
    uint32_t changed = 0;

    (void)state;
    esp_sample_params_init(&p);
    p.temperature = 1;
    p.seed = 5;
    plain = make_sampler(&p, w);
    p.xtc_probability = 0.3;
    some = make_sampler(&p, w);
    p.temperature = 0;
    p.xtc_probability = 1;
    greedy = make_sampler(&p, w);
    for (uint64_t position = 0; position < N; position++) {
        struct esp_sample_result a, b, again;

        assert_int_equal(esp_sampler_draw(plain, logits, NULL, position, &a, NULL), ESP_OK);
        assert_int_equal(esp_sampler_draw(some, logits, NULL, position, &b, NULL), ESP_OK);
        assert_int_equal(esp_sampler_draw(some, logits, NULL, position, &again, NULL), ESP_OK);
        assert_memory_equal(&b, &again, sizeof b);
        if (b.n_kept == a.n_kept)
            assert_int_equal(a.id, b.id);
        changed += b.n_kept < a.n_kept;
    }
    assert_true(changed > N * 0.27 && changed < N * 0.33);
    assert_int_equal(draw(greedy, logits, NULL, 0), 0); /* the likeliest token is what greedy means */
    esp_sampler_destroy(plain);
    esp_sampler_destroy(some);
    esp_sampler_destroy(greedy);
    esp_sample_work_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dry_oracle),
        cmocka_unit_test(test_dry_saturates),
        cmocka_unit_test(test_xtc_leaves_out),
        cmocka_unit_test(test_xtc_share),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
