/*
 * Exact replay: an answer sent back costs no cached token, whatever of it the client left out.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/shared.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define USER(text) "'messages':[{'role':'user','content':'" text "'}]"
#define TOOL                                                                                                 \
    "'name':'look_up','description':'Look up a "                                                             \
    "word.','%s':{'type':'object','properties':{'word':{'type':'string'}}"                                   \
    ",'required':['word']}"

/* Turn after turn at a high temperature, where tokens are seldom those that the text would give: with stable
 * history every prompt extends the last one and its answer, and the state behind the answer is found. */
static void test_stable_history(void **state)
{
    json_t *messages =
        json_pack("[{s:s,s:s}]", "role", "user", "content", "Tell me of the old house by the river.");
    int64_t before = 0;

    (void)state;
    for (int turn = 0; turn < 3; turn++) {
        char *text = json_dumps(messages, 0), body[8192];
        struct reply r;

        snprintf(
            body, sizeof body,
            "{\"messages\":%s,\"max_tokens\":40,\"temperature\":1.5,\"seed\":%d,\"chat_template_kwargs\":"
            "{\"preserve_thinking\":true}}",
            text, turn);
        esp_free(text);
        r = client_post(&shared, "/v1/chat/completions", body, 200);
        if (turn > 0)
            assert_true(int_at(r.json, "usage.prompt_tokens_details.cached_tokens") >= before - 1);
        before = int_at(r.json, "usage.total_tokens");
        json_array_append(messages, (json_t *)at(r.json, "choices.0.message"));
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", "Go on."));
        reply_free(&r);
    }
    json_decref(messages);
}

enum { TALKS = 40, NEAR = 4 };

struct talk {
    char *text, *thought;
    int64_t total; /* tokens of prompt and answer, 0: the answer did not end by itself */
};

/* Ask, each time behind another system message. */
static struct talk talk(int i)
{
    struct reply r = client_postf(&shared, "/v1/chat/completions", 200,
                                  "{'messages':[{'role':'system','content':'Talk %d.'},{'role':'user',"
                                  "'content':'Add: 1 + 1'}],'enable_thinking':true,'temperature':1,'seed':%d,"
                                  "'max_tokens':120}",
                                  i, i);
    const char *text = text_at(r.json, "choices.0.message.content"),
               *thought = text_at(r.json, "choices.0.message.reasoning_content");
    const bool whole = strcmp(text_at(r.json, "choices.0.finish_reason"), "stop") == 0;
    const struct talk t = {esp_strndup(text, strlen(text)), esp_strndup(thought, strlen(thought)),
                           whole ? int_at(r.json, "usage.total_tokens") : 0};

    reply_free(&r);
    return t;
}

/* Tokens of talk i that were not computed again for a further message, the answer sent back without its
 * thinking. */
static int64_t cached(int i, const struct talk *t)
{
    struct reply r =
        client_postf(&shared, "/v1/chat/completions", 200,
                     "{'messages':[{'role':'system','content':'Talk %d.'},{'role':'user',"
                     "'content':'Add: 1 + 1'},{'role':'assistant','content':'%s'},{'role':'user',"
                     "'content':'Go on.'}],'max_tokens':2,'chat_template_kwargs':"
                     "{'preserve_thinking':true}}",
                     i, t->text);
    const int64_t n = int_at(r.json, "usage.prompt_tokens_details.cached_tokens");

    reply_free(&r);
    return n;
}

/* The same answer was thought of differently in two talks: each gets back what was its own, also where the
 * client left the thinking out. */
static void test_same_answer_twice(void **state)
{
    struct talk talks[TALKS];
    int pairs = 0;

    (void)state;
    for (int i = 0; i < TALKS; i++) {
        talks[i] = talk(i);
        for (int k = i < NEAR ? 0 : i - NEAR; k < i; k++) /* its state is still there */
            if (talks[i].total && talks[k].total && strcmp(talks[i].text, talks[k].text) == 0 &&
                strcmp(talks[i].thought, talks[k].thought) != 0) {
                assert_true(cached(k, &talks[k]) >= talks[k].total - 1);
                pairs++;
            }
    }
    assert_true(pairs > 0);
    for (int i = 0; i < TALKS; i++) {
        esp_free(talks[i].text);
        esp_free(talks[i].thought);
    }
}

/* A tool loop with thinking, as the template writes it: the turn is found again under its call's id, exactly.
 */
static void test_tool_loop(void **state)
{
    static const char tools[] = "'tools':[{'type':'function','function':{" TOOL "}}]";
    char with[512], text[4096];
    struct reply r, next;
    char *message;

    (void)state;
    snprintf(with, sizeof with, tools, "parameters");
    r = client_postf(
        &shared, "/v1/chat/completions", 200,
        "{" USER("Look up the word pencil.") ",%s,'enable_thinking':true,'tool_choice':'required',"
                                             "'temperature':1.2,'seed':4,'max_tokens':200}",
        with);
    assert_string_equal(text_at(r.json, "choices.0.finish_reason"), "tool_calls");
    message = json_dumps(at(r.json, "choices.0.message"), 0);
    for (char *c = with; *c; c++)
        if (*c == '\'')
            *c = '"';
    snprintf(
        text, sizeof text,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Look up the word pencil.\"},%s,{\"role\":\"tool\","
        "\"content\":\"a tool to write "
        "with\"}],%s,\"enable_thinking\":true,\"max_tokens\":4,\"temperature\":0}",
        message, with);
    esp_free(message);
    next = client_post(&shared, "/v1/chat/completions", text, 200);
    assert_true(int_at(next.json, "usage.prompt_tokens_details.cached_tokens") >=
                int_at(r.json, "usage.total_tokens") - 1);
    reply_free(&r);
    reply_free(&next);
}

/* Calls of other servers whose arguments are no JSON object: text in the prompt and a warning, or refused. */
static void test_odd_arguments(void **state)
{
    static const char *const odd[] = {"'{\\'word\\': pen'", "'[1,2]'", "'pencil'", "[1,2]",
                                      "'{\\'a\\':1,\\'a\\':2}'"};
    static const char *const shown[] = {"{\"word\": pen", "[1,2]", "pencil", "[1,2]", "{\"a\":1,\"a\":2}"};
    static const char talk[] =
        "{'messages':[{'role':'user','content':'x'},{'role':'assistant','content':'','tool_calls':[{'id':'a',"
        "'type':'function','function':{'name':'look_up','arguments':'{\\'word\\':\\'river\\'}'}},{'id':'b',"
        "'function':{'name':'look_up','arguments':%s}}]},{'role':'tool','tool_call_id':'a','content':'y'}],"
        "'max_tokens':2}";
    struct server lenient;
    char want[256];
    struct reply r;

    (void)state;
    server_init(&lenient);
    lenient.o.strict_history = false;
    server_start(&lenient);
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        r = client_postf(&lenient, "/v1/chat/completions", 200, talk, odd[i]);
        assert_non_null(strstr(text_at(r.json, "ext.warnings.0"),
                               "messages[1].tool_calls[1].function.arguments: not a JSON object"));
        reply_free(&r);
        r = client_postf(&lenient, "/apply-template", 200, talk, odd[i]);
        snprintf(want, sizeof want,
                 "<function=look_up>\n<parameter=word>\nriver\n</parameter>\n</function>\n</tool_call>\n"
                 "<tool_call>\n<function=look_up>\n<parameter=arguments>\n%s\n</parameter>",
                 shown[i]);
        if (!strstr(text_at(r.json, "prompt"), want))
            fail_msg("%s is not in %s", want, text_at(r.json, "prompt"));
        reply_free(&r);
        r = client_postf(&shared, "/v1/chat/completions", 400, talk, odd[i]);
        assert_string_equal(text_at(r.json, "error.param"), "messages[1].tool_calls[1].function.arguments");
        assert_string_equal(text_at(r.json, "error.code"), "invalid_value");
        reply_free(&r);
    }
    r = client_postf(&shared, "/v1/chat/completions", 200, talk, "''"); /* some clients send that for none */
    assert_int_equal(json_array_size(at(r.json, "ext.warnings")), 0);
    reply_free(&r);
    server_stop(&lenient);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stable_history), cmocka_unit_test(test_same_answer_twice),
        cmocka_unit_test(test_tool_loop), cmocka_unit_test(test_odd_arguments)};

    return cmocka_run_group_tests(tests, start_plain, stop);
}
