/*
 * The reply parser of the load generator: every framing that servers use, cut at every place, and what is
 * malformed.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <string.h>

#include "program/load_net.h"
#include "program/load_reply.h"

struct heard {
    struct esp_strbuf data; /* each line with a bar behind it */
};

static void on_data(void *user, const char *s, size_t len)
{
    struct heard *h = user;

    assert_int_equal(strlen(s), len);
    esp_strbuf_add(&h->data, s, len);
    esp_strbuf_putc(&h->data, '|');
}

/* Feed text in two pieces; what is left behind the reply in *rest. */
static enum esp_reply_state feed(struct esp_reply *r, struct heard *h, const char *text, size_t cut,
                                 size_t *rest)
{
    const size_t len = strlen(text);
    size_t used;

    esp_strbuf_init(&h->data, 1 << 16);
    esp_reply_init(r, on_data, h);
    used = esp_reply_feed(r, text, cut);
    if (used == cut)
        used += esp_reply_feed(r, text + cut, len - cut);
    *rest = len - used;
    return r->state;
}

static void expect(const char *text, enum esp_reply_state state, int status, const char *data,
                   const char *body)
{
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        struct esp_reply r;
        struct heard h;
        size_t rest;

        if (feed(&r, &h, text, cut, &rest) != state || r.status != status)
            fail_msg("'%s' cut at %zu: state %d, status %d", text, cut, (int)r.state, r.status);
        assert_string_equal(esp_strbuf_str(&h.data), data);
        assert_string_equal(esp_strbuf_str(&r.body), body);
        esp_strbuf_free(&h.data);
        esp_reply_free(&r);
    }
}

#define EVENTS "Content-Type: text/event-stream\r\n"

static void test_good(void **state)
{
    (void)state;
    expect("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", ESP_REPLY_DONE, 200, "", "hello");
    expect("HTTP/1.1 204 No Content\r\n\r\n", ESP_REPLY_DONE, 204, "", "");
    expect("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n", ESP_REPLY_DONE, 200,
           "", "");
    expect("HTTP/1.1 429 Too Many\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nA: b\r\n\r\n",
           ESP_REPLY_DONE, 429, "", "abc");
    expect("HTTP/1.1 200 OK\r\n" EVENTS
           "Transfer-Encoding: chunked\r\n\r\n9\r\ndata: {\"a\r\n1B\r\n\":1}\n\n: ping\n\n"
           "data:[DONE]\n\n\r\n0\r\n\r\n",
           ESP_REPLY_DONE, 200, "{\"a\":1}|[DONE]|", "");
    expect("HTTP/1.0 200 OK\r\n" EVENTS "\r\nevent: x\r\ndata: 1\r\n\r\ndata: 2", ESP_REPLY_CLOSE, 200, "1|",
           "");
    expect("HTTP/1.1 200 OK\n\nrest", ESP_REPLY_CLOSE, 200, "", "rest"); /* bare line ends */
}

static void test_bad(void **state)
{
    (void)state;
    expect("FTP/1.1 200 OK\r\n\r\n", ESP_REPLY_BAD, 0, "", "");
    expect("HTTP/1.1 2x0 OK\r\n\r\n", ESP_REPLY_BAD, 2, "", "");
    expect("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", ESP_REPLY_BAD, 200, "", "");
    expect("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", ESP_REPLY_BAD, 200, "", "");
    expect("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab", ESP_REPLY_BAD, 200, "", "a");
    expect("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", ESP_REPLY_BAD, 200,
           "", "");
}

static void test_ends(void **state)
{
    struct esp_reply r;
    struct heard h;
    size_t rest;

    (void)state;
    assert_int_equal(feed(&r, &h, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP", 3, &rest),
                     ESP_REPLY_DONE);
    assert_int_equal(rest, 4); /* of the next reply */
    assert_true(r.keep_alive);
    esp_reply_reset(&r);
    assert_int_equal(
        esp_reply_feed(&r, "HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\na", 58), 58);
    assert_false(r.keep_alive);
    assert_false(esp_reply_end(&r)); /* cut off */
    esp_reply_free(&r);
    esp_strbuf_free(&h.data);
    feed(&r, &h, "HTTP/1.1 200 OK\r\n\r\nabc", 5, &rest);
    assert_true(esp_reply_end(&r)); /* its end is the connection's */
    esp_reply_free(&r);
    esp_strbuf_free(&h.data);
}

static void test_targets(void **state)
{
    static const struct {
        const char *url, *host, *port, *prefix;
    } good[] = {{"http://localhost:8080", "localhost", "8080", ""},
                {"http://a.b/x/", "a.b", "80", "/x"},
                {"http://[::1]:90/p", "::1", "90", "/p"},
                {"127.0.0.1:1", "127.0.0.1", "1", ""},
                {"unix:/run/s", "/run/s", "", ""}};
    static const char *const bad[] = {"https://a", "ftp://a", "unix:s", "http://", "http://:80"};
    struct esp_load_target t;
    esp_error err;

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        test_ok(esp_load_target_parse(&t, good[i].url, &err), &err);
        assert_string_equal(t.host, good[i].host);
        assert_string_equal(t.port, good[i].port);
        assert_string_equal(t.prefix, good[i].prefix);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (esp_load_target_parse(&t, bad[i], &err) == ESP_OK)
            fail_msg("%s was accepted", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good), cmocka_unit_test(test_bad),
                                       cmocka_unit_test(test_ends), cmocka_unit_test(test_targets)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
