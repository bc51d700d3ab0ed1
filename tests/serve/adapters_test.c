/*
 * Adapters by request: mounted, named in every way, mixed with the base in one batch, refused by name, and
 * never taken away under a running answer.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/shared.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHAT "/v1/chat/completions"
#define USER "'messages':[{'role':'user','content':'Spell: garden'}],'temperature':0,'max_tokens':12"

static int start(void **state)
{
    (void)state;
    server_init(&shared);
    shared.o.adapter_dir = test_path("models");
    shared.engine.max_rank = 16;
    server_start(&shared);
    return 0;
}

static void says(const char *with, const char *want)
{
    struct reply r = client_postf(&shared, CHAT, 200, "{" USER "%s}", with);

    if (strcmp(text_at(r.json, "choices.0.message.content"), want) != 0)
        fail_msg("%s: %s", with, r.body);
    reply_free(&r);
}

static void test_mount(void **state)
{
    struct reply r = client_postf(&shared, "/v1/adapters", 201, "{'id':'caps','path':'demo-lora-caps'}");
    char base[64], caps[64];

    (void)state;
    assert_string_equal(text_at(r.json, "id"), "caps");
    assert_int_equal(int_at(r.json, "rank"), 8);
    reply_free(&r);
    r = client_postf(&shared, CHAT, 200, "{" USER "}");
    snprintf(base, sizeof base, "%s", text_at(r.json, "choices.0.message.content"));
    reply_free(&r);
    r = client_postf(&shared, CHAT, 200, "{" USER ",'adapter':'caps'}");
    snprintf(caps, sizeof caps, "%s", text_at(r.json, "choices.0.message.content"));
    assert_string_equal(text_at(r.json, "ext.adapter"), "caps");
    assert_string_equal(text_at(r.json, "model"), "demo:caps");
    reply_free(&r);
    assert_string_not_equal(base, caps);
    says(",'model':'caps'", caps);
    says(",'model':'demo:caps'", caps);
    says(",'adapter':[{'id':'caps','scale':1}]", caps);
    says(",'lora':[{'id':'caps'}]", caps);
    says(",'adapter':[{'id':'caps','scale':0}]", base);
    says(",'adapter':'none'", base);
    says(",'adapter':'caps'", caps); /* cached states are apart */
    says("", base);
    r = client_do(&shared, "GET", "/v1/models", NULL, NULL);
    assert_string_equal(text_at(r.json, "data.1.id"), "caps");
    assert_string_equal(text_at(r.json, "data.1.parent"), "demo");
    reply_free(&r);
    r = client_do(&shared, "GET", "/v1/adapters", NULL, NULL);
    assert_true(int_at(r.json, "adapters.0.requests_total") >= 5);
    assert_int_equal(int_at(r.json, "adapters.0.refs"), 0);
    reply_free(&r);
}

static void refused(const char *body, int status, const char *code)
{
    struct reply r = client_postf(&shared, "/v1/adapters", status, "%s", body);

    assert_string_equal(text_at(r.json, "error.code"), code);
    reply_free(&r);
}

static void test_wrong(void **state)
{
    struct reply r;

    (void)state;
    refused("{'id':'caps','path':'demo-lora-caps'}", 409, "adapter_exists");
    refused("{'id':'x'}", 400, "missing_field");
    refused("{'id':'a b','path':'demo-lora-caps'}", 400, "invalid_value");
    refused("{'id':'x','path':'nothing'}", 404, "adapter_not_found");
    refused("{'id':'x','path':'../src'}", 403, "admin_required");
    refused("{'id':'x','path':'/'}", 403, "admin_required");
    refused("{'id':'x','path':'demo'}", 404, "adapter_not_found");
    r = client_postf(&shared, CHAT, 404, "{" USER ",'adapter':'caps+other'}");
    assert_string_equal(text_at(r.json, "error.code"), "adapter_not_found");
    reply_free(&r);
    r = client_postf(&shared, CHAT, 400, "{" USER ",'adapter':5}");
    reply_free(&r);
    r = client_postf(&shared, CHAT, 400, "{" USER ",'adapter':'caps+caps'}");
    reply_free(&r);
}

static void test_in_use(void **state)
{
    const int fd = client_connect(&shared);
    struct esp_strbuf b;
    struct reply r;

    (void)state;
    esp_strbuf_init(&b, 1 << 20);
    client_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n"
                    "{\"prompt\":\"Once\",\"adapter\":\"caps\",\"max_tokens\":900,\"ignore_eos\":true,"
                    "\"stream\":true       }");
    assert_true(client_until(fd, &b, "\"text\"", 60));
    r = client_do(&shared, "DELETE", "/v1/adapters/caps", NULL, NULL);
    assert_int_equal(r.status, 409);
    assert_string_equal(text_at(r.json, "error.code"), "adapter_in_use");
    reply_free(&r);
    close(fd);
    for (int i = 0; i < 500; i++) {
        r = client_do(&shared, "DELETE", "/v1/adapters/caps", NULL, NULL);
        if (r.status == 204)
            break;
        reply_free(&r);
        usleep(20000);
    }
    assert_int_equal(r.status, 204);
    reply_free(&r);
    r = client_do(&shared, "DELETE", "/v1/adapters/caps", NULL, NULL);
    assert_int_equal(r.status, 404);
    reply_free(&r);
    esp_strbuf_free(&b);
}

/* Folders that could be mounted, another server's names for the same, and leaving when nobody uses it. */
static void test_other_ways(void **state)
{
    const int fd = client_connect(&shared);
    struct esp_strbuf b;
    struct reply r;
    bool found = false;
    size_t i;
    json_t *a;

    (void)state;
    r = client_do(&shared, "GET", "/v1/adapters/available", NULL, NULL);
    assert_int_equal(r.status, 200);
    json_array_foreach(at(r.json, "adapters"), i, a)
    {
        if (strcmp(text_at(a, "id"), "demo-lora-caps") == 0) {
            found = true;
            assert_true(json_is_true(json_object_get(a, "compatible")));
            assert_int_equal(int_at(a, "rank"), 8);
        }
        assert_string_not_equal(text_at(a, "id"), "demo"); /* a model is none */
    }
    assert_true(found);
    reply_free(&r);
    r = client_postf(&shared, "/v1/load_lora_adapter", 201,
                     "{'lora_name':'two','lora_path':'demo-lora-caps'}");
    reply_free(&r);
    r = client_do(&shared, "GET", "/v1/models/two", NULL, NULL);
    assert_string_equal(text_at(r.json, "parent"), "demo");
    reply_free(&r);
    esp_strbuf_init(&b, 1 << 20);
    client_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n"
                    "{\"prompt\":\"Once\",\"adapter\":\"two\" ,\"max_tokens\":900,\"ignore_eos\":true,"
                    "\"stream\":true       }");
    assert_true(client_until(fd, &b, "\"text\"", 60));
    r = client_postf(&shared, "/v1/unload_lora_adapter", 409, "{'lora_name':'two'}");
    reply_free(&r);
    r = client_do(&shared, "DELETE", "/v1/adapters/two?drain=true", NULL, NULL);
    assert_int_equal(r.status, 204);
    reply_free(&r);
    r = client_postf(&shared, CHAT, 404, "{" USER ",'adapter':'two'}");
    reply_free(&r);
    close(fd);
    for (i = 0; i < 500; i++) {
        r = client_do(&shared, "GET", "/v1/adapters", NULL, NULL);
        if (json_array_size(at(r.json, "adapters")) == 0)
            break;
        reply_free(&r);
        usleep(20000);
    }
    assert_true(i < 500);
    reply_free(&r);
    esp_strbuf_free(&b);
}

/* The catalogue for Codex has what the list has, and only when it was asked for. */
static void test_catalog(void **state)
{
    static const char *const texts[] = {"display_name",
                                        "shell_type",
                                        "visibility",
                                        "truncation_policy.mode",
                                        "default_reasoning_level",
                                        "supported_reasoning_levels.2.effort",
                                        "input_modalities.0"};
    struct server s;
    struct reply r;
    const json_t *m;

    (void)state;
    server_init(&s);
    s.o.codex_catalog = true;
    s.o.adapters[s.o.n_adapter++] = test_path("models/demo-lora-caps");
    s.engine.max_rank = 8;
    server_start(&s);
    r = client_do(&s, "GET", "/v1/models", NULL, NULL);
    assert_int_equal(json_array_size(at(r.json, "models")), 2);
    assert_string_equal(text_at(r.json, "models.0.slug"), "demo");
    assert_string_equal(text_at(r.json, "models.1.slug"), text_at(r.json, "data.1.id"));
    m = at(r.json, "models.0");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_string_not_equal(text_at(m, texts[i]), "");
    assert_int_equal(int_at(m, "context_window"), s.engine.context);
    assert_true(int_at(m, "auto_compact_token_limit") < (int64_t)s.engine.context);
    assert_true(json_is_true(at(m, "supports_parallel_tool_calls")));
    reply_free(&r);
    server_stop(&s);
    r = client_do(&shared, "GET", "/v1/models", NULL, NULL);
    assert_null(at(r.json, "models"));
    reply_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mount), cmocka_unit_test(test_wrong),
                                       cmocka_unit_test(test_in_use), cmocka_unit_test(test_other_ways),
                                       cmocka_unit_test(test_catalog)};

    return cmocka_run_group_tests(tests, start, stop);
}
