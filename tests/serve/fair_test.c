/*
 * Keys that share a server: none takes more than its rows and its share of the queue, whatever it sends.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/client.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHAT "/v1/chat/completions"
#define LONG                                                                                                 \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell: "                                                \
    "garden\"}],\"min_tokens\":400,\"max_tokens\":400%s}"

static void write_keys(char path[300])
{
    FILE *f;

    snprintf(path, 300, "%s/keys", test_tmpdir());
    f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs("greedy one api\nmodest two api\nadmin three admin\n", f) >= 0);
    fclose(f);
}

/* Send a request of a key and leave it open. */
static int ask(const struct server *s, const char *key, const char *more)
{
    char body[400], text[700];
    const int fd = client_connect(s);

    snprintf(body, sizeof body, LONG, more);
    snprintf(text, sizeof text,
             "POST " CHAT
             " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %zu\r\n\r\n%s",
             key, strlen(body), body);
    client_send(fd, text);
    return fd;
}

static struct reply stats(const struct server *s)
{
    return client_do(s, "GET", "/stats", "Authorization: Bearer admin\r\n", NULL);
}

static void wait_for(const struct server *s, int running, int waiting)
{
    for (int i = 0; i < 600; i++) {
        struct reply r = stats(s);
        const bool there =
            int_at(r.json, "admission.running") == running && int_at(r.json, "admission.waiting") == waiting;

        assert_int_equal(int_at(r.json, "admission.per_key_rows"), 1);
        reply_free(&r);
        if (there)
            return;
        usleep(20000);
    }
    fail_msg("never %d running and %d waiting", running, waiting);
}

/* Three rows and eight places: one row and a third of eleven places, three, for each key. */
static void test_share(void **state)
{
    char path[300];
    struct server s;
    struct reply r;
    int fd[4];

    (void)state;
    write_keys(path);
    server_init(&s);
    s.o.api_key_file = path;
    s.o.per_key_rows = 1;
    server_start(&s);
    for (int i = 0; i < 3; i++)
        fd[i] = ask(&s, "greedy", "");
    wait_for(&s, 1, 2); /* two rows stand empty rather than being taken */
    r = client_do(&s, "POST", CHAT, "Authorization: Bearer greedy\r\n",
                  "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
    assert_int_equal(r.status, 429);
    assert_string_equal(text_at(r.json, "error.code"), "queue_full");
    assert_non_null(strstr(text_at(r.json, "error.message"), "this key's share of the queue is full: 3"));
    assert_non_null(reply_header(&r, "Retry-After"));
    reply_free(&r);
    r = client_do(&s, "POST", CHAT, "Authorization: Bearer modest\r\n",
                  "{\"n\":2,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
    assert_int_equal(r.status, 400);
    assert_string_equal(text_at(r.json, "error.param"), "n");
    assert_non_null(strstr(text_at(r.json, "error.message"), "at most 1 rows"));
    reply_free(&r);
    fd[3] = ask(&s, "modest", ",\"stream\":true");
    wait_for(&s, 2, 2); /* past those that wait */
    r = client_reply(fd[3], false);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    close(fd[3]);
    for (int i = 0; i < 3; i++) { /* all of them are answered, one behind the other */
        r = client_reply(fd[i], false);
        assert_int_equal(r.status, 200);
        assert_int_equal(int_at(r.json, "usage.completion_tokens"), 400);
        reply_free(&r);
        close(fd[i]);
    }
    server_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_share)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
