/*
 * The memory contract, measured: what fit predicts for a context, a chunk and a type of keys and values holds
 * the peak of a generate that fills the context, and is at most a tenth more. A run with a short prompt
 * touches less of the same memory. A shape that the machine cannot hold is refused, or planned for, without
 * taking memory.
 *
 * SPDX-License-Identifier: MIT
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program/spawn/spawn.h"
#include "support/support.h"

#define P ESP_PROGRAM
#define M "models/demo"

/* A sanitizer has memory of its own. */
static bool measured_bare(void)
{
    return !TEST_SANITIZED;
}

/* What a run of fit says that the plan takes. */
static double total_of(struct run *r)
{
    json_t *j = run_json(r, 0);
    const double total = json_number_value(json_object_get(json_object_get(j, "at"), "total_bytes"));

    run_code(r, 0);
    json_decref(j);
    run_free(r);
    return total;
}

static double predicted(const char *ctx, const char *chunk, const char *kv, const char *rows)
{
    struct run r =
        RUN(NULL, P, "fit", M, "--json", "-t", "1", "-c", ctx, "--chunk", chunk, "--kv", kv, "--rows", rows);

    return total_of(&r);
}

/* Peak resident bytes of a program that must succeed. */
static double peak(const char *const argv[])
{
    struct rusage use;
    int status;
    const pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        if (!freopen("/dev/null", "r", stdin) || !freopen("/dev/null", "w", stdout))
            _exit(98);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(99);
    }
    assert_int_equal(wait4(pid, &status, 0, &use), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    return (double)use.ru_maxrss * 1024;
}

/* A file of n token ids. */
static const char *prompt_of(size_t n)
{
    static char path[300];
    FILE *f;

    snprintf(path, sizeof path, "%s/ids.txt", test_tmpdir());
    f = fopen(path, "w");
    assert_non_null(f);
    for (size_t i = 0; i < n; i++)
        fprintf(f, "%zu ", 300 + i % 50);
    assert_int_equal(fclose(f), 0);
    return path;
}

static void test_measured(void **state)
{
    static const struct {
        const char *ctx, *chunk, *kv;
    } cases[] = {{"256", "0", "bf16"},   {"256", "2048", "f32"}, {"1024", "32", "f32"}, {"1024", "0", "bf16"},
                 {"4096", "32", "bf16"}, {"4096", "0", "f32"},   {"4096", "0", "turbo"}};

    (void)state;
    if (!measured_bare())
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *ctx = cases[i].ctx, *chunk = cases[i].chunk, *kv = cases[i].kv;
        const double most = predicted(ctx, chunk, kv, "1");
        const char *file = prompt_of(strtoul(ctx, NULL, 10) - 8);
        const char *const full[] = {P,     "generate",     M,    "--ids", "-f", file, "-n",
                                    "8",   "--ignore-eos", "-t", "1",     "-c", ctx,  "--chunk",
                                    chunk, "--kv",         kv,   NULL};
        const char *const few[] = {P,    "run", M,         "hi",  "-n",   "2", "-t", "1",
                                   "-c", ctx,   "--chunk", chunk, "--kv", kv,  NULL};
        const double got = peak(full), less = peak(few);

        if (got > most || got < 0.9 * most || less > most)
            fail_msg(
                "context %s, chunk %s, %s: predicted %.0f, measured %.0f full and %.0f with a short prompt",
                ctx, chunk, kv, most, got, less);
    }
}

static void test_rows(void **state)
{
    const char *file = prompt_of(500);
    const char *const argv[] = {P,    "generate", M,    "--ids", "-f", file,   "-n", "520", "--ignore-eos",
                                "-N", "4",        "-t", "1",     "-c", "1024", NULL};
    double got, most;

    (void)state;
    if (!measured_bare())
        skip();
    got = peak(argv);
    most = predicted("1024", "0", "bf16", "4"); /* the rows share a page of the prompt, so it may be less */
    if (got > most || got < 0.88 * most)
        fail_msg("4 rows: predicted %.0f, measured %.0f", most, got);
}

static void test_shapes_take_none(void **state)
{
    static const char *const fit[] = {P,        "fit", "--synthetic", "qwen3.5-27b", "--memory-budget",
                                      "400GiB", NULL};
    struct run r;

    (void)state;
    assert_true(peak(fit) < 100e6 || !measured_bare());
    r = RUN(NULL, P, "bench", "--synthetic", "qwen3.5-27b", "--memory-budget", "1GiB", "-p", "8", "-n", "1");
    run_code(&r, 4);
    run_says(&r, "the budget is 1073741824");
    run_free(&r);
}

/* Whether the kernels of the level that runs read copies: all of x86 but the reference do. */
static bool level_packs(void)
{
    const char *wanted = getenv("ESPALIER_CPU");
    struct run r = RUN(NULL, P, "devices", "--json");
    json_t *j = run_json(&r, 0);
    const char *level =
        json_string_value(json_object_get(json_array_get(json_object_get(j, "devices"), 0), "level"));
    bool packs;

    if (wanted && *wanted)
        level = wanted;
    packs =
        level && (strcmp(level, "avx2") == 0 || strcmp(level, "avx512") == 0 || strcmp(level, "amx") == 0);
    run_code(&r, 0);
    json_decref(j);
    run_free(&r);
    return packs;
}

static double planned_bytes(const char *pack)
{
    struct run r = RUN(NULL, P, "fit", "--synthetic", "qwen3.5-0.8b", "--weights", "affine4", "--json", "-t",
                       "1", "-c", "1024", "--pack", pack);

    return total_of(&r);
}

/* Copies of weights in the kernels' order are counted, and --pack off does without: levels that have no such
 * order count none either way. */
static void test_packed(void **state)
{
    const double on = planned_bytes("on"), off = planned_bytes("off"), chosen = planned_bytes("auto");

    (void)state;
    assert_true(chosen == on || chosen == off);
    if (level_packs())
        assert_true(on - off > 380e6 && on - off < 480e6); /* 752 million weights of 4.5 bits: 423 MB */
    else
        assert_true(on == off);
}

static double expanded_bytes(const char *expand)
{
    struct run r = RUN(NULL, P, "fit", "--synthetic", "qwen3.5-4b", "--weights", "trellis3", "--json", "-t",
                       "1", "-c", "1024", "--pack", "off", "--expand", expand);

    return total_of(&r);
}

/*
 * --expand: 2.265 G weights of the MLPs at 8.5 bits instead of 3; where nothing is coded, and on a device,
 * refused.
 */
static void test_expanded(void **state)
{
    const double more = expanded_bytes("affine8") - expanded_bytes("off");
    struct run r = RUN(NULL, P, "generate", M, "-p", "x", "--expand", "affine8");

    (void)state;
    assert_true(fabs(more - 2.265e9 * 5.5 / 8) < 5e6);
    run_code(&r, 2);
    run_says(&r, "trellis-coded");
    run_free(&r);
    r = RUN(NULL, P, "generate", M, "-p", "x", "--expand", "affine8", "--device", "cuda");
    assert_int_not_equal(r.code, 0);
    run_says(&r, "--device");
    run_free(&r);
}

/* --mlock: as much as the weights take is locked, and a limit that is too low is named. */
static void test_locked(void **state)
{
    struct run r;
    const char *at;
    double mib = 0;

    (void)state;
    if (!measured_bare())
        return; /* terabytes of shadow memory */
    r = RUN(NULL, P, "generate", M, "-v", "-p", "x", "-n", "1", "--mlock");
    if (r.code == 4) /* not as root: the usual limit is below any model */
        run_says(&r, "ulimit -l");
    else {
        run_code(&r, 0);
        at = strstr(r.err, "locked in memory: ");
        assert_non_null(at);
        assert_int_equal(sscanf(at, "locked in memory: %lf MiB", &mib), 1);
        assert_true(mib > 20);
    }
    run_free(&r);
    if (geteuid() != 0 || access("/usr/bin/setpriv", X_OK) != 0 || access("/usr/bin/prlimit", X_OK) != 0)
        return;
    r = RUN(NULL, "/usr/bin/prlimit", "--memlock=65536", "/usr/bin/setpriv", "--bounding-set=-ipc_lock",
            "--inh-caps=-ipc_lock", P, "generate", M, "-p", "x", "-n", "1", "--mlock");
    run_code(&r, 4);
    run_says(&r, "the limit is 65536");
    run_free(&r);
}

/* --huge-pages and --numa: what they did is told with -v, and what cannot be is refused with what would
 * help. */
static void test_placed(void **state)
{
    struct run r = RUN(NULL, P, "generate", M, "-v", "-p", "x", "-n", "1", "--huge-pages", "on");

    (void)state;
    if (r.code == 5)
        run_says(&r, "transparent huge pages");
    else {
        run_code(&r, 0);
        run_says(&r, "in huge pages: ");
    }
    run_free(&r);
    r = RUN(NULL, P, "generate", M, "-v", "-p", "x", "-n", "1", "--huge-pages", "hugetlb");
    if (r.code == 4)
        run_says(&r, "nr_hugepages");
    else
        run_code(&r, 0);
    run_free(&r);
    r = RUN(NULL, P, "generate", M, "-p", "x", "-n", "1", "--huge-pages", "large");
    run_code(&r, 2);
    run_free(&r);
    if (access("/sys/devices/system/node/node1", F_OK) != 0) {
        r = RUN(NULL, P, "generate", M, "-v", "-p", "x", "-n", "1", "--numa", "auto");
        run_code(&r, 0);
        run_says(&r, "numa: ");
        run_free(&r);
    }
    r = RUN(NULL, P, "generate", M, "-p", "x", "-n", "1", "--numa", "everywhere");
    run_code(&r, 2);
    run_says(&r, "auto, off, spread, node:N");
    run_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measured),         cmocka_unit_test(test_rows),
        cmocka_unit_test(test_packed),           cmocka_unit_test(test_expanded),
        cmocka_unit_test(test_shapes_take_none), cmocka_unit_test(test_locked),
        cmocka_unit_test(test_placed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
