/*
 * --isolate: the process that computes is killed at the worst moments. Every client that was being answered
 * is told in the form of its protocol, the next ones are served, and a process that keeps dying is given up.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/process.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LONG  "\"min_tokens\":3000,\"max_tokens\":3000"
#define USER  "\"messages\":[{\"role\":\"user\",\"content\":\"Spell: garden\"}]"
#define FLAGS "--isolate", "--ctx", "4096", "--parallel", "2", "--cache-ram", "64MiB"

/* The only child of the server's process; 0: there is none now. */
static pid_t child_of(const struct process *p)
{
    char path[100], text[100] = "";
    FILE *f;

    snprintf(path, sizeof path, "/proc/%ld/task/%ld/children", (long)p->pid, (long)p->pid);
    f = fopen(path, "r");
    if (f) {
        if (!fgets(text, sizeof text, f))
            text[0] = '\0';
        fclose(f);
    }
    return (pid_t)strtol(text, NULL, 10);
}

static bool answers(const struct process *p)
{
    struct reply r = client_do(&p->at, "GET", "/health", NULL, NULL);
    const bool ok = r.status == 200;

    reply_free(&r);
    return ok;
}

static void wait_ready(const struct process *p)
{
    for (int i = 0; !answers(p); i++) {
        assert_true(i < 3000);
        nap(0.02);
    }
}

static int post(const struct process *p, const char *path, const char *body)
{
    char text[1000];
    const int fd = client_connect(&p->at);

    snprintf(text, sizeof text,
             "POST %s HTTP/1.1\r\nHost: localhost\r\nx-request-id: mine\r\nContent-Length: %zu\r\n\r\n%s",
             path, strlen(body), body);
    client_send(fd, text);
    return fd;
}

/* Data of the last event, a new reference; its name in *event. */
static json_t *last_event(const struct reply *r, const char **event)
{
    json_t *last = NULL, *v;
    const char *name;

    for (size_t i = 0; frame(r, i, &v, &name); i++)
        if (v) {
            json_decref(last);
            last = v;
            *event = name;
        }
    return last;
}

static void kill_child(const struct process *p)
{
    const pid_t child = child_of(p);

    assert_true(child > 0);
    assert_int_equal(kill(child, SIGKILL), 0);
    for (int i = 0; child_of(p) == child; i++) {
        assert_true(i < 1000);
        nap(0.01);
    }
}

static struct {
    const char *path, *body, *seen; /* text after which the child is killed */
} streams[] = {
    {"/v1/chat/completions", "{" USER "," LONG ",\"stream\":true}", "\"content\":\""},
    {"/v1/messages", "{" USER "," LONG ",\"stream\":true}", "content_block_delta"},
    {"/v1/responses", "{\"input\":\"Spell: garden\",\"min_tokens\":3000,\"stream\":true}",
     "output_text.delta"},
};

static void check_stream(int i, const struct reply *r)
{
    const char *event = "";
    json_t *v = last_event(r, &event), *before;
    size_t n = 0;

    assert_int_equal(r->status, 200);
    assert_non_null(v);
    assert_null(strstr(r->body, "[DONE]"));
    if (i == 0)
        assert_string_equal(text_at(v, "error.code"), "device_lost");
    if (i == 1) {
        assert_string_equal(event, "error");
        assert_string_equal(text_at(v, "error.type"), "overloaded_error");
        assert_string_equal(text_at(v, "request_id"), "mine");
    }
    if (i == 2) {
        assert_string_equal(text_at(v, "type"), "error");
        while (frame(r, n, &before, &event)) {
            json_decref(before);
            n++;
        }
        assert_true(frame(r, n - 2, &before, &event));
        assert_int_equal(int_at(v, "sequence_number"), int_at(before, "sequence_number") + 1);
        json_decref(before);
    }
    json_decref(v);
}

/* A stream of each protocol, killed in the middle; it ends like an HTTP reply should. */
static void test_streams(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct process p;
        struct reply r;
        int fd;

        PROCESS(&p, FLAGS);
        fd = post(&p, streams[i].path, streams[i].body);
        for (int k = 0; k < 500 && process_stat(&p, "scheduler.generated_tokens") < 8; k++)
            nap(0.01);
        kill_child(&p);
        r = client_reply(fd, false);
        check_stream(i, &r);
        assert_non_null(strstr(r.body, streams[i].seen));
        reply_free(&r);
        close(fd);
        wait_ready(&p);
        r = client_post(&p.at, "/v1/chat/completions", "{" USER ",\"max_tokens\":4}", 200);
        reply_free(&r);
        process_stop(&p);
    }
}

/* Replies that have not begun: running, waiting, and in the other dialect; an idle connection just ends. */
static void test_whole(void **state)
{
    struct esp_strbuf rest;
    struct process p;
    int fd[4], idle;

    (void)state;
    PROCESS(&p, FLAGS);
    idle = client_connect(&p.at);
    for (int i = 0; i < 4; i++)
        fd[i] = post(&p, i == 3 ? "/v1/messages" : "/v1/chat/completions", "{" USER "," LONG "}");
    for (int k = 0; k < 500 && process_stat(&p, "admission.waiting") < 2; k++)
        nap(0.01);
    kill_child(&p);
    for (int i = 0; i < 4; i++) {
        struct reply r = client_reply(fd[i], false);

        assert_int_equal(r.status, i == 3 ? 529 : 503);
        assert_string_equal(text_at(r.json, "error.type"), "overloaded_error");
        assert_string_equal(reply_header(&r, "Retry-After"), "1");
        assert_string_equal(reply_header(&r, "x-request-id"), "mine");
        reply_free(&r);
        close(fd[i]);
    }
    esp_strbuf_init(&rest, 1000);
    assert_false(client_until(idle, &rest, "HTTP", 10));
    assert_int_equal(rest.len, 0);
    esp_strbuf_free(&rest);
    close(idle);
    wait_ready(&p);
    process_stop(&p);
}

/* Three deaths within a minute are forgiven, the fourth is not. */
static void test_gives_up(void **state)
{
    struct process p;

    (void)state;
    PROCESS(&p, FLAGS);
    for (int i = 0; i < 4; i++) {
        if (i)
            wait_ready(&p);
        assert_int_equal(process_wait(&p, 0), -1000);
        kill(child_of(&p), SIGKILL);
        if (i < 3)
            nap(0.3);
    }
    assert_int_equal(process_wait(&p, 20), 1);
}

/* An end in order: what runs is finished, nobody new comes in, and both processes are gone with code 0. */
static void test_ends(void **state)
{
    struct process p;
    struct reply r;
    pid_t child;
    int fd;

    (void)state;
    PROCESS(&p, FLAGS);
    child = child_of(&p);
    fd = post(&p, "/v1/chat/completions", "{" USER ",\"min_tokens\":300,\"max_tokens\":300,\"stream\":true}");
    for (int k = 0; k < 500 && process_stat(&p, "scheduler.generated_tokens") < 4; k++)
        nap(0.01);
    process_signal(&p, SIGTERM);
    r = client_reply(fd, false);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "data: [DONE]"));
    reply_free(&r);
    close(fd);
    assert_int_equal(process_wait(&p, 60), 0);
    assert_int_equal(kill(child, 0), -1);
}

/* The parent is killed: its child does not stay behind. */
static void test_orphan(void **state)
{
    struct process p;
    pid_t child;

    (void)state;
    PROCESS(&p, FLAGS);
    child = child_of(&p);
    process_signal(&p, SIGKILL);
    assert_int_equal(process_wait(&p, 10), -SIGKILL);
    for (int i = 0; kill(child, 0) == 0; i++) {
        assert_true(i < 2000);
        nap(0.01);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_streams), cmocka_unit_test(test_whole),
                                       cmocka_unit_test(test_gives_up), cmocka_unit_test(test_ends),
                                       cmocka_unit_test(test_orphan)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
