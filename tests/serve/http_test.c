/*
 * The server as bytes see it: connections, limits, time-outs, headers, who may call. Every refusal has the
 * shape of its family, and the server answers on afterwards.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/shared.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int start(void **state)
{
    (void)state;
    server_init(&shared);
    shared.o.max_body = 4096;
    shared.o.header_timeout = 2;
    shared.o.body_timeout = 1;
    shared.o.cors_origins[0] = "http://a.example";
    shared.o.n_cors = 1;
    server_start(&shared);
    return 0;
}

static void still_well(void)
{
    struct reply r = client_do(&shared, "GET", "/health", NULL, NULL);

    assert_int_equal(r.status, 200);
    assert_string_equal(text_at(r.json, "status"), "ok");
    reply_free(&r);
}

/* Send bytes on a new connection and read one reply. */
static struct reply raw(const char *bytes)
{
    const int fd = client_connect(&shared);
    struct reply r;

    assert_true(fd >= 0);
    client_send(fd, bytes);
    r = client_reply(fd, false);
    close(fd);
    return r;
}

static void expect_error(const char *bytes, int status, const char *code)
{
    struct reply r = raw(bytes);

    if (r.status != status || strcmp(text_at(r.json, "error.code"), code) != 0)
        fail_msg("'%.60s...': %d %s", bytes, r.status, r.body);
    assert_true(text_at(r.json, "error.message")[0] != '\0');
    assert_non_null(reply_header(&r, "x-request-id"));
    reply_free(&r);
    still_well();
}

#define H "Host: localhost\r\n"

static void test_refusals(void **state)
{
    (void)state;
    expect_error("GET /\r\n\r\n", 400, "invalid_request");
    expect_error("GET / HTTP/1.1\r\n\r\n", 400, "invalid_request");
    expect_error("GET / HTTP/3.0\r\n" H "\r\n", 505, "http_version");
    expect_error("POST /tokenize HTTP/1.1\r\n" H "Content-Length: 4097\r\n\r\n", 413, "request_too_large");
    expect_error("POST /tokenize HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 4097\r\n\r\n", 413,
                 "request_too_large");
    expect_error("POST /tokenize HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1001\r\n", 413,
                 "request_too_large");
    expect_error("POST /tokenize HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400,
                 "invalid_request");
    expect_error("POST /tokenize HTTP/1.1\r\n" H "Transfer-Encoding: gzip\r\n\r\n", 501, "not_implemented");
    expect_error("GET /nowhere HTTP/1.1\r\n" H "\r\n", 404, "route_not_found");
    expect_error("DELETE /v1/models HTTP/1.1\r\n" H "\r\n", 405, "method_not_allowed");
    expect_error("POST /tokenize HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", 400, "invalid_json");
    expect_error("POST /tokenize HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n[]", 400, "invalid_json");
    expect_error("POST /tokenize HTTP/1.1\r\n" H "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415,
                 "unsupported_encoding");
    expect_error("POST /tokenize HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\n{\"a\xff\"", 400, "invalid_json");
    expect_error("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, "host_not_allowed");
    expect_error("GET /v1/models HTTP/1.1\r\n" H "Origin: http://evil.example\r\n\r\n", 403,
                 "origin_not_allowed");
    expect_error("POST /v1/embeddings HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}", 400,
                 "not_an_embedding_model");
    expect_error("POST /v1/rerank HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}", 501, "not_implemented");
}

static void test_long_head(void **state)
{
    struct esp_strbuf b;

    (void)state;
    esp_strbuf_init(&b, 1 << 20);
    esp_strbuf_puts(&b, "GET / HTTP/1.1\r\n" H "X: ");
    for (int i = 0; i < 70000; i++)
        esp_strbuf_putc(&b, 'x');
    esp_strbuf_puts(&b, "\r\n\r\n");
    expect_error(esp_strbuf_str(&b), 431, "headers_too_large");
    esp_strbuf_clear(&b);
    esp_strbuf_puts(&b, "GET /");
    for (int i = 0; i < 17000; i++)
        esp_strbuf_putc(&b, 'x');
    esp_strbuf_puts(&b, " HTTP/1.1\r\n" H "\r\n");
    expect_error(esp_strbuf_str(&b), 414, "uri_too_long");
    esp_strbuf_free(&b);
}

static void test_methods(void **state)
{
    struct reply r = client_do(&shared, "HEAD", "/", NULL, NULL);

    (void)state;
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = client_do(&shared, "HEAD", "/v1/models/", NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_string_equal(reply_header(&r, "Content-Type"), "application/json");
    reply_free(&r);
    r = client_do(&shared, "OPTIONS", "/v1/models", NULL, NULL);
    assert_int_equal(r.status, 204);
    assert_string_equal(reply_header(&r, "Allow"), "GET, HEAD, OPTIONS");
    assert_null(reply_header(&r, "Access-Control-Allow-Origin"));
    reply_free(&r);
    r = client_do(&shared, "PUT", "/v1/messages", NULL, NULL);
    assert_string_equal(text_at(r.json, "type"), "error");
    assert_non_null(reply_header(&r, "request-id"));
    reply_free(&r);
    r = client_do(&shared, "GET", "/v1/health?x=y", "x-request-id: my-id.1\r\n", NULL);
    assert_string_equal(reply_header(&r, "x-request-id"), "my-id.1");
    reply_free(&r);
    r = client_do(&shared, "GET", "/health", "x-request-id: my id\r\n", NULL);
    assert_string_not_equal(reply_header(&r, "x-request-id"), "my id");
    reply_free(&r);
    r = client_do(&shared, "GET", "/v1", NULL, NULL);
    assert_true(json_array_size(at(r.json, "routes")) > 10);
    reply_free(&r);
}

static void test_cors(void **state)
{
    struct reply r = raw("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: h\r\nOrigin: http://a.example\r\n"
                         "Access-Control-Request-Method: POST\r\n"
                         "Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\n\r\n");

    (void)state;
    assert_int_equal(r.status, 204);
    assert_string_equal(reply_header(&r, "Access-Control-Allow-Origin"), "http://a.example");
    assert_string_equal(reply_header(&r, "Access-Control-Allow-Headers"),
                        "authorization,content-type,x-stainless-os");
    reply_free(&r);
    r = client_do(&shared, "GET", "/v1/models", "Origin: http://a.example\r\n", NULL);
    assert_int_equal(r.status, 200);
    assert_string_equal(reply_header(&r, "Access-Control-Allow-Origin"), "http://a.example");
    reply_free(&r);
    r = client_do(&shared, "POST", "/v1/completions", "Origin: http://a.example\r\n",
                  "{\"prompt\":\"a\",\"max_tokens\":1,\"stream\":true}");
    assert_int_equal(r.status, 200);
    assert_string_equal(reply_header(&r, "Access-Control-Allow-Origin"), "http://a.example");
    assert_string_equal(reply_header(&r, "Content-Type"), "text/event-stream");
    assert_string_equal(reply_header(&r, "X-Accel-Buffering"), "no");
    reply_free(&r);
    r = client_do(&shared, "GET", "/v1/models", "Origin: http://localhost\r\n", NULL); /* its own page */
    assert_int_equal(r.status, 200);
    reply_free(&r);
}

static void test_pipelined(void **state)
{
    const int fd = client_connect(&shared);
    struct reply r;

    (void)state;
    client_send(fd,
                "GET /health HTTP/1.1\r\nHost: h\r\n\r\nGET /v1/models HTTP/1.1\r\n" H "\r\n"
                "POST /tokenize HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
                "5\r\n{\"con\r\n8\r\ntent\":\"a\r\n2\r\n\"}\r\n0\r\n\r\nGET /version HTTP/1.1\r\n" H "\r\n");
    r = client_reply(fd, false);
    assert_string_equal(text_at(r.json, "status"), "ok");
    reply_free(&r);
    r = client_reply(fd, false);
    assert_string_equal(text_at(r.json, "data.0.id"), "demo");
    reply_free(&r);
    r = client_reply(fd, false);
    assert_int_equal(int_at(r.json, "count"), 1);
    reply_free(&r);
    r = client_reply(fd, false);
    assert_true(text_at(r.json, "version")[0] != '\0');
    reply_free(&r);
    for (int i = 0; i < 3; i++) { /* the connection stays */
        client_send(fd, "POST /tokenize HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 15\r\n\r\n");
        usleep(20000);
        client_send(fd, "{\"content\":\"b\"}");
        r = client_reply(fd, false);
        assert_int_equal(int_at(r.json, "count"), 1);
        reply_free(&r);
    }
    close(fd);
}

/* Byte by byte it works while it is quick enough; slow heads and bodies end with 408, idle ones with silence.
 */
static void test_slow(void **state)
{
    const char *text = "POST /tokenize HTTP/1.1\r\n" H "Content-Length: 15\r\n\r\n{\"content\":\"b\"}";
    int fd = client_connect(&shared);
    struct reply r;
    char c;

    (void)state;
    for (const char *p = text; *p; p++) {
        const char one[2] = {*p, '\0'};

        client_send(fd, one);
    }
    r = client_reply(fd, false);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    client_send(fd, "POST /tokenize HTTP/1.1\r\n" H "Content-Length: 15\r\n\r\n{\"con");
    r = client_reply(fd, false);
    assert_int_equal(r.status, 408);
    assert_string_equal(text_at(r.json, "error.code"), "request_timeout");
    assert_string_equal(reply_header(&r, "Connection"), "close");
    reply_free(&r);
    assert_int_equal(recv(fd, &c, 1, 0), 0);
    close(fd);
    fd = client_connect(&shared);
    client_send(fd, "POST /tokeni");
    r = client_reply(fd, false);
    assert_int_equal(r.status, 408);
    reply_free(&r);
    close(fd);
    fd = client_connect(&shared);
    assert_int_equal(recv(fd, &c, 1, 0), 0); /* nothing was said: nothing is answered */
    close(fd);
    still_well();
}

static void test_http10(void **state)
{
    struct reply r = raw("GET /health HTTP/1.0\r\n\r\n");

    (void)state;
    assert_int_equal(r.status, 200);
    assert_string_equal(reply_header(&r, "Connection"), "close");
    reply_free(&r);
    r = raw("POST /v1/completions HTTP/1.0\r\nContent-Length: "
            "43\r\n\r\n{\"prompt\":\"a\",\"max_tokens\":1,\"stream\":true}");
    assert_int_equal(r.status, 200);
    assert_null(reply_header(&r, "Transfer-Encoding"));
    assert_non_null(strstr(r.body, "data: [DONE]"));
    reply_free(&r);
}

static void test_text_routes(void **state)
{
    struct reply r =
        client_postf(&shared, "/tokenize", 200, "{'content':'h\xc3\xa9llo <|im_end|>','with_pieces':true}");
    int64_t n;

    (void)state;
    n = int_at(r.json, "count");
    assert_int_equal(json_array_size(at(r.json, "tokens")), n);
    assert_string_equal(text_at(at(r.json, "tokens"), "5.piece"), "<|im_end|>");
    reply_free(&r);
    r = client_postf(&shared, "/tokenize", 200,
                     "{'content':'h\xc3\xa9llo <|im_end|>','parse_special':false}");
    assert_true(int_at(r.json, "count") > n);
    reply_free(&r);
    r = client_postf(&shared, "/detokenize", 200, "{'tokens':[71,3189,285,78]}");
    assert_string_equal(text_at(r.json, "content"), "h\xc3\xa9llo");
    reply_free(&r);
    r = client_postf(&shared, "/detokenize", 400, "{'tokens':[4096]}");
    assert_string_equal(text_at(r.json, "error.param"), "tokens");
    reply_free(&r);
    r = client_postf(&shared, "/tokenize", 400, "{}");
    assert_string_equal(text_at(r.json, "error.code"), "missing_field");
    reply_free(&r);
    r = client_postf(&shared, "/tokenize", 200,
                     "{'content':'\\ud800x\\ud83d\\ude0a'}"); /* a lone surrogate */
    reply_free(&r);
    r = client_postf(&shared, "/apply-template", 200,
                     "{'messages':[{'role':'user','content':'q<|im_end|>'}]}");
    assert_string_equal(
        text_at(r.json, "prompt"),
        "<|im_start|>user\nq<|im_end|><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
    reply_free(&r);
    r = client_postf(&shared, "/v1/chat/completions/input_tokens", 200,
                     "{'messages':[{'role':'user','content':'q'}]}");
    assert_int_equal(int_at(r.json, "input_tokens"), 13);
    reply_free(&r);
}

static void test_info(void **state)
{
    struct reply r = client_do(&shared, "GET", "/v1/models/demo", NULL, NULL);

    (void)state;
    assert_int_equal(int_at(r.json, "max_model_len"), 1024);
    reply_free(&r);
    r = client_do(&shared, "GET", "/v1/models/org/other", NULL, NULL);
    assert_int_equal(r.status, 404);
    assert_string_equal(text_at(r.json, "error.code"), "model_not_found");
    reply_free(&r);
    r = client_do(&shared, "GET", "/props", NULL, NULL);
    assert_int_equal(int_at(r.json, "total_slots"), 3);
    reply_free(&r);
    r = client_do(&shared, "GET", "/slots", NULL, NULL);
    assert_int_equal(json_array_size(r.json), 3);
    reply_free(&r);
    r = client_do(&shared, "GET", "/stats", NULL, NULL);
    assert_int_equal(int_at(r.json, "admission.max_rows"), 3);
    reply_free(&r);
    r = client_do(&shared, "GET", "/metrics", NULL, NULL);
    assert_non_null(strstr(r.body, "\nvllm:num_requests_running{model_name=\"demo\"} 0\n"));
    assert_non_null(strstr(r.body, "le=\"+Inf\"} "));
    assert_non_null(
        strstr(r.body, "espalier:http_requests_total{route=\"/health\",method=\"GET\",status=\"200\"}"));
    reply_free(&r);
}

/* ---- servers of their own ---- */

static void test_keys(void **state)
{
    const char *dir = test_tmpdir();
    const char *file = test_write(dir, "keys", "# ours\nalpha alice admin\nbeta bob\n\ngamma\n", 41);
    struct server s;
    struct reply r;

    (void)state;
    server_init(&s);
    s.o.api_key_file = file;
    s.o.api_prefix = "/llm";
    server_start(&s);
    r = client_do(&s, "GET", "/llm/health", NULL, NULL);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = client_do(&s, "GET", "/health", NULL, NULL);
    assert_int_equal(r.status, 401); /* not below the prefix, and so not public */
    reply_free(&r);
    r = client_do(&s, "GET", "/llm/v1/models", NULL, NULL);
    assert_int_equal(r.status, 401);
    assert_string_equal(text_at(r.json, "error.type"), "authentication_error");
    reply_free(&r);
    r = client_do(&s, "GET", "/llm/v1/models", "Authorization: Bearer alphA\r\n", NULL);
    assert_int_equal(r.status, 401);
    reply_free(&r);
    r = client_do(&s, "GET", "/llm/v1/models", "Authorization: Bearer beta\r\n", NULL);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = client_do(&s, "GET", "/llm/v1/models", "x-api-key: gamma\r\n", NULL);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = client_do(&s, "OPTIONS", "/llm/v1/models", NULL, NULL);
    assert_int_equal(r.status, 204);
    reply_free(&r);
    assert_true(server_logged(&s, "key=bob"));
    assert_null(strstr(esp_strbuf_str(&s.log), "beta"));
    server_stop(&s);
}

static void test_start_refused(void **state)
{
    const char *dir = test_tmpdir();
    struct server s, t;
    char path[200];

    (void)state;
    server_init(&s);
    s.o.hosts[0] = "0.0.0.0";
    s.o.n_host = 1;
    server_start(&s);
    assert_int_equal(server_join(&s), ESP_EINVAL);
    assert_non_null(strstr(s.err.message, "--insecure"));
    server_init(&s);
    s.model = "models/none";
    server_start(&s);
    assert_int_equal(server_join(&s), ESP_ENOTFOUND);
    snprintf(path, sizeof path, "unix:%s/s", dir);
    server_init(&s);
    s.o.hosts[0] = path;
    s.o.n_host = 1;
    server_start(&s);
    server_init(&t);
    t.o.hosts[0] = path;
    t.o.n_host = 1;
    server_start(&t);
    assert_int_equal(server_join(&t), ESP_EIO);
    assert_non_null(strstr(t.err.message, "another server"));
    {
        struct reply r = client_do(&s, "GET", "/v1/models", NULL, NULL);

        assert_int_equal(r.status, 200);
        reply_free(&r);
    }
    server_stop(&s);
    assert_int_equal(access(path + 5, F_OK), -1); /* the file goes with the server */
}

static void test_loading(void **state)
{
    struct server s;
    struct reply r;

    (void)state;
    server_init(&s);
    s.load_delay = 0.5;
    server_start(&s);
    r = client_do(&s, "GET", "/health", NULL, NULL);
    assert_int_equal(r.status, 503);
    assert_string_equal(text_at(r.json, "status"), "loading");
    reply_free(&r);
    r = client_do(&s, "POST", "/v1/completions", NULL, "{}");
    assert_int_equal(r.status, 503);
    assert_string_equal(text_at(r.json, "error.code"), "model_loading");
    assert_non_null(reply_header(&r, "Retry-After"));
    reply_free(&r);
    r = client_do(&s, "POST", "/v1/messages", NULL, "{}");
    if (r.status != 404) /* the family's own status for overload */
        assert_int_equal(r.status, 529);
    reply_free(&r);
    server_stop(&s); /* stopped while it loads */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_long_head),
        cmocka_unit_test(test_methods),       cmocka_unit_test(test_cors),
        cmocka_unit_test(test_pipelined),     cmocka_unit_test(test_slow),
        cmocka_unit_test(test_http10),        cmocka_unit_test(test_text_routes),
        cmocka_unit_test(test_info),          cmocka_unit_test(test_keys),
        cmocka_unit_test(test_start_refused), cmocka_unit_test(test_loading)};

    return cmocka_run_group_tests(tests, start, stop);
}
