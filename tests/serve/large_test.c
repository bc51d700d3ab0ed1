/*
 * Large requests are read beside the loop: the answers are those of small ones, errors too, whoever else asks
 * does not wait, and a client that leaves in the middle costs nothing.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/shared.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

#define CHAT  "/v1/chat/completions"
#define COUNT "/v1/messages/count_tokens"
#define TEXTS "/v1/completions"

enum { PADDING = 40000, LONG_TEXT = TEST_SANITIZED ? 1 << 18 : 2 << 20 };

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void repeat(struct esp_strbuf *b, const char *text, size_t bytes)
{
    while (bytes > 0 && b->len < b->max && bytes < SIZE_MAX / 2) {
        assert_true(esp_strbuf_puts(b, text));
        bytes = bytes > strlen(text) ? bytes - strlen(text) : 0;
    }
}

/* body with a member behind its last one that nobody knows, so that it is large. */
static struct reply post_padded(const char *path, const char *body)
{
    struct esp_strbuf b;
    struct reply r;

    esp_strbuf_init(&b, 1 << 20);
    assert_true(esp_strbuf_add(&b, body, strlen(body) - 1));
    esp_strbuf_puts(&b, ",\"padding\":\"");
    repeat(&b, "padding ", PADDING);
    esp_strbuf_puts(&b, "\"}");
    r = client_do(&shared, "POST", path, NULL, esp_strbuf_str(&b));
    esp_strbuf_free(&b);
    return r;
}

/* Every route that takes another way for them: the same status and the same text. */
static void test_same(void **state)
{
    static const struct {
        const char *path, *body, *what;
    } cases[] = {
        {CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell: "
         "garden\"}],\"temperature\":0,\"max_tokens\":20}",
         "choices.0.message.content"},
        {"/v1/messages",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell: "
         "river\"}],\"temperature\":0,\"max_tokens\":20}",
         "content.0.text"},
        {"/v1/responses", "{\"input\":\"Spell: dog\",\"temperature\":0,\"max_output_tokens\":20}",
         "output.0.content.0.text"},
        {CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"Pick\"}],\"guided_choice\":[\"yes\",\"no\"],"
         "\"temperature\":0}",
         "choices.0.message.content"},
        {CHAT, "{\"messages\":[{\"role\":\"alien\",\"content\":\"x\"}]}", "error.message"},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"temperature\":9}", "error.message"},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"guided_regex\":\"(\"}",
         "error.message"},
        {COUNT, "{\"messages\":[{\"role\":\"assistant\",\"content\":7}]}", "error.message"},
        {TEXTS, "{\"prompt\":\"Once upon\",\"temperature\":0,\"max_tokens\":8}", "choices.0.text"},
        {TEXTS, "{\"prompt\":[\"a\",\"b\"],\"echo\":true,\"logprobs\":1,\"temperature\":0,\"max_tokens\":2}",
         "choices.1.text"},
        {TEXTS, "{\"prompt\":[\"a\",7]}", "error.message"},
        {TEXTS, "{\"prompt\":[[1,-1]]}", "error.message"},
        {TEXTS, "{\"temperature\":0}", "error.message"},
        {"/detokenize", "{\"tokens\":[70,440,277]}", "content"},
        {"/detokenize", "{\"tokens\":[70,-1]}", "error.message"},
        {"/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "prompt"},
        {"/apply-template", "{\"messages\":[{\"role\":\"alien\",\"content\":\"x\"}]}", "error.message"},
        {"/tokenize", "{\"with_pieces\":true,\"content\":\"Once\"}", "tokens.0.piece"},
        {"/tokenize", "{\"content\":7}", "error.message"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct reply small = client_do(&shared, "POST", cases[i].path, NULL, cases[i].body),
                     large = post_padded(cases[i].path, cases[i].body);

        assert_int_equal(small.status, large.status);
        if (!*text_at(small.json, cases[i].what))
            fail_msg("no %s in %s", cases[i].what, small.body);
        assert_string_equal(text_at(small.json, cases[i].what), text_at(large.json, cases[i].what));
        reply_free(&small);
        reply_free(&large);
    }
    for (int i = 0; i < 3; i++) {
        static const char *const paths[] = {COUNT, "/v1/responses/input_tokens", CHAT "/input_tokens"};
        static const char *const bodies[] = {
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell: garden\"}]}",
            "{\"input\":\"Spell: garden\"}",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell: garden\"}]}"};
        struct reply small = client_do(&shared, "POST", paths[i], NULL, bodies[i]),
                     large = post_padded(paths[i], bodies[i]);

        assert_int_equal(large.status, 200);
        assert_true(int_at(small.json, "input_tokens") > 5);
        assert_int_equal(int_at(small.json, "input_tokens"), int_at(large.json, "input_tokens"));
        reply_free(&small);
        reply_free(&large);
    }
}

static void test_wrong(void **state)
{
    struct reply r = post_padded(CHAT, "{\"messages\":[}");

    (void)state;
    assert_int_equal(r.status, 400);
    assert_string_equal(text_at(r.json, "error.code"), "invalid_json");
    reply_free(&r);
}

static const struct long_one {
    const char *path, *begin, *end;
    int status;
    const char *count; /* of its answer */
} longs[] = {{COUNT, "{\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]}", 200, "input_tokens"},
             {"/tokenize", "{\"content\":\"", "\"}", 200, "count"},
             {TEXTS, "{\"prompt\":\"", "\"}", 400, "error.details.prompt_tokens"}};

/* A request with a text that takes a while. */
static void make_long(struct esp_strbuf *out, const struct long_one *x)
{
    struct esp_strbuf text;

    esp_strbuf_init(&text, 64u << 20);
    repeat(&text, "The quick brown fox jumps over the lazy dog. ", LONG_TEXT);
    esp_strbuf_init(out, 64u << 20);
    esp_strbuf_printf(out, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", x->path,
                      text.len + strlen(x->begin) + strlen(x->end), x->begin);
    esp_strbuf_add(out, text.data, text.len);
    esp_strbuf_puts(out, x->end);
    esp_strbuf_free(&text);
}

static bool has_answer(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, 0) > 0;
}

/* Meanwhile others are answered: the longest wait is a small part of the time that the large one takes. */
static void test_others_of(const struct long_one *x)
{
    const int fd = client_connect(&shared);
    struct esp_strbuf request;
    double from, longest = 0, all;
    struct reply r;
    int n = 0;

    make_long(&request, x);
    client_send(fd, esp_strbuf_str(&request));
    from = now();
    while (!has_answer(fd)) {
        const double at_ = now();

        r = client_do(&shared, "GET", "/health", NULL, NULL);
        assert_int_equal(r.status, 200);
        reply_free(&r);
        if (!has_answer(fd) && now() - at_ > longest)
            longest = now() - at_;
        n++;
        usleep(2000);
    }
    all = now() - from;
    r = client_reply(fd, false);
    assert_int_equal(r.status, x->status);
    assert_true(int_at(r.json, x->count) > LONG_TEXT / 10);
    print_message("%s: %.3f s for %d bytes; %d others, the longest wait %.3f s\n", x->path, all, LONG_TEXT, n,
                  longest);
    assert_true(n > 5);
    assert_true(longest < all / 2);
    reply_free(&r);
    close(fd);
    esp_strbuf_free(&request);
}

static void test_others(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof longs / sizeof longs[0]; i++)
        test_others_of(&longs[i]);
}

/* Clients that leave at every stage; then the server is as it was. */
static void test_leave(void **state)
{
    struct esp_strbuf request;
    struct reply r;

    (void)state;
    for (size_t k = 0; k < sizeof longs / sizeof longs[0]; k++) {
        make_long(&request, &longs[k]);
        for (int i = 0; i < 6; i++) {
            const int fd = client_connect(&shared);

            client_send(fd, esp_strbuf_str(&request));
            usleep((useconds_t)(i * 15000));
            close(fd);
        }
        esp_strbuf_free(&request);
    }
    r = post_padded(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell: cat\"}],\"max_tokens\":4}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same), cmocka_unit_test(test_wrong),
                                       cmocka_unit_test(test_others), cmocka_unit_test(test_leave)};

    return cmocka_run_group_tests(tests, start_plain, stop);
}
