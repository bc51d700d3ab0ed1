/*
 * See the header. What the loading thread makes reaches the server on the loop, when all of it is there; what
 * it gives up leaves the server before the thread that frees it starts. A sleep that fails to end leaves the
 * server asleep, and the next request tries again.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/life.h"

#include <event2/event.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "engine/chat.h"

#include "serve/adapters.h"
#include "serve/background.h"
#include "serve/fim.h"
#include "serve/grammars.h"
#include "serve/job.h"
#include "serve/repeats.h"
#include "serve/replay.h"
#include "serve/route.h"
#include "serve/slots.h"

enum { EVENTS_AT_ONCE = 64, N_GRAMMARS = 64 };

/* What the loading thread makes. */
struct loading {
    struct esp_server *s;
    struct esp_serve_engine made;
    struct esp_mounts *adapters; /* those of before a sleep come back, else new ones */
    struct esp_grammars *grammars;
    struct esp_breakers *breakers;
    bool waking;
};

/* ---- loading ---- */

static esp_status make_parts(struct loading *l, esp_error *err)
{
    ESP_TRY(l->s->o.load(l->s->o.user, &l->made, err));
    if (!esp_model_tokenizer(l->made.model))
        return esp_fail(err, ESP_ENOTFOUND, "the model has no tokenizer.json; a server needs text");
    if (l->adapters)
        ESP_TRY(esp_mounts_wake(l->adapters, l->made.model, err));
    else
        ESP_TRY(esp_mounts_open(&l->adapters, &l->s->o, l->made.model, err));
    ESP_TRY(esp_breakers_open(&l->breakers, &l->s->o, l->made.model, err));
    return esp_grammars_open(&l->grammars, l->s, l->made.model, N_GRAMMARS, err);
}

static esp_status load(void *arg, esp_error *err)
{
    struct loading *l = arg;
    const esp_status status = make_parts(l, err);

    if (status != ESP_OK && l->waking) { /* as it was before */
        esp_breakers_close(l->breakers);
        l->breakers = NULL;
        esp_mounts_sleep(l->adapters);
        l->s->o.unload(l->s->o.user);
    }
    return status;
}

static void on_events(evutil_socket_t fd, short what, void *arg)
{
    struct esp_server *s = arg;
    struct esp_service_event *e = s->life.events;
    size_t n;

    (void)fd;
    (void)what;
    n = esp_service_poll(s->service, e, EVENTS_AT_ONCE);
    for (size_t i = 0; i < n; i++)
        esp_job_event(s, &e[i]);
}

void esp_life_poll(struct esp_server *s)
{
    if (s->service)
        on_events(-1, 0, s);
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

    if (s->life.turns_read)
        return;
    s->life.turns_read = true;
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
    s->device = made->device ? made->device : "host";
    esp_texts_units(s->engine, &s->units);
    esp_model_describe(s->model, &s->info);
    esp_free(s->ends);
    s->ends = esp_alloc_array(s->info.n_token + 1, sizeof *s->ends);
    if (!s->ends)
        return esp_fail(err, ESP_ENOMEM, "no memory for the server");
    s->n_end = 0;
    for (uint32_t i = 0; i < s->info.n_token; i++)
        if (esp_token_is_end(s->model, (esp_token)i))
            s->ends[s->n_end++] = (esp_token)i;
    if (s->slots && s->n_slot != s->rows)
        esp_slots_close(s);
    if (!s->slots)
        ESP_TRY(esp_slots_open(s, err));
    read_turns(s);
    s->think = find_token(s, "<think>");
    s->tool_call = find_token(s, "<tool_call>");
    esp_fim_find(s);
    ESP_TRY(esp_service_open(&s->service, s->engine,
                             &(struct esp_service_opts){.rows_per_owner = s->o.per_key_rows}, err));
    s->events = event_new(s->base, esp_service_fd(s->service), EV_READ | EV_PERSIST, on_events, s);
    if (!s->events || event_add(s->events, NULL) != 0)
        return esp_fail(err, ESP_EIO, "no event for the engine");
    return ESP_OK;
}

/* ---- those that wait ---- */

/* Each call that waits for the model, in the order in which they came: its route, or the error. */
static void release_waiting(struct esp_server *s, const char *code, const char *why)
{
    struct esp_call *c = s->life.waiting, *next;

    s->life.waiting = NULL;
    s->life.last = &s->life.waiting;
    s->life.n_waiting = 0;
    for (; c; c = next) {
        next = c->wait_next;
        if (c->r && code)
            esp_api_fail(&c->e, code, NULL, "%s", why);
        else if (c->r)
            c->route->handle(c);
        if (c->e.http)
            esp_reply_error(c);
        esp_call_job_ended(c);
    }
}

bool esp_life_wait(struct esp_call *c)
{
    struct esp_server *s = c->s;

    if (s->life.n_waiting >= s->rows + s->queue)
        return esp_api_fail(&c->e, "sleeping", NULL,
                            "%u requests wait already until the model is loaded again", s->life.n_waiting);
    c->n_job++;
    *s->life.last = c;
    s->life.last = &c->wait_next;
    s->life.n_waiting++;
    esp_life_wake(s);
    return true;
}

/* ---- falling asleep ---- */

/* What can be kept is written, then all of it is given back. */
static esp_status leave(void *arg, esp_error *err)
{
    struct esp_server *s = arg;
    const esp_status status = esp_engine_flush(s->engine, err);

    esp_mounts_sleep(s->adapters);
    s->o.unload(s->o.user);
    return status;
}

static void left(void *arg, esp_status status, const esp_error *err)
{
    struct esp_server *s = arg;
    const bool again = s->life.wake || s->life.waiting;

    s->engine = NULL;
    s->model = NULL;
    s->life.wake = false;
    s->life.state = ESP_LIFE_ASLEEP;
    esp_server_log(s,
                   json_pack("{s:s,s:f,s:s*}", "event", "asleep", "seconds", esp_serve_now() - s->life.since,
                             "error", status == ESP_OK ? NULL : err->message));
    if (s->phase == ESP_PHASE_DRAINING)
        release_waiting(s, "draining", "the server is shutting down");
    else if (again)
        esp_life_wake(s);
}

/* Everything that knows the model goes, and then the model, beside the loop. */
static void give_back(struct esp_server *s)
{
    esp_error err;

    if (s->events)
        event_free(s->events);
    s->events = NULL;
    esp_service_close(s->service);
    s->service = NULL;
    esp_grammars_stop(s->grammars);
    esp_grammars_close(s->grammars);
    s->grammars = NULL;
    esp_breakers_close(s->breakers);
    s->breakers = NULL;
    esp_token_names_close(s->names);
    s->names = NULL;
    s->life.state = ESP_LIFE_FALLING;
    s->life.since = esp_serve_now();
    if (esp_background_run(s->background, leave, left, s, &err) != ESP_OK)
        left(s, leave(s, &err), &err); /* no thread to be had: the loop waits */
}

static void fall_asleep(struct esp_server *s)
{
    esp_stats *t = &s->life.stats;

    s->life.asked = false;
    esp_life_poll(s);
    esp_service_stats(s->service, t);
    t->rows_active = t->rows_waiting = t->spec_rows = t->pages_used = t->slots_used = 0;
    t->cache_checkpoints = t->cache_texts = 0;
    give_back(s);
}

/* ---- waking ---- */

static void not_woken(struct esp_server *s, const esp_error *why)
{
    s->status = ESP_OK; /* asleep still, and the next request tries again */
    s->life.state = ESP_LIFE_ASLEEP;
    esp_server_log(s, json_pack("{s:s,s:s}", "event", "not woken", "error", why->message));
    release_waiting(s, "sleeping", why->message);
}

static void woke(struct esp_server *s)
{
    s->life.state = ESP_LIFE_AWAKE;
    s->life.busy_at = esp_serve_now();
    esp_server_log(s, json_pack("{s:s,s:f}", "event", "awake", "seconds", s->life.busy_at - s->life.since));
    release_waiting(s, s->phase == ESP_PHASE_DRAINING ? "draining" : NULL, "the server is shutting down");
}

static void loaded(void *arg, esp_status status, const esp_error *err)
{
    struct loading *l = arg;
    struct esp_server *s = l->s;
    const bool waking = l->waking;

    s->adapters = l->adapters;
    s->grammars = l->grammars;
    s->breakers = l->breakers;
    s->status = status;
    if (status == ESP_OK)
        s->status = start_service(s, &l->made, &s->error);
    else
        s->error = *err;
    esp_free(l);
    if (waking && status != ESP_OK) {
        not_woken(s, err);
        return;
    }
    if (waking && s->status != ESP_OK) {
        not_woken(s, &s->error);
        give_back(s);
        return;
    }
    if (s->status != ESP_OK) {
        s->phase = ESP_PHASE_FAILED;
        event_base_loopbreak(s->base);
        return;
    }
    if (waking) {
        woke(s);
        return;
    }
    s->life.state = ESP_LIFE_AWAKE;
    s->life.busy_at = esp_serve_now();
    if (s->phase == ESP_PHASE_LOADING)
        s->phase = ESP_PHASE_READY;
    if (s->o.ready)
        s->o.ready(s->o.user);
}

static esp_status begin_loading(struct esp_server *s, esp_error *err)
{
    struct loading *l = esp_alloc(sizeof *l);
    esp_status status;

    if (!l)
        return esp_fail(err, ESP_ENOMEM, "no memory for the server");
    l->s = s;
    l->adapters = s->adapters;
    l->waking = s->life.state == ESP_LIFE_WAKING;
    status = esp_background_run(s->background, load, loaded, l, err);
    if (status != ESP_OK)
        esp_free(l);
    return status;
}

esp_status esp_life_open(struct esp_server *s, esp_error *err)
{
    s->life.events = esp_alloc_array(EVENTS_AT_ONCE, sizeof *s->life.events);
    if (!s->life.events)
        return esp_fail(err, ESP_ENOMEM, "no memory for the server");
    s->status = ESP_OK;
    s->life.last = &s->life.waiting;
    return begin_loading(s, err);
}

void esp_life_wake(struct esp_server *s)
{
    esp_error err;

    s->life.asked = false;
    s->life.wake = s->life.state == ESP_LIFE_FALLING; /* it looks again when it has fallen */
    if (s->life.state != ESP_LIFE_ASLEEP || s->phase != ESP_PHASE_READY)
        return;
    s->life.state = ESP_LIFE_WAKING;
    s->life.since = esp_serve_now();
    if (begin_loading(s, &err) == ESP_OK)
        return;
    s->life.state = ESP_LIFE_ASLEEP;
    release_waiting(s, "sleeping", err.message);
}

/* ---- asking ---- */

/* Whether a request is being answered: one that has ended has no job left. */
static bool is_busy(const struct esp_server *s)
{
    if (s->jobs)
        return true;
    for (const struct esp_call *c = s->calls; c; c = c->next)
        if (c->n_job)
            return true;
    return false;
}

bool esp_life_asleep(const struct esp_server *s)
{
    return s->life.state != ESP_LIFE_AWAKE;
}

bool esp_life_ask_sleep(struct esp_server *s)
{
    if (!s->o.unload)
        return false;
    s->life.asked = s->life.state == ESP_LIFE_AWAKE || s->life.state == ESP_LIFE_WAKING;
    return true;
}

void esp_life_touch(struct esp_server *s)
{
    s->life.busy_at = esp_serve_now();
}

void esp_life_tick(struct esp_server *s, double now)
{
    if (s->life.state != ESP_LIFE_AWAKE || s->phase != ESP_PHASE_READY || !s->o.unload)
        return;
    if (is_busy(s))
        s->life.busy_at = now;
    else if (s->life.asked || (s->o.idle_sleep > 0 && now - s->life.busy_at >= s->o.idle_sleep))
        fall_asleep(s);
}

void esp_life_stats(const struct esp_server *s, esp_stats *out)
{
    if (s->service)
        esp_service_stats(s->service, out);
    else
        *out = s->life.stats;
}

/* ---- the end ---- */

void esp_life_drain(struct esp_server *s)
{
    release_waiting(s, "draining", "the server is shutting down");
}

void esp_life_stop(struct esp_server *s)
{
    esp_grammars_stop(s->grammars);
}

void esp_life_close(struct esp_server *s)
{
    if (s->events)
        event_free(s->events);
    esp_service_close(s->service);
    esp_grammars_close(s->grammars);
    esp_breakers_close(s->breakers);
    esp_token_names_close(s->names);
    esp_mounts_close(s->adapters);
    if (s->engine)
        esp_engine_flush(s->engine, NULL);
    esp_slots_close(s);
    esp_free(s->life.events);
    esp_free(s->ends);
}
