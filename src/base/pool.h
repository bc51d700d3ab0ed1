/*
 * Worker pool for fork-join work. One region runs a function on every thread; inside it threads meet at
 * barriers and take tasks from counters. Waiting spins briefly, then parks, so an idle engine costs no CPU
 * and an oversubscribed machine does not burn it.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_POOL_H
#define ESP_BASE_POOL_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/nodes.h"
#include "base/status.h"

struct esp_pool;

/* Runs on thread tid of n_thread; tid 0 is the caller's own thread. */
typedef void (*esp_pool_fn)(void *arg, uint32_t tid, uint32_t n_thread);

/* n_thread >= 1, the caller included; at most ESP_LIMIT_THREADS. ESP_ENOMEM, ESP_EDEVICE (thread start
 * failed). */
esp_status esp_pool_create(struct esp_pool **out, uint32_t n_thread, esp_error *err);
/*
 * The same with every thread held to its node of `nodes`, which must outlive the pool; the caller's own
 * while it is in a region. NULL: none is held.
 */
esp_status esp_pool_create_on(struct esp_pool **out, uint32_t n_thread, const struct esp_nodes *nodes,
                              esp_error *err);
/* Joins the workers. NULL is a no-op. */
void esp_pool_destroy(struct esp_pool *p);
uint32_t esp_pool_size(const struct esp_pool *p);

/* Run fn on all threads and return when every one has finished. Not reentrant; one caller at a time. */
void esp_pool_run(struct esp_pool *p, esp_pool_fn fn, void *arg);
/* The same on the first n of them, n >= 1; the others go on waiting. */
void esp_pool_run_on(struct esp_pool *p, uint32_t n, esp_pool_fn fn, void *arg);
/* Inside a region: wait until all its threads are here. Everything written before is visible after. */
void esp_pool_barrier(struct esp_pool *p);

/* Take the next task of a counter that starts at 0: its index, or >= n when none is left. */
static inline uint32_t esp_task_next(_Atomic uint32_t *counter)
{
    return atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* Physical cores this process may use (affinity respected), at least 1. */
uint32_t esp_core_count(void);

#endif
