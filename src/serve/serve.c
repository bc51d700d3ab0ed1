/*
 * The loop: listen, load on a thread, hand events from the service to generations, look around ten times a
 * second, and end in order.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/serve.h"

#include <event2/event.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/limits.h"
#include "base/mem.h"
#include "engine/chat.h"

#include "serve/adapters.h"
#include "serve/background.h"
#include "serve/fim.h"
#include "serve/grammars.h"
#include "serve/job.h"
#include "serve/keys.h"
#include "serve/repeats.h"
#include "serve/replay.h"
#include "serve/slots.h"
#include "serve/store.h"

enum { EVENTS_AT_ONCE = 64, TICK_MS = 100, N_GRAMMARS = 64 };

/* What the loading thread makes; the server gets it on the loop, when all of it is there. */
struct loading {
    struct esp_server *s;
    struct esp_serve_engine made;
    struct esp_mounts *adapters;
    struct esp_grammars *grammars;
    struct esp_breakers *breakers;
};

void esp_serve_defaults(struct esp_serve_opts *o)
{
    memset(o, 0, sizeof *o);
    o->port = 8080;
    o->backlog = 512;
    o->max_connections = 1024;
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
    o->replay_ttl = 7 * 86400;
    memcpy(o->effort_budgets, (const int64_t[]){512, 2048, 8192, -1, -1, -1}, sizeof o->effort_budgets);
    o->answer_reserve = 256;
    o->replay_bytes = 64u << 20;
    o->response_bytes = 64u << 20;
    o->response_ttl = 3600;
    o->late_system_user = true;
    o->model_id = "model";
}

/* ---- loading ---- */

static esp_status load(void *arg, esp_error *err)
{
    struct loading *l = arg;

    ESP_TRY(l->s->o.load(l->s->o.user, &l->made, err));
    if (!esp_model_tokenizer(l->made.model))
        return esp_fail(err, ESP_ENOTFOUND, "the model has no tokenizer.json; a server needs text");
    ESP_TRY(esp_mounts_open(&l->adapters, &l->s->o, l->made.model, err));
    ESP_TRY(esp_breakers_open(&l->breakers, &l->s->o, l->made.model, err));
    return esp_grammars_open(&l->grammars, l->s, l->made.model, N_GRAMMARS, err);
}

static void on_events(evutil_socket_t fd, short what, void *arg)
{
    struct esp_server *s = arg;
    struct esp_service_event *e = esp_alloc_array(EVENTS_AT_ONCE, sizeof *e);
    size_t n;

    (void)fd;
    (void)what;
    if (!e)
        return; /* tried again when the loop turns */
    n = esp_service_poll(s->service, e, EVENTS_AT_ONCE);
    for (size_t i = 0; i < n; i++)
        esp_job_event(s, &e[i]);
    esp_free(e);
}

static esp_token find_token(const struct esp_server *s, const char *text)
{
    const struct esp_tokenizer *t = esp_model_tokenizer(s->model);
    uint32_t id;

    return esp_tokenizer_find(t, text, strlen(text), &id) && esp_tokenizer_is_added(t, id) ? (esp_token)id
                                                                                           : -1;
}

/* Of all tokens: ids that were kept mean the same only where this is the same. */
static uint64_t hash_tokens(const struct esp_server *s)
{
    const struct esp_tokenizer *t = esp_model_tokenizer(s->model);
    uint64_t h = s->info.n_token;

    for (uint32_t i = 0; i < s->info.n_token; i++) {
        const char *bytes = "";
        size_t len = 0;

        esp_tokenizer_token_bytes(t, i, &bytes, &len);
        h = esp_hash(bytes, len, h);
    }
    return h;
}

/* Turns of earlier runs. Without them the server is as good, only slower now and then. */
static void read_turns(struct esp_server *s)
{
    esp_error err;

    if (s->o.replay_dir && esp_replay_persist(s->replay, s->o.replay_dir, hash_tokens(s), &err) != ESP_OK)
        esp_server_log(s, json_pack("{s:s,s:s}", "event", "kept turns not read", "error", err.message));
}

static esp_status start_service(struct esp_server *s, const struct esp_serve_engine *made, esp_error *err)
{
    s->model = made->model;
    s->engine = made->engine;
    s->context = made->context;
    s->rows = made->rows;
    s->queue = made->queue;
    s->kv_tokens = made->kv_tokens;
    s->plan = made->plan;
    s->budget = made->budget;
    esp_texts_units(s->engine, &s->units);
    esp_model_describe(s->model, &s->info);
    s->ends = esp_alloc_array(s->info.n_token + 1, sizeof *s->ends);
    if (!s->ends)
        return esp_fail(err, ESP_ENOMEM, "no memory for the server");
    for (uint32_t i = 0; i < s->info.n_token; i++)
        if (esp_token_is_end(s->model, (esp_token)i))
            s->ends[s->n_end++] = (esp_token)i;
    ESP_TRY(esp_slots_open(s, err));
    read_turns(s);
    s->think = find_token(s, "<think>");
    s->tool_call = find_token(s, "<tool_call>");
    esp_fim_find(s);
    ESP_TRY(esp_service_open(&s->service, s->engine, NULL, err));
    s->events = event_new(s->base, esp_service_fd(s->service), EV_READ | EV_PERSIST, on_events, s);
    if (!s->events || event_add(s->events, NULL) != 0)
        return esp_fail(err, ESP_EIO, "no event for the engine");
    return ESP_OK;
}

static void loaded(void *arg, esp_status status, const esp_error *err)
{
    struct loading *l = arg;
    struct esp_server *s = l->s;

    s->adapters = l->adapters;
    s->grammars = l->grammars;
    s->breakers = l->breakers;
    s->status = status;
    if (status == ESP_OK)
        s->status = start_service(s, &l->made, &s->error);
    else
        s->error = *err;
    esp_free(l);
    if (s->status != ESP_OK) {
        s->phase = ESP_PHASE_FAILED;
        event_base_loopbreak(s->base);
        return;
    }
    if (s->phase == ESP_PHASE_LOADING)
        s->phase = ESP_PHASE_READY;
    if (s->o.ready)
        s->o.ready(s->o.user);
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
        } else if (s->o.queue_timeout > 0 && age > s->o.queue_timeout && j->choices[0].first_at <= 0 &&
                   !j->call->streaming) {
            esp_api_fail(&j->e, "queue_timeout", NULL, "no place became free within %.0f s",
                         s->o.queue_timeout);
            esp_job_cancel(j, ESP_JOB_ASKED);
        }
    }
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
    if (asked & ESP_SERVE_RELOAD)
        esp_server_reload_keys(s, &err);
    if (asked & ESP_SERVE_STOP || s->asked_to_end)
        drain(s);
    look_at_jobs(s, now);
    for (struct esp_call *c = s->calls; c; c = next) {
        next = c->next;
        if (c->ping && c->r && c->streaming && c->ping_interval >= 0 &&
            now - c->last_write >= c->ping_interval)
            c->ping(c);
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
static esp_status listen_one(struct esp_server *s, const char *host, uint16_t *port, esp_error *err)
{
    const bool v6 = strchr(host, ':') && strncmp(host, "unix:", 5) != 0;
    const char *prefix = s->o.api_prefix ? s->o.api_prefix : "";
    uint16_t bound = 0;
    char url[400];

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
        return listen_one(s, "127.0.0.1", &port, err);
    for (size_t i = 0; i < s->o.n_host; i++)
        ESP_TRY(listen_one(s, s->o.hosts[i], &port, err));
    return ESP_OK;
}

static esp_status open_server(struct esp_server *s, esp_error *err)
{
    const struct timeval tick = {.tv_usec = TICK_MS * 1000};
    const struct esp_serve_opts *o = &s->o;
    const struct esp_http_opts http = {.max_head = ESP_LIMIT_HTTP_HEAD,
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
                                       .user = s};
    struct loading *l;

    s->started = esp_serve_now();
    s->started_unix = (int64_t)time(NULL);
    s->recent = json_array();
    s->errors = json_object();
    s->log_level = ESP_LOG_ALL;
    s->think = s->tool_call = -1;
    s->base = event_base_new();
    if (!s->base || !s->recent || !s->errors)
        return esp_fail(err, ESP_ENOMEM, "no memory for the server");
    ESP_TRY(esp_keys_open(&s->keys, o->api_key, o->api_key_file, err));
    ESP_TRY(esp_replay_open(&s->replay, o->replay_entries, o->replay_bytes, o->replay_ttl, err));
    ESP_TRY(esp_store_open(&s->store, o->response_dir, o->response_bytes, o->response_ttl, err));
    ESP_TRY(esp_background_open(&s->background, s->base, err));
    ESP_TRY(esp_http_open(&s->http, s->base, &http, err));
    ESP_TRY(listen_all(s, err));
    s->tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    if (!s->tick || event_add(s->tick, &tick) != 0)
        return esp_fail(err, ESP_EIO, "no timer for the server");
    l = esp_alloc(sizeof *l);
    if (!l)
        return esp_fail(err, ESP_ENOMEM, "no memory for the server");
    l->s = s;
    s->status = ESP_OK;
    if (esp_background_run(s->background, load, loaded, l, err) != ESP_OK) {
        esp_free(l);
        return ESP_EDEVICE;
    }
    return ESP_OK;
}

static void close_server(struct esp_server *s)
{
    esp_grammars_stop(s->grammars);
    for (struct esp_job *j = s->jobs; j; j = j->next) /* beyond every grace */
        esp_job_cancel(j, ESP_JOB_DRAINING);
    while (esp_background_poll(
        s->background)) { /* some of it waits for the engine, which waits for its reader */
        if (s->service)
            on_events(-1, 0, s);
        usleep(1000);
    }
    esp_background_close(s->background);
    while (s->jobs && s->service && esp_service_wait(s->service, 10000))
        on_events(-1, 0, s);
    if (s->events)
        event_free(s->events);
    esp_http_close(s->http);
    esp_service_close(s->service);
    esp_grammars_close(s->grammars);
    esp_breakers_close(s->breakers);
    esp_mounts_close(s->adapters);
    if (s->engine)
        esp_engine_flush(s->engine, NULL);
    if (s->tick)
        event_free(s->tick);
    esp_keys_close(s->keys);
    esp_replay_close(s->replay);
    esp_store_close(s->store);
    esp_slots_close(s);
    json_decref(s->recent);
    json_decref(s->errors);
    esp_free(s->ends);
    if (s->base)
        event_base_free(s->base);
    esp_free(s);
}

esp_status esp_serve(const struct esp_serve_opts *o, esp_error *err)
{
    struct esp_server *s = esp_alloc(sizeof *s);
    esp_status status;

    if (!s)
        return esp_fail(err, ESP_ENOMEM, "no memory for the server");
    s->o = *o;
    status = open_server(s, err);
    if (status == ESP_OK) {
        event_base_dispatch(s->base);
        status = s->status;
        if (status != ESP_OK && err)
            *err = s->error;
    }
    close_server(s);
    return status;
}
