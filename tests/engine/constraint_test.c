/*
 * Generation under a constraint: only its tokens come, decided runs come without sampling, and the text is
 * the same with and without them, with every drafter, in batches, after stops and rewinds. The constraint
 * here is a small automaton whose choices depend on all tokens before, so that one lost or doubled rollback
 * shows.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/drafts.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/service.h"

enum {
    PERIOD = 8, /* of which the last three tokens are decided */
    FREE = 5,
    LENGTH = 30, /* tokens of a complete text */
    END_ID = 4084,
    REFUSED = 3 /* multiples of it, shifted by the history, never come at free places */
};

struct toy {
    esp_token t[256];
    uint32_t n, fail_at,
        lie_at; /* positions where mask() fails, where forced() gives a wrong token; 0: never */
    bool empty; /* nothing may come */
};

static int n_toy; /* alive */

static uint32_t history(const struct toy *y)
{
    uint32_t h = 7;

    for (uint32_t i = 0; i < y->n; i++)
        h = h * 31 + (uint32_t)y->t[i];
    return h % 1000;
}

/* 0: free. */
static esp_token decided(uint32_t at)
{
    return at % PERIOD >= FREE ? (esp_token)(200 + at % PERIOD * 10 + at / PERIOD) : 0;
}

/* h: history(y) */
static bool may_follow(const struct toy *y, uint32_t h, esp_token t)
{
    if (y->n >= LENGTH || y->empty)
        return false;
    if (decided(y->n))
        return t == decided(y->n);
    return ((uint32_t)t + h) % REFUSED != 0;
}

static bool may_come(const struct toy *y, esp_token t)
{
    return may_follow(y, history(y), t);
}

static enum esp_constraint_state state_of(const struct toy *y)
{
    if (y->n == LENGTH)
        return ESP_CONSTRAINT_ENDED;
    return y->n % PERIOD == 2 ? ESP_CONSTRAINT_MAY_END : ESP_CONSTRAINT_MORE;
}

static esp_status toy_mask(void *user, uint64_t *bits, size_t n_word, enum esp_constraint_state *state,
                           esp_error *err)
{
    const struct toy *y = user;
    uint32_t h = history(y);

    if (y->fail_at && y->n == y->fail_at)
        return esp_fail(err, ESP_ENOFIT, "the automaton gave up at token %u", y->n);
    *state = state_of(y);
    if (*state == ESP_CONSTRAINT_ENDED)
        return ESP_OK;
    for (size_t id = 0; id < n_word * 64; id++)
        if (!may_follow(y, h, (esp_token)id))
            bits[id / 64] &= ~(UINT64_C(1) << id % 64);
    return ESP_OK;
}

static esp_status toy_accept(void *user, esp_token t, enum esp_constraint_state *state, esp_error *err)
{
    struct toy *y = user;

    if (!may_come(y, t))
        return esp_fail(err, ESP_EINVAL, "token %d may not come at %u", t, y->n);
    y->t[y->n++] = t;
    *state = state_of(y);
    return ESP_OK;
}

static void toy_rollback(void *user, uint32_t n)
{
    struct toy *y = user;

    assert_true(n <= y->n);
    y->n -= n;
}

static uint32_t toy_forced(void *user, esp_token *out, uint32_t cap)
{
    const struct toy *y = user;
    uint32_t n = 0;

    if (y->lie_at && y->n == y->lie_at) {
        out[0] = 0;
        return 1;
    }
    for (; n < cap && y->n + n < LENGTH && decided(y->n + n); n++)
        out[n] = decided(y->n + n);
    return n;
}

static void toy_close(void *user)
{
    free(user);
    n_toy--;
}

static esp_status toy_clone(void *user, void **out, esp_error *err)
{
    struct toy *y = malloc(sizeof *y);

    (void)err;
    assert_non_null(y);
    memcpy(y, user, sizeof *y);
    n_toy++;
    *out = y;
    return ESP_OK;
}

static bool with_forced;

static struct esp_constraint make_toy(void)
{
    struct toy *y = calloc(1, sizeof *y);

    assert_non_null(y);
    n_toy++;
    return (struct esp_constraint){.user = y,
                                   .mask = toy_mask,
                                   .accept = toy_accept,
                                   .rollback = toy_rollback,
                                   .forced = with_forced ? toy_forced : NULL,
                                   .clone = toy_clone,
                                   .close = toy_close};
}

static void prepare(struct test_text *r, esp_seq *s)
{
    struct esp_constraint c = make_toy();
    esp_error err;

    (void)r;
    test_ok(esp_seq_set_constraint(s, &c, &err), &err);
}

static struct toy *toy_of(const esp_seq *s)
{
    return s->limit.c.user;
}

/* The answers are the automaton's. */
static void check_answers(void)
{
    for (int i = 0; i < TEST_REQUESTS; i++) {
        const struct test_text *r = &test_drafts.r[i];
        struct toy y = {0};

        for (size_t j = 0; j < r->n_want; j++) {
            assert_true(may_come(&y, r->want[j]));
            y.t[y.n++] = r->want[j];
        }
        if (r->n_want == LENGTH)
            assert_int_equal(r->finish, ESP_FINISH_END);
        else if (r->finish == ESP_FINISH_END)
            assert_int_equal(r->n_want % PERIOD, 2);
    }
}

/* Every way of speculation gives the recorded answers. */
static void check_drafters(uint32_t cancel)
{
    for (esp_spec k = ESP_SPEC_OFF; k <= ESP_SPEC_DRAFT; k++) {
        esp_engine *g;
        esp_stats st;

        if (TEST_SLOW && k != ESP_SPEC_MTP)
            continue;
        if (k == ESP_SPEC_DRAFT && !cancel && !test_long()) /* the slowest: once is enough */
            continue;
        g = test_drafts_engine(test_drafts_options(k, k == ESP_SPEC_OFF ? 0 : 4));
        st = test_drafts_run(g, cancel);

        assert_true(k == ESP_SPEC_OFF || st.spec_rounds > 0);
        if (k == ESP_SPEC_DRAFT) /* it is the model itself, under the same constraint */
            assert_int_equal(st.spec_accepted, st.spec_drafted);
        esp_engine_close(g);
    }
    for (int32_t off = 0; off < 2; off++) {
        struct esp_drafter d;
        esp_engine *g = test_double_open(test_drafts_options(ESP_SPEC_NGRAM, 8), &d, off);
        esp_stats st = test_drafts_run(g, cancel);

        assert_int_equal(st.spec_accepted, off ? 0 : st.spec_drafted);
        esp_engine_close(g);
    }
    assert_int_equal(n_toy, 0);
}

static void set_logprobs(bool on)
{
    for (int i = 0; i < TEST_REQUESTS; i++) {
        test_drafts.r[i].opts.logprobs = on;
        test_drafts.r[i].opts.top_logprobs = on && i % 3 == 0 ? 2 : 0;
    }
}

/* Masks alone give the answers; decided runs, one by one beside log-probabilities or at once, the same. */
static void test_same_text(void **state)
{
    (void)state;
    with_forced = false;
    test_drafts_record();
    check_answers();
    for (int i = 0; i < TEST_REQUESTS; i++)
        assert_int_equal(test_drafts.r[i].n_want, LENGTH);
    if (test_long())
        check_drafters(0);
    with_forced = true;
    check_drafters(4);
    set_logprobs(false);
    for (int i = 0; i < TEST_REQUESTS; i++)
        memset(test_drafts.r[i].logprob, 0, sizeof test_drafts.r[i].logprob);
    check_drafters(0);
    set_logprobs(true);
}

/* Decided runs save steps. */
static void test_fewer_steps(void **state)
{
    uint64_t steps[2];
    uint32_t n_free = 0;

    (void)state;
    set_logprobs(false);
    for (int way = 0; way < 2; way++) {
        esp_engine *g = test_drafts_engine((esp_engine_opts){.max_seqs = 1});
        struct test_run x = {.r = &test_drafts.r[0]};
        esp_stats st;

        with_forced = way;
        test_drive(g, &x, 1, false);
        esp_engine_stats(g, &st);
        steps[way] = st.steps;
        esp_engine_close(g);
    }
    assert_int_equal(steps[0], LENGTH); /* the prompt is one token */
    for (uint32_t at = 0; at < LENGTH; at++)
        n_free += decided(at) == 0;
    assert_int_equal(steps[1], n_free);
    set_logprobs(true);
}

/* An end token is drawn only where the automaton may end. */
static void test_end(void **state)
{
    esp_logit_bias bias = {.token = END_ID, .bias = 9};
    int n_end = 0;

    (void)state;
    assert_true(esp_token_is_end(test_drafts.model, END_ID));
    for (int i = 0; i < TEST_REQUESTS; i++) {
        esp_sampling *o = &test_drafts.r[i].opts.sampling;

        o->ignore_end = false;
        o->temperature = 0.9f;
        o->bias = &bias;
        o->n_bias = 1;
    }
    with_forced = false;
    test_drafts_record();
    check_answers();
    for (int i = 0; i < TEST_REQUESTS; i++)
        n_end += test_drafts.r[i].n_want < LENGTH;
    assert_true(n_end >= 2);
    with_forced = true;
    check_drafters(0);
    for (int i = 0; i < TEST_REQUESTS; i++) {
        test_drafts.r[i].opts.sampling.ignore_end = true;
        test_drafts.r[i].opts.sampling.n_bias = 0;
    }
    test_drafts_record();
}

/* Stops with tokens held back, rewinds into the text and before it, tokens that the caller appends. */
static void test_back_and_forth(void **state)
{
    struct test_text *r = &test_drafts.r[2];
    struct esp_drafter d;
    esp_engine *g = test_double_open(test_drafts_options(ESP_SPEC_NGRAM, 8), &d, 0);
    esp_token bad = 0, more[4];
    size_t taken;
    esp_seq *s;
    esp_error err;

    (void)state;
    with_forced = true;
    s = test_text_open(g, r);
    test_drafts.runs[0] = (struct test_run){.r = r, .seq = s};
    test_ok(esp_seq_generate(s, LENGTH, &err), &err);
    for (int i = 0; i < 3; i++)
        assert_int_equal(test_next_event(g).token, r->want[i]);
    assert_true(toy_of(s)->n > 3);
    test_refused(esp_seq_set_constraint(s, NULL, &err), ESP_ESTATE, &err, "generating");
    esp_seq_stop(s);
    assert_int_equal(toy_of(s)->n, 3);
    test_text_expect(g, s, r, 3, 9);
    test_ok(esp_seq_rewind(s, r->n + 2, &err), &err);
    assert_int_equal(toy_of(s)->n, 2);
    test_text_expect(g, s, r, 2, 1);
    test_ok(esp_seq_generate(s, LENGTH - 3, &err), &err);
    while (!may_come(toy_of(s), bad) == false)
        bad++;
    test_refused(esp_seq_extend(s, &bad, 1, &taken, &err), ESP_EINVAL, &err, "may not come");
    memcpy(more, r->want + 3, sizeof more);
    more[3] = bad;
    test_refused(esp_seq_extend(s, more, 4, &taken, &err), ESP_EINVAL, &err, "may not come");
    assert_int_equal(toy_of(s)->n, 3);
    test_ok(esp_seq_extend(s, more, 3, &taken, &err), &err);
    assert_int_equal(taken, 3);
    for (int i = 6; i < LENGTH; i++)
        assert_int_equal(test_next_event(g).token, r->want[i]);
    test_ok(esp_seq_rewind(s, r->n - 5, &err), &err);
    assert_int_equal(toy_of(s)->n, 0);
    test_ok(esp_seq_append(s, r->prompt + r->n - 5, 5, &err), &err);
    test_text_expect(g, s, r, 0, LENGTH);
    test_ok(esp_seq_generate(s, 5, &err), &err); /* it has ended already */
    assert_int_equal(test_next_event(g).finish, ESP_FINISH_END);
    esp_seq_close(s);
    assert_int_equal(n_toy, 0);
    esp_engine_close(g);
}

/* Generate until the finish of s. */
static esp_event last_event(esp_engine *g, esp_seq *s)
{
    esp_error err;
    esp_event e;

    test_ok(esp_seq_generate(s, 40, &err), &err);
    do
        e = test_next_event(g);
    while (e.finish == ESP_FINISH_NONE);
    return e;
}

/* A constraint that fails, lies, or leaves nothing ends its own sequence with a reason. */
static void test_failures(void **state)
{
    static const char *const reasons[] = {"gave up at token 4", "token 0 may not come", "allow none"};
    esp_engine *g = test_drafts_engine(test_drafts_options(ESP_SPEC_MTP, 3));
    struct esp_constraint c = {.mask = toy_mask};
    struct test_text *r = &test_drafts.r[6];
    esp_error err;
    esp_seq *s;

    (void)state;
    with_forced = true;
    for (int i = 0; i < 3; i++) {
        esp_event e;

        s = test_text_open(g, r);
        if (i == 0)
            toy_of(s)->fail_at = 4;
        if (i == 1)
            toy_of(s)->lie_at = 5;
        toy_of(s)->empty = i == 2;
        e = last_event(g, s);
        assert_int_equal(e.finish, ESP_FINISH_FAILED);
        if (!strstr(e.message, reasons[i]))
            fail_msg("\"%s\" does not say \"%s\"", e.message, reasons[i]);
        esp_seq_close(s);
    }
    s = test_text_open(g, r);
    test_refused(esp_seq_set_constraint(s, &c, &err), ESP_EINVAL, &err, "rollback");
    test_ok(esp_seq_set_constraint(s, NULL, &err), &err);
    assert_int_equal(n_toy, 0);
    esp_seq_close(s);
    esp_engine_close(g);
}

/* ---- the service ---- */

static void read_all(struct esp_service *v, esp_token (*got)[LENGTH], uint32_t *n, uint32_t n_choice)
{
    uint32_t n_last = 0;

    while (n_last < n_choice) {
        struct esp_service_event e;

        assert_true(esp_service_wait(v, 300000));
        if (esp_service_poll(v, &e, 1) == 0)
            continue;
        if (e.token >= 0) {
            assert_true(n[e.choice] < LENGTH);
            got[e.choice][n[e.choice]++] = e.token;
        }
        assert_int_not_equal(e.finish, ESP_FINISH_FAILED);
        n_last += e.last;
    }
}

static void test_service(void **state)
{
    const struct test_text *r = &test_drafts.r[6];
    esp_engine *g = test_drafts_engine(test_drafts_options(ESP_SPEC_MTP, 3));
    struct esp_constraint c = make_toy(), one = c;
    struct esp_service_request q = {
        .tokens = r->prompt, .n = r->n, .max_new = 40, .opts = r->opts, .n_choice = 3, .constraint = &one};
    esp_token got[3][LENGTH];
    uint32_t n[3] = {0};
    struct esp_service *v;
    uint64_t id;
    esp_error err;

    (void)state;
    test_ok(esp_service_open(&v, g, NULL, &err), &err);
    one.clone = NULL;
    test_refused(esp_service_submit(v, &q, &id, &err), ESP_EINVAL, &err, "choices");
    q.constraint = &c;
    test_ok(esp_service_submit(v, &q, &id, &err), &err);
    read_all(v, got, n, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(n[i], LENGTH);
        if (r->opts.sampling.temperature == 0)
            assert_memory_equal(got[i], r->want, sizeof got[i]);
    }
    one = make_toy();
    q.constraint = &one;
    q.n_choice = 1;
    test_ok(esp_service_submit(v, &q, &id, &err), &err);
    esp_service_cancel(v, id);
    esp_service_drain(v);
    c = make_toy();
    q.constraint = &c;
    test_refused(esp_service_submit(v, &q, &id, &err), ESP_ESTATE, &err, "ending");
    toy_close(c.user); /* it is still the caller's */
    esp_service_close(v);
    assert_int_equal(n_toy, 0);
    esp_engine_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_text), cmocka_unit_test(test_fewer_steps),
        cmocka_unit_test(test_end),       cmocka_unit_test(test_back_and_forth),
        cmocka_unit_test(test_failures),  cmocka_unit_test(test_service)};
    int failed;

    test_drafts_open(1);
    for (int i = 0; i < TEST_REQUESTS; i++) {
        struct test_text *r = &test_drafts.r[i];

        r->prepare = prepare;
        r->n_new = 40;
        r->n = r->n < 70 ? r->n : 70;
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_drafts_close();
    return failed;
}
