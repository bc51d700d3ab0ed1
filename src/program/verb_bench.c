/*
 * bench: prompt and generation speed. Tokens are random, sampling is greedy and end tokens do not end
 * anything, so every repetition does the same work. A generation row starts its clock when all its sequences
 * have given their first token.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "program/bench.h"
#include "program/energy.h"
#include "program/output.h"

struct bench {
    struct esp_session session;
    const struct esp_options *opt;
    struct esp_machine machine;
    struct esp_energy energy;
    struct esp_bench_context context;
    esp_memory_plan plan;
    struct esp_bench_row *rows;
    size_t n_rows;
    esp_token *tokens; /* random, as many as the longest prompt */
    esp_event *events;
    size_t cap_events;
    esp_seq **seqs; /* max_seqs of them */
    size_t *emitted;
    double *steps; /* times between tokens of one row, all repetitions */
    size_t n_steps, cap_steps;
};

/* ---- rows and sizes ---- */

static esp_status make_rows(struct bench *b, esp_error *err)
{
    const struct esp_opt_value *v = b->opt->v;
    const struct esp_opt_value *p = &v[OPT_PROMPT_TOKENS], *g = &v[OPT_GEN_TOKENS], *n = &v[OPT_BATCH],
                               *d = &v[OPT_DEPTH];

    b->rows = calloc(p->n + g->n * n->n * d->n, sizeof *b->rows);
    if (!b->rows)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu rows", p->n + g->n * n->n * d->n);
    for (size_t i = 0; i < p->n; i++) {
        if (p->ints[i])
            b->rows[b->n_rows++] = (struct esp_bench_row){.prompt = (size_t)p->ints[i], .batch = 1};
    }
    for (size_t i = 0; i < d->n * n->n * g->n; i++) {
        const size_t gen = (size_t)g->ints[i % g->n], batch = (size_t)n->ints[i / g->n % n->n];

        if (gen)
            b->rows[b->n_rows++] =
                (struct esp_bench_row){.gen = gen, .batch = batch, .depth = (size_t)d->ints[i / g->n / n->n]};
    }
    if (!b->n_rows)
        return esp_fail(err, ESP_EINVAL, "nothing to measure: give --prompt-tokens or --gen-tokens above 0");
    return ESP_OK;
}

/* Sizes of the engine: the longest sequence, the most sequences, and positions for the largest row. */
static esp_status size_engine(struct bench *b, size_t *longest, esp_error *err)
{
    enum { SLACK = 256 }; /* the last page of each sequence is partly used */
    esp_engine_opts *o = &b->session.engine_opts;
    size_t context = 0, pool = 0;

    esp_session_engine_opts(&b->session);
    *longest = 1;
    for (size_t i = 0; i < b->n_rows; i++) {
        const struct esp_bench_row *r = &b->rows[i];
        const size_t known = r->prompt ? r->prompt : r->depth ? r->depth : 1, len = known + r->gen + 2;

        *longest = known > *longest ? known : *longest;
        context = len > context ? len : context;
        pool = r->batch * (len + SLACK) > pool ? r->batch * (len + SLACK) : pool;
        o->max_seqs = r->batch > o->max_seqs ? (uint32_t)r->batch : o->max_seqs;
    }
    if (o->context && o->context < context)
        return esp_fail(err, ESP_EINVAL, "--ctx %u: the longest row needs %zu tokens", o->context, context);
    if (context > b->session.info.context)
        return esp_fail(err, ESP_ENOFIT, "the longest row needs %zu tokens; the model was made for %u",
                        context, b->session.info.context);
    o->context = o->context ? o->context : (uint32_t)context;
    o->kv_tokens = pool;
    return ESP_OK;
}

static esp_status allocate(struct bench *b, size_t longest, esp_error *err)
{
    const uint32_t vocab = b->session.info.n_token ? b->session.info.n_token : b->session.info.n_vocab;
    const size_t seqs = b->session.engine_opts.max_seqs;
    uint64_t x = b->opt->v[OPT_SEED].given ? (uint64_t)b->opt->v[OPT_SEED].i + 1 : 2;

    b->cap_events = 34 * seqs; /* a burst of drafts comes as one step */
    b->tokens = calloc(longest, sizeof *b->tokens);
    b->events = calloc(b->cap_events, sizeof *b->events);
    b->seqs = calloc(seqs, sizeof(esp_seq *));
    b->emitted = calloc(seqs, sizeof *b->emitted);
    if (!b->tokens || !b->events || !b->seqs || !b->emitted)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu tokens and %zu sequences", longest, seqs);
    for (size_t i = 0; i < longest;
         i++) { /* Lehmer's generator in 128 bits would do; 64-bit xorshift* is enough */
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        b->tokens[i] = (esp_token)((x * 0x2545f4914f6cdd1dU >> 33) % vocab);
    }
    return ESP_OK;
}

static esp_status note_step(struct bench *b, double seconds, esp_error *err)
{
    if (b->n_steps == b->cap_steps) {
        const size_t cap = b->cap_steps ? 2 * b->cap_steps : 1024;
        double *p = realloc(b->steps, cap * sizeof *p);

        if (!p)
            return esp_fail(err, ESP_ENOMEM, "no memory for %zu times", cap);
        b->steps = p;
        b->cap_steps = cap;
    }
    b->steps[b->n_steps++] = seconds;
    return ESP_OK;
}

/* ---- one repetition ---- */

static void close_seqs(struct bench *b)
{
    for (size_t i = 0; i < b->session.engine_opts.max_seqs; i++) {
        esp_seq_close(b->seqs[i]);
        b->seqs[i] = NULL;
        b->emitted[i] = 0;
    }
}

/* Open the row's sequences with their known tokens and arm them for n more. */
static esp_status arm(struct bench *b, const struct esp_bench_row *r, size_t n, esp_error *err)
{
    esp_seq_opts so = {.sampling = {.ignore_end = true}};
    const size_t known = r->prompt ? r->prompt : r->depth ? r->depth : 1;

    esp_adapters_use(&b->session.adapters, &so);
    close_seqs(b);
    for (size_t i = 0; i < r->batch; i++) {
        ESP_TRY(esp_seq_open(&b->seqs[i], b->session.engine, &so, err));
        ESP_TRY(esp_seq_append(b->seqs[i], b->tokens, known, err));
        ESP_TRY(esp_seq_generate(b->seqs[i], n, err));
    }
    return ESP_OK;
}

/* One engine step; *n_new tokens came, and *n_open sequences are not done. */
static esp_status step(struct bench *b, const struct esp_bench_row *r, size_t *n_new, size_t *n_open,
                       esp_error *err)
{
    size_t n = 0;

    if (esp_interrupted())
        return esp_fail(err, ESP_ECANCELLED, "interrupted");
    ESP_TRY(esp_engine_step(b->session.engine, b->events, b->cap_events, &n, err));
    *n_new = 0;
    for (size_t i = 0; i < n; i++) {
        const esp_event *e = &b->events[i];

        if (e->finish == ESP_FINISH_FAILED)
            return esp_fail(err, ESP_ENUMERIC, "a sequence failed: %s",
                            e->message ? e->message : "no reason given");
        for (size_t k = 0; k < r->batch && e->token >= 0; k++) {
            if (b->seqs[k] == e->seq)
                b->emitted[k]++;
        }
        *n_new += e->token >= 0;
        *n_open -= e->finish != ESP_FINISH_NONE;
    }
    return ESP_OK;
}

static bool all_started(const struct bench *b, size_t batch)
{
    for (size_t i = 0; i < batch; i++) {
        if (!b->emitted[i])
            return false;
    }
    return true;
}

/* A repetition of n tokens ends; summed here, divided by their number at the end. */
static void note_energy(const struct bench *b, struct esp_bench_row *r, bool measured, size_t n)
{
    if (measured && b->context.has_energy && n)
        r->joules_per_token += esp_energy_used(&b->energy) / (double)n;
}

/* Run the row once; tokens per second in *tps. With measured false nothing is kept. */
static esp_status repeat(struct bench *b, struct esp_bench_row *r, bool measured, double *tps, esp_error *err)
{
    size_t open = r->batch, fresh = 0, count = 0;
    double start = esp_now(), last;

    esp_energy_start(&b->energy);
    ESP_TRY(arm(b, r, r->gen + 1, err));
    while (open && !all_started(b, r->batch))
        ESP_TRY(step(b, r, &fresh, &open, err));
    if (measured)
        r->ttft_s += esp_now() - start;
    if (r->prompt) {
        *tps = (double)r->prompt / (esp_now() - start);
        note_energy(b, r, measured, r->prompt);
        return ESP_OK;
    }
    esp_energy_start(&b->energy);
    start = last = esp_now();
    while (open) {
        double now;

        ESP_TRY(step(b, r, &fresh, &open, err));
        now = esp_now();
        if (measured && fresh)
            ESP_TRY(note_step(b, now - last, err));
        last = now;
        count += fresh;
    }
    *tps = (double)count / (last - start);
    note_energy(b, r, measured, count);
    return ESP_OK;
}

static esp_status measure(struct bench *b, struct esp_bench_row *r, esp_error *err)
{
    const struct esp_opt_value *v = b->opt->v;
    const size_t reps = (size_t)v[OPT_REPS].i;
    const double limit = v[OPT_MAX_TIME].given ? v[OPT_MAX_TIME].f : 1e30, start = esp_now();
    esp_stats before, after;
    double tps;

    r->samples = calloc(reps, sizeof *r->samples);
    if (!r->samples)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu samples", reps);
    if (v[OPT_WARMUP].on)
        ESP_TRY(repeat(b, r, false, &tps, err));
    b->n_steps = 0;
    esp_engine_stats(b->session.engine, &before);
    while (r->n_sample < reps && (r->n_sample == 0 || esp_now() - start < limit)) {
        ESP_TRY(repeat(b, r, true, &tps, err));
        r->samples[r->n_sample++] = tps;
    }
    esp_engine_stats(b->session.engine, &after);
    r->drafted = after.spec_drafted - before.spec_drafted;
    r->accepted = after.spec_accepted - before.spec_accepted;
    r->rounds = after.spec_rounds - before.spec_rounds;
    esp_bench_summarize(r);
    r->peak_rss = esp_peak_rss();
    r->ttft_s /= (double)r->n_sample;
    r->joules_per_token /= (double)r->n_sample;
    esp_bench_roof(&b->context, &b->plan, r);
    r->p50_s = esp_bench_quantile(b->steps, b->n_steps, 0.5);
    r->p95_s = esp_bench_quantile(b->steps, b->n_steps, 0.95);
    r->p99_s = esp_bench_quantile(b->steps, b->n_steps, 0.99);
    return ESP_OK;
}

/* ---- the verb ---- */

/* How fast the memory is that steps read: a device's by copies, as that is what it does best. */
static esp_status measure_memory(struct bench *b, esp_error *err)
{
    esp_device d;

    esp_say_detail("measuring the memory");
    if (b->session.about.memory == 0)
        return esp_machine_bandwidth(&b->machine, b->context.threads, &b->context.bandwidth, err);
    ESP_TRY(esp_device_look(&d, b->session.device, true, err));
    b->context.bandwidth = d.copy_rate;
    return ESP_OK;
}

static esp_status prepare(struct bench *b, esp_error *err)
{
    const uint32_t wanted = (uint32_t)b->opt->v[OPT_THREADS].i;
    size_t longest;

    ESP_TRY(make_rows(b, err));
    esp_machine_read(&b->machine);
    b->context.threads = wanted ? wanted : b->machine.cores;
    b->context.session = &b->session;
    b->context.machine = &b->machine;
    b->context.has_energy = esp_energy_open(&b->energy);
    if (!b->context.has_energy)
        esp_say_detail("energy: the system lets nobody, or root alone, read its counters");
    ESP_TRY(esp_session_open(&b->session, b->opt, err));
    esp_bench_identify(&b->context);
    ESP_TRY(size_engine(b, &longest, err));
    ESP_TRY(measure_memory(b, err));
    ESP_TRY(esp_bench_arithmetic(&b->context, err));
    ESP_TRY(allocate(b, longest, err));
    ESP_TRY(esp_engine_plan(b->session.model, &b->session.engine_opts, &b->plan, err));
    return esp_session_engine(&b->session, err);
}

static esp_status run_rows(struct bench *b, FILE *f, enum esp_bench_format format, esp_error *err)
{
    struct esp_progress p;
    esp_status s = ESP_OK;

    esp_bench_head(f, format, &b->context);
    esp_progress_begin(&p, "bench", (double)b->n_rows, "rows");
    for (size_t i = 0; s == ESP_OK && i < b->n_rows; i++) {
        s = measure(b, &b->rows[i], err);
        esp_progress_end(&p);
        if (s == ESP_OK)
            esp_bench_print(f, format, &b->context, &b->rows[i]);
        esp_progress_update(&p, (double)(i + 1));
    }
    esp_progress_end(&p);
    return s;
}

static esp_status bench(struct bench *b, size_t *slower, esp_error *err)
{
    const struct esp_opt_value *v = b->opt->v;
    const char *path = v[OPT_OUTPUT].given ? v[OPT_OUTPUT].s : NULL;
    const enum esp_bench_format format =
        v[OPT_JSON].on ? ESP_BENCH_JSONL : (enum esp_bench_format)v[OPT_FORMAT].i;
    FILE *f = NULL;
    esp_status s;

    if (v[OPT_BASELINE].given)
        ESP_TRY(esp_bench_baseline(v[OPT_BASELINE].s, err));
    if (v[OPT_SAVE].given) /* refused before time is spent on measuring */
        ESP_TRY(esp_bench_save(v[OPT_SAVE].s, &b->context, NULL, 0, err));
    ESP_TRY(prepare(b, err));
    if (path) {
        f = fopen(path, "we");
        if (!f)
            return esp_fail(err, ESP_EIO, "%s: could not be written: %s", path, strerror(errno));
    }
    s = run_rows(b, f, format, err);
    if (f) {
        const bool bad = ferror(f) != 0;

        if ((fclose(f) != 0 || bad) && s == ESP_OK)
            s = esp_fail(err, ESP_EIO, "%s: could not be written: %s", path, strerror(errno));
    }
    if (s == ESP_OK && v[OPT_SAVE].given)
        s = esp_bench_save(v[OPT_SAVE].s, &b->context, b->rows, b->n_rows, err);
    if (s == ESP_OK && v[OPT_BASELINE].given)
        s = esp_bench_compare(v[OPT_BASELINE].s, v[OPT_TOLERANCE].f, b->rows, b->n_rows, slower, err);
    return s;
}

int esp_verb_bench(const struct esp_options *o)
{
    struct bench b = {.opt = o};
    esp_error err = {0};
    size_t slower = 0;
    esp_status s;

    if (o->v[OPT_SERVE_URL].given)
        return esp_bench_serve(o);
    s = bench(&b, &slower, &err);

    if (b.seqs && b.emitted)
        close_seqs(&b);
    for (size_t i = 0; i < b.n_rows; i++)
        free(b.rows[i].samples);
    free(b.rows);
    free(b.tokens);
    free(b.events);
    free(b.seqs);
    free(b.emitted);
    free(b.steps);
    esp_session_close(&b.session);
    if (s != ESP_OK)
        return esp_report(s, &err);
    return slower ? ESP_EXIT_CHECK : 0;
}
