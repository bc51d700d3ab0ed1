/*
 * Random operations on six sequences of an engine with little memory, a prefix cache and files, against a
 * naive model: the tokens of every sequence, and their continuation in an engine that has nothing but the
 * weights, to the last bit. ESPALIER_SOAK=N runs N operations, 1 stands for 100,000; ESPALIER_SOAK_SEED
 * takes another course.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/engine_help.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SEQ = 6, SOAK_CONTEXT = 300 };

static esp_engine *open_engine(esp_engine_opts o)
{
    esp_engine *g;
    esp_error err;

    test_ok(esp_engine_open(&g, model, &o, &err), &err);
    return g;
}

static void ignore(void *user, const esp_event *e)
{
    (void)user;
    if (e->finish == ESP_FINISH_FAILED)
        fail_msg("%s", e->message);
}

struct shadow {
    esp_seq *seq;
    esp_token t[SOAK_CONTEXT];
    float logprob[SOAK_CONTEXT]; /* of those that were generated */
    size_t n;
};

static struct shadow shadows[N_SEQ];
static const esp_seq_opts soak_opts = {.sampling = {.ignore_end = true}, .logprobs = true};

static void check_tokens(const struct shadow *s)
{
    esp_token t[SOAK_CONTEXT];
    size_t n;
    esp_error err;

    test_ok(esp_seq_tokens(s->seq, t, SOAK_CONTEXT, &n, &err), &err);
    assert_int_equal(n, s->n);
    assert_memory_equal(t, s->t, n * sizeof *t);
}

static void soak_event(void *user, const esp_event *e)
{
    (void)user;
    ignore(NULL, e);
    for (int i = 0; i < N_SEQ; i++)
        if (shadows[i].seq == e->seq && e->token >= 0) {
            shadows[i].logprob[shadows[i].n] = e->logprob;
            shadows[i].t[shadows[i].n++] = e->token;
        }
}

/* Continue s's tokens in a bare engine: greedy, so both must go on alike, to the last bit. */
static void compare(esp_engine *bare, esp_engine *g, struct shadow *s)
{
    struct shadow other = {.n = s->n}, keep[N_SEQ];
    esp_error err;
    size_t k = 1 + rnd(4);

    if (s->n == 0 || s->n + k > SOAK_CONTEXT)
        return;
    memcpy(other.t, s->t, sizeof other.t);
    test_ok(esp_seq_open(&other.seq, bare, &soak_opts, &err), &err);
    test_ok(esp_seq_append(other.seq, other.t, other.n, &err), &err);
    test_ok(esp_seq_generate(other.seq, k, &err), &err);
    memcpy(keep, shadows, sizeof keep);
    shadows[0] = other;
    run_all(bare, soak_event, NULL);
    other = shadows[0];
    memcpy(shadows, keep, sizeof keep);
    esp_seq_close(other.seq);
    test_ok(esp_seq_generate(s->seq, k, &err), &err);
    run_all(g, soak_event, NULL);
    assert_int_equal(s->n, other.n);
    for (size_t i = 0; i < s->n; i++)
        if (s->t[i] != other.t[i] || (i >= s->n - k && s->logprob[i] != other.logprob[i])) {
            esp_usage u;

            esp_seq_usage(s->seq, &u);
            fail_msg("token %zu of %zu is %d instead of %d (%zu new, %llu cached)", i, s->n, s->t[i],
                     other.t[i], k, (unsigned long long)u.cached_tokens);
        }
}

static void reopen(esp_engine *g, struct shadow *s)
{
    const struct shadow *from = &shadows[rnd(N_SEQ)];
    esp_error err;

    esp_seq_close(s->seq);
    if (rnd(3) == 0) { /* another's text or its beginning: what the cache is for */
        size_t n = from->n ? rnd((uint32_t)from->n + 1) : 0;

        memmove(s->t, from->t, n * sizeof *s->t);
        s->n = n;
    } else {
        s->n = 0;
    }
    test_ok(esp_seq_open(&s->seq, g, &soak_opts, &err), &err);
    test_ok(esp_seq_append(s->seq, s->t, s->n, &err), &err);
}

static void append(struct shadow *s)
{
    size_t k = 1 + rnd(40);
    esp_error err;

    if (s->n + k > SOAK_CONTEXT - 8)
        return;
    for (size_t i = 0; i < k; i++)
        s->t[s->n + i] = (esp_token)(rnd(4) ? 7 : rnd(500));
    test_ok(esp_seq_append(s->seq, s->t + s->n, k, &err), &err);
    s->n += k;
}

/* Arm several, stop some of them somewhere. */
static void burst(esp_engine *g)
{
    esp_error err;

    for (int i = 0; i < N_SEQ; i++)
        if (shadows[i].n && shadows[i].n < SOAK_CONTEXT - 8 && rnd(2))
            test_ok(esp_seq_generate(shadows[i].seq, rnd(8), &err), &err);
    for (int i = (int)rnd(4); i > 0; i--) {
        esp_event e[2 * N_SEQ];
        size_t n;

        test_ok(esp_engine_step(g, e, 2 * N_SEQ, &n, &err), &err);
        for (size_t j = 0; j < n; j++)
            soak_event(NULL, &e[j]);
    }
    if (rnd(2))
        esp_seq_stop(shadows[rnd(N_SEQ)].seq);
    run_all(g, soak_event, NULL);
}

static esp_engine *restart(esp_engine *g, const char *dir)
{
    esp_error err;

    for (int i = 0; i < N_SEQ; i++) {
        esp_seq_close(shadows[i].seq);
        shadows[i].seq = NULL;
    }
    esp_engine_close(g);
    g = open_engine((esp_engine_opts){.context = SOAK_CONTEXT,
                                      .max_seqs = N_SEQ,
                                      .rows = 3,
                                      .chunk = 1 + rnd(60),
                                      .kv_tokens = 512 + 256 * rnd(6),
                                      .admission = ESP_ADMISSION_WORST + rnd(2),
                                      .expected_new = 1,
                                      .checkpoints = 2 + rnd(8),
                                      .checkpoint_every = 32 + rnd(64),
                                      .checkpoints_per_path = 2 + rnd(3),
                                      .snapshots = 1 + rnd(3),
                                      .cache_dir = dir,
                                      .cache_disk = 32u << 20});
    for (int i = 0; i < N_SEQ; i++) {
        test_ok(esp_seq_open(&shadows[i].seq, g, &soak_opts, &err), &err);
        test_ok(esp_seq_append(shadows[i].seq, shadows[i].t, shadows[i].n, &err), &err);
    }
    return g;
}

static void fork_one(const struct shadow *from, struct shadow *to)
{
    esp_error err;

    if (from == to)
        return;
    esp_seq_close(to->seq);
    test_ok(esp_seq_fork(&to->seq, from->seq, &soak_opts, &err), &err);
    memcpy(to->t, from->t, sizeof to->t);
    to->n = from->n;
}

static void save_and_load(esp_engine *g, struct shadow *s, const char *dir)
{
    char path[512];
    esp_error err;

    snprintf(path, sizeof path, "%.400s/saved", dir);
    test_ok(esp_seq_save(s->seq, path, &err), &err);
    esp_seq_close(s->seq);
    test_ok(esp_seq_load(&s->seq, g, path, &soak_opts, &err), &err);
}

static void test_soak(void **state)
{
    const char *soak = getenv("ESPALIER_SOAK"), *dir = test_tmpdir();
    long wish = soak && *soak ? strtol(soak, NULL, 10) : 0; /* 1: as many as a release is tried with */
    long n_op = wish > 1 ? wish : wish == 1 ? 100000 : 1500;
    esp_engine *bare = open_engine((esp_engine_opts){.context = SOAK_CONTEXT, .max_seqs = 1, .chunk = 64});
    esp_engine *g = restart(NULL, dir);
    uint64_t hits = 0;
    esp_stats st;
    esp_error err;

    (void)state;
    for (long i = 0; i < n_op; i++) {
        struct shadow *s = &shadows[rnd(N_SEQ)];
        uint32_t what = rnd(100);

        if (what < 35) {
            append(s);
        } else if (what < 50) {
            burst(g);
        } else if (what < 62) {
            s->n = s->n ? rnd((uint32_t)s->n + 1) : 0;
            test_ok(esp_seq_rewind(s->seq, s->n, &err), &err);
        } else if (what < 75) {
            fork_one(&shadows[rnd(N_SEQ)], s);
        } else if (what < 88) {
            reopen(g, s);
        } else if (what < 93) {
            test_ok(esp_seq_snapshot(s->seq, &err), &err);
        } else if (what < 96) {
            save_and_load(g, s, dir);
        } else if (what < 98) {
            test_ok(esp_engine_flush(g, &err), &err);
        } else {
            esp_engine_stats(g, &st);
            hits += st.cache_hits;
            g = restart(g, dir);
        }
        check_tokens(s);
        if (i % 12 == 0)
            compare(bare, g, s);
    }
    esp_engine_stats(g, &st);
    assert_true(hits + st.cache_hits > (uint64_t)n_op / 50);
    for (int i = 0; i < N_SEQ; i++)
        esp_seq_close(shadows[i].seq);
    esp_engine_close(g);
    esp_engine_close(bare);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_soak)};
    const char *seed = getenv("ESPALIER_SOAK_SEED");

    if (seed && *seed)
        rng = strtoull(seed, NULL, 10);
    return cmocka_run_group_tests(tests, open_model, close_model);
}
