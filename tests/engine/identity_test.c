/*
 * A row does not know its neighbours: the same request gives the same tokens and log-probabilities alone, in
 * any batch, with any chunk, any number of threads, after a rewind, in a fork, and in a slot that others used
 * before. Cases 24, 28 and 30 of the field; traps 4, 5, 6, 8, 17 and 18.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "espalier/espalier.h"

enum { N_REQUEST = 12, MAX_PROMPT = 200, N_NEW = 24, MAX_ROWS = 6 };

struct request {
    esp_token prompt[MAX_PROMPT];
    size_t n;
    esp_seq_opts opts;
    esp_token want[N_NEW];
    float logprob[N_NEW];
    size_t n_want;
};

struct run { /* one request in flight */
    struct request *r;
    esp_seq *seq;
    size_t got;
    uint32_t start; /* step number at which it arrives */
    bool done;
};

static struct request requests[N_REQUEST];
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
        struct request *r = &requests[i];

        memset(r, 0, sizeof *r);
        r->n = i % 3 == 0 ? 1 + rnd(8) : 1 + rnd(MAX_PROMPT);
        for (size_t j = 0; j < r->n; j++)
            r->prompt[j] = (esp_token)rnd(info.n_vocab);
        r->opts.logprobs = true;
        r->opts.sampling.ignore_end = true;
        r->opts.sampling.seed = (uint64_t)i;
        if (i % 2) {
            r->opts.sampling.temperature = 0.9f;
            r->opts.sampling.top_p = 0.95f;
            r->opts.sampling.repetition_penalty = 1.1f;
        }
    }
}

static void start(struct run *x, esp_engine *g)
{
    esp_error err;

    test_ok(esp_seq_open(&x->seq, g, &x->r->opts, &err), &err);
    test_ok(esp_seq_append(x->seq, x->r->prompt, x->r->n, &err), &err);
    test_ok(esp_seq_generate(x->seq, N_NEW, &err), &err);
}

static void take_event(struct run *runs, size_t n_run, const esp_event *e, bool record)
{
    struct run *x = runs;

    while (x < runs + n_run && x->seq != e->seq)
        x++;
    assert_true(x < runs + n_run);
    if (e->finish == ESP_FINISH_FAILED)
        fail_msg("%s", e->message);
    if (e->token >= 0 && record) {
        x->r->want[x->got] = e->token;
        x->r->logprob[x->got] = e->logprob;
    }
    if (e->token >= 0) {
        assert_int_equal(e->token, x->r->want[x->got]);
        assert_true(e->logprob == x->r->logprob[x->got]); /* bit for bit */
        x->got++;
    }
    x->done |= e->finish != ESP_FINISH_NONE;
}

/* Run all of runs to their ends in one engine, each from its start step on. */
static void drive(esp_engine *g, struct run *runs, size_t n_run, bool record)
{
    size_t n_done = 0;
    esp_error err;

    for (uint32_t step = 0; n_done < n_run; step++) {
        esp_event e[2 * MAX_ROWS];
        size_t n;

        for (size_t i = 0; i < n_run; i++)
            if (runs[i].start == step)
                start(&runs[i], g);
        test_ok(esp_engine_step(g, e, 2 * MAX_ROWS, &n, &err), &err);
        for (size_t i = 0; i < n; i++)
            take_event(runs, n_run, &e[i], record);
        for (size_t i = 0; i < n_run; i++)
            if (runs[i].done && runs[i].seq) {
                assert_int_equal(runs[i].got, N_NEW);
                esp_seq_close(runs[i].seq);
                runs[i].seq = NULL;
                n_done++;
            }
        assert_true(step < 10000);
    }
}

static void solo(esp_model *m, const char *kv, const char *act)
{
    esp_engine_opts o = {.context = 256, .max_seqs = 1, .chunk = 256, .kv = kv, .act = act};
    esp_engine *g;
    esp_error err;

    test_ok(esp_engine_open(&g, m, &o, &err), &err);
    for (int i = 0; i < N_REQUEST; i++) { /* one after the other in the same pages and slots */
        struct run x = {.r = &requests[i]};

        drive(g, &x, 1, true);
    }
    esp_engine_close(g);
}

static void together(esp_model *m, uint32_t chunk, const char *kv, const char *act)
{
    esp_engine_opts o = {.context = 256,
                         .max_seqs = MAX_ROWS,
                         .chunk = chunk,
                         .kv_tokens = 256 * MAX_ROWS,
                         .kv = kv,
                         .act = act};
    esp_engine *g;
    esp_error err;

    test_ok(esp_engine_open(&g, m, &o, &err), &err);
    for (int round = 0; round < 3; round++) {
        struct run runs[MAX_ROWS];

        memset(runs, 0, sizeof runs);
        for (int i = 0; i < MAX_ROWS; i++) {
            runs[i].r = &requests[rnd(N_REQUEST)]; /* now and then twice the same: case 28 */
            runs[i].start = rnd(12);
        }
        drive(g, runs, MAX_ROWS, false);
    }
    esp_engine_close(g);
}

static void check_model(const char *folder, const char *kv, const char *act)
{
    static const uint32_t chunks[] = {6, 17, 64, 512};
    esp_model *m = open_model(folder, 1);

    make_requests(m);
    solo(m, kv, act);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        esp_model_close(m);
        m = open_model(folder, threads);
        for (size_t i = TEST_SANITIZED ? threads - 1 : 0; i < sizeof chunks / sizeof chunks[0];
             i += TEST_SANITIZED ? 3 : 1)
            together(m, chunks[i], kv, act);
    }
    esp_model_close(m);
}

static void test_batches(void **state)
{
    (void)state;
    check_model("models/tiny-text", "f32", "f32");
    check_model("models/demo", "bf16", "auto");
    check_model("models/demo", "f32", "bf16");
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
static void test_rewind_and_fork(void **state)
{
    esp_model *m = open_model("models/demo", 2);
    esp_engine_opts o = {.context = 512, .max_seqs = 3, .kv_tokens = 2048};
    esp_seq_opts so = {.sampling = {.ignore_end = true}};
    esp_token prompt[150], first[40], again[40];
    esp_seq *s, *fresh, *fork;
    esp_engine *g;
    esp_error err;

    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_batches),
                                       cmocka_unit_test(test_rewind_and_fork)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
