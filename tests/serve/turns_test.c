/*
 * The file of kept turns by itself: rows come back as they were, each tokenizer sees its own, the old go; and
 * a writer that is killed at any moment leaves a file with whole rows.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "serve/replay_store.h"

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec;
}

static struct esp_replay_store *open_store(const char *dir, uint64_t tokenizer, double ttl)
{
    struct esp_replay_store *s = NULL;
    esp_error err;

    test_ok(esp_replay_store_open(&s, dir, tokenizer, ttl, &err), &err);
    return s;
}

/* Row i says the same in all of its parts. */
static int64_t put(struct esp_replay_store *s, uint32_t i, double created)
{
    uint32_t ids[300];
    json_t *content = json_sprintf("text %u \"quoted\" \xc3\xa9", i), *reasoning = json_string(""),
           *calls = json_pack("[{s:s,s:{s:i}}]", "name", "f", "arguments", "n", (int)i),
           *keys = json_pack("[o]", json_sprintf("k%u", i));
    const uint32_t n = 1 + i % 300;
    int64_t number;

    for (uint32_t k = 0; k < n; k++)
        ids[k] = i + k;
    number = esp_replay_store_put(s, &(struct esp_replay_row){.opening = "<think>\n",
                                                              .content = content,
                                                              .reasoning = reasoning,
                                                              .calls = calls,
                                                              .keys = keys,
                                                              .ids = ids,
                                                              .n = n,
                                                              .created = created});
    json_decref(content);
    json_decref(reasoning);
    json_decref(calls);
    json_decref(keys);
    return number;
}

struct found {
    uint32_t n, last;
    bool refuse; /* the next row */
};

static bool check(void *user, int64_t number, const struct esp_replay_row *row)
{
    struct found *f = user;
    const uint32_t i = row->ids[0];
    char text[64];

    assert_true(number > 0);
    assert_int_equal(row->n, 1 + i % 300);
    assert_int_equal(row->ids[row->n - 1], i + row->n - 1);
    snprintf(text, sizeof text, "text %u \"quoted\" \xc3\xa9", i);
    assert_string_equal(json_string_value(row->content), text);
    assert_string_equal(row->opening, "<think>\n");
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(json_array_get(row->calls, 0), "arguments"), "n")),
        i);
    assert_true(f->n == 0 || i > f->last); /* in order */
    f->last = i;
    f->n++;
    return !f->refuse;
}

static void test_rows(void **state)
{
    char dir[300];
    struct esp_replay_store *s;
    struct found f = {0};
    int64_t third;

    (void)state;
    snprintf(dir, sizeof dir, "%s/rows", test_tmpdir());
    s = open_store(dir, 7, 1000);
    put(s, 1, now());
    put(s, 2, now());
    third = put(s, 3, now());
    put(s, 4, now() - 2000);
    esp_replay_store_delete(s, third);
    esp_replay_store_close(s);
    s = open_store(dir, UINT64_MAX, 1000); /* another tokenizer */
    esp_replay_store_each(s, check, &f);
    assert_int_equal(f.n, 0);
    put(s, 5, now());
    esp_replay_store_close(s);
    s = open_store(dir, 7, 1000);
    esp_replay_store_each(s, check, &f);
    assert_int_equal(f.n, 2);
    assert_int_equal(f.last, 2);
    f = (struct found){.refuse = true};
    esp_replay_store_each(s, check, &f); /* not wanted: gone */
    f = (struct found){0};
    esp_replay_store_each(s, check, &f);
    assert_int_equal(f.n, 0);
    esp_replay_store_close(s);
    s = open_store(dir, UINT64_MAX, 1000);
    esp_replay_store_each(s, check, &f);
    assert_int_equal(f.n, 1);
    esp_replay_store_close(s);
}

static void test_killed_writer(void **state)
{
    uint32_t before = 0;
    char dir[300];

    (void)state;
    snprintf(dir, sizeof dir, "%s/killed", test_tmpdir());
    for (int round = 0; round < 8; round++) {
        const pid_t child = fork();
        struct esp_replay_store *s;
        struct found f = {0};
        int status;

        assert_true(child >= 0);
        if (child == 0) {
            s = open_store(dir, 1, 1e6);
            for (uint32_t i = before + 1;; i++)
                put(s, i, now());
        }
        usleep(20000 + 7000 * (useconds_t)round);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        s = open_store(dir, 1, 1e6);
        esp_replay_store_each(s, check, &f);
        assert_true(f.n == f.last && f.n >= before); /* every row up to the last, none half */
        before = f.n;
        esp_replay_store_close(s);
    }
    assert_true(before > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_killed_writer)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
