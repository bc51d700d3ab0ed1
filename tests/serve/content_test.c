/*
 * --log-content: what is written, for whom, and what never is; and without it nothing anywhere.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/client.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHAT "/v1/chat/completions"
#define KEY  "sk-verysecret-0123456789"
#define AUTH "Authorization: Bearer " KEY "\r\n"

static int count_files(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *e;
    int n = 0;

    assert_non_null(d);
    while ((e = readdir(d)) != NULL)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* The record of the request with this id, once it is there; its raw text in *text. */
static json_t *record(const char *dir, const char *id, char text[1 << 16])
{
    for (int i = 0; i < 500; i++, usleep(20000)) {
        DIR *d = opendir(dir);
        const struct dirent *e;
        char path[700] = "";
        struct stat st;
        json_t *v;
        size_t n;
        FILE *f;

        assert_non_null(d);
        while ((e = readdir(d)) != NULL)
            if (strstr(e->d_name, id))
                snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        closedir(d);
        f = path[0] ? fopen(path, "r") : NULL;
        if (!f)
            continue;
        n = fread(text, 1, (1 << 16) - 1, f);
        fclose(f);
        text[n] = '\0';
        v = json_loads(text, 0, NULL);
        if (!v)
            continue; /* being written */
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        return v;
    }
    fail_msg("no record of %s", id);
    return NULL;
}

static void expect(const struct server *s, const char *id, const char *body, int status)
{
    char headers[200];
    struct reply r;

    snprintf(headers, sizeof headers, AUTH "x-request-id: %s\r\n", id);
    r = client_do(s, "POST", CHAT, headers, body);
    assert_int_equal(r.status, status);
    reply_free(&r);
}

static void test_records(void **state)
{
    static char text[1 << 16];
    char dir[300];
    struct server s;
    struct reply r;
    json_t *v;

    (void)state;
    snprintf(dir, sizeof dir, "%s/content", test_tmpdir()); /* made by the server */
    server_init(&s);
    s.o.api_key = KEY;
    s.o.log_content = dir;
    server_start(&s);
    expect(&s, "plain-1",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell: garden, my key is " KEY " and " KEY
           "\"}],\"temperature\":0,\"max_tokens\":30,\"n\":2,\"api_key\":\"another-secret\"}",
           200);
    v = record(dir, "plain-1", text);
    assert_null(strstr(text, KEY));
    assert_null(strstr(text, "another-secret"));
    assert_string_equal(text_at(v, "request.messages.0.content"), "Spell: garden, my key is [key] and [key]");
    assert_string_equal(text_at(v, "route"), CHAT);
    assert_string_equal(text_at(v, "key"), "key");
    assert_int_equal(int_at(v, "status"), 200);
    assert_true(strlen(text_at(v, "answers.1.content")) > 0);
    assert_string_equal(text_at(v, "answers.0.content"), text_at(v, "answers.1.content"));
    assert_int_equal(int_at(v, "answers.1.choice"), 1);
    json_decref(v);
    expect(
        &s, "stream-1",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Look up: dog\"}],\"temperature\":0,\"stream\":true,"
        "\"max_tokens\":60,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"look_up\","
        "\"parameters\":{"
        "\"type\":\"object\",\"properties\":{\"word\":{\"type\":\"string\"}},\"required\":[\"word\"]}}}],"
        "\"tool_choice\":\"required\"}",
        200);
    v = record(dir, "stream-1", text);
    assert_string_equal(text_at(v, "answers.0.tool_calls.0.name"), "look_up");
    json_decref(v);
    expect(&s, "wrong-1", "{\"messages\":\"no list\"}", 400);
    v = record(dir, "wrong-1", text);
    assert_int_equal(int_at(v, "status"), 400);
    assert_string_equal(text_at(v, "error.param"), "messages");
    assert_string_equal(text_at(v, "request.messages"), "no list");
    json_decref(v);
    r = client_do(&s, "GET", "/stats", AUTH, NULL);
    assert_int_equal(int_at(r.json, "content_log.written"), 3);
    assert_int_equal(int_at(r.json, "content_log.lost"), 0);
    reply_free(&r);
    assert_int_equal(count_files(dir), 3);
    assert_false(server_log_count(&s, "garden")); /* the log is as it is without */
    server_stop(&s);
}

/* A folder in which nothing can be written is refused before anything is loaded. */
static void test_folders(void **state)
{
    char file[300], missing[300];
    struct server s;
    FILE *f;

    (void)state;
    snprintf(file, sizeof file, "%s/file", test_tmpdir());
    snprintf(missing, sizeof missing, "%s/no/such/folder", test_tmpdir());
    f = fopen(file, "w");
    assert_non_null(f);
    fclose(f);
    for (int i = 0; i < 2; i++) {
        esp_error err;
        struct esp_serve_opts o;

        server_init(&s);
        o = s.o;
        o.log_content = i ? missing : file;
        test_refused(esp_serve(&o, &err), ESP_EIO, &err, i ? "must be there" : "a folder is needed");
        o = s.o;
        o.response_dir = i ? missing : file;
        test_refused(esp_serve(&o, &err), ESP_EIO, &err, i ? "cannot be made" : "a folder is needed");
        esp_strbuf_free(&s.log);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_records), cmocka_unit_test(test_folders)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
