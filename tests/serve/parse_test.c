/*
 * Heads and chunked bodies as bytes: what is accepted, what is refused with which status, at every cut.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "serve/http_parse.h"

#define GET "GET / HTTP/1.1\r\nHost: h\r\n"

static int parse(const char *text, struct esp_http_head *h)
{
    static char buffer[16384];
    const char *why = NULL;
    const size_t len = strlen(text);
    int status;

    memcpy(buffer, text, len + 1);
    assert_int_equal(esp_http_head_length(buffer, len), len);
    for (size_t n = 0; n < len; n++)
        assert_int_equal(esp_http_head_length(buffer, n), 0);
    status = esp_http_parse_head(buffer, len, 1000, h, &why);
    assert_true((status == 0) == (why == NULL));
    return status;
}

static void test_good(void **state)
{
    struct esp_http_head h;
    char value[16];

    (void)state;
    assert_int_equal(
        parse(
            "\r\nPOST /a%20b/?x=1&y=a%2Bb+c&z HTTP/1.1\r\nHost: h:1\r\nX-A:  v \t\r\nConnection: x, Close\r\n"
            "Content-Length: 12\r\nExpect: 100-continue\r\n\r\n",
            &h),
        0);
    assert_string_equal(h.method, "POST");
    assert_string_equal(h.path, "/a b/");
    assert_string_equal(esp_http_find(&h, "x-a"), "v");
    assert_null(esp_http_find(&h, "x-b"));
    assert_true(h.has_length && h.length == 12 && h.expect_continue && !h.keep_alive && !h.chunked &&
                !h.http10);
    assert_true(esp_http_query(h.query, "y", value, sizeof value));
    assert_string_equal(value, "a+b c");
    assert_true(esp_http_query(h.query, "z", value, sizeof value));
    assert_string_equal(value, "");
    assert_false(esp_http_query(h.query, "w", value, sizeof value));
    assert_false(esp_http_query(h.query, "y", value, 3));
    assert_int_equal(parse("GET / HTTP/1.0\n\n", &h), 0);
    assert_true(h.http10 && !h.keep_alive);
    assert_int_equal(parse("GET http://h/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n", &h),
                     0);
    assert_string_equal(h.path, "/x");
    assert_true(h.chunked && h.keep_alive);
    assert_int_equal(parse(GET "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", &h), 0);
}

static void test_bad(void **state)
{
    static const struct {
        const char *text;
        int status;
    } c[] = {
        {"GET /\r\n\r\n", 400},
        {"GET  / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"G@T / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505},
        {"GET / FTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"GET x HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"GET /%0a HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"GET /%ff HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {GET "Host: i\r\n\r\n", 400},
        {GET "A : b\r\n\r\n", 400},
        {GET "A\r\n\r\n", 400},
        {GET "A: b\r\n c\r\n\r\n", 400},
        {GET "A: b\rc\r\n\r\n", 400},
        {GET "A: \x01\r\n\r\n", 400},
        {GET "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400},
        {GET "Content-Length: -1\r\n\r\n", 400},
        {GET "Content-Length: 0x10\r\n\r\n", 400},
        {GET "Content-Length: 99999999999999999999\r\n\r\n", 400},
        {GET "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {GET "Transfer-Encoding: gzip\r\n\r\n", 501},
        {GET "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 501},
        {"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    };
    struct esp_http_head h;
    struct esp_strbuf b;

    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        const int status = parse(c[i].text, &h);

        if (status != c[i].status)
            fail_msg("'%s' gives %d, not %d", c[i].text, status, c[i].status);
    }
    esp_strbuf_init(&b, 1 << 20);
    esp_strbuf_puts(&b, "GET /");
    for (int i = 0; i < 1000; i++)
        esp_strbuf_putc(&b, 'a');
    esp_strbuf_puts(&b, " HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_int_equal(parse(esp_strbuf_str(&b), &h), 414);
    esp_strbuf_clear(&b);
    esp_strbuf_puts(&b, GET);
    for (int i = 0; i < ESP_HTTP_MAX_HEADERS; i++)
        esp_strbuf_printf(&b, "a%d: b\r\n", i);
    esp_strbuf_puts(&b, "\r\n");
    assert_int_equal(parse(esp_strbuf_str(&b), &h), 431);
    esp_strbuf_free(&b);
}

/* Feed in pieces of n bytes. */
static enum esp_http_more feed(const char *text, size_t n, struct esp_strbuf *body, size_t *total)
{
    struct esp_http_chunks c = {0};
    const size_t len = strlen(text);
    enum esp_http_more more = ESP_HTTP_MORE;

    *total = 0;
    while (*total < len && more == ESP_HTTP_MORE) {
        const size_t piece = len - *total < n ? len - *total : n;
        size_t used = 0;

        more = esp_http_chunks_feed(&c, text + *total, piece, &used, body);
        assert_true(used <= piece && (more != ESP_HTTP_MORE || used == piece));
        *total += used;
    }
    return more;
}

static void test_chunks(void **state)
{
    static const struct {
        const char *text;
        enum esp_http_more end;
        const char *body;
        size_t rest;
    } c[] = {
        {"3\r\nabc\r\n0\r\n\r\n", ESP_HTTP_DONE, "abc", 0},
        {"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: v\r\n\r\nGET", ESP_HTTP_DONE, "abc0123456789", 3},
        {"0\r\n\r\n", ESP_HTTP_DONE, "", 0},
        {"3\r\nab", ESP_HTTP_MORE, "ab", 0},
        {"3\r\nabcd\r\n", ESP_HTTP_BAD, "abc", 3},
        {"\r\n", ESP_HTTP_BAD, "", 2},
        {"g\r\n", ESP_HTTP_BAD, "", 3},
        {"3\nabc", ESP_HTTP_BAD, "", 4},
        {"-1\r\n", ESP_HTTP_BAD, "", 4},
        {"ffffffffffffffffff\r\n", ESP_HTTP_TOO_LARGE, "", 0},
        {"41\r\n", ESP_HTTP_TOO_LARGE, "", 0},
        {"20\r\n01234567890123456789012345678901\r\n21\r\n012345678901234567890123456789012",
         ESP_HTTP_TOO_LARGE, "01234567890123456789012345678901", 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++)
        for (size_t n = 1; n <= 40; n += n < 4 ? 1 : 9) {
            struct esp_strbuf body;
            size_t total = 0;

            esp_strbuf_init(&body, 64);
            assert_int_equal(feed(c[i].text, n, &body, &total), c[i].end);
            if (c[i].end != ESP_HTTP_TOO_LARGE)
                assert_string_equal(esp_strbuf_str(&body), c[i].body);
            if (c[i].end == ESP_HTTP_DONE)
                assert_int_equal(strlen(c[i].text) - total, c[i].rest);
            esp_strbuf_free(&body);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good), cmocka_unit_test(test_bad),
                                       cmocka_unit_test(test_chunks)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
