/*
 * kcheck [--level L] [--filter GLOB] [--bench] [--json] [--seed N] [--every N] [--list]: check or time every
 * kernel at every CPU level of this machine. A level's table is compared with the one below it; only what is
 * new is checked, always against an oracle in double precision, and for sameness of bits however a call is
 * split. --every N leaves out all but one in N of the cases that are many, for slow emulators; --seed says
 * which.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kcheck.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/levels.h"

static struct kc run; /* global for the fault handler alone */

static void put(const char *s)
{
    if (write(STDOUT_FILENO, s, strlen(s)) < 0)
        _exit(3);
}

static void on_fault(int sig)
{
    put(sig == SIGILL ? "\nFAIL illegal instruction: " : "\nFAIL access outside of a buffer: ");
    put(run.k ? run.k->isa : "?");
    put("/");
    put(run.entry);
    put(" case ");
    put(run.name);
    put("\n");
    _exit(1);
}

static void catch_faults(void)
{
    struct sigaction a;

    memset(&a, 0, sizeof a);
    a.sa_handler = on_fault;
    sigaction(SIGSEGV, &a, NULL);
    sigaction(SIGBUS, &a, NULL);
    sigaction(SIGILL, &a, NULL);
}

static int usage(void)
{
    fputs("usage: kcheck [--level L] [--filter GLOB] [--bench] [--json] [--seed N] [--every N] [--list]\n",
          stderr);
    return 2;
}

static bool parse_seed(const char *s, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(s, &end, 0);
    return errno == 0 && end != s && *end == 0;
}

/* Returns false on a bad command line. *level stays NULL when none is given. */
static bool parse_args(int argc, char **argv, const char **level)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(argv[i], "--bench") == 0) {
            run.bench = true;
        } else if (strcmp(argv[i], "--json") == 0) {
            run.json = true;
        } else if (strcmp(argv[i], "--list") == 0) {
            run.list = true;
        } else if (strcmp(argv[i], "--level") == 0 && value) {
            *level = argv[++i];
        } else if (strcmp(argv[i], "--filter") == 0 && value) {
            run.filter = argv[++i];
        } else if (strcmp(argv[i], "--seed") == 0 && value) {
            if (!parse_seed(argv[++i], &run.seed))
                return false;
        } else if (strcmp(argv[i], "--every") == 0 && value) {
            if (!parse_seed(argv[++i], &run.every))
                return false;
        } else {
            return false;
        }
    }
    return true;
}

enum { TABLE_MAX = 2 * ESP_CPU_LEVEL_COUNT };

/* Tables of this machine from the reference up, each with everything below; optional extensions are a step
 * more. */
static size_t build_tables(struct esp_kernels *table, enum esp_cpu_level *level)
{
    size_t n = 0;

    for (int i = 0; i < ESP_CPU_LEVEL_COUNT; i++) {
        struct esp_kernels full;
        enum esp_cpu_level parsed;

        if (esp_cpu_level_parse(&parsed, esp_cpu_level_name((enum esp_cpu_level)i), NULL) != ESP_OK)
            continue;
        esp_kernels_init_plain(&table[n], parsed);
        level[n++] = parsed;
        esp_kernels_init(&full, parsed);
        if (strcmp(full.isa, table[n - 1].isa) != 0) {
            table[n] = full;
            level[n++] = parsed;
        }
    }
    return n;
}

static void run_table(void)
{
    static void (*const themes[])(struct kc *) = {kc_linear, kc_trellis, kc_norm,   kc_vec,    kc_convert,
                                                  kc_conv,   kc_delta,   kc_attend, kc_viterbi};
    const unsigned passed = run.passed, failed = run.failed;

    for (size_t i = 0; i < sizeof themes / sizeof themes[0]; i++)
        themes[i](&run);
    if (!run.list && !run.bench)
        printf("%-12s %u passed, %u failed\n", run.k->isa, run.passed - passed, run.failed - failed);
}

int main(int argc, char **argv)
{
    static struct esp_kernels table[TABLE_MAX];
    enum esp_cpu_level level[TABLE_MAX], wanted = ESP_CPU_REF;
    const char *name = NULL;
    esp_error err;
    size_t n;

    run.seed = 1;
    if (!parse_args(argc, argv, &name))
        return usage();
    if (name && esp_cpu_level_parse(&wanted, name, &err) != ESP_OK) {
        fprintf(stderr, "kcheck: %s\n", err.message);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    catch_faults();
    n = build_tables(table, level);
    run.ref = &table[0];
    if (run.bench && !run.list) {
        run.read_gbs = kc_read_bandwidth();
        run.dot_gops = kc_dot_peak();
        kc_tile_peak(run.tile_gops);
        printf(
            run.json
                ? "{\"read_gb_s\": %.3f, \"dot_gflop_s\": %.3f, \"tile_gflop_s\": %.3f, "
                  "\"tile_cache_gflop_s\": %.3f}\n"
                : "read bandwidth of one core: %.2f GB/s; byte dot products: %.1f GFLOP/s; of tiles: %.1f on "
                  "registers, %.1f from cache\n",
            run.read_gbs, run.dot_gops, run.tile_gops[0], run.tile_gops[1]);
    }
    for (size_t i = 0; i < n; i++) {
        if (name && level[i] != wanted)
            continue;
        run.k = &table[i];
        run.below = i ? &table[i - 1] : NULL;
        run_table();
    }
    if (run.list || run.bench)
        return run.failed ? 1 : 0;
    if (run.every > 1)
        printf("of cases that are many, about one in %llu ran\n", (unsigned long long)run.every);
    printf("%u passed, %u failed\n", run.passed, run.failed);
    return run.failed ? 1 : 0;
}
