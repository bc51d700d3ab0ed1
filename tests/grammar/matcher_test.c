/*
 * Matchers: triggers, going back, copies, forced text, control tokens, and the calls of tools.
 *
 * SPDX-License-Identifier: MIT
 */
#include "help.h"

#include "base/mem.h"

/* Single bytes 1..255 as ids 1..255, then words, then control tokens. */
enum { TRUE_ = 256, OBJECT, THINK_TAIL, SPACES, TRUE_AGAIN, N_PLAIN, THINK = N_PLAIN, CALL, END_CALL, N_ALL };

static struct esp_vocab *vocab;

static void get_mixed(const void *ctx, uint32_t id, struct esp_vocab_token *out)
{
    static char all[256];
    static const char *const more[] = {"true", "{\"",      "k>x",         "  ",
                                       "true", "</think>", "<tool_call>", "</tool_call>"};

    (void)ctx;
    if (id < 256) {
        all[id] = (char)id;
        *out = (struct esp_vocab_token){.bytes = &all[id], .len = id > 0, .plain = true};
    } else {
        *out = (struct esp_vocab_token){
            .bytes = more[id - 256], .len = strlen(more[id - 256]), .plain = id < N_PLAIN};
    }
}

static struct esp_grammar *gbnf(const char *text)
{
    struct esp_grammar *g = NULL;
    esp_error err;

    test_ok(esp_grammar_gbnf(&g, vocab, text, strlen(text), &err), &err);
    return g;
}

static struct esp_matcher *matcher(struct esp_grammar *g, const struct esp_matcher_opts *o)
{
    struct esp_matcher *m = NULL;
    esp_error err;

    test_ok(esp_matcher_open(&m, g, o, &err), &err);
    return m;
}

static void mask(struct esp_matcher *m, uint64_t bits[8])
{
    esp_error err;

    memset(bits, 0xff, 8 * sizeof *bits);
    test_ok(esp_matcher_mask(m, bits, 8, &err), &err);
}

static void take(struct esp_matcher *m, const char *text)
{
    esp_error err;

    for (; *text; text++)
        test_ok(esp_matcher_accept(m, (unsigned char)*text, &err), &err);
}

static void take_id(struct esp_matcher *m, uint32_t id)
{
    esp_error err;

    test_ok(esp_matcher_accept(m, id, &err), &err);
}

static void tokens_with_equal_bytes_go_together(void **state)
{
    struct esp_grammar *g = gbnf("root ::= \"true\" | \"tru\" \"th\"");
    struct esp_matcher *m = matcher(g, NULL);
    uint64_t bits[8];

    (void)state;
    mask(m, bits);
    assert_true(has(bits, TRUE_) && has(bits, TRUE_AGAIN) && has(bits, 't'));
    assert_false(has(bits, OBJECT) || has(bits, THINK) || has(bits, N_ALL));
    take_id(m, TRUE_AGAIN);
    assert_int_equal(esp_matcher_state(m), ESP_MATCH_ENDED);
    mask(m, bits);
    for (int i = 0; i < 8; i++)
        assert_int_equal(bits[i], 0);
    esp_matcher_close(m);
    esp_grammar_release(g);
}

static void a_trigger_token_starts_it(void **state)
{
    struct esp_grammar *g = gbnf("root ::= [0-9]{2}");
    struct esp_matcher_opts o = {
        .trigger = {THINK}, .n_trigger = 1, .ban = {CALL}, .n_ban = 1, .must_start = true};
    struct esp_matcher *m = matcher(g, &o);
    uint64_t bits[8];
    esp_error err;

    (void)state;
    assert_true(esp_matcher_waiting(m));
    assert_int_equal(esp_matcher_state(m), ESP_MATCH_MORE);
    mask(m, bits);
    assert_true(has(bits, 'x') && has(bits, THINK) && has(bits, END_CALL));
    assert_false(has(bits, CALL));
    test_refused(esp_matcher_accept(m, CALL, &err), ESP_EINVAL, &err, "<tool_call>");
    take(m, "anything");
    take_id(m, THINK);
    assert_false(esp_matcher_waiting(m));
    mask(m, bits);
    assert_true(has(bits, '4'));
    assert_false(has(bits, 'x') || has(bits, THINK));
    take(m, "42");
    assert_int_equal(esp_matcher_state(m), ESP_MATCH_ENDED);
    esp_matcher_rollback(m, 3);
    assert_true(esp_matcher_waiting(m));
    take_id(m, THINK);
    take(m, "1");
    assert_int_equal(esp_matcher_state(m), ESP_MATCH_MORE);
    esp_matcher_close(m);

    o.must_start = false;
    o.again = true;
    m = matcher(g, &o);
    assert_int_equal(esp_matcher_state(m), ESP_MATCH_MAY_END);
    for (int i = 0; i < 3; i++) {
        take_id(m, THINK);
        assert_int_equal(esp_matcher_state(m), ESP_MATCH_MORE);
        take(m, "77");
        assert_true(esp_matcher_waiting(m));
        take(m, "free");
    }
    esp_matcher_close(m);
    esp_grammar_release(g);
}

static void a_trigger_text_is_found_in_any_cut(void **state)
{
    struct esp_grammar *g = gbnf("root ::= \"x\"+");
    const struct esp_matcher_opts o = {.trigger_text = "</think>"};
    struct esp_matcher *m = matcher(g, &o);
    uint64_t bits[8];
    esp_error err;

    (void)state;
    take(m, "a<</</thin");
    mask(m, bits);
    assert_true(has(bits, 'k') && has(bits, THINK));
    assert_false(has(bits, THINK_TAIL)); /* k>x goes past the end */
    test_refused(esp_matcher_accept(m, THINK_TAIL, &err), ESP_EINVAL, &err, "k>x");
    take(m, "k");
    assert_true(esp_matcher_waiting(m));
    take(m, ">");
    assert_false(esp_matcher_waiting(m));
    take(m, "x");
    esp_matcher_rollback(m, 3);
    mask(m, bits);
    assert_false(has(bits, THINK_TAIL));
    take(m, "_");
    mask(m, bits);
    assert_true(has(bits, THINK_TAIL));
    take_id(m, THINK_TAIL);
    take_id(m, THINK); /* the control token spells it too */
    assert_false(esp_matcher_waiting(m));
    esp_matcher_close(m);
    esp_grammar_release(g);
}

/* Random walks with rollbacks of any length must equal fresh matchers. */
static void going_back_is_exact(void **state)
{
    struct esp_grammar *g = gbnf("root ::= s*\ns ::= \"(\" s* \")\" | [a-c]");
    struct esp_matcher *m = matcher(g, NULL);
    struct esp_rng_key k = {.seed = 5};
    static char text[4000];
    size_t n = 0;

    (void)state;
    for (int round = 0; round < 60; round++) {
        struct esp_matcher *fresh;
        uint64_t x[8], y[8];
        uint32_t back;

        for (uint32_t i = draw(&k, 300); i > 0 && n < sizeof text - 1; i--) {
            char c = "(((abc)))"[draw(&k, 9)];
            esp_error err;

            if (esp_matcher_accept(m, (unsigned char)c, &err) != ESP_OK) {
                c = 'a';
                take(m, "a");
            }
            text[n++] = c;
        }
        back = draw(&k, 10) == 0 ? (uint32_t)n + 5 : draw(&k, round % 2 ? 40 : 1200);
        esp_matcher_rollback(m, back);
        n = back < n ? n - back : 0;
        assert_int_equal(esp_matcher_length(m), n);
        fresh = matcher(g, NULL);
        text[n] = 0;
        take(fresh, text);
        mask(m, x);
        mask(fresh, y);
        assert_memory_equal(x, y, sizeof x);
        assert_int_equal(esp_matcher_state(m), esp_matcher_state(fresh));
        esp_matcher_close(fresh);
    }
    esp_matcher_close(m);
    esp_grammar_release(g);
}

static void forced_text_comes_in_long_tokens(void **state)
{
    struct esp_grammar *g = gbnf("root ::= \"{\\\"a\\\": true, \\\"b\\\": \" [0-9] \"}\"");
    struct esp_matcher *m = matcher(g, NULL);
    uint32_t ids[64], n = esp_matcher_forced(m, ids, 64);

    (void)state;
    assert_true(n > 5);
    assert_int_equal(ids[0], OBJECT);
    assert_int_equal(ids[1], 'a');
    for (uint32_t i = 0; i < n; i++)
        take_id(m, ids[i]);
    assert_int_equal(esp_matcher_forced(m, ids, 64), 0);
    /* the last space is not forced: with more spaces behind it there would be a longer token */
    take(m, " 7");
    n = esp_matcher_forced(m, ids, 64);
    assert_int_equal(n, 1);
    assert_int_equal(ids[0], '}');
    esp_matcher_close(m);
    esp_grammar_release(g);
}

/* ---- tools ---- */

static const char weather[] = "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{"
                              "\"type\":\"integer\",\"minimum\":1,"
                              "\"maximum\":9},\"short\":{\"type\":\"string\",\"maxLength\":30},\"unit\":{"
                              "\"enum\":[\"C\",\"F\"]},\"opt\":{\"anyOf\":[{"
                              "\"type\":\"string\"},{\"type\":\"null\"}]}},"
                              "\"required\":[\"city\"]}";

/* < stands for the tokens of calls. */
static int judge_call(struct esp_grammar *g, const struct esp_matcher_opts *o, const char *text)
{
    struct esp_matcher *m = matcher(g, o);
    esp_error err;
    int r = 0;

    while (*text && r == 0) {
        uint32_t id = (unsigned char)*text;

        if (strncmp(text, "<tool_call>", 11) == 0)
            id = CALL;
        else if (strncmp(text, "</tool_call>", 12) == 0)
            id = END_CALL;
        text += id == CALL ? 11 : id == END_CALL ? 12 : 1;
        r = esp_matcher_accept(m, id, &err) == ESP_OK ? 0 : -1;
    }
    if (r == 0 && esp_matcher_state(m) != ESP_MATCH_MORE)
        r = esp_matcher_state(m) == ESP_MATCH_ENDED ? 1 : 2;
    esp_matcher_close(m);
    return r;
}

#define BEGIN         "<tool_call>\n<function=weather>\n"
#define END           "</function>\n</tool_call>"
#define P(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"

static void calls_keep_to_their_tools(void **state)
{
    json_t *schema = json_loads(weather, 0, NULL);
    struct esp_tool tools[] = {
        {.name = "weather", .parameters = schema}, {.name = "ping"}, {.name = "weather.2"}};
    struct esp_grammar *g = NULL;
    esp_error err;

    (void)state;
    test_ok(esp_grammar_tools(&g, vocab, tools, 3, ESP_TOOLS_LEAD, &err), &err);
    assert_int_equal(judge_call(g, NULL, BEGIN P("city", "Paris") END), 1);
    assert_int_equal(
        judge_call(g, NULL, "\n\n" BEGIN P("days", "3") P("city", "a\n\nb <x> </parameter> y") END), 1);
    assert_int_equal(judge_call(g, NULL, BEGIN P("city", "") P("unit", "F") P("opt", "null") END), 1);
    assert_int_equal(judge_call(g, NULL, BEGIN END), 1); /* not strict */
    assert_int_equal(judge_call(g, NULL, "<tool_call>\n<function=ping>\n" END), 1);
    assert_int_equal(judge_call(g, NULL, "<tool_call>\n<function=weather.2>\n" END), 1);
    assert_int_equal(judge_call(g, NULL, BEGIN P("short", "a\n<</parameter >") END), 1);
    assert_int_equal(judge_call(g, NULL, BEGIN P("short", "a</parameter>") END), -1);
    assert_int_equal(judge_call(g, NULL, BEGIN P("days", "10") END), -1);
    assert_int_equal(judge_call(g, NULL, BEGIN P("days", "x") END), -1);
    assert_int_equal(judge_call(g, NULL, BEGIN P("unit", "K") END), -1);
    assert_int_equal(judge_call(g, NULL, BEGIN P("town", "Paris") END), -1);
    assert_int_equal(judge_call(g, NULL, "<tool_call>\n<function=wether>"), -1);
    assert_int_equal(judge_call(g, NULL, "text"), -1);
    assert_int_equal(judge_call(g, NULL, BEGIN P("city", "Paris") END "\n<tool_call>"), -1);
    esp_grammar_release(g);
    g = NULL;

    tools[0].strict = true;
    test_ok(esp_grammar_tools(&g, vocab, tools, 1, ESP_TOOLS_SEVERAL, &err), &err);
    assert_int_equal(judge_call(g, NULL, BEGIN P("city", "Paris") P("unit", "C") END), 2);
    assert_int_equal(judge_call(g, NULL, BEGIN P("city", "a") END "\n" BEGIN P("city", "b") END), 2);
    assert_int_equal(judge_call(g, NULL, BEGIN END), -1);
    assert_int_equal(judge_call(g, NULL, BEGIN P("unit", "C") P("city", "a") END), -1);
    esp_grammar_release(g);
    json_decref(schema);
}

static void a_call_may_come_at_any_time(void **state)
{
    const struct esp_tool tool = {.name = "ping"};
    const struct esp_matcher_opts o = {.trigger = {CALL}, .n_trigger = 1, .again = true};
    struct esp_grammar *g = NULL;
    esp_error err;

    (void)state;
    test_ok(esp_grammar_tools(&g, vocab, &tool, 1, ESP_TOOLS_BODY, &err), &err);
    assert_int_equal(judge_call(g, &o, "Hello <function=other> \xff"), 2);
    assert_int_equal(
        judge_call(g, &o, "a <tool_call>\n<function=ping>\n" END " and <tool_call>\n<function=ping>\n" END),
        2);
    assert_int_equal(judge_call(g, &o, "a <tool_call>\n<function=ping>\n"), 0);
    assert_int_equal(judge_call(g, &o, "a <tool_call>\n<function=pong"), -1);
    esp_grammar_release(g);
}

static void unsupported_tools_are_refused_when_strict(void **state)
{
    json_t *odd =
        json_loads("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"object\",\"not\":{}}}}", 0, NULL);
    struct esp_tool tool = {.name = "t", .parameters = odd, .strict = true};
    struct esp_grammar *g = NULL;
    esp_error err;

    (void)state;
    test_refused(esp_grammar_tools(&g, vocab, &tool, 1, 0, &err), ESP_EUNSUPPORTED, &err, "\"not\"");
    tool.strict = false;
    test_ok(esp_grammar_tools(&g, vocab, &tool, 1, 0, &err), &err);
    assert_int_equal(judge_call(g, NULL, "<tool_call>\n<function=t>\n" P("a", "whatever it is") END), 1);
    esp_grammar_release(g);
    g = NULL;
    tool.name = "bad name";
    test_refused(esp_grammar_tools(&g, vocab, &tool, 1, 0, &err), ESP_EINVAL, &err, "bad name");
    test_refused(esp_grammar_tools(&g, vocab, &tool, 0, 0, &err), ESP_EINVAL, &err, "0 of them");
    json_decref(odd);
}

static void memory_may_run_out(void **state)
{
    struct esp_grammar *g = gbnf("root ::= \"a\" root \"b\" | [x-z]+");
    int failed = 0;
    esp_error err;

    (void)state;
    for (int64_t n = 0; n < 60; n++) {
        struct esp_matcher *m = NULL;
        uint64_t bits[8];
        esp_status s;

        memset(bits, 0xff, sizeof bits);
        esp_mem_fail_at(n);
        s = esp_matcher_open(&m, g, NULL, &err);
        for (const char *c = "aaxy"; s == ESP_OK && *c; c++) {
            s = esp_matcher_mask(m, bits, 8, &err);
            if (s == ESP_OK)
                s = esp_matcher_accept(m, (unsigned char)*c, &err);
        }
        esp_mem_fail_at(-1);
        assert_true(s == ESP_OK || s == ESP_ENOMEM);
        failed += s != ESP_OK;
        esp_matcher_close(m);
    }
    assert_true(failed > 5);
    esp_grammar_release(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_with_equal_bytes_go_together),
        cmocka_unit_test(a_trigger_token_starts_it),
        cmocka_unit_test(a_trigger_text_is_found_in_any_cut),
        cmocka_unit_test(going_back_is_exact),
        cmocka_unit_test(forced_text_comes_in_long_tokens),
        cmocka_unit_test(calls_keep_to_their_tools),
        cmocka_unit_test(a_call_may_come_at_any_time),
        cmocka_unit_test(unsupported_tools_are_refused_when_strict),
        cmocka_unit_test(memory_may_run_out),
    };
    const struct esp_vocab_source src = {.n_ids = N_ALL, .get = get_mixed};
    esp_error err;
    int r;

    if (esp_vocab_create(&vocab, &src, &err) != ESP_OK)
        return 1;
    r = cmocka_run_group_tests(tests, NULL, NULL);
    esp_vocab_destroy(vocab);
    return r;
}
