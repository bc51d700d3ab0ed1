/*
 * A list of tasks under a lock, and an eventfd that wakes the loop when one has ended.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/background.h"

#include <event2/event.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"

enum { MAX_TASKS = 16 };

struct task {
    struct task *next;
    struct esp_background *b;
    bool queued; /* one of those that take turns */
    esp_background_fn fn;
    esp_background_done done;
    void *arg;
    pthread_t thread;
    esp_status status;
    esp_error err;
};

struct esp_background {
    struct event *wake;
    pthread_mutex_t lock;
    int fd;
    unsigned n_running; /* started and not yet reported */
    struct task *ended;
    struct task *waiting, **last; /* for their turn */
    unsigned n_turn, max_turn;    /* those that have it, at most */
};

static void *run(void *arg)
{
    struct task *t = arg;
    struct esp_background *b = t->b;
    const uint64_t one = 1;
    ssize_t n;

    t->status = t->fn(t->arg, &t->err);
    pthread_mutex_lock(&b->lock);
    t->next = b->ended;
    b->ended = t;
    n = write(b->fd, &one, sizeof one);
    (void)n;
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* Give turns to the oldest that wait. */
static void start_waiting(struct esp_background *b)
{
    while (b->waiting && b->n_turn < b->max_turn) {
        struct task *t = b->waiting;

        b->waiting = t->next;
        if (!b->waiting)
            b->last = &b->waiting;
        if (pthread_create(&t->thread, NULL, run, t) == 0) {
            b->n_turn++;
            b->n_running++;
            continue;
        }
        esp_fail(&t->err, ESP_EDEVICE, "a thread cannot be started");
        t->done(t->arg, ESP_EDEVICE, &t->err);
        esp_free(t);
    }
}

static void report(struct esp_background *b)
{
    struct task *t, *next;

    pthread_mutex_lock(&b->lock);
    t = b->ended;
    b->ended = NULL;
    pthread_mutex_unlock(&b->lock);
    for (; t; t = next) {
        next = t->next;
        pthread_join(t->thread, NULL);
        b->n_running--;
        b->n_turn -= t->queued;
        t->done(t->arg, t->status, &t->err);
        esp_free(t);
    }
    start_waiting(b);
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);

    (void)n;
    (void)what;
    report(arg);
}

bool esp_background_poll(struct esp_background *b)
{
    if (b)
        report(b);
    return b && b->n_running > 0;
}

esp_status esp_background_run(struct esp_background *b, esp_background_fn fn, esp_background_done done,
                              void *arg, esp_error *err)
{
    struct task *t;

    if (b->n_running - b->n_turn >= MAX_TASKS)
        return esp_fail(err, ESP_ENOFIT, "%u pieces of work wait for the engine already", b->n_running);
    t = esp_alloc(sizeof *t);
    if (!t)
        return esp_fail(err, ESP_ENOMEM, "no memory for a piece of work");
    t->b = b;
    t->fn = fn;
    t->done = done;
    t->arg = arg;
    if (pthread_create(&t->thread, NULL, run, t) != 0) {
        esp_free(t);
        return esp_fail(err, ESP_EDEVICE, "a thread cannot be started");
    }
    b->n_running++;
    return ESP_OK;
}

esp_status esp_background_queue(struct esp_background *b, esp_background_fn fn, esp_background_done done,
                                void *arg, esp_error *err)
{
    struct task *t = esp_alloc(sizeof *t);

    if (!t)
        return esp_fail(err, ESP_ENOMEM, "no memory for a piece of work");
    *t = (struct task){.b = b, .fn = fn, .done = done, .arg = arg, .queued = true};
    *b->last = t;
    b->last = &t->next;
    start_waiting(b);
    return ESP_OK;
}

void esp_background_set(struct esp_background *b, uint32_t n)
{
    b->max_turn = n;
}

esp_status esp_background_open(struct esp_background **out, struct event_base *base, esp_error *err)
{
    struct esp_background *b = esp_alloc(sizeof *b);

    if (!b)
        return esp_fail(err, ESP_ENOMEM, "no memory for the server");
    b->last = &b->waiting;
    b->max_turn = 1;
    pthread_mutex_init(&b->lock, NULL);
    b->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    b->wake = b->fd >= 0 ? event_new(base, b->fd, EV_READ | EV_PERSIST, on_wake, b) : NULL;
    if (!b->wake || event_add(b->wake, NULL) != 0) {
        esp_background_close(b);
        return esp_fail(err, ESP_EIO, "no event descriptor for the server");
    }
    *out = b;
    return ESP_OK;
}

void esp_background_close(struct esp_background *b)
{
    if (!b)
        return;
    while (esp_background_poll(b))
        usleep(1000);
    if (b->wake)
        event_free(b->wake);
    if (b->fd >= 0)
        close(b->fd);
    pthread_mutex_destroy(&b->lock);
    esp_free(b);
}
