/*
 * The loop: listen, load on a thread, hand events from the service to generations, look around ten times a
 * second, and end in order.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/serve.h"

#include <event2/event.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"

#include "serve/adapters.h"
#include "serve/background.h"
#include "serve/content.h"
#include "serve/diag.h"
#include "serve/job.h"
#include "serve/keys.h"
#include "serve/life.h"
#include "serve/replay.h"
#include "serve/store.h"

enum { TICK_MS = 100 };

void esp_serve_defaults(struct esp_serve_opts *o)
{
    memset(o, 0, sizeof *o);
    o->port = 8080;
    o->backlog = 512;
    o->max_connections = 1024;
    o->http_threads = 2;
    o->log_level = ESP_LOG_ALL;
    o->max_body = 64u << 20;
    o->max_prompt_bytes = 32u << 20;
    o->stream_buffer = 4u << 20;
    o->max_messages = 10000;
    o->header_timeout = 10;
    o->body_timeout = o->write_timeout = 60;
    o->keepalive_timeout = 75;
    o->shutdown_timeout = 60;
    o->queue_timeout = 600;
    o->sse_ping = 5;
    o->strict_history = true;
    o->sampling = (struct esp_serve_sampling){NAN,
                                              NAN,
                                              NAN,
                                              NAN,
                                              NAN,
                                              NAN,
                                              -2,
                                              .typical_p = 1,
                                              .xtc_threshold = 0.1F,
                                              .dry_base = 1.75F,
                                              .dry_allowed_length = 2};
    memcpy(o->dry_breakers, (const char *const[]){"\n", ":", "\"", "*"}, 4 * sizeof o->dry_breakers[0]);
    o->n_dry_breaker = 4;
    o->thinking_budget = -1;
    o->replay_entries = 100000;
    o->diag_entries = 2048;
    o->replay_ttl = 7 * 86400;
    memcpy(o->effort_budgets, (const int64_t[]){512, 2048, 8192, -1, -1, -1}, sizeof o->effort_budgets);
    o->answer_reserve = 256;
    o->replay_bytes = 64u << 20;
    o->response_bytes = 64u << 20;
    o->response_ttl = 3600;
    o->late_system_user = true;
    o->model_id = "model";
}

/* ---- ending ---- */

/* Those that cannot have a row yet: with as many choices in front of them as there are rows. */
static void cancel_queued(struct esp_server *s)
{
    uint32_t before = 0;

    for (struct esp_job *j = s->jobs; j; j = j->next) {
        if (before >= s->rows && j->choices[0].first_at <= 0)
            esp_job_cancel(j, ESP_JOB_DRAINING);
        before += j->n_open;
    }
}

static void drain(struct esp_server *s)
{
    if (s->phase == ESP_PHASE_DRAINING)
        return;
    s->phase = ESP_PHASE_DRAINING;
    s->drain_until = esp_serve_now() + s->o.shutdown_timeout;
    esp_http_drain(s->http);
    esp_life_drain(s);
    if (!s->service)
        return;
    esp_service_drain(s->service);
    cancel_queued(s);
}

static void keep_draining(struct esp_server *s, double now)
{
    if (now > s->drain_until)
        for (struct esp_job *j = s->jobs; j; j = j->next)
            esp_job_cancel(j, ESP_JOB_DRAINING);
    if (!s->calls && !s->jobs && (esp_http_connections(s->http) == 0 || now > s->drain_until + 1))
        event_base_loopbreak(s->base);
    else if (now > s->drain_until + 10)
        event_base_loopbreak(s->base);
}

/* ---- now and then ---- */

esp_status esp_server_reload_keys(struct esp_server *s, esp_error *err)
{
    struct esp_keys *fresh = NULL;
    const esp_status status = esp_keys_open(&fresh, s->o.api_key, s->o.api_key_file, err);

    if (status == ESP_OK) {
        esp_keys_close(s->keys);
        s->keys = fresh;
        esp_server_log(s, json_pack("{s:s}", "event", "keys reloaded"));
    } else {
        esp_server_log(s, json_pack("{s:s,s:s}", "event", "keys kept", "error", err->message));
    }
    return status;
}

static struct esp_http_opts http_opts(struct esp_server *s)
{
    const struct esp_serve_opts *o = &s->o;

    return (struct esp_http_opts){.max_head = ESP_LIMIT_HTTP_HEAD,
                                  .max_uri = ESP_LIMIT_HTTP_URI,
                                  .max_body = (size_t)o->max_body,
                                  .max_output = (size_t)o->stream_buffer,
                                  .max_connections = o->max_connections,
                                  .backlog = o->backlog,
                                  .header_timeout = o->header_timeout,
                                  .body_timeout = o->body_timeout,
                                  .write_timeout = o->write_timeout,
                                  .keepalive_timeout = o->keepalive_timeout,
                                  .handle = esp_call_handle,
                                  .refuse = esp_call_refuse,
                                  .sent = esp_overhead_sent,
                                  .user = s,
                                  .guard = o->guard};
}

/* Limits and log level anew; what cannot be read leaves them as they are. */
static void reload_limits(struct esp_server *s)
{
    struct esp_serve_opts fresh = s->o, *o = &s->o;
    struct esp_http_opts http;
    esp_error err;

    if (!o->reload)
        return;
    if (o->reload(o->user, &fresh, &err) != ESP_OK) {
        esp_server_log(s, json_pack("{s:s,s:s}", "event", "limits kept", "error", err.message));
        return;
    }
    o->max_body = fresh.max_body;
    o->max_messages = fresh.max_messages;
    o->max_prompt_bytes = fresh.max_prompt_bytes;
    o->stream_buffer = fresh.stream_buffer;
    o->header_timeout = fresh.header_timeout;
    o->body_timeout = fresh.body_timeout;
    o->write_timeout = fresh.write_timeout;
    o->keepalive_timeout = fresh.keepalive_timeout;
    o->request_timeout = fresh.request_timeout;
    o->shutdown_timeout = fresh.shutdown_timeout;
    o->queue_timeout = fresh.queue_timeout;
    o->sse_ping = fresh.sse_ping;
    if (o->log_level != fresh.log_level) /* else /admin/log-level holds */
        s->log_level = o->log_level = fresh.log_level;
    http = http_opts(s);
    esp_http_set_limits(s->http, &http);
    esp_server_log(s, json_pack("{s:s}", "event", "limits reloaded"));
}

static void look_at_jobs(struct esp_server *s, double now)
{
    for (struct esp_job *j = s->jobs; j; j = j->next) {
        const double age = now - j->started;

        if (j->cancelled)
            continue;
        if (s->o.request_timeout > 0 && age > s->o.request_timeout) {
            j->timed_out = j->cancelled = true;
            for (uint32_t i = 0; i < j->n; i++)
                if (!j->choices[i].ended)
                    esp_choice_cancel(&j->choices[i]);
        } else if (s->o.queue_timeout > 0 && age > s->o.queue_timeout && !j->ns &&
                   j->choices[0].first_at <= 0) { /* its prompt does not run yet */
            esp_api_fail(&j->e, "queue_timeout", NULL, "no place became free within %.0f s",
                         s->o.queue_timeout);
            esp_job_cancel(j, ESP_JOB_ASKED);
        }
    }
}

/* A silent stream; one that still waits for its row opens with it. */
static void keep_alive(struct esp_call *c, double now)
{
    if (c->waits_to_open)
        c->queue_ms = 1000 * (now - c->started);
    esp_sse_open(c);
    c->ping(c);
}

static void note_minute(struct esp_server *s, double now)
{
    esp_stats t;

    esp_life_stats(s, &t);
    esp_minute_note(&s->minute, now, t.prompt_tokens, t.generated_tokens);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct esp_server *s = arg;
    const double now = esp_serve_now();
    const unsigned asked = s->o.poll ? s->o.poll(s->o.user) : 0;
    struct esp_call *next;
    esp_error err;

    (void)fd;
    (void)what;
    if (asked & ESP_SERVE_RELOAD) {
        esp_server_reload_keys(s, &err);
        reload_limits(s);
    }
    if (asked & ESP_SERVE_STOP || s->asked_to_end)
        drain(s);
    look_at_jobs(s, now);
    note_minute(s, now);
    esp_life_tick(s, now);
    for (struct esp_call *c = s->calls; c; c = next) {
        next = c->next;
        if (c->ping && c->r && (c->streaming || c->waits_to_open) && c->ping_interval >= 0 &&
            now - c->last_write >= c->ping_interval)
            keep_alive(c, now);
    }
    if (s->phase == ESP_PHASE_DRAINING)
        keep_draining(s, now);
}

/* ---- life ---- */

static bool is_local_host(const char *host)
{
    return strncmp(host, "unix:", 5) == 0 || strcmp(host, "localhost") == 0 || esp_is_loopback(host);
}

/* Listen on one address; *port becomes the one in use. */
static esp_status listen_one(struct esp_server *s, size_t i, const char *host, uint16_t *port, esp_error *err)
{
    const bool v6 = strchr(host, ':') && strncmp(host, "unix:", 5) != 0;
    const char *prefix = s->o.api_prefix ? s->o.api_prefix : "";
    uint16_t bound = 0;
    char url[400];

    if (i < s->o.n_inherited)
        ESP_TRY(esp_http_inherit(s->http, s->o.inherited[i], &bound, err));
    else
        ESP_TRY(esp_http_listen(s->http, host, *port, &bound, err));
    if (bound) {
        *port = bound; /* one port for all addresses, also when the system chose it */
        snprintf(url, sizeof url, "http://%s%s%s:%u%s", v6 ? "[" : "", host, v6 ? "]" : "", bound, prefix);
    } else {
        snprintf(url, sizeof url, "%s", host);
    }
    if (s->o.listening)
        s->o.listening(s->o.user, url);
    return ESP_OK;
}

static esp_status listen_all(struct esp_server *s, esp_error *err)
{
    uint16_t port = s->o.port;

    s->loopback_only = true;
    for (size_t i = 0; i < s->o.n_host; i++)
        s->loopback_only = s->loopback_only && is_local_host(s->o.hosts[i]);
    if (!s->loopback_only && !esp_keys_any(s->keys) && !s->o.insecure)
        return esp_fail(
            err, ESP_EINVAL,
            "listening beyond this machine without an API key; give --api-key, or --insecure to do it "
            "all the same");
    if (s->o.n_host == 0)
        return listen_one(s, 0, "127.0.0.1", &port, err);
    for (size_t i = 0; i < s->o.n_host; i++)
        ESP_TRY(listen_one(s, i, s->o.hosts[i], &port, err));
    return ESP_OK;
}

static esp_status open_server(struct esp_server *s, esp_error *err)
{
    const struct timeval tick = {.tv_usec = TICK_MS * 1000};
    const struct esp_serve_opts *o = &s->o;
    const struct esp_http_opts http = http_opts(s);

    s->started = esp_serve_now();
    s->started_unix = (int64_t)time(NULL);
    esp_minute_note(&s->minute, s->started, 0, 0);
    s->recent = json_array();
    s->errors = json_object();
    s->log_level = o->log_level;
    s->think = s->tool_call = -1;
    s->base = event_base_new();
    if (!s->base || !s->recent || !s->errors)
        return esp_fail(err, ESP_ENOMEM, "no memory for the server");
    for (size_t i = 0; i < o->n_proxy; i++)
        ESP_TRY(esp_cidr_parse(&s->proxies[i], o->trusted_proxies[i], err));
    ESP_TRY(esp_keys_open(&s->keys, o->api_key, o->api_key_file, err));
    ESP_TRY(esp_replay_open(&s->replay, o->replay_entries, o->replay_bytes, o->replay_ttl, err));
    ESP_TRY(esp_store_open(&s->store, o->response_dir, o->response_bytes, o->response_ttl, err));
    ESP_TRY(esp_diag_open(&s->diag, o->diag_entries, err));
    if (o->log_content)
        ESP_TRY(esp_content_open(&s->content, o->log_content, err));
    ESP_TRY(esp_background_open(&s->background, s->base, err));
    esp_background_set(s->background, o->http_threads);
    ESP_TRY(esp_http_open(&s->http, s->base, &http, err));
    ESP_TRY(listen_all(s, err));
    s->tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    if (!s->tick || event_add(s->tick, &tick) != 0)
        return esp_fail(err, ESP_EIO, "no timer for the server");
    return esp_life_open(s, err);
}

static void close_server(struct esp_server *s)
{
    esp_life_stop(s);
    for (struct esp_job *j = s->jobs; j; j = j->next) /* beyond every grace */
        esp_job_cancel(j, ESP_JOB_DRAINING);
    while (esp_background_poll(
        s->background)) { /* some of it waits for the engine, which waits for its reader */
        esp_life_poll(s);
        usleep(1000);
    }
    esp_background_close(s->background);
    while (s->jobs && s->service && esp_service_wait(s->service, 10000))
        esp_life_poll(s);
    esp_http_close(s->http);
    esp_life_close(s);
    if (s->tick)
        event_free(s->tick);
    esp_content_close(s->content);
    esp_keys_close(s->keys);
    esp_replay_close(s->replay);
    esp_store_close(s->store);
    esp_diag_close(s->diag);
    json_decref(s->recent);
    json_decref(s->errors);
    if (s->base)
        event_base_free(s->base);
    esp_free(s);
}

/* Writes to clients that have gone fail with EPIPE, whatever the caller makes of SIGPIPE: blocked for this
 * thread and those it starts. Returns the mask before. */
static sigset_t without_sigpipe(void)
{
    sigset_t pipe, before;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    return before;
}

/* The mask as it was; a signal that came meanwhile is not left for the caller. */
static void with_mask(const sigset_t *before)
{
    static const struct timespec none;
    sigset_t pipe;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    if (!sigismember(before, SIGPIPE))
        while (sigtimedwait(&pipe, NULL, &none) > 0)
            ;
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

esp_status esp_serve(const struct esp_serve_opts *o, esp_error *err)
{
    struct esp_server *s = esp_alloc(sizeof *s);
    sigset_t before;
    esp_status status;

    if (!s)
        return esp_fail(err, ESP_ENOMEM, "no memory for the server");
    before = without_sigpipe();
    s->o = *o;
    status = open_server(s, err);
    if (status == ESP_OK) {
        event_base_dispatch(s->base);
        status = s->status;
        if (status != ESP_OK && err)
            *err = s->error;
    }
    close_server(s);
    with_mask(&before);
    return status;
}
