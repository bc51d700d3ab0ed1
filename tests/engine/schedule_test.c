/*
 * Who runs when: ranks and ageing, the queue's bound, deadlines, requests that can never fit, stopping at
 * every point, chunks under a stall bound, a request that waits for a prefix another one is computing, and
 * every allocation of the cached path failing once.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/engine_help.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/engine.h"

enum { CONTEXT = 512 };

static esp_engine *open_engine(esp_engine_opts o)
{
    esp_engine *g;
    esp_error err;

    o.context = o.context ? o.context : CONTEXT;
    test_ok(esp_engine_open(&g, model, &o, &err), &err);
    return g;
}

static esp_seq *open_seq(esp_engine *g, size_t n_prompt, esp_seq_opts o)
{
    esp_token t[CONTEXT];
    esp_seq *s;
    esp_error err;

    o.sampling.ignore_end = true;
    for (size_t i = 0; i < n_prompt; i++)
        t[i] = (esp_token)(i * 3 % 500);
    test_ok(esp_seq_open(&s, g, &o, &err), &err);
    test_ok(esp_seq_append(s, t, n_prompt, &err), &err);
    return s;
}

struct order {
    esp_seq *ended[16];
    size_t n, n_failed;
    char message[512];
};

static void note_end(void *user, const esp_event *e)
{
    struct order *o = user;

    if (e->finish == ESP_FINISH_NONE)
        return;
    o->ended[o->n++] = e->seq;
    if (e->finish == ESP_FINISH_FAILED) {
        o->n_failed++;
        snprintf(o->message, sizeof o->message, "%s", e->message);
    }
}

/* One row: lower numbers first, then order of arrival; one that waits is passed only so often. */
static void test_ranks(void **state)
{
    static const int32_t priority[5] = {0, 2, 0, -1, 2};
    static const int want[5] = {3, 0, 2, 1, 4};
    esp_engine *g = open_engine((esp_engine_opts){.max_seqs = 10, .rows = 1});
    struct order o = {0};
    esp_seq *s[10];
    esp_error err;

    (void)state;
    for (int i = 0; i < 5; i++) {
        s[i] = open_seq(g, 4, (esp_seq_opts){.priority = priority[i]});
        test_ok(esp_seq_generate(s[i], 2, &err), &err);
    }
    run_all(g, note_end, &o);
    for (int i = 0; i < 5; i++) {
        assert_ptr_equal(o.ended[i], s[want[i]]);
        esp_seq_close(s[i]);
    }
    o.n = 0; /* ageing: priority 3 is let past by three of priority 0 that came later, not by the fourth */
    s[0] = open_seq(g, 4, (esp_seq_opts){.priority = 3});
    test_ok(esp_seq_generate(s[0], 2, &err), &err);
    for (int i = 1; i < 6; i++) {
        s[i] = open_seq(g, 4, (esp_seq_opts){0});
        test_ok(esp_seq_generate(s[i], 2, &err), &err);
    }
    run_all(g, note_end, &o);
    assert_int_equal(o.n, 6);
    assert_ptr_equal(o.ended[3], s[0]);
    for (int i = 0; i < 6; i++)
        esp_seq_close(s[i]);
    test_refused(esp_seq_open(&s[0], g, &(esp_seq_opts){.priority = 101}, &err), ESP_EINVAL, &err,
                 "-100 to 100");
    esp_engine_close(g);
}

/* Who has waited long enough goes before all but priority -100, the oldest first; the others by rank. */
static void test_aging(void **state)
{
    static const int32_t priority[6] = {50, 40, 0, -100, -5, 100};
    static const int want[6] = {3, 0, 1, 4, 2, 5};
    esp_engine *g = open_engine((esp_engine_opts){.max_seqs = 6, .rows = 1, .aging_ms = 60000});
    struct order o = {0};
    esp_seq *s[6];
    esp_error err;

    (void)state;
    for (int i = 0; i < 6; i++) {
        s[i] = open_seq(g, 4, (esp_seq_opts){.priority = priority[i]});
        test_ok(esp_seq_generate(s[i], 2, &err), &err);
    }
    s[0]->waits_from -= 61;
    s[1]->waits_from -= 60.5; /* nearly as long */
    run_all(g, note_end, &o);
    assert_int_equal(o.n, 6);
    for (int i = 0; i < 6; i++) {
        assert_ptr_equal(o.ended[i], s[want[i]]);
        esp_seq_close(s[i]);
    }
    esp_engine_close(g);
}

static void test_limits(void **state)
{
    esp_engine *g = open_engine((esp_engine_opts){
        .max_seqs = 4, .rows = 1, .queue = 2, .kv_tokens = 256, .admission = ESP_ADMISSION_WORST});
    esp_engine *none = NULL;
    struct order o = {0};
    esp_seq *s[4];
    esp_usage u;
    esp_stats st;
    esp_error err;

    (void)state;
    for (int i = 0; i < 4; i++)
        s[i] = open_seq(g, i == 3 ? 257 : 10, (esp_seq_opts){.deadline_us = i == 1});
    test_refused(esp_seq_generate(s[3], 1, &err), ESP_ENOFIT, &err,
                 "257 tokens need 2 KV pages, there are 1");
    test_ok(esp_seq_rewind(s[3], 20, &err), &err);
    for (int i = 0; i < 3; i++)
        test_ok(esp_seq_generate(s[i], i == 2 ? 100000 : 3, &err), &err);
    test_refused(esp_seq_generate(s[3], 3, &err), ESP_ENOFIT, &err, "1 rows and 2 places");
    run_all(g, note_end, &o);
    esp_seq_usage(s[2], &u); /* lowered to what fits the pages: the last token emitted never runs */
    assert_int_equal(u.max_new, 256 + 1 - 10);
    assert_int_equal(u.generated_tokens, 256 + 1 - 10);
    assert_int_equal(o.n, 3);
    assert_int_equal(o.n_failed, 1);
    assert_non_null(strstr(o.message, "deadline of 1 us"));
    esp_engine_stats(g, &st);
    assert_int_equal(st.refused, 1);
    assert_int_equal(st.expired, 1);
    for (int i = 0; i < 4; i++)
        esp_seq_close(s[i]);
    esp_engine_close(g);
    test_refused(esp_engine_open(&none, model, &(esp_engine_opts){.rows = 5}, &err), ESP_EINVAL, &err,
                 "rows 5");
    test_refused(esp_engine_open(&none, model, &(esp_engine_opts){.cache_dir = "x"}, &err), ESP_EINVAL, &err,
                 "checkpoints");
    test_refused(esp_engine_open(&none, model, &(esp_engine_opts){.checkpoints = 99999}, &err), ESP_EINVAL,
                 &err, "16384");
    test_refused(esp_engine_open(&none, model, &(esp_engine_opts){.checkpoints_per_path = 1}, &err),
                 ESP_EINVAL, &err, "2 or more");
    test_refused(esp_engine_open(&none, model, &(esp_engine_opts){.admission = (esp_admission)7}, &err),
                 ESP_EINVAL, &err, "admission 7");
}

static void ignore(void *user, const esp_event *e)
{
    (void)user;
    if (e->finish == ESP_FINISH_FAILED)
        fail_msg("%s", e->message);
}

/* With worst-case admission nothing fails for want of pages, whatever idle sequences and the cache hold. */
static void test_worst(void **state)
{
    esp_engine *g = open_engine((esp_engine_opts){.max_seqs = 12,
                                                  .rows = 3,
                                                  .kv_tokens = 1024,
                                                  .admission = ESP_ADMISSION_WORST,
                                                  .checkpoints = 5,
                                                  .snapshots = 1});
    esp_seq *s[12];
    esp_stats st;
    esp_error err;

    (void)state;
    for (int i = 0; i < 12; i++)
        s[i] = open_seq(g, 20 + 30 * (size_t)i, (esp_seq_opts){.cache_salt = (uint64_t)i % 2});
    for (int round = 0; round < 3; round++) { /* sequences that have ended stay open and lend their memory */
        for (int i = 0; i < 12; i++)
            test_ok(esp_seq_generate(s[i], 10 + rnd(20), &err), &err);
        run_all(g, ignore, NULL);
        esp_engine_stats(g, &st);
        assert_int_equal(st.preemptions, 0);
        assert_true(st.pages_used <= st.pages_total);
    }
    for (int i = 0; i < 12; i++)
        esp_seq_close(s[i]);
    esp_engine_close(g);
}

/* Stopped in the queue, between chunks and between tokens: what ran is cached, and nothing of it leaks. */
static void test_stops(void **state)
{
    esp_engine *g = open_engine((esp_engine_opts){
        .max_seqs = 2, .rows = 1, .chunk = 40, .kv_tokens = 2048, .checkpoints = 8, .checkpoint_every = 64});
    esp_seq *a = open_seq(g, 300, (esp_seq_opts){0}), *b;
    esp_event e[4];
    esp_usage u;
    esp_stats st;
    size_t n;
    esp_error err;

    (void)state;
    test_ok(esp_seq_generate(a, 8, &err), &err);
    esp_seq_stop(a); /* in the queue */
    esp_engine_stats(g, &st);
    assert_int_equal(st.rows_waiting, 0);
    assert_int_equal(st.cache_checkpoints, 0);
    test_ok(esp_seq_generate(a, 8, &err), &err);
    for (int i = 0; i < 3; i++)
        test_ok(esp_engine_step(g, e, 4, &n, &err), &err);
    esp_seq_close(a); /* between chunks: 40, 64, 104 tokens */
    b = open_seq(g, 300, (esp_seq_opts){0});
    test_ok(esp_seq_generate(b, 8, &err), &err);
    do
        test_ok(esp_engine_step(g, e, 4, &n, &err), &err);
    while (n == 0);
    esp_seq_usage(b, &u);
    assert_int_equal(u.cached_tokens, 104);
    esp_seq_stop(b); /* between tokens */
    assert_int_equal(esp_seq_length(b), 301);
    esp_seq_close(b);
    esp_engine_stats(g, &st);
    assert_int_equal(st.rows_active + st.rows_waiting, 0);
    esp_engine_close(g);
}

/* A long prompt beside a running row: chunks shrink to the bound, without a bound they do not. */
static void test_stall(void **state)
{
    (void)state;
    for (uint32_t bound = 0; bound <= 1; bound++) {
        esp_engine *g = open_engine(
            (esp_engine_opts){.max_seqs = 2, .chunk = 512, .kv_tokens = 1024, .max_stall_ms = bound});
        esp_seq *a = open_seq(g, 3, (esp_seq_opts){0}), *b = open_seq(g, 480, (esp_seq_opts){0});
        uint32_t steps = 0;
        esp_event e[4];
        esp_stats st;
        esp_usage u;
        size_t n;
        esp_error err;

        test_ok(esp_seq_generate(a, 400, &err), &err);
        for (int i = 0; i < 4; i++)
            test_ok(esp_engine_step(g, e, 4, &n, &err), &err);
        test_ok(esp_seq_generate(b, 1, &err), &err);
        do {
            test_ok(esp_engine_step(g, e, 4, &n, &err), &err);
            steps++;
            esp_seq_usage(b, &u);
        } while (u.generated_tokens == 0);
        esp_engine_stats(g, &st);
        assert_true(bound ? steps > 3 && st.chunk_limit > 0 && st.chunk_limit < 480 : steps == 1);
        esp_seq_close(a);
        esp_seq_close(b);
        esp_engine_close(g);
    }
}

/* The same long prompt twice at once: the second takes over what the first computes. */
static void test_waits_for_prefix(void **state)
{
    esp_engine *g =
        open_engine((esp_engine_opts){.max_seqs = 2, .chunk = 100, .kv_tokens = 2048, .checkpoints = 8});
    esp_seq *a = open_seq(g, 400, (esp_seq_opts){0}), *b = open_seq(g, 400, (esp_seq_opts){0});
    esp_usage u;
    esp_stats st;
    esp_error err;

    (void)state;
    test_ok(esp_seq_generate(a, 4, &err), &err);
    test_ok(esp_seq_generate(b, 4, &err), &err);
    run_all(g, ignore, NULL);
    esp_seq_usage(b, &u);
    assert_int_equal(u.cached_tokens, 399);
    esp_engine_stats(g, &st);
    assert_int_equal(st.prompt_tokens, 399);
    esp_seq_close(a);
    esp_seq_close(b);
    esp_engine_close(g);
}

struct got {
    esp_token t[16];
    size_t n;
};

static void collect(void *user, const esp_event *e)
{
    struct got *g = user;

    ignore(NULL, e);
    if (e->token >= 0)
        g->t[g->n++] = e->token;
}

/* A state that covers every token has no logits left: the last token runs once more, and nothing hangs. */
static void test_all_has_run(void **state)
{
    enum { AFTER_LOGITS, AFTER_REWIND, WAYS };
    struct got want = {.n = 0}, got;
    esp_token text[64];
    size_t n_text;
    esp_error err;

    (void)state;
    for (int way = -1; way < WAYS; way++) { /* first the plain way */
        esp_engine *g = open_engine((esp_engine_opts){.max_seqs = 1});
        esp_seq *s = open_seq(g, way == AFTER_LOGITS ? 0 : 40, (esp_seq_opts){0});
        float *logits = malloc(40 * 512 * sizeof *logits);

        got.n = 0;
        if (way == AFTER_LOGITS)
            test_ok(esp_seq_logits(s, text, 40, logits, &err), &err);
        if (way == AFTER_REWIND) { /* a snapshot at 40, where everything but one more token has run */
            test_ok(esp_seq_append(s, text, 1, &err), &err);
            test_ok(esp_seq_generate(s, 0, &err), &err);
            run_all(g, collect, &got);
            test_ok(esp_seq_snapshot(s, &err), &err);
            test_ok(esp_seq_append(s, text, 9, &err), &err);
            test_ok(esp_seq_generate(s, 0, &err), &err);
            run_all(g, collect, &got);
            test_ok(esp_seq_rewind(s, 40, &err), &err);
        }
        assert_int_equal(esp_seq_length(s), 40);
        test_ok(esp_seq_generate(s, 10, &err), &err);
        run_all(g, collect, way < 0 ? &want : &got);
        test_ok(esp_seq_tokens(s, text, 64, &n_text, &err), &err);
        if (way >= 0) {
            assert_int_equal(got.n, 10);
            assert_memory_equal(got.t, want.t, sizeof(esp_token) * 10);
        }
        free(logits);
        esp_seq_close(s);
        esp_engine_close(g);
    }
}

/* ---- every allocation fails once ---- */

static bool torture(int64_t n, const char *dir)
{
    esp_engine *g = NULL;
    esp_seq *s = NULL, *t = NULL;
    char path[512];
    esp_error err = {0};
    esp_status st;

    snprintf(path, sizeof path, "%s/saved", dir);
    esp_mem_fail_at(n);
    st = esp_engine_open(
        &g, model,
        &(esp_engine_opts){
            .context = 128, .max_seqs = 2, .kv_tokens = 512, .checkpoints = 4, .cache_dir = dir, .chunk = 16},
        &err);
    for (int i = 0; st == ESP_OK && i < 2; i++) {
        st = esp_seq_open(&s, g, NULL, &err);
        if (st == ESP_OK)
            st = esp_seq_append(s, (esp_token[]){1, 2, 3, 4, 5, 6, (esp_token)i}, 7, &err);
        if (st == ESP_OK)
            st = esp_seq_set_marks(s, (size_t[]){3}, 1, &err);
        if (st == ESP_OK)
            st = esp_seq_generate(s, 2, &err);
        for (int j = 0; st == ESP_OK && j < 6; j++) {
            esp_event e[4];
            size_t got;

            st = esp_engine_step(g, e, 4, &got, &err);
        }
        if (st == ESP_OK)
            st = esp_seq_save(s, path, &err);
        esp_seq_close(s);
        s = NULL;
    }
    if (st == ESP_OK)
        st = esp_seq_load(&t, g, path, NULL, &err);
    if (st == ESP_OK)
        st = esp_engine_flush(g, &err);
    esp_mem_fail_at(-1);
    if (st != ESP_OK && st != ESP_ENOMEM && st != ESP_EIO)
        fail_msg("allocation %lld: %s: %s", (long long)n, esp_status_name(st), err.message);
    esp_seq_close(s);
    esp_seq_close(t);
    esp_engine_close(g);
    return st == ESP_OK;
}

static void test_out_of_memory(void **state)
{
    const char *dir = test_tmpdir();
    int n_in_a_row = 0, n_failed = 0;

    (void)state;
    /* Some failures only cost a cache entry, so success does not mean that nothing was left to fail. */
    for (int64_t n = 0; n_in_a_row < 150 && n < 2000; n++) {
        bool ok = torture(n, dir);

        n_in_a_row = ok ? n_in_a_row + 1 : 0;
        n_failed += !ok;
    }
    assert_true(n_failed > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_aging),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_worst),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_stall),
        cmocka_unit_test(test_waits_for_prefix),
        cmocka_unit_test(test_all_has_run),
        cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, open_model, close_model);
}
