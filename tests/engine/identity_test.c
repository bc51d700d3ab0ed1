/*
 * A row does not know its neighbours: the same request gives the same tokens and log-probabilities alone, in
 * any batch, with any chunk, any number of threads, after a rewind, in a fork, and in a slot that others used
 * before. Cases 24, 28 and 30 of the field; traps 4, 5, 6, 8, 17 and 18.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/texts.h"

#include <string.h>

enum { N_REQUEST = 12, MAX_PROMPT = 200, N_NEW = 24, MAX_ROWS = 6 };

static struct test_text requests[N_REQUEST];
static esp_token prompts[N_REQUEST][MAX_PROMPT];
static uint64_t rng = 99;

static uint32_t rnd(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}

static esp_model *open_model(const char *folder, uint32_t threads)
{
    esp_model_opts o = {.threads = threads};
    esp_model *m;
    esp_error err;

    test_ok(esp_model_open(&m, test_path(folder), &o, &err), &err);
    return m;
}

static void make_requests(const esp_model *m)
{
    esp_model_info info;

    esp_model_describe(m, &info);
    for (int i = 0; i < N_REQUEST; i++) {
        struct test_text *r = &requests[i];

        memset(r, 0, sizeof *r);
        r->n = i % 3 == 0 ? 1 + rnd(8) : 1 + rnd(MAX_PROMPT);
        for (size_t j = 0; j < r->n; j++)
            prompts[i][j] = (esp_token)rnd(info.n_vocab);
        r->prompt = prompts[i];
        r->n_new = N_NEW;
        r->opts.logprobs = true;
        r->opts.sampling.ignore_end = true;
        r->opts.sampling.seed = (uint64_t)i;
        if (i % 2) {
            r->opts.sampling.temperature = 0.9f;
            r->opts.sampling.top_p = 0.95f;
            r->opts.sampling.repetition_penalty = 1.1f;
            r->opts.sampling.xtc_probability = 0.5f;
            r->opts.sampling.xtc_threshold = 0.05f;
            r->opts.sampling.dry_multiplier = 0.8f;
        }
    }
}

/* Options of an engine that change what a token is: kv, kv_start, state, act; the rest is the test's. */
static void solo(esp_model *m, esp_engine_opts o)
{
    esp_engine *g;
    esp_error err;

    o.context = o.chunk = 256;
    o.max_seqs = 1;

    test_ok(esp_engine_open(&g, m, &o, &err), &err);
    for (int i = 0; i < N_REQUEST; i++) { /* one after the other in the same pages and slots */
        struct test_run x = {.r = &requests[i]};

        test_drive(g, &x, 1, true);
    }
    esp_engine_close(g);
}

static void together(esp_model *m, uint32_t chunk, esp_engine_opts o)
{
    esp_engine *g;
    esp_error err;

    o.context = 256;
    o.max_seqs = MAX_ROWS;
    o.chunk = chunk;
    o.kv_tokens = 256 * MAX_ROWS;

    test_ok(esp_engine_open(&g, m, &o, &err), &err);
    for (int round = 0; round < 3; round++) {
        struct test_run runs[MAX_ROWS];

        memset(runs, 0, sizeof runs);
        for (int i = 0; i < MAX_ROWS; i++) {
            runs[i].r = &requests[rnd(N_REQUEST)]; /* now and then twice the same: case 28 */
            runs[i].start = rnd(12);
        }
        test_drive(g, runs, MAX_ROWS, false);
    }
    esp_engine_close(g);
}

static void check_model(const char *folder, esp_engine_opts o)
{
    static const uint32_t chunks[] = {6, 17, 64, 512};
    esp_model *m = open_model(folder, 1);

    make_requests(m);
    solo(m, o);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        esp_model_close(m);
        m = open_model(folder, threads);
        for (size_t i = TEST_SANITIZED ? threads - 1 : 0; i < sizeof chunks / sizeof chunks[0];
             i += TEST_SANITIZED ? 3 : 1)
            together(m, chunks[i], o);
    }
    esp_model_close(m);
}

/* Coded keys and values and states: the same promises, on fewer schedules. */
static void check_coded(const char *folder, esp_engine_opts o)
{
    esp_model *m = open_model(folder, 1);

    make_requests(m);
    solo(m, o);
    together(m, 6, o);
    esp_model_close(m);
    m = open_model(folder, 3);
    together(m, 64, o);
    esp_model_close(m);
}

static void test_schemes(void **state)
{
    static const char config[] = "[{\"layer_idx\": 7, \"scheme\": \"turbo:k8v4:own\"}]"; /* layer 3: bf16 */
    static const char *const tiny[] = {"q8", "q6:g32", "turbo:k2v2"};

    (void)state;
    for (size_t i = 0; i < (TEST_SANITIZED ? 1 : sizeof tiny / sizeof tiny[0]); i++)
        check_coded("models/tiny-text", (esp_engine_opts){.kv = tiny[i]});
    if (!TEST_SANITIZED)
        check_coded("models/demo", (esp_engine_opts){.kv = "turbo"});
    check_coded("models/demo", (esp_engine_opts){.kv = test_write(test_tmpdir(), "kv_config.json", config,
                                                                  sizeof config - 1)});
}

/* Exact first positions: within the first exact page, over several, at the end of a chunk, all of the text.
 */
static void test_starts(void **state)
{
    static const struct {
        const char *kv;
        uint32_t start;
    } cases[] = {{"turbo:k4v3", 70}, {"q4:g128", 64}, {"turbo:k2v2", 131}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i += TEST_SANITIZED ? 3 : 1)
        check_coded(i < 2 ? "models/tiny-text" : "models/demo",
                    (esp_engine_opts){.kv = cases[i].kv, .kv_start = cases[i].start});
}

static void test_states(void **state)
{
    (void)state;
    check_coded("models/tiny-text", (esp_engine_opts){.state = "q8"});
    if (!TEST_SANITIZED)
        check_coded("models/tiny-text",
                    (esp_engine_opts){.state = "bf16", .kv = "turbo:k8v4:least", .kv_start = 40});
}

static void test_batches(void **state)
{
    (void)state;
    check_model("models/tiny-text", (esp_engine_opts){.kv = "f32", .act = "f32"});
    check_model("models/demo", (esp_engine_opts){.kv = "bf16", .act = "auto"});
    if (!TEST_SANITIZED)
        check_model("models/demo", (esp_engine_opts){.kv = "f32", .act = "bf16"});
}

static size_t generate(esp_engine *g, esp_seq *s, size_t max_new, esp_token *out)
{
    size_t got = 0;
    esp_error err;

    test_ok(esp_seq_generate(s, max_new, &err), &err);
    for (;;) {
        esp_event e[4];
        size_t n;
        bool done = false;

        test_ok(esp_engine_step(g, e, 4, &n, &err), &err);
        for (size_t i = 0; i < n; i++) {
            assert_ptr_equal(e[i].seq, s);
            if (e[i].token >= 0)
                out[got++] = e[i].token;
            done |= e[i].finish != ESP_FINISH_NONE;
        }
        if (done)
            return got;
    }
}

/* Rewind to anywhere, with and without snapshots, and a conversation re-prefilled after an edit, equal a
 * fresh run. */
static void check_rewind_and_fork(esp_engine_opts o)
{
    esp_model *m = open_model("models/demo", 2);
    esp_seq_opts so = {.sampling = {.ignore_end = true}};
    esp_token prompt[150], first[40], again[40];
    esp_seq *s, *fresh, *fork;
    esp_engine *g;
    esp_error err;

    o.context = 512;
    o.max_seqs = 3;
    o.kv_tokens = 2048;
    for (int i = 0; i < 150; i++)
        prompt[i] = (esp_token)(37 * i % 4000);
    test_ok(esp_engine_open(&g, m, &o, &err), &err);
    test_ok(esp_seq_open(&s, g, &so, &err), &err);
    test_ok(esp_seq_append(s, prompt, 100, &err), &err);
    assert_int_equal(generate(g, s, 40, first), 40);
    test_ok(esp_seq_snapshot(s, &err), &err);
    for (size_t cut = 140; cut > 0; cut -= 20) {
        size_t n;

        test_ok(esp_seq_rewind(s, cut < 100 ? cut : 100, &err), &err);
        if (cut < 100)
            test_ok(esp_seq_append(s, prompt + cut, 100 - cut, &err), &err);
        assert_int_equal(esp_seq_length(s), 100);
        assert_int_equal(generate(g, s, 40, again), 40);
        assert_memory_equal(first, again, sizeof first);
        if (cut % 40 == 0)
            test_ok(esp_seq_snapshot(s, &err), &err);
        test_ok(esp_seq_tokens(s, NULL, 0, &n, &err), &err);
        assert_int_equal(n, 140);
    }
    /* A fork and its origin go different ways and do not see each other. */
    test_ok(esp_seq_fork(&fork, s, &so, &err), &err);
    test_ok(esp_seq_append(fork, prompt + 100, 50, &err), &err);
    assert_int_equal(generate(g, s, 30, first), 30);
    assert_int_equal(generate(g, fork, 30, again), 30);
    test_ok(esp_seq_open(&fresh, g, &so, &err), &err);
    {
        esp_token all[512], got[40];
        size_t n;

        test_ok(esp_seq_tokens(fork, all, 512, &n, &err), &err);
        test_ok(esp_seq_append(fresh, all, 190, &err), &err);
        assert_int_equal(generate(g, fresh, 30, got), 30);
        assert_memory_equal(got, again, sizeof(esp_token) * 30);
        test_ok(esp_seq_rewind(fresh, 0, &err), &err);
        test_ok(esp_seq_tokens(s, all, 512, &n, &err), &err);
        test_ok(esp_seq_append(fresh, all, 140, &err), &err);
        assert_int_equal(generate(g, fresh, 30, got), 30);
        assert_memory_equal(got, first, sizeof(esp_token) * 30);
    }
    esp_seq_close(fork);
    esp_seq_close(fresh);
    esp_seq_close(s);
    esp_engine_close(g);
    esp_model_close(m);
}

static void test_rewind_and_fork(void **state)
{
    (void)state;
    check_rewind_and_fork((esp_engine_opts){.kv = NULL});
    if (!TEST_SANITIZED)
        check_rewind_and_fork((esp_engine_opts){.kv = "turbo:k8v4", .kv_start = 50});
    check_rewind_and_fork((esp_engine_opts){.kv = "q8", .kv_start = 130, .state = "q8"});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_batches), cmocka_unit_test(test_schemes),
                                       cmocka_unit_test(test_starts), cmocka_unit_test(test_states),
                                       cmocka_unit_test(test_rewind_and_fork)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
