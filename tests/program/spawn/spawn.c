/*
 * posix_spawn with pipes; both outputs are drained together so that neither can block the program.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/spawn/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/support.h"

extern char **environ;

enum { MAX_OUTPUT = 4 << 20, MAX_ENV = 256, SILENT_MS = TEST_SANITIZED ? 300000 : 60000 };

/* A file that holds text, already open for reading from its start. */
static int input_fd(const char *text)
{
    char name[] = "/tmp/espalier-in-XXXXXX";
    int fd;

    if (!text)
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    fd = mkostemp(name, O_CLOEXEC);
    assert_true(fd >= 0);
    unlink(name);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    lseek(fd, 0, SEEK_SET);
    return fd;
}

/* posix_spawn under a limit of file sizes, which a program inherits; writes nothing to a file meanwhile. */
static int spawn_limited(size_t limit, pid_t *pid, const char *const argv[], posix_spawn_file_actions_t *a,
                         posix_spawnattr_t *attr, char *env[])
{
    struct rlimit before, during;
    int failed;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    during = before;
    if (limit)
        during.rlim_cur = limit;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &during), 0);
    failed = posix_spawn(pid, argv[0], a, attr, (char *const *)(uintptr_t)argv, env);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    return failed;
}

static pid_t start(const struct run_how *how, const char *const argv[], int out, int err)
{
    posix_spawn_file_actions_t a;
    posix_spawnattr_t attr;
    sigset_t defaults;
    char *env[MAX_ENV];
    size_t n = 0;
    pid_t pid;
    const int in = input_fd(how->input);

    for (char **e = environ; *e && n < MAX_ENV - 8; e++) {
        if (strncmp(*e, "ESPALIER_", 9) != 0)
            env[n++] = *e;
    }
    for (size_t i = 0; i < 4 && how->env[i]; i++)
        env[n++] = (char *)(uintptr_t)how->env[i];
    env[n] = NULL;
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_adddup2(&a, in, 0);
    if (how->output)
        posix_spawn_file_actions_addopen(&a, 1, how->output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    else
        posix_spawn_file_actions_adddup2(&a, out, 1);
    posix_spawn_file_actions_adddup2(&a, err, 2);
    posix_spawnattr_init(&attr);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGINT);
    sigaddset(&defaults, SIGXFSZ);
    posix_spawnattr_setsigdefault(&attr, &defaults);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF);
    const int failed = spawn_limited(how->file_limit, &pid, argv, &a, &attr, env);

    if (failed)
        fail_msg("%s could not be started: %s", argv[0], strerror(failed));
    posix_spawn_file_actions_destroy(&a);
    posix_spawnattr_destroy(&attr);
    close(in);
    return pid;
}

/* Read once into buf; false at the end. */
static bool drain(int fd, char *buf, size_t *n)
{
    const ssize_t got = read(fd, buf + *n, MAX_OUTPUT - *n - 1);

    if (got <= 0)
        return false;
    *n += (size_t)got;
    buf[*n] = 0;
    return true;
}

static void interrupt(const struct run_how *how, pid_t pid)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    if (how->signal > 0)
        kill(pid, how->signal);
    for (int i = 0; how->signal < 0 && i < 2; i++) {
        kill(pid, -how->signal);
        nanosleep(&pause, NULL);
    }
}

struct run run_with(const struct run_how *how, const char *const argv[])
{
    static const struct run_how plain = {0};
    int out[2], err[2], status = 0;
    struct run r = {calloc(1, MAX_OUTPUT), calloc(1, MAX_OUTPUT), 0, 0};
    size_t n_err = 0;
    bool signalled = false;
    pid_t pid;

    how = how ? how : &plain;
    assert_non_null(r.out);
    assert_non_null(r.err);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(err, O_CLOEXEC), 0);
    pid = start(how, argv, out[1], err[1]);
    close(out[1]);
    close(err[1]);
    for (struct pollfd p[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}}; p[0].fd >= 0 || p[1].fd >= 0;) {
        if (poll(p, 2, SILENT_MS) <= 0) {
            kill(pid, SIGKILL);
            fail_msg("%s %s: silent for %d s", argv[0], argv[1], SILENT_MS / 1000);
        }
        if (p[0].revents && !drain(out[0], r.out, &r.n_out))
            p[0].fd = -1;
        if (p[1].revents && !drain(err[0], r.err, &n_err))
            p[1].fd = -1;
        if (how->close_after && r.n_out >= (size_t)how->close_after && p[0].fd >= 0) {
            close(out[0]);
            p[0].fd = out[0] = -1;
        }
        if (how->signal && !signalled &&
            (how->signal_on ? strstr(r.err, how->signal_on) != NULL : r.n_out > 0)) {
            signalled = true;
            interrupt(how, pid);
        }
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    if (out[0] >= 0)
        close(out[0]);
    close(err[0]);
    return r;
}

void run_free(struct run *r)
{
    free(r->out);
    free(r->err);
}

void run_code(const struct run *r, int code)
{
    if (r->code != code)
        fail_msg("exit code %d instead of %d\nout: %.2000s\nerr: %.2000s", r->code, code, r->out, r->err);
}

void run_says(const struct run *r, const char *part)
{
    if (!strstr(r->err, part))
        fail_msg("\"%s\" is not in the errors: %.2000s", part, r->err);
}

void run_prints(const struct run *r, const char *part)
{
    if (!strstr(r->out, part))
        fail_msg("\"%s\" is not in the output: %.4000s", part, r->out);
}

void run_silent(const struct run *r)
{
    if (r->n_out)
        fail_msg("standard output should be empty: %.2000s", r->out);
}

size_t run_lines(const struct run *r)
{
    size_t n = 0;

    for (const char *p = strchr(r->out, '\n'); p; p = strchr(p + 1, '\n'))
        n++;
    return n;
}

json_t *run_json(const struct run *r, size_t i)
{
    const char *p = r->out;
    json_error_t e;
    json_t *j;

    while (i--) {
        p = strchr(p, '\n');
        assert_non_null(p);
        p++;
    }
    j = json_loadb(p, strcspn(p, "\n"), 0, &e);
    if (!j)
        fail_msg("not JSON (%s): %.500s", e.text, p);
    if (!json_is_string(json_object_get(j, "schema")))
        fail_msg("no schema: %.500s", p);
    return j;
}
