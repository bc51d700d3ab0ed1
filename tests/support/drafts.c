/*
 * What the tests of speculation share; see drafts.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/drafts.h"

#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 400 };

struct test_drafts test_drafts;
static int32_t guess_off; /* of the double in use */
static uint64_t rng = 5;

static uint32_t rnd(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}

bool test_long(void)
{
    return getenv("ESPALIER_TEST_LONG") != NULL;
}

void test_drafts_open(size_t most_new)
{
    struct test_drafts *t = &test_drafts;
    esp_error err;

    test_ok(esp_model_open(&t->model, test_path("models/demo"), &(esp_model_opts){.threads = 1}, &err), &err);
    test_texts(t->r, TEST_REQUESTS, &t->ids);
    for (int i = 0; i < TEST_REQUESTS; i++)
        if (t->r[i].n_new > most_new)
            t->r[i].n_new = most_new;
    test_drafts_record();
}

void test_drafts_close(void)
{
    esp_model_close(test_drafts.model);
    free(test_drafts.ids);
}

esp_engine *test_drafts_engine(esp_engine_opts o)
{
    esp_engine *g;
    esp_error err;

    o.device = getenv("ESPALIER_TEST_DEVICE");
    o.context = o.context ? o.context : CONTEXT;
    o.kv = test_drafts.keep.kv;
    o.kv_start = test_drafts.keep.kv_start;
    o.state = test_drafts.keep.state;
    test_ok(esp_engine_open(&g, test_drafts.model, &o, &err), &err);
    return g;
}

void test_drafts_record(void)
{
    esp_engine *g = test_drafts_engine((esp_engine_opts){.max_seqs = 1});

    for (int i = 0; i < TEST_REQUESTS; i++) {
        struct test_run x = {.r = &test_drafts.r[i]};

        test_drive(g, &x, 1, true);
    }
    esp_engine_close(g);
}

esp_engine_opts test_drafts_options(esp_spec spec, uint32_t depth)
{
    return (esp_engine_opts){.max_seqs = TEST_REQUESTS,
                             .rows = TEST_ROWS,
                             .queue = TEST_REQUESTS,
                             .kv_tokens = 512 * TEST_REQUESTS,
                             .chunk = 50,
                             .spec = spec,
                             .spec_tokens = depth,
                             .spec_always = true,
                             .draft_model = test_drafts.model};
}

esp_stats test_drafts_run(esp_engine *g, uint32_t cancel)
{
    esp_stats st;

    for (int i = 0; i < TEST_REQUESTS; i++)
        test_drafts.runs[i] = (struct test_run){
            .r = &test_drafts.r[i], .start = rnd(3), .cancel = cancel && i == 1 ? cancel : 0};
    test_drive(g, test_drafts.runs, TEST_REQUESTS, false);
    esp_engine_stats(g, &st);
    return st;
}

/* ---- the double ---- */

static bool always(struct esp_seq *s)
{
    (void)s;
    return true;
}

static const struct test_run *run_of(const struct esp_seq *s)
{
    for (int i = 0; i < TEST_REQUESTS; i++)
        if (test_drafts.runs[i].seq == s)
            return &test_drafts.runs[i];
    return NULL;
}

static void guess(struct esp_engine *g, struct esp_draft_ask *asks, uint32_t n)
{
    (void)g;
    for (struct esp_draft_ask *a = asks; a < asks + n; a++) {
        const struct test_run *x = run_of(a->seq);
        size_t at;

        assert_non_null(x);
        at = a->seq->n_token - x->r->n;
        for (; a->n < a->want && at + a->n < x->r->n_want; a->n++)
            a->out[a->n] = (x->r->want[at + a->n] + guess_off) % 4084;
    }
}

esp_engine *test_double_open(esp_engine_opts o, struct esp_drafter *d, int32_t off)
{
    esp_engine *g = test_drafts_engine(o);

    guess_off = off;
    *d = esp_drafter_ngram;
    d->ready = always;
    d->propose = guess;
    g->spec.drafter = d;
    return g;
}
