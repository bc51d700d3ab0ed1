/*
 * Timing of kcheck: medians, the machine's read bandwidth in the same run, and the report line. Shares of
 * bandwidth are of one core, because a kernel runs on one.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kcheck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { SAMPLES = 41, SAMPLES_MIN = 5 };
static const double SAMPLE_SECONDS = 50e-6; /* shorter calls are repeated within a sample */
static const double TOTAL_SECONDS = 0.25;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorted seconds of single calls; returns their number. */
static size_t take_samples(void (*run)(void *ctx), void *ctx, double sample[SAMPLES])
{
    const double start = now();
    double once;
    size_t n = 0, repeat;

    run(ctx); /* warm */
    once = now() - start;
    repeat = once < SAMPLE_SECONDS ? (size_t)(SAMPLE_SECONDS / (once + 1e-9)) + 1 : 1;
    while (n < SAMPLES && (n < SAMPLES_MIN || now() - start < TOTAL_SECONDS)) {
        const double begin = now();

        for (size_t i = 0; i < repeat; i++)
            run(ctx);
        sample[n++] = (now() - begin) / (double)repeat;
    }
    qsort(sample, n, sizeof sample[0], compare_doubles);
    return n;
}

double kc_time(void (*run)(void *ctx), void *ctx)
{
    double sample[SAMPLES];
    const size_t n = take_samples(run, ctx, sample);

    return sample[n / 2];
}

typedef uint64_t line
    __attribute__((vector_size(64))); /* a cache line; the compiler splits it as the CPU needs */
enum {
    READ_BYTES = 256 << 20,
    READ_LINES = READ_BYTES / (int)sizeof(line),
    AHEAD = 16,    /* lines to prefetch before use */
    SKEW = 64 + 3, /* lines that a stream is moved by, lest all start in the same sets of the caches */
};

struct read_call {
    const line *data;
    uint64_t sum; /* keeps the reads alive */
};

static void sum_up(struct read_call *call, const line *a)
{
    for (size_t i = 0; i < sizeof(line) / sizeof(uint64_t); i++)
        call->sum += (*a)[i];
}

static void read_one_stream(void *ctx)
{
    struct read_call *call = ctx;
    line a = {0};

    for (size_t i = 0; i < READ_LINES; i++) {
        __builtin_prefetch(call->data + i + AHEAD);
        a ^= call->data[i];
    }
    sum_up(call, &a);
}

static void read_four_streams(void *ctx)
{
    struct read_call *call = ctx;
    const size_t n = READ_LINES / 4;
    const line *p = call->data, *q = p + n + SKEW, *r = q + n + SKEW, *s = r + n + SKEW;
    line a = {0}, b = {0}, c = {0}, d = {0};

    for (size_t i = 0; i < n; i++) {
        a ^= p[i];
        b ^= q[i];
        c ^= r[i];
        d ^= s[i];
    }
    a ^= b ^ c ^ d;
    sum_up(call, &a);
}

/* The best sample of one stream and of four: machines differ in which their prefetchers like more. */
double kc_read_bandwidth(void)
{
    const size_t bytes = READ_BYTES + (3 * SKEW + AHEAD) * sizeof(line);
    double one[SAMPLES], four[SAMPLES];
    struct read_call call = {0};
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (map == MAP_FAILED)
        return 0;
    memset(map, 1, bytes);
    call.data = map;
    take_samples(read_one_stream, &call, one);
    take_samples(read_four_streams, &call, four);
    munmap(map, bytes);
    return call.sum == 1 ? 0 : READ_BYTES / (one[0] < four[0] ? one[0] : four[0]) * 1e-9;
}

void kc_report(struct kc *kc, const char *what, double seconds, double ref_seconds, double bytes,
               double flops)
{
    const double gbs = bytes / seconds * 1e-9, gflops = flops / seconds * 1e-9;
    const double share = kc->read_gbs > 0 ? gbs / kc->read_gbs : 0;
    const double dots = kc->dot_gops > 0 ? gflops * kc->n_dot / kc->dot_gops : 0;
    const double tiles = kc->k->level == ESP_CPU_AMX && kc->tile_gops[0] > 0
                             ? gflops * kc->n_dot / kc->tile_gops[0]
                             : 0; /* counted alike: what the dots of few rows would be of tiles */

    if (kc->json) {
        printf("{\"isa\": \"%s\", \"entry\": \"%s\", \"case\": \"%s\", \"us\": %.3f, \"gb_s\": %.3f, "
               "\"gflop_s\": %.3f, \"ratio_to_ref\": %.3f, \"read_share\": %.4f, \"dot_share\": %.4f}\n",
               kc->k->isa, kc->entry, what, seconds * 1e6, gbs, gflops, ref_seconds / seconds, share, dots);
        return;
    }
    printf("%-12s %-24s %-26s %11.2f us %8.2f GB/s %8.2f GFLOP/s %7.2fx ref %6.1f%% of read", kc->k->isa,
           kc->entry, what, seconds * 1e6, gbs, gflops, ref_seconds / seconds, share * 100);
    if (tiles > 0)
        printf(" %5.1f%% of tiles", tiles * 100);
    else if (dots > 0)
        printf(" %5.1f%% of dots", dots * 100);
    putchar('\n');
}
