/*
 * Speculation in the life of a sequence: prefix hits, rewinds and forks, files, a full context, a stop inside
 * a burst, known tokens behind a generation. The draft layer's rows stay in step with the sequence all the
 * time.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/drafts.h"

/* Rewinds into and before bursts, snapshots, forks; with the draft layer's rows in step all the time. */
static void test_rewind_and_fork(void **state)
{
    static const esp_spec kinds[] = {ESP_SPEC_MTP, ESP_SPEC_NGRAM, ESP_SPEC_DRAFT};

    (void)state;
    for (int k = 0; k < 3; k++) {
        struct test_text *r = &test_drafts.r[2]; /* greedy: a fork counts all as prompt */
        esp_engine_opts o = test_drafts_options(kinds[k], 3);
        esp_engine *g = test_drafts_engine(o);
        esp_seq *s = test_text_open(g, r), *f;
        esp_error err;

        test_text_expect(g, s, r, 0, 10);
        test_ok(esp_seq_snapshot(s, &err), &err);
        test_text_expect(g, s, r, 10, 13);
        test_ok(esp_seq_fork(&f, s, &r->opts, &err), &err);
        test_text_expect(g, f, r, 23, 9);
        test_ok(esp_seq_rewind(s, r->n + 15, &err), &err);
        test_text_expect(g, s, r, 15, 11);
        test_ok(esp_seq_rewind(s, r->n - 5, &err), &err);
        test_ok(esp_seq_append(s, r->prompt + r->n - 5, 5, &err), &err);
        test_text_expect(g, s, r, 0, 30);
        esp_seq_close(f);
        esp_seq_close(s);
        esp_engine_close(g);
    }
}

/* The first and the second answer to a prompt have the same drafts, though the second takes its prompt from
 * the cache: the draft layer's rows and its hidden row come with it. */
static void test_prefix_hit(void **state)
{
    uint64_t drafted[3], right[3];
    esp_engine_opts o = test_drafts_options(ESP_SPEC_MTP, 3);
    esp_engine *g;

    (void)state;
    o.checkpoints = 12;
    o.checkpoint_every = 64;
    g = test_drafts_engine(o);
    for (int i = 0; i < 3; i++) {
        struct test_text *r = &test_drafts.r[5];
        esp_seq *s = test_text_open(g, r);
        esp_usage u;

        test_text_expect(g, s, r, 0, r->n_new);
        esp_seq_usage(s, &u);
        assert_true((u.cached_tokens > 0) == (i > 0));
        drafted[i] = u.drafted;
        right[i] = u.accepted;
        esp_seq_close(s);
    }
    for (int i = 1; i < 3; i++) {
        assert_int_equal(drafted[i], drafted[0]);
        assert_int_equal(right[i], right[0]);
    }
    test_drafts_run(g, 3);
    test_drafts_run(g, 0);
    esp_engine_close(g);
}

/* A saved sequence goes on in another engine with the drafts it would have had. */
static void test_file(void **state)
{
    struct test_text *r = &test_drafts.r[4];
    const char *path = test_write(test_tmpdir(), "seq", "", 0);
    esp_engine *g = test_drafts_engine(test_drafts_options(ESP_SPEC_MTP, 3)),
               *off = test_drafts_engine(test_drafts_options(ESP_SPEC_OFF, 0));
    esp_seq *s = test_text_open(g, r), *t;
    esp_usage u, v;
    esp_error err;

    (void)state;
    test_text_expect(g, s, r, 0, 12);
    test_ok(esp_seq_save(s, path, &err), &err);
    test_text_expect(g, s, r, 12, 20);
    esp_seq_usage(s, &u);
    esp_seq_close(s);
    test_refused(esp_seq_load(&t, off, path, &r->opts, &err), ESP_EINVAL, &err, "mtp");
    test_ok(esp_seq_load(&t, g, path, &r->opts, &err), &err);
    test_text_expect(g, t, r, 12, 20);
    esp_seq_usage(t, &v);
    assert_int_equal(u.drafted, v.drafted);
    assert_int_equal(u.accepted, v.accepted);
    esp_seq_close(t);
    esp_engine_close(off);
    esp_engine_close(g);
}

/* A context that fills up in a burst, and a stop with half of a burst handed out. */
static void test_context_and_stop(void **state)
{
    struct test_text *r = &test_drafts.r[1];
    struct esp_drafter d;
    esp_engine_opts o = test_drafts_options(ESP_SPEC_NGRAM, 8);
    esp_engine *g;
    esp_event e;
    size_t n, got = 0;
    esp_error err;

    (void)state;
    o.context = (uint32_t)r->n + 13;
    g = test_double_open(o, &d, 0);
    test_drafts.runs[0] = (struct test_run){.r = r, .seq = test_text_open(g, r)};
    test_ok(esp_seq_generate(test_drafts.runs[0].seq, 100, &err), &err);
    do {
        test_ok(esp_engine_step(g, &e, 1, &n, &err), &err);
        got += n;
    } while (n == 0 || e.finish == ESP_FINISH_NONE);
    assert_int_equal(got, 13);
    assert_int_equal(e.finish, ESP_FINISH_LENGTH);
    esp_seq_close(test_drafts.runs[0].seq);
    esp_engine_close(g);

    r = &test_drafts.r[2];
    g = test_double_open(test_drafts_options(ESP_SPEC_NGRAM, 8), &d, 0);
    test_drafts.runs[0] = (struct test_run){.r = r, .seq = test_text_open(g, r)};
    test_ok(esp_seq_generate(test_drafts.runs[0].seq, 38, &err), &err);
    for (got = 0; got < 5; got += n)
        test_ok(esp_engine_step(g, &e, 1, &n, &err), &err);
    assert_true(g->n_event > g->first_event);
    esp_seq_stop(test_drafts.runs[0].seq);
    assert_int_equal(esp_seq_length(test_drafts.runs[0].seq), r->n + 5);
    test_text_expect(g, test_drafts.runs[0].seq, r, 5, 20);
    esp_seq_close(test_drafts.runs[0].seq);
    esp_engine_close(g);
}

/* ---- known tokens behind a generation ---- */

static void test_extend(void **state)
{
    struct test_text *r = &test_drafts.r[3]; /* sampled, with penalties */
    esp_token span[] = {40, 41, 42, 43, 44, 45, 46};
    float logprob[12];
    esp_token token[12];
    size_t taken;
    esp_error err;

    (void)state;
    for (int way = 0; way < 4; way++) { /* one by one, at once, at once with drafts, cut by the budget */
        esp_engine *g = test_drafts_engine(test_drafts_options(way == 2 ? ESP_SPEC_MTP : ESP_SPEC_OFF, 3));
        esp_seq *s = test_text_open(g, r);
        esp_usage u;

        test_refused(esp_seq_extend(s, span, 1, NULL, &err), ESP_ESTATE, &err, "does not generate");
        test_ok(esp_seq_generate(s, way == 3 ? 7 : 20, &err), &err);
        for (int i = 0; i < 2; i++) /* a draft may have made more than asked for: take what comes */
            assert_int_equal(test_next_event(g).token, r->want[i]);
        test_refused(esp_seq_extend(s, (esp_token[]){-3}, 1, NULL, &err), ESP_EINVAL, &err, "-3");
        if (way == 2) { /* drafts may be ahead of what was handed out */
            while (g->first_event < g->n_event)
                test_next_event(g);
            esp_seq_stop(s);
            test_ok(esp_seq_rewind(s, r->n + 2, &err), &err);
            test_ok(esp_seq_generate(s, 18, &err), &err);
        }
        if (way == 0) {
            for (int i = 0; i < 7; i++) {
                test_ok(esp_seq_extend(s, &span[i], 1, &taken, &err), &err);
                assert_int_equal(taken, 1);
            }
        } else {
            test_ok(esp_seq_extend(s, span, 7, &taken, &err), &err);
            assert_int_equal(taken, way == 3 ? 5 : 7);
        }
        if (way == 3) {
            esp_event e = test_next_event(g);

            assert_int_equal(e.token, -1);
            assert_int_equal(e.finish, ESP_FINISH_LENGTH);
        }
        for (int i = 0; way < 3 && i < 11; i++) {
            esp_event e = test_next_event(g);

            if (way == 0) {
                token[i] = e.token;
                logprob[i] = e.logprob;
            }
            assert_int_equal(e.token, token[i]);
            assert_true(e.logprob == logprob[i]);
        }
        esp_seq_usage(s, &u);
        assert_int_equal(u.generated_tokens, way == 3 ? 7 : way == 2 ? 18 : 20);
        esp_seq_close(s);
        esp_engine_close(g);
    }
}

/* The bits of an appended span are those of the same tokens sampled. */
static void test_extend_as_sampled(void **state)
{
    struct test_text *r = &test_drafts.r[2];
    esp_engine *g = test_drafts_engine(test_drafts_options(ESP_SPEC_OFF, 0));
    esp_seq *s = test_text_open(g, r);
    esp_error err;

    (void)state;
    test_ok(esp_seq_generate(s, 30, &err), &err);
    assert_int_equal(test_next_event(g).token, r->want[0]);
    test_ok(esp_seq_extend(s, r->want + 1, 9, NULL, &err), &err);
    for (int i = 10; i < 30; i++) {
        esp_event e = test_next_event(g);

        assert_int_equal(e.token, r->want[i]);
        assert_true(e.logprob == r->logprob[i]);
    }
    esp_seq_close(s);
    esp_engine_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rewind_and_fork),
                                       cmocka_unit_test(test_prefix_hit),
                                       cmocka_unit_test(test_file),
                                       cmocka_unit_test(test_context_and_stop),
                                       cmocka_unit_test(test_extend),
                                       cmocka_unit_test(test_extend_as_sampled)};
    int failed;

    test_drafts_open(40);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_drafts_close();
    return failed;
}
