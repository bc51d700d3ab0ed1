/*
 * The service's own types, for the files that make it up. Private to them.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_SERVICE_PARTS_H
#define ESP_ENGINE_SERVICE_PARTS_H

#include <pthread.h>

#include "engine/service_job.h"

struct esp_service_exclusive {
    esp_service_fn fn;
    void *user;
    esp_error *err;
    esp_status status;
    bool done;
};

struct esp_service {
    esp_engine *g;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, space, finished; /* for the thread; room in the ring; an exclusive call has ended */
    int fd;
    bool stop, ended, draining;
    struct esp_service_job *inbox, *jobs;
    uint64_t n_id;
    uint32_t rows_per_owner; /* 0: no bound */
    uint32_t n_pending;      /* choices that have not ended */
    struct esp_service_exclusive *exclusive, *between;
    struct esp_service_event *ring;
    uint32_t cap, first, n;
    esp_stats stats;
    double turned_at; /* when the loop last went round */
    /* The thread's own. */
    uint32_t n_open; /* sequences open or promised */
    bool untold;     /* events of which the reader has not been told */
    bool unsaved;    /* texts may be waiting for their files */
};

/* ---- service.c ---- */

/* Into the ring; waits for room. */
void esp_service_push(struct esp_service *v, const struct esp_service_event *e);
struct esp_service_event esp_service_event_of(const struct esp_service_job *j, uint32_t choice,
                                              enum esp_service_what what);
/* End every choice that has not ended: with a failure, or cancelled when err is NULL. */
void esp_service_end_job(struct esp_service *v, struct esp_service_job *j, const esp_error *err);

/* ---- service_open.c ---- */

/* Let in what there is room for. */
void esp_service_open_jobs(struct esp_service *v);

/* ---- service_prompt.c ---- */

/* How far the prompt of j is, when that is wanted and has changed: before its first token is told. */
void esp_service_tell_progress(struct esp_service *v, struct esp_service_job *j);
/* The next part of the oldest prompt that is being scored. */
void esp_service_score(struct esp_service *v);

#endif
