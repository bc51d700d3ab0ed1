/*
 * A device that fails: the rows of the failed launch end with its message and their state is gone, those that
 * waited run afterwards with the tokens that they have alone, and the failed sequences can be armed again.
 * Failing at every launch of a small schedule in turn, nothing is leaked from the pools.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/engine_help.h"

#include <stdio.h>
#include <string.h>

#include "engine/cache.h"
#include "engine/engine.h"

enum { N_SEQ = 3, N_NEW = 6, PROMPT = 40 };

static struct esp_backend_ops ops; /* the device's own, with a run() that fails */
static esp_status (*real_run)(struct esp_plan *p, const struct esp_batch *b, esp_error *err);
static int runs, fail_at; /* launches so far; the one that fails, -1 for none */

static esp_status failing_run(struct esp_plan *p, const struct esp_batch *b, esp_error *err)
{
    if (runs++ == fail_at)
        return esp_fail(err, ESP_EDEVICE, "launch %d: the device was unplugged", fail_at);
    return real_run(p, b, err);
}

static esp_engine *open_engine(void)
{
    esp_engine_opts o = {.context = 128,
                         .max_seqs = N_SEQ,
                         .rows = 2,
                         .chunk = 16,
                         .kv_tokens = 3 * 256,
                         .admission = ESP_ADMISSION_WORST,
                         .checkpoints = 6};
    esp_engine *g;
    esp_error err;

    test_ok(esp_engine_open(&g, model, &o, &err), &err);
    ops = *g->dev->ops;
    real_run = ops.run;
    ops.run = failing_run;
    g->dev->ops = &ops;
    runs = 0;
    return g;
}

static void arm(esp_seq *s, int which, size_t known)
{
    esp_error err;

    for (size_t i = known; i < PROMPT; i++) {
        const esp_token t = (esp_token)((i * 7 + (size_t)which * 31) % 500);

        test_ok(esp_seq_append(s, &t, 1, &err), &err);
    }
    test_ok(esp_seq_generate(s, N_NEW, &err), &err);
}

struct result {
    esp_token t[N_SEQ][N_NEW];
    size_t n[N_SEQ];
    int failed[N_SEQ];
};

static void drive(esp_engine *g, esp_seq **s, struct result *r)
{
    esp_stats st;

    for (int step = 0;; step++) {
        esp_event e[2 * N_SEQ];
        size_t n;
        esp_error err;

        assert_true(step < 500);
        test_ok(esp_engine_step(g, e, 2 * N_SEQ, &n, &err), &err);
        for (size_t i = 0; i < n; i++) {
            int k = 0;

            while (s[k] != e[i].seq)
                k++;
            if (e[i].token >= 0)
                r->t[k][r->n[k]++] = e[i].token;
            if (e[i].finish == ESP_FINISH_FAILED) {
                assert_non_null(strstr(e[i].message, "unplugged"));
                r->failed[k]++;
            }
        }
        esp_engine_stats(g, &st);
        if (n == 0 && st.rows_active + st.rows_waiting == 0)
            return;
    }
}

static void test_every_launch(void **state)
{
    const esp_seq_opts so = {.sampling = {.ignore_end = true}};
    struct result want = {.n = {0}};
    int total = 0;

    (void)state;
    for (int at = -1; at < total || at < 0; at++) {
        esp_engine *g = open_engine();
        struct result got = {.n = {0}};
        esp_seq *s[N_SEQ];
        int n_failed = 0;
        esp_stats st;
        esp_error err;

        fail_at = at;
        for (int i = 0; i < N_SEQ; i++) {
            test_ok(esp_seq_open(&s[i], g, &so, &err), &err);
            arm(s[i], i, 0);
        }
        drive(g, s, &got);
        if (at < 0) {
            want = got;
            total = runs;
            assert_true(total > 10);
        }
        for (int i = 0; i < N_SEQ; i++) {
            n_failed += got.failed[i];
            assert_memory_equal(got.t[i], want.t[i], got.n[i] * sizeof(esp_token)); /* up to the failure */
            assert_true(got.failed[i] || got.n[i] == N_NEW);
        }
        assert_true(at < 0 ? n_failed == 0 : n_failed == 1 || n_failed == 2); /* as many as ran */
        for (int i = 0; i < N_SEQ; i++) { /* all of it again from the prompt */
            test_ok(esp_seq_rewind(s[i], PROMPT, &err), &err);
            arm(s[i], i, PROMPT);
        }
        memset(&got, 0, sizeof got);
        drive(g, s, &got);
        assert_memory_equal(got.t, want.t, sizeof want.t);
        for (int i = 0; i < N_SEQ; i++)
            esp_seq_close(s[i]);
        while (esp_cache_evict(g, ESP_PREFIX_PAGE))
            ;
        esp_engine_stats(g, &st);
        assert_int_equal(st.pages_used, 0);
        assert_int_equal(st.slots_used, 0);
        esp_engine_close(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_launch)};

    return cmocka_run_group_tests(tests, open_model, close_model);
}
