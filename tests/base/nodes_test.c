/*
 * Memory nodes on machines that hwloc makes up (HWLOC_SYNTHETIC; nothing is bound there): how threads are
 * dealt out, what is refused, and that a pool over them works. And on this machine, whose only node stands
 * for one of several: bindings are made, and fail only where a container forbids them.
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/nodes.h"
#include "base/pool.h"
#include "espalier/espalier.h"

static uint32_t n_warning;

static void on_log(void *user, esp_log_level level, const char *message)
{
    (void)user;
    if (level <= ESP_LOG_WARNING) {
        fprintf(stderr, "%s\n", message);
        n_warning++;
    }
}

/* NULL nodes: this version, or this machine, cannot tell them. */
static struct esp_nodes *open_on(const char *machine, const char *how)
{
    struct esp_nodes *n = NULL;
    esp_error err;
    esp_status s;

    assert_int_equal(setenv("HWLOC_SYNTHETIC", machine, 1), 0);
    s = esp_nodes_open(&n, how, &err);
    unsetenv("HWLOC_SYNTHETIC");
    if (s == ESP_EDEVICE) {
        fprintf(stderr, "skipped: %s\n", err.message);
        exit(77);
    }
    test_ok(s, &err);
    return n;
}

static void expect_first(const struct esp_nodes *n, uint32_t n_thread, const uint32_t *first)
{
    const uint32_t count = esp_nodes_count(n);

    for (uint32_t i = 0; i <= count; i++)
        assert_int_equal(esp_nodes_first(n, i, n_thread), first[i]);
    for (uint32_t tid = 0; tid < n_thread; tid++) {
        const uint32_t i = esp_nodes_of(n, tid, n_thread);

        assert_true(first[i] <= tid && tid < first[i + 1]);
    }
}

static void test_dealt(void **state)
{
    struct esp_nodes *n = open_on("numa:2 core:4 pu:2", "spread");

    (void)state;
    assert_int_equal(esp_nodes_count(n), 2);
    assert_int_equal(esp_nodes_cores(n), 8);
    expect_first(n, 8, (const uint32_t[]){0, 4, 8});
    expect_first(n, 5, (const uint32_t[]){0, 2, 5});
    expect_first(n, 1, (const uint32_t[]){0, 0, 1});
    esp_nodes_close(n);
    n = open_on("numa:3 core:2 pu:1", NULL);
    assert_int_equal(esp_nodes_count(n), 3);
    expect_first(n, 7, (const uint32_t[]){0, 2, 4, 7});
    esp_nodes_close(n);
    n = open_on("numa:4 core:2 pu:1", "node:2");
    assert_int_equal(esp_nodes_count(n), 1);
    assert_int_equal(esp_nodes_cores(n), 2);
    expect_first(n, 3, (const uint32_t[]){0, 3});
    esp_nodes_close(n);
}

static void test_nothing(void **state)
{
    (void)state;
    assert_null(open_on("numa:2 core:2 pu:1", "off"));
    assert_null(open_on("numa:1 core:4 pu:1", "spread"));
    assert_int_equal(esp_nodes_count(NULL), 1);
    expect_first(NULL, 3, (const uint32_t[]){0, 3});
    esp_nodes_enter(NULL, 0);
    esp_nodes_place(NULL, "", 1, 0);
    esp_nodes_spread(NULL, "", 1);
    esp_nodes_close(NULL);
}

static void test_refusals(void **state)
{
    static const char *const words[] = {"all", "node", "node:", "node:x", "node:1x", "node:999999", ""};
    struct esp_nodes *n;
    esp_error err;

    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        test_refused(esp_nodes_open(&n, words[i], &err), ESP_EINVAL, &err, "auto, off, spread, node:N");
    esp_nodes_close(open_on("numa:2 core:2 pu:1", "node:1"));
    setenv("HWLOC_SYNTHETIC", "numa:2 core:2 pu:1", 1);
    test_refused(esp_nodes_open(&n, "node:7", &err), ESP_EINVAL, &err, "the machine has 2");
    unsetenv("HWLOC_SYNTHETIC");
}

struct tally {
    _Atomic uint32_t n;
};

static void count_thread(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct tally *t = arg;

    assert_true(tid < n_thread);
    atomic_fetch_add(&t->n, 1);
}

static void run_pool(const struct esp_nodes *n)
{
    static char block[1 << 16];
    struct esp_pool *pool;
    struct tally t = {0};
    esp_error err;

    esp_nodes_spread(n, block, sizeof block);
    for (uint32_t i = 0; i < esp_nodes_count(n); i++)
        esp_nodes_place(n, block + 4096 * i, 4096, i);
    test_ok(esp_pool_create_on(&pool, 5, n, &err), &err);
    for (int i = 0; i < 20; i++)
        esp_pool_run(pool, count_thread, &t);
    esp_pool_destroy(pool);
    assert_int_equal(t.n, 100);
}

static void test_pool(void **state)
{
    struct esp_nodes *n = open_on("numa:2 core:2 pu:1", "auto");

    (void)state;
    assert_non_null(n);
    run_pool(n);
    esp_nodes_close(n);
    assert_int_equal(n_warning, 0);
}

/* A described machine that hwloc is told to be this one: threads and memory are bound to what every Linux
 * has. */
static void test_bound(void **state)
{
    struct esp_nodes *n;

    (void)state;
    setenv("HWLOC_THISSYSTEM", "1", 1);
    n = open_on("numa:1 core:1 pu:1", "node:0");
    unsetenv("HWLOC_THISSYSTEM");
    assert_non_null(n);
    run_pool(n);
    esp_nodes_close(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dealt), cmocka_unit_test(test_nothing), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_pool),  cmocka_unit_test(test_bound),
    };

    esp_set_log(on_log, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
