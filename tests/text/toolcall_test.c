/*
 * Turns taken apart: the shared cases and harder ones, each whole, byte by byte, and cut at every place; what
 * comes out must be the same message every time, and every call's arguments valid JSON.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/turn_help.h"

#include "base/mem.h"
#include "text/toolvalue.h"

static void expect_text(const struct esp_strbuf *b, const json_t *want)
{
    assert_string_equal(esp_strbuf_str(b), json_is_string(want) ? json_string_value(want) : "");
}

static void test_cases(void **state)
{
    json_t *file = test_json("tests/data/cases/tool_calls_qwen35.json"), *c;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        const json_t *want = json_object_get(c, "expect"), *calls = json_object_get(want, "tool_calls");
        struct how h = {json_string_value(json_object_get(c, "generated")), json_object_get(c, "tools"),
                        json_is_true(json_object_get(c, "prompt_ends_inside_think")),
                        strcmp(json_string_value(json_object_get(c, "generation_ended_by")), "stop") == 0};
        struct message m;
        size_t n = 0;

        parse_all(&m, &h);
        expect_text(&m.reasoning, json_object_get(want, "reasoning"));
        expect_text(&m.content, json_object_get(want, "content"));
        for (size_t k = 0; k < m.n_call; k++)
            n += m.ended[k];
        assert_int_equal(n, json_array_size(calls));
        for (size_t k = 0; k < n; k++) {
            const json_t *call = json_array_get(calls, k);
            json_t *args = json_loads(esp_strbuf_str(&m.args[k]), 0, NULL);

            assert_string_equal(esp_strbuf_str(&m.name[k]), json_string_value(json_object_get(call, "name")));
            assert_true(json_equal(args, json_object_get(call, "arguments")));
            json_decref(args);
        }
        message_free(&m);
    }
    json_decref(file);
}

#define CALL(params)      "<tool_call>\n<function=f>\n" params "</function>\n</tool_call>"
#define PARAM(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"

/* Text, whether the turn ended by itself, content, number of finished calls, arguments of the first,
 * warnings. */
static const struct {
    const char *text;
    bool ended;
    const char *content;
    size_t n_call;
    const char *args;
    size_t n_warning;
} odd[] = {
    {"a < b && c > d", true, "a < b && c > d", 0, NULL, 0},
    {"  spaces around  ", true, "spaces around  ", 0, NULL, 0},
    {"<tool", true, "<tool", 0, NULL, 0},
    {"see <function=", true, "see <function=", 0, NULL, 0},
    {"see <function=a b\nc", true, "see <function=a b\nc", 0, NULL, 0},
    {CALL(""), true, "", 1, "{}", 0},
    {"text\n\n" CALL(PARAM("s", "v")) "\nmore", true, "textmore", 1, "{\"s\":\"v\"}", 0},
    /* tags inside a value are part of it */
    {CALL(PARAM("s", "<a></parameter> <b>\n</parameter>\nx")), true, "", 1,
     "{\"s\":\"<a></parameter> <b>\\n</parameter>\\nx\"}", 0},
    {CALL(PARAM("s", "</function> </tool_call> and <tool_call>")), true, "", 1,
     "{\"s\":\"</function> </tool_call> and <tool_call>\"}", 0},
    {CALL(PARAM("s", "\nx\n")), true, "", 1, "{\"s\":\"\\nx\\n\"}", 0},
    {CALL(PARAM("s", "")), true, "", 1, "{\"s\":\"\"}", 0},
    {CALL("<parameter=s></parameter>"), true, "", 1, "{\"s\":\"\"}", 0},
    {CALL("<parameter = s >v</parameter>"), true, "", 1, "{\"s\":\"v\"}", 0},
    /* tags that are missing */
    {"<function=f>\n" PARAM("s", "v") "</function>", true, "", 1, "{\"s\":\"v\"}", 0},
    {"<tool_call>\n<function=f>\n" PARAM("s", "v") "</tool_call>", true, "", 1, "{\"s\":\"v\"}", 0},
    {"<tool_call>\n<function=f>\n" PARAM("s", "v"), true, "", 1, "{\"s\":\"v\"}", 1},
    {"<tool_call>\n<function=f>\n<parameter=s>\nv\n</parameter>", true, "", 1, "{\"s\":\"v\"}", 1},
    {"<tool_call>\n<function=f>\n<parameter=s>\nv", true, "", 1, "{\"s\":\"v\"}", 1},
    {"<tool_call>\n<function=f>\n<parameter=s>\nv\n</function>\n</tool_call>", true, "", 1, "{\"s\":\"v\"}",
     0},
    /* only </parameter> with markup behind it ends a value, but for closers at the end of the turn */
    {"<tool_call>\n<function=f>\n<parameter=s>\nv\n</tool_call>\n" CALL(""), true, "", 1,
     "{\"s\":\"v\\n</tool_call>\\n<tool_call>\\n<function=f>\"}", 0},
    {CALL(PARAM("s", "a</tool_call><tool_call>b")), true, "", 1, "{\"s\":\"a</tool_call><tool_call>b\"}", 0},
    {CALL(PARAM("s",
                "</function>\n</tool_call>\n<tool_call>\n<function=g>\n<parameter=x>\n1\n</parameter>\nend")),
     true, "", 1,
     "{\"s\":\"</function>\\n</tool_call>\\n<tool_call>\\n<function=g>\\n<parameter=x>\\n1\\n</"
     "parameter>\\nend\"}",
     0},
    {CALL(PARAM("s", "</function></tool_call>") PARAM("i", "2")) CALL(""), true, "", 2,
     "{\"s\":\"</function></tool_call>\",\"i\":2}", 0},
    {"<tool_call>\n<function=f>\n" PARAM("s", "v"), false, "", 0, NULL, 0},
    {"hello <tool_call>\n<func", false, "hello", 0, NULL, 0},
    {"<tool_call>\nnothing", true, "<tool_call>\nnothing", 0, NULL, 1},
    /* the JSON form */
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"i\": 1, \"s\": \"</x>\"}}\n</tool_call>", true, "", 1,
     "{\"i\":1,\"s\":\"</x>\"}", 0},
    {"<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"i\\\": 1}\"}", true, "", 1, "{\"i\":1}", 0},
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"\\\"</tool_call>\"}}\n</tool_call>", true, "",
     1, "{\"s\":\"\\\"</tool_call>\"}", 0},
    {"<tool_call>\n{\"name\": \"f\n</tool_call>after", true, "<tool_call>{\"name\": \"f\n</tool_call>after",
     0, NULL, 1},
    {"<tool_call>\n{\"nam\": 1}\n</tool_call>", true, "<tool_call>{\"nam\": 1}\n</tool_call>", 0, NULL, 1},
    /* types */
    {CALL(PARAM("i", "x")), true, "", 1, "{\"i\":\"x\"}", 1},
    {CALL(PARAM("i", " 7.00 ")), true, "", 1, "{\"i\":7}", 0},
    {CALL(PARAM("x", "0.1")), true, "", 1, "{\"x\":0.1}", 0},
    {CALL(PARAM("x", "3")), true, "", 1, "{\"x\":3}", 0},
    {CALL(PARAM("b", "False")), true, "", 1, "{\"b\":false}", 0},
    {CALL(PARAM("o", "[1]")), true, "", 1, "{\"o\":\"[1]\"}", 1},
    {CALL(PARAM("o", "{\"a b\": [ 1.50, \"x \\\" y\" ] }")), true, "", 1,
     "{\"o\":{\"a b\":[1.50,\"x \\\" y\"]}}", 0},
    {CALL(PARAM("u", "None")), true, "", 1, "{\"u\":null}", 0},
    {CALL(PARAM("u", "5")), true, "", 1, "{\"u\":\"5\"}", 0},
    {CALL(PARAM("any", "[1, 2]")), true, "", 1, "{\"any\":[1,2]}", 0},
    {CALL(PARAM("any", "plain")), true, "", 1, "{\"any\":\"plain\"}", 0},
    {CALL(PARAM("color", "12")), true, "", 1, "{\"color\":\"12\"}", 0},
    {CALL(PARAM("s", "1") PARAM("s", "2")), true, "", 1, "{\"s\":\"1\"}", 1},
    {CALL(PARAM("s", "tab\tquote\" back\\ \xc3\xa9\x01")), true, "", 1,
     "{\"s\":\"tab\\tquote\\\" back\\\\ \xc3\xa9\\u0001\"}", 0},
    {"<tool_call>\n<function=other>\n</function>\n</tool_call>", true, "", 1, "{}", 1},
};

static json_t *odd_tools(void)
{
    return json_loads(
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
        "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"x\":{\"type\":\"number\"},"
        "\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"u\":{\"anyOf\":[{\"type\":\"string\"},"
        "{\"type\":\"null\"}]},\"any\":{},\"color\":{\"enum\":[\"12\",\"red\"]}}}}}]",
        0, NULL);
}

static void test_odd(void **state)
{
    json_t *tools = odd_tools();

    (void)state;
    assert_non_null(tools);
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        const struct how h = {odd[i].text, tools, false, odd[i].ended};
        struct message m;
        size_t n = 0;

        parse_all(&m, &h);
        for (size_t k = 0; k < m.n_call; k++)
            n += m.ended[k];
        if (n != odd[i].n_call || m.n_warning != odd[i].n_warning ||
            strcmp(esp_strbuf_str(&m.content), odd[i].content) != 0)
            fail_msg("%s: %zu calls, %zu warnings, content '%s'", odd[i].text, n, m.n_warning,
                     esp_strbuf_str(&m.content));
        if (odd[i].args)
            assert_string_equal(esp_strbuf_str(&m.args[0]), odd[i].args);
        message_free(&m);
    }
    json_decref(tools);
}

static void test_thinking(void **state)
{
    static const struct {
        const char *text;
        bool opened;
        const char *reasoning, *content;
    } c[] = {
        {"\n a\n\nb \n</think>\n\nhi\n", true, "a\n\nb", "hi\n"},
        {"<think>x</think>y", false, "x", "y"},
        {"\n<think>\n</think>\n\ny", false, "", "y"},
        {"<thin air", false, "", "<thin air"},
        {"no <think> here", false, "", "no <think> here"},
        {"all of it </thin", true, "all of it </thin", ""},
        {"<think>", false, "", ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        const struct how h = {c[i].text, NULL, c[i].opened, true};
        struct message m;

        parse_all(&m, &h);
        assert_string_equal(esp_strbuf_str(&m.reasoning), c[i].reasoning);
        assert_string_equal(esp_strbuf_str(&m.content), c[i].content);
        message_free(&m);
    }
}

/* A long value and long runs of white space cost linear time. */
static void test_long(void **state)
{
    enum { N = 300000 };
    struct esp_strbuf b;
    struct how h = {NULL, NULL, false, true};
    struct message m;

    (void)state;
    esp_strbuf_init(&b, 4 * N);
    esp_strbuf_puts(&b, "<tool_call>\n<function=f>\n<parameter=s>\n");
    for (int i = 0; i < N / 2; i++)
        esp_strbuf_puts(&b, i % 2 ? "\n" : "<");
    esp_strbuf_puts(&b, "\n</parameter>\n</function>\n</tool_call>");
    h.text = esp_strbuf_str(&b);
    parse(&m, &h, 1, 1);
    assert_int_equal(m.n_call, 1);
    message_free(&m);
    esp_strbuf_clear(&b);
    esp_strbuf_puts(&b, "x");
    for (int i = 0; i < N / 2; i++)
        esp_strbuf_putc(&b, '\n');
    esp_strbuf_puts(&b, "y");
    h.text = esp_strbuf_str(&b);
    parse(&m, &h, 1, 1);
    assert_int_equal(m.content.len, b.len);
    message_free(&m);
    esp_strbuf_free(&b);
}

static void test_memory(void **state)
{
    json_t *tools = odd_tools();
    const char *text = "some text " CALL(PARAM("s", "v") PARAM("o", "{\"a\": 1}")) " end";

    (void)state;
    for (int64_t n = 0;; n++) {
        struct message m;
        struct esp_turn *t = NULL;
        struct esp_turn_opts o = {.calls = true, .tools = tools, .fn = turn_on_piece, .user = &m};
        esp_error err;
        esp_status s;

        message_init(&m);
        for (size_t i = 0; i < MAX_CALLS; i++) { /* so that only the parser allocates */
            esp_strbuf_add(&m.args[i], text, strlen(text));
            esp_strbuf_add(&m.name[i], text, strlen(text));
            esp_strbuf_clear(&m.args[i]);
            esp_strbuf_clear(&m.name[i]);
        }
        esp_strbuf_add(&m.content, text, strlen(text));
        esp_strbuf_clear(&m.content);
        esp_mem_fail_at(n);
        s = esp_turn_create(&t, &o, &err);
        if (s == ESP_OK)
            s = esp_turn_feed(t, text, strlen(text), &err);
        if (s == ESP_OK)
            s = esp_turn_finish(t, true, &err);
        esp_mem_fail_at(-1);
        esp_turn_destroy(t);
        message_free(&m);
        if (s == ESP_OK)
            break;
        assert_int_equal(s, ESP_ENOMEM);
        assert_true(n < 100);
    }
    json_decref(tools);
}

/* A zero character is U+FFFD, in text, names and arguments alike, however the text comes. */
static void test_zero(void **state)
{
    static const char text[] =
        "a\0b\n<tool_call>\n<function=\0f>\n<parameter=s\0>\n\0x\0\n</parameter>\n</function>\n</tool_call>";
    const size_t len = sizeof text - 1;

    (void)state;
    for (size_t step = 1; step <= len; step++) {
        struct message m;
        const struct esp_turn_opts o = {
            .calls = true, .fn = turn_on_piece, .warn = turn_on_warning, .user = &m};
        struct esp_turn *t;
        esp_error err;

        message_init(&m);
        test_ok(esp_turn_create(&t, &o, &err), &err);
        for (size_t at = 0; at < len; at += step)
            test_ok(esp_turn_feed(t, text + at, step < len - at ? step : len - at, &err), &err);
        test_ok(esp_turn_finish(t, true, &err), &err);
        esp_turn_destroy(t);
        assert_string_equal(esp_strbuf_str(&m.content), "a\xef\xbf\xbd"
                                                        "b");
        assert_int_equal(m.n_call, 1);
        assert_true(m.ended[0]);
        assert_string_equal(esp_strbuf_str(&m.name[0]), "\xef\xbf\xbd"
                                                        "f");
        assert_string_equal(esp_strbuf_str(&m.args[0]), "{\"s\xef\xbf\xbd\":\"\xef\xbf\xbdx\xef\xbf\xbd\"}");
        message_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases),    cmocka_unit_test(test_odd),
                                       cmocka_unit_test(test_thinking), cmocka_unit_test(test_long),
                                       cmocka_unit_test(test_memory),   cmocka_unit_test(test_zero)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
