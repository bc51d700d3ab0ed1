/*
 * Every error of the API page's table, each brought about by a request, in the form of both families: status,
 * type, code, and a message. Elsewhere: draining, sleeping and device_lost (chat, sleep and isolate tests),
 * cache_incompatible (cache tests); media are not read in this version.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHAT      "/v1/chat/completions"
#define MESSAGES  "/v1/messages"
#define USER      "'messages':[{'role':'user','content':'x'}]"
#define SCHEMA(s) "{" USER ",'json_schema':" s "}"

struct expect {
    const char *method, *path, *headers, *body; /* single quotes for double ones */
    int status;
    const char *type, *code; /* code NULL: the other family, which has none */
};

static void expect(const struct server *s, const struct expect *e)
{
    char body[4096];
    struct reply r;

    snprintf(body, sizeof body, "%s", e->body ? e->body : "");
    for (char *c = body; *c; c++)
        if (*c == '\'')
            *c = '"';
    r = client_do(s, e->method, e->path, e->headers, e->body ? body : NULL);
    if (r.status != e->status || strcmp(text_at(r.json, "error.type"), e->type) != 0 ||
        strcmp(text_at(r.json, "error.code"), e->code ? e->code : "") != 0 ||
        !text_at(r.json, "error.message")[0])
        fail_msg("%s %s %.100s: %d %s", e->method, e->path, body, r.status, r.body);
    if (e->code) {
        assert_non_null(at(r.json, "error.param")); /* null or a path, but there */
    } else {
        assert_string_equal(text_at(r.json, "type"), "error");
        assert_string_equal(text_at(r.json, "request_id"), reply_header(&r, "request-id"));
    }
    if (e->status == 429 || e->status == 503 || e->status == 529)
        assert_true(strtol(reply_header(&r, "Retry-After"), NULL, 10) >= 1);
    reply_free(&r);
}

static void expect_all(const struct server *s, const struct expect *e, size_t n)
{
    for (size_t i = 0; i < n; i++)
        expect(s, &e[i]);
}
#define ALL(s, list) expect_all(s, list, sizeof list / sizeof list[0])

#define BAD "invalid_request_error"

static void test_plain(void **state)
{
    static const struct expect list[] = {
        {"POST", CHAT, NULL, "{", 400, BAD, "invalid_json"},
        {"POST", CHAT, NULL, "{}", 400, BAD, "missing_field"},
        {"POST", CHAT, NULL, "{" USER ",'max_tokens':'1'}", 400, BAD, "invalid_type"},
        {"POST", CHAT, NULL, "{" USER ",'temperature':6}", 400, BAD, "invalid_value"},
        {"POST", CHAT, NULL, "{" USER ",'functions':[]}", 400, BAD, "unsupported_value"},
        {"POST", CHAT, NULL, "{" USER ",'strict_max_tokens':true,'max_tokens':5000}", 400, BAD,
         "context_length_exceeded"},
        {"POST", CHAT, NULL, "{" USER ",'grammar':'root ::= ('}", 400, BAD, "invalid_grammar"},
        {"POST", CHAT, NULL, SCHEMA("{'not':{}}"), 400, BAD, "schema_unsupported"},
        {"POST", CHAT, NULL, SCHEMA("{'type':'string','maxLength':100000000}"), 400, BAD,
         "grammar_too_large"},
        {"POST", CHAT, NULL,
         "{'messages':[{'role':'user','content':[{'type':'image_url','image_url':'x'}]}]}", 400, BAD,
         "media_unsupported"},
        {"POST", "/v1/embeddings", NULL, "{'input':'x'}", 400, BAD, "not_an_embedding_model"},
        {"POST", "/v1/adapters", NULL, "{'id':'x','path':'missing_b'}", 400, BAD, "adapter_incompatible"},
        {"POST", "/v1/adapters", NULL, "{'id':'x','path':'no_target_matches'}", 400, BAD,
         "adapter_incompatible"},
        {"POST", CHAT, "Origin: http://other.example\r\n", "{" USER "}", 403, "permission_error",
         "origin_not_allowed"},
        {"POST", CHAT, NULL, "{" USER ",'model':'other'}", 404, "not_found_error", "model_not_found"},
        {"GET", "/v1/responses/resp_none", NULL, NULL, 404, "not_found_error", "response_not_found"},
        {"POST", CHAT, NULL, "{" USER ",'adapter':'none-such'}", 404, "not_found_error", "adapter_not_found"},
        {"DELETE", "/cache/cache_0", NULL, NULL, 404, "not_found_error", "cache_not_found"},
        {"GET", "/none", NULL, NULL, 404, "not_found_error", "route_not_found"},
        {"DELETE", CHAT, NULL, NULL, 405, BAD, "method_not_allowed"},
        {"POST", CHAT, "Content-Length: 3000\r\n", NULL, 413, BAD, "request_too_large"},
        {"POST", CHAT, "Content-Encoding: br\r\n", "{" USER "}", 415, BAD, "unsupported_encoding"},
        {"POST", "/v1/rerank", NULL, "{}", 501, "not_implemented_error", "not_implemented"},
        /* the other family */
        {"POST", MESSAGES, NULL, "{", 400, BAD, NULL},
        {"POST", MESSAGES, NULL, "{" USER "}", 400, BAD, NULL},
        {"POST", MESSAGES, NULL, "{" USER ",'max_tokens':5000,'strict_max_tokens':true}", 400, BAD, NULL},
        {"POST", MESSAGES, "Origin: http://other.example\r\n", "{" USER ",'max_tokens':1}", 403,
         "permission_error", NULL},
        {"POST", MESSAGES, NULL, "{" USER ",'max_tokens':1,'model':'other'}", 404, "not_found_error", NULL},
        {"POST", MESSAGES "/none", NULL, "{}", 404, "not_found_error", NULL},
        {"DELETE", MESSAGES, NULL, NULL, 405, BAD, NULL},
        {"POST", MESSAGES, "Content-Length: 3000\r\n", NULL, 413, "request_too_large", NULL},
    };
    struct server s;

    (void)state;
    server_init(&s);
    s.o.adapter_dir = test_path("tests/data/cases/lora");
    s.o.strict_model = true;
    s.o.max_body = 2048;
    server_start(&s);
    ALL(&s, list);
    server_stop(&s);
}

static void test_keys(void **state)
{
    static const struct expect list[] = {
        {"POST", CHAT, NULL, "{" USER "}", 401, "authentication_error", "invalid_api_key"},
        {"POST", MESSAGES, "x-api-key: wrong\r\n", "{" USER "}", 401, "authentication_error", NULL},
        {"POST", "/cache/flush", "x-api-key: plain\r\n", "", 403, "permission_error", "admin_required"},
    };
    struct server s;

    (void)state;
    server_init(&s);
    s.o.api_key_file = test_write(test_tmpdir(), "keys", "plain\n", 6);
    server_start(&s);
    ALL(&s, list);
    server_stop(&s);
}

static void send_chat(int fd, const char *body)
{
    char text[400];

    snprintf(text, sizeof text, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    client_send(fd, text);
}

#define BODY "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"

/* A server with one row, which an answer has that goes on and on; its connection. */
static int start_busy(struct server *s, double queue_timeout)
{
    struct esp_strbuf b;
    int fd;

    server_init(s);
    s->engine.rows = 1;
    s->engine.queue = 1;
    s->engine.context = s->engine.kv_tokens;
    s->o.queue_timeout = queue_timeout;
    server_start(s);
    fd = client_connect(s);
    send_chat(fd, BODY ",\"stream\":true,\"ignore_eos\":true}");
    esp_strbuf_init(&b, 1 << 20);
    assert_true(client_until(fd, &b, "data:", 60));
    esp_strbuf_free(&b);
    return fd;
}

static void test_queue_timeout(void **state)
{
    struct server s;
    const int busy = start_busy(&s, 0.2);
    struct reply r = client_do(&s, "POST", CHAT, NULL, BODY "}");

    (void)state;
    assert_int_equal(r.status, 429);
    assert_string_equal(text_at(r.json, "error.code"), "queue_timeout");
    assert_non_null(reply_header(&r, "Retry-After"));
    reply_free(&r);
    close(busy);
    server_stop(&s);
}

static void test_queue_full(void **state)
{
    static const struct expect full[] = {
        {"POST", CHAT, NULL, "{" USER "}", 429, "rate_limit_error", "queue_full"},
        {"POST", MESSAGES, NULL, "{" USER ",'max_tokens':1}", 429, "rate_limit_error", NULL}};
    struct server s;
    const int busy = start_busy(&s, 600), waits = client_connect(&s);
    struct reply r;

    (void)state;
    send_chat(waits, BODY "}");
    for (int64_t n = 0; n != 1; reply_free(&r)) { /* until it waits */
        r = client_do(&s, "GET", "/stats", NULL, NULL);
        n = int_at(r.json, "admission.waiting");
    }
    ALL(&s, full);
    close(waits);
    close(busy);
    server_stop(&s);
}

static void test_host(void **state)
{
    struct server s;
    struct reply r;
    int fd;

    (void)state;
    server_init(&s);
    server_start(&s);
    fd = client_connect(&s);
    client_send(fd, "GET /v1/models HTTP/1.1\r\nHost: other.example\r\n\r\n");
    r = client_reply(fd, false);
    assert_int_equal(r.status, 403);
    assert_string_equal(text_at(r.json, "error.type"), "permission_error");
    assert_string_equal(text_at(r.json, "error.code"), "host_not_allowed");
    reply_free(&r);
    close(fd);
    server_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain), cmocka_unit_test(test_keys),
                                       cmocka_unit_test(test_queue_timeout),
                                       cmocka_unit_test(test_queue_full), cmocka_unit_test(test_host)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
