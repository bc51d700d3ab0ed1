/*
 * Chats and completions over the wire: streams equal whole answers, settings are kept, every wrong field is
 * refused by name before anything runs, and whoever leaves or stalls disturbs nobody.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"

static int start(void **state)
{
    (void)state;
    server_init(&shared);
    shared.o.sse_ping = 0.2;
    server_start(&shared);
    return 0;
}

/* ---- streams ---- */

struct joined {
    struct esp_strbuf content, reasoning, args;
    char name[64], finish[32], id[64];
    int64_t n_chunk, n_role, n_finish, n_usage, total_tokens, n_logprob;
    bool done;
};

static void joined_free(struct joined *j)
{
    esp_strbuf_free(&j->content);
    esp_strbuf_free(&j->reasoning);
    esp_strbuf_free(&j->args);
}

static void add_chunk(struct joined *j, const json_t *v)
{
    const json_t *delta = at(v, "choices.0.delta"), *call = at(delta, "tool_calls.0");
    const char *finish = text_at(v, "choices.0.finish_reason");

    assert_string_equal(text_at(v, "object"), "chat.completion.chunk");
    if (!j->id[0])
        snprintf(j->id, sizeof j->id, "%s", text_at(v, "id"));
    assert_string_equal(text_at(v, "id"), j->id);
    j->n_chunk++;
    j->n_role += json_object_get(delta, "role") != NULL;
    assert_true((json_object_get(delta, "content") != NULL) +
                    (json_object_get(delta, "reasoning_content") != NULL) + (call != NULL) <=
                1);
    esp_strbuf_puts(&j->content, text_at(delta, "content"));
    esp_strbuf_puts(&j->reasoning, text_at(delta, "reasoning_content"));
    esp_strbuf_puts(&j->args, text_at(call, "function.arguments"));
    if (json_object_get(call, "id")) {
        assert_string_equal(j->name, "");
        snprintf(j->name, sizeof j->name, "%s", text_at(call, "function.name"));
    }
    j->n_logprob += (int64_t)json_array_size(at(v, "choices.0.logprobs.content"));
    if (*finish) {
        j->n_finish++;
        snprintf(j->finish, sizeof j->finish, "%s", finish);
        assert_int_equal(json_object_size(delta), 0);
    }
    if (json_is_object(json_object_get(v, "usage"))) {
        j->n_usage++;
        j->total_tokens = int_at(v, "usage.total_tokens");
        assert_int_equal(json_array_size(at(v, "choices")), 0);
    }
}

static struct joined join(const struct reply *r)
{
    struct joined j = {.total_tokens = -1};
    json_t *v;

    esp_strbuf_init(&j.content, 1 << 20);
    esp_strbuf_init(&j.reasoning, 1 << 20);
    esp_strbuf_init(&j.args, 1 << 20);
    for (size_t i = 0; frame(r, i, &v, NULL); i++) {
        assert_false(j.done);
        if (v)
            add_chunk(&j, v);
        json_decref(v);
    }
    j.done = strlen(r->body) > 15 && strcmp(r->body + strlen(r->body) - 14, "data: [DONE]\n\n") == 0;
    return j;
}

/* The same body whole and streamed gives the same message. */
static void same_both_ways(const char *body)
{
    char text[4096];
    struct reply whole, stream;
    struct joined j;
    const json_t *m;

    snprintf(text, sizeof text, "{%s}", body);
    whole = client_postf(&shared, CHAT, 200, "%s", text);
    snprintf(text, sizeof text, "{%s,'stream':true,'stream_options':{'include_usage':true}}", body);
    stream = client_postf(&shared, CHAT, 200, "%s", text);
    j = join(&stream);
    m = at(whole.json, "choices.0.message");
    assert_true(j.done && j.n_role == 1 && j.n_finish == 1 && j.n_usage == 1);
    assert_string_equal(esp_strbuf_str(&j.content), text_at(m, "content"));
    assert_string_equal(esp_strbuf_str(&j.reasoning), text_at(m, "reasoning_content"));
    assert_string_equal(j.name, text_at(m, "tool_calls.0.function.name"));
    assert_string_equal(esp_strbuf_str(&j.args), text_at(m, "tool_calls.0.function.arguments"));
    assert_string_equal(j.finish, text_at(whole.json, "choices.0.finish_reason"));
    assert_int_equal(j.total_tokens, int_at(whole.json, "usage.total_tokens"));
    assert_int_equal(j.n_logprob > 0 ? j.n_logprob : 0,
                     (int64_t)json_array_size(at(whole.json, "choices.0.logprobs.content")));
    joined_free(&j);
    reply_free(&whole);
    reply_free(&stream);
}

#define USER(text) "'messages':[{'role':'user','content':'" text "'}]"
#define GREEDY     ",'temperature':0"
#define TOOLS                                                                                                \
    ",'tools':[{'type':'function','function':{'name':'look_up','description':'Look up a "                    \
    "word.','parameters':"                                                                                   \
    "{'type':'object','properties':{'word':{'type':'string'}},'required':['word']}}}]"

static void test_streams(void **state)
{
    (void)state;
    same_both_ways(USER("Spell: garden") GREEDY);
    same_both_ways(USER("Spell: garden") GREEDY ",'logprobs':true,'top_logprobs':3");
    same_both_ways(USER("Add: 12 + 7") GREEDY ",'enable_thinking':true");
    same_both_ways(USER("Add: 12 + 7") GREEDY ",'reasoning_effort':'low','max_tokens':9");
    same_both_ways(USER("Look up the word pencil.") GREEDY TOOLS);
    same_both_ways(USER("Spell: garden") GREEDY ",'stop':'den'");
    same_both_ways(USER("Spell: garden") GREEDY ",'stop':['en.','den'],'logprobs':true");
    same_both_ways(USER("Repeat: red blue green") ",'temperature':1.5,'seed':77,'max_tokens':20");
}

static void test_tools(void **state)
{
    struct reply r = client_postf(&shared, CHAT, 200, "{" USER("Look up the word pencil.") GREEDY TOOLS "}");
    json_t *args;

    (void)state;
    assert_string_equal(text_at(r.json, "choices.0.finish_reason"), "tool_calls");
    assert_string_equal(text_at(r.json, "choices.0.message.tool_calls.0.function.name"), "look_up");
    assert_true(strncmp(text_at(r.json, "choices.0.message.tool_calls.0.id"), "call_", 5) == 0);
    args = json_loads(text_at(r.json, "choices.0.message.tool_calls.0.function.arguments"), 0, NULL);
    assert_true(json_is_string(json_object_get(args, "word")));
    json_decref(args);
    reply_free(&r);
    /* cut inside the call: it is not there, nor are its tags */
    r = client_postf(&shared, CHAT, 200,
                     "{" USER("Look up the word pencil.") GREEDY TOOLS ",'max_tokens':9}");
    assert_string_equal(text_at(r.json, "choices.0.finish_reason"), "length");
    assert_null(at(r.json, "choices.0.message.tool_calls"));
    assert_string_equal(text_at(r.json, "choices.0.message.content"), "");
    reply_free(&r);
    /* forced, with and without thinking, and forbidden */
    r = client_postf(&shared, CHAT, 200,
                     "{" USER("Spell: dog") GREEDY TOOLS
                     ",'tool_choice':{'type':'function','function':{'name':'look_up'}},'max_tokens':60}");
    assert_string_equal(text_at(r.json, "choices.0.message.tool_calls.0.function.name"), "look_up");
    reply_free(&r);
    r = client_postf(&shared, CHAT, 200,
                     "{" USER("Add: 12 + 7") GREEDY TOOLS
                     ",'tool_choice':'required','enable_thinking':true,'max_tokens':200}");
    assert_string_equal(text_at(r.json, "choices.0.message.tool_calls.0.function.name"), "look_up");
    assert_true(text_at(r.json, "choices.0.message.reasoning_content")[0] != '\0');
    reply_free(&r);
    r = client_postf(&shared, CHAT, 200,
                     "{" USER("Look up the word pencil.") GREEDY TOOLS
                     ",'tool_choice':'none','max_tokens':30}");
    assert_null(at(r.json, "choices.0.message.tool_calls"));
    assert_null(strstr(r.body, "<tool_call>"));
    reply_free(&r);
}

static void test_thinking(void **state)
{
    struct reply r = client_postf(
        &shared, CHAT, 200, "{" USER("Add: 12 + 7") GREEDY ",'enable_thinking':true,'thinking_budget':6}");

    (void)state;
    assert_non_null(
        strstr(text_at(r.json, "choices.0.message.reasoning_content"), "Considering the limited time"));
    assert_true(int_at(r.json, "usage.completion_tokens_details.reasoning_tokens") > 6);
    reply_free(&r);
    r = client_postf(&shared, CHAT, 200,
                     "{" USER("Add: 12 + 7") GREEDY ",'enable_thinking':true,'max_tokens':5}");
    assert_string_equal(text_at(r.json, "choices.0.finish_reason"), "length");
    assert_true(json_is_null(at(r.json, "choices.0.message.content")));
    assert_int_equal(int_at(r.json, "usage.completion_tokens"), 5);
    reply_free(&r);
    r = client_postf(&shared, CHAT, 200,
                     "{" USER("Add: 12 + 7") GREEDY ",'enable_thinking':true,'include_reasoning':false}");
    assert_null(at(r.json, "choices.0.message.reasoning_content"));
    assert_true(int_at(r.json, "usage.completion_tokens_details.reasoning_tokens") > 0);
    reply_free(&r);
}

/* ---- settings ---- */

static void test_choices(void **state)
{
    struct reply r = client_postf(
                     &shared, CHAT, 200,
                     "{" USER("Tell me a story.") ",'temperature':1,'seed':5,'n':3,'max_tokens':12}"),
                 again = client_postf(
                     &shared, CHAT, 200,
                     "{" USER("Tell me a story.") ",'temperature':1,'seed':5,'n':3,'max_tokens':12}");

    (void)state;
    assert_int_equal(json_array_size(at(r.json, "choices")), 3);
    assert_true(json_equal(at(r.json, "choices"), at(again.json, "choices")));
    assert_string_not_equal(text_at(r.json, "choices.0.message.content"),
                            text_at(r.json, "choices.1.message.content"));
    assert_int_equal(int_at(r.json, "ext.seed"), 5);
    reply_free(&r);
    reply_free(&again);
    /* the seed that was drawn repeats the answer */
    r = client_postf(&shared, TEXT, 200, "{'prompt':'Once','temperature':1.2,'max_tokens':12}");
    again =
        client_postf(&shared, TEXT, 200, "{'prompt':'Once','temperature':1.2,'max_tokens':12,'seed':%lld}",
                     (long long)int_at(r.json, "ext.seed"));
    assert_string_equal(text_at(r.json, "choices.0.text"), text_at(again.json, "choices.0.text"));
    reply_free(&r);
    reply_free(&again);
}

static void test_logprobs(void **state)
{
    struct reply r = client_postf(&shared, CHAT, 200,
                                  "{" USER("Spell: garden") GREEDY ",'logprobs':true,'top_logprobs':2}");
    const json_t *list = at(r.json, "choices.0.logprobs.content");
    struct esp_strbuf b;

    (void)state;
    esp_strbuf_init(&b, 4096);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);

        esp_strbuf_puts(&b, text_at(row, "token"));
        assert_int_equal(json_array_size(at(row, "top_logprobs")), 2);
        assert_string_equal(text_at(row, "top_logprobs.0.token"), text_at(row, "token")); /* greedy */
        assert_true(json_number_value(at(row, "logprob")) <= 0);
    }
    assert_string_equal(esp_strbuf_str(&b), text_at(r.json, "choices.0.message.content"));
    esp_strbuf_free(&b);
    reply_free(&r);
    r = client_postf(&shared, TEXT, 200, "{'prompt':'Once upon','max_tokens':4,'logprobs':0" GREEDY "}");
    assert_int_equal(json_array_size(at(r.json, "choices.0.logprobs.tokens")), 4);
    assert_int_equal(json_object_size(at(r.json, "choices.0.logprobs.top_logprobs.0")), 0);
    assert_int_equal(int_at(r.json, "choices.0.logprobs.text_offset.0"), 0);
    reply_free(&r);
}

static void test_stops(void **state)
{
    struct reply r = client_postf(&shared, CHAT, 200, "{" USER("Spell: garden") GREEDY ",'stop':['rden']}");

    (void)state;
    assert_string_equal(text_at(r.json, "choices.0.message.content"), "ga");
    assert_string_equal(text_at(r.json, "choices.0.finish_reason"), "stop");
    assert_string_equal(text_at(r.json, "choices.0.stop_reason"), "rden");
    reply_free(&r);
    r = client_postf(&shared, CHAT, 200,
                     "{" USER("Spell: garden") GREEDY ",'stop':['rde'],'include_stop_str_in_output':true}");
    assert_string_equal(text_at(r.json, "choices.0.message.content"), "garde");
    reply_free(&r);
    /* one of several answers stops, the others go on */
    r = client_postf(
        &shared, TEXT, 200,
        "{'prompt':'Once upon a time','n':3,'temperature':1,'seed':1,'max_tokens':24,'stop':['e']}");
    for (int i = 0; i < 3; i++) {
        char path[40];

        snprintf(path, sizeof path, "choices.%d.text", i);
        assert_null(strchr(text_at(r.json, path), 'e'));
    }
    reply_free(&r);
    r = client_postf(&shared, TEXT, 200,
                     "{'prompt':'Once','max_tokens':40,'ignore_eos':true,'min_tokens':40" GREEDY "}");
    assert_int_equal(int_at(r.json, "usage.completion_tokens"), 40);
    reply_free(&r);
    r = client_postf(&shared, CHAT, 200,
                     "{" USER("Spell: dog") ",'min_tokens':30,'max_tokens':30" GREEDY "}");
    assert_int_equal(int_at(r.json, "usage.completion_tokens"), 30);
    reply_free(&r);
}

static void test_limits(void **state)
{
    struct reply r =
        client_postf(&shared, CHAT, 200, "{" USER("Spell: dog") ",'max_tokens':100000" GREEDY "}");

    (void)state;
    assert_int_equal(int_at(r.json, "ext.max_tokens_clamped_to"),
                     1024 - int_at(r.json, "usage.prompt_tokens"));
    reply_free(&r);
    r = client_postf(&shared, CHAT, 400,
                     "{" USER("Spell: dog") ",'max_tokens':100000,'strict_max_tokens':true}");
    assert_string_equal(text_at(r.json, "error.code"), "context_length_exceeded");
    reply_free(&r);
    r = client_postf(&shared, CHAT, 200, "{" USER("Spell: dog") ",'max_tokens':0}");
    assert_string_equal(text_at(r.json, "choices.0.finish_reason"), "length");
    assert_int_equal(int_at(r.json, "usage.completion_tokens"), 0);
    reply_free(&r);
    r = client_postf(&shared, TEXT, 200,
                     "{'prompt':[[71,72],[73]],'max_tokens':3,'echo':true,'n':2,'temperature':1,'seed':2}");
    assert_int_equal(json_array_size(at(r.json, "choices")), 4);
    assert_int_equal(int_at(r.json, "usage.prompt_tokens"), 3);
    assert_int_equal(int_at(r.json, "choices.3.index"), 3);
    assert_true(strncmp(text_at(r.json, "choices.0.text"), "hi", 2) == 0);
    reply_free(&r);
}

static void test_cache(void **state)
{
    static const char turn[] =
        "{'messages':[{'role':'user','content':'%s'},{'role':'assistant','content':'fine'},"
        "{'role':'user','content':'Spell: dog'}]" GREEDY ",'cache_prompt':%s}";
    char long_text[1600] = "";
    struct reply cold, warm, off;

    (void)state;
    for (int i = 0; i < 100; i++)
        snprintf(long_text + strlen(long_text), 20, "word %d ", i);
    off = client_postf(&shared, CHAT, 200, turn, long_text, "false");
    cold = client_postf(&shared, CHAT, 200, turn, long_text, "true");
    warm = client_postf(&shared, CHAT, 200, turn, long_text, "true");
    assert_string_equal(text_at(off.json, "ext.cache.reason"), "disabled");
    assert_int_equal(int_at(cold.json, "usage.prompt_tokens_details.cached_tokens"), 0);
    assert_true(int_at(warm.json, "usage.prompt_tokens_details.cached_tokens") > 200);
    assert_true(json_equal(at(off.json, "choices"), at(cold.json, "choices")));
    assert_true(json_equal(at(off.json, "choices"), at(warm.json, "choices")));
    reply_free(&cold);
    reply_free(&warm);
    reply_free(&off);
}

/* ---- clients that misbehave ---- */

static const char long_stream[] =
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 72\r\n\r\n"
    "{\"prompt\":\"Once\",\"max_tokens\":3000,\"ignore_eos\":true,\"stream\":true     }";

static int64_t running(const struct server *s)
{
    struct reply r = client_do(s, "GET", "/stats", NULL, NULL);
    const int64_t n = int_at(r.json, "admission.running") + int_at(r.json, "admission.waiting");

    reply_free(&r);
    return n;
}

static bool becomes_idle(const struct server *s)
{
    for (int i = 0; i < 500; i++) {
        if (running(s) == 0)
            return true;
        usleep(20000);
    }
    return false;
}

static void test_disconnect(void **state)
{
    struct esp_strbuf b;
    int fds[8];

    (void)state;
    assert_int_equal(strlen(strstr(long_stream, "\r\n\r\n") + 4), 72);
    esp_strbuf_init(&b, 1 << 20);
    for (int i = 0; i < 8; i++) { /* three run, five wait */
        fds[i] = client_connect(&shared);
        client_send(fds[i], long_stream);
    }
    assert_true(client_until(fds[0], &b, "\"text\"", 60));
    close(fds[7]); /* one that waits */
    assert_true(client_until(fds[1], &b, "\"text\"", 60));
    for (int i = 0; i < 7; i++)
        close(fds[i]);
    assert_true(becomes_idle(&shared));
    esp_strbuf_free(&b);
}

static void test_queue_full(void **state)
{
    int fds[11];
    struct reply r;

    (void)state;
    for (int i = 0; i < 11; i++) {
        fds[i] = client_connect(&shared);
        client_send(fds[i], long_stream);
    }
    for (int i = 0; i < 200 && running(&shared) < 11; i++)
        usleep(10000);
    r = client_postf(&shared, CHAT, 429, "{" USER("Spell: dog") ",'stream':true}");
    assert_string_equal(text_at(r.json, "error.code"), "queue_full");
    assert_string_equal(text_at(r.json, "error.type"), "rate_limit_error");
    assert_non_null(reply_header(&r, "Retry-After"));
    reply_free(&r);
    for (int i = 0; i < 11; i++)
        close(fds[i]);
    assert_true(becomes_idle(&shared));
}

/* A reader that stops reading is dropped when its buffer is full; others never notice. Over a socket file,
 * whose buffers in the system are small. */
static void test_stalled_reader(void **state)
{
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me all.\"}],\"max_tokens\":900,"
        "\"ignore_eos\":true,\"logprobs\":true,\"top_logprobs\":20,\"stream\":true}";
    char path[200], head[128];
    struct server s;
    struct reply r;
    int fd;

    (void)state;
    snprintf(path, sizeof path, "unix:%s/s", test_tmpdir());
    server_init(&s);
    s.o.hosts[0] = path;
    s.o.n_host = 1;
    s.o.stream_buffer = 16384;
    server_start(&s);
    fd = client_connect(&s);
    snprintf(head, sizeof head, "POST " CHAT " HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\n\r\n",
             sizeof body - 1);
    client_send(fd, head);
    client_send(fd, body);
    r = client_postf(&s, CHAT, 200, "{" USER("Spell: dog") GREEDY "}");
    reply_free(&r);
    for (int i = 0; i < 6 && !server_logged(&s, "slow_client"); i++)
        ;
    assert_true(server_logged(&s, "slow_client"));
    assert_true(becomes_idle(&s));
    close(fd);
    server_stop(&s);
}

static void test_cancel_and_ping(void **state)
{
    const int fd = client_connect(&shared);
    struct esp_strbuf b;
    struct reply r;

    (void)state;
    esp_strbuf_init(&b, 1 << 20);
    client_send(
        fd,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nx-request-id: me\r\nContent-Length: 72\r\n\r\n");
    client_send(fd, strstr(long_stream, "\r\n\r\n") + 4);
    assert_true(client_until(fd, &b, "\"text\"", 60));
    r = client_postf(&shared, "/cancel", 200, "{'id':'me'}");
    assert_true(json_is_true(at(r.json, "cancelled")));
    reply_free(&r);
    assert_true(client_until(fd, &b, "data: {\"error\"", 60));
    assert_true(client_until(fd, &b, "\r\n0\r\n\r\n", 60));
    assert_null(strstr(esp_strbuf_str(&b), "[DONE]"));
    close(fd);
    esp_strbuf_free(&b);
}

/* ---- the end ---- */

static void test_drain(void **state)
{
    struct esp_strbuf b[6];
    struct server s;
    int fds[6];

    (void)state;
    server_init(&s);
    s.o.shutdown_timeout = 0.4;
    server_start(&s);
    for (int i = 0; i < 6; i++) {
        esp_strbuf_init(&b[i], 1 << 20);
        fds[i] = client_connect(&s);
        client_send(fds[i], long_stream);
    }
    for (int i = 0; i < 3; i++)
        assert_true(client_until(fds[i], &b[i], "\"text\"", 60));
    server_ask_stop(&s);
    for (int i = 0; i < 6;
         i++) { /* those that waited are refused at once, the others end when their time is over */
        assert_true(client_until(fds[i], &b[i], "\"code\":\"draining\"", 60));
        assert_int_equal(strncmp(esp_strbuf_str(&b[i]), i < 3 ? "HTTP/1.1 200" : "HTTP/1.1 503", 12), 0);
        if (i < 3)
            assert_true(client_until(fds[i], &b[i], "\r\n0\r\n\r\n", 60));
        else
            assert_non_null(strstr(esp_strbuf_str(&b[i]), "\r\nRetry-After: "));
    }
    assert_int_equal(server_join(&s), ESP_OK);
    for (int i = 0; i < 6; i++) {
        close(fds[i]);
        esp_strbuf_free(&b[i]);
    }
}

static void test_drain_finishes(void **state)
{
    struct esp_strbuf b;
    struct server s;
    int fd;

    (void)state;
    server_init(&s);
    server_start(&s);
    fd = client_connect(&s);
    esp_strbuf_init(&b, 1 << 20);
    client_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 72\r\n\r\n"
                    "{\"prompt\":\"Once\",\"max_tokens\":40 ,\"ignore_eos\":true,\"stream\":true      }");
    assert_true(client_until(fd, &b, "\"text\"", 60));
    server_ask_stop(&s);
    assert_true(client_until(fd, &b, "data: [DONE]", 60));
    close(fd);
    assert_int_equal(server_join(&s), ESP_OK);
    esp_strbuf_free(&b);
}

/* Pieces of text are written without a JSON tree where no log-probabilities come with them: the same chunks,
 * key by key in the same order, also around characters that JSON escapes. */
static void test_written_chunks(void **state)
{
    static const char body[] = "{'messages':[{'role':'user','content':'Say "
                               "it'}],'temperature':0,'stream':true,'n':2,'min_tokens':0,%s"
                               "'stream_options':{'include_usage':%s},'guided_choice':['a \\\"quoted\\\" "
                               "\\\\ back\\\\slash\\n\\t \\u0001\\u001f \\u00e9\\u2028 end']}";

    (void)state;
    for (int usage = 0; usage < 2; usage++) {
        struct reply plain = client_postf(&shared, CHAT, 200, body, "", usage ? "true" : "false"),
                     tree =
                         client_postf(&shared, CHAT, 200, body, "'logprobs':true,", usage ? "true" : "false");
        struct esp_strbuf text[2];

        for (int i = 0; i < 2; i++) {
            const struct reply *r = i ? &tree : &plain;
            const char *event;
            json_t *v;

            esp_strbuf_init(&text[i], 1 << 20);
            for (size_t k = 0; frame(r, k, &v, &event); k++) {
                json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
                char *dumped;

                if (v && json_object_get(json_object_get(choice, "delta"), "content") &&
                    int_at(v, "choices.0.index") == 0) {
                    json_object_set_new(v, "id", json_string("x"));
                    json_object_set_new(v, "created", json_integer(1));
                    json_object_set_new(choice, "logprobs", json_null());
                    dumped = json_dumps(v, JSON_COMPACT);
                    esp_strbuf_printf(&text[i], "%s\n", dumped);
                    free(dumped);
                }
                json_decref(v);
            }
        }
        assert_non_null(strstr(esp_strbuf_str(&text[0]), "\"delta\":{\"content\":"));
        assert_string_equal(esp_strbuf_str(&text[0]), esp_strbuf_str(&text[1]));
        esp_strbuf_free(&text[0]);
        esp_strbuf_free(&text[1]);
        reply_free(&plain);
        reply_free(&tree);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams),         cmocka_unit_test(test_written_chunks),
        cmocka_unit_test(test_tools),           cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_choices),         cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_stops),           cmocka_unit_test(test_limits),
        cmocka_unit_test(test_cache),           cmocka_unit_test(test_disconnect),
        cmocka_unit_test(test_queue_full),      cmocka_unit_test(test_stalled_reader),
        cmocka_unit_test(test_cancel_and_ping), cmocka_unit_test(test_drain),
        cmocka_unit_test(test_drain_finishes)};

    return cmocka_run_group_tests(tests, start, stop);
}
