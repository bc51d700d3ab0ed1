/*
 * One row of a benchmark: what was measured, its samples, and how rows are printed and compared. Private to
 * verb bench.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_BENCH_H
#define ESP_PROGRAM_BENCH_H

#include <jansson.h>
#include <stdio.h>

#include "kernels/kernels.h"

#include "program/machine.h"
#include "program/session.h"

struct esp_bench_row {
    size_t prompt; /* tokens of a prompt row, else 0 */
    size_t gen, batch, depth;
    double *samples; /* tokens per second, one a repetition */
    size_t n_sample;
    double mean, sd, median;
    double ttft_s;                      /* mean time to the first token of all sequences */
    double p50_s, p95_s, p99_s;         /* generation rows: time between tokens of a sequence */
    double bytes_per_token;             /* weights, keys, values and states read, by the plan */
    double ops_per_token;               /* multiplications and additions, by the model's shapes */
    uint64_t drafted, accepted, rounds; /* generation rows, over all repetitions; 0 without speculation */
    double share, arithmetic_share;     /* of the measured limits; 0 unknown */
    uint64_t peak_rss;
    double joules_per_token; /* of all packages of the machine, over all repetitions; 0 unknown */
};

struct esp_bench_context {
    const struct esp_session *session;
    const struct esp_machine *machine;
    uint32_t threads;
    double bandwidth;              /* bytes per second */
    esp_work work;                 /* of the model with the engine's options */
    uint64_t machine_id, model_id; /* fingerprints: equal ones can be compared */
    bool has_energy;
    double rate[ESP_ACT_COUNT]; /* operations per second on registers, of those the model uses; 0 unknown */
};

/* CPU level of the kernels. */
const char *esp_bench_level(const struct esp_bench_context *c);
/* Fill work and rate: what the model computes, and how fast the threads' instructions are at it. */
esp_status esp_bench_arithmetic(struct esp_bench_context *c, esp_error *err);
/* Fill what a measured row reads and computes and the shares of the machine's limits. */
void esp_bench_roof(const struct esp_bench_context *c, const esp_memory_plan *plan, struct esp_bench_row *r);

/* Fill the fingerprints. */
void esp_bench_identify(struct esp_bench_context *c);
/* "memory", "arithmetic": which limit is nearer; "unknown". */
const char *esp_bench_bound(const struct esp_bench_row *r);
/* The row with machine, build and model: a new JSON object. */
json_t *esp_bench_record(const struct esp_bench_context *c, const struct esp_bench_row *r);
/* Add records of the rows to a file, a line each. */
esp_status esp_bench_save(const char *path, const struct esp_bench_context *c,
                          const struct esp_bench_row *rows, size_t n, esp_error *err);

/* "pp512", "tg128", "tg128 b4 d2048"; returns buf. */
const char *esp_bench_name(const struct esp_bench_row *r, char *buf, size_t cap);
/* mean, sd and median from the samples, which are sorted. */
void esp_bench_summarize(struct esp_bench_row *r);
/* Value below which the share q of n sorted values lies. */
double esp_bench_quantile(double *values, size_t n, double q);

enum esp_bench_format { ESP_BENCH_MD, ESP_BENCH_CSV, ESP_BENCH_JSONL };
/* Where the table goes: a file, or standard output when it is NULL. */
void esp_bench_head(FILE *f, enum esp_bench_format format, const struct esp_bench_context *c);
void esp_bench_print(FILE *f, enum esp_bench_format format, const struct esp_bench_context *c,
                     const struct esp_bench_row *r);

/* Refuse a baseline that cannot be read, before time is spent on measuring. */
esp_status esp_bench_baseline(const char *path, esp_error *err);
/*
 * Compare the rows with those of an earlier jsonl output by name. *slower counts rows below (1 - tolerance /
 * 100) of the earlier mean, each with a line on standard error. ESP_EFORMAT when the file holds no row of the
 * same name.
 */
esp_status esp_bench_compare(const char *path, double tolerance, const struct esp_bench_row *rows, size_t n,
                             size_t *slower, esp_error *err);

#endif
