/*
 * The service thread. Jobs move from the inbox (under the lock) to the thread's own list, whose links only
 * the thread changes, and only under the lock; so the thread may read its list without it, and cancel() may
 * walk it with it. Events go through a ring of fixed size.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/service.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"

#include "engine/cache.h"
#include "engine/service_parts.h"

enum { DEFAULT_EVENTS = 4096, STEP_EVENTS = 64 };

/* ---- events ---- */

/* The counter stays small, so neither call can fail but for a descriptor that somebody else closed, or one
 * that is clear. */
static void signal_fd(int fd)
{
    const uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);

    (void)n;
}

static void clear_fd(int fd)
{
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);

    (void)n;
}

void esp_service_push(struct esp_service *v, const struct esp_service_event *e)
{
    pthread_mutex_lock(&v->lock);
    while (v->n == v->cap && !v->stop) {
        signal_fd(v->fd);
        pthread_cond_wait(&v->space, &v->lock);
    }
    if (v->n < v->cap) {
        v->ring[(v->first + v->n) % v->cap] = *e;
        v->n++;
        v->untold = true;
    }
    if (e->last)
        v->n_pending--;
    pthread_mutex_unlock(&v->lock);
}

/* Wake the reader, once for all that a turn has pushed and without the lock that it takes next. */
static void tell_reader(struct esp_service *v)
{
    if (v->untold)
        signal_fd(v->fd);
    v->untold = false;
}

struct esp_service_event esp_service_event_of(const struct esp_service_job *j, uint32_t choice,
                                              enum esp_service_what what)
{
    return (struct esp_service_event){.id = j->id,
                                      .user = j->r.user,
                                      .choice = choice,
                                      .what = what,
                                      .token = -1,
                                      .at = esp_engine_now(),
                                      .submitted = j->at};
}

/* Close choice c and say so. */
static void end_choice(struct esp_service *v, struct esp_service_job *j, uint32_t c,
                       struct esp_service_event *e)
{
    if (j->seqs[c]) {
        esp_seq_stop(j->seqs[c]);
        esp_seq_usage(j->seqs[c], &e->usage);
        esp_seq_close(j->seqs[c]);
        j->seqs[c] = NULL;
    }
    if (c == 0 && !j->sharing) { /* the prompt ran in a generation of its own */
        e->usage.cached_tokens += j->prompt_usage.cached_tokens;
        e->usage.queue_ms += j->prompt_usage.queue_ms;
        e->usage.prompt_ms += j->prompt_usage.prompt_ms;
    }
    e->last = true;
    j->ended[c] = true;
    j->n_ended++;
    v->n_open -= j->opened;
    v->unsaved = true;
    esp_service_push(v, e);
}

void esp_service_end_job(struct esp_service *v, struct esp_service_job *j, const esp_error *err)
{
    for (uint32_t c = 0; c < j->r.n_choice; c++) {
        struct esp_service_event e =
            esp_service_event_of(j, c, err ? ESP_SERVICE_FINISH : ESP_SERVICE_CANCELLED);

        if (j->ended[c])
            continue;
        if (err) {
            e.finish = ESP_FINISH_FAILED;
            e.status = err->status;
            snprintf(e.message, sizeof e.message, "%.*s", (int)sizeof e.message - 1, err->message);
        }
        end_choice(v, j, c, &e);
    }
}

/* ---- jobs ---- */

static struct esp_service_job *job_of(const struct esp_service *v, const esp_seq *seq, uint32_t *choice)
{
    for (struct esp_service_job *j = v->jobs; j; j = j->next)
        for (uint32_t c = 0; c < j->r.n_choice; c++)
            if (j->seqs[c] == seq) {
                *choice = c;
                return j;
            }
    return NULL;
}

static void translate(struct esp_service *v, const esp_event *x)
{
    uint32_t c = 0;
    struct esp_service_job *j = job_of(v, x->seq, &c);
    struct esp_service_event e;
    esp_error err;

    if (!j)
        return;
    if (j->sharing && x->finish == ESP_FINISH_LENGTH) {
        j->ready = true; /* forked later: a new sequence could lie where an event still names an old one */
        return;
    }
    if (j->sharing && x->finish == ESP_FINISH_FAILED) { /* the prompt that all of them share */
        esp_fail(&err, ESP_ESTATE, "%s", x->message);
        esp_service_end_job(v, j, &err);
        return;
    }
    e = esp_service_event_of(j, c, x->token >= 0 ? ESP_SERVICE_TOKEN : ESP_SERVICE_FINISH);
    e.token = x->token;
    e.finish = x->finish;
    e.logprob = x->logprob;
    e.n_top = x->n_top;
    if (x->n_top)
        memcpy(e.top, x->top, x->n_top * sizeof *x->top);
    if (x->message)
        snprintf(e.message, sizeof e.message, "%.*s", (int)sizeof e.message - 1, x->message);
    if (x->finish == ESP_FINISH_NONE)
        esp_service_push(v, &e);
    else
        end_choice(v, j, c, &e);
}

/* ---- the thread ---- */

/* One step's worth of events. They name sequences and texts that the next call on the engine may change, but
 * closing one drops only its own. */
static void step(struct esp_service *v)
{
    esp_event events[STEP_EVENTS];
    esp_error err;
    size_t n = 0;

    esp_engine_admit(v->g); /* who comes in now is told so before the step that it may take long to run */
    for (struct esp_service_job *j = v->jobs; j; j = j->next)
        if (j->told_at <= 0)
            esp_service_tell_progress(v, j);
    tell_reader(v);
    if (esp_engine_step(v->g, events, STEP_EVENTS, &n, &err) != ESP_OK) {
        for (struct esp_service_job *j = v->jobs; j; j = j->next)
            if (j->opened)
                esp_service_end_job(v, j, &err);
        return;
    }
    for (struct esp_service_job *j = v->jobs; j; j = j->next)
        esp_service_tell_progress(v, j);
    for (size_t i = 0; i < n; i++)
        translate(v, &events[i]);
    for (struct esp_service_job *j = v->jobs; j; j = j->next) {
        if (!j->ready || j->n_ended)
            continue;
        j->ready = false;
        if (esp_service_job_fork(j, &err) != ESP_OK)
            esp_service_end_job(v, j, &err);
    }
}

/* Answers that go on, which are first in the inbox, come before all others. */
static void take_inbox(struct esp_service *v)
{
    struct esp_service_job *head = v->inbox, **tail = &head, *rest;

    while (*tail && (*tail)->r.goes_on)
        tail = &(*tail)->next;
    rest = *tail;
    *tail = v->jobs;
    while (*tail)
        tail = &(*tail)->next;
    *tail = rest;
    v->jobs = head;
    v->inbox = NULL;
}

/* Choices whose bit is set. While they share the prompt, which choice 0 runs, single ones stay. */
static void cancel_jobs(struct esp_service *v)
{
    for (struct esp_service_job *j = v->jobs; j; j = j->next) {
        const unsigned all = (1u << j->r.n_choice) - 1, wanted = atomic_load(&j->cancel) & all;

        if (wanted == all && j->n_ended < j->r.n_choice)
            esp_service_end_job(v, j, NULL);
        for (uint32_t c = 0; wanted && !j->sharing && j->opened && c < j->r.n_choice; c++) {
            struct esp_service_event e = esp_service_event_of(j, c, ESP_SERVICE_CANCELLED);

            if ((wanted >> c & 1) && !j->ended[c])
                end_choice(v, j, c, &e);
        }
    }
}

/* Unlink and free what has ended; with the lock. */
static void reap(struct esp_service *v)
{
    struct esp_service_job **at = &v->jobs;

    while (*at) {
        struct esp_service_job *j = *at;

        if (j->n_ended < j->r.n_choice) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        esp_service_job_free(j);
    }
}

static bool has_work(const struct esp_service *v)
{
    return v->inbox || v->jobs || v->exclusive || v->between || v->unsaved;
}

/* Everything that one turn of the loop does without the lock. True: x has run. */
static bool turn(struct esp_service *v, struct esp_service_exclusive *x)
{
    cancel_jobs(v);
    if (!x)
        esp_service_open_jobs(v);
    if (v->n_open) {
        step(v);
        esp_service_score(v);
        return false;
    }
    if (x) {
        x->status = x->fn(x->user, v->g, x->err);
        return true;
    }
    if (v->unsaved)
        v->unsaved = esp_cache_save_one(v->g);
    return false;
}

static void *run(void *arg)
{
    struct esp_service *v = arg;

    pthread_mutex_lock(&v->lock);
    for (;;) {
        struct esp_service_exclusive *x, *between;
        esp_stats stats;
        bool ran;

        while (!v->stop && !has_work(v))
            pthread_cond_wait(&v->work, &v->lock);
        take_inbox(v);
        if (v->stop)
            break;
        x = v->exclusive;
        between = v->between;
        pthread_mutex_unlock(&v->lock);
        if (between)
            between->status = between->fn(between->user, v->g, between->err);
        ran = turn(v, x);
        tell_reader(v);
        esp_engine_stats(v->g, &stats);
        pthread_mutex_lock(&v->lock);
        v->stats = stats;
        v->turned_at = esp_engine_now();
        reap(v);
        if (ran) {
            x->done = true;
            v->exclusive = NULL;
        }
        if (between) {
            between->done = true;
            v->between = NULL;
        }
        if (ran || between)
            pthread_cond_broadcast(&v->finished);
    }
    pthread_mutex_unlock(&v->lock);
    for (struct esp_service_job *j = v->jobs; j; j = j->next)
        esp_service_end_job(v, j, NULL);
    tell_reader(v);
    pthread_mutex_lock(&v->lock);
    v->ended = true;
    pthread_cond_broadcast(&v->finished);
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

/* ---- any thread ---- */

static void destroy(struct esp_service *v)
{
    pthread_cond_destroy(&v->work);
    pthread_cond_destroy(&v->space);
    pthread_cond_destroy(&v->finished);
    pthread_mutex_destroy(&v->lock);
    if (v->fd >= 0)
        close(v->fd);
    esp_free(v->ring);
    esp_free(v);
}

esp_status esp_service_open(struct esp_service **out, esp_engine *g, const struct esp_service_opts *o,
                            esp_error *err)
{
    struct esp_service *v = esp_alloc(sizeof *v);
    esp_status s = ESP_OK;

    if (!v)
        return esp_fail(err, ESP_ENOMEM, "service: out of memory");
    v->g = g;
    v->cap = o && o->max_events ? o->max_events : DEFAULT_EVENTS;
    v->rows_per_owner = o ? o->rows_per_owner : 0;
    v->ring = esp_alloc_array(v->cap, sizeof *v->ring);
    v->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->work, NULL);
    pthread_cond_init(&v->space, NULL);
    pthread_cond_init(&v->finished, NULL);
    esp_engine_stats(g, &v->stats);
    if (!v->ring)
        s = esp_fail(err, ESP_ENOMEM, "service of %u events: out of memory", v->cap);
    else if (v->fd < 0)
        s = esp_fail(err, ESP_EIO, "service: no event descriptor: %s", strerror(errno));
    else if (pthread_create(&v->thread, NULL, run, v) != 0)
        s = esp_fail(err, ESP_EDEVICE, "service: its thread cannot be started");
    if (s != ESP_OK) {
        destroy(v);
        return s;
    }
    *out = v;
    return ESP_OK;
}

void esp_service_close(struct esp_service *v)
{
    struct esp_service_job *j, *next;

    if (!v)
        return;
    pthread_mutex_lock(&v->lock);
    v->stop = true;
    pthread_cond_broadcast(&v->work);
    pthread_cond_broadcast(&v->space);
    pthread_cond_broadcast(&v->finished);
    pthread_mutex_unlock(&v->lock);
    pthread_join(v->thread, NULL);
    for (j = v->jobs; j; j = next) {
        next = j->next;
        esp_service_job_free(j);
    }
    destroy(v);
}

static esp_status refusal(struct esp_service *v, const struct esp_service_job *j, esp_error *err)
{
    const esp_engine_opts *o = &v->g->opts; /* fixed since it was opened */
    const uint32_t room = o->rows + o->queue, n_choice = j->r.n_choice;

    if (v->draining || v->stop)
        return esp_fail(err, ESP_ESTATE, "no more requests are taken: the service is ending");
    if (n_choice > o->max_seqs)
        return esp_fail(err, ESP_ENOFIT, "%u choices, the engine was opened for %u sequences", n_choice,
                        o->max_seqs);
    if (v->rows_per_owner && j->r.owner && n_choice > v->rows_per_owner)
        return esp_fail(err, ESP_ENOFIT, "%u choices; one owner has %u rows at most", n_choice,
                        v->rows_per_owner);
    if (v->n_pending + n_choice > room)
        return esp_fail(err, ESP_ENOFIT, "the queue is full: %u run or wait, %u rows and %u places are there",
                        v->n_pending, o->rows, o->queue);
    return ESP_OK;
}

/* What no service would take. */
static esp_status check_request(const struct esp_service_request *r, esp_error *err)
{
    if (r->n_choice > ESP_SERVICE_MAX_CHOICES)
        return esp_fail(err, ESP_EINVAL, "n %u; 1 to %d choices are possible", r->n_choice,
                        ESP_SERVICE_MAX_CHOICES);
    if (r->constraint && r->n_choice > 1 && !r->constraint->clone)
        return esp_fail(err, ESP_EINVAL, "%u choices under a constraint that has no second state",
                        r->n_choice);
    if (r->goes_on && r->n_choice > 1)
        return esp_fail(err, ESP_EINVAL, "%u choices cannot go on in one request", r->n_choice);
    if (r->n == 0 || !r->tokens)
        return esp_fail(err, ESP_EINVAL, "a request without tokens");
    if (r->n_mark > ESP_LIMIT_MARKS || r->opts.sampling.n_bias > ESP_SAMPLE_MAX_BIAS)
        return esp_fail(err, ESP_EINVAL, "%zu marks and %zu biases; at most %u and %d are accepted",
                        r->n_mark, r->opts.sampling.n_bias, ESP_LIMIT_MARKS, ESP_SAMPLE_MAX_BIAS);
    return ESP_OK;
}

/* Into the inbox, behind its like; with the lock. */
static void put(struct esp_service *v, struct esp_service_job *j)
{
    struct esp_service_job **tail = &v->inbox;

    v->n_pending += j->r.n_choice;
    while (*tail && (!j->r.goes_on || (*tail)->r.goes_on))
        tail = &(*tail)->next;
    j->next = *tail;
    *tail = j;
    pthread_cond_signal(&v->work);
}

esp_status esp_service_submit(struct esp_service *v, const struct esp_service_request *r, uint64_t *id,
                              esp_error *err)
{
    struct esp_service_job *j = NULL;
    esp_status s;

    ESP_TRY(check_request(r, err));
    ESP_TRY(esp_service_job_make(&j, r, err));
    pthread_mutex_lock(&v->lock);
    s = r->goes_on && !v->stop ? ESP_OK : refusal(v, j, err);
    if (s == ESP_OK) {
        *id = j->id = ++v->n_id;
        j->at = esp_engine_now();
        put(v, j);
    }
    pthread_mutex_unlock(&v->lock);
    if (s != ESP_OK) {
        j->constraint = (struct esp_constraint){0}; /* it remains the caller's */
        esp_service_job_free(j);
    }
    return s;
}

static bool cancel_in(struct esp_service_job *list, uint64_t id, unsigned choices)
{
    for (; list; list = list->next)
        if (list->id == id) {
            atomic_fetch_or(&list->cancel, choices);
            return true;
        }
    return false;
}

static void cancel(struct esp_service *v, uint64_t id, unsigned choices)
{
    pthread_mutex_lock(&v->lock);
    if (!cancel_in(v->inbox, id, choices))
        cancel_in(v->jobs, id, choices);
    pthread_mutex_unlock(&v->lock);
}

void esp_service_cancel(struct esp_service *v, uint64_t id)
{
    cancel(v, id, UINT_MAX);
}

void esp_service_cancel_choice(struct esp_service *v, uint64_t id, uint32_t choice)
{
    if (choice < ESP_SERVICE_MAX_CHOICES)
        cancel(v, id, 1u << choice);
}

size_t esp_service_poll(struct esp_service *v, struct esp_service_event *out, size_t cap)
{
    size_t n = 0;

    pthread_mutex_lock(&v->lock);
    for (; n < cap && v->n; n++) {
        out[n] = v->ring[v->first];
        v->first = (v->first + 1) % v->cap;
        v->n--;
    }
    if (v->n == 0)
        clear_fd(v->fd); /* also when it was told of what an earlier call took */
    if (n)
        pthread_cond_signal(&v->space);
    pthread_mutex_unlock(&v->lock);
    return n;
}

bool esp_service_wait(struct esp_service *v, int timeout_ms)
{
    struct pollfd p = {.fd = v->fd, .events = POLLIN};

    return poll(&p, 1, timeout_ms) > 0;
}

int esp_service_fd(const struct esp_service *v)
{
    return v->fd;
}

void esp_service_stats(struct esp_service *v, esp_stats *out)
{
    pthread_mutex_lock(&v->lock);
    *out = v->stats;
    if (v->n_pending > out->rows_active)
        out->rows_waiting = v->n_pending - out->rows_active; /* those not opened yet included */
    pthread_mutex_unlock(&v->lock);
}

/* Hang x up at a place that the thread looks at, and wait until it has run. */
static esp_status call(struct esp_service *v, struct esp_service_exclusive **place,
                       struct esp_service_exclusive *x, esp_error *err)
{
    pthread_mutex_lock(&v->lock);
    while (*place && !v->ended)
        pthread_cond_wait(&v->finished, &v->lock);
    if (!v->ended) {
        *place = x;
        pthread_cond_signal(&v->work);
        while (!x->done && !v->ended)
            pthread_cond_wait(&v->finished, &v->lock);
    }
    pthread_mutex_unlock(&v->lock);
    return x->done ? x->status : esp_fail(err, ESP_ECANCELLED, "the service ended first");
}

esp_status esp_service_exclusive(struct esp_service *v, esp_service_fn fn, void *user, esp_error *err)
{
    struct esp_service_exclusive x = {.fn = fn, .user = user, .err = err};

    return call(v, &v->exclusive, &x, err);
}

esp_status esp_service_call(struct esp_service *v, esp_service_fn fn, void *user, esp_error *err)
{
    struct esp_service_exclusive x = {.fn = fn, .user = user, .err = err};

    return call(v, &v->between, &x, err);
}

void esp_service_drain(struct esp_service *v)
{
    pthread_mutex_lock(&v->lock);
    v->draining = true;
    pthread_mutex_unlock(&v->lock);
}

uint32_t esp_service_pending(struct esp_service *v)
{
    uint32_t n;

    pthread_mutex_lock(&v->lock);
    n = v->n_pending;
    pthread_mutex_unlock(&v->lock);
    return n;
}

double esp_service_idle_seconds(struct esp_service *v)
{
    double at;

    pthread_mutex_lock(&v->lock);
    at = v->turned_at;
    pthread_mutex_unlock(&v->lock);
    return esp_engine_now() - at;
}
