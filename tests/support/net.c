/*
 * See net.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv.h"

#include "support/net.h"

enum { MAX_PASS = 4096 };

enum esp_cpu_level test_level(void)
{
    const char *name = getenv("ESPALIER_CPU");
    enum esp_cpu_level level = esp_cpu_best();
    esp_error err;

    if (name && *name)
        test_ok(esp_cpu_level_parse(&level, name, &err), &err);
    return level;
}

void test_device(struct esp_dev **out, const struct test_net_opts *o)
{
    const char *name = getenv("ESPALIER_TEST_DEVICE");
    esp_error err;
    esp_status s;

    if (!o->cuda && !(name && strcmp(name, "cuda") == 0)) {
        test_ok(esp_cpu_open(out, o->level, o->threads ? o->threads : 1, &err), &err);
        return;
    }
    s = esp_cuda_open(out, 0, &err);
    if (s == ESP_EDEVICE) {
        fprintf(stderr, "skipped: %s\n", err.message);
        exit(77);
    }
    test_ok(s, &err);
}

void test_need_device(void)
{
    struct esp_dev *d;

    if (!getenv("ESPALIER_TEST_DEVICE"))
        return;
    test_device(&d, &(struct test_net_opts){0});
    d->ops->close(d);
}

void test_net_open(struct test_net *t, struct test_net_opts o)
{
    struct esp_plan_opts p = {.act = o.act,
                              .max_tok = o.max_tok ? o.max_tok : 512,
                              .max_seq = o.n_seq ? o.n_seq : 4,
                              .context = o.context ? o.context : 2048};
    struct esp_pool_sizes z = {.n_slot = 4 * p.max_seq,
                               .n_journal = p.max_seq,
                               .journal_rows = o.journal_rows ? o.journal_rows : 32};
    esp_error err;

    memset(t, 0, sizeof *t);
    p.max_out = p.max_tok;
    p.max_rank = o.max_rank;
    test_ok(esp_checkpoint_open(&t->ck, o.folder[0] == '/' ? o.folder : test_path(o.folder), &err), &err);
    test_ok(esp_source_checkpoint(&t->src, t->ck, &err), &err);
    if (o.expand)
        test_ok(esp_source_expand(&t->src, t->src, ESP_SOURCE_WEIGHTS, o.threads, &err), &err);
    test_ok(esp_net_load(&t->net, &t->ck->config, t->src, &err), &err);
    t->net->layout.kv = o.kv;
    if (o.scheme)
        test_ok(esp_kv_choose(&t->net->layout, &t->net->config, o.scheme, &err), &err);
    t->net->layout.n_attn += o.mtp;
    t->net->layout.kv_start = o.kv_start;
    t->net->layout.state = o.state;
    test_ok(esp_layout_finish(&t->net->layout, &err), &err);
    z.n_page = p.max_seq * ((p.context + ESP_SPAN - 1) / ESP_SPAN + 1 + t->net->layout.exact_pages);
    test_device(&t->dev, &o);
    test_ok(esp_state_pools_create(&t->pools, t->dev, &t->net->layout, &z, &err), &err);
    test_ok(t->dev->ops->compile(t->dev, &t->net->tape, &t->pools->mem, &p, &t->plan, &err), &err);
    t->n_vocab = t->net->tape.n_vocab;
}

void test_net_close(struct test_net *t)
{
    if (t->plan)
        t->dev->ops->plan_free(t->plan);
    esp_state_pools_destroy(t->pools);
    if (t->dev)
        t->dev->ops->close(t->dev);
    esp_net_close(t->net);
    if (t->src)
        t->src->close(t->src);
    esp_checkpoint_close(t->ck);
    memset(t, 0, sizeof *t);
}

void test_net_run(struct test_net *t, struct esp_state *s, const int32_t *ids, uint32_t n, uint32_t cut,
                  float *logits, esp_tap_fn tap, void *tap_user)
{
    static int32_t pos[MAX_PASS][3];
    static uint32_t out_rows[MAX_PASS];
    esp_error err;

    for (uint32_t i = 0; i < n;) {
        uint32_t m = cut && n - i > cut ? cut : n - i;
        struct esp_batch_seq seq;
        struct esp_batch b = {.n_tok = m,
                              .ids = ids + i,
                              .pos = (const int32_t(*)[3])pos,
                              .n_seq = 1,
                              .seqs = &seq,
                              .n_out = logits ? m : 0,
                              .out_rows = out_rows,
                              .logits = logits ? logits + (size_t)i * t->n_vocab : NULL,
                              .tap = tap,
                              .tap_user = tap_user};

        for (uint32_t j = 0; j < m; j++) {
            pos[j][0] = pos[j][1] = pos[j][2] = (int32_t)(esp_state_length(s) + j);
            out_rows[j] = j;
        }
        test_ok(esp_state_begin(s, m, ESP_PASS_WRITE, &seq, &err), &err);
        seq.n_lora = t->n_lora;
        memcpy(seq.lora, t->lora, sizeof seq.lora);
        for (uint32_t j = 0; j < ESP_LORA_STACK; j++)
            seq.lora_scale[j] = 1.0f;
        test_ok(t->dev->ops->run(t->plan, &b, &err), &err);
        test_ok(t->dev->ops->wait(t->dev, &err), &err);
        test_ok(esp_state_commit(s, m, &err), &err);
        i += m;
    }
}
