/*
 * The bundled demo model through the public header against its reference values: top-16 logits at every
 * position, last logits, all greedy continuations, and the validation loss with both KV types and with every
 * activation precision.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "espalier/espalier.h"
#include "io/safetensors.h"
#include "support/net.h"
#include "support/npy.h"

static esp_model *model;
static esp_model_info info;
static struct esp_st_file *golden;
static json_t *goldens;

static esp_engine *open_engine(const char *act, const char *kv)
{
    esp_engine_opts o = {
        .context = 1024, .max_seqs = 2, .act = act, .kv = kv, .device = getenv("ESPALIER_TEST_DEVICE")};
    esp_engine *g;
    esp_error err;

    test_ok(esp_engine_open(&g, model, &o, &err), &err);
    return g;
}

static const struct esp_st_tensor *tensor(const char *key, const char *part)
{
    char name[96];
    const struct esp_st_tensor *t;

    snprintf(name, sizeof name, "%s.%s", key, part);
    t = esp_st_find(golden, name);
    if (!t)
        fail_msg("no golden tensor %s", name);
    return t;
}

static void close_to(const char *key, size_t row, float got, float want, double tol)
{
    if (!(fabs((double)got - want) <= tol))
        fail_msg("%s, row %zu: logit %g instead of %g", key, row, got, want);
}

static void check_logits(esp_engine *g, const char *key)
{
    const struct esp_st_tensor *ids = tensor(key, "ids"), *top = tensor(key, "top_ids");
    const float *top_logits = (const void *)tensor(key, "top_logits")->data;
    const float *last = (const void *)tensor(key, "last_logits")->data;
    const int32_t *top_ids = (const void *)top->data;
    size_t n = ids->shape[0], n_vocab = info.n_vocab;
    float *logits = malloc(n * n_vocab * sizeof *logits);
    esp_seq *s;
    esp_error err;

    test_ok(esp_seq_open(&s, g, NULL, &err), &err);
    test_ok(esp_seq_logits(s, (const esp_token *)(const void *)ids->data, n, logits, &err), &err);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < 16; j++)
            close_to(key, i, logits[i * n_vocab + (size_t)top_ids[i * 16 + j]], top_logits[i * 16 + j], 2e-3);
    for (size_t j = 0; j < n_vocab; j++)
        close_to(key, n - 1, logits[(n - 1) * n_vocab + j], last[j], 2e-3);
    free(logits);
    esp_seq_close(s);
}

/* Greedy continuation through steps; the reference list ends with the end token where the model stopped. */
static void check_greedy(esp_engine *g, const char *key, const json_t *entry)
{
    const json_t *ids = json_object_get(entry, "ids"), *want = json_object_get(entry, "output_ids");
    size_t n_want = json_array_size(want), got = 0;
    bool done = false;
    esp_seq *s;
    esp_error err;

    test_ok(esp_seq_open(&s, g, NULL, &err), &err);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        esp_token t = (esp_token)json_integer_value(json_array_get(ids, i));

        test_ok(esp_seq_append(s, &t, 1, &err), &err);
    }
    test_ok(esp_seq_generate(s, n_want, &err), &err);
    while (!done) {
        esp_event e[4];
        size_t n;

        test_ok(esp_engine_step(g, e, 4, &n, &err), &err);
        for (size_t i = 0; i < n; i++) {
            if (e[i].finish == ESP_FINISH_FAILED)
                fail_msg("%s: %s", key, e[i].message);
            if (e[i].token >= 0) {
                assert_int_equal(e[i].token, json_integer_value(json_array_get(want, got)));
                got++;
            }
            if (e[i].finish == ESP_FINISH_END) {
                assert_true(
                    esp_token_is_end(model, (esp_token)json_integer_value(json_array_get(want, got))));
                got++;
            }
            done |= e[i].finish != ESP_FINISH_NONE;
        }
    }
    assert_int_equal(got, n_want);
    esp_seq_close(s);
}

static void test_prompts(void **state)
{
    esp_engine *g = open_engine("f32", "f32");
    const char *key;
    json_t *entry;
    int n = 0;

    (void)state;
    json_object_foreach(json_object_get(goldens, "greedy"), key, entry)
    {
        if (strncmp(key, "base.", 5) != 0)
            continue;
        check_logits(g, key);
        check_greedy(g, key, entry);
        n++;
    }
    assert_int_equal(n, 7);
    esp_engine_close(g);
}

/* Mean negative log-likelihood in nats over rows [0, n_row) of the validation ids. */
static double validation_loss(const char *act, const char *kv, uint32_t n_row)
{
    uint32_t rows, cols;
    int32_t *ids = test_npy(test_path("models/demo-golden/val.npy"), &rows, &cols);
    esp_engine *g = open_engine(act, kv);
    size_t n_vocab = info.n_vocab;
    float *logits = malloc(cols * n_vocab * sizeof *logits);
    double total = 0;
    esp_error err;

    n_row = n_row ? n_row : rows;
    for (uint32_t r = 0; r < n_row; r++) {
        const int32_t *row = ids + (size_t)r * cols;
        esp_seq *s;

        test_ok(esp_seq_open(&s, g, NULL, &err), &err);
        test_ok(esp_seq_logits(s, row, cols - 1, logits, &err), &err);
        for (uint32_t i = 0; i + 1 < cols; i++) {
            const float *l = logits + i * n_vocab;
            double sum = 0, max = -INFINITY;

            for (size_t j = 0; j < n_vocab; j++)
                max = l[j] > max ? l[j] : max;
            for (size_t j = 0; j < n_vocab; j++)
                sum += exp(l[j] - max);
            total -= (l[row[i + 1]] - max - log(sum)) / (cols - 1);
        }
        esp_seq_close(s);
    }
    free(logits);
    free(ids);
    esp_engine_close(g);
    return total / n_row;
}

static double reference_loss(uint32_t n_row)
{
    const json_t *list = json_object_get(goldens, "val_nll_per_sequence");
    double total = 0;

    for (uint32_t i = 0; i < n_row; i++)
        total += json_number_value(json_array_get(list, i));
    return total / n_row;
}

static void check_loss(const char *act, const char *kv, uint32_t n_row, double tol)
{
    double got = validation_loss(act, kv, n_row), want = reference_loss(n_row);

    printf("%u rows, act %s, kv %s: %.6f nats, reference %.6f\n", n_row, act, kv, got, want);
    if (!(fabs(got - want) <= tol))
        fail_msg("act %s, kv %s: %.6f nats instead of %.6f", act, kv, got, want);
}

static void test_loss(void **state)
{
    const char *level = getenv("ESPALIER_CPU");
    uint32_t n_row = TEST_SANITIZED || (level && strcmp(level, "ref") == 0)
                         ? 1
                         : 4; /* all 64 run in the perplexity test of the program */

    (void)state;
    check_loss("f32", "f32", n_row, 0.0005);
    check_loss("f32", "bf16", n_row, 0.003);
    check_loss("bf16", "f32", n_row, 0.003);
    check_loss("auto", "bf16", n_row, 0.003);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_prompts), cmocka_unit_test(test_loss)};
    esp_error err;
    int failed;

    test_need_device();
    if (esp_model_open(&model, test_path("models/demo"), &(esp_model_opts){.threads = 2}, &err) != ESP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    esp_model_describe(model, &info);
    goldens = test_json("models/demo-golden/goldens.json");
    if (esp_st_open(&golden, test_path("models/demo-golden/goldens.safetensors"), NULL) != ESP_OK)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    esp_st_close(golden);
    json_decref(goldens);
    esp_model_close(model);
    return failed;
}
