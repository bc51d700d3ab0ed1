/*
 * Schemas at their bounds: hostile ones end in time, long counts are exact, every allocation may fail. And
 * forms joined with calls: a text is one or the other.
 *
 * SPDX-License-Identifier: MIT
 */
#include "help.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/strbuf.h"

static struct esp_vocab *bytes;

static void hostile_schemas_end_in_time(void **state)
{
    struct esp_grammar *g = NULL;
    struct esp_strbuf b;
    esp_error err;

    (void)state;
    esp_strbuf_init(&b, 1 << 20);
    for (int i = 0; i < 70; i++)
        esp_strbuf_puts(&b, "{\"items\":");
    esp_strbuf_puts(&b, "{}");
    for (int i = 0; i < 70; i++)
        esp_strbuf_puts(&b, "}");
    test_refused(compile_schema(&g, bytes, b.data, 0, &err), ESP_ENOFIT, &err, "nested 71 deep");

    esp_strbuf_clear(&b);
    esp_strbuf_puts(&b, "{\"enum\":[0");
    for (int i = 1; i <= 10000; i++)
        esp_strbuf_printf(&b, ",%d", i);
    esp_strbuf_puts(&b, "]}");
    test_refused(compile_schema(&g, bytes, b.data, 0, &err), ESP_ENOFIT, &err, "10001 values");

    esp_strbuf_clear(&b);
    esp_strbuf_puts(&b, "{\"enum\":[\"value number 0\"");
    for (int i = 1; i < 10000; i++)
        esp_strbuf_printf(&b, ",\"value number %d\"", i);
    esp_strbuf_puts(&b, "]}");
    test_ok(compile_schema(&g, bytes, b.data, 0, &err), &err);
    assert_int_equal(judge(g, "\"value number 9999\"", 19), 1);
    assert_int_equal(judge(g, "\"value number 10000\"", 20), -1);
    esp_grammar_release(g);
    g = NULL;

    test_refused(
        compile_schema(&g, bytes, "{\"type\":\"string\",\"pattern\":\"^(a|b)*a(a|b){24}$\"}", 0, &err),
        ESP_ENOFIT, &err, "too large");
    test_ok(compile_schema(&g, bytes, "{\"type\":\"string\",\"pattern\":\"^((((a{99}){99}){99}){99})$\"}", 0,
                           &err),
            &err);
    esp_grammar_release(g);
    esp_strbuf_free(&b);
}

static void long_strings_are_counted(void **state)
{
    struct esp_grammar *g = NULL;
    esp_error err;
    char *text = esp_alloc(70010);

    (void)state;
    assert_non_null(text);
    test_ok(
        compile_schema(&g, bytes, "{\"type\":\"string\",\"minLength\":1000,\"maxLength\":65535}", 0, &err),
        &err);
    memset(text, 'x', 70010);
    text[0] = '"';
    text[1000] = '"';
    assert_int_equal(judge(g, text, 1001), -1);
    text[1000] = 'x';
    text[1001] = '"';
    assert_int_equal(judge(g, text, 1002), 1);
    text[1001] = 'x';
    text[65536] = '"';
    assert_int_equal(judge(g, text, 65537), 1);
    text[65536] = 'x';
    text[65537] = '"';
    assert_int_equal(judge(g, text, 65538), -1);
    esp_free(text);
    esp_grammar_release(g);
}

static void many_strings_fit(void **state)
{
    struct esp_grammar *g = NULL;
    struct esp_strbuf b;
    esp_error err;

    (void)state;
    esp_strbuf_init(&b, 1 << 16);
    esp_strbuf_puts(&b, "{\"type\":\"object\",\"properties\":{\"p\":true");
    for (int i = 0; i < 24; i++)
        esp_strbuf_printf(&b, ",\"p%d\":{\"type\":\"string\",\"maxLength\":%d}", i, 200 + i);
    esp_strbuf_puts(&b, ",\"q\":{\"type\":\"string\",\"pattern\":\"^[ab]+$\",\"maxLength\":900}}}");
    test_ok(compile_schema(&g, bytes, b.data, 0, &err), &err);
    assert_int_equal(judge(g, "{\"p3\":\"x\",\"q\":\"abba\"}", 21), 1);
    assert_int_equal(judge(g, "{\"q\":\"abbc\"}", 12), -1);
    esp_grammar_release(g);
    esp_strbuf_free(&b);
}

static void nesting_stops_at_the_bound_and_closes(void **state)
{
    struct esp_grammar *g = NULL;
    struct esp_matcher *m = NULL;
    esp_error err;
    int n = 0;

    (void)state;
    test_ok(esp_grammar_schema(&g, bytes, NULL, ESP_SCHEMA_COMPACT, &err), &err);
    test_ok(esp_matcher_open(&m, g, NULL, &err), &err);
    for (const char *s = "{\"a\":"; *s; s++)
        test_ok(esp_matcher_accept(m, (unsigned char)*s, &err), &err);
    for (;;) {
        uint64_t bits[4] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};

        test_ok(esp_matcher_mask(m, bits, 4, &err), &err);
        if (!has(bits, '['))
            break;
        test_ok(esp_matcher_accept(m, '[', &err), &err);
        n++;
    }
    assert_in_range(n, 40, 127);
    test_refused(esp_matcher_accept(m, '[', &err), ESP_EINVAL, &err, "may not come");
    test_ok(esp_matcher_accept(m, ']', &err), &err); /* the innermost stays empty */
    while (--n)
        test_ok(esp_matcher_accept(m, ']', &err), &err);
    test_ok(esp_matcher_accept(m, '}', &err), &err);
    assert_int_equal(esp_matcher_state(m), ESP_MATCH_ENDED);
    esp_matcher_close(m);
    esp_grammar_release(g);
}

static void every_allocation_may_fail(void **state)
{
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\","
                                 "\"pattern\":\"^a+$\",\"maxLength\":4},\"b\":{\"enum\":["
                                 "1,2]}},\"additionalProperties\":{\"type\":\"integer\",\"minimum\":3}}";
    struct esp_grammar *g = NULL;
    esp_error err;
    json_t *j = json_loads(schema, 0, NULL);
    int64_t n = 0;

    (void)state;
    for (esp_status s = ESP_ENOMEM; s != ESP_OK && n < 20000; n++) {
        esp_mem_fail_at(n);
        s = esp_grammar_schema(&g, bytes, j, 0, &err);
        esp_mem_fail_at(-1);
        if (s != ESP_OK)
            assert_int_equal(s, ESP_ENOMEM);
    }
    assert_in_range(n, 30, 20000);
    esp_grammar_release(g);
    json_decref(j);
}

static void a_form_or_calls(void **state)
{
    static const char *const texts[] = {"yes", "no"};
    json_t *parameters =
               json_pack("{s:s,s:{s:{s:s}}}", "type", "object", "properties", "n", "type", "integer"),
           *schema = json_pack("{s:s,s:{s:{s:s}},s:[s]}", "type", "object", "properties", "a", "type",
                               "integer", "required", "a");
    const struct esp_tool tool = {.name = "f", .parameters = parameters};
    const struct esp_grammar_calls calls = {&tool, 1, ESP_TOOLS_LEAD | ESP_TOOLS_SEVERAL};
    const struct esp_grammar_form forms[] = {
        {.kind = ESP_GRAMMAR_SCHEMA, .schema = schema, .flags = ESP_SCHEMA_LEAD},
        {.kind = ESP_GRAMMAR_CHOICE, .choice = texts, .n_choice = 2},
        {.kind = ESP_GRAMMAR_REGEX, .text = "a+b", .len = 3},
        {.kind = ESP_GRAMMAR_GBNF, .text = "root ::= item item\nitem ::= \"x\" item?", .len = 37}};
    static const char *const good[] = {"{\"a\": 1}", "yes", "aab", "xxx"}, *const bad[] = {"{}", "maybe", "a",
                                                                                           "x"};
    static const char call[] =
        "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
                      other[] = "<tool_call>\n<function=g>\n</function>\n</tool_call>";
    esp_error err;

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct esp_grammar *g = NULL;
        char both[400];

        test_ok(esp_grammar_either(&g, bytes, &forms[i], &calls, &err), &err);
        assert_int_equal(judge(g, good[i], strlen(good[i])), 1);
        assert_int_not_equal(judge(g, bad[i], strlen(bad[i])), 1);
        assert_int_equal(judge(g, call, strlen(call)), 1);
        assert_int_equal(judge(g, other, strlen(other)), -1);
        snprintf(both, sizeof both, "\n\n%s\n%s", call, call);
        assert_int_equal(judge(g, both, strlen(both)), 1);
        snprintf(both, sizeof both, "%s%s", good[i], call); /* one or the other */
        assert_int_equal(judge(g, both, strlen(both)), -1);
        esp_grammar_release(g);
    }
    {
        struct esp_grammar *g = NULL;
        const struct esp_grammar_form wrong = {.kind = ESP_GRAMMAR_REGEX, .text = "(", .len = 1};
        esp_status s = ESP_ENOMEM;
        int64_t n = 0;

        test_refused(esp_grammar_either(&g, bytes, &wrong, &calls, &err), ESP_EFORMAT, &err, "expression");
        for (; s != ESP_OK && n < 20000; n++) {
            esp_mem_fail_at(n);
            s = esp_grammar_either(&g, bytes, &forms[0], &calls, &err);
            esp_mem_fail_at(-1);
            if (s != ESP_OK)
                assert_int_equal(s, ESP_ENOMEM);
        }
        assert_in_range(n, 30, 20000);
        esp_grammar_release(g);
    }
    json_decref(parameters);
    json_decref(schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_schemas_end_in_time),
        cmocka_unit_test(long_strings_are_counted),
        cmocka_unit_test(many_strings_fit),
        cmocka_unit_test(nesting_stops_at_the_bound_and_closes),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_form_or_calls),
    };
    int r;

    bytes = open_bytes();
    r = cmocka_run_group_tests(tests, NULL, NULL);
    esp_vocab_destroy(bytes);
    return r;
}
