/*
 * See the header.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

enum {
    MAX_REPLY = 64 << 20,
    PATIENCE = TEST_SANITIZED ? 300 : 60, /* seconds of one reply */
    WAIT_SECONDS = 2 * PATIENCE
};

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

struct running {
    pthread_t thread;
    struct server *s;
    esp_model *model;
    esp_engine *engine;
    esp_status status;
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_for(double seconds)
{
    usleep((useconds_t)(seconds * 1e6));
}

/* ---- the server ---- */

static esp_status load(void *user, struct esp_serve_engine *out, esp_error *err)
{
    struct running *r = user;
    const esp_model_opts mo = {.threads = 1};

    pause_for(r->s->load_delay);
    ESP_TRY(esp_model_open(&r->model, *r->s->model == '/' ? r->s->model : test_path(r->s->model), &mo, err));
    ESP_TRY(esp_engine_open(&r->engine, r->model, &r->s->engine, err));
    *out = (struct esp_serve_engine){.model = r->model,
                                     .engine = r->engine,
                                     .context = r->s->engine.context,
                                     .rows = r->s->engine.rows,
                                     .queue = r->s->engine.queue,
                                     .kv_tokens = r->s->engine.kv_tokens,
                                     .device = r->s->device};
    return ESP_OK;
}

static void unload(void *user)
{
    struct running *r = user;

    esp_engine_close(r->engine);
    esp_model_close(r->model);
    r->engine = NULL;
    r->model = NULL;
}

static unsigned poll_stop(void *user)
{
    const struct running *r = user;

    return __atomic_load_n(&r->s->stop, __ATOMIC_SEQ_CST) ? ESP_SERVE_STOP : 0;
}

static void on_listening(void *user, const char *url)
{
    struct running *r = user;
    const char *colon = strrchr(url, ':');

    if (strncmp(url, "unix:", 5) == 0)
        snprintf(r->s->socket, sizeof r->s->socket, "%s", url + 5);
    else
        __atomic_store_n(&r->s->port, (uint16_t)strtol(colon + 1, NULL, 10), __ATOMIC_SEQ_CST);
}

static void on_ready(void *user)
{
    const struct running *r = user;

    __atomic_store_n(&r->s->ready, 1, __ATOMIC_SEQ_CST);
}

static void on_log(void *user, const char *line)
{
    const struct running *r = user;

    pthread_mutex_lock(&log_lock);
    esp_strbuf_puts(&r->s->log, line);
    esp_strbuf_putc(&r->s->log, '\n');
    pthread_mutex_unlock(&log_lock);
}

static void *run(void *arg)
{
    struct running *r = arg;

    r->status = esp_serve(&r->s->o, &r->s->err);
    if (r->status != ESP_OK)
        __atomic_store_n(&r->s->failed, 1, __ATOMIC_SEQ_CST);
    esp_engine_close(r->engine);
    esp_model_close(r->model);
    return NULL;
}

void server_init(struct server *s)
{
    memset(s, 0, sizeof *s);
    esp_serve_defaults(&s->o);
    s->o.port = 0;
    s->o.model_id = "demo";
    s->model = "models/demo";
    s->engine = (esp_engine_opts){.context = 1024,
                                  .max_seqs = 16,
                                  .rows = 3,
                                  .queue = 8,
                                  .kv_tokens = 4096,
                                  .chunk = 64,
                                  .snapshots = 4,
                                  .checkpoints = 32,
                                  .admission = ESP_ADMISSION_WORST};
    esp_strbuf_init(&s->log, 1 << 20);
}

void server_start(struct server *s)
{
    struct running *r = calloc(1, sizeof *r);
    const double until = now() + WAIT_SECONDS;

    assert_non_null(r);
    signal(SIGPIPE, SIG_DFL); /* a server must not need its caller to ignore it */
    r->s = s;
    s->thread = r;
    s->o.user = r;
    s->o.load = load;
    s->o.unload = s->no_unload ? NULL : unload;
    s->o.poll = poll_stop;
    s->o.listening = on_listening;
    s->o.ready = on_ready;
    s->o.log = on_log;
    assert_int_equal(pthread_create(&r->thread, NULL, run, r), 0);
    while (!__atomic_load_n(&s->ready, __ATOMIC_SEQ_CST) && !__atomic_load_n(&s->failed, __ATOMIC_SEQ_CST)) {
        if (s->load_delay > 0 && __atomic_load_n(&s->port, __ATOMIC_SEQ_CST))
            return;
        assert_true(now() < until);
        pause_for(0.005);
    }
}

void server_ask_stop(struct server *s)
{
    __atomic_store_n(&s->stop, 1, __ATOMIC_SEQ_CST);
}

esp_status server_join(struct server *s)
{
    struct running *r = s->thread;
    esp_status status;

    pthread_join(r->thread, NULL);
    status = r->status;
    esp_strbuf_free(&s->log);
    free(r);
    return status;
}

void server_stop(struct server *s)
{
    esp_status status;

    server_ask_stop(s);
    status = server_join(s);
    if (status != ESP_OK)
        fail_msg("the server ended with: %s", s->err.message);
}

bool server_logged(struct server *s, const char *text)
{
    const double until = now() + 10;
    bool found = false;

    while (!found && now() < until) {
        pthread_mutex_lock(&log_lock);
        found = strstr(esp_strbuf_str(&s->log), text) != NULL;
        pthread_mutex_unlock(&log_lock);
        if (!found)
            pause_for(0.01);
    }
    return found;
}

int server_log_count(struct server *s, const char *text)
{
    int n = 0;

    pthread_mutex_lock(&log_lock);
    for (const char *p = esp_strbuf_str(&s->log); (p = strstr(p, text)); p++)
        n++;
    pthread_mutex_unlock(&log_lock);
    return n;
}

/* ---- bytes ---- */

int client_connect(const struct server *s)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(s->port)};
    struct sockaddr_un u = {.sun_family = AF_UNIX};
    int fd;

    if (s->socket[0]) {
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        snprintf(u.sun_path, sizeof u.sun_path, "%s", s->socket);
        return connect(fd, (struct sockaddr *)&u, sizeof u) == 0 ? fd : (close(fd), -1);
    }
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    return connect(fd, (struct sockaddr *)&a, sizeof a) == 0 ? fd : (close(fd), -1);
}

void client_send(int fd, const char *text)
{
    size_t len = strlen(text);

    while (len) {
        const ssize_t n = send(fd, text, len, MSG_NOSIGNAL);

        if (n <= 0)
            return; /* the peer has closed: what it said comes with the next read */
        text += n;
        len -= (size_t)n;
    }
}

/* One more piece; false at the end or after the time. */
static bool read_more(int fd, struct esp_strbuf *out, double until)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    const double left = until - now();
    char piece[4096];
    ssize_t n;

    if (left <= 0 || poll(&p, 1, (int)(left * 1000) + 1) <= 0)
        return false;
    n = recv(fd, piece, sizeof piece, 0);
    return n > 0 && esp_strbuf_add(out, piece, (size_t)n);
}

bool client_until(int fd, struct esp_strbuf *out, const char *text, double seconds)
{
    const double until = now() + seconds;

    while (!strstr(esp_strbuf_str(out), text))
        if (!read_more(fd, out, until))
            return false;
    return true;
}

/* ---- replies ---- */

const char *reply_header(const struct reply *r, const char *name)
{
    static char buffers[4][1024];
    static unsigned next;
    const size_t len = strlen(name);
    const char *line = r->head;

    while ((line = strstr(line, "\r\n")) != NULL) {
        line += 2;
        if (strncasecmp(line, name, len) == 0 && line[len] == ':') {
            char *b = buffers[next++ % 4];

            snprintf(b, sizeof buffers[0], "%.*s", (int)strcspn(line + len + 2, "\r"), line + len + 2);
            return b;
        }
    }
    return NULL;
}

/* The body behind the head, as its headers frame it; bytes beyond it are put back by not being read. */
static void read_body(int fd, struct reply *r, double until)
{
    struct esp_strbuf b, raw;
    const char *length = reply_header(r, "Content-Length");
    const bool chunked = reply_header(r, "Transfer-Encoding") != NULL;
    char c;

    esp_strbuf_init(&b, MAX_REPLY);
    esp_strbuf_init(&raw, MAX_REPLY);
    if (chunked) {
        for (;;) {
            size_t n;

            esp_strbuf_clear(&raw);
            while (!strstr(esp_strbuf_str(&raw), "\r\n") && now() < until) {
                if (recv(fd, &c, 1, 0) != 1)
                    break;
                esp_strbuf_putc(&raw, c);
            }
            n = (size_t)strtoul(esp_strbuf_str(&raw), NULL, 16);
            if (raw.len < 3)
                break; /* cut off: the body so far counts */
            for (size_t i = 0; i < n + 2; i++) {
                if (recv(fd, &c, 1, 0) != 1)
                    break;
                if (i < n)
                    esp_strbuf_putc(&b, c);
            }
            if (n == 0)
                break;
        }
    } else {
        const size_t n = length ? (size_t)strtoul(length, NULL, 10) : SIZE_MAX;

        while (b.len < n && recv(fd, &c, 1, 0) == 1)
            esp_strbuf_putc(&b, c);
    }
    esp_strbuf_free(&raw);
    r->len = b.len;
    r->body = esp_strbuf_take(&b);
    if (!r->body)
        r->body = esp_strndup("", 0);
}

struct reply client_reply(int fd, bool head_only)
{
    const struct timeval tv = {.tv_sec = PATIENCE};
    const double until = now() + PATIENCE;
    struct reply r = {0};
    struct esp_strbuf head;
    char c;

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    esp_strbuf_init(&head, 1 << 20);
    while (!strstr(esp_strbuf_str(&head), "\r\n\r\n") && recv(fd, &c, 1, 0) == 1)
        esp_strbuf_putc(&head, c);
    if (strncmp(esp_strbuf_str(&head), "HTTP/1.1 100", 12) == 0) {
        esp_strbuf_free(&head);
        return client_reply(fd, head_only);
    }
    if (head.len < 12)
        fail_msg("no reply, but '%s'", esp_strbuf_str(&head));
    r.status = (int)strtol(head.data + 9, NULL, 10);
    r.head = esp_strbuf_take(&head);
    if (head_only || r.status == 204)
        r.body = esp_strndup("", 0);
    else
        read_body(fd, &r, until);
    r.json = json_loads(r.body, 0, NULL);
    return r;
}

void reply_free(struct reply *r)
{
    esp_free(r->head);
    esp_free(r->body);
    json_decref(r->json);
    memset(r, 0, sizeof *r);
}

struct reply client_do(const struct server *s, const char *method, const char *path, const char *headers,
                       const char *body)
{
    const int fd = client_connect(s);
    struct esp_strbuf b;
    struct reply r;

    assert_true(fd >= 0);
    esp_strbuf_init(&b, MAX_REPLY);
    esp_strbuf_printf(&b, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s", method, path, headers ? headers : "");
    if (body)
        esp_strbuf_printf(&b, "Content-Length: %zu\r\n", strlen(body));
    esp_strbuf_puts(&b, "\r\n");
    if (body)
        esp_strbuf_puts(&b, body);
    client_send(fd, esp_strbuf_str(&b));
    esp_strbuf_free(&b);
    r = client_reply(fd, strcmp(method, "HEAD") == 0);
    close(fd);
    return r;
}

struct reply client_post(const struct server *s, const char *path, const char *body, int status)
{
    struct reply r = client_do(s, "POST", path, NULL, body);

    if (r.status != status)
        fail_msg("POST %s %s: %d instead of %d: %s", path, body, r.status, status, r.body);
    return r;
}

struct reply client_postf(const struct server *s, const char *path, int status, const char *fmt, ...)
{
    char body[65536];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(body, sizeof body, fmt, ap);
    va_end(ap);
    for (char *c = body; *c; c++)
        if (*c == '\'')
            *c = '"';
    return client_post(s, path, body, status);
}

/* ---- JSON ---- */

const json_t *at(const json_t *v, const char *path)
{
    char key[128];

    while (v && *path) {
        const size_t n = strcspn(path, ".");

        snprintf(key, sizeof key, "%.*s", (int)n, path);
        v = json_is_array(v) ? json_array_get(v, (size_t)strtoul(key, NULL, 10)) : json_object_get(v, key);
        path += n + (path[n] == '.');
    }
    return v;
}

const char *text_at(const json_t *v, const char *path)
{
    const char *s = json_string_value(at(v, path));

    return s ? s : "";
}

int64_t int_at(const json_t *v, const char *path)
{
    const json_t *n = at(v, path);

    return json_is_integer(n) ? json_integer_value(n) : -1;
}

bool frame(const struct reply *r, size_t i, json_t **data, const char **event)
{
    static char names[4][128];
    static unsigned next;
    const char *p = r->body;
    char *name = names[next++ % 4];

    while (i-- && p) {
        p = strstr(p, "\n\n");
        p = p ? p + 2 : NULL;
    }
    *data = NULL;
    *name = '\0';
    if (event)
        *event = name;
    if (!p || !*p)
        return false;
    if (strncmp(p, "event: ", 7) == 0) {
        snprintf(name, sizeof names[0], "%.*s", (int)strcspn(p + 7, "\n"), p + 7);
        p = strchr(p, '\n') + 1;
    }
    if (strncmp(p, "data: {", 7) == 0)
        *data = json_loadb(p + 6, strcspn(p, "\n") - 6, 0, NULL);
    return true;
}
