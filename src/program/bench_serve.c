/*
 * bench --serve: a server under load, seen from its clients. Prompts are random token ids below 256, which
 * every byte-level vocabulary has; answers have a fixed length, so that every request is the same work.
 *
 * SPDX-License-Identifier: MIT
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"

#include "program/bench.h"
#include "program/load_texts.h"
#include "program/output.h"
#include "program/verbs.h"

enum { DEFAULT_PER_CLIENT = 4, DEFAULT_VERIFIED = 8 };

struct load_bench {
    const struct esp_options *opt;
    struct esp_load_target target;
    size_t prompt, gen;
    uint64_t n_prompt; /* different ones; 0: each its own */
    uint64_t seed;
    struct esp_load_texts texts;
    FILE *file; /* NULL: standard output */
};

/* ---- requests ---- */

static void body(void *user, uint64_t i, struct esp_strbuf *out)
{
    const struct load_bench *b = user;
    const uint64_t which = b->n_prompt ? i % b->n_prompt : i;

    esp_strbuf_puts(out, "{\"prompt\":[");
    for (size_t k = 0; k < b->prompt; k++) {
        const uint64_t x = esp_hash_u64(b->seed ^ esp_hash_u64(which)) + k;

        esp_strbuf_printf(out, "%s%u", k ? "," : "", (unsigned)(esp_hash_u64(x) % 256));
    }
    esp_strbuf_printf(out,
                      "],\"max_tokens\":%zu,\"min_tokens\":%zu,\"ignore_eos\":true,\"temperature\":0,"
                      "\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
                      b->gen, b->gen);
}

static bool whole(void *user, uint64_t i, const char *text, size_t len)
{
    const struct load_bench *b = user;

    return !b->texts.n || esp_load_texts_same(&b->texts, i, text, len);
}

static struct esp_load_opts load_opts(struct load_bench *b, uint32_t clients)
{
    const struct esp_opt_value *v = b->opt->v;

    return (struct esp_load_opts){
        .target = &b->target,
        .path = "/v1/completions",
        .key = v[OPT_API_KEY].s,
        .concurrency = clients,
        .rate = v[OPT_RATE].f,
        .requests = v[OPT_REQUESTS].i       ? (uint64_t)v[OPT_REQUESTS].i
                    : v[OPT_MAX_TIME].given ? 0
                                            : (uint64_t)clients * DEFAULT_PER_CLIENT,
        .seconds = v[OPT_MAX_TIME].given ? v[OPT_MAX_TIME].f : 0,
        .leave = v[OPT_LEAVE].f / 100,
        .stall = v[OPT_STALL].f / 100,
        .seed = b->seed,
        .body = body,
        .whole = whole,
        .user = b,
        .interrupted = esp_interrupted,
    };
}

/* ---- reports ---- */

static double ms(struct esp_load_times *t, double q)
{
    return 1000 * esp_bench_quantile(t->v, t->n, q);
}

static void put(const struct load_bench *b, const char *text)
{
    if (b->file)
        fputs(text, b->file); /* its errors are looked for when it is closed */
    else
        esp_out_write(text, strlen(text));
}

static void head(const struct load_bench *b)
{
    char line[900];

    if (b->opt->v[OPT_FORMAT].i == ESP_BENCH_CSV && !b->opt->v[OPT_JSON].on) {
        put(b, "clients,prompt,gen,rate,seconds,sent,whole,different,left,stalled,dropped,refused,errors,"
               "tokens_per_s,"
               "ttft_p50_ms,ttft_p95_ms,ttft_p99_ms,gap_p50_ms,gap_p95_ms,gap_p99_ms,total_p50_ms,total_p99_"
               "ms\n");
    } else if (b->opt->v[OPT_FORMAT].i == ESP_BENCH_MD && !b->opt->v[OPT_JSON].on) {
        snprintf(line, sizeof line, "espalier %s against %s, prompts of %zu tokens, answers of %zu\n\n",
                 esp_version(), b->target.shown, b->prompt, b->gen);
        put(b, line);
        put(b, "| clients | whole | left, stalled | refused | errors | tokens/s | TTFT ms p50 | p95 | p99 | "
               "between ms p50 | p95 "
               "| p99 | whole ms p50 | p99 "
               "|\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    }
}

static json_t *percentiles(struct esp_load_times *t)
{
    return json_pack("{s:f,s:f,s:f,s:f,s:I}", "p50", ms(t, 0.5), "p95", ms(t, 0.95), "p99", ms(t, 0.99),
                     "max", ms(t, 1), "n", (json_int_t)t->n);
}

static json_t *record(const struct load_bench *b, uint32_t clients, struct esp_load_report *r)
{
    json_t *j = json_pack("{s:s,s:s,s:s,s:I,s:I,s:I,s:f,s:f}", "schema", "espalier.bench_serve.v1", "version",
                          esp_version(), "url", b->target.shown, "clients", (json_int_t)clients, "prompt",
                          (json_int_t)b->prompt, "gen", (json_int_t)b->gen, "rate", b->opt->v[OPT_RATE].f,
                          "seconds", r->seconds);

    json_object_update_new(j, json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:b}", "sent", (json_int_t)r->sent,
                                        "whole", (json_int_t)r->whole, "different", (json_int_t)r->different,
                                        "left", (json_int_t)r->left, "stalled", (json_int_t)r->stalled,
                                        "dropped", (json_int_t)r->dropped, "refused", (json_int_t)r->refused,
                                        "errors", (json_int_t)r->errors, "verified", (int)(b->texts.n > 0)));
    json_object_update_new(
        j, json_pack("{s:I,s:f,s:f,s:o,s:o,s:o,s:o,s:s}", "tokens", (json_int_t)r->tokens, "tokens_per_s",
                     r->seconds > 0 ? (double)r->tokens / r->seconds : 0.0, "requests_per_s",
                     r->seconds > 0 ? (double)r->whole / r->seconds : 0.0, "ttft_ms", percentiles(&r->ttft),
                     "between_ms", percentiles(&r->gap), "whole_ms", percentiles(&r->total), "outside_ms",
                     percentiles(&r->outside), "first_error", r->first_error));
    return j;
}

static void print(const struct load_bench *b, uint32_t clients, struct esp_load_report *r)
{
    const double tps = r->seconds > 0 ? (double)r->tokens / r->seconds : 0;
    char line[900], *text;
    json_t *j;

    if (b->opt->v[OPT_JSON].on || b->opt->v[OPT_FORMAT].i == ESP_BENCH_JSONL) {
        j = record(b, clients, r);
        text = j ? json_dumps(j, JSON_COMPACT) : NULL;
        put(b, text ? text : "");
        put(b, "\n");
        free(text);
        json_decref(j);
    } else if (b->opt->v[OPT_FORMAT].i == ESP_BENCH_CSV) {
        snprintf(line, sizeof line,
                 "%u,%zu,%zu,%g,%.3f,%llu,%llu,%llu,%llu,%llu,%llu,%llu,%llu,%.2f,%.3f,%.3f,%.3f,%.3f,%.3f,%."
                 "3f,%.3f,%.3f\n",
                 clients, b->prompt, b->gen, b->opt->v[OPT_RATE].f, r->seconds, (unsigned long long)r->sent,
                 (unsigned long long)r->whole, (unsigned long long)r->different, (unsigned long long)r->left,
                 (unsigned long long)r->stalled, (unsigned long long)r->dropped,
                 (unsigned long long)r->refused, (unsigned long long)r->errors, tps, ms(&r->ttft, 0.5),
                 ms(&r->ttft, 0.95), ms(&r->ttft, 0.99), ms(&r->gap, 0.5), ms(&r->gap, 0.95),
                 ms(&r->gap, 0.99), ms(&r->total, 0.5), ms(&r->total, 0.99));
        put(b, line);
    } else {
        snprintf(line, sizeof line,
                 "| %u | %llu | %llu, %llu | %llu | %llu | %.1f | %.1f | %.1f | %.1f | %.2f | %.2f | %.2f | "
                 "%.0f | %.0f |\n",
                 clients, (unsigned long long)r->whole, (unsigned long long)r->left,
                 (unsigned long long)r->stalled, (unsigned long long)r->refused,
                 (unsigned long long)r->errors, tps, ms(&r->ttft, 0.5), ms(&r->ttft, 0.95),
                 ms(&r->ttft, 0.99), ms(&r->gap, 0.5), ms(&r->gap, 0.95), ms(&r->gap, 0.99),
                 ms(&r->total, 0.5), ms(&r->total, 0.99));
        put(b, line);
    }
    if (!b->file)
        esp_out_flush();
}

/* ---- the verb ---- */

static esp_status prepare(struct load_bench *b, esp_error *err)
{
    const struct esp_opt_value *v = b->opt->v;

    ESP_TRY(esp_load_target_parse(&b->target, v[OPT_SERVE_URL].s, err));
    if (b->opt->n_args || v[OPT_SYNTHETIC].given || v[OPT_BASELINE].given)
        return esp_fail(err, ESP_EINVAL,
                        "--serve measures a running server: no MODEL, --synthetic or --baseline with it");
    if (v[OPT_PROMPT_TOKENS].n != 1 || v[OPT_GEN_TOKENS].n != 1 || !v[OPT_PROMPT_TOKENS].ints[0] ||
        !v[OPT_GEN_TOKENS].ints[0])
        return esp_fail(err, ESP_EINVAL,
                        "--serve takes one --prompt-tokens and one --gen-tokens, both above 0");
    if (v[OPT_LEAVE].f + v[OPT_STALL].f > 100)
        return esp_fail(err, ESP_EINVAL, "--leave and --stall together are more than 100 percent");
    b->prompt = (size_t)v[OPT_PROMPT_TOKENS].ints[0];
    b->gen = (size_t)v[OPT_GEN_TOKENS].ints[0];
    b->seed = v[OPT_SEED].given ? (uint64_t)v[OPT_SEED].i : 1;
    b->n_prompt = v[OPT_PROMPTS].i ? (uint64_t)v[OPT_PROMPTS].i : v[OPT_VERIFY].on ? DEFAULT_VERIFIED : 0;
    return ESP_OK;
}

static esp_status run_rows(struct load_bench *b, uint64_t *bad, esp_error *err)
{
    const struct esp_opt_value *list = &b->opt->v[OPT_CONCURRENCY];

    if (b->opt->v[OPT_VERIFY].on) {
        const struct esp_load_opts o = load_opts(b, 1);

        ESP_TRY(esp_load_texts_learn(&b->texts, &o, (size_t)b->n_prompt, err));
    }
    head(b);
    for (size_t i = 0; i < list->n; i++) {
        const struct esp_load_opts o = load_opts(b, (uint32_t)list->ints[i]);
        struct esp_load_report r;
        const esp_status s = esp_load_run(&r, &o, err);

        if (s == ESP_OK)
            print(b, o.concurrency, &r);
        if (s == ESP_OK && r.first_error[0])
            esp_say_warn("%s", r.first_error);
        *bad += r.errors + r.different;
        esp_load_report_free(&r);
        if (s != ESP_OK)
            return s;
    }
    return ESP_OK;
}

int esp_bench_serve(const struct esp_options *opt)
{
    struct load_bench b = {.opt = opt};
    const char *path = opt->v[OPT_OUTPUT].given ? opt->v[OPT_OUTPUT].s : NULL;
    esp_error err = {0};
    uint64_t bad = 0;
    esp_status s = prepare(&b, &err);

    if (s == ESP_OK && path) {
        b.file = fopen(path, "we");
        if (!b.file)
            s = esp_fail(&err, ESP_EIO, "%s: could not be written: %s", path, strerror(errno));
    }
    if (s == ESP_OK)
        s = run_rows(&b, &bad, &err);
    if (b.file) {
        const bool broken = ferror(b.file) != 0;

        if ((fclose(b.file) != 0 || broken) && s == ESP_OK)
            s = esp_fail(&err, ESP_EIO, "%s: could not be written: %s", path, strerror(errno));
    }
    esp_load_texts_free(&b.texts);
    if (s != ESP_OK)
        return esp_report(s, &err);
    return bad ? ESP_EXIT_CHECK : 0;
}
