/*
 * The real program as a server in a process of its own: for what only a process has, signals, memory, a death
 * without warning.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_SERVE_PROCESS_H
#define ESP_TESTS_SERVE_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

#include "program/load.h"
#include "serve/client/client.h"

struct process {
    pid_t pid;
    struct server at; /* port alone, for client_do() and the like */
    struct esp_load_target target;
    char log[256]; /* file of its standard error */
};

/* Start `espalier serve models/demo --port 0` and these flags (NULL ends), and wait until it is ready. */
void process_start(struct process *p, const char *const flags[]);
#define PROCESS(p, ...) process_start(p, (const char *const[]){__VA_ARGS__, NULL})
/* SIGTERM and wait; fails the test unless the exit code is 0. */
void process_stop(struct process *p);
void process_signal(const struct process *p, int signal);
/* Wait at most so many seconds; the exit code, or minus the signal; -1000: it still runs. */
int process_wait(struct process *p, double seconds);

/* Resident memory in bytes. */
double process_rss(const struct process *p);
/* CPU seconds of the thread that runs the event loop. */
double process_loop_cpu(const struct process *p);
/* A number of GET /stats, such as "scheduler.generated_tokens". */
double process_stat(const struct process *p, const char *path);
/* Wait until nothing runs or waits. */
void process_idle(const struct process *p);

double seconds_now(void);
void nap(double seconds);

#endif
