/*
 * Where memory lies and threads run changes no token: every kind of pages and machines of one to three memory
 * nodes, which hwloc makes up, with threads fewer and more than nodes, answer as a plain engine does. And the
 * plan counts whole pages where pages are whole.
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/huge.h"
#include "espalier/espalier.h"

enum { N_TOKEN = 24, N_PROMPT = 70 };

struct answer {
    esp_token ids[N_TOKEN];
    float logprob[N_TOKEN];
};

static esp_status try_open(esp_model **m, esp_engine **g, const esp_model_opts *mo, const char *pack,
                           esp_error *err)
{
    const esp_engine_opts o = {.context = 512, .max_seqs = 1, .chunk = 64, .pack = pack};
    esp_status s = esp_model_open(m, test_path("models/demo"), mo, err);

    return s == ESP_OK ? esp_engine_open(g, *m, &o, err) : s;
}

static void run(struct answer *a, const esp_model_opts *mo, const char *pack)
{
    esp_seq_opts so = {.sampling = {.ignore_end = true}, .logprobs = true};
    esp_token prompt[N_PROMPT];
    esp_model *m = NULL;
    esp_engine *g = NULL;
    esp_seq *q;
    size_t got = 0;
    esp_error err;

    test_ok(try_open(&m, &g, mo, pack, &err), &err);
    for (int i = 0; i < N_PROMPT; i++)
        prompt[i] = 300 + i * 7 % 500;
    test_ok(esp_seq_open(&q, g, &so, &err), &err);
    test_ok(esp_seq_append(q, prompt, N_PROMPT, &err), &err);
    test_ok(esp_seq_generate(q, N_TOKEN, &err), &err);
    while (got < N_TOKEN) {
        esp_event e[8];
        size_t n;

        test_ok(esp_engine_step(g, e, 8, &n, &err), &err);
        for (size_t i = 0; i < n && got < N_TOKEN; i++) {
            if (e[i].token < 0)
                continue;
            a->ids[got] = e[i].token;
            a->logprob[got++] = e[i].logprob;
        }
    }
    esp_seq_close(q);
    esp_engine_close(g);
    esp_model_close(m);
}

static void same(const struct answer *a, const struct answer *b)
{
    assert_memory_equal(a->ids, b->ids, sizeof a->ids);
    assert_memory_equal(a->logprob, b->logprob, sizeof a->logprob);
}

static void test_nodes(void **state)
{
    static const char *const machines[] = {"numa:2 core:2 pu:1", "numa:3 core:1 pu:1"};
    static const char *const hows[] = {"spread", "node:1"};
    struct answer plain = {0};

    (void)state;
    run(&plain, &(esp_model_opts){.threads = 1, .numa = "off"}, "on");
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        assert_int_equal(setenv("HWLOC_SYNTHETIC", machines[i], 1), 0);
        for (uint32_t threads = 1; threads <= 4; threads++) {
            struct answer placed = {0};

            run(&placed, &(esp_model_opts){.threads = threads, .numa = hows[threads == 4]},
                threads % 2 ? "on" : "off");
            same(&plain, &placed);
        }
        unsetenv("HWLOC_SYNTHETIC");
    }
}

static void test_pages(void **state)
{
    static const char *const kinds[] = {"off", "on", "auto"};
    struct answer plain = {0};
    esp_error err;

    (void)state;
    run(&plain, &(esp_model_opts){.threads = 2, .huge_pages = "off"}, "on");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct answer a = {0};

        if (strcmp(kinds[i], "on") == 0 && esp_huge_check(&err) != ESP_OK)
            continue;
        run(&a, &(esp_model_opts){.threads = 2, .huge_pages = kinds[i]}, "on");
        same(&plain, &a);
    }
}

/* A pool that is large enough is used; one that is not is refused with its numbers. */
static void test_reserved(void **state)
{
    const esp_model_opts mo = {.threads = 1, .huge_pages = "hugetlb"};
    esp_model *m = NULL;
    esp_engine *g = NULL;
    esp_memory_plan whole, plain;
    esp_error err;
    esp_status s;

    (void)state;
    s = try_open(&m, &g, &mo, "on", &err);
    if (s != ESP_OK)
        test_refused(s, ESP_ENOFIT, &err, "nr_hugepages");
    esp_engine_close(g);
    test_ok(esp_engine_plan(m, NULL, &whole, &err), &err);
    esp_model_close(m);
    test_ok(esp_model_open(&m, test_path("models/demo"), &(esp_model_opts){.threads = 1}, &err), &err);
    test_ok(esp_engine_plan(m, NULL, &plain, &err), &err);
    esp_model_close(m);
    assert_true(plain.kv_pool % ESP_HUGE_PAGE == 0 || whole.kv_pool > plain.kv_pool);
    assert_true(whole.kv_pool < plain.kv_pool + ESP_HUGE_PAGE && whole.kv_pool % ESP_HUGE_PAGE == 0);
    assert_true(whole.state_pool < plain.state_pool + ESP_HUGE_PAGE);
    assert_true(whole.total >= plain.total && whole.total < plain.total + 4 * (uint64_t)ESP_HUGE_PAGE);
}

static void test_refusals(void **state)
{
    esp_model *m;
    esp_error err;

    (void)state;
    test_refused(esp_model_open(&m, test_path("models/demo"), &(esp_model_opts){.huge_pages = "yes"}, &err),
                 ESP_EINVAL, &err, "hugetlb");
    test_refused(esp_model_open(&m, test_path("models/demo"), &(esp_model_opts){.numa = "both"}, &err),
                 ESP_EINVAL, &err, "spread");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_reserved),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
