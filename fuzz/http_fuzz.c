/*
 * Connections as a hostile client makes them: byte 0 says how requests are answered, and the rest is sent in
 * pieces, cut at bytes 0xfe; the last piece may end with the client gone or half closed. Every request that
 * was handed over ends in a reply or in on_gone, once, and no connection stays.
 *
 * SPDX-License-Identifier: MIT
 */
#include <event2/event.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "serve/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_OPEN = 64, TURNS = 4 };

static struct world {
    struct event_base *base;
    struct esp_http *http;
    char path[100];
    unsigned how;                            /* bits: stream, late, long, close early */
    struct esp_http_request *open[MAX_OPEN]; /* handed over, not ended */
    size_t n_open, n_handled, n_refused;
} w;

static void check(bool holds)
{
    if (!holds)
        __builtin_trap();
}

static void forget(const struct esp_http_request *r)
{
    size_t i = 0;

    while (i < w.n_open && w.open[i] != r)
        i++;
    check(i < w.n_open);
    w.open[i] = w.open[--w.n_open];
}

static void on_gone(void *owner, bool slow)
{
    (void)slow;
    forget(owner);
}

static void answer(struct esp_http_request *r)
{
    static const char text[3000] = "data: x\n\n";

    if (!(w.how & 1)) {
        forget(r);
        esp_http_reply(r, 200, "text/plain", text, w.how & 4 ? sizeof text : 5);
        return;
    }
    esp_http_begin(r, 200, "text/event-stream");
    for (int i = 0; i < (w.how & 4 ? 100 : 3); i++)
        if (!esp_http_write(r, text, sizeof text))
            return; /* on_gone has been called */
    forget(r);
    esp_http_end(r);
}

static void handle(void *user, struct esp_http_request *r)
{
    (void)user;
    check(r->head.path[0] == '/' && r->body[r->body_len] == '\0' && w.n_open < MAX_OPEN);
    check(r->body_len <= 2048 && r->head.n_header <= ESP_HTTP_MAX_HEADERS);
    w.n_handled++;
    w.open[w.n_open++] = r;
    r->owner = r;
    r->on_gone = on_gone;
    esp_http_header(r, "x-test", "1");
    if (!(w.how & 2))
        answer(r);
}

static void refuse(void *user, struct esp_http_request *r, int status, const char *why)
{
    (void)user;
    check(status >= 400 && status < 600 && why[0]);
    w.n_refused++;
    esp_http_reply(r, status, "text/plain", why, strlen(why));
}

static void turn(void)
{
    for (int i = 0; i < TURNS; i++)
        event_base_loop(w.base, EVLOOP_NONBLOCK);
}

static void open_world(void)
{
    const struct esp_http_opts o = {.max_head = 1024,
                                    .max_uri = 256,
                                    .max_body = 2048,
                                    .max_output = 64 << 10,
                                    .max_connections = 4,
                                    .backlog = 4,
                                    .header_timeout = 5,
                                    .body_timeout = 5,
                                    .write_timeout = 5,
                                    .keepalive_timeout = 5,
                                    .handle = handle,
                                    .refuse = refuse};
    char host[128];
    uint16_t port;

    signal(SIGPIPE, SIG_IGN); /* as the program does: a client that is gone is a failed write */
    snprintf(w.path, sizeof w.path, "/tmp/espalier_fuzz.%ld", (long)getpid());
    snprintf(host, sizeof host, "unix:%s", w.path);
    w.base = event_base_new();
    check(w.base && esp_http_open(&w.http, w.base, &o, NULL) == ESP_OK &&
          esp_http_listen(w.http, host, 0, &port, NULL) == ESP_OK);
}

static int connect_world(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(a.sun_path, sizeof a.sun_path, "%s", w.path);
    check(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    turn();
    return fd;
}

static void drain_client(int fd)
{
    char buf[65536];

    while (recv(fd, buf, sizeof buf, 0) > 0)
        turn();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fd;

    if (size < 2)
        return 0;
    if (!w.base)
        open_world();
    w.how = data[0];
    data++;
    size--;
    fd = connect_world();
    while (size) {
        const uint8_t *cut = memchr(data, 0xfe, size);
        const size_t n = cut ? (size_t)(cut - data) : size;

        if (n && send(fd, data, n, MSG_NOSIGNAL) < 0)
            break;
        turn();
        if (w.n_open && w.how & 2)
            answer(w.open[0]);
        if (!(w.how & 8))
            drain_client(fd);
        data += n + (cut != NULL);
        size -= n + (cut != NULL);
    }
    if (w.how & 16)
        shutdown(fd, SHUT_WR);
    turn();
    while (w.n_open && w.how & 32)
        answer(w.open[0]);
    close(fd);
    turn();
    check(w.n_open == 0 && esp_http_connections(w.http) == 0);
    return 0;
}
