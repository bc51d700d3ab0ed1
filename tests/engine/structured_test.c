/*
 * The demo model under grammars: greedy answers are documents of their schema, the same with every drafter,
 * behind thinking and without; calls of tools are well formed; a model that would never end its text ends it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/strbuf.h"
#include "engine/structured.h"

static esp_model *model;
static struct esp_vocab *vocab;

struct answer {
    char text[4096];
    size_t len;
    esp_finish finish;
    esp_token ids[512];
    size_t n;
};

static void add_token(struct answer *a, esp_token t)
{
    esp_error err;
    size_t n = 0;

    assert_true(a->n < 512);
    a->ids[a->n++] = t;
    test_ok(esp_token_bytes(model, t, a->text + a->len, sizeof a->text - a->len - 1, &n, &err), &err);
    a->len += n;
    assert_true(a->len < sizeof a->text - 1);
    a->text[a->len] = 0;
}

static esp_engine *open_engine(esp_spec spec)
{
    const esp_engine_opts o = {
        .context = 1024, .max_seqs = 2, .act = "f32", .spec = spec, .spec_always = true};
    esp_engine *g;
    esp_error err;

    test_ok(esp_engine_open(&g, model, &o, &err), &err);
    return g;
}

struct ask {
    const char *messages, *tools, *args;
    struct esp_grammar *g;
    const struct esp_matcher_opts *o;
    uint32_t most;
    float temperature;
};

static void generate(esp_engine *g, const struct ask *q, struct answer *a)
{
    const esp_chat_opts chat = {.tools_json = q->tools, .template_args_json = q->args};
    const esp_seq_opts so = {.sampling = {.temperature = q->temperature, .top_p = 1, .seed = 3}};
    struct esp_constraint c;
    esp_token ids[900];
    size_t n = 0;
    esp_error err;
    esp_seq *s;

    memset(a, 0, sizeof *a);
    test_ok(esp_tokenize_chat(model, q->messages, &chat, ids, 900, &n, &err), &err);
    test_ok(esp_seq_open(&s, g, &so, &err), &err);
    test_ok(esp_seq_append(s, ids, n, &err), &err);
    if (q->g) {
        test_ok(esp_constraint_open(&c, q->g, q->o, &err), &err);
        test_ok(esp_seq_set_constraint(s, &c, &err), &err);
    }
    test_ok(esp_seq_generate(s, q->most, &err), &err);
    while (a->finish == ESP_FINISH_NONE) {
        esp_event e[64];
        size_t n_event = 0;

        test_ok(esp_engine_step(g, e, 64, &n_event, &err), &err);
        for (size_t i = 0; i < n_event; i++) {
            if (e[i].finish == ESP_FINISH_FAILED)
                fail_msg("%s behind \"%s\"", e[i].message, a->text);
            if (e[i].token >= 0)
                add_token(a, e[i].token);
            a->finish = e[i].finish;
        }
    }
    esp_seq_close(s);
}

static const char *const schemas[] = {
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"age\":{\"type\":"
    "\"integer\","
    "\"minimum\":0,\"maximum\":120},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\"]},"
    "\"maxItems\":3}},"
    "\"required\":[\"name\",\"age\"]}",
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9},\"minItems\":3,"
    "\"maxItems\":4}",
    "{\"enum\":[\"yes\",\"no\",null]}",
    "{\"type\":\"object\",\"properties\":{\"when\":{\"type\":\"string\",\"format\":\"date-time\"},\"id\":{"
    "\"type\":\"string\","
    "\"format\":\"uuid\"},\"ok\":{\"type\":\"boolean\"}},\"required\":[\"when\",\"id\",\"ok\"]}",
    "{\"$ref\":\"#/$defs/"
    "t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"w\":{\"type\":\"string\",\"pattern\":"
    "\"^[a-z]{1,5}$\"},\"n\":{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#/$defs/"
    "t\"}]}},\"required\":[\"w\",\"n\"]}}}",
};

static const char question[] = "[{\"role\":\"user\",\"content\":\"Repeat: the old man and the sea\"}]";

static void answers_satisfy_their_schema(void **state)
{
    static const esp_spec specs[] = {ESP_SPEC_OFF, ESP_SPEC_MTP, ESP_SPEC_NGRAM};
    static struct answer first[2 * sizeof schemas / sizeof schemas[0]];
    esp_error err;

    (void)state;
    for (size_t k = 0; k < 3; k++) {
        esp_engine *g = open_engine(specs[k]);

        for (size_t i = 0; i < 2 * sizeof schemas / sizeof schemas[0]; i++) {
            struct ask q = {.messages = question, .most = 160, .temperature = i % 2 ? 0.9f : 0};
            json_t *schema = NULL, *doc = NULL;
            struct answer a;

            test_ok(esp_json_parse(&schema, schemas[i / 2], strlen(schemas[i / 2]), "schema", 0, &err), &err);
            test_ok(esp_grammar_schema(&q.g, vocab, schema, 0, &err), &err);
            generate(g, &q, &a);
            if (k == 0)
                first[i] = a;
            else
                assert_memory_equal(first[i].ids, a.ids, sizeof a.ids);
            if (a.finish == ESP_FINISH_END) {
                test_ok(esp_json_parse(&doc, a.text, a.len, "answer", ESP_JSON_NO_DUPLICATES, &err), &err);
                json_decref(doc);
            } else {
                assert_int_equal(i / 2, 4); /* only the list without end may be cut */
            }
            if (k == 0)
                print_message("%s\n", a.text);
            esp_grammar_release(q.g);
            json_decref(schema);
        }
        esp_engine_close(g);
    }
}

static void thinking_comes_first_and_free(void **state)
{
    const struct esp_matcher_opts after = {.trigger_text = "</think>", .must_start = true};
    struct ask q = {.messages = "[{\"role\":\"user\",\"content\":\"Add 12 and 30.\"}]",
                    .args = "{\"enable_thinking\": true}",
                    .most = 200,
                    .o = &after};
    esp_engine *g = open_engine(ESP_SPEC_MTP);
    struct answer free_one, a;
    esp_error err;
    char *end;
    json_t *doc = NULL, *schema = json_loads(schemas[1], 0, NULL);

    (void)state;
    generate(g, &q, &free_one);
    test_ok(esp_grammar_schema(&q.g, vocab, schema, ESP_SCHEMA_LEAD, &err), &err);
    generate(g, &q, &a);
    print_message("%s\n", a.text);
    end = strstr(a.text, "</think>");
    assert_non_null(end);
    assert_memory_equal(a.text, free_one.text, (size_t)(end - a.text)); /* thought as without a grammar */
    assert_int_equal(a.finish, ESP_FINISH_END);
    end += strlen("</think>");
    test_ok(esp_json_parse(&doc, end, strlen(end), "answer", 0, &err), &err);
    assert_true(json_is_array(doc));
    json_decref(doc);
    json_decref(schema);
    esp_grammar_release(q.g);
    esp_engine_close(g);
}

static void tools_are_called_as_asked(void **state)
{
    static const char tools_text[] = "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\","
                                     "\"description\":\"Weather of a city\",\"parameters\":{"
                                     "\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\","
                                     "\"maxLength\":20},\"days\":{\"type\":\"integer\",\"minimum\":1,"
                                     "\"maximum\":7}},\"required\":[\"city\",\"days\"]}}}]";
    json_t *tools = json_loads(tools_text, 0, NULL);
    const json_t *f = json_object_get(json_array_get(tools, 0), "function");
    const struct esp_tool tool = {"get_weather", json_object_get(f, "parameters"), true};
    struct ask q = {
        .messages = "[{\"role\":\"user\",\"content\":\"Repeat: hello\"}]", .tools = tools_text, .most = 120};
    esp_engine *g = open_engine(ESP_SPEC_NGRAM);
    struct answer a;
    esp_error err;

    (void)state;
    test_ok(esp_grammar_tools(&q.g, vocab, &tool, 1, ESP_TOOLS_LEAD, &err), &err);
    generate(g, &q, &a);
    print_message("%s\n", a.text);
    assert_int_equal(a.finish, ESP_FINISH_END);
    assert_non_null(strstr(a.text, "<tool_call>\n<function=get_weather>\n<parameter=city>\n"));
    assert_non_null(strstr(a.text, "\n</parameter>\n<parameter=days>\n"));
    assert_string_equal(strstr(a.text, "</function>"), "</function>\n</tool_call>");
    esp_grammar_release(q.g);
    json_decref(tools);
    esp_engine_close(g);
}

static void a_text_without_end_is_ended(void **state)
{
    struct ask q = {.messages = question, .most = 100};
    esp_engine *g = open_engine(ESP_SPEC_OFF);
    struct answer a;
    esp_error err;

    (void)state;
    test_ok(esp_grammar_regex(&q.g, vocab, "[a-z ]{5,30}[.]", 15, &err), &err);
    generate(g, &q, &a);
    assert_int_equal(a.finish, ESP_FINISH_END);
    assert_in_range(a.len, 6, 31);
    assert_int_equal(a.text[a.len - 1], '.');
    esp_grammar_release(q.g);
    esp_engine_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_satisfy_their_schema),
        cmocka_unit_test(thinking_comes_first_and_free),
        cmocka_unit_test(tools_are_called_as_asked),
        cmocka_unit_test(a_text_without_end_is_ended),
    };
    esp_error err;
    int r;

    test_ok(esp_model_open(&model, test_path("models/demo"), NULL, &err), &err);
    test_ok(esp_model_vocab(&vocab, model, &err), &err);
    r = cmocka_run_group_tests(tests, NULL, NULL);
    esp_vocab_destroy(vocab);
    esp_model_close(model);
    return r;
}
