/*
 * What changed since an earlier answer: in the words of the messages dialect and in those of responses, and
 * that only so many are remembered.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/shared.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MESSAGES  "/v1/messages"
#define RESPONSES "/v1/responses"
#define TOOL(name)                                                                                           \
    "'tools':[{'name':'" name "','description':'Look up a word.','input_schema':{'type':'object',"           \
    "'properties':{'word':{'type':'string'}}}}],'tool_choice':{'type':'none'}"
#define ONE(system) "'system':'" system "','messages':[{'role':'user','content':'Spell: garden'}]"

enum { ENTRIES = 8 };

static int start(void **state)
{
    (void)state;
    server_init(&shared);
    shared.o.adapter_dir = test_path("models");
    shared.o.diag_entries = ENTRIES;
    shared.engine.max_rank = 16;
    shared.engine.spec = ESP_SPEC_NGRAM;
    server_start(&shared);
    return 0;
}

/* Answer's id of a message with these fields. */
static void first(char id[64], const char *fields)
{
    struct reply r = client_postf(&shared, MESSAGES, 200, "{%s,'max_tokens':8,'temperature':0}", fields);

    assert_null(at(r.json, "diagnostics"));
    snprintf(id, 64, "%s", text_at(r.json, "id"));
    reply_free(&r);
}

/* What it says of these fields behind that answer; NULL: nothing has changed. Whole and streamed. */
static int64_t differs(const char *id, const char *fields, const char *type)
{
    struct reply r = client_postf(
                     &shared, MESSAGES, 200,
                     "{%s,'max_tokens':8,'temperature':0,'diagnostics':{'previous_message_id':'%s'}}", fields,
                     id),
                 stream = client_postf(&shared, MESSAGES, 200,
                                       "{%s,'max_tokens':8,'stream':true,'diagnostics':"
                                       "{'previous_message_id':'%s'}}",
                                       fields, id);
    const json_t *said = at(r.json, "diagnostics");
    const int64_t missed = int_at(said, "cache_miss_reason.cache_missed_input_tokens");
    const char *event;
    json_t *v;

    assert_true(frame(&stream, 0, &v, &event));
    assert_string_equal(event, "message_start");
    if (!said || !json_equal((json_t *)said, (json_t *)at(v, "message.diagnostics")))
        fail_msg("%s is not as in %s", r.body, stream.body);
    if (type ? strcmp(text_at(said, "cache_miss_reason.type"), type) != 0 : !json_is_null(said))
        fail_msg("%s: %s", type ? type : "null", r.body);
    json_decref(v);
    reply_free(&r);
    reply_free(&stream);
    return missed;
}

static void test_messages(void **state)
{
    static const char longer[] =
        "'system':'Be brief.','messages':[{'role':'user','content':'Spell: garden'},{'role':'assistant',"
        "'content':'g a r d e n'},{'role':'user','content':'Spell: %s'}]";
    char id[64], text[512];

    (void)state;
    first(id, ONE("Be brief."));
    differs(id, ONE("Be brief."), NULL);
    assert_true(differs(id, ONE("Be long."), "system_changed") > 0);
    assert_true(differs(id, ONE("Be brief.") "," TOOL("look_up"), "tools_changed") > 0);
    differs("msg_000000000000000000000000", ONE("Be brief."), "previous_message_not_found");
    first(id, ONE("Be brief.") "," TOOL("look_up"));
    assert_true(differs(id, ONE("Be brief.") "," TOOL("look_at"), "tools_changed") > 0);
    differs(id, ONE("Be brief.") "," TOOL("look_up"), NULL);
    snprintf(text, sizeof text, longer, "dog");
    first(id, text);
    snprintf(text, sizeof text, longer, "cat");
    assert_true(differs(id, text, "messages_changed") > 0);
}

/* The first of a conversation, and fields that are not what they must be. */
static void test_first(void **state)
{
    struct reply r = client_postf(&shared, MESSAGES, 200,
                                  "{" ONE("x") ",'max_tokens':2,'diagnostics':{'previous_message_id':null}}");

    (void)state;
    assert_true(json_is_null(at(r.json, "diagnostics")));
    reply_free(&r);
    r = client_postf(&shared, MESSAGES, 400,
                     "{" ONE("x") ",'max_tokens':2,'diagnostics':{'previous_message_id':7}}");
    assert_non_null(strstr(text_at(r.json, "error.message"), "diagnostics.previous_message_id"));
    reply_free(&r);
    r = client_postf(&shared, RESPONSES, 400,
                     "{'input':'x','prompt_cache_options':{'comparison_response_id':7}}");
    assert_string_equal(text_at(r.json, "error.param"), "prompt_cache_options.comparison_response_id");
    reply_free(&r);
}

static void compared(const char *id, const char *fields, const char *type, const char *reason)
{
    struct reply r = client_postf(&shared, RESPONSES, 200,
                                  "{%s,'max_output_tokens':6,'temperature':0,'prompt_cache_options':"
                                  "{'comparison_response_id':'%s'}}",
                                  fields, id);

    if (strcmp(text_at(r.json, "prompt_cache_diagnostics.type"), type) != 0 ||
        strcmp(text_at(r.json, "prompt_cache_diagnostics.reason"), reason) != 0)
        fail_msg("%s %s: %s", type, reason, r.body);
    if (*reason) {
        assert_true(int_at(r.json, "prompt_cache_diagnostics.cache_missed_tokens") > 0);
        assert_true(int_at(r.json, "prompt_cache_diagnostics.comparison_reusable_tokens") >= 0);
    }
    reply_free(&r);
}

static void test_responses(void **state)
{
    struct reply r = client_postf(&shared, "/v1/adapters", 201, "{'id':'caps','path':'demo-lora-caps'}");
    char id[64];

    (void)state;
    reply_free(&r);
    r = client_postf(
        &shared, RESPONSES, 200,
        "{'input':[{'role':'user','content':'Spell: garden and river'},{'role':'assistant','content':"
        "'garden'},{'role':'user','content':'Spell: dog'}],'max_output_tokens':6,'temperature':0}");
    assert_null(at(r.json, "prompt_cache_diagnostics"));
    snprintf(id, sizeof id, "%s", text_at(r.json, "id"));
    reply_free(&r);
    compared(id,
             "'input':[{'role':'user','content':'Spell: garden and river'},{'role':'assistant','content':"
             "'garden'},{'role':'user','content':'Spell: dog'}]",
             "cache_hit", "");
    compared(id,
             "'input':[{'role':'user','content':'Spell: garden and river'},{'role':'assistant','content':"
             "'garden'},{'role':'user','content':'Spell: cat'}]",
             "cache_miss", "input_changed");
    compared(id, "'input':'Summary: all was spelled'", "cache_miss", "context_compacted");
    compared(id, "'adapter':'caps','input':'Spell: garden and river'", "cache_miss", "model_changed");
    compared("resp_000000000000000000000000", "'input':'x'", "comparison_response_not_found", "");
    compared(id,
             "'cache_prompt':false,'input':[{'role':'user','content':'Spell: garden and river'},{'role':"
             "'assistant','content':'garden'},{'role':'user','content':'Spell: dog'}]",
             "unavailable", "");
    for (int i = 0; i < ENTRIES; i++) {
        r = client_postf(&shared, RESPONSES, 200, "{'input':'%d','max_output_tokens':1}", i);
        reply_free(&r);
    }
    compared(id, "'input':'x'", "comparison_response_not_found", "");
    r = client_do(&shared, "GET", "/stats", NULL, NULL);
    assert_int_equal(int_at(r.json, "diag.entries"), ENTRIES);
    assert_true(int_at(r.json, "diag.bytes") > 0);
    reply_free(&r);
}

/* A row that drafts is one while it runs. */
static void test_rows(void **state)
{
    static const char body[] =
        "{\"prompt\":\"a b a b a b\",\"max_tokens\":400,\"min_tokens\":400,\"stream\":true}";
    const int fd = client_connect(&shared);
    int64_t rows = 0, running = 0;
    char request[512];
    struct reply r;

    (void)state;
    snprintf(request, sizeof request,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
             sizeof body - 1, body);
    client_send(fd, request);
    for (int i = 0; i < 2000 && (rows < 1 || running < 1); i++) {
        r = client_do(&shared, "GET", "/stats", NULL, NULL);
        rows = int_at(r.json, "spec.enabled_rows");
        running = int_at(r.json, "admission.running");
        reply_free(&r);
        usleep(1000);
    }
    assert_int_equal(rows, 1);
    close(fd);
    for (int i = 0; i < 2000 && rows; i++) {
        r = client_do(&shared, "GET", "/stats", NULL, NULL);
        rows = int_at(r.json, "spec.enabled_rows");
        reply_free(&r);
        usleep(1000);
    }
    assert_int_equal(rows, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_messages), cmocka_unit_test(test_first),
                                       cmocka_unit_test(test_responses), cmocka_unit_test(test_rows)};

    return cmocka_run_group_tests(tests, start, stop);
}
