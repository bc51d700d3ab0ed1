/*
 * What the machine allows a row of a benchmark: bytes that it must read over the measured bandwidth, and
 * operations over the measured rates of the level's instructions on registers. The larger of the two times
 * bounds the row; each share is that part of the measured time.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/bench.h"

#include <stdlib.h>

#include "base/pool.h"

#include "program/output.h"

enum { ROUNDS = 1 << 18, TRIES = 5 };

const char *esp_bench_level(const struct esp_bench_context *c)
{
    const struct esp_opt_value *cpu = &c->session->opt->v[OPT_CPU];
    const char *env = getenv("ESPALIER_CPU"); /* as the engine takes it */

    return cpu->i ? cpu->s : env && *env ? env : c->machine->level;
}

static void spin(void *arg, uint32_t tid, uint32_t n_thread)
{
    const struct esp_peak *p = arg;

    (void)tid;
    (void)n_thread;
    p->run(ROUNDS);
}

/* Operations a second of all threads; the best of a few tries, as others' work only takes away. */
static double rate_of(struct esp_pool *pool, struct esp_peak *p)
{
    double best = 0;

    for (int i = 0; p->run && i < TRIES; i++) {
        const double start = esp_now();
        double rate;

        esp_pool_run(pool, spin, p);
        rate = (double)p->ops * ROUNDS * esp_pool_size(pool) / (esp_now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

esp_status esp_bench_arithmetic(struct esp_bench_context *c, esp_error *err)
{
    struct esp_kernels k;
    enum esp_cpu_level level;
    struct esp_pool *pool;

    ESP_TRY(esp_engine_work(c->session->model, &c->session->engine_opts, &c->work, err));
    if (c->session->about.memory) /* a device's arithmetic is not measured */
        return ESP_OK;
    ESP_TRY(esp_cpu_level_parse(&level, esp_bench_level(c), err));
    esp_kernels_init(&k, level);
    ESP_TRY(esp_pool_create(&pool, c->threads, err));
    for (int a = 0; a < ESP_ACT_COUNT; a++)
        if (a == ESP_ACT_F32 || c->work.token[a] + c->work.output[a] > 0)
            c->rate[a] = rate_of(pool, &k.peak[a]);
    esp_pool_destroy(pool);
    return ESP_OK;
}

/* What one repetition of a row does. */
struct demand {
    double tokens, outputs;
    double seen;  /* positions that its tokens see, in all */
    double steps; /* passes over the weights */
    double kept;  /* positions whose keys and values are read, in all */
};

/* A chunk of a prompt reads the keys and values before it once for all its rows. */
static struct demand demand_of(const struct esp_bench_context *c, const struct esp_bench_row *r)
{
    const size_t chunk = c->session->engine_opts.chunk ? c->session->engine_opts.chunk : 512;
    const double n = (double)r->prompt;
    const double batch = (double)r->batch, mean = (double)r->depth + (double)r->gen / 2;
    struct demand d = {.tokens = n, .outputs = 1, .seen = n * (n + 1) / 2};

    if (!r->prompt)
        return (struct demand){batch, batch, batch * mean, 1, batch * mean}; /* one step */
    for (size_t at = 0; at < r->prompt; at += chunk) {
        d.steps++;
        d.kept += (double)(r->prompt - at > chunk ? at + chunk : r->prompt);
    }
    return d;
}

/* Seconds of the operations at the measured rates, 0 where one is not known; *ops counts them. */
static double arithmetic(const struct esp_bench_context *c, const struct demand *d, double *ops)
{
    const double rest = c->work.other * d->tokens + c->work.position * d->seen;
    double seconds = 0;
    bool known = c->rate[ESP_ACT_F32] > 0;

    *ops = rest;
    if (known)
        seconds = rest / c->rate[ESP_ACT_F32];
    for (int a = 0; a < ESP_ACT_COUNT; a++) {
        const double n = c->work.token[a] * d->tokens + c->work.output[a] * d->outputs;

        *ops += n;
        if (n > 0 && c->rate[a] > 0)
            seconds += n / c->rate[a];
        known = known && (n <= 0 || c->rate[a] > 0);
    }
    return known ? seconds : 0;
}

void esp_bench_roof(const struct esp_bench_context *c, const esp_memory_plan *plan, struct esp_bench_row *r)
{
    const struct demand d = demand_of(c, r);
    const double bytes =
        (double)c->session->info.weight_bytes * d.steps + (double)plan->kv_per_token * d.kept +
        2 * (double)plan->state_per_seq * d.steps * (double)r->batch; /* states are written as well */
    double ops, seconds = arithmetic(c, &d, &ops);

    r->bytes_per_token = bytes / d.tokens;
    r->ops_per_token = ops / d.tokens;
    if (c->bandwidth > 0)
        r->share = r->bytes_per_token * r->median / c->bandwidth;
    r->arithmetic_share = seconds / d.tokens * r->median;
}
