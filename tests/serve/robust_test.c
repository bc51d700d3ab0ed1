/*
 * Bodies and connections that break or are made to hurt: very large, cut off, nested too deep, not UTF-8,
 * half closed. Each gets its refusal or its answer, and the server answers on with every row free.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"

#define CHAT "/v1/chat/completions"

static struct process p;

static int start(void **state)
{
    (void)state;
    PROCESS(&p, "--parallel", "4", "--ctx", "512");
    return 0;
}

static int stop(void **state)
{
    (void)state;
    process_stop(&p);
    return 0;
}

/* Nothing is left of what came before, and a plain request is answered. */
static void still_well(void)
{
    struct reply r;

    process_idle(&p);
    r = client_post(&p.at, CHAT,
                    "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell: dog\"}],\"max_tokens\":4}", 200);
    reply_free(&r);
}

static void expect(const char *body, int status, const char *code)
{
    struct reply r = client_do(&p.at, "POST", CHAT, NULL, body);

    if (r.status != status || strcmp(text_at(r.json, "error.code"), code) != 0)
        fail_msg("%.60s...: %d %.300s", body, r.status, r.body);
    reply_free(&r);
    still_well();
}

static char *repeated(const char *head, const char *piece, size_t n, const char *tail)
{
    struct esp_strbuf b;

    esp_strbuf_init(&b, 128u << 20);
    esp_strbuf_puts(&b, head);
    for (size_t i = 0; i < n; i++)
        esp_strbuf_puts(&b, piece);
    assert_true(esp_strbuf_puts(&b, tail));
    return esp_strbuf_take(&b);
}

static void test_nested(void **state)
{
    char *deep = repeated("{\"messages\":", "[", 100000, ""), *whole = repeated("{\"x\":", "[", 127, "");
    char *closed =
        repeated(whole, "]", 127, ",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":1}");
    char *over = repeated("{\"x\":", "{\"a\":", 200, "1");
    struct reply r;

    (void)state;
    expect(deep, 400, "invalid_json");
    expect(over, 400, "invalid_json");
    r = client_post(&p.at, CHAT, closed, 200); /* 128 levels, the most */
    reply_free(&r);
    esp_free(deep);
    esp_free(whole);
    esp_free(closed);
    esp_free(over);
}

static void test_not_text(void **state)
{
    (void)state;
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}", 400, "invalid_json");
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"\xed\xa0\x80\"}]}", 400,
           "invalid_json"); /* a surrogate */
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"\xc0\x80\"}]}", 400,
           "invalid_json"); /* overlong */
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"\\u0000\"}]}", 400, "invalid_json");
}

/* A body as large as the server takes, whose weight is in a field that means nothing, and one byte too much.
 */
static void test_large(void **state)
{
    const size_t mib = TEST_SANITIZED ? 4 : 60;
    char *piece = repeated("", "y", 1 << 20, "");
    char *body = repeated(
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":1,\"metadata\":{\"x\":\"",
        piece, mib, "\"}}");
    const double before = process_rss(&p);
    struct reply r = client_post(&p.at, CHAT, body, 200);

    (void)state;
    reply_free(&r);
    esp_free(body);
    body =
        repeated("{\"messages\":[{\"role\":\"user\",\"content\":\"", piece, TEST_SANITIZED ? 4 : 40, "\"}]}");
    r = client_do(&p.at, "POST", CHAT, NULL, body); /* beyond --max-prompt-bytes, or beyond the context */
    assert_int_equal(r.status, 400);
    reply_free(&r);
    esp_free(body);
    esp_free(piece);
    r = client_do(&p.at, "POST", CHAT, "Content-Length: 67108865\r\n", NULL);
    assert_int_equal(r.status, 413);
    reply_free(&r);
    still_well();
    if (!TEST_SANITIZED)
        assert_true(process_rss(&p) < before + (64 << 20)); /* what they took is given back */
}

/* Bodies that never end: the client goes, in order and in disorder. */
static void test_cut_off(void **state)
{
    static const char head[] =
        "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{\"messages\":";
    const struct linger reset = {.l_onoff = 1};

    (void)state;
    for (int i = 0; i < 20; i++) {
        const int fd = client_connect(&p.at);

        client_send(fd, head);
        if (i % 2)
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
    }
    still_well();
}

/* A client that has closed its sending side counts as gone: its row is free at once. */
static void test_half_closed(void **state)
{
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell: "
                               "dog\"}],\"stream\":true,\"min_tokens\":450,\"max_tokens\":450}";
    struct esp_strbuf got;
    char head[200];

    (void)state;
    snprintf(head, sizeof head, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
             sizeof body - 1);
    for (int i = 0; i < 8; i++) {
        const int fd = client_connect(&p.at);

        esp_strbuf_init(&got, 1 << 20);
        client_send(fd, head);
        client_send(fd, body);
        assert_true(client_until(fd, &got, "data:", 60));
        shutdown(fd, SHUT_WR);
        client_until(fd, &got, "data: [DONE]", 60); /* ends with the connection, or with the answer */
        close(fd);
        esp_strbuf_free(&got);
    }
    still_well();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nested), cmocka_unit_test(test_not_text),
                                       cmocka_unit_test(test_large), cmocka_unit_test(test_cut_off),
                                       cmocka_unit_test(test_half_closed)};

    return cmocka_run_group_tests(tests, start, stop);
}
