/*
 * A server over the bundled model, with requests of every dialect: the first byte chooses the route, the rest
 * is the body. Whatever it says, the answer is whole, its status is one that the API knows, bodies are JSON
 * of the family's shape, streams end in order, and the server answers on.
 *
 * SPDX-License-Identifier: MIT
 */
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/status.h"
#include "base/strbuf.h"
#include "serve/serve.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_REPLY = 64 << 20, CONTEXT = 96 };

static struct running {
    pthread_t thread;
    char path[100];
    int ready, stop;
    esp_model *model;
    esp_engine *engine;
} run;

static const char *const routes[] = {"/v1/chat/completions",
                                     "/v1/completions",
                                     "/v1/messages",
                                     "/v1/messages/count_tokens",
                                     "/v1/responses",
                                     "/v1/responses/input_tokens",
                                     "/tokenize",
                                     "/detokenize",
                                     "/apply-template",
                                     "/cancel",
                                     "/v1/adapters",
                                     "/v1/embeddings",
                                     "/v1/chat/completions/input_tokens"};

static void check(bool holds)
{
    if (!holds)
        __builtin_trap();
}

/* ---- the server ---- */

static esp_status load(void *user, struct esp_serve_engine *out, esp_error *err)
{
    const esp_engine_opts o = {.context = CONTEXT,
                               .max_seqs = 16,
                               .rows = 4,
                               .queue = 16,
                               .kv_tokens = 4096,
                               .chunk = 64,
                               .snapshots = 2,
                               .checkpoints = 4};

    (void)user;
    ESP_TRY(esp_model_open(&run.model, ESP_SOURCE_DIR "/models/demo", &(esp_model_opts){.threads = 1}, err));
    ESP_TRY(esp_engine_open(&run.engine, run.model, &o, err));
    *out = (struct esp_serve_engine){.model = run.model,
                                     .engine = run.engine,
                                     .context = o.context,
                                     .rows = o.rows,
                                     .queue = o.queue,
                                     .kv_tokens = o.kv_tokens};
    return ESP_OK;
}

static unsigned poll_stop(void *user)
{
    (void)user;
    return __atomic_load_n(&run.stop, __ATOMIC_SEQ_CST) ? ESP_SERVE_STOP : 0;
}

static void on_ready(void *user)
{
    (void)user;
    __atomic_store_n(&run.ready, 1, __ATOMIC_SEQ_CST);
}

static void *serve(void *arg)
{
    struct esp_serve_opts o;
    esp_error err;

    (void)arg;
    esp_serve_defaults(&o);
    o.hosts[0] = run.path;
    o.n_host = 1;
    o.model_id = "demo";
    o.max_tokens = 2;
    o.response_bytes = 1 << 20;
    o.replay_bytes = 1 << 20;
    o.max_body = 1 << 20;
    o.load = load;
    o.poll = poll_stop;
    o.ready = on_ready;
    check(esp_serve(&o, &err) == ESP_OK);
    esp_engine_close(run.engine);
    esp_model_close(run.model);
    return NULL;
}

static void stop(void)
{
    __atomic_store_n(&run.stop, 1, __ATOMIC_SEQ_CST);
    pthread_join(run.thread, NULL);
}

static void start(void)
{
    signal(SIGPIPE, SIG_IGN); /* as the program does: a client that is gone is a failed write */
    snprintf(run.path, sizeof run.path, "unix:/tmp/espalier_request.%ld", (long)getpid());
    check(pthread_create(&run.thread, NULL, serve, NULL) == 0);
    while (!__atomic_load_n(&run.ready, __ATOMIC_SEQ_CST))
        usleep(1000);
    atexit(stop);
}

/* ---- the client ---- */

static void send_all(int fd, const char *s, size_t len)
{
    while (len) {
        const ssize_t n = send(fd, s, len, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR) /* the fuzzer's alarm */
            continue;
        if (n <= 0)
            return;
        s += n;
        len -= (size_t)n;
    }
}

/* Send the request and read until the server closes. */
static void ask(struct esp_strbuf *out, const char *route, const char *body, size_t len)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char head[300], piece[16384];
    ssize_t n;

    snprintf(a.sun_path, sizeof a.sun_path, "%.90s", run.path + 5);
    check(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    n = snprintf(head, sizeof head,
                 "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
                 route, len);
    send_all(fd, head, (size_t)n);
    send_all(fd, body, len);
    do {
        n = recv(fd, piece, sizeof piece, 0);
        if (n > 0)
            check(esp_strbuf_add(out, piece, (size_t)n));
    } while (n > 0 || (n < 0 && errno == EINTR));
    close(fd);
}

static void check_status(long status)
{
    static const int known[] = {200, 201, 204, 400, 401, 403, 404, 405,
                                409, 413, 415, 429, 500, 501, 503, 529};
    bool found = false;

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        found = found || known[i] == status;
    check(found && status != 500);
}

static void check_reply(const struct esp_strbuf *b, const char *route)
{
    const char *text = esp_strbuf_str(b), *body = strstr(text, "\r\n\r\n");
    long status;
    json_t *v = NULL;

    check(b->len > 12 && strncmp(text, "HTTP/1.1 ", 9) == 0 && body);
    status = strtol(text + 9, NULL, 10);
    check_status(status);
    body += 4;
    if (strstr(text, "text/event-stream") && strstr(text, "text/event-stream") < body) {
        check(b->len > 5 && strcmp(text + b->len - 5, "0\r\n\r\n") == 0); /* the last chunk has come */
        return;
    }
    v = json_loadb(body, b->len - (size_t)(body - text), JSON_ALLOW_NUL, NULL); /* a token may be a zero */
    check(v != NULL);
    if (status >= 400) {
        const json_t *e = json_object_get(v, "error");

        check(json_is_string(json_object_get(e, "message")) && json_is_string(json_object_get(e, "type")));
        if (strncmp(route, "/v1/messages", 12) == 0)
            check(strcmp(json_string_value(json_object_get(v, "type")), "error") == 0);
    }
    json_decref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *route;
    struct esp_strbuf b;

    if (size < 2)
        return 0;
    if (!run.ready)
        start();
    route = routes[data[0] % (sizeof routes / sizeof routes[0])];
    esp_strbuf_init(&b, MAX_REPLY);
    ask(&b, route, (const char *)data + 1, size - 1);
    check_reply(&b, route);
    esp_strbuf_free(&b);
    return 0;
}
