/*
 * Forms beside tools, grammars that take long, and log-probabilities of prompts: what is asked for together
 * works together, and nobody waits for another one's grammar.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/shared.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

#define CHAT       "/v1/chat/completions"
#define TEXT       "/v1/completions"
#define USER(text) "'messages':[{'role':'user','content':'" text "'}]"
#define GREEDY     ",'temperature':0"
#define TOOLS                                                                                                \
    ",'tools':[{'type':'function','function':{'name':'look_up','description':'Look up a "                    \
    "word.','parameters':"                                                                                   \
    "{'type':'object','properties':{'word':{'type':'string'}},'required':['word']}}}]"

#define SCHEMA_FORM                                                                                          \
    ",'response_format':{'type':'json_schema','json_schema':{'name':'w','strict':true,'schema':{'type':"     \
    "'object','properties':{'word':{'type':'string','maxLength':12}},'required':['word']}}}"

/* ---- forms and tools ---- */

static void test_form_or_call(void **state)
{
    static const char *const forms[] = {",'guided_regex':'[a-z]{3,12}!'", ",'guided_choice':['yes','no']",
                                        ",'grammar':'root ::= \\\"ok\\\" [0-9]+'", SCHEMA_FORM};

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        for (int thinking = 0; thinking < 2; thinking++) {
            const char *think = thinking ? ",'enable_thinking':true" : "";
            struct reply call = client_postf(&shared, CHAT, 200,
                                             "{" USER("Look up the word pencil.") GREEDY TOOLS
                                             "%s%s,'max_tokens':200}",
                                             forms[i], think),
                         text = client_postf(&shared, CHAT, 200,
                                             "{" USER("Spell: garden") GREEDY TOOLS "%s%s,'max_tokens':200,"
                                                                                    "'tool_choice':'none'}",
                                             forms[i], think);
            const char *content = text_at(text.json, "choices.0.message.content");
            const bool called = at(call.json, "choices.0.message.tool_calls.0") != NULL;

            if (called) { /* the model's own wish, which the form must not forbid */
                assert_string_equal(text_at(call.json, "choices.0.finish_reason"), "tool_calls");
                assert_string_equal(text_at(call.json, "choices.0.message.tool_calls.0.function.name"),
                                    "look_up");
                assert_string_equal(text_at(call.json, "choices.0.message.content"), "");
            }
            if (!thinking)
                assert_true(called);
            assert_null(at(text.json, "choices.0.message.tool_calls"));
            if (strcmp(text_at(text.json, "choices.0.finish_reason"), "stop") == 0) {
                if (i == 0)
                    assert_true(content[0] && content[strlen(content) - 1] == '!');
                else if (i == 1)
                    assert_true(strcmp(content, "yes") == 0 || strcmp(content, "no") == 0);
                else if (i == 2)
                    assert_int_equal(strncmp(content, "ok", 2), 0);
            }
            reply_free(&call);
            reply_free(&text);
        }
}

/* With tools at hand and no call in it, the text still has the form. */
static void test_form_beside_tools(void **state)
{
    struct reply r;

    (void)state;
    for (int i = 0; i < 6; i++) {
        const char *content;

        r = client_postf(&shared, CHAT, 200,
                         "{" USER("Spell: garden") TOOLS ",'guided_regex':'x[a-z]{3}[0-9]','temperature':1.5,"
                                                         "'seed':%d,'max_tokens':60}",
                         i);
        content = text_at(r.json, "choices.0.message.content");
        if (!at(r.json, "choices.0.message.tool_calls") &&
            strcmp(text_at(r.json, "choices.0.finish_reason"), "stop") == 0) {
            assert_int_equal(strlen(content), 5);
            assert_true(content[0] == 'x' && content[4] >= '0' && content[4] <= '9');
        }
        reply_free(&r);
    }
    r = client_postf(&shared, CHAT, 400,
                     "{" USER("x") TOOLS ",'response_format':{'type':'json_schema','schema':{'not':{}}}}");
    assert_string_equal(text_at(r.json, "error.code"), "schema_unsupported");
    assert_string_equal(text_at(r.json, "error.param"), "response_format");
    reply_free(&r);
}

/* ---- grammars that take long ---- */

static bool has_answer(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, 0) > 0;
}

/* Compiling this ends at a bound after a second or more: until then others must be served. */
static void test_nobody_waits_for_a_grammar(void **state)
{
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"guided_regex\":\"(a|b)*a(a|b){24}\"}";
    char request[400];
    struct reply r;
    int fds[3];

    (void)state;
    snprintf(request, sizeof request,
             "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", sizeof body - 1,
             body);
    for (int i = 0; i < 3; i++) { /* they share one piece of work */
        fds[i] = client_connect(&shared);
        client_send(fds[i], request);
    }
    r = client_do(&shared, "GET", "/health", NULL, NULL);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = client_postf(&shared, CHAT, 200, "{" USER("Spell: dog") GREEDY ",'max_tokens':3,'stream':true}");
    assert_non_null(strstr(r.body, "data: [DONE]"));
    reply_free(&r);
    assert_false(has_answer(fds[0]) || has_answer(fds[1]));
    close(fds[2]); /* one leaves meanwhile */
    for (int i = 0; i < 2; i++) {
        r = client_reply(fds[i], false);
        assert_int_equal(r.status, 400);
        assert_string_equal(text_at(r.json, "error.code"), "grammar_too_large");
        reply_free(&r);
        close(fds[i]);
    }
    /* the same again, and the server ends while it is being made */
    fds[0] = client_connect(&shared);
    client_send(fds[0], request);
    r = client_postf(&shared, CHAT, 200, "{" USER("Spell: dog") GREEDY ",'guided_choice':['dog','cat']}");
    assert_true(text_at(r.json, "choices.0.message.content")[0] != '\0');
    reply_free(&r);
    close(fds[0]);
    r = client_do(&shared, "GET", "/metrics", NULL, NULL);
    assert_non_null(strstr(r.body, "espalier:grammar_compile_seconds_count"));
    reply_free(&r);
}

static void test_ending_with_grammars(void **state)
{
    struct server s;
    int fds[6];

    (void)state;
    server_init(&s);
    s.o.shutdown_timeout = 0.2;
    server_start(&s);
    for (int i = 0; i < 6; i++) {
        char body[200], head[200];

        snprintf(
            body, sizeof body,
            "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"guided_regex\":\"(a|b)*a(a|b){%d}\"}",
            20 + i);
        snprintf(head, sizeof head,
                 "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", strlen(body));
        fds[i] = client_connect(&s);
        client_send(fds[i], head);
        client_send(fds[i], body);
    }
    usleep(100000);
    server_ask_stop(&s);
    assert_int_equal(server_join(&s), ESP_OK);
    for (int i = 0; i < 6; i++)
        close(fds[i]);
}

/* ---- log-probabilities of a prompt ---- */

#define PROMPT "Once upon a time there was a garden."

/* Where the model would go on from the first n ids, as a server that generates says it. */
static json_t *top_after(const json_t *ids, size_t n)
{
    json_t *some = json_array(), *top;
    struct reply r;
    char *text;

    for (size_t i = 0; i < n; i++)
        json_array_append(some, json_array_get(ids, i));
    text = json_dumps(some, 0);
    r = client_postf(&shared, TEXT, 200,
                     "{'prompt':%s,'max_tokens':1,'logprobs':5,'ignore_eos':true" GREEDY "}", text);
    top = json_incref((json_t *)at(r.json, "choices.0.logprobs.top_logprobs.0"));
    esp_free(text);
    json_decref(some);
    reply_free(&r);
    return top;
}

static void test_prompt_logprobs(void **state)
{
    struct reply ids = client_postf(&shared, "/tokenize", 200, "{'content':'" PROMPT "'}"),
                 r = client_postf(&shared, TEXT, 200,
                                  "{'prompt':'" PROMPT "','max_tokens':0,'echo':true,'logprobs':5" GREEDY
                                  "}");
    const size_t n = json_array_size(at(ids.json, "tokens"));
    const json_t *scores = at(r.json, "choices.0.logprobs");
    struct esp_strbuf text;

    (void)state;
    assert_string_equal(text_at(r.json, "choices.0.text"), PROMPT);
    assert_string_equal(text_at(r.json, "choices.0.finish_reason"), "length");
    assert_int_equal(int_at(r.json, "usage.prompt_tokens"), n);
    assert_int_equal(json_array_size(at(scores, "tokens")), n);
    assert_int_equal(json_array_size(at(scores, "token_logprobs")), n);
    assert_true(json_is_null(at(scores, "token_logprobs.0")));
    assert_true(json_is_null(at(scores, "top_logprobs.0")));
    esp_strbuf_init(&text, 4096);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(json_integer_value(json_array_get(at(scores, "text_offset"), i)), text.len);
        esp_strbuf_puts(&text, json_string_value(json_array_get(at(scores, "tokens"), i)));
    }
    assert_string_equal(esp_strbuf_str(&text), PROMPT);
    esp_strbuf_free(&text);
    for (size_t i = 1; i < n; i++) { /* each row is what generation says at its place */
        json_t *want = top_after(at(ids.json, "tokens"), i);

        assert_true(json_number_value(json_array_get(at(scores, "token_logprobs"), i)) < 0);
        if (!json_equal(want, json_array_get(at(scores, "top_logprobs"), i)))
            fail_msg("position %zu differs: %s", i, r.body);
        json_decref(want);
    }
    reply_free(&ids);
    reply_free(&r);
}

/* All logprobs of choice `index` in a stream, joined. */
static json_t *joined_tokens(const struct reply *r, int64_t index)
{
    json_t *all = json_array(), *v = NULL;

    for (size_t i = 0; frame(r, i, &v, NULL); i++) {
        if (v && int_at(v, "choices.0.index") == index && at(v, "choices.0.logprobs.tokens"))
            json_array_extend(all, (json_t *)at(v, "choices.0.logprobs.tokens"));
        json_decref(v);
        v = NULL;
    }
    return all;
}

static void test_prompt_logprobs_in_company(void **state)
{
    static const char body[] = "'prompt':[[72],[72,73,74,75],'" PROMPT "'],'n':2,'max_tokens':3,'echo':true,"
                               "'logprobs':1,'temperature':1,'seed':3,'ignore_eos':true";
    struct reply whole = client_postf(&shared, TEXT, 200, "{%s}", body),
                 stream = client_postf(&shared, TEXT, 200, "{%s,'stream':true}", body), r;

    (void)state;
    assert_int_equal(json_array_size(at(whole.json, "choices")), 6);
    for (int64_t i = 0; i < 6; i++) {
        char path[60];
        json_t *tokens = joined_tokens(&stream, i);

        snprintf(path, sizeof path, "choices.%d.logprobs.tokens", (int)i);
        if (!json_equal(tokens, at(whole.json, path)))
            fail_msg("choice %d: %s", (int)i, stream.body);
        json_decref(tokens);
    }
    assert_int_equal(json_array_size(at(whole.json, "choices.0.logprobs.tokens")), 4);
    assert_int_equal(json_array_size(at(whole.json, "choices.2.logprobs.token_logprobs")), 7);
    reply_free(&whole);
    reply_free(&stream);
    /* the score does not depend on the answer's length or on the cache */
    r = client_postf(&shared, TEXT, 200,
                     "{'prompt':'" PROMPT "','max_tokens':1,'echo':true,'logprobs':0" GREEDY "}");
    whole =
        client_postf(&shared, TEXT, 200, "{'prompt':'" PROMPT "','max_tokens':0,'echo':true,'logprobs':0}");
    for (size_t i = 1; i < json_array_size(at(whole.json, "choices.0.logprobs.token_logprobs")); i++)
        assert_true(json_equal(json_array_get(at(r.json, "choices.0.logprobs.token_logprobs"), i),
                               json_array_get(at(whole.json, "choices.0.logprobs.token_logprobs"), i)));
    assert_int_equal(json_array_size(at(r.json, "choices.0.logprobs.tokens")),
                     json_array_size(at(whole.json, "choices.0.logprobs.tokens")) + 1);
    reply_free(&r);
    reply_free(&whole);
}

/* ---- sampling ---- */

/* Windows of penalties reach the sampler: with a strong penalty a short window lets words come back. */
static void test_windows(void **state)
{
    static const char body[] =
        "{'prompt':'a b a b a b','max_tokens':24,'ignore_eos':true,'repetition_penalty':2%s" GREEDY "}";
    struct reply all = client_postf(&shared, TEXT, 200, body, ""),
                 zero = client_postf(&shared, TEXT, 200, body, ",'repeat_last_n':0"),
                 none = client_postf(&shared, TEXT, 200, body, ",'repetition_context_size':1"),
                 typical = client_postf(&shared, TEXT, 200,
                                        "{'prompt':'a b','max_tokens':8,'temperature':2,'seed':4}"),
                 narrow = client_postf(
                     &shared, TEXT, 200,
                     "{'prompt':'a b','max_tokens':8,'temperature':2,'seed':4,'typical_p':0.05}");

    (void)state;
    assert_string_equal(text_at(all.json, "choices.0.text"), text_at(zero.json, "choices.0.text"));
    assert_string_not_equal(text_at(all.json, "choices.0.text"), text_at(none.json, "choices.0.text"));
    assert_string_not_equal(text_at(typical.json, "choices.0.text"), text_at(narrow.json, "choices.0.text"));
    reply_free(&all);
    reply_free(&zero);
    reply_free(&none);
    reply_free(&typical);
    reply_free(&narrow);
}

static struct reply sampled(const char *more, int seed)
{
    return client_postf(&shared, TEXT, 200,
                        "{'prompt':'one two three one two three one two three one two','max_tokens':24,"
                        "'ignore_eos':true,'seed':%d%s}",
                        seed, more);
}

/* Texts of two settings for a few seeds: whether they differ anywhere. */
static bool differ(const char *a, const char *b)
{
    bool any = false;

    for (int seed = 0; seed < 4; seed++) {
        struct reply x = sampled(a, seed), y = sampled(b, seed);

        any = any || strcmp(text_at(x.json, "choices.0.text"), text_at(y.json, "choices.0.text")) != 0;
        reply_free(&x);
        reply_free(&y);
    }
    return any;
}

/* XTC and DRY reach the sampler, each with its off values; texts that end a repetition make a difference. */
static void test_repeats(void **state)
{
#define DRY GREEDY ",'dry_multiplier':2,'dry_allowed_length':1"
    (void)state;
    assert_true(differ(",'temperature':1", ",'temperature':1,'xtc_probability':1,'xtc_threshold':0.02"));
    assert_false(differ(",'temperature':1", ",'temperature':1,'xtc_probability':0,'xtc_threshold':0.02"));
    assert_false(differ(",'temperature':1", ",'temperature':1,'xtc_probability':1,'xtc_threshold':0.51"));
    assert_true(differ(GREEDY, DRY));
    assert_false(differ(GREEDY, DRY ",'dry_penalty_last_n':0"));
    assert_true(differ(DRY, DRY ",'dry_penalty_last_n':4"));
    assert_false(differ(DRY, DRY ",'dry_penalty_last_n':-1"));
    assert_true(differ(DRY, DRY ",'dry_sequence_breakers':['e','o','a','i',' ']"));
    assert_false(differ(DRY, DRY ",'dry_sequence_breakers':['\\n',':','\\\"','*']"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_form_or_call),
        cmocka_unit_test(test_form_beside_tools),
        cmocka_unit_test(test_nobody_waits_for_a_grammar),
        cmocka_unit_test(test_ending_with_grammars),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_prompt_logprobs_in_company),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_repeats),
    };

    return cmocka_run_group_tests(tests, start_plain, stop);
}
