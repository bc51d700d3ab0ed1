/*
 * See the header.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { MAX_FLAGS = 40, START_SECONDS = 120, IDLE_SECONDS = 60 };

double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void nap(double seconds)
{
    const struct timespec t = {.tv_sec = (time_t)seconds,
                               .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};

    nanosleep(&t, NULL);
}

/* The whole log, in a buffer that the next call takes again. */
static const char *read_log(const struct process *p)
{
    static char text[1 << 16];
    FILE *f = fopen(p->log, "r");
    const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;

    text[n] = '\0';
    if (f)
        fclose(f);
    return text;
}

/* A test that fails leaves none behind. */
static pid_t running[16];

static void kill_all(void)
{
    for (size_t i = 0; i < sizeof running / sizeof running[0]; i++)
        if (running[i] > 0)
            kill(running[i], SIGKILL);
}

static void remember(pid_t pid, pid_t instead_of)
{
    static bool registered;

    if (!registered)
        atexit(kill_all);
    registered = true;
    for (size_t i = 0; i < sizeof running / sizeof running[0]; i++)
        if (running[i] == instead_of) {
            running[i] = pid;
            return;
        }
}

static void spawn(struct process *p, const char *const flags[])
{
    const char *argv[MAX_FLAGS] = {ESP_PROGRAM, "serve", test_path("models/demo"), "--port", "0", "-t", "1"};
    posix_spawn_file_actions_t a;
    size_t n = 7;

    for (size_t i = 0; flags[i]; i++) {
        assert_true(n + 1 < MAX_FLAGS);
        argv[n++] = flags[i];
    }
    snprintf(p->log, sizeof p->log, "%s", test_write(test_tmpdir(), "log", "", 0));
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_addopen(&a, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&a, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&a, 2, p->log, O_WRONLY | O_TRUNC, 0);
    if (posix_spawn(&p->pid, argv[0], &a, NULL, (char *const *)(uintptr_t)argv, environ) != 0)
        fail_msg("%s could not be started: %s", argv[0], strerror(errno));
    posix_spawn_file_actions_destroy(&a);
    remember(p->pid, 0);
}

static bool is_ready(const struct process *p)
{
    struct esp_strbuf b;
    int status;

    esp_strbuf_init(&b, 1 << 16);
    status = esp_load_get(&p->target, NULL, "/health", &b);
    esp_strbuf_free(&b);
    return status == 200;
}

void process_start(struct process *p, const char *const flags[])
{
    static const char says[] = "listening on http://127.0.0.1:";
    const double until = seconds_now() + START_SECONDS;
    const char *at = NULL;
    char url[64];
    esp_error err;

    memset(p, 0, sizeof *p);
    setenv("XDG_RUNTIME_DIR", test_tmpdir(), 1); /* where running servers are noted: not among the user's */
    spawn(p, flags);
    while (!at) {
        if (seconds_now() > until || process_wait(p, 0) != -1000)
            fail_msg("the server did not start: %s", read_log(p));
        nap(0.01);
        at = strstr(read_log(p), says);
        if (at && !strchr(at, '\n'))
            at = NULL; /* the line is not whole yet */
    }
    p->at.port = (uint16_t)strtol(at + sizeof says - 1, NULL, 10);
    snprintf(url, sizeof url, "http://127.0.0.1:%u", p->at.port);
    test_ok(esp_load_target_parse(&p->target, url, &err), &err);
    while (!is_ready(p)) {
        if (seconds_now() > until || process_wait(p, 0) != -1000)
            fail_msg("the server did not become ready: %s", read_log(p));
        nap(0.01);
    }
}

void process_signal(const struct process *p, int signal)
{
    assert_true(p->pid > 0);
    assert_int_equal(kill(p->pid, signal), 0);
}

int process_wait(struct process *p, double seconds)
{
    const double until = seconds_now() + seconds;
    int status;

    for (;;) {
        const pid_t got = waitpid(p->pid, &status, WNOHANG);

        if (got == p->pid)
            remember(0, p->pid);
        if (got == p->pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        if (got < 0 || seconds_now() >= until)
            return -1000;
        nap(0.005);
    }
}

void process_stop(struct process *p)
{
    int code;

    process_signal(p, SIGTERM);
    code = process_wait(p, 90);
    if (code != 0)
        fail_msg("the server ended with %d: %s", code, read_log(p));
}

double process_rss(const struct process *p)
{
    char path[64], line[256];
    double kib = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%ld/status", (long)p->pid);
    f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "VmRSS:", 6) == 0)
            kib = strtod(line + 6, NULL);
    fclose(f);
    assert_true(kib > 0);
    return kib * 1024;
}

double process_loop_cpu(const struct process *p)
{
    char path[96], line[256] = "";
    FILE *f;

    snprintf(path, sizeof path, "/proc/%ld/task/%ld/schedstat", (long)p->pid, (long)p->pid);
    f = fopen(path, "r");
    if (!f || !fgets(line, sizeof line, f))
        line[0] = '\0'; /* a kernel without it: 0 */
    if (f)
        fclose(f);
    return strtod(line, NULL) / 1e9;
}

double process_stat(const struct process *p, const char *path)
{
    struct reply r = client_do(&p->at, "GET", "/stats", NULL, NULL);
    double v;

    assert_int_equal(r.status, 200);
    assert_true(json_is_number(at(r.json, path)));
    v = json_number_value(at(r.json, path));
    reply_free(&r);
    return v;
}

void process_idle(const struct process *p)
{
    const double until = seconds_now() + IDLE_SECONDS;

    while (process_stat(p, "admission.running") > 0 || process_stat(p, "admission.waiting") > 0) {
        if (seconds_now() > until)
            fail_msg("something still runs or waits after %d s", IDLE_SECONDS);
        nap(0.02);
    }
}
