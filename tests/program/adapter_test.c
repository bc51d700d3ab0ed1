/*
 * --adapter on the bundled model and adapter: the reference's answers through the command line, scales,
 * stacks, memory in fit and budgets, and every refusal with its exit code.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/spawn/spawn.h"
#include "support/support.h"

#define P    ESP_PROGRAM
#define M    "models/demo"
#define CAPS "models/demo-lora-caps"

static void refused(struct run r, int code, const char *part)
{
    run_code(&r, code);
    run_says(&r, part);
    run_silent(&r);
    run_free(&r);
}

static const char *fresh_dir(void)
{
    static char dir[300];

    if (!dir[0])
        snprintf(dir, sizeof dir, "%s/caps:2", test_tmpdir());
    return dir;
}

/* A copy of the adapter trained to alpha: another adapter, in a folder whose name ends in ":2". */
static const char *other_adapter(const char *alpha)
{
    char line[1024];
    const char *dir = fresh_dir();

    snprintf(line, sizeof line,
             "rm -rf '%s' && cp -r " CAPS " '%s' && "
             "sed -i 's/\"lora_alpha\": *[0-9.]*/\"lora_alpha\": %s/' '%s/adapter_config.json'",
             dir, dir, alpha, dir);
    assert_int_equal(system(line), 0);
    return dir;
}

static void test_reference_answers(void **state)
{
    json_t *doc = test_json("models/demo-golden/goldens.json"), *entry;
    const char *key;
    size_t tried = 0;

    (void)state;
    json_object_foreach(json_object_get(doc, "greedy"), key, entry)
    {
        json_t *ids = json_object_get(entry, "ids"), *want = json_object_get(entry, "output_ids");
        char *prompt = json_dumps(ids, JSON_COMPACT), count[16], *end;
        struct run r;

        if (strncmp(key, "lora.", 5) == 0 && tried < 3) {
            snprintf(count, sizeof count, "%zu", json_array_size(want));
            r = RUN(NULL, P, "generate", M, "--adapter", CAPS, "--ids", "-p", prompt, "-n", count,
                    "--temperature", "0", "--act", "f32", "--kv", "f32");
            run_code(&r, 0);
            end = r.out;
            for (size_t i = 0; i + 1 < json_array_size(want); i++)
                assert_int_equal(strtol(end, &end, 10), json_integer_value(json_array_get(want, i)));
            run_free(&r);
            tried++;
        }
        free(prompt);
    }
    assert_int_equal(tried, 3);
    json_decref(doc);
}

static void says(const char *adapter, const char *second, const char *answer)
{
    struct run r =
        second ? RUN(NULL, P, "run", M, "Repeat: river stone", "--temperature", "0", "--adapter", adapter,
                     "--adapter", second)
               : RUN(NULL, P, "run", M, "Repeat: river stone", "--temperature", "0", "--adapter", adapter);

    run_code(&r, 0);
    assert_string_equal(r.out, answer);
    run_free(&r);
}

static void test_scales_and_stacks(void **state)
{
    char path[400];

    (void)state;
    says(CAPS, NULL, "RIVER STONE\n");
    says(CAPS "/:1", NULL, "RIVER STONE\n");
    says(CAPS ":0", NULL, "river stone\n");
    says(other_adapter("8"), NULL, "river stone\n"); /* a folder's name, not a scale; half is too weak */
    snprintf(path, sizeof path, "%s:2", fresh_dir());
    says(path, NULL, "RIVER STONE\n");
    snprintf(path, sizeof path, "%s:-2", fresh_dir()); /* minus two times the half: cancels */
    says(CAPS, path, "river stone\n");
    says(path, CAPS, "river stone\n"); /* a stack is a set */
}

static void test_refusals(void **state)
{
    (void)state;
    refused(RUN(NULL, P, "run", M, "hi", "--adapter", "/no/such"), 3, "/no/such");
    refused(RUN(NULL, P, "run", M, "hi", "--adapter", M), 3, "no adapter weights");
    refused(RUN(NULL, P, "run", M, "hi", "--adapter", CAPS, "--adapter", CAPS ":2"), 2, "name it once");
    refused(RUN(NULL, P, "run", M, "hi", "--adapter", "a", "--adapter", "b", "--adapter", "c", "--adapter",
                "d", "--adapter", "e"),
            2, "at most 4 stack");
    refused(RUN(NULL, P, "run", M, "hi", "--adapter", CAPS ":x"), 3, CAPS ":x");
    refused(RUN(NULL, P, "run", "models/tiny-text", "hi", "--adapter", CAPS), 3, "do not fit");
    refused(
        RUN(NULL, P, "perplexity", M, "--data", "models/demo-golden/val.npy", "--adapter", CAPS, "--kl", M),
        2, "excludes --adapter");
    refused(RUN(NULL, P, "tokenize", M, "hi", "--adapter", CAPS), 2, "does not belong to 'tokenize'");
}

static double number(const struct run *r, const char *outer, const char *inner)
{
    json_t *j = run_json(r, 0);
    const double x = json_number_value(json_object_get(json_object_get(j, outer), inner));

    json_decref(j);
    return x;
}

static void test_memory(void **state)
{
    struct run bare = RUN(NULL, P, "fit", M, "--json", "-c", "512", "-t", "1");
    struct run with = RUN(NULL, P, "fit", M, "--json", "-c", "512", "-t", "1", "--adapter", CAPS);
    const double adapters = number(&with, "terms", "adapters"), total = number(&with, "at", "total_bytes");
    char budget[32];

    (void)state;
    assert_true(adapters > 1.4e6 && adapters < 4e6); /* 1.5 MB of f32, and the arena's rest */
    assert_true(total >= number(&bare, "at", "total_bytes") + adapters);
    snprintf(budget, sizeof budget, "%.0f", total - 1);
    refused(RUN(NULL, P, "run", M, "a", "-n", "1", "-c", "512", "-t", "1", "--adapter", CAPS,
                "--memory-budget", budget),
            4, budget);
    run_free(&bare);
    run_free(&with);
}

static void test_measures(void **state)
{
    struct run a =
        RUN(NULL, P, "perplexity", M, "--data", "models/demo-golden/val.npy", "--chunks", "1", "--json");
    struct run b = RUN(NULL, P, "perplexity", M, "--data", "models/demo-golden/val.npy", "--chunks", "1",
                       "--json", "--adapter", CAPS);
    json_t *ja = run_json(&a, 0), *jb = run_json(&b, 0);
    struct run r;

    (void)state;
    assert_true(json_number_value(json_object_get(jb, "nll")) >
                json_number_value(json_object_get(ja, "nll")) + 0.01);
    json_decref(ja);
    json_decref(jb);
    run_free(&a);
    run_free(&b);
    r = RUN(NULL, P, "bench", M, "--adapter", CAPS, "-p", "8", "-n", "2", "-b", "2", "-r", "1", "--no-warmup",
            "--json");
    run_code(&r, 0);
    assert_int_equal(run_lines(&r), 2);
    run_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_answers), cmocka_unit_test(test_scales_and_stacks),
        cmocka_unit_test(test_refusals),          cmocka_unit_test(test_memory),
        cmocka_unit_test(test_measures),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
