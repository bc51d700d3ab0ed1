/*
 * The trellis encoder on a CUDA device, in weights a second from host memory to host memory, beside the CPU's
 * on all cores: matrices of a 27B model's MLP (17408 x 5120), random normal weights.
 *
 *   bench_encode [ROWS]      stored rows to encode, default 17408
 *
 * plain: the search alone. feedback 32: with feedback inside blocks, as along inputs. chain: 20 blocks a
 * call, which is all that one input has when every input feeds the next (5120 outputs). matrix: row scales,
 * search, and products on the CPU, as `quantize` does for gate and up (needs OpenBLAS). Medians of 3, with
 * spread.
 *
 * SPDX-License-Identifier: MIT
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#include "base/rng.h"
#include "quantize/encode_matrix.h"
#include "quantize/encode_parts.h"

enum { T = 256, COLS = 5120, REPS = 3, FEED = 32, CHAIN = 20, CHAIN_CALLS = 200, CPU_ROWS = 256 };

struct bench {
    struct esp_encoder *e, *cpu;
    struct esp_pool *pool;
    uint32_t rows;
    float *w, *u;
    uint16_t *states;
    float *taps;
};

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void row(const char *what, uint32_t k, double weights, double *seconds)
{
    qsort(seconds, REPS, sizeof *seconds, ascending);
    printf("| %-12s | %u | %9.1f | %4.1f %% |\n", what, k, weights / seconds[REPS / 2] * 1e-6,
           100 * (seconds[REPS - 1] - seconds[0]) / seconds[REPS / 2]);
    fflush(stdout);
}

static void plain(const struct bench *b, uint32_t k)
{
    double seconds[REPS];
    esp_error err;

    for (int i = -1; i < REPS; i++) {
        const double start = now();

        need(
            esp_encoder_blocks(b->e, k, ESP_SEARCH_WINDOW, b->rows * (COLS / T), b->u, NULL, b->states, &err),
            &err);
        if (i >= 0)
            seconds[i] = now() - start;
    }
    row("plain", k, (double)b->rows * COLS, seconds);
}

static void plain_cpu(const struct bench *b, uint32_t k)
{
    const struct esp_encode_rows job = {
        .k = k, .n_row = CPU_ROWS, .n_col = COLS, .u = b->u, .ld = COLS, .states = b->states};
    double seconds[REPS];
    esp_error err;

    for (int i = 0; i < REPS; i++) {
        const double start = now();

        need(esp_encode_rows(b->cpu, &job, &err), &err);
        seconds[i] = now() - start;
    }
    row("plain, CPU", k, (double)CPU_ROWS * COLS, seconds);
}

static void feedback(const struct bench *b, uint32_t k)
{
    const struct esp_viterbi_feed feed = {.w = b->u, .taps = b->taps, .ld = T, .group = FEED};
    double seconds[REPS];
    esp_error err;

    for (int i = 0; i < REPS; i++) {
        const double start = now();

        for (uint32_t block = 0; block < COLS / T; block++)
            need(esp_encoder_blocks(b->e, k, ESP_SEARCH_WINDOW, b->rows, b->u + (size_t)block * b->rows * T,
                                    &feed, b->states, &err),
                 &err);
        seconds[i] = now() - start;
    }
    row("feedback 32", k, (double)b->rows * COLS, seconds);
}

static void chain(const struct bench *b, uint32_t k)
{
    double seconds[REPS];
    esp_error err;

    for (int i = 0; i < REPS; i++) {
        const double start = now();

        for (int call = 0; call < CHAIN_CALLS; call++)
            need(esp_encoder_blocks(b->e, k, ESP_SEARCH_WINDOW, CHAIN, b->u + (size_t)call * CHAIN * T, NULL,
                                    b->states, &err),
                 &err);
        seconds[i] = now() - start;
    }
    row("chain", k, (double)CHAIN_CALLS * CHAIN * T, seconds);
}

static void matrix(const struct bench *b, struct esp_encoder *e, const char *what, const struct esp_ldlq *f,
                   uint32_t n_out)
{
    struct esp_trellis_report report;
    struct esp_trellis_job job = {.w = b->w,
                                  .n_out = n_out,
                                  .n_in = COLS,
                                  .ldlq = f,
                                  .opts = {.k = 3, .axis = 1, .scale = ESP_TRELLIS_SCALE_ROW}};
    double seconds[REPS];
    esp_error err;

    job.codes = malloc((size_t)n_out * COLS / 8 * 3);
    job.scales = malloc((size_t)n_out * 2);
    if (!job.codes || !job.scales)
        exit(1);
    for (int i = 0; i < REPS; i++) {
        need(esp_trellis_quantize(e, &job, &report, &err), &err);
        seconds[i] = report.seconds;
    }
    row(what, 3, (double)n_out * COLS, seconds);
    free(job.codes);
    free(job.scales);
}

static void matrices(const struct bench *b)
{
    float *h = calloc((size_t)COLS * COLS, sizeof *h);
    struct esp_ldlq *f = NULL;
    esp_error err;
    esp_status s;

    if (!h)
        exit(1);
    for (size_t i = 0; i < COLS; i++) /* white, and a few directions that all inputs share */
        for (size_t j = 0; j < COLS; j++)
            for (size_t d = 0; d < 8; d++)
                h[i * COLS + j] +=
                    b->u[d * COLS + i] * b->u[d * COLS + j] * 0.05F + (d == 0 && i == j ? 1 : 0);
    s = esp_ldlq_create(&f, h, COLS,
                        &(struct esp_ldlq_opts){.group = ESP_TRELLIS_GROUP_AXIS1, .pool = b->pool}, &err);
    free(h);
    if (s == ESP_EUNSUPPORTED) {
        printf("no matrices: %s\n", err.message);
        return;
    }
    need(s, &err);
    matrix(b, b->e, "matrix", f, b->rows);
    matrix(b, b->cpu, "matrix, CPU", f, b->rows < 1024 ? b->rows : 1024);
    esp_ldlq_destroy(f);
}

static void fill(struct bench *b)
{
    const size_t n = (size_t)b->rows * COLS;

    for (size_t i = 0; i < n; i += 2) {
        const struct esp_rng_key key = {.seed = 5, .position = i};
        const double r = sqrt(-2 * log(esp_rng_uniform(&key) + 0x1p-54));
        const double a =
            6.283185307179586 * esp_rng_uniform(&(struct esp_rng_key){.seed = 5, .position = i, .draw = 1});

        b->u[i] = (float)(0.92 * r * cos(a));
        b->u[i + 1] = (float)(0.92 * r * sin(a));
        b->w[i] = 0.02F * b->u[i];
        b->w[i + 1] = 0.02F * b->u[i + 1];
    }
    for (size_t i = 0; i < (size_t)T * T; i++)
        b->taps[i] = (float)(0.05 * sin((double)i));
}

int main(int argc, char **argv)
{
    struct bench b = {.rows = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 17408};
    const size_t n = (size_t)b.rows * COLS;
    struct esp_dev *dev;
    esp_error err;

    if (b.rows < 1024 || b.rows > 1 << 20) {
        fprintf(stderr, "rows: 1024 to %d are possible\n", 1 << 20);
        return 2;
    }
    need(esp_cuda_open(&dev, 0, &err), &err);
    need(esp_pool_create(&b.pool, esp_core_count(), &err), &err);
    need(esp_encoder_create(&b.e, b.pool, esp_cpu_best(), &err), &err);
    need(esp_encoder_create(&b.cpu, b.pool, esp_cpu_best(), &err), &err);
    need(esp_encoder_on(b.e, dev, &err), &err);
    b.w = malloc(n * sizeof *b.w);
    b.u = esp_encoder_alloc(b.e, n, sizeof *b.u);
    b.states = esp_encoder_alloc(b.e, n, sizeof *b.states);
    b.taps = malloc((size_t)T * T * sizeof *b.taps);
    if (!b.w || !b.u || !b.states || !b.taps)
        return 1;
    fill(&b);
    printf("encoding %u x %d on %s, %u threads of the CPU\n", b.rows, COLS, dev->name, esp_pool_size(b.pool));
    printf("| what | bits | Mweights/s | spread |\n|---|---|---|---|\n");
    for (uint32_t k = 1; k <= 8; k++)
        plain(&b, k);
    for (uint32_t k = 2; k <= 4; k++)
        feedback(&b, k);
    for (uint32_t k = 2; k <= 4; k++)
        chain(&b, k);
    for (uint32_t k = 2; k <= 4; k++)
        plain_cpu(&b, k);
    matrices(&b);
    esp_encoder_free(b.e, b.u);
    esp_encoder_free(b.e, b.states);
    esp_encoder_destroy(b.e);
    esp_encoder_destroy(b.cpu);
    esp_pool_destroy(b.pool);
    dev->ops->close(dev);
    free(b.w);
    free(b.taps);
    return 0;
}
