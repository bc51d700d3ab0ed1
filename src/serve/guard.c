/*
 * A table in shared memory, written by the child alone while it lives, and a pair of sockets through which it
 * hands its connections to the parent.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/guard.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"

enum { MAX_WORDS = 2040 };

struct slot {
    atomic_bool speak;
    uint32_t len;
    char words[MAX_WORDS];
};

struct esp_guard {
    struct slot *slots; /* [n], shared */
    int *fds;           /* [n] the parent's; -1: none */
    uint32_t *spare;    /* [n_spare] numbers that are free, the child's */
    uint32_t n, n_spare;
    int pair[2]; /* the child writes to 1 */
};

static esp_status open_pair(struct esp_guard *g, esp_error *err)
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, g->pair) == 0)
        return ESP_OK;
    return esp_fail(err, ESP_EIO, "--isolate: no sockets between the processes: %s", strerror(errno));
}

esp_status esp_guard_open(struct esp_guard **out, uint32_t n, esp_error *err)
{
    struct esp_guard *g = esp_alloc(sizeof *g);
    esp_status s = ESP_OK;

    if (!g)
        return esp_fail(err, ESP_ENOMEM, "--isolate: no memory");
    g->n = n;
    g->pair[0] = g->pair[1] = -1;
    g->fds = esp_alloc_array(n, sizeof *g->fds);
    g->spare = esp_alloc_array(n, sizeof *g->spare);
    g->slots = mmap(NULL, n * sizeof *g->slots, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (g->slots == MAP_FAILED)
        g->slots = NULL;
    if (!g->fds || !g->spare || !g->slots)
        s = esp_fail(err, ESP_ENOMEM, "--isolate: no memory for %u connections", n);
    for (uint32_t i = 0; s == ESP_OK && i < n; i++)
        g->fds[i] = -1;
    if (s == ESP_OK)
        s = open_pair(g, err);
    if (s != ESP_OK) {
        esp_guard_close(g);
        return s;
    }
    *out = g;
    return ESP_OK;
}

static void close_pair(struct esp_guard *g)
{
    for (int i = 0; i < 2; i++) {
        if (g->pair[i] >= 0)
            close(g->pair[i]);
        g->pair[i] = -1;
    }
}

void esp_guard_close(struct esp_guard *g)
{
    if (!g)
        return;
    close_pair(g);
    for (uint32_t i = 0; g->fds && i < g->n; i++)
        if (g->fds[i] >= 0)
            close(g->fds[i]);
    if (g->slots)
        munmap(g->slots, g->n * sizeof *g->slots);
    esp_free(g->fds);
    esp_free(g->spare);
    esp_free(g);
}

/* ---- the process that computes ---- */

void esp_guard_child(struct esp_guard *g)
{
    close(g->pair[0]);
    g->pair[0] = -1;
    for (g->n_spare = 0; g->n_spare < g->n; g->n_spare++)
        g->spare[g->n_spare] = g->n - 1 - g->n_spare;
}

union control {
    struct cmsghdr head;
    char space[CMSG_SPACE(sizeof(int))];
};

/* The number, and with fd >= 0 its connection. */
static bool send_number(const struct esp_guard *g, uint32_t number, int fd)
{
    struct iovec v = {&number, sizeof number};
    union control c;
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    ssize_t n;

    if (fd >= 0) {
        memset(&c, 0, sizeof c);
        m.msg_control = &c;
        m.msg_controllen = sizeof c.space;
        c.head.cmsg_level = SOL_SOCKET;
        c.head.cmsg_type = SCM_RIGHTS;
        c.head.cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(&c.head), &fd, sizeof fd);
    }
    do
        n = sendmsg(g->pair[1], &m, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == sizeof number;
}

int esp_guard_take(struct esp_guard *g, int fd)
{
    uint32_t number;

    if (g->n_spare == 0)
        return -1;
    number = g->spare[g->n_spare - 1];
    atomic_store(&g->slots[number].speak, false);
    if (!send_number(g, number, fd))
        return -1;
    g->n_spare--;
    return (int)number;
}

void esp_guard_leave(struct esp_guard *g, int number, int fd)
{
    if (number < 0)
        return;
    atomic_store(&g->slots[number].speak, false);
    shutdown(fd, SHUT_RDWR); /* the parent's descriptor would keep it open a little longer */
    if (send_number(g, (uint32_t)number, -1))
        g->spare[g->n_spare++] = (uint32_t)number;
}

void esp_guard_words(struct esp_guard *g, int number, const char *text, size_t len)
{
    struct slot *s;

    if (number < 0)
        return;
    s = &g->slots[number];
    atomic_store(&s->speak, false);
    s->len = len <= MAX_WORDS ? (uint32_t)len : 0;
    memcpy(s->words, text, s->len);
    atomic_store(&s->speak, true);
}

void esp_guard_speak(struct esp_guard *g, int number, bool yes)
{
    if (number >= 0)
        atomic_store(&g->slots[number].speak, yes);
}

/* ---- its parent ---- */

void esp_guard_parent(struct esp_guard *g)
{
    close(g->pair[1]);
    g->pair[1] = -1;
}

int esp_guard_fd(const struct esp_guard *g)
{
    return g->pair[0];
}

static void take_message(struct esp_guard *g, uint32_t number, struct msghdr *m)
{
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    int fd = -1;

    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    if (number < g->n) {
        if (g->fds[number] >= 0)
            close(g->fds[number]);
        g->fds[number] = fd;
    } else if (fd >= 0) {
        close(fd);
    }
}

void esp_guard_receive(struct esp_guard *g)
{
    for (;;) {
        uint32_t number = UINT32_MAX;
        struct iovec v = {&number, sizeof number};
        union control c;
        struct msghdr m = {
            .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c.space};

        if (recvmsg(g->pair[0], &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof number)
            return;
        take_message(g, number, &m);
    }
}

/* Swallow what a client still sends, so that closing does not take its last words from it. */
static void linger(struct esp_guard *g)
{
    char waste[4096];

    for (uint32_t i = 0; i < g->n; i++) {
        struct pollfd p = {.fd = g->fds[i], .events = POLLIN};
        int rounds = 64;

        while (p.fd >= 0 && rounds-- > 0 && recv(p.fd, waste, sizeof waste, MSG_DONTWAIT) > 0)
            ;
    }
}

uint32_t esp_guard_tell(struct esp_guard *g)
{
    uint32_t told = 0;
    esp_error err;

    esp_guard_receive(g);
    for (uint32_t i = 0; i < g->n; i++) {
        const struct slot *s = &g->slots[i];

        if (g->fds[i] < 0)
            continue;
        if (atomic_load(&s->speak) && s->len <= MAX_WORDS && s->len)
            told += send(g->fds[i], s->words, s->len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)s->len;
        shutdown(g->fds[i], SHUT_WR);
    }
    linger(g);
    for (uint32_t i = 0; i < g->n; i++) {
        if (g->fds[i] >= 0)
            close(g->fds[i]);
        g->fds[i] = -1;
    }
    close_pair(g);
    open_pair(g,
              &err); /* without it the next child has nobody to tell, which costs its clients their words */
    return told;
}
