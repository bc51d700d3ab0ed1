/*
 * One thread, one loop: messages of the child, its death, signals.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/isolate.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "program/output.h"
#include "serve/guard.h"
#include "serve/http_listen.h"

enum { MAX_DEATHS = 3, MINUTE = 60, LOOK_MS = 100 };

struct parent {
    struct esp_serve_opts *o;
    struct esp_guard *guard;
    pid_t child;
    size_t n_given;            /* sockets that are somebody else's: their files stay */
    double deaths[MAX_DEATHS]; /* the last ones, oldest first */
    bool stopping;
};

static volatile sig_atomic_t hangup_to_pass;

void esp_isolate_hangup(void)
{
    hangup_to_pass = 1;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- sockets ---- */

static esp_status listen_all(struct esp_serve_opts *o, esp_error *err)
{
    uint16_t port = o->port;

    if (o->n_host == 0)
        o->hosts[o->n_host++] = "127.0.0.1";
    while (o->n_inherited < o->n_host) {
        uint16_t bound = 0;

        ESP_TRY(
            esp_listen_socket(&o->inherited[o->n_inherited], o->hosts[o->n_inherited], port, &bound, err));
        o->n_inherited++;
        port = bound ? bound : port; /* one port for all addresses */
    }
    return ESP_OK;
}

static void close_all(struct parent *p)
{
    struct esp_serve_opts *o = p->o;

    for (size_t i = 0; i < o->n_inherited; i++) {
        close(o->inherited[i]);
        if (i >= p->n_given && strncmp(o->hosts[i], "unix:", 5) == 0)
            unlink(o->hosts[i] + 5);
    }
    o->n_inherited = 0;
}

/* ---- the child ---- */

static void be_child(struct parent *p, pid_t parent)
{
    setpgid(0, 0); /* Ctrl-C is the parent's to pass on */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(ESP_EXIT_FAILURE);
    esp_guard_child(p->guard);
    p->o->guard = p->guard;
}

/* True in the child. */
static bool start(struct parent *p, esp_error *err)
{
    const pid_t parent = getpid();

    fflush(NULL);
    p->child = fork();
    if (p->child == 0) {
        be_child(p, parent);
        return true;
    }
    if (p->child < 0)
        esp_fail(err, ESP_EDEVICE, "--isolate: no process could be started: %s", strerror(errno));
    else
        esp_guard_parent(p->guard);
    return false;
}

/* ---- the parent ---- */

static void pass_signals(struct parent *p)
{
    if (hangup_to_pass) {
        hangup_to_pass = 0;
        kill(p->child, SIGHUP);
    }
    if (!esp_interrupted() || p->stopping)
        return;
    p->stopping = true;
    close_all(p); /* nobody new; the child has its own */
    kill(p->child, SIGTERM);
}

/* Until the child has ended: its status as waitpid() has it. */
static int watch(struct parent *p)
{
    struct pollfd f = {.fd = esp_guard_fd(p->guard), .events = POLLIN};
    int status = 0;

    for (;;) {
        const int n = poll(&f, 1, LOOK_MS);

        if (n > 0)
            esp_guard_receive(p->guard);
        if (waitpid(p->child, &status, WNOHANG) == p->child)
            return status;
        if (n > 0 && (f.revents & (POLLHUP | POLLERR)))
            f.fd = -1; /* it is dying */
        pass_signals(p);
    }
}

/* Whether one more death is one too many. */
static bool too_often(struct parent *p)
{
    const double at = now();
    const bool often = p->deaths[0] > 0 && at - p->deaths[0] < MINUTE;

    memmove(p->deaths, p->deaths + 1, (MAX_DEATHS - 1) * sizeof p->deaths[0]);
    p->deaths[MAX_DEATHS - 1] = at;
    return often;
}

/* The child was ended by a signal: whether there shall be another one. */
static bool bury(struct parent *p, int sig, int *code)
{
    const uint32_t told = esp_guard_tell(p->guard);

    esp_say_warn("the process that computes died: %s (signal %d); %u requests were told", strsignal(sig), sig,
                 told);
    *code = ESP_EXIT_FAILURE;
    if (p->stopping)
        return false;
    if (too_often(p)) {
        esp_say_warn("it died %d times within a minute; the server ends", MAX_DEATHS + 1);
        return false;
    }
    return true;
}

esp_status esp_isolate(struct esp_serve_opts *o, enum esp_isolated *who, bool *again, int *code,
                       esp_error *err)
{
    struct parent p = {.o = o, .n_given = o->n_inherited};
    esp_status s = listen_all(o, err);
    bool more = s == ESP_OK;

    if (s == ESP_OK)
        s = esp_guard_open(&p.guard, o->max_connections, err);
    *again = false;
    for (more = s == ESP_OK; more; *again = true) {
        int status;

        if (start(&p, err)) {
            *who = ESP_ISOLATE_CHILD;
            return ESP_OK;
        }
        if (p.child < 0) {
            s = err->status;
            break;
        }
        status = watch(&p);
        more = false;
        if (WIFSIGNALED(status))
            more = bury(&p, WTERMSIG(status), code);
        else
            *code = WEXITSTATUS(status);
    }
    close_all(&p);
    esp_guard_close(p.guard);
    *who = ESP_ISOLATE_PARENT;
    return s;
}
