/*
 * The other two dialects: blocks and items in order, streams that add up to the whole, history that comes
 * back, and what is refused.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/shared.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define MESSAGES  "/v1/messages"
#define RESPONSES "/v1/responses"

#define USER(text) "'messages':[{'role':'user','content':'" text "'}]"
#define TOOL                                                                                                 \
    "'name':'look_up','description':'Look up a "                                                             \
    "word.','%s':{'type':'object','properties':{'word':{'type':'string'}}"                                   \
    ",'required':['word']}"

/* ---- messages ---- */

/* The grammar of the stream, and its blocks put together as the whole answer has them. */
static json_t *blocks_of(const struct reply *r, char reason[32])
{
    json_t *blocks = json_array(), *v, *open = NULL;
    struct esp_strbuf text;
    const char *event;
    int64_t index = -1;
    bool over = false;

    esp_strbuf_init(&text, 1 << 20);
    for (size_t i = 0; frame(r, i, &v, &event); i++) {
        assert_string_equal(event, text_at(v, "type"));
        assert_false(over);
        if (i == 0)
            assert_string_equal(event, "message_start");
        if (strcmp(event, "content_block_start") == 0) {
            assert_null(open);
            assert_int_equal(int_at(v, "index"), ++index);
            open = json_deep_copy(at(v, "content_block"));
            esp_strbuf_clear(&text);
        } else if (strcmp(event, "content_block_delta") == 0) {
            assert_non_null(open);
            esp_strbuf_puts(&text, text_at(v, "delta.text"));
            esp_strbuf_puts(&text, text_at(v, "delta.thinking"));
            esp_strbuf_puts(&text, text_at(v, "delta.partial_json"));
            if (text_at(v, "delta.signature")[0])
                json_object_set(open, "signature", json_object_get(at(v, "delta"), "signature"));
        } else if (strcmp(event, "content_block_stop") == 0) {
            const char *kind = text_at(open, "type");

            if (strcmp(kind, "tool_use") == 0)
                json_object_set_new(open, "input", json_loads(esp_strbuf_str(&text), 0, NULL));
            else
                json_object_set_new(open, kind, json_string(esp_strbuf_str(&text)));
            json_array_append_new(blocks, open);
            open = NULL;
        } else if (strcmp(event, "message_delta") == 0) {
            snprintf(reason, 32, "%s", text_at(v, "delta.stop_reason"));
        } else if (strcmp(event, "message_stop") == 0) {
            over = true;
        }
        json_decref(v);
    }
    assert_true(over);
    esp_strbuf_free(&text);
    return blocks;
}

/* Ids and signatures differ from answer to answer. */
static void without_ids(json_t *blocks)
{
    size_t i;
    json_t *b;

    json_array_foreach(blocks, i, b)
    {
        json_object_del(b, "id");
        json_object_del(b, "signature");
    }
}

static void same_blocks(const char *body)
{
    struct reply whole = client_postf(&shared, MESSAGES, 200, "{%s}", body),
                 stream = client_postf(&shared, MESSAGES "?beta=true", 200, "{%s,'stream':true}", body);
    char reason[32] = "";
    json_t *blocks = blocks_of(&stream, reason), *want = json_deep_copy(at(whole.json, "content"));

    without_ids(blocks);
    without_ids(want);
    if (!json_equal(blocks, want))
        fail_msg("%s: %s", whole.body, stream.body);
    assert_string_equal(reason, text_at(whole.json, "stop_reason"));
    json_decref(blocks);
    json_decref(want);
    reply_free(&whole);
    reply_free(&stream);
}

static void test_messages(void **state)
{
    struct reply r =
        client_postf(&shared, MESSAGES, 200,
                     "{'max_tokens':40,'temperature':0,'system':[{'type':'text','text':'Be brief.'}]," USER(
                         "Spell: garden") "}");

    (void)state;
    assert_string_equal(text_at(r.json, "type"), "message");
    assert_string_equal(text_at(r.json, "content.0.text"), "garden.");
    assert_string_equal(text_at(r.json, "stop_reason"), "end_turn");
    assert_true(int_at(r.json, "usage.input_tokens") + int_at(r.json, "usage.cache_read_input_tokens") > 15);
    reply_free(&r);
    same_blocks("'max_tokens':40,'temperature':0," USER("Spell: garden"));
    same_blocks("'max_tokens':90,'temperature':0,'thinking':{'type':'enabled','budget_tokens':1024}," USER(
        "Add: 12 + 7"));
    same_blocks("'max_tokens':90,'temperature':0,'stop_sequences':['den']," USER("Spell: garden"));
    same_blocks(
        "'max_tokens':90,'temperature':0,'tools':[{'name':'look_up','input_schema':{'type':'object','"
        "properties':"
        "{'word':{'type':'string'}}}},{'type':'web_search_1','name':'w'}],'tool_choice':{'type':'any'}," USER(
            "Look up the word pencil."));
}

static void test_messages_history(void **state)
{
    struct reply r = client_postf(
        &shared, MESSAGES "/count_tokens", 200,
        "{'messages':[{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':'b'}]},"
        "{'role':'assistant','content':[{'type':'thinking','thinking':'t','signature':'s'},{'type':'text','"
        "text':'c'},"
        "{'type':'tool_use','id':'x','name':'f','input':{'k':1}}]},{'role':'user','content':[{'type':'tool_"
        "result',"
        "'tool_use_id':'x','is_error':true,'content':[{'type':'text','text':'no'}]},{'type':'text','text':'d'"
        "}]}]}");
    struct reply t = client_postf(
        &shared, "/apply-template", 200,
        "{'enable_thinking':false,'messages':[{'role':'user','content':'ab'},{'role':'assistant',"
        "'content':'c','reasoning_content':'t','tool_calls':[{'function':{'name':'f','arguments':"
        "{'k':1}}}]},{'role':'tool','content':'Error: no'},{'role':'user','content':'d'}]}");

    (void)state;
    assert_int_equal(int_at(r.json, "input_tokens"), json_array_size(at(t.json, "tokens")));
    reply_free(&r);
    reply_free(&t);
    /* an answer that is begun is continued */
    r = client_postf(&shared, MESSAGES, 200,
                     "{'max_tokens':20,'temperature':0,'messages':[{'role':'user','content':'Spell: garden'},"
                     "{'role':'assistant','content':'gar'}]}");
    t = client_postf(
        &shared, "/tokenize", 200,
        "{'content':'<|im_start|>user\\nSpell: garden<|im_end|>\\n<|im_start|>assistant\\ngar'}");
    assert_int_equal(int_at(r.json, "usage.input_tokens") + int_at(r.json, "usage.cache_read_input_tokens"),
                     int_at(t.json, "count"));
    reply_free(&t);
    reply_free(&r);
}

static void test_messages_refused(void **state)
{
    static const struct {
        const char *body, *part;
    } c[] = {
        {"{" USER("x") "}", "max_tokens: missing"},
        {"{'max_tokens':5}", "messages: missing"},
        {"{'max_tokens':5,'messages':[]}", "messages: 0"},
        {"{'max_tokens':5,'messages':[{'role':'tool','content':'x'}]}", "messages[0].role"},
        {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'image'}]}]}",
         "images are not supported"},
        {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'tool_use'}]}]}", "content[0].name"},
        {"{'max_tokens':5,'tool_choice':{'type':'tool'}," USER("x") "}", "tool_choice.name"},
        {"{'max_tokens':5,'tool_choice':{'type':'any'}," USER("x") "}", "needs tools"},
        {"{'max_tokens':5,'output_config':{'format':{'type':'json_schema'}}," USER("x") "}",
         "output_config.format"},
        {"{'max_tokens':5,'thinking':{'type':'maybe'}," USER("x") "}", "thinking.type"},
        {"{'max_tokens':5,'stop_sequences':[1]," USER("x") "}", "stop_sequences"},
        {"{'max_tokens':-1," USER("x") "}", "max_tokens: -1"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        struct reply r = client_postf(&shared, MESSAGES, 400, "%s", c[i].body);

        assert_string_equal(text_at(r.json, "type"), "error");
        assert_string_equal(text_at(r.json, "error.type"), "invalid_request_error");
        if (!strstr(text_at(r.json, "error.message"), c[i].part))
            fail_msg("%s: %s", c[i].body, r.body);
        reply_free(&r);
    }
    {
        struct esp_strbuf b;
        struct reply r;

        esp_strbuf_init(&b, 1 << 20);
        esp_strbuf_puts(&b, "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"");
        for (int i = 0; i < 1100; i++)
            esp_strbuf_puts(&b, " word");
        esp_strbuf_puts(&b, "\"}]}");
        r = client_post(&shared, MESSAGES, esp_strbuf_str(&b), 400);
        assert_true(strncmp(text_at(r.json, "error.message"), "prompt is too long: ", 20) == 0);
        assert_non_null(strstr(text_at(r.json, "error.message"), " tokens > 1024 maximum"));
        reply_free(&r);
        esp_strbuf_free(&b);
    }
}

/* ---- responses ---- */

/* Numbers rise by one, items open and close in turn, the last event has them all. */
static void check_events(const struct reply *r, const char *last)
{
    json_t *items = json_array(), *v, *final = NULL;
    const char *event;
    bool open = false;

    for (size_t i = 0; frame(r, i, &v, &event); i++) {
        assert_string_equal(event, text_at(v, "type"));
        assert_int_equal(int_at(v, "sequence_number"), (int64_t)i);
        assert_null(final);
        if (i == 0)
            assert_string_equal(event, "response.created");
        if (strcmp(event, "response.output_item.added") == 0) {
            assert_false(open);
            assert_int_equal(int_at(v, "output_index"), (int64_t)json_array_size(items));
            open = true;
        } else if (strcmp(event, "response.output_item.done") == 0) {
            assert_true(open);
            json_array_append(items, json_object_get(v, "item"));
            open = false;
        } else if (strcmp(event, last) == 0) {
            final = json_deep_copy(at(v, "response"));
        } else if (strstr(event, ".delta")) {
            assert_true(open);
            assert_int_equal(int_at(v, "output_index"), (int64_t)json_array_size(items));
        }
        json_decref(v);
    }
    if (!final)
        fail_msg("no %s in: %s", last, r->body);
    assert_true(json_equal(at(final, "output"), items));
    json_decref(final);
    json_decref(items);
}

static void test_responses(void **state)
{
    static const struct {
        const char *body, *last;
    } c[] = {
        {"'input':'Spell: garden'", "response.completed"},
        {"'input':'Add: 12 + "
         "7','reasoning':{'effort':'low','summary':'auto'},'include':['reasoning.encrypted_content']",
         "response.completed"},
        {"'input':[{'role':'user','content':[{'type':'input_text','text':'Spell: "
         "garden'}]}],'max_output_tokens':2,"
         "'include':['message.output_text.logprobs']",
         "response.incomplete"},
        {"'input':'Look up the word "
         "pencil.','tools':[{'type':'function','name':'look_up','parameters':{'type':'object',"
         "'properties':{'word':{'type':'string'}}}},{'type':'web_search'}],'tool_choice':'required'",
         "response.completed"},
        {"'input':'Look up the word "
         "pencil.','tools':[{'type':'custom','name':'look_up'}],'tool_choice':'required',"
         "'max_output_tokens':60",
         "response.completed"},
        {"'input':'Look up the word "
         "pencil.','tools':[{'type':'namespace','name':'ns','tools':[{'type':'function','name':"
         "'look_up','parameters':{}}]}],'tool_choice':'required','max_output_tokens':60",
         "response.completed"},
    };
    struct reply r;

    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        r = client_postf(&shared, RESPONSES, 200, "{%s,'temperature':0,'stream':true}", c[i].body);
        check_events(&r, strstr(r.body, "response.incomplete") ? "response.incomplete" : c[i].last);
        reply_free(&r);
    }
    r = client_postf(&shared, RESPONSES, 200, "{%s,'temperature':0}", c[1].body);
    assert_string_equal(text_at(r.json, "output.0.type"), "reasoning");
    assert_true(strncmp(text_at(r.json, "output.0.encrypted_content"), "espr1.", 6) == 0);
    assert_string_equal(text_at(r.json, "output.0.summary.0.type"), "summary_text");
    assert_string_equal(text_at(r.json, "output.1.content.0.type"), "output_text");
    assert_true(int_at(r.json, "usage.output_tokens_details.reasoning_tokens") > 0);
    reply_free(&r);
    r = client_postf(&shared, RESPONSES, 200, "{%s,'temperature':0}", c[5].body);
    assert_string_equal(text_at(r.json, "output.0.namespace"), "ns");
    assert_string_equal(text_at(r.json, "output.0.name"), "look_up");
    reply_free(&r);
}

/* A call that max_output_tokens cut is in no output; a client that has it from a stream may send it back. */
static void test_half_a_call(void **state)
{
    static const char tool[] = "'tools':[{'type':'function','name':'look_up','parameters':{'type':'object','"
                               "properties':{'word':{'type':"
                               "'string'}},'required':['word']}}],'tool_choice':'required','temperature':0";
    struct reply r = client_postf(&shared, RESPONSES, 200,
                                  "{'input':'Look up the word pencil.','max_output_tokens':12,%s}", tool);

    (void)state;
    assert_string_equal(text_at(r.json, "status"), "incomplete");
    assert_null(strstr(r.body, "\"function_call\""));
    reply_free(&r);
    r = client_postf(&shared, RESPONSES, 200,
                     "{'input':'Look up the word pencil.','max_output_tokens':12,'stream':true,%s}", tool);
    assert_non_null(strstr(r.body, "\"function_call\""));
    assert_null(strstr(strstr(r.body, "event: response.incomplete"), "\"function_call\""));
    reply_free(&r);
    r = client_postf(
        &shared, RESPONSES, 200,
        "{'input':[{'role':'user','content':'x'},{'type':'function_call','call_id':'c','name':'look_up',"
        "'arguments':'{','status':'incomplete'},{'role':'user','content':'y'}],'max_output_tokens':2}");
    assert_non_null(strstr(r.body, "cut off"));
    reply_free(&r);
}

static void test_store(void **state)
{
    struct reply first = client_postf(
                     &shared, RESPONSES, 200,
                     "{'input':'Spell: garden','instructions':'Be brief.','temperature':0,'metadata':"
                     "{'k':'v'}}"),
                 next, r;
    char path[128];

    (void)state;
    next = client_postf(&shared, RESPONSES, 200,
                        "{'input':'Spell: dog','temperature':0,'previous_response_id':'%s'}",
                        text_at(first.json, "id"));
    assert_string_equal(text_at(next.json, "instructions"), "Be brief.");
    assert_string_equal(text_at(next.json, "previous_response_id"), text_at(first.json, "id"));
    r = client_postf(
        &shared, RESPONSES "/input_tokens", 200,
        "{'instructions':'Be brief.','input':[{'role':'user','content':'Spell: garden'},{'role':'assistant',"
        "'content':'garden.'},{'role':'user','content':'Spell: dog'}]}");
    assert_int_equal(int_at(r.json, "input_tokens"), int_at(next.json, "usage.input_tokens"));
    reply_free(&r);
    snprintf(path, sizeof path, RESPONSES "/%s", text_at(first.json, "id"));
    r = client_do(&shared, "GET", path, NULL, NULL);
    assert_true(json_equal(at(r.json, "output"), at(first.json, "output")));
    assert_string_equal(text_at(r.json, "metadata.k"), "v");
    reply_free(&r);
    snprintf(path, sizeof path, RESPONSES "/%s/input_items", text_at(first.json, "id"));
    r = client_do(&shared, "GET", path, NULL, NULL);
    assert_string_equal(text_at(r.json, "data.0.content.0.text"), "Spell: garden");
    reply_free(&r);
    snprintf(path, sizeof path, RESPONSES "/%s", text_at(first.json, "id"));
    r = client_do(&shared, "DELETE", path, NULL, NULL);
    assert_true(json_is_true(at(r.json, "deleted")));
    reply_free(&r);
    r = client_do(&shared, "GET", path, NULL, NULL);
    assert_int_equal(r.status, 404);
    assert_string_equal(text_at(r.json, "error.code"), "response_not_found");
    reply_free(&r);
    r = client_postf(&shared, RESPONSES, 404, "{'input':'x','previous_response_id':'%s'}",
                     text_at(first.json, "id"));
    reply_free(&r);
    reply_free(&first);
    reply_free(&next);
    first = client_postf(&shared, RESPONSES, 200, "{'input':'Spell: garden','temperature':0,'store':false}");
    snprintf(path, sizeof path, RESPONSES "/%s", text_at(first.json, "id"));
    r = client_do(&shared, "GET", path, NULL, NULL);
    assert_int_equal(r.status, 404);
    reply_free(&r);
    reply_free(&first);
}

static void test_responses_refused(void **state)
{
    static const struct {
        const char *body, *param;
    } c[] = {
        {"{}", "input"},
        {"{'input':5}", "input"},
        {"{'input':[5]}", "input[0]"},
        {"{'input':[{'type':'function_call'}]}", "input[0]"},
        {"{'input':[{'type':'function_call_output'}]}", "input[0]"},
        {"{'input':[{'role':'user','content':[{'type':'input_image'}]}]}", "messages[0].content[0]"},
        {"{'input':'x','background':true}", "background"},
        {"{'input':'x','conversation':'c'}", "conversation"},
        {"{'input':'x','truncation':'some'}", "truncation"},
        {"{'input':'x','text':{'format':{'type':'json_schema'}}}", "text.format"},
        {"{'input':'x','reasoning':{'effort':'big'}}", "reasoning.effort"},
        {"{'input':'x','n':2}", "n"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        struct reply r = client_postf(&shared, RESPONSES, 400, "%s", c[i].body);

        if (strcmp(text_at(r.json, "error.param"), c[i].param) != 0)
            fail_msg("%s: %s", c[i].body, r.body);
        reply_free(&r);
    }
}

/* ---- structured output ---- */

#define PERSON                                                                                               \
    "{'type':'object','properties':{'name':{'type':'string','maxLength':6},'age':{'type':'integer'},'tags':" \
    "{"                                                                                                      \
    "'type':'array','items':{'enum':['a','b']},'maxItems':2}},'required':['name','age'],'"                   \
    "additionalProperties':false}"

/* A person, whatever the model would rather say. */
static void check_person(const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    const json_t *name = json_object_get(v, "name");

    if (!json_is_string(name) || !json_is_integer(json_object_get(v, "age")))
        fail_msg("'%s' is no person", text);
    assert_true(json_string_length(name) <= 6);
    json_decref(v);
}

static void test_structured(void **state)
{
    struct reply r =
        client_postf(&shared, "/v1/chat/completions", 200,
                     "{" USER("Who is it?") ",'n':2,'seed':4,'temperature':1,'max_tokens':150,"
                                            "'response_format':{'type':'json_schema','json_schema':{"
                                            "'name':'p','strict':true,'schema':" PERSON "}}}");

    (void)state;
    check_person(text_at(r.json, "choices.0.message.content"));
    check_person(text_at(r.json, "choices.1.message.content"));
    assert_string_equal(text_at(r.json, "choices.0.finish_reason"), "stop");
    reply_free(&r);
    /* thinking first, and cut short; the form holds behind it */
    r = client_postf(
        &shared, "/v1/chat/completions", 200,
        "{" USER(
            "Add: 12 + 7") ",'enable_thinking':true,'thinking_budget':5,'temperature':0,'max_tokens':300,"
                           "'json_schema':" PERSON "}");
    check_person(text_at(r.json, "choices.0.message.content"));
    assert_true(text_at(r.json, "choices.0.message.reasoning_content")[0] != '\0');
    reply_free(&r);
    r = client_postf(&shared, RESPONSES, 200,
                     "{'input':'Who is "
                     "it?','temperature':0,'max_output_tokens':150,'text':{'format':{'type':'json_schema',"
                     "'name':'p','strict':true,'schema':" PERSON "}}}");
    check_person(text_at(r.json, "output.0.content.0.text"));
    reply_free(&r);
    r = client_postf(
        &shared, MESSAGES, 200,
        "{" USER("Who is it?") ",'temperature':0,'max_tokens':150,'output_config':{'format':{'type':"
                               "'json_schema','schema':" PERSON "}}}");
    check_person(text_at(r.json, "content.0.text"));
    reply_free(&r);
    r = client_postf(&shared, "/v1/completions", 200,
                     "{'prompt':['It is ','So "
                     "'],'temperature':1,'seed':1,'structured_outputs':{'choice':['red','green']}}");
    for (int i = 0; i < 2; i++) {
        const char *text = text_at(r.json, i ? "choices.1.text" : "choices.0.text");

        assert_true(strcmp(text, "red") == 0 || strcmp(text, "green") == 0);
    }
    reply_free(&r);
    r = client_postf(
        &shared, "/v1/completions", 200,
        "{'prompt':'It is ','temperature':1,'seed':1,'guided_regex':'[0-9]{3}-[a-c]+','max_tokens':12}");
    assert_true(text_at(r.json, "choices.0.text")[3] == '-');
    reply_free(&r);
    /* strict tools: the arguments too */
    r = client_postf(
        &shared, "/v1/chat/completions", 200,
        "{" USER("Add: 12 + 7") ",'temperature':1,'seed':3,'max_tokens':200,'parallel_tool_calls':false,"
                                "'tool_choice':'required','tools':[{'type':'function','function':{'name':'f',"
                                "'strict':true,'parameters':" PERSON "}}]}");
    check_person(text_at(r.json, "choices.0.message.tool_calls.0.function.arguments"));
    reply_free(&r);
}

/* The context ends an answer that had no limit, or a higher one: that is no wish of the client's. */
static void test_full(void **state)
{
    static const char *const fields[] = {"", ",'max_output_tokens':100000"};
    struct server s;

    (void)state;
    server_init(&s);
    s.engine.context = 64;
    server_start(&s);
    for (int i = 0; i < 4; i++) {
        struct reply r = client_postf(&s, RESPONSES, 200, "{'input':'x','ignore_eos':true%s%s}",
                                      fields[i / 2], i % 2 ? ",'stream':true" : "");

        if (i % 2)
            assert_non_null(strstr(r.body, "event: response.failed"));
        else
            assert_string_equal(text_at(r.json, "status"), "failed");
        assert_non_null(strstr(r.body, "\"error\":{\"code\":\"context_length_exceeded\""));
        reply_free(&r);
    }
    server_stop(&s);
}

/* Results come in any order; the prompt has them in that of their calls, those of none where they stood. */
static void test_result_order(void **state)
{
#define CALL(id, word)                                                                                       \
    "{'id':'" id "','type':'function','function':{'name':'look_up','arguments':'{\\\"word\\\":\\\"" word     \
    "\\\"}'}}"
#define RESULT(id, text) "{'role':'tool','tool_call_id':'" id "','content':'" text "'}"
    static const char begin[] =
        "{'messages':[{'role':'user','content':'x'},{'role':'assistant','content':'',"
        "'tool_calls':[" CALL("a", "one") "," CALL("b", "two") "," CALL("c", "three") "]},";
    struct reply in_order = client_postf(&shared, "/apply-template", 200, "%s%s", begin,
                                         RESULT("a", "first") "," RESULT("?", "odd") "," RESULT(
                                             "b", "second") "," RESULT("c", "third") "]}"),
                 mixed = client_postf(&shared, "/apply-template", 200, "%s%s", begin,
                                      RESULT("c", "third") "," RESULT("?", "odd") "," RESULT(
                                          "a", "first") "," RESULT("b", "second") "]}");

    (void)state;
    assert_non_null(strstr(text_at(in_order.json, "prompt"), "third"));
    assert_string_equal(text_at(in_order.json, "prompt"), text_at(mixed.json, "prompt"));
    reply_free(&in_order);
    reply_free(&mixed);
    mixed = client_postf(
        &shared, "/v1/messages/count_tokens", 200,
        "{'messages':[{'role':'user','content':'x'},{'role':'assistant','content':[{'type':"
        "'tool_use','id':'a','name':'f','input':{}},{'type':'tool_use','id':'b','name':'f','input':"
        "{}}]},{'role':'user','content':[{'type':'tool_result','tool_use_id':'b','content':'2'},"
        "{'type':'tool_result','tool_use_id':'a','content':'1'}]}]}");
    assert_true(int_at(mixed.json, "input_tokens") > 10);
    reply_free(&mixed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_messages),
                                       cmocka_unit_test(test_messages_history),
                                       cmocka_unit_test(test_messages_refused),
                                       cmocka_unit_test(test_responses),
                                       cmocka_unit_test(test_store),
                                       cmocka_unit_test(test_responses_refused),
                                       cmocka_unit_test(test_structured),
                                       cmocka_unit_test(test_half_a_call),
                                       cmocka_unit_test(test_full),
                                       cmocka_unit_test(test_result_order)};

    return cmocka_run_group_tests(tests, start_plain, stop);
}
