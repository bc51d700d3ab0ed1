/*
 * Requests with known answers; see texts.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/texts.h"

#include <string.h>

#include "support/npy.h"

enum { MAX_EVENTS = 5 }; /* of one call: few, so that some wait for the next one */

static void take_event(struct test_run *x, size_t n_run, const esp_event *e, bool record)
{
    for (const struct test_run *end = x + n_run; x->seq != e->seq;) {
        x++;
        assert_true(x < end);
    }
    if (e->finish == ESP_FINISH_FAILED)
        fail_msg("%s", e->message);
    if (e->token >= 0) {
        assert_true(x->got < (record ? TEST_MAX_NEW : x->r->n_want));
        if (record) {
            x->r->want[x->got] = e->token;
            x->r->logprob[x->got] = e->logprob;
        }
        assert_int_equal(e->token, x->r->want[x->got]);
        assert_true(e->logprob == x->r->logprob[x->got]); /* bit for bit */
        x->got++;
    }
    if (e->finish == ESP_FINISH_NONE)
        return;
    x->done = true;
    if (record) {
        x->r->n_want = x->got;
        x->r->finish = e->finish;
    }
    assert_int_equal(x->got, x->r->n_want);
    assert_int_equal(e->finish, x->r->finish);
}

static void start(struct test_run *x, esp_engine *g)
{
    esp_error err;

    x->seq = test_text_open(g, x->r);
    test_ok(esp_seq_generate(x->seq, x->r->n_new, &err), &err);
}

void test_drive(esp_engine *g, struct test_run *x, size_t n_run, bool record)
{
    size_t n_done = 0;
    esp_error err;

    for (uint32_t step = 0; n_done < n_run; step++) {
        esp_event e[MAX_EVENTS];
        size_t n;

        for (size_t i = 0; i < n_run; i++)
            if (x[i].start == step)
                start(&x[i], g);
        test_ok(esp_engine_step(g, e, MAX_EVENTS, &n, &err), &err);
        for (size_t i = 0; i < n; i++)
            take_event(x, n_run, &e[i], record);
        for (size_t i = 0; i < n_run; i++)
            if (x[i].seq && (x[i].done || (x[i].cancel && x[i].cancel == step))) {
                esp_seq_close(x[i].seq);
                x[i].seq = NULL;
                n_done++;
            }
        assert_true(step < 20000);
    }
}

esp_seq *test_text_open(esp_engine *g, struct test_text *r)
{
    esp_seq *s;
    esp_error err;

    test_ok(esp_seq_open(&s, g, &r->opts, &err), &err);
    test_ok(esp_seq_append(s, r->prompt, r->n, &err), &err);
    if (r->prepare)
        r->prepare(r, s);
    return s;
}

void test_text_expect(esp_engine *g, esp_seq *s, const struct test_text *r, size_t from, size_t n)
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

esp_event test_next_event(esp_engine *g)
{
    esp_event e;
    esp_error err;
    size_t n;

    do
        test_ok(esp_engine_step(g, &e, 1, &n, &err), &err);
    while (n == 0);
    return e;
}

void test_texts(struct test_text *r, uint32_t n, int32_t **ids)
{
    static const size_t lengths[] = {1, 62, 64, 230, 127, 255, 33}; /* near chunk and page borders */
    uint32_t rows, cols;

    *ids = test_npy(test_path("models/demo-golden/val.npy"), &rows, &cols);
    assert_true(rows >= n && cols >= 255);
    memset(r, 0, n * sizeof *r);
    for (uint32_t i = 0; i < n; i++, r++) {
        r->n = lengths[i % (sizeof lengths / sizeof lengths[0])];
        r->n_new = 40 - i % 8;
        r->prompt = *ids + (size_t)i * cols;
        r->opts.logprobs = true;
        r->opts.top_logprobs = i % 3 == 0 ? 2 : 0;
        r->opts.sampling.ignore_end = true;
        r->opts.sampling.seed = (uint64_t)i + 11;
        if (i % 2) {
            r->opts.sampling.temperature = 0.8f;
            r->opts.sampling.top_p = 0.9f;
        }
        if (i % 4 == 1) {
            r->opts.sampling.xtc_probability = 0.5f;
            r->opts.sampling.xtc_threshold = 0.1f;
        }
        if (i % 4 == 2)
            r->opts.sampling.dry_multiplier = 0.8f;
        if (i % 4 == 3) {
            r->opts.sampling.repetition_penalty = 1.1f;
            r->opts.sampling.presence_penalty = 0.3f;
        }
    }
}
