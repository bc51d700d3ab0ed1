/*
 * See the header. Two families of names for the same numbers, since dashboards exist for both, and our own.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/metrics.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "serve/adapters.h"
#include "serve/job.h"
#include "serve/life.h"
#include "serve/route.h"
#include "serve/server.h"

/* Each ends with a zero. */
const double esp_buckets_own[] = {.0001, .0002, .0005, .001, .002, .005, .01, .02, .05,
                                  .1,    .2,    .5,    1,    2,    5,    10,  0};
const double esp_buckets_ttft[] = {.001, .005, .01, .02, .04, .06, .08, .1,  .25, .5,   .75, 1,
                                   2.5,  5,    7.5, 10,  20,  40,  80,  160, 640, 2560, 0};
const double esp_buckets_token[] = {.001, .002, .005, .01, .025, .05, .075, .1, .15, .2,
                                    .3,   .4,   .5,   .75, 1,    2.5, 5,    10, 0};
const double esp_buckets_phase[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,   20,
                                    30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680, 0};
const double esp_buckets_count[] = {1,    2,    5,   10,  20,  50,  100, 200, 500, 1000,
                                    2000, 5000, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 0};

const char *const esp_cache_reasons[ESP_CACHE_REASONS] = {
    "full_hit", "partial_hit",     "cold",    "no_checkpoint_before_divergence",
    "evicted",  "adapter_differs", "disabled"};

static const int statuses[ESP_MAX_STATUSES] = {200, 201, 202, 204, 400, 401, 403, 404, 405, 408, 409,
                                               413, 414, 415, 429, 431, 499, 500, 501, 503, 505, 529};

void esp_observe_seconds(struct esp_histogram *h, const double *buckets, double x)
{
    size_t i = 0;

    while (buckets[i] > 0 && x > buckets[i])
        i++;
    h->count[i]++;
    h->sum += x;
    h->n++;
}

void esp_minute_note(struct esp_minute *m, double now, uint64_t first, uint64_t second)
{
    const uint32_t last = (m->next + ESP_MINUTE - 1) % ESP_MINUTE;

    if (m->n && now - m->at[last] < 1)
        return;
    m->at[m->next] = now;
    m->count[m->next][0] = first;
    m->count[m->next][1] = second;
    m->next = (m->next + 1) % ESP_MINUTE;
    m->n += m->n < ESP_MINUTE;
}

double esp_minute_rate(const struct esp_minute *m, uint64_t count, int which)
{
    const uint32_t oldest = (m->next + ESP_MINUTE - m->n) % ESP_MINUTE;
    const double seconds = m->n ? esp_serve_now() - m->at[oldest] : 0;

    if (seconds <= 0 || count < m->count[oldest][which]) /* of an engine that is gone */
        return 0;
    return (double)(count - m->count[oldest][which]) / seconds;
}

void esp_count_http(struct esp_metrics *m, int route, int status)
{
    size_t i = 0;

    while (i < ESP_MAX_STATUSES - 1 && statuses[i] != status && statuses[i])
        i++;
    m->http[route < 0 ? ESP_MAX_ROUTES - 1 : route][i]++;
}

/* ---- text ---- */

struct page {
    struct esp_strbuf *out;
    const char *model;
    unsigned families; /* esp_serve_metrics */
};

/* Whether a name's family was asked for. */
static bool wanted(const struct page *p, const char *name)
{
    const unsigned family = *name == 'v'   ? ESP_METRICS_VLLM
                            : *name == 'l' ? ESP_METRICS_LLAMACPP
                                           : ESP_METRICS_OWN;

    return p->families & family;
}

/* A label's value: quotes, backslashes and line ends are escaped. */
static void label(struct esp_strbuf *out, const char *s)
{
    for (; s && *s; s++) {
        if (*s == '"' || *s == '\\')
            esp_strbuf_putc(out, '\\');
        if (*s == '\n')
            esp_strbuf_puts(out, "\\n");
        else
            esp_strbuf_putc(out, *s);
    }
}

static void head(const struct page *p, const char *name, const char *type)
{
    if (wanted(p, name))
        esp_strbuf_printf(p->out, "# TYPE %s %s\n", name, type);
}

static void line(const struct page *p, const char *name, const char *key, const char *value, double x)
{
    if (!wanted(p, name))
        return;
    esp_strbuf_printf(p->out, "%s{model_name=\"", name);
    label(p->out, p->model);
    if (key) {
        esp_strbuf_printf(p->out, "\",%s=\"", key);
        label(p->out, value);
    }
    esp_strbuf_printf(p->out, "\"} %.17g\n", x);
}

/* The same for the one device there is. */
static void two(const struct page *p, const char *name, const char *key, const char *value, double x)
{
    if (!wanted(p, name))
        return;
    esp_strbuf_printf(p->out, "%s{model_name=\"", name);
    label(p->out, p->model);
    esp_strbuf_printf(p->out, "\",device=\"host\",%s=\"%s\"} %.17g\n", key, value, x);
}

static void one(const struct page *p, const char *name, const char *type, double x)
{
    head(p, name, type);
    line(p, name, NULL, NULL, x);
}

static void histogram(const struct page *p, const char *name, const struct esp_histogram *h,
                      const double *buckets)
{
    uint64_t below = 0;

    if (!wanted(p, name))
        return;
    head(p, name, "histogram");
    for (size_t i = 0;; i++) {
        esp_strbuf_printf(p->out, "%s_bucket{model_name=\"", name);
        label(p->out, p->model);
        below += h->count[i];
        if (buckets[i] <= 0) {
            esp_strbuf_printf(p->out, "\",le=\"+Inf\"} %llu\n", (unsigned long long)below);
            break;
        }
        esp_strbuf_printf(p->out, "\",le=\"%g\"} %llu\n", buckets[i], (unsigned long long)below);
    }
    esp_strbuf_printf(p->out, "%s_sum{model_name=\"", name);
    label(p->out, p->model);
    esp_strbuf_printf(p->out, "\"} %.9g\n%s_count{model_name=\"", h->sum, name);
    label(p->out, p->model);
    esp_strbuf_printf(p->out, "\"} %llu\n", (unsigned long long)h->n);
}

/* Of the engine's steps, whose buckets are powers of two. */
static void steps(const struct page *p, const esp_stats *t)
{
    struct esp_histogram times = {.sum = t->step_seconds, .n = t->steps},
                         sizes = {.sum = (double)t->step_tokens, .n = t->steps};
    double seconds[ESP_STEP_BUCKETS], tokens[ESP_STEP_BUCKETS];

    for (int i = 0; i < ESP_STEP_BUCKETS; i++) {
        tokens[i] = i + 1 < ESP_STEP_BUCKETS ? (double)(UINT64_C(1) << i) : 0;
        seconds[i] = tokens[i] * 1e-4;
        times.count[i] = t->step_times[i];
        sizes.count[i] = t->step_sizes[i];
    }
    histogram(p, "espalier:engine_step_seconds", &times, seconds);
    histogram(p, "vllm:iteration_tokens_total", &sizes, tokens);
}

static void gauges(const struct page *p, const esp_stats *t)
{
    const double used = t->pages_total ? (double)t->pages_used / t->pages_total : 0;

    one(p, "vllm:num_requests_running", "gauge", t->rows_active);
    one(p, "vllm:num_requests_waiting", "gauge", t->rows_waiting);
    one(p, "vllm:kv_cache_usage_perc", "gauge", used);
    one(p, "llamacpp:requests_processing", "gauge", t->rows_active);
    one(p, "llamacpp:requests_deferred", "gauge", t->rows_waiting);
    one(p, "llamacpp:kv_cache_usage_ratio", "gauge", used);
    one(p, "llamacpp:prompt_tokens_seconds", "gauge",
        t->prompt_seconds > 0 ? (double)t->prompt_tokens / t->prompt_seconds : 0);
    one(p, "llamacpp:predicted_tokens_seconds", "gauge",
        t->generate_seconds > 0 ? (double)t->generated_tokens / t->generate_seconds : 0);
    one(p, "llamacpp:n_busy_slots_per_decode", "gauge",
        t->steps ? (double)t->generated_tokens / (double)t->steps : 0);
    one(p, "espalier:checkpoints", "gauge", t->cache_checkpoints);
    one(p, "espalier:state_slots_used", "gauge", t->slots_used);
}

static void counters(const struct page *p, const struct esp_metrics *m, const esp_stats *t)
{
    static const char *const reasons[] = {"stop", "length", "abort", "error"};
    static const char *const phases[] = {"queued", "prefill", "decode"};

    one(p, "vllm:prompt_tokens_total", "counter", (double)m->prompt_total);
    one(p, "vllm:generation_tokens_total", "counter", (double)m->output_total);
    one(p, "llamacpp:prompt_tokens_total", "counter", (double)t->prompt_tokens);
    one(p, "llamacpp:tokens_predicted_total", "counter", (double)m->output_total);
    one(p, "llamacpp:prompt_seconds_total", "counter", t->prompt_seconds);
    one(p, "llamacpp:tokens_predicted_seconds_total", "counter", t->generate_seconds);
    one(p, "llamacpp:n_decode_total", "counter", (double)t->steps);
    one(p, "vllm:prefix_cache_queries_total", "counter", (double)m->query_tokens);
    one(p, "vllm:prefix_cache_hits_total", "counter", (double)m->hit_tokens);
    one(p, "vllm:num_preemptions_total", "counter", (double)t->preemptions);
    head(p, "vllm:request_success_total", "counter");
    for (int i = 0; i < ESP_CLASSES; i++)
        line(p, "vllm:request_success_total", "finished_reason", reasons[i], (double)m->finished[i]);
    head(p, "espalier:client_disconnect_total", "counter");
    for (int i = 0; i < ESP_GONE_PHASES; i++)
        line(p, "espalier:client_disconnect_total", "phase", phases[i], (double)m->gone[i]);
    one(p, "espalier:slow_clients_total", "counter", (double)m->slow_clients);
    head(p, "espalier:tool_calls_total", "counter");
    line(p, "espalier:tool_calls_total", "result", "ok", (double)m->calls_ok);
    line(p, "espalier:tool_calls_total", "result", "warned", (double)m->calls_warned);
    one(p, "espalier:reasoning_tokens_total", "counter", (double)m->reasoning_total);
    head(p, "espalier:admission_rejected_total", "counter");
    line(p, "espalier:admission_rejected_total", "code", "queue_full", (double)m->rejected_queue);
    line(p, "espalier:admission_rejected_total", "code", "context_length_exceeded",
         (double)m->rejected_context);
    head(p, "espalier:cache_lookup_total", "counter");
    for (int i = 0; i < ESP_CACHE_REASONS; i++)
        line(p, "espalier:cache_lookup_total", "reason", esp_cache_reasons[i], (double)m->cache_reasons[i]);
}

/* Speculation, under both families of names. */
static void drafts(const struct page *p, const esp_stats *t)
{
    static const char *const families[] = {"vllm", "llamacpp"};
    char name[80], position[12];

    one(p, "espalier:spec_rows_enabled", "gauge", t->spec_rows);
    for (int f = 0; f < 2; f++) {
        snprintf(name, sizeof name, "%s:spec_decode_num_drafts_total", families[f]);
        one(p, name, "counter", (double)t->spec_rounds);
        snprintf(name, sizeof name, "%s:spec_decode_num_draft_tokens_total", families[f]);
        one(p, name, "counter", (double)t->spec_drafted);
        snprintf(name, sizeof name, "%s:spec_decode_num_accepted_tokens_total", families[f]);
        one(p, name, "counter", (double)t->spec_accepted);
        snprintf(name, sizeof name, "%s:spec_decode_num_accepted_tokens_per_pos_total", families[f]);
        head(p, name, "counter");
        for (int i = 0; i < ESP_SPEC_POSITIONS; i++) {
            snprintf(position, sizeof position, "%d", i);
            line(p, name, "position", position, (double)t->spec_right_at[i]);
        }
    }
}

/* Where the memory is. */
static void memory(const struct page *p, const struct esp_server *s, const esp_stats *t)
{
    const struct {
        const char *kind;
        uint64_t bytes;
    } kinds[] = {{"weights", s->plan.weights},         {"kv", s->plan.kv_pool},
                 {"states", s->plan.state_pool},       {"transient", s->plan.scratch},
                 {"speculation", s->plan.speculation}, {"fixed", s->plan.fixed},
                 {"adapters", s->plan.adapters}};

    one(p, "espalier:state_bytes", "gauge", (double)t->slots_used * (double)s->units.slot);
    one(p, "espalier:kv_bytes", "gauge", (double)t->pages_used * (double)s->units.page);
    one(p, "espalier:checkpoint_bytes", "gauge", (double)t->cache_checkpoints * (double)s->units.slot);
    head(p, "espalier:cache_tier_bytes", "gauge");
    line(p, "espalier:cache_tier_bytes", "tier", esp_cache_tier(s),
         (double)t->cache_checkpoints * (double)s->units.slot);
    line(p, "espalier:cache_tier_bytes", "tier", "disk", (double)t->disk_bytes);
    one(p, "espalier:cache_texts", "gauge", t->cache_texts);
    one(p, "espalier:cache_evictions_total", "counter", (double)t->cache_evictions);
    if (s->plan.total == 0)
        return;
    head(p, "espalier:memory_bytes", "gauge");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        two(p, "espalier:memory_bytes", "kind", kinds[i].kind, (double)kinds[i].bytes);
    head(p, "espalier:memory_headroom_bytes", "gauge");
    line(p, "espalier:memory_headroom_bytes", "device", s->device,
         s->budget > s->plan.total ? (double)(s->budget - s->plan.total) : 0.0);
}

/* Requests by adapter, and those in use. */
static void adapters(const struct page *p, const struct esp_server *s)
{
    json_t *list = esp_mounts_list(s), *a;
    char names[1024] = "";
    size_t i;

    head(p, "espalier:adapter_requests_total", "counter");
    json_array_foreach(list, i, a)
    {
        const char *id = json_string_value(json_object_get(a, "id"));
        const size_t used = strlen(names);

        line(p, "espalier:adapter_requests_total", "adapter", id,
             (double)json_integer_value(json_object_get(a, "requests_total")));
        if (json_integer_value(json_object_get(a, "refs")))
            snprintf(names + used, sizeof names - used, "%s%s", used ? "," : "", id);
    }
    json_decref(list);
    if (!wanted(p, "vllm:lora_requests_info"))
        return;
    head(p, "vllm:lora_requests_info", "gauge");
    esp_strbuf_puts(p->out, "vllm:lora_requests_info{model_name=\"");
    label(p->out, p->model);
    esp_strbuf_puts(p->out, "\",running_lora_adapters=\"");
    label(p->out, names);
    esp_strbuf_printf(p->out, "\",waiting_lora_adapters=\"\",max_lora=\"%d\"} %lld\n", ESP_ADAPTERS_MAX,
                      (long long)s->started_unix);
}

static void errors(const struct page *p, const struct esp_server *s)
{
    const char *code;
    json_t *n;

    head(p, "espalier:errors_total", "counter");
    json_object_foreach(s->errors, code, n)
    {
        line(p, "espalier:errors_total", "code", code, (double)json_integer_value(n));
    }
    one(p, "espalier:device_lost_total", "counter",
        (double)json_integer_value(json_object_get(s->errors, "device_lost")));
}

static void http_counts(const struct page *p, const struct esp_metrics *m)
{
    if (!wanted(p, "espalier:http_requests_total"))
        return;
    head(p, "espalier:http_requests_total", "counter");
    for (size_t r = 0; r < ESP_MAX_ROUTES; r++)
        for (size_t i = 0; i < ESP_MAX_STATUSES; i++) {
            const struct esp_route *route = esp_route_at(r);

            if (!m->http[r][i])
                continue;
            esp_strbuf_printf(p->out,
                              "espalier:http_requests_total{route=\"%s\",method=\"%s\",status=\"%d\"} %llu\n",
                              route ? route->path : "other", route ? route->method : "other", statuses[i],
                              (unsigned long long)m->http[r][i]);
        }
}

static void process(const struct page *p, const struct esp_server *s)
{
    struct rusage u;

    if (getrusage(RUSAGE_SELF, &u) != 0)
        return;
    esp_strbuf_printf(
        p->out,
        "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total %.6f\n"
        "# TYPE process_max_resident_memory_bytes gauge\nprocess_max_resident_memory_bytes %lld\n"
        "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %lld\n",
        (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
            1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec),
        (long long)u.ru_maxrss * 1024, (long long)s->started_unix);
}

void esp_metrics_write(struct esp_server *s, struct esp_strbuf *out)
{
    const struct esp_metrics *m = &s->metrics;
    const struct page p = {out, s->o.model_id, s->o.metrics_names ? s->o.metrics_names : UINT_MAX};
    esp_stats t;

    esp_life_stats(s, &t);
    gauges(&p, &t);
    counters(&p, m, &t);
    drafts(&p, &t);
    memory(&p, s, &t);
    adapters(&p, s);
    errors(&p, s);
    steps(&p, &t);
    histogram(&p, "espalier:grammar_compile_seconds", &m->grammar, esp_buckets_phase);
    histogram(&p, "espalier:request_overhead_seconds", &m->overhead, esp_buckets_own);
    histogram(&p, "espalier:prompt_build_seconds", &m->prompt_build, esp_buckets_own);
    histogram(&p, "vllm:time_to_first_token_seconds", &m->ttft, esp_buckets_ttft);
    histogram(&p, "vllm:inter_token_latency_seconds", &m->inter_token, esp_buckets_token);
    histogram(&p, "vllm:e2e_request_latency_seconds", &m->e2e, esp_buckets_phase);
    histogram(&p, "vllm:request_queue_time_seconds", &m->queue, esp_buckets_phase);
    histogram(&p, "vllm:request_prefill_time_seconds", &m->prefill, esp_buckets_phase);
    histogram(&p, "vllm:request_decode_time_seconds", &m->decode, esp_buckets_phase);
    histogram(&p, "vllm:request_inference_time_seconds", &m->inference, esp_buckets_phase);
    histogram(&p, "vllm:request_prompt_tokens", &m->prompt_tokens, esp_buckets_count);
    histogram(&p, "vllm:request_generation_tokens", &m->output_tokens, esp_buckets_count);
    histogram(&p, "vllm:request_params_max_tokens", &m->max_tokens, esp_buckets_count);
    histogram(&p, "vllm:request_params_n", &m->n, esp_buckets_count);
    one(&p, "espalier:asleep", "gauge", esp_life_asleep(s) ? 1 : 0);
    one(&p, "espalier:queue_limit", "gauge", s->queue);
    http_counts(&p, m);
    process(&p, s);
}
