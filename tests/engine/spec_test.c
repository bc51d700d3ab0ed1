/*
 * Speculation changes time and never text: tokens and log-probabilities with every drafter and depth equal
 * those without, in batches with random arrivals, over chunk and page borders, after prefix hits, rewinds and
 * forks, at the end of a budget, a turn or a context; and drafts that are always wrong, or always right,
 * change nothing either. Traps 3, 6 and 7, case 32 of the field.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/spec.h"
#include "support/net.h"
#include "support/npy.h"

enum { N_REQUEST = 7, MAX_PROMPT = 300, N_NEW = 40, ROWS = 3, CONTEXT = 400 };

struct request {
    esp_token prompt[MAX_PROMPT];
    size_t n, n_new;
    esp_seq_opts opts;
    esp_token want[N_NEW];
    float logprob[N_NEW];
    size_t n_want;
    esp_finish finish;
};

struct run { /* one request in flight */
    struct request *r;
    esp_seq *seq;
    size_t got;
    uint32_t start;  /* step at which it arrives */
    uint32_t cancel; /* step at which it is closed; 0: never */
    bool done;
};

static esp_model *model;
static struct request requests[N_REQUEST];
static struct run runs[N_REQUEST];
static uint64_t rng = 5;

static uint32_t rnd(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}

static esp_engine *open_engine(esp_engine_opts o)
{
    esp_engine *g;
    esp_error err;

    o.context = o.context ? o.context : CONTEXT;
    test_ok(esp_engine_open(&g, model, &o, &err), &err);
    return g;
}

/* Prompts from the validation text, so that drafts are often right; lengths near chunk and page borders. */
static void make_requests(void)
{
    static const size_t lengths[N_REQUEST] = {1, 62, 64, 230, 127, 255, 33};
    uint32_t rows, cols;
    int32_t *ids = test_npy(test_path("models/demo-golden/val.npy"), &rows, &cols);

    assert_true(rows >= N_REQUEST && cols >= MAX_PROMPT);
    for (int i = 0; i < N_REQUEST; i++) {
        struct request *r = &requests[i];

        memset(r, 0, sizeof *r);
        r->n = lengths[i];
        r->n_new = N_NEW - (size_t)i;
        memcpy(r->prompt, ids + (size_t)i * cols, r->n * sizeof *r->prompt);
        r->opts.logprobs = true;
        r->opts.top_logprobs = i % 3 == 0 ? 2 : 0;
        r->opts.sampling.ignore_end = true;
        r->opts.sampling.seed = (uint64_t)i + 11;
        if (i % 2) {
            r->opts.sampling.temperature = 0.8f;
            r->opts.sampling.top_p = 0.9f;
        }
        if (i % 4 == 3) {
            r->opts.sampling.repetition_penalty = 1.1f;
            r->opts.sampling.presence_penalty = 0.3f;
        }
    }
    free(ids);
}

static void start(struct run *x, esp_engine *g)
{
    esp_error err;

    test_ok(esp_seq_open(&x->seq, g, &x->r->opts, &err), &err);
    test_ok(esp_seq_append(x->seq, x->r->prompt, x->r->n, &err), &err);
    test_ok(esp_seq_generate(x->seq, x->r->n_new, &err), &err);
}

static void take_event(struct run *x, size_t n_run, const esp_event *e, bool record)
{
    for (const struct run *end = x + n_run; x->seq != e->seq;) {
        x++;
        assert_true(x < end);
    }
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
    if (e->finish != ESP_FINISH_NONE && record) {
        x->r->n_want = x->got;
        x->r->finish = e->finish;
    }
    x->done |= e->finish != ESP_FINISH_NONE;
    if (x->done) {
        assert_int_equal(x->got, x->r->n_want);
        assert_int_equal(e->finish, x->r->finish);
    }
}

static void drive(esp_engine *g, struct run *x, size_t n_run, bool record)
{
    size_t n_done = 0;
    esp_error err;

    for (uint32_t step = 0; n_done < n_run; step++) {
        esp_event e[5];
        size_t n;

        for (size_t i = 0; i < n_run; i++)
            if (x[i].start == step)
                start(&x[i], g);
        test_ok(esp_engine_step(g, e, 5, &n, &err), &err);
        for (size_t i = 0; i < n; i++)
            take_event(x, n_run, &e[i], record);
        for (size_t i = 0; i < n_run; i++)
            if (x[i].seq && (x[i].done || (x[i].cancel && x[i].cancel == step))) {
                esp_seq_close(x[i].seq);
                x[i].seq = NULL;
                n_done++;
            }
        assert_true(step < 5000);
    }
}

/* What every request gives without speculation, alone. */
static void solo(void)
{
    esp_engine *g = open_engine((esp_engine_opts){.max_seqs = 1});

    for (int i = 0; i < N_REQUEST; i++) {
        struct run x = {.r = &requests[i]};

        drive(g, &x, 1, true);
    }
    esp_engine_close(g);
}

static size_t batch(uint32_t first_rows, uint32_t cancel)
{
    for (int i = 0; i < N_REQUEST; i++)
        runs[i] = (struct run){.r = &requests[i],
                               .start = (uint32_t)i < first_rows ? rnd(3) : 0,
                               .cancel = cancel && i == 1 ? cancel : 0};
    return N_REQUEST;
}

static esp_stats drive_all(esp_engine *g, uint32_t cancel)
{
    esp_stats st;
    size_t n = batch(N_REQUEST, cancel);

    drive(g, runs, n, false);
    esp_engine_stats(g, &st);
    return st;
}

static esp_engine_opts options(esp_spec spec, uint32_t depth)
{
    return (esp_engine_opts){.max_seqs = N_REQUEST,
                             .rows = ROWS,
                             .queue = N_REQUEST,
                             .kv_tokens = 512 * N_REQUEST,
                             .chunk = 50,
                             .spec = spec,
                             .spec_tokens = depth,
                             .spec_always = true,
                             .draft_model = model};
}

static void equal_at(esp_spec spec, uint32_t depth)
{
    esp_engine *g = open_engine(options(spec, depth));
    esp_stats st = drive_all(g, 0);

    printf("%s, depth %u: %llu of %llu drafts right in %llu rounds, first %.2f\n", st.spec_name, depth,
           (unsigned long long)st.spec_accepted, (unsigned long long)st.spec_drafted,
           (unsigned long long)st.spec_rounds, (double)st.spec_right_at[0] / (double)st.spec_asked_at[0]);
    assert_true(st.spec_rounds > 20 && st.spec_drafted >= st.spec_rounds);
    if (spec ==
        ESP_SPEC_DRAFT) /* it is the model itself, and draws with the keys of the positions it predicts */
        assert_int_equal(st.spec_accepted, st.spec_drafted);
    else
        assert_true(st.spec_accepted > 0 && st.spec_accepted < st.spec_drafted);
    assert_int_equal(st.slots_used, 0);
    assert_int_equal(st.pages_used, 0);
    for (uint32_t i = 0; i < g->pools->mem.n_journal; i++)
        assert_int_equal(g->pools->journal_used[i], 0);
    esp_engine_close(g);
}

static void test_ngram(void **state)
{
    (void)state;
    for (uint32_t depth = 1; depth <= 8; depth++)
        equal_at(ESP_SPEC_NGRAM, depth);
}

static void test_mtp(void **state)
{
    (void)state;
    for (uint32_t depth = 1; depth <= 8; depth++)
        equal_at(ESP_SPEC_MTP, depth);
}

static void test_draft(void **state)
{
    (void)state;
    for (uint32_t depth = 1; depth <= 8; depth += 1 + depth / 4)
        equal_at(ESP_SPEC_DRAFT, depth);
}

/* Adaptive depth, a rate below which rows stop, one row that asks for no drafts. */
static void test_adaptive(void **state)
{
    esp_engine_opts o = options(ESP_SPEC_AUTO, 0);
    esp_engine *g;
    esp_stats st;

    (void)state;
    o.spec_always = false;
    o.draft_model = NULL;
    g = open_engine(o);
    st = drive_all(g, 5);
    assert_string_equal(st.spec_name, "mtp");
    esp_engine_close(g);
    o.spec = ESP_SPEC_NGRAM;
    o.spec_always = true;
    o.spec_min_rate = 1;
    g = open_engine(o);
    st = drive_all(g, 0);
    assert_true(st.spec_drafted < 7 * (32 + 10)); /* each row stopped when it was judged */
    esp_engine_close(g);
    o.spec_min_rate = 0;
    g = open_engine(o);
    for (int i = 0; i < N_REQUEST; i++)
        requests[i].opts.no_spec = true;
    st = drive_all(g, 0);
    assert_int_equal(st.spec_drafted, 0);
    for (int i = 0; i < N_REQUEST; i++)
        requests[i].opts.no_spec = false;
    esp_engine_close(g);
}

/* ---- drafters that are always wrong or always right ---- */

static bool always(struct esp_seq *s)
{
    (void)s;
    return true;
}

static const struct run *run_of(const struct esp_seq *s)
{
    for (int i = 0; i < N_REQUEST; i++)
        if (runs[i].seq == s)
            return &runs[i];
    return NULL;
}

static void guess(struct esp_draft_ask *asks, uint32_t n, int32_t off)
{
    for (struct esp_draft_ask *a = asks; a < asks + n; a++) {
        const struct run *x = run_of(a->seq);
        size_t at = a->seq->n_token - x->r->n;

        for (; a->n < a->want && at + a->n < x->r->n_want; a->n++)
            a->out[a->n] = (x->r->want[at + a->n] + off) % 4084;
    }
}

static void propose_wrong(struct esp_engine *g, struct esp_draft_ask *asks, uint32_t n)
{
    (void)g;
    guess(asks, n, 1);
}

static void propose_right(struct esp_engine *g, struct esp_draft_ask *asks, uint32_t n)
{
    (void)g;
    guess(asks, n, 0);
}

static esp_engine *open_double(esp_engine_opts o, struct esp_drafter *d,
                               void (*propose)(struct esp_engine *, struct esp_draft_ask *, uint32_t))
{
    esp_engine *g = open_engine(o);

    *d = esp_drafter_ngram;
    d->ready = always;
    d->propose = propose;
    g->spec.drafter = d;
    return g;
}

static void test_wrong(void **state)
{
    struct esp_drafter d;
    esp_engine *g = open_double(options(ESP_SPEC_NGRAM, 5), &d, propose_wrong);
    esp_stats st = drive_all(g, 0);

    (void)state;
    assert_int_equal(st.spec_accepted, 0);
    assert_true(st.spec_drafted > 100);
    esp_engine_close(g);
}

/* Bursts as long as they get, cut by budgets, cancelled neighbours, and a pool without room for drafts. */
static void test_right(void **state)
{
    struct esp_drafter d;
    esp_engine_opts o = options(ESP_SPEC_NGRAM, 8);
    esp_engine *g = open_double(o, &d, propose_right);
    esp_stats st = drive_all(g, 0);

    (void)state;
    assert_int_equal(st.spec_accepted, st.spec_drafted);
    assert_true(st.generated_tokens > 4 * st.spec_rounds);
    drive_all(g, 4);
    for (size_t n = 1; n <= 3; n++) { /* budgets of 1 to 3 */
        size_t want = requests[0].n_want;
        struct run x = {.r = &requests[0]};

        requests[0].n_new = requests[0].n_want = n;
        runs[0] = x;
        drive(g, runs, 1, false);
        requests[0].n_new = requests[0].n_want = want;
    }
    esp_engine_close(g);
    o.admission = ESP_ADMISSION_WORST;
    o.kv_tokens = 512;
    g = open_double(o, &d, propose_right);
    drive_all(g, 0);
    esp_engine_close(g);
}

/* An end token inside a burst: nothing behind it is emitted, and the state is the one without drafts. */
static void test_end(void **state)
{
    esp_logit_bias bias = {.token = 4084, .bias = 4.5f};
    struct request keep[N_REQUEST];
    struct esp_drafter d;
    esp_engine *g;
    int n_end = 0;

    (void)state;
    memcpy(keep, requests, sizeof keep);
    assert_true(esp_token_is_end(model, bias.token));
    for (int i = 0; i < N_REQUEST; i++) {
        requests[i].opts.sampling.temperature = 0.9f;
        requests[i].opts.sampling.bias = &bias;
        requests[i].opts.sampling.n_bias = 1;
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < N_REQUEST; i++)
            requests[i].opts.sampling.ignore_end = false;
        solo();
        for (int i = 0; i < N_REQUEST; i++)
            n_end += requests[i].finish == ESP_FINISH_END && requests[i].n_want > 0;
        g = pass ? open_engine(options(ESP_SPEC_MTP, 3))
                 : open_double(options(ESP_SPEC_NGRAM, 8), &d, propose_right);
        drive_all(g, 0);
        esp_engine_close(g);
    }
    printf("%d texts end by themselves\n", n_end);
    assert_true(n_end >= 2);
    memcpy(requests, keep, sizeof keep);
}

/* ---- one sequence at a time ---- */

static esp_seq *open_seq(esp_engine *g, const struct request *r)
{
    esp_seq *s;
    esp_error err;

    test_ok(esp_seq_open(&s, g, &r->opts, &err), &err);
    test_ok(esp_seq_append(s, r->prompt, r->n, &err), &err);
    return s;
}

/* Generate n tokens that must be r's from number `from` on. */
static void expect(esp_engine *g, esp_seq *s, const struct request *r, size_t from, size_t n)
{
    bool done = false;
    size_t got = 0;
    esp_error err;

    test_ok(esp_seq_generate(s, n, &err), &err);
    while (!done) {
        esp_event e[3];
        size_t m;

        test_ok(esp_engine_step(g, e, 3, &m, &err), &err);
        for (size_t i = 0; i < m; i++) {
            if (e[i].finish == ESP_FINISH_FAILED)
                fail_msg("%s", e[i].message);
            if (e[i].token >= 0) {
                assert_int_equal(e[i].token, r->want[from + got]);
                assert_true(e[i].logprob == r->logprob[from + got]);
                got++;
            }
            done |= e[i].finish != ESP_FINISH_NONE;
        }
    }
    assert_int_equal(got, n);
}

/* Rewinds into and before bursts, snapshots, forks; with the draft layer's rows in step all the time. */
static void test_rewind_and_fork(void **state)
{
    static const esp_spec kinds[] = {ESP_SPEC_MTP, ESP_SPEC_NGRAM, ESP_SPEC_DRAFT};

    (void)state;
    for (int k = 0; k < 3; k++) {
        const struct request *r = &requests[2]; /* greedy: a fork counts all as prompt */
        esp_engine_opts o = options(kinds[k], 3);
        esp_engine *g = open_engine(o);
        esp_seq *s = open_seq(g, r), *f;
        esp_error err;

        expect(g, s, r, 0, 10);
        test_ok(esp_seq_snapshot(s, &err), &err);
        expect(g, s, r, 10, 13);
        test_ok(esp_seq_fork(&f, s, &r->opts, &err), &err);
        expect(g, f, r, 23, 9);
        test_ok(esp_seq_rewind(s, r->n + 15, &err), &err);
        expect(g, s, r, 15, 11);
        test_ok(esp_seq_rewind(s, r->n - 5, &err), &err);
        test_ok(esp_seq_append(s, r->prompt + r->n - 5, 5, &err), &err);
        expect(g, s, r, 0, 30);
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
    esp_engine_opts o = options(ESP_SPEC_MTP, 3);
    esp_engine *g;

    (void)state;
    o.checkpoints = 12;
    o.checkpoint_every = 64;
    g = open_engine(o);
    for (int i = 0; i < 3; i++) {
        const struct request *r = &requests[5];
        esp_seq *s = open_seq(g, r);
        esp_usage u;

        expect(g, s, r, 0, r->n_new);
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
    drive_all(g, 3);
    drive_all(g, 0);
    esp_engine_close(g);
}

/* A saved sequence goes on in another engine with the drafts it would have had. */
static void test_file(void **state)
{
    const struct request *r = &requests[4];
    const char *path = test_write(test_tmpdir(), "seq", "", 0);
    esp_engine *g = open_engine(options(ESP_SPEC_MTP, 3)), *off = open_engine(options(ESP_SPEC_OFF, 0));
    esp_seq *s = open_seq(g, r), *t;
    esp_usage u, v;
    esp_error err;

    (void)state;
    expect(g, s, r, 0, 12);
    test_ok(esp_seq_save(s, path, &err), &err);
    expect(g, s, r, 12, 20);
    esp_seq_usage(s, &u);
    esp_seq_close(s);
    test_refused(esp_seq_load(&t, off, path, &r->opts, &err), ESP_EINVAL, &err, "mtp");
    test_ok(esp_seq_load(&t, g, path, &r->opts, &err), &err);
    expect(g, t, r, 12, 20);
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
    struct request *r = &requests[1];
    struct esp_drafter d;
    esp_engine_opts o = options(ESP_SPEC_NGRAM, 8);
    esp_engine *g;
    esp_event e;
    size_t n, got = 0;
    esp_error err;

    (void)state;
    o.context = (uint32_t)r->n + 13;
    g = open_double(o, &d, propose_right);
    runs[0] = (struct run){.r = r, .seq = open_seq(g, r)};
    test_ok(esp_seq_generate(runs[0].seq, 100, &err), &err);
    do {
        test_ok(esp_engine_step(g, &e, 1, &n, &err), &err);
        got += n;
    } while (n == 0 || e.finish == ESP_FINISH_NONE);
    assert_int_equal(got, 13);
    assert_int_equal(e.finish, ESP_FINISH_LENGTH);
    esp_seq_close(runs[0].seq);
    esp_engine_close(g);

    r = &requests[2];
    g = open_double(options(ESP_SPEC_NGRAM, 8), &d, propose_right);
    runs[0] = (struct run){.r = r, .seq = open_seq(g, r)};
    test_ok(esp_seq_generate(runs[0].seq, N_NEW - 2, &err), &err);
    for (got = 0; got < 5; got += n)
        test_ok(esp_engine_step(g, &e, 1, &n, &err), &err);
    assert_true(g->n_event > g->first_event);
    esp_seq_stop(runs[0].seq);
    assert_int_equal(esp_seq_length(runs[0].seq), r->n + 5);
    expect(g, runs[0].seq, r, 5, 20);
    esp_seq_close(runs[0].seq);
    esp_engine_close(g);
}

/* ---- known tokens behind a generation ---- */

/* One event of s. */
static esp_event next_event(esp_engine *g)
{
    esp_event e;
    esp_error err;
    size_t n;

    do
        test_ok(esp_engine_step(g, &e, 1, &n, &err), &err);
    while (n == 0);
    return e;
}

static void test_extend(void **state)
{
    const struct request *r = &requests[3]; /* sampled, with penalties */
    esp_token span[] = {40, 41, 42, 43, 44, 45, 46};
    float logprob[12];
    esp_token token[12];
    size_t taken;
    esp_error err;

    (void)state;
    for (int way = 0; way < 4; way++) { /* one by one, at once, at once with drafts, cut by the budget */
        esp_engine *g = open_engine(options(way == 2 ? ESP_SPEC_MTP : ESP_SPEC_OFF, 3));
        esp_seq *s = open_seq(g, r);
        esp_usage u;

        test_refused(esp_seq_extend(s, span, 1, NULL, &err), ESP_ESTATE, &err, "does not generate");
        test_ok(esp_seq_generate(s, way == 3 ? 7 : 20, &err), &err);
        for (int i = 0; i < 2; i++) /* a draft may have made more than asked for: take what comes */
            assert_int_equal(next_event(g).token, r->want[i]);
        test_refused(esp_seq_extend(s, (esp_token[]){-3}, 1, NULL, &err), ESP_EINVAL, &err, "-3");
        if (way == 2) { /* drafts may be ahead of what was handed out */
            while (g->first_event < g->n_event)
                next_event(g);
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
            esp_event e = next_event(g);

            assert_int_equal(e.token, -1);
            assert_int_equal(e.finish, ESP_FINISH_LENGTH);
        }
        for (int i = 0; way < 3 && i < 11; i++) {
            esp_event e = next_event(g);

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
    const struct request *r = &requests[2];
    esp_engine *g = open_engine(options(ESP_SPEC_OFF, 0));
    esp_seq *s = open_seq(g, r);
    esp_error err;

    (void)state;
    test_ok(esp_seq_generate(s, 30, &err), &err);
    assert_int_equal(next_event(g).token, r->want[0]);
    test_ok(esp_seq_extend(s, r->want + 1, 9, NULL, &err), &err);
    for (int i = 10; i < 30; i++) {
        esp_event e = next_event(g);

        assert_int_equal(e.token, r->want[i]);
        assert_true(e.logprob == r->logprob[i]);
    }
    esp_seq_close(s);
    esp_engine_close(g);
}

/* ---- how good the drafts are ---- */

enum { FROM = 40, TEXT = 330 };

static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* Positions FROM .. TEXT - 1 where the draft layer's row, from the tapes themselves, agrees with the trunk's.
 */
static uint32_t agreement(struct test_net *net, struct esp_plan *draft, const int32_t *ids)
{
    uint32_t v = net->n_vocab, width = net->net->config.hidden, same = 0;
    float *hidden = calloc(TEXT * width, sizeof *hidden), *trunk = calloc(TEXT * v, sizeof *trunk),
          *mtp = calloc(TEXT * v, sizeof *mtp);
    int32_t pos[TEXT][3];
    uint32_t rows[TEXT];
    struct esp_batch_seq seq;
    struct esp_batch b = {.n_tok = TEXT,
                          .ids = ids,
                          .pos = (const int32_t(*)[3])pos,
                          .n_seq = 1,
                          .seqs = &seq,
                          .n_out = TEXT,
                          .out_rows = rows,
                          .logits = trunk,
                          .hidden = hidden};
    struct esp_state *s;
    esp_error err;

    assert_true(hidden && trunk && mtp);
    for (uint32_t i = 0; i < TEXT; i++) {
        pos[i][0] = pos[i][1] = pos[i][2] = (int32_t)i;
        rows[i] = i;
    }
    test_ok(esp_state_open(&s, net->pools, TEXT, 0, &err), &err);
    test_ok(esp_state_begin(s, TEXT, ESP_PASS_WRITE, &seq, &err), &err);
    test_ok(net->dev->ops->run(net->plan, &b, &err), &err);
    seq.n_tok = b.n_tok = b.n_out = TEXT - 1;
    b.ids = ids + 1;
    b.input = hidden;
    b.hidden = NULL;
    b.logits = mtp;
    test_ok(net->dev->ops->run(draft, &b, &err), &err);
    test_ok(esp_state_commit(s, TEXT, &err), &err);
    esp_state_close(s);
    for (uint32_t i = FROM; i < TEXT; i++)
        same += argmax(mtp + (size_t)(i - 2) * v, v) == argmax(trunk + (size_t)(i - 1) * v, v);
    free(hidden);
    free(trunk);
    free(mtp);
    return same;
}

/* How often the engine finds its first draft right behind every position of a text. */
static uint32_t first_right(esp_engine *g, const int32_t *ids)
{
    struct request r = {.opts = {.sampling = {.ignore_end = true}}, .n = FROM};
    esp_stats a, b;
    esp_seq *s;

    memcpy(r.prompt, ids, FROM * sizeof *ids);
    esp_engine_stats(g, &a);
    s = open_seq(g, &r);
    for (uint32_t i = FROM; i < TEXT; i++) {
        esp_error err;

        test_ok(esp_seq_generate(s, 0, &err), &err);
        next_event(g);
        test_ok(esp_seq_snapshot(s, &err), &err);
        test_ok(esp_seq_generate(s, 2, &err), &err);
        while (next_event(g).finish == ESP_FINISH_NONE)
            ;
        test_ok(esp_seq_rewind(s, i, &err), &err);
        test_ok(esp_seq_append(s, ids + i, 1, &err), &err);
    }
    esp_seq_close(s);
    esp_engine_stats(g, &b);
    assert_int_equal(b.spec_asked_at[0] - a.spec_asked_at[0], TEXT - FROM);
    return (uint32_t)(b.spec_right_at[0] - a.spec_right_at[0]);
}

/* The engine's first drafts are the draft layer's, row by row; on all of the validation text these agree with
 * the trunk at 0.601 of the positions (model/mtp_test.c). */
static void test_acceptance(void **state)
{
    esp_engine *g = open_engine(
        (esp_engine_opts){.max_seqs = 1, .spec = ESP_SPEC_MTP, .spec_tokens = 1, .spec_always = true});
    struct esp_plan_opts o = {
        .act_auto = true, .max_tok = TEXT, .max_out = TEXT, .max_seq = 1, .context = TEXT};
    uint32_t rows, cols, all = 0;
    int32_t *ids = test_npy(test_path("models/demo-golden/val.npy"), &rows, &cols);
    struct test_net net;
    struct esp_plan *draft;
    esp_error err;

    (void)state;
    test_net_open(&net, (struct test_net_opts){.folder = "models/demo",
                                               .level = test_level(),
                                               .threads = 2,
                                               .kv = ESP_KV_BF16,
                                               .context = TEXT,
                                               .max_tok = TEXT,
                                               .n_seq = 1,
                                               .mtp = true});
    test_ok(net.dev->ops->compile(net.dev, &net.net->mtp, &net.pools->mem, &o, &draft, &err), &err);
    for (uint32_t t = 0; t < 3; t++) {
        const int32_t *text = ids + (size_t)(t * 20 + 2) * cols;
        uint32_t right = first_right(g, text);

        assert_int_equal(right, agreement(&net, draft, text));
        all += right;
    }
    printf("first drafts right: %u of %u\n", all, 3 * (TEXT - FROM));
    net.dev->ops->plan_free(draft);
    test_net_close(&net);
    free(ids);
    esp_engine_close(g);
}

/* ---- refusals and memory ---- */

static void test_refusals(void **state)
{
    esp_engine *g;
    esp_model *tiny;
    esp_engine_opts o = {.context = 64, .spec = ESP_SPEC_NGRAM, .spec_tokens = 33};
    esp_memory_plan with, without;
    esp_error err;

    (void)state;
    test_refused(esp_engine_open(&g, model, &o, &err), ESP_EINVAL, &err, "33");
    o.spec_tokens = 0;
    o.spec_min_rate = 1.5f;
    test_refused(esp_engine_open(&g, model, &o, &err), ESP_EINVAL, &err, "1.5");
    o.spec_min_rate = 0;
    o.spec = (esp_spec)9;
    test_refused(esp_engine_open(&g, model, &o, &err), ESP_EINVAL, &err, "9");
    o.spec = ESP_SPEC_DRAFT;
    test_refused(esp_engine_open(&g, model, &o, &err), ESP_EINVAL, &err, "draft_model");
    test_ok(esp_model_open(&tiny, test_path("models/tiny-text"), NULL, &err), &err);
    o.draft_model = tiny;
    test_refused(esp_engine_open(&g, model, &o, &err), ESP_EINVAL, &err, "tokenizer");
    o.spec = ESP_SPEC_MTP;
    test_refused(esp_engine_open(&g, tiny, &o, &err), ESP_EINVAL, &err, "no draft layer");
    for (o.spec = ESP_SPEC_MTP; o.spec <= ESP_SPEC_DRAFT; o.spec++) {
        o.draft_model = model;
        test_ok(esp_engine_plan(model, &o, &with, &err), &err);
        test_ok(esp_engine_plan(model, &(esp_engine_opts){.context = 64}, &without, &err), &err);
        assert_true(with.speculation > 0 && with.total > without.total);
        o.memory_budget = with.total - 1;
        test_refused(esp_engine_open(&g, model, &o, &err), ESP_ENOFIT, &err, "speculation");
        o.memory_budget = with.total;
        test_ok(esp_engine_open(&g, model, &o, &err), &err);
        esp_engine_close(g);
        o.memory_budget = 0;
    }
    esp_model_close(tiny);
}

/* Allocation n fails while an engine and a sequence are made; none does while they run. */
static bool torture(int64_t n, esp_spec spec)
{
    esp_engine_opts o = {.context = 64,
                         .max_seqs = 1,
                         .spec = spec,
                         .spec_tokens = 2,
                         .spec_always = true,
                         .draft_model = model};
    esp_engine *g = NULL;
    esp_seq *s = NULL;
    esp_error err;
    esp_status st;

    esp_mem_fail_at(n);
    st = esp_engine_open(&g, model, &o, &err);
    if (st == ESP_OK)
        st = esp_seq_open(&s, g, NULL, &err);
    esp_mem_fail_at(st == ESP_OK ? 0 : -1);
    if (st != ESP_OK) {
        assert_int_equal(st, ESP_ENOMEM);
        assert_true(strlen(err.message) > 0);
    } else {
        test_ok(esp_seq_append(s, requests[2].prompt, 10, &err), &err);
        test_ok(esp_seq_generate(s, 8, &err), &err);
        for (int i = 0; i < 12; i++) {
            esp_event e[4];
            size_t got;

            test_ok(esp_engine_step(g, e, 4, &got, &err), &err);
        }
    }
    esp_mem_fail_at(-1);
    esp_seq_close(s);
    esp_engine_close(g);
    return st == ESP_OK;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    for (esp_spec k = ESP_SPEC_MTP; k <= ESP_SPEC_DRAFT; k++) {
        int64_t n = 0;

        while (!torture(n, k))
            n++;
        assert_true(n > 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ngram),
                                       cmocka_unit_test(test_mtp),
                                       cmocka_unit_test(test_draft),
                                       cmocka_unit_test(test_adaptive),
                                       cmocka_unit_test(test_wrong),
                                       cmocka_unit_test(test_right),
                                       cmocka_unit_test(test_end),
                                       cmocka_unit_test(test_rewind_and_fork),
                                       cmocka_unit_test(test_prefix_hit),
                                       cmocka_unit_test(test_file),
                                       cmocka_unit_test(test_context_and_stop),
                                       cmocka_unit_test(test_extend),
                                       cmocka_unit_test(test_extend_as_sampled),
                                       cmocka_unit_test(test_acceptance),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_out_of_memory)};
    esp_error err;
    int failed;

    test_ok(esp_model_open(&model, test_path("models/demo"), &(esp_model_opts){.threads = 2}, &err), &err);
    make_requests();
    solo();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    esp_model_close(model);
    return failed;
}
