/*
 * Wrong bodies: every wrong field is refused by name, with the code that the API page gives it, before
 * anything runs or streams.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/shared.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define CHAT       "/v1/chat/completions"
#define TEXT       "/v1/completions"
#define USER(text) "'messages':[{'role':'user','content':'" text "'}]"

static void test_shared_cases(void **state)
{
    json_t *file = test_json("tests/data/cases/http_bodies.json"), *c;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        const json_t *request = json_object_get(c, "request");
        char *body = json_is_string(request) ? NULL : json_dumps(request, 0);
        struct reply r;

        if (json_object_get(request, "note")) {
            esp_free(body);
            continue; /* test_overflow */
        }
        r = client_post(&shared, CHAT, body ? body : json_string_value(request), 400);
        assert_true(text_at(r.json, "error.message")[0] != '\0');
        assert_string_equal(text_at(r.json, "error.type"), "invalid_request_error");
        if (strstr(text_at(c, "id"), "bad_json"))
            assert_non_null(strstr(r.body, "messages[1].tool_calls[0]"));
        reply_free(&r);
        esp_free(body);
    }
    json_decref(file);
}

static const struct {
    const char *field, *param, *code;
} fields[] = {
    {"'temperature':5.1", "temperature", "invalid_value"},
    {"'temperature':'1'", "temperature", "invalid_type"},
    {"'temperature':-0.1", "temperature", "invalid_value"},
    {"'top_p':0", "top_p", "invalid_value"},
    {"'top_k':-2", "top_k", "invalid_value"},
    {"'top_k':1.5", "top_k", "invalid_type"},
    {"'min_p':1.1", "min_p", "invalid_value"},
    {"'repetition_penalty':0", "repetition_penalty", "invalid_value"},
    {"'presence_penalty':2.5", "presence_penalty", "invalid_value"},
    {"'frequency_penalty':true", "frequency_penalty", "invalid_type"},
    {"'n':0", "n", "invalid_value"},
    {"'n':17", "n", "invalid_value"},
    {"'best_of':2", "best_of", "unsupported_value"},
    {"'seed':1.5", "seed", "invalid_type"},
    {"'stop':['a',1]", "stop", "invalid_type"},
    {"'stop':''", "stop", "invalid_value"},
    {"'stop':['1','2','3','4','5','6','7','8','9','10','11','12','13','14','15','16','17']", "stop",
     "invalid_value"},
    {"'logit_bias':{'x':1}", "logit_bias", "invalid_value"},
    {"'logit_bias':{'4096':1}", "logit_bias", "invalid_value"},
    {"'logit_bias':{'1':101}", "logit_bias", "invalid_value"},
    {"'top_logprobs':2", "top_logprobs", "invalid_value"},
    {"'logprobs':true,'top_logprobs':21", "top_logprobs", "invalid_value"},
    {"'logprobs_mode':'cooked'", "logprobs_mode", "invalid_value"},
    {"'typical_p':0", "typical_p", "invalid_value"},
    {"'xtc_probability':1.5", "xtc_probability", "invalid_value"},
    {"'xtc_threshold':'low'", "xtc_threshold", "invalid_type"},
    {"'repeat_last_n':-2", "repeat_last_n", "invalid_value"},
    {"'presence_context_size':'all'", "presence_context_size", "invalid_type"},
    {"'dry_multiplier':-1", "dry_multiplier", "invalid_value"},
    {"'dry_base':0.5", "dry_base", "invalid_value"},
    {"'dry_allowed_length':0", "dry_allowed_length", "invalid_value"},
    {"'dry_penalty_last_n':-2", "dry_penalty_last_n", "invalid_value"},
    {"'dry_sequence_breakers':'x'", "dry_sequence_breakers", "invalid_type"},
    {"'dry_sequence_breakers':['x',1]", "dry_sequence_breakers", "invalid_type"},
    {"'dry_sequence_breakers':['']", "dry_sequence_breakers", "invalid_value"},
    {"'mirostat':1", "mirostat", "unsupported_value"},
    {"'response_format':{'type':'xml'}", "response_format", "invalid_value"},
    {"'response_format':{'type':'json_schema'}", "response_format", "missing_field"},
    {"'response_format':{'type':'json_schema','schema':{'type':'object','not':{}}}", "response_format",
     "schema_unsupported"},
    {"'response_format':{'type':'json_object'},'grammar':'root ::= [a]'", "grammar", "invalid_value"},
    {"'guided_regex':'(a'", "guided_regex", "invalid_grammar"},
    {"'structured_outputs':{'choice':[]}", "structured_outputs.choice", "invalid_value"},
    {"'grammar':'root ::= x'", "grammar", "invalid_grammar"},
    {"'functions':[]", "functions", "unsupported_value"},
    {"'audio':{}", "audio", "unsupported_value"},
    {"'modalities':['audio']", "modalities", "unsupported_value"},
    {"'adapter':'x'", "adapter", "adapter_not_found"},
    {"'tools':[{'type':'function'}]", "tools[0]", "invalid_value"},
    {"'tools':[{'type':'function','function':{'name':'a b'}}]", "tools[0]", "invalid_value"},
    {"'tool_choice':'required'", "tool_choice", "invalid_value"},
    {"'tool_choice':'some'", "tool_choice", "invalid_value"},
    {"'tool_choice':{'type':'function','function':{'name':'x'}}", "tool_choice", "invalid_value"},
    {"'reasoning_effort':'great'", "reasoning_effort", "invalid_value"},
    {"'thinking':{'type':'x'}", "thinking.type", "invalid_value"},
    {"'stream_options':1", "stream_options", "invalid_type"},
    {"'min_tokens':5,'max_tokens':4", "min_tokens", "invalid_value"},
    {"'continue_final_message':true", "continue_final_message", "invalid_value"},
    {"'model':1", "model", "invalid_type"},
};
static const struct {
    const char *messages, *param, *code;
} messages[] = {
    {"{'role':'user'}", "messages", "invalid_type"},
    {"[1]", "messages[0]", "invalid_type"},
    {"[{'content':'x'}]", "messages[0]", "missing_field"},
    {"[{'role':'boss','content':'x'}]", "messages[0]", "invalid_value"},
    {"[{'role':'user','content':5}]", "messages[0]", "invalid_type"},
    {"[{'role':'user','content':[{'type':'image_url','image_url':'x'}]}]", "messages[0].content[0]",
     "media_unsupported"},
    {"[{'role':'user','content':[{'type':'hologram'}]}]", "messages[0].content[0]", "invalid_value"},
    {"[{'role':'user','content':[{'type':'text','text':5}]}]", "messages[0].content[0]", "invalid_type"},
};

static void test_wrong_fields(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        struct reply r = client_postf(&shared, CHAT, fields[i].code[0] == 'a' ? 404 : 400,
                                      "{" USER("x") ",%s,'stream':true}", fields[i].field);

        if (strcmp(text_at(r.json, "error.param"), fields[i].param) != 0 ||
            strcmp(text_at(r.json, "error.code"), fields[i].code) != 0)
            fail_msg("%s: %s", fields[i].field, r.body);
        reply_free(&r);
    }
    for (size_t i = 0; i < sizeof messages / sizeof messages[0]; i++) {
        struct reply r = client_postf(&shared, CHAT, 400, "{'messages':%s}", messages[i].messages);

        if (strcmp(text_at(r.json, "error.param"), messages[i].param) != 0 ||
            strcmp(text_at(r.json, "error.code"), messages[i].code) != 0)
            fail_msg("%s: %s", messages[i].messages, r.body);
        reply_free(&r);
    }
    {
        struct reply r = client_post(&shared, CHAT, "{\"messages\":[],\"temperature\":NaN}", 400);

        assert_string_equal(text_at(r.json, "error.code"), "invalid_json");
        reply_free(&r);
        r = client_postf(&shared, CHAT, 200,
                         "{" USER("Spell: dog") ",'max_tokens':1.0,'top_k':null,'colour':'red'}");
        assert_string_equal(text_at(r.json, "ext.ignored.0"), "colour");
        reply_free(&r);
        r = client_postf(&shared, TEXT, 400, "{'prompt':[[1],'x',5]}");
        assert_string_equal(text_at(r.json, "error.param"), "prompt[2]");
        reply_free(&r);
        r = client_postf(&shared, TEXT, 400, "{}");
        assert_string_equal(text_at(r.json, "error.code"), "missing_field");
        reply_free(&r);
        r = client_postf(&shared, TEXT, 400, "{'prompt':''}");
        reply_free(&r);
    }
}

static void test_overflow(void **state)
{
    struct esp_strbuf b;
    struct reply r;

    (void)state;
    esp_strbuf_init(&b, 1 << 20);
    esp_strbuf_puts(&b, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 1100; i++)
        esp_strbuf_puts(&b, " word");
    esp_strbuf_puts(&b, "\"}],\"stream\":true}");
    r = client_post(&shared, CHAT, esp_strbuf_str(&b), 400);
    assert_string_equal(text_at(r.json, "error.code"), "context_length_exceeded");
    assert_int_equal(int_at(r.json, "error.details.max_context"), 1024);
    assert_true(int_at(r.json, "error.details.prompt_tokens") > 1024);
    reply_free(&r);
    esp_strbuf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shared_cases),
                                       cmocka_unit_test(test_wrong_fields), cmocka_unit_test(test_overflow)};

    return cmocka_run_group_tests(tests, start_plain, stop);
}
