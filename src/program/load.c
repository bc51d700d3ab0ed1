/*
 * See the header. A client is a slot: it keeps its connection while the server does, and a new one is made
 * for those that will leave or stall. All bounds are of the reply parser and of MAX_TIMES.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/load.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"

#include "program/load_net.h"
#include "program/load_reply.h"

enum { MAX_TIMES = 1 << 24, MAX_TEXT = 64 << 20, MAX_PHASE = 32, DEFAULT_GRACE = 60, DEFAULT_STALL = 2 };

enum kind { STAYS, LEAVES, STALLS };

struct run;

struct client {
    struct run *run;
    struct bufferevent *bev; /* NULL: not connected */
    struct event *timer;     /* the end of a stall, or a client that leaves before anything came */
    struct esp_reply reply;
    struct esp_strbuf text;
    uint64_t number;
    enum kind kind;
    uint64_t phase; /* leave or stall after so many texts */
    uint64_t n_text, tokens;
    double due, last, ttft;
    bool busy, done_mark, failed, stopped;
};

struct run {
    const struct esp_load_opts *o;
    struct esp_load_report *r;
    struct event_base *base;
    struct client *clients; /* [concurrency] */
    struct event *clock, *end;
    struct esp_strbuf body, request;
    uint64_t n_started;
    struct esp_load_times due; /* open way: times of the requests without a free client, from first_due on */
    size_t first_due;
    double start, next_due;
    bool over, memory; /* memory: there was none left */
};

static double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool interrupted(const struct run *run)
{
    return run->o->interrupted && run->o->interrupted() != 0;
}

static size_t waiting(const struct run *run)
{
    return run->due.n - run->first_due;
}

/* A number in [0, 1) that belongs to a request and a use. */
static double chance(const struct run *run, uint64_t number, uint64_t use)
{
    return (double)(esp_hash_u64(run->o->seed ^ esp_hash_u64(number * 8 + use)) >> 11) * 0x1p-53;
}

static void note(struct run *run, struct esp_load_times *t, double seconds)
{
    if (t->n == t->cap) {
        const size_t cap = t->cap ? 2 * t->cap : 4096;
        double *v = cap <= MAX_TIMES ? esp_realloc(t->v, cap * sizeof *v) : NULL;

        if (!v) {
            run->memory = true;
            return;
        }
        t->v = v;
        t->cap = cap;
    }
    t->v[t->n++] = seconds;
}

static void wait_for(struct event *timer, double seconds)
{
    const double s = seconds > 0 ? seconds : 0;
    const struct timeval tv = {.tv_sec = (time_t)s, .tv_usec = (suseconds_t)((s - floor(s)) * 1e6)};

    event_add(timer, &tv);
}

/* ---- what comes ---- */

static void error_of(struct client *c, const char *what, const char *more, size_t len)
{
    struct esp_load_report *r = c->run->r;

    if (!r->first_error[0])
        snprintf(r->first_error, sizeof r->first_error, "request %llu: %s%.*s", (unsigned long long)c->number,
                 what, (int)(len < 180 ? len : 180), more);
    c->failed = true;
}

static void add_text(struct client *c, const json_t *v)
{
    const char *s = json_string_value(v);

    if (s)
        esp_strbuf_add(&c->text, s, json_string_length(v));
}

static void on_text(struct client *c)
{
    const double now = seconds_now();

    note(c->run, c->n_text ? &c->run->r->gap : &c->run->r->ttft, now - (c->n_text ? c->last : c->due));
    if (!c->n_text)
        c->ttft = now - c->due;
    c->last = now;
    c->n_text++;
    c->run->r->events++;
}

static void on_data(void *user, const char *s, size_t len)
{
    struct client *c = user;
    const size_t before = c->text.len;
    const json_t *choice, *delta, *usage, *timings;
    json_t *v;

    if (strcmp(s, "[DONE]") == 0) {
        c->done_mark = true;
        return;
    }
    v = json_loadb(s, len, 0, NULL);
    if (!v || json_object_get(v, "error")) {
        error_of(c, v ? "error in the stream: " : "no JSON in the stream: ", s, len);
        json_decref(v);
        return;
    }
    choice = json_array_get(json_object_get(v, "choices"), 0);
    delta = json_object_get(choice, "delta");
    add_text(c, json_object_get(choice, "text"));
    add_text(c, json_object_get(delta, "content"));
    add_text(c, json_object_get(delta, "reasoning_content"));
    add_text(c, json_object_get(
                    json_object_get(json_array_get(json_object_get(delta, "tool_calls"), 0), "function"),
                    "arguments"));
    timings = json_object_get(v, "timings");
    if (timings && c->n_text)
        note(c->run, &c->run->r->outside,
             c->ttft - (json_number_value(json_object_get(timings, "prompt_ms")) +
                        json_number_value(json_object_get(timings, "queue_ms"))) /
                           1000);
    usage = json_object_get(json_object_get(v, "usage"), "completion_tokens");
    if (json_is_integer(usage))
        c->tokens = (uint64_t)json_integer_value(usage);
    if (c->text.len > before)
        on_text(c);
    json_decref(v);
}

/* ---- the life of a client ---- */

static void next(struct client *c);

static void disconnect(struct client *c)
{
    if (c->bev)
        bufferevent_free(c->bev);
    c->bev = NULL;
    event_del(c->timer);
}

/* The request is over, however it ended. */
static void settle(struct client *c)
{
    struct run *run = c->run;

    c->busy = false;
    if (!c->bev || c->kind != STAYS || !c->reply.keep_alive || c->reply.state != ESP_REPLY_DONE)
        disconnect(c);
    run->r->seconds = seconds_now() - run->start;
    next(c);
}

static void count_whole(struct client *c)
{
    const struct esp_load_opts *o = c->run->o;
    struct esp_load_report *r = c->run->r;

    r->whole++;
    r->tokens += c->tokens;
    note(c->run, &r->total, seconds_now() - c->due);
    if (o->whole && !o->whole(o->user, c->number, esp_strbuf_str(&c->text), c->text.len)) {
        if (!r->different++ && !r->first_error[0])
            snprintf(r->first_error, sizeof r->first_error, "request %llu: another text: %.160s",
                     (unsigned long long)c->number, esp_strbuf_str(&c->text));
    }
}

/* The reply is complete, or the connection is gone. */
static void finished(struct client *c)
{
    struct esp_load_report *r = c->run->r;
    const bool whole = esp_reply_end(&c->reply);

    if (!whole && c->stopped) {
        r->stalled++;
        r->dropped++;
    } else if (!whole) {
        error_of(c, c->reply.status ? "the connection broke inside the reply" : "the connection broke", "",
                 0);
        r->errors++;
    } else if (c->reply.status == 429 || c->reply.status == 503) {
        r->refused++;
    } else if (c->reply.status != 200 || c->failed || !c->done_mark) {
        char status[32];

        snprintf(status, sizeof status, "status %d: ", c->reply.status);
        error_of(c, c->reply.status != 200 ? status : "no [DONE]", esp_strbuf_str(&c->reply.body),
                 c->reply.body.len);
        r->errors++;
    } else {
        count_whole(c);
    }
    settle(c);
}

/* Those that leave or stall have come to their time. */
static bool interrupts(struct client *c)
{
    if (c->kind == STAYS || c->stopped || c->n_text < c->phase || c->reply.state == ESP_REPLY_DONE)
        return false;
    if (c->kind == LEAVES && c->phase) {
        c->run->r->left++;
        settle(c);
        return true;
    }
    if (c->kind == STALLS && c->n_text) {
        c->stopped = true;
        bufferevent_disable(c->bev, EV_READ);
        wait_for(c->timer, c->run->o->stall_seconds > 0 ? c->run->o->stall_seconds : DEFAULT_STALL);
        return true;
    }
    return false;
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct client *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    struct evbuffer_iovec piece;

    if (!c->busy)
        evbuffer_drain(in, evbuffer_get_length(in)); /* nothing was asked */
    while (c->busy && evbuffer_peek(in, -1, NULL, &piece, 1) > 0 && piece.iov_len) {
        const size_t used = esp_reply_feed(&c->reply, piece.iov_base, piece.iov_len);

        evbuffer_drain(in, used);
        if (c->reply.state == ESP_REPLY_BAD) {
            error_of(c, "the reply is malformed", "", 0);
            disconnect(c);
        }
        if (c->reply.state == ESP_REPLY_DONE || c->reply.state == ESP_REPLY_BAD) {
            finished(c);
            return;
        }
        if (interrupts(c))
            return;
    }
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct client *c = arg;

    (void)bev;
    if (!(what & (BEV_EVENT_EOF | BEV_EVENT_ERROR)))
        return;
    if (!c->busy) { /* kept alive, and closed by the server */
        disconnect(c);
        return;
    }
    disconnect(c);
    finished(c);
}

/* Whether the server has closed on a client that did not read: its end lies behind what was sent before. */
static bool was_dropped(const struct client *c)
{
    char piece[16384];
    ssize_t n;

    do
        n = recv(bufferevent_getfd(c->bev), piece, sizeof piece, MSG_DONTWAIT);
    while (n > 0);
    return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct client *c = arg;

    (void)fd;
    (void)what;
    if (!c->busy)
        return;
    if (c->kind == STALLS) {
        c->run->r->stalled++;
        c->run->r->dropped += was_dropped(c);
    } else {
        c->run->r->left++;
    }
    settle(c);
}

static bool connect_client(struct client *c)
{
    const int fd = esp_load_connect(c->run->o->target, c->kind == STALLS);

    if (fd < 0)
        return false;
    c->bev = bufferevent_socket_new(c->run->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!c->bev) {
        close(fd);
        return false;
    }
    bufferevent_setcb(c->bev, on_read, NULL, on_event, c);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    return true;
}

static enum kind kind_of(const struct run *run, uint64_t number)
{
    const double x = chance(run, number, 0);

    return x < run->o->leave ? LEAVES : x < run->o->leave + run->o->stall ? STALLS : STAYS;
}

static void send_request(struct client *c, double due)
{
    struct run *run = c->run;
    const struct esp_load_opts *o = run->o;

    c->number = run->n_started++;
    c->kind = kind_of(run, c->number);
    c->phase = (uint64_t)(chance(run, c->number, 1) * MAX_PHASE);
    c->n_text = c->tokens = 0;
    c->due = due;
    c->busy = true;
    c->done_mark = c->failed = c->stopped = false;
    esp_reply_reset(&c->reply);
    esp_strbuf_clear(&c->text);
    run->r->sent++;
    if (c->kind != STAYS)
        disconnect(c);
    if (!c->bev && !connect_client(c)) {
        finished(c);
        return;
    }
    esp_strbuf_clear(&run->body);
    esp_strbuf_clear(&run->request);
    o->body(o->user, c->number, &run->body);
    esp_load_request(&run->request, o->target, o->key, o->path, &run->body);
    bufferevent_write(c->bev, esp_strbuf_str(&run->request), run->request.len);
    if (c->kind == LEAVES && c->phase == 0)
        wait_for(c->timer, 0.02 * chance(run, c->number, 2));
}

static bool more_to_send(const struct run *run)
{
    const struct esp_load_opts *o = run->o;

    return !(o->requests && run->n_started + waiting(run) >= o->requests) &&
           !(o->seconds > 0 && seconds_now() - run->start >= o->seconds);
}

/* Nothing runs, waits or comes: the end. */
static void look_whether_over(struct run *run)
{
    if (more_to_send(run) || waiting(run))
        return;
    for (uint32_t i = 0; i < run->o->concurrency; i++)
        if (run->clients[i].busy)
            return;
    run->over = true;
    event_base_loopbreak(run->base);
}

/* A client is free. Deferred to the loop, so that a server that closes at once is no recursion. */
static void on_free(evutil_socket_t fd, short what, void *arg)
{
    struct client *c = arg;
    struct run *run = c->run;

    (void)fd;
    (void)what;
    if (c->busy || run->over)
        return;
    if (run->o->rate > 0 && waiting(run)) {
        send_request(c, run->due.v[run->first_due++]);
    } else if (run->o->rate <= 0 && more_to_send(run)) {
        send_request(c, seconds_now());
    } else {
        look_whether_over(run);
    }
}

static void next(struct client *c)
{
    const struct timeval now = {0};

    event_base_once(c->run->base, -1, EV_TIMEOUT, on_free, c, &now);
}

/* ---- open way ---- */

static void on_clock(evutil_socket_t fd, short what, void *arg)
{
    struct run *run = arg;
    const double due = run->next_due;
    struct client *free_one = NULL;

    (void)fd;
    (void)what;
    if (!more_to_send(run)) {
        look_whether_over(run);
        return;
    }
    for (uint32_t i = 0; i < run->o->concurrency && !free_one; i++)
        if (!run->clients[i].busy)
            free_one = &run->clients[i];
    if (free_one)
        send_request(free_one, due);
    else
        note(run, &run->due, due);
    run->next_due = due - log(1 - chance(run, run->n_started + waiting(run), 3)) / run->o->rate;
    wait_for(run->clock, run->next_due - seconds_now());
}

/* ---- running ---- */

/* Time is over for what still runs. */
static void on_end(evutil_socket_t fd, short what, void *arg)
{
    struct run *run = arg;

    (void)fd;
    (void)what;
    for (uint32_t i = 0; i < run->o->concurrency; i++)
        if (run->clients[i].busy) {
            error_of(&run->clients[i], "no end within the time", "", 0);
            run->r->errors++;
        }
    event_base_loopbreak(run->base);
}

static esp_status open_clients(struct run *run, esp_error *err)
{
    const uint32_t n = run->o->concurrency;

    run->clients = esp_alloc_array(n, sizeof *run->clients);
    run->clock = evtimer_new(run->base, on_clock, run);
    run->end = evtimer_new(run->base, on_end, run);
    for (uint32_t i = 0; run->clients && i < n; i++) {
        struct client *c = &run->clients[i];

        c->run = run;
        esp_reply_init(&c->reply, on_data, c);
        esp_strbuf_init(&c->text, MAX_TEXT);
        c->timer = evtimer_new(run->base, on_timer, c);
        if (!c->timer)
            return esp_fail(err, ESP_ENOMEM, "no memory for %u clients", n);
    }
    if (!run->clients || !run->clock || !run->end)
        return esp_fail(err, ESP_ENOMEM, "no memory for %u clients", n);
    return ESP_OK;
}

static void close_run(struct run *run)
{
    for (uint32_t i = 0; run->clients && i < run->o->concurrency; i++) {
        struct client *c = &run->clients[i];

        if (c->bev)
            bufferevent_free(c->bev);
        if (c->timer)
            event_free(c->timer);
        if (c->run) {
            esp_reply_free(&c->reply);
            esp_strbuf_free(&c->text);
        }
    }
    if (run->clock)
        event_free(run->clock);
    if (run->end)
        event_free(run->end);
    esp_free(run->clients);
    esp_free(run->due.v);
    esp_strbuf_free(&run->body);
    esp_strbuf_free(&run->request);
    if (run->base)
        event_base_free(run->base);
}

static void start(struct run *run)
{
    const struct esp_load_opts *o = run->o;

    run->start = run->next_due = seconds_now();
    if (o->seconds > 0)
        wait_for(run->end, o->seconds + (o->grace > 0 ? o->grace : DEFAULT_GRACE));
    if (o->rate > 0)
        wait_for(run->clock, 0);
    for (uint32_t i = 0; o->rate <= 0 && i < o->concurrency; i++)
        next(&run->clients[i]);
}

esp_status esp_load_run(struct esp_load_report *out, const struct esp_load_opts *o, esp_error *err)
{
    struct run run = {.o = o, .r = out};
    esp_status s = ESP_OK;
    int fd;

    memset(out, 0, sizeof *out);
    esp_strbuf_init(&run.body, MAX_TEXT);
    esp_strbuf_init(&run.request, MAX_TEXT + (64 << 10));
    fd = esp_load_connect(o->target, false);
    if (fd < 0)
        return esp_fail(err, ESP_EIO, "no server at %s", o->target->shown);
    close(fd);
    run.base = event_base_new();
    s = run.base ? open_clients(&run, err) : esp_fail(err, ESP_ENOMEM, "no memory for an event loop");
    if (s == ESP_OK) {
        start(&run);
        while (!run.over && !interrupted(&run) && event_base_loop(run.base, EVLOOP_ONCE) == 0 &&
               !event_base_got_break(run.base))
            ;
        if (interrupted(&run))
            s = esp_fail(err, ESP_ECANCELLED, "interrupted");
        else if (run.memory)
            s = esp_fail(err, ESP_ENOMEM, "no memory for the times of %llu texts; measure a shorter time",
                         (unsigned long long)out->events);
    }
    close_run(&run);
    return s;
}

void esp_load_report_free(struct esp_load_report *r)
{
    esp_free(r->ttft.v);
    esp_free(r->gap.v);
    esp_free(r->total.v);
    esp_free(r->outside.v);
    memset(r, 0, sizeof *r);
}
