/*
 * What an operator sees and may change: statistics, metrics, health, keys, the log, the end; settings that
 * come with the server; turns that outlive it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/client.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

#define CHAT       "/v1/chat/completions"
#define GREEDY     ",'temperature':0"
#define USER(text) "'messages':[{'role':'user','content':'" text "'}]"

static struct reply get(const struct server *s, const char *path, int status)
{
    struct reply r = client_do(s, "GET", path, NULL, NULL);

    if (r.status != status)
        fail_msg("GET %s: %d instead of %d: %s", path, r.status, status, r.body);
    return r;
}

/* What is asked gives this status. */
static void expect(const struct server *s, const char *method, const char *path, const char *headers,
                   const char *body, int status)
{
    struct reply r = client_do(s, method, path, headers, body);

    assert_int_equal(r.status, status);
    reply_free(&r);
}

static void test_statistics(void **state)
{
    static const char *const parts[] = {
        "server.uptime_s",    "memory.kv_bytes",           "memory.by_device.0.device",
        "admission.max_rows", "scheduler.tokens_per_step", "cache.by_reason.cold",
        "spec.mode",          "responses.entries",         "replay.entries",
        "errors.by_code",     "recent.0.request_id",       "memory.cache_ram_bytes",
        "memory.media_bytes", "content_log.written"};
    static const char *const names[] = {
        "vllm:spec_decode_num_drafts_total{",
        "llamacpp:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"demo\",position=\"0\"}",
        "espalier:state_bytes{",
        "espalier:checkpoint_bytes{",
        "espalier:cache_tier_bytes{model_name=\"demo\",tier=\"disk\"}",
        "espalier:cache_lookup_total{model_name=\"demo\",reason=\"cold\"}",
        "espalier:errors_total{model_name=\"demo\",code=\"invalid_value\"}",
        "vllm:lora_requests_info{",
        "espalier:grammar_compile_seconds_bucket{",
        "espalier:engine_step_seconds_bucket{model_name=\"demo\",le=\"0.0001\"}",
        "vllm:iteration_tokens_total_bucket{model_name=\"demo\",le=\"+Inf\"}",
        "vllm:request_success_total{"};
    struct server s;
    struct reply r;

    (void)state;
    server_init(&s);
    server_start(&s);
    r = client_postf(&s, CHAT, 200, "{" USER("Spell: dog") GREEDY "}");
    assert_non_null(reply_header(&r, "x-espalier-queue-ms"));
    reply_free(&r);
    r = client_postf(&s, "/v1/messages", 200, "{" USER("Spell: dog") ",'max_tokens':4}");
    assert_non_null(reply_header(&r, "x-espalier-queue-ms"));
    reply_free(&r);
    r = client_postf(&s, CHAT, 400, "{" USER("x") ",'n':0}");
    reply_free(&r);
    r = get(&s, "/stats", 200);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!at(r.json, parts[i]))
            fail_msg("/stats has no %s: %s", parts[i], r.body);
    assert_int_equal(int_at(r.json, "errors.by_code.invalid_value"), 1);
    assert_true(int_at(r.json, "cache.by_reason.cold") >= 1);
    reply_free(&r);
    r = get(&s, "/metrics", 200);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strstr(r.body, names[i]))
            fail_msg("/metrics has no %s", names[i]);
    reply_free(&r);
    r = get(&s, "/health?deep=1", 200);
    reply_free(&r);
    r = get(&s, "/props", 200);
    assert_non_null(strstr(text_at(r.json, "chat_template"), "<|im_start|>"));
    reply_free(&r);
    r = get(&s, "/fit", 501); /* this program keeps none */
    reply_free(&r);
    server_stop(&s);
    server_init(&s);
    s.o.metrics_names = ESP_METRICS_LLAMACPP;
    server_start(&s);
    r = get(&s, "/metrics", 200);
    assert_null(strstr(r.body, "vllm:"));
    assert_null(strstr(r.body, "espalier:"));
    assert_non_null(strstr(r.body, "llamacpp:requests_processing{"));
    reply_free(&r);
    server_stop(&s);
}

/* What runs and how fast: prompts are shown only where the server was told to. */
static void test_running(void **state)
{
    (void)state;
    for (int shown = 0; shown < 2; shown++) {
        struct server s;
        struct reply r;
        bool seen = false;
        int fd;

        server_init(&s);
        s.o.slots_text = shown;
        server_start(&s);
        fd = client_connect(&s);
        client_send(fd,
                    "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
                    "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell: garden\"}],\"min_tokens\":900,"
                    "\"max_tokens\":900,\"seed\":1 }");
        for (int i = 0; i < 500 && !seen; i++, usleep(10000)) {
            r = get(&s, "/slots", 200);
            for (int k = 0; k < 3; k++) {
                char path[40];

                snprintf(path, sizeof path, "%d.state", k);
                if (strcmp(text_at(r.json, path), "decode") != 0)
                    continue;
                snprintf(path, sizeof path, "%d.prompt", k);
                assert_int_equal(strstr(text_at(r.json, path), "Spell: garden") != NULL, shown);
                seen = true;
            }
            reply_free(&r);
        }
        assert_true(seen);
        r = client_reply(fd, false);
        assert_int_equal(r.status, 200);
        reply_free(&r);
        close(fd);
        r = get(&s, "/stats", 200);
        assert_true(json_real_value(at(r.json, "scheduler.decode_tps_1m")) > 1);
        assert_true(json_real_value(at(r.json, "scheduler.prefill_tps_1m")) > 0.1);
        reply_free(&r);
        server_stop(&s);
    }
}

/* A user turn, an answer, and 1,100 tokens behind it. */
static struct reply long_chat(const struct server *s, const char *first, const char *answer)
{
    struct esp_strbuf b;
    struct reply r;

    esp_strbuf_init(&b, 1 << 20);
    esp_strbuf_printf(
        &b,
        "{\"temperature\":0,\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\"content\":\"%s\"},"
        "{\"role\":\"assistant\",\"content\":\"%s\"},{\"role\":\"user\",\"content\":\"",
        first, answer);
    for (int i = 0; i < 600; i++)
        esp_strbuf_puts(&b, "dog cat ");
    esp_strbuf_puts(&b, "\"}]}");
    r = client_post(s, CHAT, esp_strbuf_str(&b), 200);
    esp_strbuf_free(&b);
    return r;
}

static void test_rewritten(void **state)
{
    static const struct {
        const char *first, *answer;
        bool warned;
    } cases[] = {{"Hello there", "one two three", false},
                 {"Hello there", "one two four", true},
                 {"Hello you", "one two four", false}};
    struct server s;

    (void)state;
    server_init(&s);
    s.engine.context = 4096;
    s.engine.kv_tokens = 3 * 4096;
    server_start(&s);
    for (size_t i = 0; i < 3; i++) {
        struct reply r = long_chat(&s, cases[i].first, cases[i].answer);

        assert_true(int_at(r.json, "usage.prompt_tokens") > 1100);
        assert_int_equal(strncmp(text_at(r.json, "ext.warnings.0"), "history_rewritten", 17) == 0,
                         cases[i].warned);
        reply_free(&r);
    }
    server_stop(&s);
}

static void test_admin(void **state)
{
    char path[300];
    struct server s;
    struct reply r;
    FILE *f;

    (void)state;
    snprintf(path, sizeof path, "%s/keys", test_tmpdir());
    f = fopen(path, "w");
    fputs("one first admin\ntwo second api\n", f);
    fclose(f);
    server_init(&s);
    s.o.api_key_file = path;
    s.o.kv = "q8";
    s.o.state = "bf16";
    server_start(&s);
    r = client_do(&s, "POST", "/admin/log-level", "x-api-key: two\r\n", "{\"level\":\"error\"}");
    assert_int_equal(r.status, 403);
    assert_string_equal(text_at(r.json, "error.code"), "admin_required");
    reply_free(&r);
    expect(&s, "POST", "/admin/log-level", "x-api-key: one\r\n", "{\"level\":\"loud\"}", 400);
    expect(&s, "POST", "/admin/log-level", "x-api-key: one\r\n", "{\"level\":\"error\"}", 200);
    r = client_do(&s, "GET", "/v1/models", "x-api-key: two\r\nx-request-id: unseen\r\n", NULL);
    assert_int_equal(r.status, 200);
    assert_string_equal(text_at(r.json, "data.0.meta.kv"), "q8");
    assert_string_equal(text_at(r.json, "data.0.meta.state"), "bf16");
    reply_free(&r);
    f = fopen(path, "w");
    fputs("one first admin\nthree third\n", f);
    fclose(f);
    expect(&s, "POST", "/admin/reload-keys", "x-api-key: one\r\n", NULL, 200);
    expect(&s, "GET", "/v1/models", "x-api-key: two\r\n", NULL, 401);
    expect(&s, "GET", "/v1/models", "x-api-key: three\r\n", NULL, 200);
    f = fopen(path, "w");
    fputs("one first emperor\n", f);
    fclose(f);
    expect(&s, "POST", "/admin/reload-keys", "x-api-key: one\r\n", NULL, 400);
    expect(&s, "POST", "/admin/sleep", "x-api-key: three\r\n", NULL, 403);
    expect(&s, "POST", "/admin/sleep", "x-api-key: one\r\n", NULL, 202);
    expect(&s, "POST", "/admin/drain", "x-api-key: one\r\n", NULL, 202);
    assert_int_equal(server_join(&s), ESP_OK); /* by itself */
}

static void test_settings(void **state)
{
    struct server s;
    struct reply r;

    (void)state;
    server_init(&s);
    s.o.reasoning_field = ESP_REASONING_BOTH;
    s.o.budget_message = "\nenough now\n";
    s.o.effort_budgets[1] = 4;
    s.o.late_system_user = false;
    server_start(&s);
    r = client_postf(&s, CHAT, 200, "{" USER("Add: 12 + 7") GREEDY ",'reasoning_effort':'low'}");
    assert_non_null(strstr(text_at(r.json, "choices.0.message.reasoning"), "enough now"));
    assert_string_equal(text_at(r.json, "choices.0.message.reasoning"),
                        text_at(r.json, "choices.0.message.reasoning_content"));
    reply_free(&r);
    r = client_postf(&s, "/apply-template", 200,
                     "{'messages':[{'role':'user','content':'a'},{'role':'system','content':'late words'},"
                     "{'role':'user','content':'b'}]}");
    assert_int_equal(strncmp(text_at(r.json, "prompt"), "<|im_start|>system\nlate words", 29), 0);
    reply_free(&r);
    server_stop(&s);
}

static void test_divergence(void **state)
{
    struct server s;
    struct reply r;

    (void)state;
    server_init(&s);
    s.engine.rows = 1;
    server_start(&s);
    r = client_postf(
        &s, CHAT, 200,
        "{'messages':[{'role':'system','content':'Be kind to all animals.'},{'role':'user','content':"
        "'Spell: garden'}],'cache_debug':true" GREEDY "}");
    assert_true(json_is_null(at(r.json, "ext.cache.divergence")));
    assert_string_equal(text_at(r.json, "ext.cache.reason"), "cold");
    reply_free(&r);
    r = client_postf(
        &s, CHAT, 200,
        "{'messages':[{'role':'system','content':'Be kind to all animals.'},{'role':'user','content':"
        "'Spell: pencil'}],'cache_debug':true" GREEDY "}");
    assert_string_equal(text_at(r.json, "ext.cache.divergence.where"), "messages[1]");
    assert_true(int_at(r.json, "ext.cache.divergence.position") > 8);
    assert_non_null(strstr(text_at(r.json, "ext.cache.divergence.cached_text"), "gar"));
    assert_non_null(strstr(text_at(r.json, "ext.cache.divergence.request_text"), "pe"));
    assert_true(strlen(text_at(r.json, "ext.cache.divergence.request_text")) <= 80);
    reply_free(&r);
    r = client_postf(&s, CHAT, 200,
                     "{'messages':[{'role':'system','content':'Be harsh.'},{'role':'user','content':"
                     "'Spell: pencil'}],'cache_debug':true" GREEDY "}");
    assert_string_equal(text_at(r.json, "ext.cache.divergence.where"), "system");
    reply_free(&r);
    server_stop(&s);
}

/* ---- turns over restarts ---- */

static struct reply ask(const struct server *s, const char *more)
{
    return client_postf(
        s, CHAT, 200,
        "{'messages':[{'role':'user','content':'Look up the word pencil.'}%s],'tools':[{'type':"
        "'function','function':{'name':'look_up','parameters':{'type':'object','properties':{'word':"
        "{'type':'string'}}}}}]" GREEDY ",'max_tokens':60,'chat_template_kwargs':{'preserve_thinking':true}}",
        more);
}

static int64_t turns(const struct server *s, const char *what)
{
    char path[40];
    struct reply r = get(s, "/stats", 200);
    int64_t n;

    snprintf(path, sizeof path, "replay.%s", what);
    n = int_at(r.json, path);
    reply_free(&r);
    return n;
}

static void test_turns_outlive_the_server(void **state)
{
    static const char *const words[] = {"river", "stone", "candle", "dog"};
    char folder[300], more[1500], path[400], *message;
    struct server s;
    struct reply r;
    FILE *f;

    (void)state;
    snprintf(folder, sizeof folder, "%s/turns", test_tmpdir());
    server_init(&s);
    s.o.replay_dir = folder;
    server_start(&s);
    r = ask(&s, "");
    assert_string_equal(text_at(r.json, "choices.0.finish_reason"), "tool_calls");
    message = json_dumps(at(r.json, "choices.0.message"), 0);
    snprintf(more, sizeof more, ",%s,{'role':'tool','tool_call_id':'%s','content':'a tool'}", message,
             text_at(r.json, "choices.0.message.tool_calls.0.id"));
    esp_free(message);
    reply_free(&r);
    assert_int_equal(turns(&s, "entries"), 1);
    server_stop(&s);
    server_init(&s);
    s.o.replay_dir = folder;
    server_start(&s);
    assert_int_equal(turns(&s, "entries"), 1);
    r = ask(&s, more);
    assert_int_equal(turns(&s, "hits"), 1);
    reply_free(&r);
    server_stop(&s);
    /* what is too old is forgotten */
    server_init(&s);
    s.o.replay_dir = folder;
    s.o.replay_ttl = 0.001;
    server_start(&s);
    assert_int_equal(turns(&s, "entries"), 0);
    server_stop(&s);
    /* bounded, and a damaged file is put aside */
    server_init(&s);
    s.o.replay_dir = folder;
    s.o.replay_entries = 2;
    server_start(&s);
    for (int i = 0; i < 3; i++) { /* the same answer takes one place */
        r = client_postf(&s, CHAT, 200, "{" USER("Spell: garden") GREEDY "}");
        reply_free(&r);
        assert_int_equal(turns(&s, "entries"), 1);
    }
    for (int i = 0; i < 4; i++) {
        r = client_postf(&s, CHAT, 200, "{" USER("Spell: %s") GREEDY "}", words[i]);
        reply_free(&r);
    }
    assert_int_equal(turns(&s, "entries"), 2);
    server_stop(&s);
    snprintf(path, sizeof path, "%s/replay.sqlite", folder);
    f = fopen(path, "r+");
    assert_non_null(f);
    fputs("this is no database at all, whatever it was before", f);
    fclose(f);
    server_init(&s);
    s.o.replay_dir = folder;
    server_start(&s);
    assert_int_equal(turns(&s, "entries"), 0);
    r = ask(&s, "");
    reply_free(&r);
    assert_int_equal(turns(&s, "entries"), 1);
    server_stop(&s);
    snprintf(path, sizeof path, "%s/replay.sqlite.damaged", folder);
    assert_int_equal(access(path, F_OK), 0);
    /* a place that cannot be used costs nothing but the file */
    server_init(&s);
    s.o.replay_dir = "/dev/null/x";
    server_start(&s);
    assert_true(server_logged(&s, "kept turns not read"));
    r = ask(&s, "");
    reply_free(&r);
    server_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_statistics),
                                       cmocka_unit_test(test_running),
                                       cmocka_unit_test(test_rewritten),
                                       cmocka_unit_test(test_admin),
                                       cmocka_unit_test(test_settings),
                                       cmocka_unit_test(test_divergence),
                                       cmocka_unit_test(test_turns_outlive_the_server)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
