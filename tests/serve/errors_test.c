/*
 * Errors that need a server in some state, and that no code of the table is without a test which names it.
 * And the settings that a dry run tells: all of them.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/client.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "program/options.h"
#include "program/spawn/spawn.h"

#define CHAT "/v1/chat/completions"

static struct reply refused(struct reply r, int status, const char *type, const char *code)
{
    if (r.status != status || strcmp(text_at(r.json, "error.code"), code) != 0 ||
        strcmp(text_at(r.json, "error.type"), type) != 0)
        fail_msg("%d %s expected: %d %s", status, code, r.status, r.body);
    return r;
}

/* One row, which an endless answer has until fd is closed. */
static int occupy(const struct server *s)
{
    static const char body[] =
        "{\"prompt\":\"Once\",\"min_tokens\":100000,\"max_tokens\":100000,\"stream\":true}";
    const int fd = client_connect(s);
    struct esp_strbuf got;
    char request[256];

    snprintf(request, sizeof request,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
             sizeof body - 1, body);
    client_send(fd, request);
    esp_strbuf_init(&got, 1 << 24);
    assert_true(client_until(fd, &got, "data: ", 60));
    esp_strbuf_free(&got);
    return fd;
}

/* A stream that waits too long: before it has begun its error has the status of any other; one that a
 * keep-alive has opened ends with its protocol's error, and without an end. */
static void check_streams(const struct server *s, int fd)
{
    static const struct {
        const char *path, *fields, *error;
    } rows[] = {{CHAT, "'messages':[{'role':'user','content':'x'}]", "\"code\":\"queue_timeout\""},
                {"/v1/completions", "'prompt':'x'", "\"code\":\"queue_timeout\""},
                {"/v1/responses", "'input':'x'", "event: response.failed"},
                {"/v1/messages", "'messages':[{'role':'user','content':'x'}],'max_tokens':2",
                 "\"type\":\"rate_limit_error\""}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct reply r;

        close(fd); /* an answer that has not filled its context before this one has waited */
        fd = occupy(s);
        r = client_postf(s, rows[i].path, 429, "{%s,'stream':true}", rows[i].fields);
        assert_string_equal(text_at(r.json, "error.type"), "rate_limit_error");
        assert_non_null(reply_header(&r, "Retry-After"));
        reply_free(&r);
        close(fd);
        fd = occupy(s);
        r = client_postf(s, rows[i].path, 200, "{%s,'stream':true,'sse_ping_interval':0.05}", rows[i].fields);
        if (!strstr(r.body, rows[i].error) || strstr(r.body, "[DONE]") || strstr(r.body, "message_stop"))
            fail_msg("%s: %s", rows[i].path, r.body);
        assert_true(strtod(reply_header(&r, "x-espalier-queue-ms"), NULL) >= 50);
        reply_free(&r);
    }
    close(fd);
}

static void test_busy(void **state)
{
    struct server s;
    struct reply r;
    int fd;

    (void)state;
    server_init(&s);
    s.engine.rows = 1;
    s.o.queue_timeout = 0.3;
    server_start(&s);
    r = client_do(&s, "GET", "/slots?fail_on_no_slot=1", NULL, NULL);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    fd = occupy(&s);
    r = refused(client_do(&s, "GET", "/slots?fail_on_no_slot=1", NULL, NULL), 503, "overloaded_error",
                "no_slot");
    assert_non_null(reply_header(&r, "Retry-After"));
    reply_free(&r);
    r = refused(client_postf(&s, CHAT, 429, "{'messages':[{'role':'user','content':'x'}],'max_tokens':2}"),
                429, "rate_limit_error", "queue_timeout");
    assert_non_null(reply_header(&r, "Retry-After"));
    reply_free(&r);
    check_streams(&s, fd);
    server_stop(&s);
}

/* An adapter that is none, and a folder that is gone when a file is to be written into it. */
static void test_files(void **state)
{
    const char *dir = test_tmpdir();
    char path[300], save[300];
    struct reply r, list;
    struct server s;

    (void)state;
    snprintf(path, sizeof path, "%s/none", dir);
    snprintf(save, sizeof save, "%s/save", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(mkdir(save, 0700), 0);
    test_write(path, "adapter_config.json", "{\"r\":", 5);
    test_write(path, "adapter_model.safetensors", "no tensors", 10);
    server_init(&s);
    s.o.adapter_dir = dir;
    s.o.slot_dir = save;
    s.engine.max_rank = 8;
    server_start(&s);
    r = refused(client_postf(&s, "/v1/adapters", 400, "{'id':'x','path':'none'}"), 400,
                "invalid_request_error", "adapter_incompatible");
    assert_null(strstr(r.body, dir));
    reply_free(&r);
    r = client_postf(&s, CHAT, 200,
                     "{'messages':[{'role':'user','content':'Spell: garden'}],'max_tokens':8}");
    reply_free(&r);
    list = client_do(&s, "GET", "/cache", NULL, NULL);
    assert_int_equal(rmdir(save), 0);
    r = refused(client_postf(&s, "/cache/save", 500, "{'id':'%s','filename':'x.esp'}",
                             text_at(list.json, "entries.0.id")),
                500, "api_error", "internal_error");
    assert_string_equal(reply_header(&r, "x-should-retry"), "false");
    assert_null(strstr(r.body, dir));
    reply_free(&r);
    reply_free(&list);
    server_stop(&s);
}

/* ---- the table ---- */

static void add_files(struct esp_strbuf *all, const char *pattern)
{
    glob_t g;

    assert_int_equal(glob(test_path(pattern), 0, NULL, &g), 0);
    for (size_t i = 0; i < g.gl_pathc; i++) {
        FILE *f = fopen(g.gl_pathv[i], "r");
        char piece[4096];
        size_t n;

        assert_non_null(f);
        while ((n = fread(piece, 1, sizeof piece, f)) > 0)
            assert_true(esp_strbuf_add(all, piece, n));
        fclose(f);
    }
    globfree(&g);
}

/* Each row of src/serve/error.c: {"code", status, ... */
static void test_every_code(void **state)
{
    struct esp_strbuf table, tests;
    char code[64], quoted[68];
    const char *at_;
    int n = 0, status, len;

    (void)state;
    esp_strbuf_init(&table, 1 << 20);
    esp_strbuf_init(&tests, 4 << 20);
    add_files(&table, "src/serve/error.c");
    add_files(&tests, "tests/serve/*_test.c");
    add_files(&tests, "tests/serve/*.py");
    for (at_ = table.data; (at_ = strstr(at_, "    {\"")) != NULL; at_ += len) {
        const char *from = at_ + 6, *to = strchr(from, '"');

        len = 6;
        status = to[1] == ',' ? (int)strtol(to + 2, NULL, 10) : 0;
        if (status < 400 || to - from >= (long)sizeof code)
            continue;
        snprintf(code, sizeof code, "%.*s", (int)(to - from), from);
        snprintf(quoted, sizeof quoted, "\"%s\"", code);
        if (!strstr(tests.data, quoted))
            fail_msg("no test of the server triggers %s", code);
        n++;
    }
    assert_true(n > 35);
    esp_strbuf_free(&table);
    esp_strbuf_free(&tests);
}

static void test_every_setting(void **state)
{
    struct run r = RUN(NULL, ESP_PROGRAM, "serve", test_path("models/demo"), "--dry-run", "--json",
                       "--parallel", "3", "--api-key", "secret-of-ours");
    static const struct {
        const char *name;
        unsigned verbs;
    } flags[] = {
#define O(id, name, alias, letter, type, arg, def, least, most, group, verbs, help) {name, verbs},
#include "program/options.def"
#undef O
    };
    json_t *v = run_json(&r, 0);
    int n = 0;

    (void)state;
    run_code(&r, 0);
    assert_null(strstr(r.out, "secret-of-ours"));
    for (size_t k = 0; k < sizeof flags / sizeof flags[0]; k++) {
        const json_t *set = json_object_get(at(v, "settings"), flags[k].name);

        if (!(flags[k].verbs & 1u << VERB_SERVE) || strcmp(flags[k].name, "help") == 0)
            continue;
        if (!json_object_get(set, "value") || !json_is_string(json_object_get(set, "source")))
            fail_msg("--%s is not among the settings of a dry run", flags[k].name);
        n++;
    }
    assert_true(n > 100);
    assert_string_equal(text_at(v, "settings.parallel.source"), "flag");
    assert_int_equal(int_at(v, "settings.parallel.value"), 3);
    assert_string_equal(text_at(v, "settings.queue.source"), "default");
    json_decref(v);
    run_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_busy), cmocka_unit_test(test_files),
                                       cmocka_unit_test(test_every_code),
                                       cmocka_unit_test(test_every_setting)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
