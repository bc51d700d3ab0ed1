/*
 * Sleep: the model goes away and comes back with the next request that needs it, with the same answers, its
 * adapters and what the cache has files for. What needs no model is answered meanwhile and wakes nobody.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/client.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHAT "/v1/chat/completions"
#define ASK  "{'messages':[{'role':'user','content':'Spell: garden'}],'temperature':0,'max_tokens':24}"

static bool sleeping(const struct server *s)
{
    struct reply r = client_do(s, "GET", "/health", NULL, NULL);
    const bool yes = json_is_true(at(r.json, "sleeping"));

    assert_int_equal(r.status, 200);
    assert_string_equal(text_at(r.json, "status"), "ok");
    reply_free(&r);
    return yes;
}

/* Until the log says it for the n-th time. */
static void wait_event(struct server *s, const char *event, int n)
{
    char text[64];

    snprintf(text, sizeof text, "event=%s", event);
    for (int tries = 0; server_log_count(s, text) < n; tries++) {
        if (tries == 2000)
            fail_msg("no %s", text);
        usleep(10000);
    }
}

static void put_to_sleep(struct server *s, int n)
{
    struct reply r = client_post(s, "/admin/sleep", "", 202);

    assert_string_equal(text_at(r.json, "status"), "falling asleep");
    reply_free(&r);
    wait_event(s, "asleep", n);
    assert_true(sleeping(s));
}

static void get(const struct server *s, const char *path, const char *part)
{
    struct reply r = client_do(s, "GET", path, NULL, NULL);

    assert_int_equal(r.status, 200);
    if (!strstr(r.body, part))
        fail_msg("%s has no %s: %s", path, part, r.body);
    reply_free(&r);
}

static void test_same_answers(void **state)
{
    struct server s;
    struct reply before, after, r;
    char dir[256];

    (void)state;
    server_init(&s);
    snprintf(dir, sizeof dir, "%s", test_tmpdir());
    s.engine.cache_dir = dir;
    s.engine.cache_disk = 1 << 30;
    s.o.adapter_dir = test_path("models");
    s.engine.max_rank = 8;
    server_start(&s);
    r = client_postf(&s, "/v1/adapters", 201, "{'id':'caps','path':'demo-lora-caps','scale':1}");
    reply_free(&r);
    for (int adapted = 0; adapted < 2; adapted++) {
        const char *more = adapted ? ",'adapter':'caps'}" : "}";
        char ask[300];

        snprintf(ask, sizeof ask, "%.*s%s", (int)strlen(ASK) - 1, ASK, more);
        before = client_postf(&s, CHAT, 200, "%s", ask);
        put_to_sleep(&s, adapted + 1);
        get(&s, "/v1/models", "\"demo\"");
        get(&s, "/v1/adapters", "caps");
        get(&s, "/metrics", "espalier:asleep{model_name=\"demo\"} 1");
        get(&s, "/stats", "\"sleeping\":true");
        get(&s, "/slots", "idle");
        assert_true(sleeping(&s));
        after = client_postf(&s, CHAT, 200, "%s", ask);
        assert_false(sleeping(&s));
        assert_string_equal(text_at(after.json, "choices.0.message.content"),
                            text_at(before.json, "choices.0.message.content"));
        assert_true(int_at(after.json, "usage.prompt_tokens_details.cached_tokens") > 0); /* from a file */
        assert_string_equal(text_at(after.json, "ext.cache.tier"), "disk");
        reply_free(&before);
        reply_free(&after);
    }
    get(&s, "/metrics", "espalier:asleep{model_name=\"demo\"} 0");
    server_stop(&s);
}

/* Asked for while an answer runs: the answer is whole, then it sleeps; and can be woken without a request. */
static void test_waits_for_the_end(void **state)
{
    static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":120,\"ignore_eos\":true,\"stream\":true}";
    char request[300];
    struct server s;
    struct reply r;
    struct esp_strbuf all;
    int fd;

    (void)state;
    server_init(&s);
    server_start(&s);
    snprintf(request, sizeof request,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    esp_strbuf_init(&all, 1 << 20);
    fd = client_connect(&s);
    client_send(fd, request);
    assert_true(client_until(fd, &all, "data: ", 30));
    r = client_post(&s, "/admin/sleep", "", 202);
    reply_free(&r);
    assert_true(client_until(fd, &all, "[DONE]", 60));
    assert_non_null(strstr(esp_strbuf_str(&all), "\"length\""));
    close(fd);
    esp_strbuf_free(&all);
    wait_event(&s, "asleep", 1);
    r = client_post(&s, "/admin/sleep", "", 200);
    assert_string_equal(text_at(r.json, "status"), "sleeping");
    reply_free(&r);
    r = client_post(&s, "/admin/wake", "", 202);
    reply_free(&r);
    wait_event(&s, "awake", 1);
    assert_false(sleeping(&s));
    r = client_post(&s, "/admin/wake", "", 200);
    assert_string_equal(text_at(r.json, "status"), "awake");
    reply_free(&r);
    server_stop(&s);
}

static void test_idle(void **state)
{
    struct server s;
    struct reply r;

    (void)state;
    server_init(&s);
    s.o.idle_sleep = 0.5;
    server_start(&s);
    for (int i = 1; i <= 2; i++) {
        wait_event(&s, "asleep", i);
        for (int k = 0; k < 5; k++) { /* none of these wakes it */
            assert_true(sleeping(&s));
            get(&s, "/v1/models", "demo");
            usleep(20000);
        }
        r = client_post(&s, "/tokenize", "{\"content\":\"a b\"}", 200);
        assert_true(int_at(r.json, "count") > 0);
        reply_free(&r);
    }
    server_stop(&s);
}

/* As many wait as could wait for a row; one more is told to come again. Then all are answered. */
static void test_many_wait(void **state)
{
    enum { WAIT = 3 };
    static const char request[] = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n"
                                  "{\"content\":\"a\"}";
    struct server s;
    struct reply r;
    int fd[WAIT];

    (void)state;
    server_init(&s);
    s.engine.rows = 1;
    s.engine.queue = WAIT - 1;
    server_start(&s);
    put_to_sleep(&s, 1);
    s.load_delay = 1;
    for (int i = 0; i < WAIT; i++) {
        fd[i] = client_connect(&s);
        client_send(fd[i], request);
    }
    usleep(200000);
    r = client_do(&s, "POST", "/tokenize", NULL, "{\"content\":\"a\"}");
    assert_int_equal(r.status, 503);
    assert_string_equal(text_at(r.json, "error.code"), "sleeping");
    assert_non_null(reply_header(&r, "Retry-After"));
    reply_free(&r);
    for (int i = 0; i < WAIT; i++) {
        r = client_reply(fd[i], false);
        assert_int_equal(r.status, 200);
        assert_int_equal(int_at(r.json, "count"), 1);
        reply_free(&r);
        close(fd[i]);
    }
    server_stop(&s);
}

/* A model that cannot be read any more: the request fails, the server lives, and the next one tries again. */
static void test_wake_fails(void **state)
{
    struct server s;
    struct reply r;

    (void)state;
    server_init(&s);
    server_start(&s);
    put_to_sleep(&s, 1);
    s.model = "models/none";
    for (int i = 0; i < 2; i++) {
        r = client_postf(&s, "/v1/messages", 529,
                         "{'messages':[{'role':'user','content':'x'}],'max_tokens':4}");
        assert_string_equal(text_at(r.json, "error.type"), "overloaded_error");
        assert_non_null(reply_header(&r, "Retry-After"));
        reply_free(&r);
        assert_true(sleeping(&s));
    }
    s.model = "models/demo";
    r = client_postf(&s, CHAT, 200, ASK);
    reply_free(&r);
    assert_false(sleeping(&s));
    server_stop(&s);
}

/* The end comes while it sleeps, and while one waits for it to wake. */
static void test_end(void **state)
{
    static const char request[] = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n"
                                  "{\"content\":\"a\"}";
    struct server s;
    struct reply r;
    int fd, gone;

    (void)state;
    server_init(&s);
    server_start(&s);
    put_to_sleep(&s, 1);
    server_stop(&s);

    server_init(&s);
    server_start(&s);
    put_to_sleep(&s, 1);
    s.load_delay = 1.5;
    gone = client_connect(&s);
    client_send(gone, request);
    fd = client_connect(&s);
    client_send(fd, request);
    usleep(300000);
    close(gone); /* a client that waits may leave */
    usleep(100000);
    server_ask_stop(&s);
    r = client_reply(fd, false);
    assert_int_equal(r.status, 503);
    assert_string_equal(text_at(r.json, "error.code"), "draining");
    reply_free(&r);
    close(fd);
    server_stop(&s);
}

/* A program that cannot load again says so. */
static void test_cannot_sleep(void **state)
{
    struct server s;
    struct reply r;

    (void)state;
    server_init(&s);
    s.no_unload = true;
    s.o.idle_sleep = 0.2;
    server_start(&s);
    usleep(500000);
    assert_false(sleeping(&s));
    r = client_do(&s, "POST", "/admin/sleep", NULL, "");
    assert_int_equal(r.status, 501);
    assert_string_equal(text_at(r.json, "error.code"), "not_implemented");
    reply_free(&r);
    server_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_answers), cmocka_unit_test(test_waits_for_the_end),
        cmocka_unit_test(test_idle),         cmocka_unit_test(test_many_wait),
        cmocka_unit_test(test_wake_fails),   cmocka_unit_test(test_end),
        cmocka_unit_test(test_cannot_sleep),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
