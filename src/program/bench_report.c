/*
 * Tables of benchmark rows, and their comparison.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"

#include "program/output.h"

enum { MAX_BASELINE = 64 << 20 };

const char *esp_bench_name(const struct esp_bench_row *r, char *buf, size_t cap)
{
    int n;

    if (r->prompt) {
        snprintf(buf, cap, "pp%zu", r->prompt);
        return buf;
    }
    n = snprintf(buf, cap, "tg%zu", r->gen);
    if (r->batch > 1)
        n += snprintf(buf + n, cap - (size_t)n, " b%zu", r->batch);
    if (r->depth)
        snprintf(buf + n, cap - (size_t)n, " d%zu", r->depth);
    return buf;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double esp_bench_quantile(double *values, size_t n, double q)
{
    if (n == 0)
        return 0;
    qsort(values, n, sizeof *values, compare_doubles);
    return values[(size_t)(q * (double)(n - 1) + 0.5)];
}

void esp_bench_summarize(struct esp_bench_row *r)
{
    double sum = 0, sq = 0;
    const double n = (double)r->n_sample;

    for (size_t i = 0; i < r->n_sample; i++)
        sum += r->samples[i];
    r->mean = n > 0 ? sum / n : 0;
    for (size_t i = 0; i < r->n_sample; i++)
        sq += (r->samples[i] - r->mean) * (r->samples[i] - r->mean);
    r->sd = n > 1 ? sqrt(sq / (n - 1)) : 0;
    r->median = esp_bench_quantile(r->samples, r->n_sample, 0.5);
    if (r->n_sample % 2 == 0 && r->n_sample) /* sorted now */
        r->median = (r->samples[r->n_sample / 2 - 1] + r->samples[r->n_sample / 2]) / 2;
}

/* ---- printing ---- */

static void put(FILE *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void put(FILE *f, const char *fmt, ...)
{
    char line[4096];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    if ((size_t)n >= sizeof line)
        n = (int)sizeof line - 1;
    if (f)
        fwrite(line, 1, (size_t)n, f); /* the caller checks ferror() once */
    else
        esp_out_write(line, (size_t)n);
}

static bool speculates(const struct esp_options *o)
{
    return strcmp(o->v[OPT_SPEC].s, "off") != 0;
}

/* The measured arithmetic limits, of the precisions that the model uses, and the ends of the line. */
static void put_rates(FILE *f, const struct esp_bench_context *c)
{
    for (int a = 0; a < ESP_ACT_COUNT; a++)
        if (c->rate[a] > 0)
            put(f, ", %s %.0f GFLOP/s", esp_act_name((enum esp_act)a), c->rate[a] / 1e9);
    put(f, ", machine %016" PRIx64 ", model %016" PRIx64 "\n\n", c->machine_id, c->model_id);
}

void esp_bench_head(FILE *f, enum esp_bench_format format, const struct esp_bench_context *c)
{
    const struct esp_options *o = c->session->opt;
    const esp_device *d = &c->session->about;
    const bool device = d->memory != 0;

    if (format == ESP_BENCH_CSV)
        put(f, "model,weights,test,prompt,gen,batch,depth,threads,kv,act,reps,mean_tps,sd_tps,median_tps,"
               "ttft_s,p50_s,p95_s,p99_s,"
               "bytes_per_token,bandwidth_bytes_per_s,bandwidth_share,ops_per_token,arithmetic_share,bound,"
               "peak_rss,joules_per_token,version,machine_id,model_id\n");
    if (format != ESP_BENCH_MD)
        return;
    put(f, "espalier %s, %s, %s, %u threads, %s\n", esp_version(), c->session->shown,
        c->session->info.weights, c->threads, c->machine->cpu);
    put(f, "%s%s, kv %s, act %s, spec %s, %s bandwidth %.2f GB/s", device ? "device " : "level ",
        device ? d->name : esp_bench_level(c), o->v[OPT_KV].s, o->v[OPT_ACT].s, o->v[OPT_SPEC].s,
        device ? "copy" : "read", c->bandwidth / 1e9);
    put_rates(f, c);
    put(f,
        "| test | tokens/s | median | TTFT ms | ms/token p50 | p95 | p99 | MB/token | bandwidth | "
        "GFLOP/token | "
        "arithmetic | peak MiB |%s%s\n",
        c->has_energy ? " J/token |" : "", speculates(o) ? " drafts right |" : "");
    put(f, "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|%s%s\n", c->has_energy ? "---:|" : "",
        speculates(o) ? "---:|" : "");
}

static void print_md(FILE *f, const struct esp_bench_context *c, const struct esp_bench_row *r,
                     const char *name)
{
    put(f, "| %s | %.2f ± %.2f | %.2f |", name, r->mean, r->sd, r->median);
    put(f, " %.1f |", 1e3 * r->ttft_s);
    if (r->prompt)
        put(f, " | | |");
    else
        put(f, " %.2f | %.2f | %.2f |", 1e3 * r->p50_s, 1e3 * r->p95_s, 1e3 * r->p99_s);
    put(f, " %.2f | %.1f %% | %.3f |", r->bytes_per_token / 1e6, 100 * r->share, r->ops_per_token / 1e9);
    if (r->arithmetic_share > 0)
        put(f, " %.1f %% |", 100 * r->arithmetic_share);
    else
        put(f, " |");
    put(f, " %.0f |", (double)r->peak_rss / 1048576);
    if (c->has_energy)
        put(f, " %.3f |", r->joules_per_token);
    if (speculates(c->session->opt) && r->rounds)
        put(f, " %.0f %% of %.1f |", 100 * (double)r->accepted / (double)r->drafted,
            (double)r->drafted / (double)r->rounds);
    else if (speculates(c->session->opt))
        put(f, " |");
    put(f, "\n");
}

void esp_bench_print(FILE *f, enum esp_bench_format format, const struct esp_bench_context *c,
                     const struct esp_bench_row *r)
{
    const struct esp_options *o = c->session->opt;
    char name[64], *text;
    json_t *j;

    esp_bench_name(r, name, sizeof name);
    switch (format) {
    case ESP_BENCH_MD:
        print_md(f, c, r, name);
        break;
    case ESP_BENCH_CSV:
        put(f,
            "\"%s\",\"%s\",%s,%zu,%zu,%zu,%zu,%u,%s,%s,%zu,%.4f,%.4f,%.4f,%.6f,%.6f,%.6f,%.6f,%.0f,%.0f,%.4f,"
            "%.0f,%.4f,%s,%llu,",
            c->session->shown, c->session->info.weights, name, r->prompt, r->gen, r->batch, r->depth,
            c->threads, o->v[OPT_KV].s, o->v[OPT_ACT].s, r->n_sample, r->mean, r->sd, r->median, r->ttft_s,
            r->p50_s, r->p95_s, r->p99_s, r->bytes_per_token, c->bandwidth, r->share, r->ops_per_token,
            r->arithmetic_share, esp_bench_bound(r), (unsigned long long)r->peak_rss);
        if (r->joules_per_token > 0)
            put(f, "%.4f", r->joules_per_token);
        put(f, ",%s,%016" PRIx64 ",%016" PRIx64 "\n", esp_version(), c->machine_id, c->model_id);
        break;
    case ESP_BENCH_JSONL:
        j = esp_bench_record(c, r);
        text = j ? json_dumps(j, JSON_COMPACT) : NULL;
        if (text && f)
            fprintf(f, "%s\n", text);
        else if (text)
            esp_out_printf("%s\n", text);
        free(text);
        json_decref(j);
        break;
    }
    if (!f)
        esp_out_flush();
}

/* ---- comparing ---- */

static const struct esp_bench_row *find_row(const char *name, const struct esp_bench_row *rows, size_t n)
{
    char buf[64];

    for (size_t i = 0; i < n; i++) {
        if (strcmp(esp_bench_name(&rows[i], buf, sizeof buf), name) == 0)
            return &rows[i];
    }
    return NULL;
}

esp_status esp_bench_baseline(const char *path, esp_error *err)
{
    char *text = NULL;
    size_t len = 0;
    esp_status s;

    ESP_TRY(esp_read_file(&text, &len, path, MAX_BASELINE, err));
    s = ESP_OK;
    for (const char *p = text; s == ESP_OK && *p;) {
        const size_t line = strcspn(p, "\n");
        json_t *j = NULL;

        s = line ? esp_json_parse(&j, p, line, path, 0, err) : ESP_OK;
        json_decref(j);
        p += line + (p[line] == '\n');
    }
    esp_free(text);
    return s;
}

esp_status esp_bench_compare(const char *path, double tolerance, const struct esp_bench_row *rows, size_t n,
                             size_t *slower, esp_error *err)
{
    char *text = NULL;
    size_t len = 0, compared = 0;
    esp_status s;

    *slower = 0;
    ESP_TRY(esp_read_file(&text, &len, path, MAX_BASELINE, err));
    s = ESP_OK;
    for (const char *p = text; s == ESP_OK && *p;) {
        const size_t line = strcspn(p, "\n");
        json_t *j = NULL;
        const char *name;

        s = line ? esp_json_parse(&j, p, line, path, 0, err) : ESP_OK;
        name = json_string_value(json_object_get(j, "test"));
        if (name) {
            const struct esp_bench_row *r = find_row(name, rows, n);
            const double before = json_number_value(json_object_get(j, "mean_tps"));

            if (r && before > 0) {
                const double change = 100 * (r->mean / before - 1);
                const bool bad = r->mean < before * (1 - tolerance / 100);

                compared++;
                *slower += bad;
                esp_say_info("%s: %.2f tokens/s, %.2f before (%+.1f %%)%s", name, r->mean, before, change,
                             bad ? ": slower" : "");
            }
        }
        json_decref(j);
        p += line + (p[line] == '\n');
    }
    esp_free(text);
    if (s == ESP_OK && compared == 0)
        return esp_fail(err, ESP_EFORMAT, "%s: no row of this run is in it; nothing could be compared", path);
    return s;
}
