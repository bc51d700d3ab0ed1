/*
 * Counters and histograms, written as Prometheus text. Filled on the event loop alone.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_METRICS_H
#define ESP_SERVE_METRICS_H

#include <stdint.h>

#include "base/strbuf.h"

enum { ESP_MAX_BUCKETS = 28, ESP_MAX_ROUTES = 64, ESP_MAX_STATUSES = 24 };

struct esp_histogram {
    uint64_t count[ESP_MAX_BUCKETS + 1]; /* not cumulative; the last is beyond all */
    double sum;
    uint64_t n;
};

enum esp_finish_class { ESP_CLASS_STOP, ESP_CLASS_LENGTH, ESP_CLASS_ABORT, ESP_CLASS_ERROR, ESP_CLASSES };
enum esp_gone_phase { ESP_GONE_QUEUED, ESP_GONE_PREFILL, ESP_GONE_DECODE, ESP_GONE_PHASES };

/* Why a prompt was cached or not: as ext.cache.reason has it. */
enum { ESP_CACHE_REASONS = 7 };
extern const char *const esp_cache_reasons[ESP_CACHE_REASONS];

struct esp_metrics {
    struct esp_histogram overhead, prompt_build;
    struct esp_histogram ttft, inter_token, e2e, queue, prefill, decode, inference, grammar;
    struct esp_histogram prompt_tokens, output_tokens, max_tokens, n;
    uint64_t finished[ESP_CLASSES];
    uint64_t prompt_total, output_total, reasoning_total, query_tokens, hit_tokens;
    uint64_t gone[ESP_GONE_PHASES], slow_clients;
    uint64_t calls_ok, calls_warned, clamped, preemptions;
    uint64_t rejected_queue, rejected_context;
    uint64_t cache_reasons[ESP_CACHE_REASONS];
    uint64_t http[ESP_MAX_ROUTES][ESP_MAX_STATUSES]; /* by route and status of the tables in metrics.c */
};

/* Two counters as they were in each of the last seconds. */
enum { ESP_MINUTE = 60 };
struct esp_minute {
    double at[ESP_MINUTE];
    uint64_t count[ESP_MINUTE][2];
    uint32_t n, next;
};
/* Once in a while; keeps one sample a second. */
void esp_minute_note(struct esp_minute *m, double now, uint64_t first, uint64_t second);
/* Per second over the last minute, or since the first sample: count is what the counter is now. */
double esp_minute_rate(const struct esp_minute *m, uint64_t count, int which);

void esp_observe_seconds(struct esp_histogram *h, const double *buckets, double x);
extern const double esp_buckets_own[], esp_buckets_ttft[], esp_buckets_token[], esp_buckets_phase[],
    esp_buckets_count[];
void esp_count_http(struct esp_metrics *m, int route, int status);

struct esp_server;
struct esp_call;
void esp_metrics_write(struct esp_server *s, struct esp_strbuf *out);

#endif
