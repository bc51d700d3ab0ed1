/*
 * A head with more rows than the tokenizer has ids, as every published checkpoint has: the surplus is never
 * chosen, even where its logits are the largest, a bias asks for it, or the hole lies between defined ids.
 * Trap 34, field case 12.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "espalier/espalier.h"
#include "support/compare.h"

enum { VOCAB = 400, DEFINED = 317, HOLE = 312, N_NEW = 40, END_OF_TEXT = 306, END_OF_MESSAGE = 308 };

static esp_model *model;

/* As published: the end of text in the text part, the end of a message at the top. */
static void two_ends(json_t *config, json_t *text)
{
    json_object_set_new(text, "eos_token_id", json_integer(END_OF_TEXT));
    json_object_set_new(config, "eos_token_id", json_integer(END_OF_MESSAGE));
}

/* The small tokenizer without its added token HOLE, beside a model whose undefined rows shout. */
static const char *make_model(void)
{
    struct naive_shape s = mf_shape();
    json_t *tok = test_json("tests/data/cases/tok_mini.tokenizer.json"),
           *added = json_object_get(tok, "added_tokens");
    struct mf_model m;
    const char *dir;
    char *text;

    s.vocab = VOCAB;
    mf_make(&m, &s, false, 1);
    for (size_t i = 0; i < (size_t)VOCAB * s.hidden; i++)
        if (i / s.hidden >= DEFINED || i / s.hidden == HOLE)
            m.net.head[i] *= 8;
    dir = mf_write(&m, &(struct mf_form){.patch = two_ends});
    mf_free(&m);
    for (size_t i = 0; i < json_array_size(added); i++)
        if (json_integer_value(json_object_get(json_array_get(added, i), "id")) == HOLE)
            json_array_remove(added, i--);
    text = json_dumps(tok, 0);
    test_write(dir, "tokenizer.json", text, strlen(text));
    free(text);
    json_decref(tok);
    return dir;
}

static bool defined(esp_token t)
{
    return t >= 0 && t < DEFINED && t != HOLE;
}

/* How many of the n prompt positions the plain argmax would answer with an undefined id. */
static size_t undefined_maxima(esp_engine *g, const esp_token *prompt, size_t n)
{
    float *logits = calloc(n * VOCAB, sizeof *logits);
    size_t count = 0;
    esp_seq *s;
    esp_error err;

    test_ok(esp_seq_open(&s, g, NULL, &err), &err);
    test_ok(esp_seq_logits(s, prompt, n, logits, &err), &err);
    for (size_t i = 0; i < n; i++) {
        esp_token best = 0;

        for (esp_token t = 1; t < VOCAB; t++)
            if (logits[i * VOCAB + (size_t)t] > logits[i * VOCAB + (size_t)best])
                best = t;
        count += !defined(best);
    }
    esp_seq_close(s);
    free(logits);
    return count;
}

static void check_sampling(esp_engine *g, const esp_sampling *sampling)
{
    const esp_token prompt[] = {10, 20, 30, 40, 50};
    esp_seq_opts o = {.sampling = *sampling, .logprobs = true, .top_logprobs = 5};
    uint32_t got = 0;
    bool done = false;
    esp_seq *s;
    esp_error err;

    o.sampling.ignore_end = true;
    test_ok(esp_seq_open(&s, g, &o, &err), &err);
    test_ok(esp_seq_append(s, prompt, 5, &err), &err);
    test_ok(esp_seq_generate(s, N_NEW, &err), &err);
    while (!done) {
        esp_event e[4];
        size_t n, bytes;

        test_ok(esp_engine_step(g, e, 4, &n, &err), &err);
        for (size_t i = 0; i < n; i++) {
            if (e[i].finish == ESP_FINISH_FAILED)
                fail_msg("%s", e[i].message);
            done |= e[i].finish != ESP_FINISH_NONE;
            if (e[i].token < 0)
                continue;
            if (!defined(e[i].token))
                fail_msg("token %d was sampled", (int)e[i].token);
            test_ok(esp_token_bytes(model, e[i].token, NULL, 0, &bytes, &err), &err);
            assert_true(bytes > 0);
            assert_true(isfinite(e[i].logprob));
            got++;
        }
    }
    assert_int_equal(got, N_NEW);
    esp_seq_close(s);
}

static void trap_34_undefined_ids(void **state)
{
    static const esp_logit_bias bias[] = {{DEFINED, 100}, {VOCAB - 1, 50}, {HOLE, 100}};
    static const esp_sampling ways[] = {
        {.temperature = 0},
        {.temperature = 1},
        {.temperature = 5, .seed = 2},
        {.temperature = 1, .top_k = 1},
        {.temperature = 1, .top_p = 0.1f, .seed = 3},
        {.temperature = 2, .min_p = 0.5f},
        {.temperature = 1, .repetition_penalty = 1.3f, .presence_penalty = 1, .frequency_penalty = 1},
        {.temperature = 0, .bias = bias, .n_bias = 3},
        {.temperature = 1, .bias = bias, .n_bias = 3, .seed = 4},
    };
    const esp_token prompt[] = {10, 20, 30, 40, 50, 60, 70, 80};
    esp_engine *g;
    esp_error err;

    (void)state;
    test_ok(esp_engine_open(&g, model, &(esp_engine_opts){.context = 128, .max_seqs = 1}, &err), &err);
    assert_true(undefined_maxima(g, prompt, 8) >=
                7); /* without a mask nearly every token would be undefined */
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        check_sampling(g, &ways[i]);
    esp_engine_close(g);
}

static void undefined_ids_have_no_bytes(void **state)
{
    esp_model_info info;
    char text[16];
    esp_error err;
    size_t n;

    (void)state;
    esp_model_describe(model, &info);
    assert_int_equal(info.n_vocab, VOCAB);
    assert_in_range(info.n_token, DEFINED - 1, DEFINED); /* with or without the hole */
    for (esp_token t = 0; t < VOCAB; t++)
        if (!defined(t)) {
            n = 9;
            test_ok(esp_token_bytes(model, t, text, sizeof text, &n, &err), &err);
            assert_int_equal(n, 0);
            assert_false(esp_token_is_end(model, t));
        }
}

/* A model that wants to say t at once: how its generation ends, and after how many tokens. */
static esp_finish ending(esp_engine *g, esp_token t, uint32_t *emitted)
{
    const esp_logit_bias bias = {t, 100};
    const esp_seq_opts o = {.sampling = {.bias = &bias, .n_bias = 1}};
    const esp_token prompt[] = {10, 20, 30};
    esp_finish finish = ESP_FINISH_NONE;
    esp_seq *s;
    esp_error err;

    *emitted = 0;
    test_ok(esp_seq_open(&s, g, &o, &err), &err);
    test_ok(esp_seq_append(s, prompt, 3, &err), &err);
    test_ok(esp_seq_generate(s, 3, &err), &err);
    while (finish == ESP_FINISH_NONE) {
        esp_event e[2];
        size_t n;

        test_ok(esp_engine_step(g, e, 2, &n, &err), &err);
        for (size_t i = 0; i < n; i++) {
            *emitted += e[i].token >= 0;
            finish = e[i].finish;
        }
    }
    esp_seq_close(s);
    return finish;
}

static void both_end_tokens_end(void **state)
{
    static const esp_token ends[] = {END_OF_TEXT, END_OF_MESSAGE};
    esp_engine *g;
    uint32_t emitted;
    esp_error err;

    (void)state;
    test_ok(esp_engine_open(&g, model, &(esp_engine_opts){.context = 64, .max_seqs = 1}, &err), &err);
    for (int i = 0; i < 2; i++) {
        assert_true(esp_token_is_end(model, ends[i]));
        assert_int_equal(ending(g, ends[i], &emitted), ESP_FINISH_END);
        assert_int_equal(emitted, 0);
    }
    assert_false(esp_token_is_end(model, 307));
    assert_int_equal(ending(g, 307, &emitted), ESP_FINISH_LENGTH);
    assert_int_equal(emitted, 3);
    esp_engine_close(g);
}

static int open_model(void **state)
{
    esp_error err;

    (void)state;
    test_ok(esp_model_open(&model, make_model(), NULL, &err), &err);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    esp_model_close(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trap_34_undefined_ids),
        cmocka_unit_test(undefined_ids_have_no_bytes),
        cmocka_unit_test(both_end_tokens_end),
    };

    return cmocka_run_group_tests(tests, open_model, close_model);
}
