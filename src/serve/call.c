/*
 * From a request to its handler: id, host, origin, key, route, body; and from a handler to its reply:
 * headers, error shapes, the access line. Nothing here knows what a generation is.
 *
 * SPDX-License-Identifier: MIT
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"

#include "serve/content.h"
#include "serve/job.h"
#include "serve/keys.h"
#include "serve/life.h"
#include "serve/route.h"

enum { MAX_REPLY = 1 << 30, N_RECENT = 32, CLIENT_CLOSED = 499 };

/* ---- life ---- */

static void free_call(struct esp_call *c)
{
    *c->prev = c->next;
    if (c->next)
        c->next->prev = c->prev;
    esp_content_call(c);
    json_decref(c->answers);
    if (c->free_answer)
        c->free_answer(c->answer);
    json_decref(c->body);
    esp_api_error_clear(&c->e);
    esp_free(c);
}

static void settle(struct esp_call *c)
{
    if (!c->r && c->n_job == 0)
        free_call(c);
}

void esp_call_job_ended(struct esp_call *c)
{
    c->n_job--;
    settle(c);
}

static void keep_recent(struct esp_call *c, double total_ms)
{
    json_t *row;

    if (!c->n_prompt)
        return;
    row =
        json_pack("{s:s,s:s,s:i,s:I,s:I,s:I,s:f,s:f,s:s?,s:s?}", "request_id", c->id, "route",
                  c->route ? c->route->path : "", "status", c->status, "prompt", (json_int_t)c->n_prompt,
                  "cached", (json_int_t)c->n_cached, "output", (json_int_t)c->n_output, "ttft_ms", c->ttft_ms,
                  "tps", total_ms > c->ttft_ms ? 1000 * (double)c->n_output / (total_ms - c->ttft_ms) : 0.0,
                  "reason", c->cache_reason, "finish", c->finish);
    json_array_append_new(c->s->recent, row);
    if (json_array_size(c->s->recent) > N_RECENT)
        json_array_remove(c->s->recent, 0);
}

static void count_error(const struct esp_call *c)
{
    json_t *errors = c->s->errors;

    if (c->e.code)
        json_object_set_new(errors, c->e.code,
                            json_integer(json_integer_value(json_object_get(errors, c->e.code)) + 1));
}

/* Whether the log tells of this request. */
static bool is_told(const struct esp_call *c)
{
    static const int least[] = {[ESP_LOG_FAULTS] = 500, [ESP_LOG_REFUSALS] = 400, [ESP_LOG_ALL] = 0};

    return c->s->o.log && c->status >= least[c->s->log_level];
}

/* The access line: no prompt, no output, no key. */
static void log_call(struct esp_call *c)
{
    const double ms = 1000 * (esp_serve_now() - c->started);
    json_t *line;

    esp_count_http(&c->s->metrics, esp_route_index(c->route), c->status);
    keep_recent(c, ms);
    count_error(c);
    if (!is_told(c))
        return;
    line = json_pack("{s:s,s:s,s:s,s:s,s:i,s:f,s:s}", "event", "request", "id", c->id, "method",
                     c->r ? c->r->head.method : "", "route", c->route ? c->route->path : "-", "status",
                     c->status, "ms", (double)(int64_t)(ms * 10) / 10, "client", c->client);
    if (line && c->key_name[0])
        json_object_set_new(line, "key", json_string(c->key_name));
    if (line && c->e.code)
        json_object_set_new(line, "code", json_string(c->e.code));
    if (line && !c->n_prompt && c->finish)
        json_object_set_new(line, "finish", json_string(c->finish)); /* gone before its numbers are known */
    if (line && c->n_prompt)
        json_object_update_new(
            line,
            json_pack("{s:s,s:I,s:I,s:I,s:f,s:f,s:f,s:s?,s:s?,s:s?}", "model", c->s->o.model_id, "prompt",
                      (json_int_t)c->n_prompt, "cached", (json_int_t)c->n_cached, "output",
                      (json_int_t)c->n_output, "queue_ms", c->queue_ms, "ttft_ms", c->ttft_ms, "tps",
                      ms > c->ttft_ms ? 1000 * (double)c->n_output / (ms - c->ttft_ms) : 0.0, "finish",
                      c->finish, "cache", c->cache_reason, "adapter", c->adapter[0] ? c->adapter : NULL));
    esp_server_log(c->s, line);
}

static void on_gone(void *owner, bool slow)
{
    struct esp_call *c = owner;

    c->status = CLIENT_CLOSED;
    c->finish = slow ? "slow_client" : "client_closed";
    log_call(c);
    c->r = NULL;
    atomic_store(&c->gone, true);
    if (slow)
        c->s->metrics.slow_clients++;
    esp_jobs_cancel_call(c, slow ? ESP_JOB_SLOW : ESP_JOB_GONE);
    settle(c);
}

/* ---- replies ---- */

void esp_reply_close(struct esp_call *c, int status)
{
    c->status = status;
    log_call(c);
    c->r->on_gone = NULL;
    c->r = NULL;
}

void esp_queue_header(struct esp_call *c)
{
    char ms[32];

    snprintf(ms, sizeof ms, "%.1f", c->queue_ms);
    esp_http_header(c->r, "x-espalier-queue-ms", ms);
}

void esp_reply_text(struct esp_call *c, int status, const char *type, const char *text, size_t len)
{
    struct esp_http_request *r = c->r;

    if (!r)
        return;
    esp_reply_close(c, status);
    esp_http_reply(r, status, type, text, len);
}

void esp_reply_empty(struct esp_call *c, int status)
{
    esp_reply_text(c, status, NULL, "", 0);
}

void esp_reply_json(struct esp_call *c, int status, json_t *v)
{
    struct esp_strbuf b;

    esp_strbuf_init(&b, MAX_REPLY);
    if (v && esp_json_add(&b, v)) {
        esp_reply_text(c, status, "application/json", esp_strbuf_str(&b), b.len);
    } else {
        static const char text[] =
            "{\"error\":{\"message\":\"no memory for the answer\",\"type\":\"api_error\","
            "\"param\":null,\"code\":\"internal_error\"}}";

        esp_reply_text(c, 500, "application/json", text, sizeof text - 1);
    }
    esp_strbuf_free(&b);
    json_decref(v);
}

void esp_reply_error(struct esp_call *c)
{
    const int status = esp_api_error_http(&c->e, c->family);
    char after[16];

    if (!c->r)
        return;
    if (status == 429 || status == 503 || status == 529) {
        snprintf(after, sizeof after, "%d", c->e.retry_after > 0 ? c->e.retry_after : 1);
        esp_http_header(c->r, "Retry-After", after);
    }
    if (status >= 500 && status != 503 && status != 529)
        esp_http_header(c->r, "x-should-retry", "false");
    esp_reply_json(c, status, esp_api_error_body(&c->e, c->family, c->id));
}

/* ---- checks ---- */

static bool in_list(const char *word, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcasecmp(word, list[i]) == 0)
            return true;
    return false;
}

/* Host without port: "[::1]:80" and "a.b:80" to "::1" and "a.b". */
static void host_name(char *out, size_t cap, const char *host)
{
    size_t n;

    if (*host == '[') {
        host++;
        n = strcspn(host, "]");
    } else {
        n = strcspn(host, ":");
    }
    snprintf(out, cap, "%.*s", (int)(n < cap ? n : cap - 1), host);
}

static bool is_local_name(const char *name)
{
    const size_t len = strlen(name);

    return strcasecmp(name, "localhost") == 0 || esp_is_loopback(name) ||
           (len > 10 && strcasecmp(name + len - 10, ".localhost") == 0);
}

/* A page of another site that resolves its own name to this machine must not reach a local server. */
static bool host_allowed(const struct esp_call *c)
{
    const char *host = esp_http_find(&c->r->head, "Host");
    char name[256];

    if (!c->s->loopback_only || strcmp(c->r->peer, "unix") == 0 || !host)
        return true;
    host_name(name, sizeof name, host);
    return is_local_name(name) || in_list(name, c->s->o.allowed_hosts, c->s->o.n_allowed_host);
}

enum origin { ORIGIN_NONE, ORIGIN_SAME, ORIGIN_LISTED, ORIGIN_OTHER };

static enum origin origin_of(const struct esp_call *c, const char **origin)
{
    const struct esp_serve_opts *o = &c->s->o;
    const char *host = esp_http_find(&c->r->head, "Host"), *at;
    char name[256];

    *origin = esp_http_find(&c->r->head, "Origin");
    if (!*origin)
        return ORIGIN_NONE;
    if (in_list(*origin, o->cors_origins, o->n_cors) || in_list("*", o->cors_origins, o->n_cors))
        return ORIGIN_LISTED;
    at = strstr(*origin, "://");
    if (!at)
        return ORIGIN_OTHER;
    host_name(name, sizeof name, at + 3);
    if (in_list("localhost", o->cors_origins, o->n_cors) && is_local_name(name))
        return ORIGIN_LISTED;
    return host && strcasecmp(at + 3, host) == 0 ? ORIGIN_SAME : ORIGIN_OTHER;
}

/* Headers asked for, if they are words: they are allowed, all of them. */
static bool are_words(const char *s)
{
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("-_, ", *s))
            return false;
    return true;
}

static void cors_headers(struct esp_call *c, const char *origin, bool preflight)
{
    const char *asked = esp_http_find(&c->r->head, "Access-Control-Request-Headers");
    const bool any = in_list("*", c->s->o.cors_origins, c->s->o.n_cors);

    if (strlen(origin) > 512)
        return;
    esp_http_header(c->r, "Access-Control-Allow-Origin", any ? "*" : origin);
    esp_http_header(c->r, "Vary", "Origin");
    if (!preflight) {
        esp_http_header(c->r, "Access-Control-Expose-Headers",
                        "x-request-id, request-id, retry-after, x-espalier-queue-ms");
        return;
    }
    esp_http_header(c->r, "Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE, OPTIONS");
    esp_http_header(c->r, "Access-Control-Allow-Headers",
                    asked && strlen(asked) < 2048 && are_words(asked)
                        ? asked
                        : "authorization, content-type, x-api-key, x-request-id");
    esp_http_header(c->r, "Access-Control-Max-Age", "600");
}

static bool check_key(struct esp_call *c)
{
    const unsigned flags = c->route ? c->route->flags : 0;
    const char *auth = esp_http_find(&c->r->head, "Authorization"),
               *key = esp_http_find(&c->r->head, "x-api-key");
    const bool metrics = c->route && c->route->handle == esp_get_metrics && c->s->o.metrics_public;
    struct esp_key_holder holder;

    if (auth && strncasecmp(auth, "Bearer ", 7) == 0 && !key)
        key = auth + 7 + strspn(auth + 7, " ");
    if (!esp_keys_any(c->s->keys)) {
        c->admin = esp_is_loopback(c->client); /* who comes through a proxy is not here */
    } else if (key && esp_keys_check(c->s->keys, key, &holder)) {
        snprintf(c->key_name, sizeof c->key_name, "%s", holder.name);
        c->admin = holder.admin;
        c->key = holder.id;
    } else {
        if ((flags & ESP_ROUTE_PUBLIC) || metrics)
            return true;
        return esp_api_fail(&c->e, "invalid_api_key", NULL,
                            key ? "the API key is not known here"
                                : "an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY");
    }
    if ((flags & ESP_ROUTE_ADMIN) && !c->admin)
        return esp_api_fail(&c->e, "admin_required", NULL,
                            "this needs a key with the role admin, or a server without keys on this machine");
    return true;
}

static bool check_phase(struct esp_call *c)
{
    const unsigned flags = c->route ? c->route->flags : 0;

    if (flags & ESP_ROUTE_EARLY)
        return true;
    switch (c->s->phase) {
    case ESP_PHASE_LOADING:
        return esp_api_fail(&c->e, "model_loading", NULL, "the model is being loaded");
    case ESP_PHASE_DRAINING:
        return esp_api_fail(&c->e, "draining", NULL, "the server is shutting down and takes no new requests");
    case ESP_PHASE_FAILED:
        return esp_api_fail(&c->e, "internal_error", NULL, "the model could not be loaded");
    default:
        return true;
    }
}

static bool check_route(struct esp_call *c, const char *allow)
{
    if (c->route)
        return true;
    if (!*allow)
        return esp_api_fail(&c->e, "route_not_found", NULL, "no route %s; GET /v1 lists them",
                            c->r->head.path);
    esp_http_header(c->r, "Allow", allow);
    return esp_api_fail(&c->e, "method_not_allowed", NULL, "%s %s: the path takes %s", c->r->head.method,
                        c->r->head.path, allow);
}

/* ---- the way in ---- */

static void take_id(struct esp_call *c)
{
    const char *given = esp_http_find(&c->r->head, "x-request-id");
    size_t n = given ? strlen(given) : 0;

    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)given[i]) && !strchr("._-", given[i]))
            n = 0;
    if (n >= 1 && n <= 128)
        snprintf(c->id, sizeof c->id, "%s", given);
    else
        esp_random_id(c->id, sizeof c->id, "req_");
    esp_http_header(c->r, "x-request-id", c->id);
    if (c->family == ESP_FAMILY_ANTHROPIC)
        esp_http_header(c->r, "request-id", c->id);
}

static struct esp_call *make_call(struct esp_server *s, struct esp_http_request *r)
{
    struct esp_call *c = esp_alloc(sizeof *c);

    if (!c) {
        esp_http_reply(r, 503, "text/plain", "no memory\n", 10);
        return NULL;
    }
    c->s = s;
    c->r = r;
    esp_client_address(c->client, sizeof c->client, s->proxies, s->o.n_proxy, r->peer,
                       esp_http_find_last(&r->head, "X-Forwarded-For"));
    c->started = c->last_write = esp_serve_now();
    c->prev = &s->calls;
    c->next = s->calls;
    if (c->next)
        c->next->prev = &c->next;
    s->calls = c;
    r->owner = c;
    r->on_gone = on_gone;
    return c;
}

/* Path behind the prefix; NULL when it has another one. */
static const char *under_prefix(const struct esp_server *s, const char *path)
{
    const char *prefix = s->o.api_prefix ? s->o.api_prefix : "";
    const size_t len = strlen(prefix);

    if (strncmp(path, prefix, len) != 0)
        return NULL;
    path += len;
    return *path == '/' ? path : *path == '\0' ? "/" : NULL;
}

static void options_reply(struct esp_call *c, enum origin origin, const char *name, const char *allow)
{
    if (origin == ORIGIN_LISTED)
        cors_headers(c, name, true);
    esp_http_header(c->r, "Allow", *allow ? allow : "GET, HEAD, POST, DELETE, OPTIONS");
    esp_reply_empty(c, 204);
}

static bool admit(struct esp_call *c, enum origin origin, const char *name, const char *allow)
{
    const bool open = c->route && (c->route->flags & ESP_ROUTE_PUBLIC);

    if (origin == ORIGIN_LISTED)
        cors_headers(c, name, false);
    if (!open && !host_allowed(c))
        return esp_api_fail(&c->e, "host_not_allowed", NULL,
                            "Host '%.200s' is not a name of this machine; --allowed-hosts lists others",
                            esp_http_find(&c->r->head, "Host"));
    if (!open && origin == ORIGIN_OTHER)
        return esp_api_fail(&c->e, "origin_not_allowed", NULL,
                            "Origin '%.200s' may not call; --cors-origins lists those that may", name);
    return check_key(c) && check_route(c, allow) && check_phase(c);
}

/* By its route, or later by its route when the model is away. */
static void answer(struct esp_call *c)
{
    const bool needed = !(c->route->flags & (ESP_ROUTE_EARLY | ESP_ROUTE_ASLEEP));

    if (needed)
        esp_life_touch(c->s);
    c->uncounted = needed && esp_life_asleep(c->s);
    if (c->uncounted)
        esp_life_wait(c);
    else
        c->route->handle(c);
}

/* The body has been read beside the loop, and meanwhile much may have happened. */
static void go_on(struct esp_call *c)
{
    if (c->r && !c->e.http && check_phase(c))
        answer(c);
    if (c->e.http)
        esp_reply_error(c);
}

static void read_and_answer(struct esp_call *c)
{
    const bool body = c->route->flags & ESP_ROUTE_BODY;

    if (body && esp_call_is_big(c))
        esp_call_body_later(c, go_on);
    else if (!body || esp_call_body(c))
        answer(c);
}

void esp_call_handle(void *server, struct esp_http_request *r)
{
    struct esp_server *s = server;
    struct esp_call *c = make_call(s, r);
    const char *path = under_prefix(s, r->head.path), *name = NULL;
    char allow[64] = "";
    enum origin origin;

    if (!c)
        return;
    if (path)
        c->route = esp_route_find(r->head.method, path, c->params, allow, &c->family);
    take_id(c);
    esp_reply_last_words(c);
    origin = origin_of(c, &name);
    c->n_job++; /* so that the call outlives its reply until the handler returns */
    if (strcmp(r->head.method, "OPTIONS") == 0)
        options_reply(c, origin, name, allow);
    else if (admit(c, origin, name, allow))
        read_and_answer(c);
    if (c->e.http)
        esp_reply_error(c);
    esp_call_job_ended(c);
}

void esp_call_refuse(void *server, struct esp_http_request *r, int status, const char *why)
{
    static const struct {
        int status;
        const char *code;
    } codes[] = {{400, "invalid_request"}, {408, "request_timeout"},   {413, "request_too_large"},
                 {414, "uri_too_long"},    {431, "headers_too_large"}, {501, "not_implemented"},
                 {505, "http_version"},    {503, "device_lost"}};
    struct esp_server *s = server;
    struct esp_call *c = make_call(s, r);
    const char *path = under_prefix(s, r->head.path), *code = "invalid_request";
    char allow[64];

    if (!c)
        return;
    if (path)
        c->route = esp_route_find(r->head.method, path, c->params, allow, &c->family);
    take_id(c);
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i].status == status)
            code = codes[i].code;
    if (status == 413)
        esp_api_fail(&c->e, code, NULL, "%s: at most %llu bytes (--max-body)", why,
                     (unsigned long long)s->o.max_body);
    else if (status == 414 || (status == 431 && !strstr(why, "lines")))
        esp_api_fail(&c->e, code, NULL, "%s: at most %u bytes", why,
                     status == 414 ? ESP_LIMIT_HTTP_URI : ESP_LIMIT_HTTP_HEAD);
    else
        esp_api_fail(&c->e, code, NULL, "%s", why);
    c->n_job++;
    esp_reply_error(c);
    esp_call_job_ended(c);
}
