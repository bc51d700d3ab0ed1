/*
 * Adapters through the public header: greedy answers of the reference with the adapter, requests of base,
 * adapter and a stack in one engine equal to solo runs, stacks whatever their order, refusals. Cases 34
 * and 36.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include "support/net.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "espalier/espalier.h"

enum { MAX_NEW = 48, ROWS = 8 };

static esp_model *model;
static esp_adapter *caps;
static json_t *goldens;

static esp_engine *open_engine(uint32_t max_seqs, uint32_t checkpoints)
{
    esp_engine_opts o = {.context = 512,
                         .max_seqs = max_seqs,
                         .kv_tokens = 4096,
                         .kv = "f32",
                         .act = "f32",
                         .max_rank = 8,
                         .device = getenv("ESPALIER_TEST_DEVICE"),
                         .checkpoints = checkpoints};
    esp_engine *g;
    esp_error err;

    test_ok(esp_engine_open(&g, model, &o, &err), &err);
    return g;
}

static esp_seq *start(esp_engine *g, const json_t *ids, const esp_seq_opts *o, size_t n)
{
    esp_seq *s;
    esp_error err;

    test_ok(esp_seq_open(&s, g, o, &err), &err);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        esp_token t = (esp_token)json_integer_value(json_array_get(ids, i));

        test_ok(esp_seq_append(s, &t, 1, &err), &err);
    }
    test_ok(esp_seq_generate(s, n, &err), &err);
    return s;
}

/* Run all of s to their ends; tokens and counts by index. */
static void finish(esp_engine *g, esp_seq **s, size_t n_seq, esp_token out[][MAX_NEW], size_t *n_out)
{
    size_t open = n_seq;
    esp_error err;

    memset(n_out, 0, n_seq * sizeof *n_out);
    while (open) {
        esp_event e[16];
        size_t n;

        test_ok(esp_engine_step(g, e, 16, &n, &err), &err);
        for (size_t i = 0; i < n; i++) {
            size_t k = 0;

            while (s[k] != e[i].seq)
                k++;
            if (e[i].finish == ESP_FINISH_FAILED)
                fail_msg("%s", e[i].message);
            if (e[i].token >= 0)
                out[k][n_out[k]++] = e[i].token;
            open -= e[i].finish != ESP_FINISH_NONE;
        }
    }
    for (size_t k = 0; k < n_seq; k++)
        esp_seq_close(s[k]);
}

static void test_reference_answers(void **state)
{
    esp_engine *g = open_engine(1, 0);
    esp_seq_opts o = {.adapters = {{.adapter = caps}}, .n_adapters = 1};
    const char *key;
    json_t *entry;
    int n = 0;

    (void)state;
    json_object_foreach(json_object_get(goldens, "greedy"), key, entry)
    {
        const json_t *want = json_object_get(entry, "output_ids");
        esp_token out[1][MAX_NEW];
        size_t got;
        esp_seq *s;

        if (strncmp(key, "lora.", 5) != 0)
            continue;
        s = start(g, json_object_get(entry, "ids"), &o, json_array_size(want));
        finish(g, &s, 1, out, &got);
        for (size_t i = 0; i < got; i++)
            assert_int_equal(out[0][i], json_integer_value(json_array_get(want, i)));
        assert_true(got == json_array_size(want) ||
                    esp_token_is_end(model, (esp_token)json_integer_value(json_array_get(want, got))));
        n++;
    }
    assert_int_equal(n, 7);
    esp_engine_close(g);
}

/* A second adapter: the first one trained to another alpha. */
static esp_adapter *open_other(void)
{
    char dir[300], line[1024];
    esp_adapter *a;
    esp_error err;

    snprintf(dir, sizeof dir, "%.250s/other", test_tmpdir());
    snprintf(line, sizeof line,
             "cp -r '%s' '%s' && sed -i 's/\"lora_alpha\": *[0-9.]*/\"lora_alpha\": 5/' "
             "'%s/adapter_config.json'",
             test_path("models/demo-lora-caps"), dir, dir);
    assert_int_equal(system(line), 0);
    test_ok(esp_adapter_open(&a, model, dir, &err), &err);
    return a;
}

/* Base, adapter, scales, and stacks of two in both orders: alone, together, and with the prefix cache on, the
 * same tokens. */
static void test_mixed(void **state)
{
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(goldens, "greedy"), "base.chat_continue"), "ids");
    esp_adapter *again, *other = open_other();
    esp_seq_opts o[ROWS] = {{.n_adapters = 0}};
    esp_token alone[ROWS][MAX_NEW], mixed[ROWS][MAX_NEW];
    size_t n_alone[ROWS], n_mixed[ROWS];
    esp_seq *s[ROWS];
    esp_engine *g;
    esp_error err;

    (void)state;
    test_ok(esp_adapter_open(&again, model, test_path("models/demo-lora-caps"), &err), &err);
    o[1] = (esp_seq_opts){.adapters = {{.adapter = caps}}, .n_adapters = 1};
    o[2] = (esp_seq_opts){.adapters = {{.adapter = caps, .scale = 0.5f}}, .n_adapters = 1};
    o[3] = (esp_seq_opts){.adapters = {{.adapter = caps, .scale = -1.0f}}, .n_adapters = 1};
    o[4] = (esp_seq_opts){.adapters = {{.adapter = again}},
                          .n_adapters = 1}; /* the same files: the same answer */
    o[5] =
        (esp_seq_opts){.adapters = {{.adapter = caps, .scale = 0.4f}, {.adapter = other}}, .n_adapters = 2};
    o[6] =
        (esp_seq_opts){.adapters = {{.adapter = other}, {.adapter = caps, .scale = 0.4f}}, .n_adapters = 2};
    o[7] = (esp_seq_opts){.adapters = {{.adapter = other}}, .n_adapters = 1};
    for (int i = 0; i < ROWS; i++) {
        g = open_engine(1, 0);
        s[0] = start(g, ids, &o[i], 24);
        finish(g, s, 1, alone + i, n_alone + i);
        esp_engine_close(g);
    }
    assert_memory_not_equal(alone[0], alone[1], sizeof(esp_token) * 8);
    assert_int_equal(n_alone[1], n_alone[4]);
    assert_memory_equal(alone[1], alone[4], sizeof(esp_token) * n_alone[1]);
    assert_int_equal(n_alone[5], n_alone[6]);
    assert_memory_equal(alone[5], alone[6], sizeof(esp_token) * n_alone[5]); /* a stack is a set */
    assert_memory_not_equal(alone[5], alone[0], sizeof(esp_token) * 8);      /* and more than either part */
    assert_memory_equal(alone[7], alone[0], sizeof(esp_token) * 8);
    for (int round = 0; round < 2; round++) { /* the second round hits what the first left in the cache */
        static esp_engine *shared;

        if (round == 0)
            shared = open_engine(ROWS, 24);
        for (int i = 0; i < ROWS; i++)
            s[i] = start(shared, ids, &o[i], 24);
        finish(shared, s, ROWS, mixed, n_mixed);
        for (int i = 0; i < ROWS; i++) {
            assert_int_equal(n_mixed[i], n_alone[i]);
            assert_memory_equal(mixed[i], alone[i], sizeof(esp_token) * n_alone[i]);
        }
        if (round == 1)
            esp_engine_close(shared);
    }
    esp_adapter_close(again);
    esp_adapter_close(other);
}

static void test_refusals(void **state)
{
    esp_seq_opts o = {.adapters = {{.adapter = caps}, {.adapter = caps}}, .n_adapters = 2};
    esp_engine *g = open_engine(2, 0), *small;
    esp_adapter *a = NULL;
    esp_adapter_info info;
    esp_model *other;
    esp_seq *s = NULL;
    esp_error err;

    (void)state;
    test_refused(esp_seq_open(&s, g, &o, &err), ESP_EINVAL, &err, "twice");
    o.n_adapters = 5;
    test_refused(esp_seq_open(&s, g, &o, &err), ESP_EINVAL, &err, "at most 4");
    o = (esp_seq_opts){.adapters = {{.adapter = caps, .scale = NAN}}, .n_adapters = 1};
    test_refused(esp_seq_open(&s, g, &o, &err), ESP_EINVAL, &err, "finite");
    o.adapters[0].adapter = NULL;
    test_refused(esp_seq_open(&s, g, &o, &err), ESP_EINVAL, &err, "no handle");
    o = (esp_seq_opts){.adapters = {{.adapter = caps}}, .n_adapters = 1};
    test_ok(esp_engine_open(&small, model, &(esp_engine_opts){.context = 64, .max_rank = 4}, &err), &err);
    test_refused(esp_seq_open(&s, small, &o, &err), ESP_ENOFIT, &err, "rank 8");
    esp_engine_close(small);
    test_ok(esp_model_open(&other, test_path("models/tiny-text"), NULL, &err), &err);
    test_refused(esp_adapter_open(&a, other, test_path("models/demo-lora-caps"), &err), ESP_EFORMAT, &err,
                 "do not fit");
    test_ok(esp_engine_open(&small, other, &(esp_engine_opts){.context = 64, .max_rank = 8}, &err), &err);
    test_refused(esp_seq_open(&s, small, &o, &err), ESP_EINVAL, &err, "another model");
    esp_engine_close(small);
    esp_model_close(other);
    esp_adapter_close(NULL);
    esp_adapter_describe(caps, &info);
    assert_int_equal(info.max_rank, 8);
    assert_int_equal(info.n_modules,
                     6 * 6 + 2 * 7); /* six delta layers with six targets, two attention layers with seven */
    assert_null(s);
    assert_null(a);
    esp_engine_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reference_answers), cmocka_unit_test(test_mixed),
                                       cmocka_unit_test(test_refusals)};
    esp_error err;
    int failed;

    test_need_device();
    if (esp_model_open(&model, test_path("models/demo"), &(esp_model_opts){.threads = 2}, &err) != ESP_OK ||
        esp_adapter_open(&caps, model, test_path("models/demo-lora-caps"), &err) != ESP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    goldens = test_json("models/demo-golden/goldens.json");
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(goldens);
    esp_adapter_close(caps);
    esp_model_close(model);
    return failed;
}
