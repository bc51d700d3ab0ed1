/* Thread pool: every thread runs, barriers order writes, tasks are taken once, oversubscription works.
 * SPDX-License-Identifier: MIT */
#include "support/support.h"

#include "base/pool.h"

enum { N_ROUND = 200, N_TASK = 1000 };

struct work {
    struct esp_pool *pool;
    _Atomic uint32_t counter[N_ROUND];
    uint32_t hits[N_TASK];
    uint32_t value; /* written by thread 0 between barriers, read by all */
    _Atomic uint32_t n_wrong;
};

static void region(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct work *w = arg;

    (void)n_thread;
    for (uint32_t r = 0; r < N_ROUND; r++) {
        uint32_t i;

        if (tid == 0)
            w->value = r;
        esp_pool_barrier(w->pool);
        if (w->value != r)
            atomic_fetch_add(&w->n_wrong, 1);
        for (i = esp_task_next(&w->counter[r]); i < N_TASK; i = esp_task_next(&w->counter[r]))
            w->hits[i]++;
        esp_pool_barrier(w->pool);
    }
}

static void run_with(uint32_t n_thread)
{
    struct work w = {0};
    esp_error err;

    test_ok(esp_pool_create(&w.pool, n_thread, &err), &err);
    assert_int_equal(esp_pool_size(w.pool), n_thread);
    for (int repeat = 0; repeat < 3; repeat++) {
        for (uint32_t r = 0; r < N_ROUND; r++)
            atomic_store(&w.counter[r], 0);
        esp_pool_run(w.pool, region, &w);
    }
    esp_pool_destroy(w.pool);
    assert_int_equal(w.n_wrong, 0);
    for (uint32_t i = 0; i < N_TASK; i++)
        assert_int_equal(w.hits[i], 3 * N_ROUND);
}

static void test_sizes(void **state)
{
    (void)state;
    run_with(1);
    run_with(2);
    run_with(3);
    run_with(9);
}

/* Regions of different sizes in a row: those left out never run, and never hold one up. */
static void some(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct work *w = arg;

    if (tid >= n_thread)
        atomic_fetch_add(&w->n_wrong, 1);
    w->hits[tid]++;
    esp_pool_barrier(w->pool);
    if (tid == 0)
        w->value = n_thread;
    esp_pool_barrier(w->pool);
    if (w->value != n_thread)
        atomic_fetch_add(&w->n_wrong, 1);
}

static void test_parts(void **state)
{
    enum { THREADS = 5, ROUNDS = 3000 };
    struct work w = {0};
    uint32_t want[THREADS] = {0};
    esp_error err;

    (void)state;
    test_ok(esp_pool_create(&w.pool, THREADS, &err), &err);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        const uint32_t n = 1 + (i * 7 + i / 11) % (THREADS + 1); /* one is more than there are */

        esp_pool_run_on(w.pool, n, some, &w);
        for (uint32_t k = 0; k < n && k < THREADS; k++)
            want[k]++;
    }
    esp_pool_destroy(w.pool);
    assert_int_equal(w.n_wrong, 0);
    for (uint32_t k = 0; k < THREADS; k++)
        assert_int_equal(w.hits[k], want[k]);
}

static void test_refusals(void **state)
{
    struct esp_pool *p = NULL;
    esp_error err;

    (void)state;
    test_refused(esp_pool_create(&p, 0, &err), ESP_EINVAL, &err, "0 threads");
    test_refused(esp_pool_create(&p, 100000, &err), ESP_EINVAL, &err, "100000 threads");
    assert_null(p);
    assert_true(esp_core_count() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
