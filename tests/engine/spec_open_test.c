/*
 * How good the drafts are, what speculation refuses, what it says of memory, and every allocation failing.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/drafts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "support/net.h"
#include "support/npy.h"

/* ---- how good the drafts are ---- */

enum { FROM = 40, TEXT = TEST_SLOW ? 120 : 330, N_TEXT = TEST_SLOW ? 1 : 3 };

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
    struct test_text r = {.opts = {.sampling = {.ignore_end = true}}, .prompt = ids, .n = FROM};
    esp_stats a, b;
    esp_seq *s;

    esp_engine_stats(g, &a);
    s = test_text_open(g, &r);
    for (uint32_t i = FROM; i < TEXT; i++) {
        esp_error err;

        test_ok(esp_seq_generate(s, 0, &err), &err);
        test_next_event(g);
        test_ok(esp_seq_snapshot(s, &err), &err);
        test_ok(esp_seq_generate(s, 2, &err), &err);
        while (test_next_event(g).finish == ESP_FINISH_NONE)
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
    esp_engine *g = test_drafts_engine(
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
    for (uint32_t t = 0; t < N_TEXT; t++) {
        const int32_t *text = ids + (size_t)(t * 20 + 2) * cols;
        uint32_t right = first_right(g, text);

        assert_int_equal(right, agreement(&net, draft, text));
        all += right;
    }
    printf("first drafts right: %u of %u\n", all, N_TEXT * (TEXT - FROM));
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
    test_refused(esp_engine_open(&g, test_drafts.model, &o, &err), ESP_EINVAL, &err, "33");
    o.spec_tokens = 0;
    o.spec_min_rate = 1.5f;
    test_refused(esp_engine_open(&g, test_drafts.model, &o, &err), ESP_EINVAL, &err, "1.5");
    o.spec_min_rate = 0;
    o.spec = (esp_spec)9;
    test_refused(esp_engine_open(&g, test_drafts.model, &o, &err), ESP_EINVAL, &err, "9");
    o.spec = ESP_SPEC_DRAFT;
    test_refused(esp_engine_open(&g, test_drafts.model, &o, &err), ESP_EINVAL, &err, "draft_model");
    test_ok(esp_model_open(&tiny, test_path("models/tiny-text"), NULL, &err), &err);
    o.draft_model = tiny;
    test_refused(esp_engine_open(&g, test_drafts.model, &o, &err), ESP_EINVAL, &err, "tokenizer");
    o.spec = ESP_SPEC_MTP;
    test_refused(esp_engine_open(&g, tiny, &o, &err), ESP_EINVAL, &err, "no draft layer");
    for (o.spec = ESP_SPEC_MTP; o.spec <= ESP_SPEC_DRAFT; o.spec++) {
        o.draft_model = test_drafts.model;
        test_ok(esp_engine_plan(test_drafts.model, &o, &with, &err), &err);
        test_ok(esp_engine_plan(test_drafts.model, &(esp_engine_opts){.context = 64}, &without, &err), &err);
        assert_true(with.speculation > 0 && with.total > without.total);
        o.memory_budget = with.total - 1;
        test_refused(esp_engine_open(&g, test_drafts.model, &o, &err), ESP_ENOFIT, &err, "speculation");
        o.memory_budget = with.total;
        test_ok(esp_engine_open(&g, test_drafts.model, &o, &err), &err);
        esp_engine_close(g);
        o.memory_budget = 0;
        without = with;
        o.kv = "f32"; /* the drafter's cache is the engine's kind */
        test_ok(esp_engine_plan(test_drafts.model, &o, &with, &err), &err);
        assert_true((with.speculation > without.speculation) == (o.spec == ESP_SPEC_DRAFT));
        o.kv = NULL;
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
                         .draft_model = test_drafts.model};
    esp_engine *g = NULL;
    esp_seq *s = NULL;
    esp_error err;
    esp_status st;

    esp_mem_fail_at(n);
    st = esp_engine_open(&g, test_drafts.model, &o, &err);
    if (st == ESP_OK)
        st = esp_seq_open(&s, g, NULL, &err);
    esp_mem_fail_at(st == ESP_OK ? 0 : -1);
    if (st != ESP_OK) {
        assert_int_equal(st, ESP_ENOMEM);
        assert_true(strlen(err.message) > 0);
    } else {
        test_ok(esp_seq_append(s, test_drafts.r[2].prompt, 10, &err), &err);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_acceptance), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_out_of_memory)};
    int failed;

    test_drafts_open(40);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_drafts_close();
    return failed;
}
