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

double kc_time(void (*run)(void *ctx), void *ctx)
{
    double sample[SAMPLES];
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
    return sample[n / 2];
}

typedef uint64_t lanes __attribute__((vector_size(16)));
enum { STREAMS = 4, READ_BYTES = 256 << 20 };

struct read_call {
    const lanes *data;
    uint64_t sum; /* keeps the reads alive */
};

/* Several streams at once, far apart: one alone does not fill the memory channels of some machines. */
static void read_all(void *ctx)
{
    struct read_call *c = ctx;
    const size_t n = READ_BYTES / sizeof(lanes) / STREAMS;
    lanes sum[STREAMS] = {{0}};

    for (size_t i = 0; i < n; i++) {
        for (size_t s = 0; s < STREAMS; s++)
            sum[s] += c->data[s * n + i];
    }
    for (size_t s = 0; s < STREAMS; s++)
        c->sum += sum[s][0] ^ sum[s][1];
}

double kc_read_bandwidth(void)
{
    struct read_call c = {0};
    void *map = mmap(NULL, READ_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    double seconds;

    if (map == MAP_FAILED)
        return 0;
    memset(map, 1, READ_BYTES);
    c.data = map;
    seconds = kc_time(read_all, &c);
    munmap(map, READ_BYTES);
    return c.sum == 1 ? 0 : READ_BYTES / seconds * 1e-9;
}

void kc_report(struct kc *kc, const char *what, double seconds, double ref_seconds, double bytes,
               double flops)
{
    const double gbs = bytes / seconds * 1e-9, gflops = flops / seconds * 1e-9;
    const double share = kc->read_gbs > 0 ? gbs / kc->read_gbs : 0;

    if (kc->json) {
        printf("{\"isa\": \"%s\", \"entry\": \"%s\", \"case\": \"%s\", \"us\": %.3f, \"gb_s\": %.3f, "
               "\"gflop_s\": %.3f, \"ratio_to_ref\": %.3f, \"read_share\": %.4f}\n",
               kc->k->isa, kc->entry, what, seconds * 1e6, gbs, gflops, ref_seconds / seconds, share);
        return;
    }
    printf("%-12s %-24s %-26s %11.2f us %8.2f GB/s %8.2f GFLOP/s %7.2fx ref %6.1f%% of read\n", kc->k->isa,
           kc->entry, what, seconds * 1e6, gbs, gflops, ref_seconds / seconds, share * 100);
}
