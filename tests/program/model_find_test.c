/*
 * What MODEL means: folders, Hub names, revisions, unique and ambiguous parts.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "program/spawn/spawn.h"
#include "support/support.h"

#define P ESP_PROGRAM_DOUBLE

static char cache[512];
static char env[600];

/* A snapshot of a model with a config, and a ref to it. */
static void snapshot(const char *model, const char *commit, const char *ref)
{
    char path[1200], dir[1024];

    snprintf(dir, sizeof dir, "%s/models--%s", cache, model);
    mkdir(dir, 0700);
    snprintf(path, sizeof path, "%s/refs", dir);
    mkdir(path, 0700);
    if (ref)
        test_write(path, ref, commit, strlen(commit));
    snprintf(path, sizeof path, "%s/snapshots", dir);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/snapshots/%s", dir, commit);
    mkdir(path, 0700);
    test_write(path, "config.json", "{}", 2);
}

static int setup(void **state)
{
    (void)state;
    snprintf(cache, sizeof cache, "%s", test_tmpdir());
    snprintf(env, sizeof env, "HF_HUB_CACHE=%s", cache);
    snapshot("org--first-0.8B", "aaaa", "main");
    snapshot("org--first-0.8B", "bbbb", "old");
    snapshot("org--first-2B", "cccc", "main");
    snapshot("other--second", "dddd", NULL); /* without a ref: the newest snapshot */
    return 0;
}

/* Tokenizing "hi" with this MODEL; -v prints the path that was found. */
static struct run use(const char *model)
{
    const struct run_how how = {.env = {env, NULL}};

    return RUN(&how, P, "tokenize", "-v", "--count", model, "hi");
}

static void found(const char *model, const char *commit)
{
    struct run r = use(model);

    run_code(&r, 0);
    run_says(&r, commit);
    run_free(&r);
}

static void missing(const char *model, const char *part)
{
    struct run r = use(model);

    run_code(&r, 3);
    run_says(&r, part);
    run_silent(&r);
    run_free(&r);
}

static void test_found(void **state)
{
    (void)state;
    found("org/first-0.8B", "snapshots/aaaa");
    found("ORG/FIRST-0.8b", "snapshots/aaaa");
    found("0.8B", "snapshots/aaaa");
    found("first-2", "snapshots/cccc");
    found("second", "snapshots/dddd");
    found("org/first-0.8B@old", "snapshots/bbbb");
    found("first-0.8B@bbbb", "snapshots/bbbb");
}

static void test_missing(void **state)
{
    const char *file = test_write(test_tmpdir(), "weights.bin", "x", 1);

    (void)state;
    missing("first", "ambiguous: ");
    missing("first", "org/first-2B");
    missing("first", "org/first-0.8B");
    missing("third", "no name in");
    missing("third", cache);
    missing("second@nothing", "revision nothing has no snapshot");
    missing("second@../..", "has no snapshot");
    missing("./second", "there is no such folder");
    missing("", "is empty");
    missing(file, "this is a file");
    missing("tests", "has no config.json");
}

static void test_refs_stay_inside(void **state)
{
    char dir[1024];

    (void)state;
    snprintf(dir, sizeof dir, "%s/models--other--second/refs", cache);
    test_write(dir, "evil", "../../models--org--first-2B/snapshots/cccc", 42);
    missing("second@evil", "has no snapshot");
}

static void test_lists(void **state)
{
    const struct run_how how = {.env = {env, NULL}};
    struct run r = RUN(&how, P, "--list-models");

    (void)state;
    run_code(&r, 0);
    assert_int_equal(run_lines(&r), 3);
    run_prints(&r, "org/first-0.8B\n");
    run_prints(&r, "other/second\n");
    run_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_refs_stay_inside),
        cmocka_unit_test(test_lists),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
