/*
 * The draft layer of the demo model against the reference: the logits of its last row for every prompt, and
 * how often its first draft equals the trunk's greedy token on the validation text (0.601). Traps 2 and 3:
 * the hidden state is the one after the final norm; a chain continues from the layer's own output after
 * mtp.norm.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/safetensors.h"
#include "support/net.h"
#include "support/npy.h"

enum { H = 256, V = 4096, MAX = 1024 };

static struct test_net net;
static struct esp_plan *draft;
static struct esp_st_file *golden;
static float hidden[MAX * H], trunk[(size_t)MAX * V], mtp[(size_t)MAX * V];

static void open_net(void)
{
    struct esp_plan_opts o = {.max_tok = MAX, .max_out = MAX, .max_seq = 1, .context = MAX};
    esp_error err;

    test_net_open(&net, (struct test_net_opts){.folder = "models/demo",
                                               .level = test_level(),
                                               .threads = 2,
                                               .context = MAX,
                                               .max_tok = MAX,
                                               .n_seq = 1,
                                               .mtp = true});
    assert_true(net.net->mtp.n_op > 0);
    test_ok(net.dev->ops->compile(net.dev, &net.net->mtp, &net.pools->mem, &o, &draft, &err), &err);
}

/* Trunk over n ids, then the draft layer over rows 0..n-2: hidden i with token i + 1. */
static void run(const int32_t *ids, uint32_t n)
{
    static int32_t pos[MAX][3];
    static uint32_t rows[MAX];
    struct esp_batch_seq seq;
    struct esp_batch b = {.n_tok = n,
                          .ids = ids,
                          .pos = (const int32_t(*)[3])pos,
                          .n_seq = 1,
                          .seqs = &seq,
                          .n_out = n,
                          .out_rows = rows,
                          .logits = trunk,
                          .hidden = hidden};
    struct esp_state *s;
    esp_error err;

    for (uint32_t i = 0; i < n; i++) {
        pos[i][0] = pos[i][1] = pos[i][2] = (int32_t)i;
        rows[i] = i;
    }
    test_ok(esp_state_open(&s, net.pools, MAX, 0, &err), &err);
    test_ok(esp_state_begin(s, n, ESP_PASS_WRITE, &seq, &err), &err);
    test_ok(net.dev->ops->run(net.plan, &b, &err), &err);
    seq.n_tok = b.n_tok = b.n_out =
        n - 1; /* the same pages; the draft layer has a layer of its own in them */
    b.ids = ids + 1;
    b.input = hidden;
    b.hidden = NULL;
    b.logits = mtp;
    test_ok(net.dev->ops->run(draft, &b, &err), &err);
    test_ok(esp_state_commit(s, n, &err), &err);
    esp_state_close(s);
}

static void test_last_logits(void **state)
{
    static const char *const prompts[] = {"story",     "marley",    "chat_add",     "chat_think",
                                          "chat_copy", "chat_tool", "chat_continue"};

    (void)state;
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        char name[64];
        const struct esp_st_tensor *ids, *want, *final;
        const float *w;
        uint32_t n;

        snprintf(name, sizeof name, "base.%s.ids", prompts[i]);
        ids = esp_st_find(golden, name);
        snprintf(name, sizeof name, "base.%s.mtp_last_logits", prompts[i]);
        want = esp_st_find(golden, name);
        snprintf(name, sizeof name, "base.%s.final_hidden", prompts[i]);
        final = esp_st_find(golden, name);
        assert_true(ids && want && final);
        n = (uint32_t)ids->shape[0];
        run((const int32_t *)(const void *)ids->data, n);
        w = (const float *)(const void *) final->data;
        for (size_t j = 0; j < (size_t)n * H; j++)
            if (!(fabsf(hidden[j] - w[j]) <= 1e-3f))
                fail_msg("%s: hidden %zu is %g instead of %g", prompts[i], j, hidden[j], w[j]);
        w = (const float *)(const void *)want->data;
        for (size_t j = 0; j < V; j++) {
            float got = mtp[(size_t)(n - 2) * V + j];

            if (!(fabsf(got - w[j]) <= 2e-3f))
                fail_msg("%s: logit %zu is %g instead of %g", prompts[i], j, got, w[j]);
        }
    }
}

static uint32_t argmax(const float *x)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < V; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* Draft row i predicts what the trunk predicts at i + 1. */
static void test_agreement(void **state)
{
    uint32_t rows, cols, n_row = 64, same = 0, all = 0;
    int32_t *ids;
    double rate;

    (void)state;
    if (test_level() == ESP_CPU_REF || TEST_SANITIZED)
        skip(); /* the figure is over all rows; slow code takes minutes for them */
    ids = test_npy(test_path("models/demo-golden/val.npy"), &rows, &cols);
    for (uint32_t r = 0; r < n_row; r++) {
        run(ids + (size_t)r * cols, cols);
        for (uint32_t i = 0; i + 1 < cols; i++, all++)
            same += argmax(mtp + (size_t)i * V) == argmax(trunk + (size_t)(i + 1) * V);
    }
    rate = (double)same / all;
    printf("agreement of the first draft: %.4f over %u positions\n", rate, all);
    free(ids);
    assert_true(fabs(rate - 0.6014) < 0.002);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_last_logits), cmocka_unit_test(test_agreement)};
    int failed;

    if (esp_st_open(&golden, test_path("models/demo-golden/goldens.safetensors"), NULL) != ESP_OK)
        return 1;
    open_net();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    net.dev->ops->plan_free(draft);
    test_net_close(&net);
    esp_st_close(golden);
    return failed;
}
