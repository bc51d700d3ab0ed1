/*
 * Fork-join pool. A region is announced by an epoch number; workers spin on it, then park on a condition. The
 * barrier counts arrivals and releases by a second epoch, with the same spin-then-park wait. Spinning is
 * skipped altogether when the pool has more threads than the machine has cores: then the thread waited for
 * needs this core.
 *
 * SPDX-License-Identifier: MIT
 */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"

enum {
    SPIN_ROUNDS = 4000
}; /* about 40 us of pause instructions: longer than any gap between ops of one step */

struct gate { /* an epoch that threads wait on */
    _Atomic uint64_t epoch;
    _Atomic uint32_t n_parked;
    pthread_mutex_t lock;
    pthread_cond_t cond;
};

struct worker {
    struct esp_pool *pool;
    pthread_t thread;
    uint32_t tid;
};

/* The start gate's epoch: a count of regions, and below it the threads that the region has. */
enum { REGION_BITS = 16, REGION_THREADS = (1 << REGION_BITS) - 1 };

struct esp_pool {
    uint32_t n_thread;
    uint32_t n_active; /* threads of the region that runs */
    uint32_t spin;
    const struct esp_nodes *nodes;
    struct gate start;
    struct gate meet;
    _Alignas(64) _Atomic uint32_t n_arrived;
    _Alignas(64) esp_pool_fn fn;
    void *arg;
    _Atomic int stop;
    struct worker *workers; /* [n_thread - 1] */
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void gate_init(struct gate *g)
{
    atomic_init(&g->epoch, 0);
    atomic_init(&g->n_parked, 0);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->cond, NULL);
}

static void gate_free(struct gate *g)
{
    pthread_cond_destroy(&g->cond);
    pthread_mutex_destroy(&g->lock);
}

/* Wait until the epoch is no longer seen. Sequentially consistent on both sides: parked++ then epoch? against
   epoch++ then parked?; one of the two sees the other. */
static void gate_wait(struct gate *g, uint64_t seen, uint32_t spin)
{
    for (uint32_t i = 0; i < spin; i++) {
        if (atomic_load_explicit(&g->epoch, memory_order_acquire) != seen)
            return;
        relax();
    }
    pthread_mutex_lock(&g->lock);
    atomic_fetch_add(&g->n_parked, 1);
    while (atomic_load(&g->epoch) == seen)
        pthread_cond_wait(&g->cond, &g->lock);
    atomic_fetch_sub(&g->n_parked, 1);
    pthread_mutex_unlock(&g->lock);
}

/* One thread at a time opens a gate. */
static void gate_open(struct gate *g, uint64_t epoch)
{
    atomic_store(&g->epoch, epoch);
    if (atomic_load(&g->n_parked) == 0)
        return;
    pthread_mutex_lock(&g->lock);
    pthread_cond_broadcast(&g->cond);
    pthread_mutex_unlock(&g->lock);
}

void esp_pool_barrier(struct esp_pool *p)
{
    const uint64_t seen = atomic_load_explicit(&p->meet.epoch, memory_order_relaxed);
    const uint32_t n = p->n_active; /* read before arriving: afterwards the next region may begin */

    if (n == 1)
        return;
    if (atomic_fetch_add(&p->n_arrived, 1) + 1 == n) {
        atomic_store_explicit(&p->n_arrived, 0, memory_order_relaxed);
        gate_open(&p->meet, seen + 1);
        return;
    }
    gate_wait(&p->meet, seen, p->spin);
}

static void *worker_main(void *arg)
{
    const struct worker *w = arg;
    struct esp_pool *p = w->pool;
    uint64_t seen = 0;

    if (p->nodes)
        esp_nodes_enter(p->nodes, esp_nodes_of(p->nodes, w->tid, p->n_thread));
    /* A region of which this thread is part cannot end without it, so what was seen is that region; others
     * may come and go unseen. */
    for (;;) {
        uint32_t n;

        gate_wait(&p->start, seen, p->spin);
        seen = atomic_load(&p->start.epoch);
        n = (uint32_t)(seen & REGION_THREADS);
        if (atomic_load(&p->stop))
            return NULL;
        if (w->tid >= n)
            continue;
        p->fn(p->arg, w->tid, n);
        esp_pool_barrier(p);
    }
}

/* The next region, of n threads. */
static void open_region(struct esp_pool *p, uint32_t n)
{
    const uint64_t last = atomic_load_explicit(&p->start.epoch, memory_order_relaxed);

    p->n_active = n;
    gate_open(&p->start, ((last >> REGION_BITS) + 1) << REGION_BITS | n);
}

static void run(struct esp_pool *p, uint32_t n, esp_pool_fn fn, void *arg)
{
    p->fn = fn;
    p->arg = arg;
    if (n > 1)
        open_region(p, n);
    else
        p->n_active = 1;
    fn(arg, 0, n);
    esp_pool_barrier(p);
}

void esp_pool_run_on(struct esp_pool *p, uint32_t n, esp_pool_fn fn, void *arg)
{
    cpu_set_t before;
    const bool held = p->nodes && sched_getaffinity(0, sizeof before, &before) == 0;

    if (held)
        esp_nodes_enter(p->nodes, 0);
    run(p, n < p->n_thread ? n : p->n_thread, fn, arg);
    if (held)
        sched_setaffinity(0, sizeof before, &before);
}

void esp_pool_run(struct esp_pool *p, esp_pool_fn fn, void *arg)
{
    esp_pool_run_on(p, p->n_thread, fn, arg);
}

uint32_t esp_pool_size(const struct esp_pool *p)
{
    return p->n_thread;
}

static void stop_workers(struct esp_pool *p, uint32_t n_started)
{
    atomic_store(&p->stop, 1);
    open_region(p, p->n_thread);
    for (uint32_t i = 0; i < n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    gate_free(&p->start);
    gate_free(&p->meet);
    esp_free(p->workers);
    esp_free_aligned(p);
}

esp_status esp_pool_create(struct esp_pool **out, uint32_t n_thread, esp_error *err)
{
    return esp_pool_create_on(out, n_thread, NULL, err);
}

esp_status esp_pool_create_on(struct esp_pool **out, uint32_t n_thread, const struct esp_nodes *nodes,
                              esp_error *err)
{
    struct esp_pool *p;

    if (n_thread < 1 || n_thread > ESP_LIMIT_THREADS)
        return esp_fail(err, ESP_EINVAL, "%u threads, 1 to %u are possible", n_thread, ESP_LIMIT_THREADS);
    p = esp_alloc_aligned(sizeof *p, 64);
    if (!p)
        return esp_fail(err, ESP_ENOMEM, "thread pool: out of memory");
    p->workers = esp_alloc_array(n_thread, sizeof *p->workers);
    if (!p->workers) {
        esp_free_aligned(p);
        return esp_fail(err, ESP_ENOMEM, "thread pool: out of memory");
    }
    p->n_thread = n_thread;
    p->nodes = nodes;
    p->spin = n_thread <= esp_core_count() ? SPIN_ROUNDS : 0;
    gate_init(&p->start);
    gate_init(&p->meet);
    for (uint32_t i = 0; i + 1 < n_thread; i++) {
        struct worker *w = &p->workers[i];
        int e;

        w->pool = p;
        w->tid = i + 1;
        e = pthread_create(&w->thread, NULL, worker_main, w);
        if (e != 0) {
            stop_workers(p, i);
            return esp_fail(err, ESP_EDEVICE, "thread %u of %u could not start: %s", i + 2, n_thread,
                            strerror(e));
        }
    }
    *out = p;
    return ESP_OK;
}

void esp_pool_destroy(struct esp_pool *p)
{
    if (p)
        stop_workers(p, p->n_thread - 1);
}

/* Whether cpu is the first of its core's hardware threads that we may use. */
static int leads_core(int cpu, const cpu_set_t *allowed)
{
    char path[128], line[64];
    FILE *f;
    long first = cpu;

    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    f = fopen(path, "re");
    if (!f)
        return 1;
    if (fgets(line, sizeof line, f)) {
        unsigned char c = (unsigned char)line[0];

        if (c >= '0' && c <= '9') {
            first = 0;
            for (const char *s = line; *s >= '0' && *s <= '9' && first < CPU_SETSIZE; s++)
                first = first * 10 + (*s - '0');
        }
    }
    fclose(f);
    return first == cpu || first >= CPU_SETSIZE || !CPU_ISSET((size_t)first, allowed);
}

uint32_t esp_core_count(void)
{
    cpu_set_t set;
    uint32_t n = 0;

    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);

        return online > 0 ? (uint32_t)online : 1;
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &set) && leads_core(cpu, &set))
            n++;
    return n ? n : 1;
}
