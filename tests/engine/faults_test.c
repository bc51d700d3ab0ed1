/*
 * What goes wrong in an engine: wrong calls, full contexts and pools, rows with NaN beside healthy ones (case
 * 27), files that lie, and every allocation failing once. Nothing crashes, nothing leaks, the message says
 * what was wrong.
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
#include "espalier/espalier.h"
#include "io/safetensors.h"

static esp_model *model;

static esp_engine *open_engine(const esp_engine_opts *o)
{
    esp_engine *g;
    esp_error err;

    test_ok(esp_engine_open(&g, model, o, &err), &err);
    return g;
}

static void test_options(void **state)
{
    esp_engine *g = NULL;
    esp_memory_plan p;
    esp_error err;

    (void)state;
    test_refused(esp_engine_open(&g, model, &(esp_engine_opts){.context = 100000}, &err), ESP_EINVAL, &err,
                 "2048");
    test_refused(esp_engine_open(&g, model, &(esp_engine_opts){.act = "fp4"}, &err), ESP_EINVAL, &err,
                 "int8x2");
    test_refused(esp_engine_open(&g, model, &(esp_engine_opts){.kv = "q3"}, &err), ESP_EINVAL, &err, "bf16");
    test_refused(esp_engine_open(&g, model, &(esp_engine_opts){.max_seqs = 5000}, &err), ESP_EINVAL, &err,
                 "1024");
    test_refused(esp_engine_open(&g, model, &(esp_engine_opts){.chunk = 1 << 20}, &err), ESP_EINVAL, &err,
                 "8192");
    test_refused(esp_engine_open(&g, model, &(esp_engine_opts){.memory_budget = 1000}, &err), ESP_ENOFIT,
                 &err, "1000");
    test_ok(esp_engine_plan(model, NULL, &p, &err), &err);
    assert_int_equal(p.total, p.weights + p.kv_pool + p.state_pool + p.scratch + p.fixed);
    test_refused(esp_engine_open(&g, model, &(esp_engine_opts){.memory_budget = p.total - 1}, &err),
                 ESP_ENOFIT, &err, NULL);
    test_ok(esp_engine_open(&g, model, &(esp_engine_opts){.memory_budget = p.total}, &err), &err);
    esp_engine_close(g);
}

static void test_sequence_calls(void **state)
{
    esp_engine *g = open_engine(&(esp_engine_opts){.context = 64, .max_seqs = 1});
    esp_token t[65] = {1, 2, 3};
    esp_seq *s, *other = NULL;
    esp_event e[2];
    size_t n;
    esp_error err;

    (void)state;
    test_refused(esp_seq_open(&s, g, &(esp_seq_opts){.sampling = {.temperature = NAN}}, &err), ESP_EINVAL,
                 &err, "temperature");
    test_refused(esp_seq_open(&s, g, &(esp_seq_opts){.top_logprobs = 21}, &err), ESP_EINVAL, &err, "20");
    test_ok(esp_seq_open(&s, g, NULL, &err), &err);
    test_refused(esp_seq_open(&other, g, NULL, &err), ESP_ENOFIT, &err, "opened for 1");
    test_refused(esp_seq_generate(s, 1, &err), ESP_ESTATE, &err, "empty");
    test_refused(esp_seq_append(s, (esp_token[]){512}, 1, &err), ESP_EINVAL, &err, "512");
    test_refused(esp_seq_append(s, (esp_token[]){-1}, 1, &err), ESP_EINVAL, &err, "-1");
    test_refused(esp_seq_append(s, t, 65, &err), ESP_ENOFIT, &err, "context of 64");
    test_ok(esp_seq_append(s, t, 3, &err), &err);
    test_refused(esp_seq_rewind(s, 4, &err), ESP_EINVAL, &err, "3 tokens");
    test_ok(esp_seq_generate(s, 4, &err), &err);
    test_refused(esp_seq_append(s, t, 1, &err), ESP_ESTATE, &err, "generating");
    test_refused(esp_seq_generate(s, 4, &err), ESP_ESTATE, &err, "already");
    test_refused(esp_seq_rewind(s, 0, &err), ESP_ESTATE, &err, "generating");
    test_refused(esp_seq_fork(&other, s, NULL, &err), ESP_ESTATE, &err, "generating");
    test_refused(esp_engine_step(g, e, 0, &n, &err), ESP_EINVAL, &err, "room");
    test_ok(esp_engine_step(g, e, 2, &n, &err), &err);
    assert_int_equal(n, 1);
    esp_seq_stop(s);
    test_ok(esp_engine_step(g, e, 2, &n, &err), &err);
    assert_int_equal(n, 0); /* idle */
    assert_int_equal(esp_seq_length(s), 4);
    esp_seq_close(s);
    esp_seq_close(NULL);
    esp_engine_close(g);
    esp_engine_close(NULL);
}

/* max_new 0 only prefills; a context that fills up ends with length; both report once. */
static void test_ends(void **state)
{
    esp_engine *g = open_engine(&(esp_engine_opts){.context = 16, .max_seqs = 1});
    esp_token t[10] = {5, 6, 7};
    size_t n, got = 0;
    esp_event e[2];
    esp_seq *s;
    esp_error err;

    (void)state;
    test_ok(esp_seq_open(&s, g, &(esp_seq_opts){.sampling = {.ignore_end = true}}, &err), &err);
    test_ok(esp_seq_append(s, t, 10, &err), &err);
    test_ok(esp_seq_generate(s, 0, &err), &err);
    do
        test_ok(esp_engine_step(g, e, 2, &n, &err), &err);
    while (n == 0);
    assert_int_equal(e[0].token, -1);
    assert_int_equal(e[0].finish, ESP_FINISH_LENGTH);
    test_ok(esp_seq_generate(s, 100, &err), &err);
    do {
        test_ok(esp_engine_step(g, e, 1, &n, &err), &err);
        assert_int_equal(n, 1);
        got++;
    } while (e[0].finish == ESP_FINISH_NONE);
    assert_int_equal(e[0].finish, ESP_FINISH_LENGTH);
    assert_int_equal(got, 6);
    assert_int_equal(esp_seq_length(s), 16);
    esp_seq_close(s);
    esp_engine_close(g);
}

/* Too few pages for two long sequences: one fails with the pool named, the other goes on. */
static void test_full_pool(void **state)
{
    esp_engine *g = open_engine(&(esp_engine_opts){.context = 512, .max_seqs = 2, .kv_tokens = 512});
    esp_token t[400] = {9};
    int n_failed = 0, n_done = 0;
    esp_seq *s[2];
    esp_error err;

    (void)state;
    for (int i = 0; i < 2; i++) {
        test_ok(esp_seq_open(&s[i], g, &(esp_seq_opts){.sampling = {.ignore_end = true}}, &err), &err);
        test_ok(esp_seq_append(s[i], t, 400, &err), &err);
        test_ok(esp_seq_generate(s[i], 4, &err), &err);
    }
    while (n_failed + n_done < 2) {
        esp_event e[4];
        size_t n;

        test_ok(esp_engine_step(g, e, 4, &n, &err), &err);
        for (size_t i = 0; i < n; i++) {
            n_done += e[i].finish == ESP_FINISH_LENGTH;
            if (e[i].finish == ESP_FINISH_FAILED) {
                n_failed++;
                assert_non_null(strstr(e[i].message, "2 KV pages"));
            }
        }
    }
    assert_int_equal(n_failed, 1);
    esp_seq_close(s[0]);
    esp_seq_close(s[1]);
    esp_engine_close(g);
}

/* A copy of tiny-text in a fresh folder, its embedding row `token` replaced by NaN. */
static const char *poisoned_model(uint32_t token)
{
    const char *dir = test_tmpdir();
    struct esp_st_file *st;
    const struct esp_st_tensor *emb;
    struct esp_map config, weights;
    uint8_t *copy;
    esp_error err;

    test_ok(esp_map_open(&config, test_path("models/tiny-text/config.json"), &err), &err);
    test_ok(esp_map_open(&weights, test_path("models/tiny-text/model.safetensors"), &err), &err);
    test_ok(esp_st_open_memory(&st, weights.data, weights.size, "weights", &err), &err);
    emb = esp_st_find(st, "model.language_model.embed_tokens.weight");
    assert_non_null(emb);
    copy = malloc(weights.size);
    memcpy(copy, weights.data, weights.size);
    memset(copy + (emb->data - weights.data) + token * 512, 0xff, 512); /* bf16 NaN */
    test_write(dir, "config.json", config.data, config.size);
    test_write(dir, "model.safetensors", copy, weights.size);
    free(copy);
    esp_st_close(st);
    esp_map_close(&config);
    esp_map_close(&weights);
    return dir;
}

static void test_nan_row(void **state)
{
    esp_token healthy[] = {1, 2, 3}, ill[] = {1, 77, 3}, alone[5];
    esp_model *m;
    esp_error err;

    (void)state;
    test_ok(esp_model_open(&m, poisoned_model(77), NULL, &err), &err);
    for (int round = 0; round < 2; round++) { /* first alone, then beside a row of NaN */
        int n_ill = 0, n_fine = 0;
        bool done = false;
        esp_engine *g;
        esp_seq *a, *b = NULL;

        test_ok(
            esp_engine_open(&g, m, &(esp_engine_opts){.context = 64, .max_seqs = 2, .kv_tokens = 512}, &err),
            &err);
        if (round) {
            test_ok(esp_seq_open(&b, g, NULL, &err), &err);
            test_ok(esp_seq_append(b, ill, 3, &err), &err);
            test_ok(esp_seq_generate(b, 5, &err), &err);
        }
        test_ok(esp_seq_open(&a, g, &(esp_seq_opts){.sampling = {.ignore_end = true}}, &err), &err);
        test_ok(esp_seq_append(a, healthy, 3, &err), &err);
        test_ok(esp_seq_generate(a, 5, &err), &err);
        while (!done) {
            esp_event e[4];
            size_t n;

            test_ok(esp_engine_step(g, e, 4, &n, &err), &err);
            for (size_t i = 0; i < n; i++) {
                if (e[i].seq == b) {
                    assert_int_equal(e[i].finish, ESP_FINISH_FAILED);
                    assert_non_null(strstr(e[i].message, "logit"));
                    n_ill++;
                    continue;
                }
                if (e[i].finish == ESP_FINISH_FAILED)
                    fail_msg("the healthy row failed: %s", e[i].message);
                if (round == 0)
                    alone[n_fine] = e[i].token;
                assert_int_equal(e[i].token, alone[n_fine]);
                n_fine++;
                done |= e[i].finish != ESP_FINISH_NONE;
            }
        }
        assert_int_equal(n_ill, round);
        assert_int_equal(n_fine, 5);
        esp_seq_close(a);
        esp_seq_close(b);
        esp_engine_close(g);
    }
    esp_model_close(m);
}

/* Open, plan, generate and close with allocation n failing; true when nothing had to fail any more. */
static bool torture(int64_t n, const char *folder)
{
    esp_model *m = NULL;
    esp_engine *g = NULL;
    esp_seq *s = NULL, *f = NULL;
    esp_token t[] = {1, 2, 3};
    esp_error err;
    esp_status st;

    esp_mem_fail_at(n);
    st = esp_model_open(&m, test_path(folder), &(esp_model_opts){.threads = 1}, &err);
    if (st == ESP_OK)
        st = esp_engine_open(&g, m, &(esp_engine_opts){.context = 64, .max_seqs = 2}, &err);
    if (st == ESP_OK)
        st = esp_seq_open(&s, g, NULL, &err);
    if (st == ESP_OK)
        st = esp_seq_append(s, t, 3, &err);
    if (st == ESP_OK)
        st = esp_seq_fork(&f, s, NULL, &err);
    if (st == ESP_OK)
        st = esp_seq_generate(s, 2, &err);
    for (int i = 0; st == ESP_OK && i < 2; i++) {
        esp_event e[4];
        size_t got;

        st = esp_engine_step(g, e, 4, &got, &err);
    }
    esp_mem_fail_at(-1);
    if (st != ESP_OK) {
        if (st != ESP_ENOMEM)
            fail_msg("allocation %lld: %s: %s", (long long)n, esp_status_name(st), err.message);
        assert_true(strlen(err.message) > 0);
    }
    esp_seq_close(f);
    esp_seq_close(s);
    esp_engine_close(g);
    esp_model_close(m);
    return st == ESP_OK;
}

static void test_out_of_memory(void **state)
{
    int64_t n = 0;

    (void)state;
    while (!torture(n, "models/tiny-text"))
        n++;
    assert_true(n > 50); /* it did fail on the way */
}

static void test_missing_model(void **state)
{
    esp_model *m = NULL;
    esp_error err;

    (void)state;
    test_refused(esp_model_open(&m, "/nonexistent/model", NULL, &err), ESP_ENOTFOUND, &err,
                 "/nonexistent/model");
    test_refused(esp_model_open(&m, test_path("models/demo/config.json"), NULL, &err), ESP_EINVAL, &err,
                 "not a directory");
    test_refused(esp_model_open(&m, test_path("models/demo"), &(esp_model_opts){.cpu_level = "mmx"}, &err),
                 ESP_EINVAL, &err, "mmx");
    test_refused(esp_model_synthetic(&m, "qwen9", "bf16", 1, NULL, &err), ESP_ENOTFOUND, &err, "qwen3.5-4b");
    test_refused(esp_model_synthetic(&m, "qwen3.5-0.8b", "int3", 1, NULL, &err), ESP_EINVAL, &err, "affine4");
    test_refused(esp_model_open(&m, test_path("models/demo"), &(esp_model_opts){.expand = "affine8"}, &err),
                 ESP_EINVAL, &err, "trellis-coded");
    test_refused(esp_model_open(&m, test_path("models/demo"), &(esp_model_opts){.expand = "affine9"}, &err),
                 ESP_EINVAL, &err, "affine9");
    assert_null(m);
}

/* A shape without weights takes no memory worth speaking of, is planned for like one with them, and is not
 * run. */
static void test_shape_only(void **state)
{
    const esp_model_opts shape = {.shape_only = true};
    struct esp_memory_plan p;
    esp_model *m = NULL;
    esp_engine *g = NULL;
    esp_model_info info;
    esp_error err;

    (void)state;
    test_ok(esp_model_synthetic(&m, "qwen3.5-27b", "bf16", 1, &shape, &err), &err);
    esp_model_describe(m, &info);
    assert_true(info.weight_bytes > 50000000000u);
    test_ok(esp_engine_plan(m, NULL, &p, &err), &err);
    assert_int_equal(p.weights, info.weight_bytes);
    test_refused(esp_engine_open(&g, m, NULL, &err), ESP_ESTATE, &err, "shape_only");
    esp_model_close(m);
    m = NULL;
    test_refused(esp_model_open(&m, test_path("models/demo"), &shape, &err), ESP_EINVAL, &err, "shape_only");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shape_only),     cmocka_unit_test(test_options),
        cmocka_unit_test(test_sequence_calls), cmocka_unit_test(test_ends),
        cmocka_unit_test(test_full_pool),      cmocka_unit_test(test_nan_row),
        cmocka_unit_test(test_missing_model),  cmocka_unit_test(test_out_of_memory),
    };
    esp_error err;
    int failed;

    if (esp_model_open(&model, test_path("models/tiny-text"), NULL, &err) != ESP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    esp_model_close(model);
    return failed;
}
