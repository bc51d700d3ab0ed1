/*
 * The gated delta rule and its state: a prompt in pieces, long drift, strong decay, large values, several
 * sequences side by side. Traps 4, 5, 8, 9, 10, 11, 18 and 19.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/compare.h"

enum { MAX_N = 700, V = 97 };

static int32_t ids[MAX_N];
static double want[MAX_N * V], twisted[MAX_N * V];
static float whole[MAX_N * V], got[MAX_N * V];

static struct naive_shape shape(void)
{
    struct naive_shape s = mf_shape();

    s.hidden = 64;
    s.ffn = 64;
    s.n_layer = 3;
    memcpy(s.full, (uint8_t[]){0, 1, 0}, 3);
    return s;
}

static void open_net(struct test_net *t, struct mf_model *m, int level, uint32_t threads)
{
    test_net_open(t, (struct test_net_opts){.folder = mf_write(m, &(struct mf_form){0}),
                                            .level = (enum esp_cpu_level)level,
                                            .threads = threads,
                                            .context = 768,
                                            .max_tok = 768,
                                            .n_seq = 6});
}

static void check_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_true(isfinite(x[i]));
}

/* Pieces lens[0], lens[1], ... (the last one repeats) behind one state give the bits of one pass. */
static void check_pieces(struct test_net *t, const uint32_t *lens, size_t n_len, uint32_t n)
{
    struct compare_seq s = {0};
    esp_error err;
    size_t piece = 0;

    test_ok(esp_state_open(&s.state, t->pools, 768, 0, &err), &err);
    for (uint32_t i = 0; i < n; i += s.n) {
        s.n = lens[piece] < n - i ? lens[piece] : n - i;
        s.ids = ids + i;
        s.logits = got + (size_t)i * V;
        compare_batch(t, &s, 1);
        piece += piece + 1 < n_len;
    }
    assert_memory_equal(whole, got, sizeof *got * n * V);
    esp_state_close(s.state);
}

static void trap_4_and_5_prompt_in_pieces(void **state)
{
    static const uint32_t pieces[][4] = {{60, 40, 1, 1},  {1, 1, 1, 1},    {2, 1, 2, 3},   {63, 1, 1, 64},
                                         {64, 64, 1, 63}, {65, 127, 3, 5}, {255, 1, 1, 2}, {256, 5, 64, 1}};
    struct naive_shape s = shape();
    struct mf_model m;

    (void)state;
    mf_make(&m, &s, false, 1);
    mf_tokens(ids, 300, V, 2);
    naive_forward(&m.net, NAIVE_RIGHT, ids, NULL, 300, want);
    for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++)
        for (uint32_t threads = 1; compare_has_level(level) && threads <= 2; threads++) {
            struct test_net t;

            open_net(&t, &m, level, threads);
            compare_run(&t, ids, NULL, 300, 0, whole);
            assert_true(compare_max(whole, want, 300 * V) <= COMPARE_TOLERANCE);
            for (size_t i = threads - 1; i < sizeof pieces / sizeof pieces[0]; i += 2)
                check_pieces(&t, pieces[i], 4, 300);
            test_net_close(&t);
        }
    mf_free(&m);
}

/* Snapshots at odd lengths, a rewind that lands on one, and what follows gives the bits of a plain run. */
static void trap_8_snapshots_at_odd_lengths(void **state)
{
    static const uint32_t lengths[] = {1, 2, 3, 63, 64, 65, 127, 200, 255, 256, 257};
    struct naive_shape s = shape();
    struct mf_model m;
    struct test_net t;

    (void)state;
    mf_make(&m, &s, false, 3);
    mf_tokens(ids, 280, V, 4);
    open_net(&t, &m, test_level(), 1);
    compare_run(&t, ids, NULL, 280, 0, whole);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct compare_seq q = {.ids = ids, .n = lengths[i], .logits = got};
        uint32_t reached;
        esp_error err;

        test_ok(esp_state_open(&q.state, t.pools, 768, 2, &err), &err);
        compare_batch(&t, &q, 1);
        test_ok(esp_state_snapshot(q.state, &err), &err);
        q.ids = ids + 40; /* a continuation that is thrown away */
        q.n = 20;
        compare_batch(&t, &q, 1);
        test_ok(esp_state_rewind(q.state, lengths[i] + 7, &reached, &err), &err);
        assert_int_equal(reached, lengths[i]);
        q.ids = ids + reached;
        q.n = 280 - reached;
        compare_batch(&t, &q, 1);
        assert_memory_equal(got, whole + (size_t)reached * V, sizeof *got * q.n * V);
        esp_state_close(q.state);
    }
    test_net_close(&t);
    mf_free(&m);
}

/* Slow decay over 700 tokens: what beta in bf16 would do is far above what the engine is off. */
static void trap_9_beta_is_not_rounded(void **state)
{
    struct naive_shape s = shape();
    struct mf_model m;
    double twist, worst;

    (void)state;
    mf_make(&m, &s, false, 5);
    for (uint32_t h = 0; h < s.vh; h++)
        m.net.layer[0].a_log[h] = m.net.layer[2].a_log[h] = -7; /* half-life of some hundred tokens */
    mf_tokens(ids, MAX_N, V, 6);
    naive_forward(&m.net, NAIVE_RIGHT, ids, NULL, MAX_N, want);
    naive_forward(&m.net, NAIVE_BETA_BF16, ids, NULL, MAX_N, twisted);
    twist = compare_twist(twisted, want, (size_t)MAX_N * V);
    for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++) {
        struct test_net t;

        if (!compare_has_level(level))
            continue;
        open_net(&t, &m, level, 1);
        compare_run(&t, ids, NULL, MAX_N, 0, got);
        test_net_close(&t);
        worst = compare_max(got, want, (size_t)MAX_N * V);
        assert_true(worst <= COMPARE_TOLERANCE);
        assert_true(compare_rms(got, want, (size_t)MAX_N * V) * 30 < twist);
    }
    mf_free(&m);
}

/* Readouts far above 65504, before the norm brings them back. */
static void trap_10_large_readouts(void **state)
{
    struct naive_shape s = shape();
    uint32_t v0 = 2 * s.kh * s.dk;
    struct mf_model m;

    (void)state;
    mf_make(&m, &s, false, 7);
    for (uint32_t l = 0; l < 3; l += 2)
        for (uint32_t i = v0 * s.hidden; i < (v0 + s.vh * s.dv) * s.hidden; i++)
            m.net.layer[l].qkv[i] = ldexp(m.net.layer[l].qkv[i], 30);
    mf_tokens(ids, 150, V, 8);
    naive_forward(&m.net, NAIVE_RIGHT, ids, NULL, 150, want);
    for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++) {
        struct test_net t;

        if (!compare_has_level(level))
            continue;
        open_net(&t, &m, level, 1);
        compare_run(&t, ids, NULL, 150, 0, got);
        check_finite(got, 150 * V);
        assert_true(compare_max(got, want, 150 * V) <= COMPARE_TOLERANCE);
        test_net_close(&t);
    }
    mf_free(&m);
}

/* Heads that forget all (g below -50, even -10000) beside heads that forget nothing. */
static void trap_11_strong_decay(void **state)
{
    struct naive_shape s = shape();
    struct mf_model m;

    (void)state;
    mf_make(&m, &s, false, 9);
    for (uint32_t l = 0; l < 3; l += 2)
        for (uint32_t h = 0; h < s.vh; h++) {
            m.net.layer[l].a_log[h] = (double[]){4, 8, -16, 1}[h]; /* all exact in bf16 */
            m.net.layer[l].dt_bias[h] = (double[]){2, 32, -16, -4}[h];
        }
    mf_tokens(ids, 200, V, 10);
    naive_forward(&m.net, NAIVE_RIGHT, ids, NULL, 200, want);
    for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++) {
        struct test_net t;

        if (!compare_has_level(level))
            continue;
        open_net(&t, &m, level, 1);
        for (uint32_t cut = 0; cut <= 50; cut += 50) {
            compare_run(&t, ids, NULL, 200, cut, got);
            check_finite(got, 200 * V);
            if (!(compare_max(got, want, 200 * V) <= COMPARE_TOLERANCE))
                fail_msg("%g deviations", compare_max(got, want, 200 * V));
        }
        test_net_close(&t);
    }
    mf_free(&m);
}

/* Six sequences of unequal lengths in one batch, step by step, in states that others used before. */
static void trap_18_and_19_batch(void **state)
{
    enum { SEQS = 6, STEPS = 4 };
    static const uint32_t lens[STEPS][SEQS] = {
        {1, 64, 3, 65, 2, 40}, {5, 1, 64, 1, 1, 90}, {1, 1, 1, 1, 1, 1}, {70, 2, 9, 1, 33, 1}};
    static float parts[SEQS][256 * V], alone[256 * V];
    struct naive_shape s = shape();
    struct mf_model m;
    esp_error err;

    (void)state;
    mf_make(&m, &s, false, 11);
    mf_tokens(ids, MAX_N, V, 12);
    for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++)
        for (uint32_t threads = 1; compare_has_level(level) && threads <= 2; threads++) {
            struct compare_seq q[SEQS];
            struct test_net t;
            uint32_t done[SEQS] = {0};

            open_net(&t, &m, level, threads);
            memset(q, 0, sizeof q);
            for (int i = 0; i < SEQS; i++)
                test_ok(esp_state_open(&q[i].state, t.pools, 768, 0, &err), &err);
            for (int step = 0; step < STEPS; step++) {
                for (int i = 0; i < SEQS; i++) {
                    q[i].ids = ids + 100 * i + done[i]; /* sequences overlap in content, as prompts do */
                    q[i].n = lens[step][i];
                    q[i].logits = parts[i] + (size_t)done[i] * V;
                    done[i] += q[i].n;
                }
                compare_batch(&t, q, SEQS);
            }
            for (int i = 0; i < SEQS; i++)
                esp_state_close(q[i].state);
            for (int i = 0; i < SEQS; i++) {
                compare_run(&t, ids + 100 * i, NULL, done[i], 0, alone);
                assert_memory_equal(alone, parts[i], sizeof *alone * done[i] * V);
                naive_forward(&m.net, NAIVE_RIGHT, ids + 100 * i, NULL, done[i], want);
                assert_true(compare_max(alone, want, (size_t)done[i] * V) <= COMPARE_TOLERANCE);
            }
            test_net_close(&t);
        }
    mf_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trap_4_and_5_prompt_in_pieces), cmocka_unit_test(trap_8_snapshots_at_odd_lengths),
        cmocka_unit_test(trap_9_beta_is_not_rounded),    cmocka_unit_test(trap_10_large_readouts),
        cmocka_unit_test(trap_11_strong_decay),          cmocka_unit_test(trap_18_and_19_batch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
