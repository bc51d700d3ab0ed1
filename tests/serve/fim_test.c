/*
 * Fill-in-the-middle: the field suffix of text completions, over the demo model with three of its tokens
 * called what code models call theirs. The text means nothing; the prompt must be the one that such models
 * know.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/map.h"
#include "base/mem.h"

#define TEXT "/v1/completions"

static struct server fim, plain;
static char folder[300];

/* Write the demo's file with every a[i] replaced by b[i], which is as long. */
static void rename_tokens(const char *name)
{
    static const char *const a[] = {"<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"},
                             *const b[] = {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"};
    char path[400], *text, *at;
    size_t len;
    esp_error err;
    FILE *f;

    snprintf(path, sizeof path, "models/demo/%s", name);
    test_ok(esp_read_file(&text, &len, test_path(path), 1 << 24, &err), &err);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "w");
    assert_non_null(f);
    for (at = text; *at;) {
        size_t i = 0;

        while (i < 3 && strncmp(at, a[i], strlen(a[i])) != 0)
            i++;
        if (i < 3)
            fputs(b[i], f);
        else
            fputc(*at, f);
        at += i < 3 ? strlen(a[i]) : 1;
    }
    assert_int_equal(fclose(f), 0);
    esp_free(text);
}

static int start(void **state)
{
    static const char *const same[] = {"config.json",
                                       "generation_config.json",
                                       "chat_template.jinja",
                                       "model.safetensors.index.json",
                                       "model-00001-of-00002.safetensors",
                                       "model-00002-of-00002.safetensors"};
    char from[400], to[400];

    (void)state;
    snprintf(folder, sizeof folder, "%s", test_tmpdir());
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        snprintf(from, sizeof from, "models/demo/%s", same[i]);
        snprintf(to, sizeof to, "%s/%s", folder, same[i]);
        assert_int_equal(symlink(test_path(from), to), 0);
    }
    rename_tokens("tokenizer.json");
    rename_tokens("tokenizer_config.json");
    server_init(&fim);
    fim.model = folder;
    server_start(&fim);
    server_init(&plain);
    server_start(&plain);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    server_stop(&fim);
    server_stop(&plain);
    return 0;
}

/* The same ids as the three tokens written out, in all forms of the prompt. */
static void test_same_as_written_out(void **state)
{
    static const char *const prompts[] = {"'def add(a, b):\\n    return '",
                                          "['def add(a, b):\\n    return ']"};
    struct reply out =
        client_postf(&fim, TEXT, 200,
                     "{'prompt':'<|fim_prefix|>def add(a, b):\\n    return <|fim_suffix|>\\nprint(add"
                     "(1, 2))<|fim_middle|>','max_tokens':12,'temperature':0,'ignore_eos':true}");
    struct reply tokens = client_postf(&fim, "/tokenize", 200, "{'content':'def add(a, b):\\n    return '}");
    char *ids = json_dumps(at(tokens.json, "tokens"), JSON_COMPACT);

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct reply r = client_postf(
            &fim, TEXT, 200,
            "{'prompt':%s,'suffix':'\\nprint(add(1, 2))','max_tokens':12,'temperature':0,'ignore_eos':true}",
            i < 2 ? prompts[i] : ids);

        assert_string_equal(text_at(r.json, "choices.0.text"), text_at(out.json, "choices.0.text"));
        assert_int_equal(int_at(r.json, "usage.prompt_tokens"), int_at(out.json, "usage.prompt_tokens"));
        reply_free(&r);
    }
    free(ids);
    reply_free(&tokens);
    reply_free(&out);
}

/* An empty suffix is one as well; a token of the next gap ends the answer and is no text. */
static void test_ends(void **state)
{
    struct reply tokens = client_postf(&fim, "/tokenize", 200, "{'content':'<|fim_prefix|>'}");
    const int64_t id = int_at(tokens.json, "tokens.0");
    struct reply r = client_postf(
        &fim, TEXT, 200, "{'prompt':'x','suffix':'','max_tokens':12,'temperature':0,'logit_bias':{'%d':100}}",
        (int)id);

    (void)state;
    assert_int_equal(int_at(tokens.json, "count"), 1);
    assert_string_equal(text_at(r.json, "choices.0.text"), "");
    assert_string_equal(text_at(r.json, "choices.0.finish_reason"), "stop");
    assert_int_equal(int_at(r.json, "usage.prompt_tokens"), 4);
    reply_free(&r);
    r = client_postf(&fim, "/v1/completions", 200, "{'prompt':'x','suffix':null,'max_tokens':1}");
    assert_int_equal(int_at(r.json, "usage.prompt_tokens"), 1);
    reply_free(&r);
    reply_free(&tokens);
}

static void test_refusals(void **state)
{
    struct reply r = client_postf(&plain, TEXT, 400, "{'prompt':'x','suffix':'y'}");

    (void)state;
    assert_string_equal(text_at(r.json, "error.param"), "suffix");
    assert_string_equal(text_at(r.json, "error.code"), "unsupported_value");
    reply_free(&r);
    r = client_postf(&fim, TEXT, 400, "{'prompt':'x','suffix':['y']}");
    assert_string_equal(text_at(r.json, "error.param"), "suffix");
    assert_string_equal(text_at(r.json, "error.code"), "invalid_type");
    reply_free(&r);
    r = client_postf(&fim, TEXT, 400, "{'prompt':'x','suffix':'y','echo':true}");
    assert_string_equal(text_at(r.json, "error.param"), "echo");
    reply_free(&r);
}

static void test_told(void **state)
{
    struct reply yes = client_do(&fim, "GET", "/v1/models", NULL, NULL),
                 no = client_do(&plain, "GET", "/v1/models", NULL, NULL);

    (void)state;
    assert_true(json_is_true(at(yes.json, "data.0.capabilities.fim")));
    assert_true(json_is_false(at(no.json, "data.0.capabilities.fim")));
    reply_free(&yes);
    reply_free(&no);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_written_out),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_told),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
