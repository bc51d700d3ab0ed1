/*
 * The sampler by its contract: the shared cases, refusals, masks, history, seeds, distribution, memory
 * failures. The filters are compared with a sorting oracle in oracle_test.c. SPDX-License-Identifier: MIT
 */
#include "sample/sample_help.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

/* ---- sampling.json (field cases 25, 26, 27) ---- */

static double number(const json_t *j)
{
    const char *s = json_string_value(j);

    if (!s)
        return json_number_value(j);
    return strcmp(s, "NaN") == 0         ? (double)NAN
           : strcmp(s, "-Infinity") == 0 ? -(double)INFINITY
                                         : (fail(), 0);
}

static void set_real(double *field, const json_t *params, const char *name)
{
    const json_t *v = json_object_get(params, name);

    if (v)
        *field = number(v);
}

static void read_params(struct esp_sample_params *p, const json_t *j)
{
    esp_sample_params_init(p);
    set_real(&p->temperature, j, "temperature");
    set_real(&p->top_p, j, "top_p");
    set_real(&p->min_p, j, "min_p");
    set_real(&p->presence_penalty, j, "presence_penalty");
    set_real(&p->frequency_penalty, j, "frequency_penalty");
    if (json_object_get(j, "top_k"))
        p->top_k = json_integer_value(json_object_get(j, "top_k"));
}

static void push_all(struct esp_sampler *s, const json_t *params)
{
    const json_t *v;
    size_t i;

    json_array_foreach(json_object_get(params, "prompt"), i, v)
    {
        uint32_t id = (uint32_t)json_integer_value(v);

        assert_int_equal(esp_sampler_push_prompt(s, &id, 1, NULL), ESP_OK);
    }
    json_array_foreach(json_object_get(params, "output_so_far"), i, v)
        assert_int_equal(esp_sampler_push(s, (uint32_t)json_integer_value(v), NULL), ESP_OK);
}

/* Exactly the listed ids must come up in 20,000 draws. */
static void check_possible(const struct esp_sampler *s, const float *logits, const json_t *possible)
{
    bool seen[4] = {false}, listed[4] = {false};
    const json_t *v;
    size_t i;

    json_array_foreach(possible, i, v) listed[json_integer_value(v)] = true;
    for (uint64_t d = 0; d < 20000; d++)
        seen[draw(s, logits, NULL, d)] = true;
    assert_memory_equal(seen, listed, sizeof seen);
}

static void check_expectations(struct esp_sample_params *p, const json_t *c, const float *logits,
                               struct esp_sample_work *w)
{
    const json_t *expect = json_object_get(c, "expect"), *v, *row;
    struct esp_sampler *s = make_sampler(p, w);
    size_t i;

    push_all(s, json_object_get(c, "params"));
    v = json_object_get(expect, "token");
    if (v)
        assert_int_equal(draw(s, logits, NULL, 0), json_integer_value(v));
    if (json_is_true(json_object_get(expect, "seed_independent"))) {
        struct esp_sampler *other;

        p->seed = 12345;
        other = make_sampler(p, w);
        assert_int_equal(draw(other, logits, NULL, 77), json_integer_value(v));
        esp_sampler_destroy(other);
    }
    v = json_object_get(expect, "possible");
    if (v)
        check_possible(s, logits, v);
    json_array_foreach(json_object_get(expect, "logits"), i, v)
    {
        float out[4];

        assert_int_equal(esp_sampler_process(s, logits, NULL, out, NULL), ESP_OK);
        assert_true(out[i] == (float)number(v));
    }
    json_array_foreach(json_object_get(expect, "top"), i, row)
    {
        struct esp_sample_logprob chosen, top[2];
        uint32_t n;

        assert_int_equal(
            esp_sample_logprobs(logits, 4, (struct esp_logprob_query){0, 2}, &chosen, top, &n, NULL), ESP_OK);
        assert_int_equal(n, 2);
        assert_true(fabs(chosen.logprob - number(json_object_get(expect, "logprob_of_0"))) < 5e-6);
        assert_int_equal(top[i].id, json_integer_value(json_array_get(row, 0)));
        assert_true(fabs(top[i].logprob - number(json_array_get(row, 1))) < 5e-6);
    }
    esp_sampler_destroy(s);
}

static void check_error_case(const char *id, const struct esp_sample_params *p, const float *logits,
                             struct esp_sample_work *w)
{
    struct esp_sample_result r;
    struct esp_sampler *s;
    esp_error err;

    if (strcmp(id, "samp-nan_params") == 0) {
        struct esp_sample_params q = *p;

        test_refused(esp_sample_params_check(&q, 4, &err), ESP_EINVAL, &err, "temperature");
        q.temperature = 1;
        test_refused(esp_sample_params_check(&q, 4, &err), ESP_EINVAL, &err, "top_p");
        q.top_p = 1;
        test_refused(esp_sample_params_check(&q, 4, &err), ESP_EINVAL, &err, "min_p");
        return;
    }
    s = make_sampler(p, w);
    test_refused(esp_sampler_draw(s, logits, NULL, 0, &r, &err), ESP_ENUMERIC, &err, "nan at index 1 of 4");
    esp_sampler_destroy(s);
}

static void test_cases(void **state)
{
    json_t *file = test_json("tests/data/cases/sampling.json"), *c;
    struct esp_sample_work *w = make_work(4);
    size_t i, n_run = 0;

    (void)state;
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        struct esp_sample_params p;
        float logits[4], before[4];

        for (size_t k = 0; k < 4; k++)
            logits[k] = (float)number(json_array_get(json_object_get(c, "logits"), k));
        memcpy(before, logits, sizeof before);
        read_params(&p, json_object_get(c, "params"));
        if (json_object_get(json_object_get(c, "expect"), "error"))
            check_error_case(json_string_value(json_object_get(c, "id")), &p, logits, w);
        else
            check_expectations(&p, c, logits, w);
        assert_memory_equal(logits, before, sizeof before);
        n_run++;
    }
    assert_int_equal(n_run, 11);
    esp_sample_work_destroy(w);
    json_decref(file);
}

/* ---- masks, bans, numbers ---- */

/* Trap 34: ids of the padded head (248077 and above) must not be sampled, however likely the head makes them.
 */
static void test_trap_34_padded_vocabulary(void **state)
{
    enum { N = 248320, DEFINED = 248077, WORDS = (N + 63) / 64 };
    static float logits[N];
    static uint64_t allowed[WORDS];
    struct esp_sample_work *w = make_work(N);
    const double temperatures[] = {0, 1, 5};

    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        logits[i] = i >= DEFINED ? 50.0f : (float)(i % 97) * 0.01f;
        allowed[i / 64] |= (uint64_t)(i < DEFINED) << (i % 64);
    }
    for (size_t t = 0; t < 3; t++)
        for (int64_t top_k = 0; top_k <= 1000; top_k += 500) {
            struct esp_sample_params p;
            struct esp_sampler *s;

            esp_sample_params_init(&p);
            p.temperature = temperatures[t];
            p.top_k = top_k;
            s = make_sampler(&p, w);
            for (uint64_t i = 0; i < 20; i++)
                assert_true(draw(s, logits, allowed, i) < DEFINED);
            assert_true(temperatures[t] > 0 || draw(s, logits, allowed, 0) == 96);
            esp_sampler_destroy(s);
        }
    esp_sample_work_destroy(w);
}

static void test_mask_and_bias(void **state)
{
    const float logits[5] = {1, 2, 3, 4, -INFINITY};
    const struct esp_sample_bias bias[2] = {{3, -100}, {0, 1.5f}};
    const uint64_t only_3 = 8, only_4 = 16, all = UINT64_MAX, none = ~UINT64_C(31);
    struct esp_sample_work *w = make_work(5);
    struct esp_sample_params p;
    struct esp_sample_result r;
    struct esp_sampler *s;
    float out[5];
    esp_error err;

    (void)state;
    esp_sample_params_init(&p);
    p.temperature = 0;
    p.bias = bias;
    p.n_bias = 2;
    s = make_sampler(&p, w);
    assert_int_equal(draw(s, logits, NULL, 0), 2); /* 3 is banned */
    assert_int_equal(draw(s, logits, &all, 0), 2);
    test_ok(esp_sampler_process(s, logits, NULL, out, &err), &err);
    assert_true(out[0] == 2.5f && out[1] == 2 && out[3] == -INFINITY && out[4] == -INFINITY);
    test_refused(esp_sampler_draw(s, logits, &only_3, 0, &r, &err), ESP_ESTATE, &err, "none of the 5 tokens");
    test_refused(esp_sampler_draw(s, logits, &only_4, 0, &r, &err), ESP_ESTATE, &err, "none of the 5 tokens");
    test_refused(esp_sampler_draw(s, logits, &none, 0, &r, &err), ESP_ESTATE, &err, "none of the 5 tokens");
    assert_int_equal(draw(s, logits, NULL, 0), 2); /* and the row goes on */
    esp_sampler_destroy(s);
    esp_sample_work_destroy(w);
}

/* Field case 27: a clear error with the first index, wherever it is, mask or not; the next draw works. */
static void test_case_27_non_finite(void **state)
{
    enum { N = 150 };
    const float bad[] = {NAN, -NAN, INFINITY};
    const char *const text[] = {"nan at index ", "nan at index ", "inf at index "};
    const uint64_t allowed[3] = {1, 0, 0};
    struct esp_sample_work *w = make_work(N);
    struct esp_sample_params p;
    struct esp_sample_result r;
    struct esp_sample_logprob lp;
    struct esp_sampler *s;
    float logits[N] = {0};
    esp_error err;
    uint32_t n;

    (void)state;
    esp_sample_params_init(&p);
    s = make_sampler(&p, w);
    for (size_t i = 0; i < N; i++)
        for (size_t b = 0; b < 3; b++) {
            const struct esp_logprob_query q = {0, 0};
            char part[40];

            logits[i] = bad[b];
            logits[N - 1] = bad[b]; /* the first one is named */
            snprintf(part, sizeof part, "%s%zu of 150", text[b], i);
            test_refused(esp_sampler_draw(s, logits, NULL, 0, &r, &err), ESP_ENUMERIC, &err, part);
            test_refused(esp_sampler_draw(s, logits, allowed, 0, &r, &err), ESP_ENUMERIC, &err, part);
            test_refused(esp_sample_logprobs(logits, N, q, &lp, NULL, &n, &err), ESP_ENUMERIC, &err, part);
            logits[i] = 0;
            logits[N - 1] = 0;
        }
    draw(s, logits, NULL, 0);
    for (size_t i = 0; i < N; i++)
        logits[i] = -INFINITY;
    test_refused(esp_sampler_draw(s, logits, NULL, 0, &r, &err), ESP_ENUMERIC, &err, "-inf at index 0");
    test_refused(esp_sample_logprobs(logits, N, (struct esp_logprob_query){0, 0}, &lp, NULL, &n, &err),
                 ESP_ENUMERIC, &err, "-inf at index 0");
    logits[149] = -FLT_MAX;
    assert_int_equal(draw(s, logits, NULL, 0), 149);
    esp_sampler_destroy(s);
    esp_sample_work_destroy(w);
}

static void test_extremes(void **state)
{
    const float logits[4] = {FLT_MAX, -FLT_MAX, FLT_MAX, 1e-38f};
    const double temperatures[] = {DBL_TRUE_MIN, 1e-300, 1e-6, 5};
    struct esp_sample_work *w = make_work(4);
    struct esp_sample_params p;
    bool seen[4] = {false};

    (void)state;
    for (size_t t = 0; t < 4; t++) {
        struct esp_sampler *s;

        esp_sample_params_init(&p);
        p.temperature = temperatures[t];
        s = make_sampler(&p, w);
        for (uint64_t i = 0; i < 100; i++)
            seen[draw(s, logits, NULL, i)] = true;
        esp_sampler_destroy(s);
    }
    assert_true(seen[0] && seen[2] && !seen[1] && !seen[3]);
    /* a penalty saturates instead of making an infinity */
    esp_sample_params_init(&p);
    p.temperature = 0;
    p.repetition_penalty = DBL_TRUE_MIN;
    p.presence_penalty = -2;
    {
        struct esp_sampler *s = make_sampler(&p, w);
        float out[4];

        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(esp_sampler_push(s, i, NULL), ESP_OK);
        assert_int_equal(esp_sampler_process(s, logits, NULL, out, NULL), ESP_OK);
        assert_true(out[0] == FLT_MAX && isfinite(out[1]) && out[3] == FLT_MAX);
        assert_int_equal(draw(s, logits, NULL, 0), 0);
        esp_sampler_destroy(s);
    }
    esp_sample_work_destroy(w);
}

/* Case 26: greedy is exact on ties wherever they lie, signed zeros included, at every vocabulary size around
 * a block. */
static void test_case_26_greedy_ties(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 200; n++) {
        struct esp_sample_work *w = make_work(n);
        struct esp_sample_params p;
        struct esp_sampler *s;
        float logits[200];

        esp_sample_params_init(&p);
        p.temperature = 0;
        s = make_sampler(&p, w);
        for (uint32_t first = 0; first < n; first++) {
            for (uint32_t i = 0; i < n; i++)
                logits[i] = i < first ? -1.0f : i == first ? -0.0f : 0.0f;
            assert_int_equal(draw(s, logits, NULL, first), first);
        }
        esp_sampler_destroy(s);
        esp_sample_work_destroy(w);
    }
}

/* ---- draws ---- */

/* Case 24: the draw depends on seed, choice and position, not on order, history or other rows sharing the
 * scratch. */
static void test_case_24_seed(void **state)
{
    enum { V = 1000, N = 64 };
    static float logits[V], other_logits[V];
    struct esp_sample_work *w = make_work(V);
    struct esp_sample_params p;
    struct esp_sampler *s, *other, *choice;
    uint32_t ids[N], same_choice = 0, same_seed = 0;

    (void)state;
    for (uint32_t i = 0; i < V; i++) {
        logits[i] = (float)(i * 7919u % V) * 0.004f;
        other_logits[i] = (float)(i % 10);
    }
    esp_sample_params_init(&p);
    p.seed = 42;
    s = make_sampler(&p, w);
    p.choice = 1;
    choice = make_sampler(&p, w);
    p.choice = 0;
    p.seed = 43;
    other = make_sampler(&p, w);
    for (uint32_t i = 0; i < N; i++)
        ids[i] = draw(s, logits, NULL, i);
    for (uint32_t i = N; i-- > 0;) { /* backwards, twice, with other rows in between */
        draw(other, other_logits, NULL, i);
        same_choice += draw(choice, logits, NULL, i) == ids[i];
        assert_int_equal(draw(s, logits, NULL, i), ids[i]);
        same_seed += draw(other, logits, NULL, i) == ids[i];
        assert_int_equal(draw(s, logits, NULL, i), ids[i]);
        assert_int_equal(esp_sampler_push(s, i, NULL), ESP_OK); /* penalties are off: history has no say */
    }
    assert_true(same_choice < 4 && same_seed < 4); /* about 0.1 expected by chance */
    esp_sampler_destroy(s);
    esp_sampler_destroy(other);
    esp_sampler_destroy(choice);
    esp_sample_work_destroy(w);
}

/* Pearson's test of 20,000 draws with a fixed seed against the softmax, computed here from the definition. */
static void test_distribution(void **state)
{
    enum { V = 130, N = 20000 };
    const double temperatures[] = {0.7, 1.0, 1.8};
    struct esp_sample_work *w = make_work(V);
    float logits[V];

    (void)state;
    for (uint32_t i = 0; i < V; i++)
        logits[i] = (float)(i * 37 % V) * 0.02f - 1.0f;
    for (int t = 0; t < 3; t++) {
        uint32_t seen[V] = {0};
        double total = 0, chi = 0;
        struct esp_sample_params p;
        struct esp_sampler *s;

        esp_sample_params_init(&p);
        p.temperature = temperatures[t];
        p.seed = 2024;
        s = make_sampler(&p, w);
        for (uint64_t i = 0; i < N; i++)
            seen[draw(s, logits, NULL, i)]++;
        for (int i = 0; i < V; i++)
            total += exp((double)logits[i] / temperatures[t]);
        for (int i = 0; i < V; i++) {
            double e = N * exp((double)logits[i] / temperatures[t]) / total;

            assert_true(e > 3); /* the approximation holds */
            chi += (seen[i] - e) * (seen[i] - e) / e;
        }
        assert_true(chi > 78 && chi < 197); /* 129 degrees of freedom: about 0.01 % outside on either side */
        esp_sampler_destroy(s);
    }
    esp_sample_work_destroy(w);
}

/* ---- memory ---- */

static void test_no_memory(void **state)
{
    const struct esp_sample_bias bias = {1, 1};
    const uint32_t end = 2;
    const float logits[4] = {0, 1, 2, 3};
    struct esp_sample_params p;
    int64_t n_failed = 0;

    (void)state;
    esp_sample_params_init(&p);
    p.presence_penalty = 1;
    p.bias = &bias;
    p.n_bias = 1;
    p.end_ids = &end;
    p.n_end = 1;
    for (;; n_failed++) {
        struct esp_sample_work *w = NULL;
        struct esp_sampler *s = NULL;
        esp_status status;
        esp_error err;

        esp_mem_fail_at(n_failed);
        status = esp_sample_work_create(&w, 4, &err);
        if (status == ESP_OK)
            status = esp_sampler_create(&s, &p, w, 10, &err);
        if (status == ESP_OK) { /* steps take no memory at all */
            esp_mem_fail_at(0);
            assert_int_equal(esp_sampler_push(s, 1, NULL), ESP_OK);
            draw(s, logits, NULL, 0);
            assert_int_equal(esp_sampler_pop(s, 1, NULL), ESP_OK);
            assert_int_equal(esp_mem_fail_at(-1), 0);
        } else {
            assert_int_equal(status, ESP_ENOMEM);
            assert_null(s);
        }
        esp_mem_fail_at(-1);
        esp_sampler_destroy(s);
        esp_sample_work_destroy(w);
        if (status == ESP_OK)
            break;
    }
    assert_int_equal(n_failed, 8); /* work and its arrays, sampler, tokens, slots, counts, bias, end tokens */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),         cmocka_unit_test(test_trap_34_padded_vocabulary),
        cmocka_unit_test(test_mask_and_bias), cmocka_unit_test(test_case_27_non_finite),
        cmocka_unit_test(test_extremes),      cmocka_unit_test(test_case_26_greedy_ties),
        cmocka_unit_test(test_case_24_seed),  cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
