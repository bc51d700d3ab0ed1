/*
 * A server that is asked to end, and one that dies: SIGTERM in the middle of streams, SIGKILL in the middle
 * of writing. What was promised, a stream that runs or an answer that was stored, is kept; what is damaged is
 * found and left out; nothing stands in the way of the next start.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/process.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/map.h"
#include "base/mem.h"

enum { N_STREAMS = 6, MAX_KEPT = 512 };

/* ---- SIGTERM ---- */

static int open_stream(const struct process *p, const char *path, const char *body)
{
    const int fd = client_connect(&p->at);
    char head[256];

    assert_true(fd >= 0);
    snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", path,
             strlen(body));
    client_send(fd, head);
    client_send(fd, body);
    return fd;
}

#define LONG_CHAT                                                                                            \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell: garden\"}],\"stream\":true,\"temperature\":1,"   \
    "\"seed\":3,\"min_tokens\":%d,\"max_tokens\":%d}"

/* Everything that came until the server closed. */
static char *rest(int fd, struct esp_strbuf *b)
{
    client_until(fd, b, "never in a reply", 60);
    close(fd);
    return esp_strbuf_take(b);
}

static void open_streams(const struct process *p, int fds[N_STREAMS], struct esp_strbuf b[N_STREAMS],
                         int tokens)
{
    char body[400];

    snprintf(body, sizeof body, LONG_CHAT, tokens,
             tokens + 8); /* a run of `tokens`, and a second one behind it */
    for (int i = 0; i < N_STREAMS; i++) {
        fds[i] = open_stream(p, "/v1/chat/completions", body);
        esp_strbuf_init(&b[i], 16 << 20);
    }
    for (int i = 0; i < N_STREAMS; i++)
        assert_true(client_until(fds[i], &b[i], "\"content\":\"", 60));
}

/* Streams that run are finished; no new request is taken; the exit code is 0. */
static void test_term_lets_streams_finish(void **state)
{
    struct esp_strbuf b[N_STREAMS];
    int fds[N_STREAMS], late;
    struct process p;
    double ended;

    (void)state;
    PROCESS(&p, "--parallel", "8", "--ctx", "512");
    open_streams(&p, fds, b, TEST_SANITIZED ? 80 : 300);
    process_signal(&p, SIGTERM);
    nap(0.3);
    late = client_connect(&p.at);
    assert_int_equal(late, -1); /* nobody listens any more */
    for (int i = 0; i < N_STREAMS; i++) {
        char *text = rest(fds[i], &b[i]);

        assert_non_null(strstr(text, "data: [DONE]\n\n"));
        assert_null(strstr(text, "\"error\""));
        esp_free(text);
    }
    ended = seconds_now();
    assert_int_equal(process_wait(&p, 60), 0);
    assert_true(seconds_now() - ended <
                (TEST_SANITIZED ? 20 : 5)); /* not the whole grace for idle connections */
}

/* Streams that take longer than the grace end in the form of their dialect, and the exit code is 0 still. */
static void test_term_cuts_streams(void **state)
{
    struct esp_strbuf b, m;
    struct process p;
    char body[400], *text;
    int chat, messages;

    (void)state;
    PROCESS(&p, "--parallel", "8", "--ctx", "4096", "--shutdown-timeout", "200ms");
    snprintf(body, sizeof body, LONG_CHAT, 4000, 4000);
    chat = open_stream(&p, "/v1/chat/completions", body);
    messages = open_stream(&p, "/v1/messages",
                           "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell: dog\"}],\"stream\":true,"
                           "\"min_tokens\":4000,\"max_tokens\":4000}");
    esp_strbuf_init(&b, 16 << 20);
    esp_strbuf_init(&m, 16 << 20);
    assert_true(client_until(chat, &b, "\"content\":\"", 60));
    assert_true(client_until(messages, &m, "text_delta", 60));
    process_signal(&p, SIGTERM);
    text = rest(chat, &b);
    assert_non_null(strstr(text, "data: {\"error\":"));
    assert_null(strstr(text, "[DONE]"));
    esp_free(text);
    text = rest(messages, &m);
    assert_non_null(strstr(text, "event: error\n"));
    assert_null(strstr(text, "message_stop"));
    esp_free(text);
    assert_int_equal(process_wait(&p, 60), 0);
}

/* A second signal does not wait. */
static void test_second_term(void **state)
{
    struct esp_strbuf b;
    struct process p;
    char body[400];
    int fd;

    (void)state;
    PROCESS(&p, "--parallel", "2", "--ctx", "4096");
    snprintf(body, sizeof body, LONG_CHAT, 4000, 4000);
    fd = open_stream(&p, "/v1/chat/completions", body);
    esp_strbuf_init(&b, 16 << 20);
    assert_true(client_until(fd, &b, "\"content\":\"", 60));
    process_signal(&p, SIGTERM);
    nap(0.2);
    assert_int_equal(process_wait(&p, 0), -1000); /* the stream has its grace */
    process_signal(&p, SIGTERM);
    assert_int_not_equal(process_wait(&p, 5), -1000);
    close(fd);
    esp_strbuf_free(&b);
}

/* ---- SIGKILL ---- */

struct kept { /* answers whose reply has come */
    char *id[MAX_KEPT], *text[MAX_KEPT];
    size_t n;
};

/* Store answers until the server is gone. */
struct writer {
    const struct process *p;
    struct kept *kept;
    unsigned first;
};

static bool store_one(const struct writer *w, unsigned i)
{
    const int fd = client_connect(&w->p->at);
    char body[300], head[200];
    struct esp_strbuf b;
    const char *at_body;
    json_t *v = NULL;
    bool whole;

    if (fd < 0)
        return false;
    snprintf(body, sizeof body,
             "{\"input\":\"Spell: "
             "word%u\",\"temperature\":1,\"seed\":%u,\"min_tokens\":4,\"max_output_tokens\":6}",
             i, i);
    snprintf(
        head, sizeof head,
        "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
        strlen(body));
    esp_strbuf_init(&b, 1 << 20);
    client_send(fd, head);
    client_send(fd, body);
    client_until(fd, &b, "never in a reply", 60);
    close(fd);
    at_body = strstr(esp_strbuf_str(&b), "\r\n\r\n");
    whole = at_body && strncmp(esp_strbuf_str(&b), "HTTP/1.1 200", 12) == 0;
    v = whole ? json_loads(at_body + 4, 0, NULL) : NULL;
    if (v && w->kept->n < MAX_KEPT) { /* the reply is whole: a promise */
        const char *id = text_at(v, "id");
        char *text = json_dumps(at(v, "output"), JSON_COMPACT | JSON_SORT_KEYS);

        w->kept->id[w->kept->n] = esp_strndup(id, strlen(id));
        w->kept->text[w->kept->n] = esp_strndup(text, strlen(text));
        __atomic_add_fetch(&w->kept->n, 1, __ATOMIC_SEQ_CST);
        free(text);
    }
    json_decref(v);
    esp_strbuf_free(&b);
    return whole;
}

static void *write_on(void *arg)
{
    const struct writer *w = arg;

    for (unsigned i = w->first; store_one(w, i); i++)
        ;
    return NULL;
}

/* Every promised answer is there, as it was. */
static void check_kept(const struct process *p, const struct kept *k)
{
    for (size_t i = 0; i < k->n; i++) {
        char path[200], *text;
        struct reply r;

        snprintf(path, sizeof path, "/v1/responses/%s", k->id[i]);
        r = client_do(&p->at, "GET", path, NULL, NULL);
        if (r.status != 200)
            fail_msg("answer %zu of %zu (%s) is lost: %s", i, k->n, k->id[i], r.body);
        text = json_dumps(at(r.json, "output"), JSON_COMPACT | JSON_SORT_KEYS);
        assert_string_equal(text, k->text[i]);
        free(text);
        reply_free(&r);
    }
}

/* Files in a folder whose name has the part. */
static size_t count_files(const char *dir, const char *part)
{
    DIR *d = opendir(dir);
    size_t n = 0;

    for (const struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
        n += e->d_name[0] != '.' && strstr(e->d_name, part) != NULL;
    if (d)
        closedir(d);
    return n;
}

static char *greedy(const struct process *p)
{
    struct reply r =
        client_post(&p->at, "/v1/chat/completions",
                    "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell: garden and a stone\"}],"
                    "\"temperature\":0,\"min_tokens\":8,\"max_tokens\":16}",
                    200);
    const char *text = text_at(r.json, "choices.0.message.content");
    char *copy = esp_strndup(text, strlen(text));

    reply_free(&r);
    return copy;
}

/* A chat of n messages has this status. */
static void expect_messages(const struct process *p, int n, int status)
{
    json_t *messages = json_array();
    char *text, body[2000];
    struct reply r;

    for (int i = 0; i < n; i++)
        json_array_append_new(messages,
                              json_pack("{s:s,s:s}", "role", i % 2 ? "assistant" : "user", "content", "x"));
    text = json_dumps(messages, 0);
    snprintf(body, sizeof body, "{\"messages\":%s,\"max_tokens\":1}", text);
    r = client_do(&p->at, "POST", "/v1/chat/completions", "Content-Type: application/json\r\n", body);
    assert_int_equal(r.status, status);
    reply_free(&r);
    esp_free(text);
    json_decref(messages);
}

static void write_config(const char *dir, const char *text)
{
    test_write(dir, "espalier.conf", text, strlen(text));
}

static size_t count_in_log(const struct process *p, const char *text)
{
    char *log = NULL;
    size_t len, n = 0;
    esp_error err;

    assert_int_equal(esp_read_file(&log, &len, p->log, 16 << 20, &err), ESP_OK);
    for (const char *s = log; (s = strstr(s, text)) != NULL; s++)
        n++;
    esp_free(log);
    return n;
}

static void hang_up(const struct process *p, const char *event)
{
    const double until = seconds_now() + (TEST_SANITIZED ? 60 : 10);
    const size_t before = count_in_log(p, event);

    process_signal(p, SIGHUP);
    while (count_in_log(p, event) == before && seconds_now() < until)
        nap(0.02);
    assert_int_equal(count_in_log(p, event), before + 1);
}

/* SIGHUP: limits and log level as the configuration file has them now; what stands in no file any more is the
 * default, flags win, and a file that cannot be read changes nothing. */
static void test_hangup_reads_limits(void **state)
{
    const char *dir = test_tmpdir();
    char path[300];
    struct process p;

    (void)state;
    snprintf(path, sizeof path, "%s/espalier.conf", dir);
    write_config(dir, "max-messages = 3\n");
    PROCESS(&p, "--config", path, "--ctx", "512", "--max-body", "3000");
    expect_messages(&p, 3, 200);
    expect_messages(&p, 5, 400);
    write_config(dir, "max-messages = 5\nmax-body = 64\nlog-level = error\n");
    hang_up(&p, "limits reloaded");
    expect_messages(&p, 5, 200);
    expect_messages(&p, 7, 400);
    write_config(dir, "max-messages = none\n");
    hang_up(&p, "limits kept");
    expect_messages(&p, 7, 400);
    write_config(dir, "");
    hang_up(&p, "limits reloaded");
    expect_messages(&p, 7, 200);
    process_stop(&p);
}

static void test_kill_while_writing(void **state)
{
    const int rounds = TEST_SANITIZED ? 2 : 4;
    char store[256], cache[256], *text = NULL;
    struct kept kept = {.n = 0};

    (void)state;
    snprintf(store, sizeof store, "%s", test_tmpdir());
    snprintf(cache, sizeof cache, "%s", test_tmpdir());
    for (int i = 0; i <= rounds; i++) {
        struct process p;
        struct writer w = {.p = &p, .kept = &kept, .first = 1000 * (unsigned)i};
        pthread_t thread;
        char *again;

        PROCESS(&p, "--parallel", "4", "--ctx", "512", "--cache-ram", "8MiB", "--response-dir", store,
                "--cache-dir", cache);
        check_kept(&p, &kept);
        again = greedy(&p); /* with whatever the cache's files still hold */
        if (text)
            assert_string_equal(again, text);
        esp_free(text);
        text = again;
        if (i == rounds) {
            process_stop(&p);
            break;
        }
        assert_int_equal(pthread_create(&thread, NULL, write_on, &w), 0);
        for (size_t n = __atomic_load_n(&kept.n, __ATOMIC_SEQ_CST), turns = 0;
             __atomic_load_n(&kept.n, __ATOMIC_SEQ_CST) < n + 3 && turns < 6000; turns++)
            nap(0.01);
        nap(0.05 + 0.037 * i); /* in the middle of some write */
        process_signal(&p, SIGKILL);
        assert_int_equal(process_wait(&p, 30), -SIGKILL);
        pthread_join(thread, NULL);
    }
    assert_true(kept.n >= 3 * (size_t)rounds);
    assert_int_equal(count_files(cache, ".tmp"), 0); /* what was half written is gone */
    print_message("%zu stored answers over %d deaths, none lost\n", kept.n, rounds);
    for (size_t i = 0; i < kept.n; i++) {
        esp_free(kept.id[i]);
        esp_free(kept.text[i]);
    }
    esp_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_term_lets_streams_finish), cmocka_unit_test(test_term_cuts_streams),
        cmocka_unit_test(test_second_term), cmocka_unit_test(test_hangup_reads_limits),
        cmocka_unit_test(test_kill_while_writing)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
