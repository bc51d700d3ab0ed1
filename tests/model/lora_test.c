/*
 * Adapters: the reference values of the demo's adapter, batches that mix base, adapter and a stack, and
 * everything that must be refused. Cases 33 to 35 of the field.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "io/adapter.h"
#include "model/lora.h"
#include "support/net.h"

enum { V = 4096 };

static struct test_net net;
static float *logits, *other;

static void open_demo(uint32_t threads)
{
    test_net_open(&net, (struct test_net_opts){.folder = "models/demo",
                                               .level = test_level(),
                                               .threads = threads,
                                               .max_rank = 16,
                                               .context = 512});
}

static struct esp_lora *load(const char *dir, float scale)
{
    struct esp_lora *l;
    esp_error err;

    test_ok(esp_lora_load(&l, net.net, test_path(dir), scale, &err), &err);
    return l;
}

static void run(const int32_t *ids, uint32_t n, uint32_t cut, float *out)
{
    struct esp_state *s;
    esp_error err;

    test_ok(esp_state_open(&s, net.pools, 512, 0, &err), &err);
    test_net_run(&net, s, ids, n, cut, out, NULL, NULL);
    esp_state_close(s);
}

static void test_reference_values(void **state)
{
    static const char *const prompts[] = {"story",     "marley",    "chat_add",     "chat_think",
                                          "chat_copy", "chat_tool", "chat_continue"};
    struct esp_st_file *golden;
    struct esp_lora *l;
    esp_error err;

    (void)state;
    test_ok(esp_st_open(&golden, test_path("models/demo-golden/goldens.safetensors"), &err), &err);
    open_demo(2);
    l = load("models/demo-lora-caps", 1.0f);
    net.lora[0] = &l->set;
    net.n_lora = 1;
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        char name[64];
        const struct esp_st_tensor *ids, *top_ids, *top, *last;
        size_t n;

        snprintf(name, sizeof name, "lora.%s.ids", prompts[i]);
        ids = esp_st_find(golden, name);
        snprintf(name, sizeof name, "lora.%s.top_ids", prompts[i]);
        top_ids = esp_st_find(golden, name);
        snprintf(name, sizeof name, "lora.%s.top_logits", prompts[i]);
        top = esp_st_find(golden, name);
        snprintf(name, sizeof name, "lora.%s.last_logits", prompts[i]);
        last = esp_st_find(golden, name);
        assert_true(ids && top_ids && top && last);
        n = ids->shape[0];
        run((const int32_t *)(const void *)ids->data, (uint32_t)n, 0, logits);
        for (size_t j = 0; j < n * 16; j++) {
            float got = logits[j / 16 * V + (size_t)((const int32_t *)(const void *)top_ids->data)[j]];
            float want = ((const float *)(const void *)top->data)[j];

            if (!(fabsf(got - want) <= 2e-3f))
                fail_msg("%s, row %zu: %g instead of %g", prompts[i], j / 16, got, want);
        }
        for (size_t j = 0; j < V; j++)
            assert_true(fabsf(logits[(n - 1) * V + j] - ((const float *)(const void *)last->data)[j]) <=
                        2e-3f);
    }
    esp_lora_close(l);
    test_net_close(&net);
    esp_st_close(golden);
}

/* Rows of base, adapter, and a stack of two in one batch give the bits of three runs of their own. */
static void test_mixed_batch(void **state)
{
    static int32_t ids[96], pos[96][3];
    struct esp_batch_seq seqs[3];
    uint32_t out_rows[96];
    struct esp_batch b = {.ids = ids,
                          .pos = (const int32_t(*)[3])pos,
                          .seqs = seqs,
                          .n_seq = 3,
                          .out_rows = out_rows,
                          .logits = logits};
    struct esp_state *s[3];
    struct esp_lora *one, *half;
    uint32_t n[3] = {20, 33, 1};
    esp_error err;

    (void)state;
    for (uint32_t threads = 1; threads <= 3; threads++) {
        open_demo(threads);
        one = load("models/demo-lora-caps", 1.0f);
        half = load("models/demo-lora-caps", 0.5f);
        b.n_tok = 0;
        for (uint32_t i = 0; i < 3; i++) {
            test_ok(esp_state_open(&s[i], net.pools, 512, 0, &err), &err);
            test_ok(esp_state_begin(s[i], n[i], ESP_PASS_WRITE, &seqs[i], &err), &err);
            seqs[i].tok0 = b.n_tok;
            seqs[i].n_lora = i;
            seqs[i].lora[0] = &one->set;
            seqs[i].lora[1] = &half->set;
            seqs[i].lora_scale[0] = seqs[i].lora_scale[1] = 1.0f;
            for (uint32_t j = 0; j < n[i]; j++, b.n_tok++) {
                ids[b.n_tok] = (int32_t)((i + 3) * (j + 7) * 31 % V);
                pos[b.n_tok][0] = pos[b.n_tok][1] = pos[b.n_tok][2] = (int32_t)j;
                out_rows[b.n_tok] = b.n_tok;
            }
        }
        b.n_out = b.n_tok;
        test_ok(net.dev->ops->run(net.plan, &b, &err), &err);
        for (uint32_t i = 0; i < 3; i++) {
            test_ok(esp_state_commit(s[i], n[i], &err), &err);
            esp_state_close(s[i]);
            net.n_lora = i;
            net.lora[0] = &one->set;
            net.lora[1] = &half->set;
            run(ids + seqs[i].tok0, n[i], 7, other);
            assert_memory_equal(other, logits + (size_t)seqs[i].tok0 * V, n[i] * V * sizeof(float));
        }
        esp_lora_close(one);
        esp_lora_close(half);
        test_net_close(&net);
    }
}

static void test_zero_scale_is_base(void **state)
{
    int32_t ids[30];
    struct esp_lora *l;

    (void)state;
    open_demo(1);
    l = load("models/demo-lora-caps", 0.0f);
    assert_int_equal(l->n_module, 0);
    for (int i = 0; i < 30; i++)
        ids[i] = i * 13;
    run(ids, 30, 0, logits);
    net.lora[0] = &l->set;
    net.n_lora = 1;
    run(ids, 30, 0, other);
    assert_memory_equal(logits, other, 30 * V * sizeof(float));
    esp_lora_close(l);
    test_net_close(&net);
}

static void test_refusals(void **state)
{
    struct esp_adapter_file *f = NULL;
    struct esp_lora *l = NULL;
    esp_error err;

    (void)state;
    test_refused(esp_adapter_file_open(&f, test_path("tests/data/cases/lora/dora"), &err), ESP_EUNSUPPORTED,
                 &err, "DoRA");
    test_refused(esp_adapter_file_open(&f, test_path("tests/data/cases/lora/alpha_missing"), &err),
                 ESP_EFORMAT, &err, "lora_alpha");
    test_refused(esp_adapter_file_open(&f, test_path("tests/data/cases/lora/missing_b"), &err), ESP_EFORMAT,
                 &err, "lora_B");
    test_refused(esp_adapter_file_open(&f, test_path("models/demo"), &err), ESP_ENOTFOUND, &err,
                 "adapter_model.safetensors");
    open_demo(1);
    test_refused(esp_lora_load(&l, net.net, test_path("tests/data/cases/lora/no_target_matches"), 1, &err),
                 ESP_EFORMAT, &err, "0 of 1 modules matched");
    test_refused(esp_lora_load(&l, net.net, test_path("models/demo-lora-caps"), NAN, &err), ESP_EINVAL, &err,
                 "finite");
    test_net_close(&net);
    /* another model: every misfit is listed with both shapes */
    test_net_open(
        &net, (struct test_net_opts){.folder = "models/tiny-text", .level = test_level(), .max_rank = 16});
    test_refused(esp_lora_load(&l, net.net, test_path("models/demo-lora-caps"), 1, &err), ESP_EFORMAT, &err,
                 "do not fit");
    test_net_close(&net);
    assert_null(l);
}

static void test_rslora_scale(void **state)
{
    struct esp_adapter_file *f;
    esp_error err;

    (void)state;
    test_ok(esp_adapter_file_open(&f, test_path("tests/data/cases/lora/rslora"), &err), &err);
    assert_int_equal(f->n, 1);
    assert_true(esp_adapter_scale_of(f, f->pairs[0].module, 4) == 4.0);
    esp_adapter_file_close(f);
    test_ok(esp_adapter_file_open(&f, test_path("models/demo-lora-caps"), &err), &err);
    assert_true(esp_adapter_scale_of(f, f->pairs[0].module, 8) == 2.0);
    esp_adapter_file_close(f);
}

static const char *write_adapter(const char *config)
{
    const char *dir = test_tmpdir();
    struct esp_map w;
    esp_error err;

    test_ok(esp_map_open(&w, test_path("models/demo-lora-caps/adapter_model.safetensors"), &err), &err);
    test_write(dir, "adapter_model.safetensors", w.data, w.size);
    test_write(dir, "adapter_config.json", config, strlen(config));
    esp_map_close(&w);
    return dir;
}

static void test_config_forms(void **state)
{
    static const struct {
        const char *config, *module;
        double scale; /* for rank 8 */
    } good[] = {
        {"{\"lora_parameters\": {\"scale\": 2.0, \"rank\": 8}}", "layers.0.mlp.up_proj", 2.0},
        {"{\"lora_parameters\": {\"rank\": 8}}", "layers.0.mlp.up_proj", 20.0},
        {"{\"lora_alpha\": 16, \"alpha_pattern\": {\"mlp.up_proj\": 4}}", "layers.0.mlp.up_proj", 0.5},
        {"{\"lora_alpha\": 16, \"alpha_pattern\": {\"mlp.up_proj\": 4}}", "layers.0.mlp.gate_proj", 2.0},
        {"{\"lora_alpha\": 16, \"alpha_pattern\": {\"up_pro\": 4}}", "layers.0.mlp.up_proj", 2.0},
    };
    static const struct {
        const char *config, *part;
    } bad[] = {
        {"{\"lora_alpha\": \"x\"}", "lora_alpha"},
        {"{\"lora_alpha\": 8, \"bias\": \"all\"}", "bias"},
        {"{\"lora_alpha\": 8, \"modules_to_save\": [\"lm_head\"]}", "modules_to_save"},
        {"{\"lora_alpha\": 8, \"peft_type\": \"IA3\"}", "IA3"},
        {"{\"fine_tune_type\": \"full\"}", "full"},
        {"[1]", "object"},
        {"{", "JSON"},
    };
    struct esp_adapter_file *f;
    esp_error err;

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        test_ok(esp_adapter_file_open(&f, write_adapter(good[i].config), &err), &err);
        assert_true(fabs(esp_adapter_scale_of(f, good[i].module, 8) - good[i].scale) < 1e-12);
        esp_adapter_file_close(f);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        esp_status s = esp_adapter_file_open(&f, write_adapter(bad[i].config), &err);

        assert_true(s == ESP_EFORMAT || s == ESP_EUNSUPPORTED);
        if (!strstr(err.message, bad[i].part))
            fail_msg("\"%s\" does not name %s", err.message, bad[i].part);
    }
}

static void test_out_of_memory(void **state)
{
    esp_status s = ESP_ENOMEM;
    int64_t n;

    (void)state;
    open_demo(1);
    for (n = 0; s != ESP_OK; n++) {
        struct esp_lora *l = NULL;
        esp_error err;

        esp_mem_fail_at(n);
        s = esp_lora_load(&l, net.net, test_path("models/demo-lora-caps"), 1.0f, &err);
        esp_mem_fail_at(-1);
        assert_true(s == ESP_OK || s == ESP_ENOMEM);
        esp_lora_close(l);
    }
    assert_true(n > 10);
    test_net_close(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_values),   cmocka_unit_test(test_mixed_batch),
        cmocka_unit_test(test_zero_scale_is_base), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_rslora_scale),       cmocka_unit_test(test_config_forms),
        cmocka_unit_test(test_out_of_memory),
    };
    int failed;

    logits = malloc((size_t)512 * V * sizeof *logits);
    other = malloc((size_t)512 * V * sizeof *other);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(logits);
    free(other);
    return failed;
}
