/*
 * Usage: exit codes and messages of wrong calls, and that every flag of the table is in the help, the manual
 * page and the three completions of every verb that has it.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "program/options.h"
#include "program/spawn/spawn.h"
#include "support/support.h"

#define P ESP_PROGRAM_DOUBLE

/* A wrong call: exit code, a part of the message, nothing on standard output. */
static void refused(struct run r, int code, const char *part)
{
    run_code(&r, code);
    run_says(&r, part);
    run_silent(&r);
    run_free(&r);
}

static void test_overview(void **state)
{
    struct run r = RUN(NULL, P);

    (void)state;
    run_code(&r, 2);
    run_silent(&r);
    run_says(&r, "usage: espalier VERB");
    run_free(&r);
    r = RUN(NULL, P, "--help");
    run_code(&r, 0);
    run_prints(&r, "perplexity");
    assert_true(run_lines(&r) <= 30);
    run_free(&r);
    r = RUN(NULL, P, "--version");
    run_code(&r, 0);
    run_prints(&r, "espalier ");
    run_prints(&r, "compiler: ");
    run_prints(&r, "features: ");
    run_free(&r);
}

static void test_verbs(void **state)
{
    (void)state;
    refused(RUN(NULL, P, "rnu"), 2, "did you mean 'run'?");
    refused(RUN(NULL, P, "perplexty", "x"), 2, "did you mean 'perplexity'?");
    refused(RUN(NULL, P, "train", "x"), 2, "not in this version");
    refused(RUN(NULL, P, "doctor"), 2, "not in this version");
    refused(RUN(NULL, P, "xyzzy"), 2, "unknown verb 'xyzzy'");
    refused(RUN(NULL, P, "--frobnicate"), 2, "stands where a verb belongs");
    refused(RUN(NULL, P, "help", "rnu"), 2, "did you mean 'run'?");
    refused(RUN(NULL, P, "completion", "tcsh"), 2, "bash, zsh and fish");
}

static void test_flags(void **state)
{
    (void)state;
    refused(RUN(NULL, P, "run", "m", "--temprature", "1"), 2, "did you mean --temperature?");
    refused(RUN(NULL, P, "run", "m", "--temperature"), 2, "--temperature needs a value: T");
    refused(RUN(NULL, P, "run", "m", "-s"), 2, "-s (--seed) needs a value");
    refused(RUN(NULL, P, "run", "m", "-Z"), 2, "unknown flag -Z");
    refused(RUN(NULL, P, "run", "m", "--reps", "3"), 2, "does not belong to 'run'");
    refused(RUN(NULL, P, "run", "m", "--image", "x"), 2, "--image is not in this version");
    refused(RUN(NULL, P, "run", "m", "--no-seed"), 2, "can be switched off");
    refused(RUN(NULL, P, "run", "m", "--json=maybe"), 2, "is not on or off");
    refused(RUN(NULL, P, "run", "m", "--kv", "bf61"), 2, "did you mean 'bf16'?");
    refused(RUN(NULL, P, "run", "m", "--kv", "turbo:k3v3"), 2, "bf16|f32|q8|q6|q4|turbo");
    refused(RUN(NULL, P, "generate"), 2, "usage: espalier generate MODEL");
    refused(RUN(NULL, P, "devices", "x"), 2, "one argument too many");
    refused(RUN(NULL, P, "bench"), 2, "which model?");
    refused(RUN(NULL, P, "bench", "models/demo", "--synthetic", "qwen3.5-2b"), 2, "one model is enough");
}

static void test_numbers(void **state)
{
    static const char *const bad[][3] = {
        {"--temperature", "nan", "is not a number"},
        {"--temperature", "inf", "is not a number"},
        {"--temperature", "-1", "out of range"},
        {"--temperature", "5.1", "0 to 5 is accepted"},
        {"--temperature", "1e400", "is not a number"},
        {"--temperature", "0x1", "is not a number"},
        {"--temperature", "", "is not a number"},
        {"--top-k", "1.5", "is not a whole number"},
        {"--top-k", "-2", "out of range"},
        {"--top-p", "0", "above 0"},
        {"--max-tokens", "99999999999999999999", "is not a whole number"},
        {"--memory-budget", "8X", "is not a size"},
        {"--memory-budget", "0", "out of range"},
        {"--memory-budget", "1e3", "is not a size"},
        {"--seed", " 1", "is not a whole number"},
        {"--template-arg", "x", "NAME=VALUE"},
        {"--threads", "5000", "0 to 1024 is accepted"},
        {"--stop", "", "1 to 256 bytes"},
        {"--adapter", "models/demo-lora-caps:1001", "-1000 to 1000 is accepted"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refused(RUN(NULL, P, "run", "models/demo", "hi", bad[i][0], bad[i][1]), 2, bad[i][2]);
    refused(RUN(NULL, P, "bench", "models/demo", "-b", "1,,2"), 2, "whole numbers such as");
    refused(RUN(NULL, P, "bench", "models/demo", "-b", "0"), 2, "out of range");
    refused(RUN(NULL, P, "bench", "models/demo", "--max-time", "5 min"), 2, "is not a time");
}

static void test_sizes(void **state)
{
    uint64_t n;
    double s;

    (void)state;
    assert_true(esp_parse_size("8G", &n) && n == 8000000000u);
    assert_true(esp_parse_size("1.5GiB", &n) && n == 1610612736u);
    assert_true(esp_parse_size("512M", &n) && n == 512000000u);
    assert_true(esp_parse_size("17", &n) && n == 17);
    assert_false(esp_parse_size("99999999999T", &n));
    assert_false(esp_parse_size("G", &n));
    assert_false(esp_parse_size("1.2.3G", &n));
    assert_true(esp_parse_duration("1.5h", &s) && s == 5400);
    assert_true(esp_parse_duration("200ms", &s) && s > 0.199 && s < 0.201);
    assert_false(esp_parse_duration("-5s", &s));
}

static void test_forms(void **state)
{
    static const char *const forms[][2] = {
        {"-n3", NULL}, {"-n=3", NULL}, {"-n", "3"}, {"--max-tokens=3", NULL}, {"--max-tokens", "3"}};

    (void)state;
    for (size_t i = 0; i < 5; i++) {
        struct run r = RUN(NULL, P, "run", "models/demo", "abcdef", forms[i][0], forms[i][1]);

        run_code(&r, 0);
        assert_string_equal(r.out, "ABC\n");
        run_free(&r);
    }
    /* after -- nothing is a flag */
    struct run r = RUN(NULL, P, "run", "models/demo", "--", "--json", "-n");

    run_code(&r, 0);
    assert_string_equal(r.out, "--JSON -N\n");
    run_free(&r);
    /* -m gives the model, so every argument is prompt */
    r = RUN(NULL, P, "run", "-m", "models/demo", "one", "two");
    run_code(&r, 0);
    assert_string_equal(r.out, "ONE TWO\n");
    run_free(&r);
}

static void test_environment(void **state)
{
    struct run_how how = {.env = {"ESPALIER_MAX_TOKENS=2", NULL}};
    struct run r = RUN(&how, P, "run", "models/demo", "abcdef");

    (void)state;
    assert_string_equal(r.out, "AB\n");
    run_free(&r);
    r = RUN(&how, P, "run", "models/demo", "abcdef", "-n", "4"); /* the flag wins */
    assert_string_equal(r.out, "ABCD\n");
    run_free(&r);
    how.env[0] = "ESPALIER_TOP_P=7";
    refused(RUN(&how, P, "run", "models/demo", "hi"), 2, "ESPALIER_TOP_P: 7 is out of range");
    how.env[0] = "ESPALIER_MODEL=models/demo";
    r = RUN(&how, P, "tokenize", "--count", "--file", "models/demo/config.json");
    run_code(&r, 0);
    run_free(&r);
    r = RUN(&how, P, "run", "hello", "you"); /* no model is called hello: all of it is prompt */
    assert_string_equal(r.out, "HELLO YOU\n");
    run_free(&r);
    r = RUN(&how, P, "tokenize", "ab");
    assert_string_equal(r.out, "97 98\n");
    run_free(&r);
    how.env[0] = "ESPALIER_MODEL=no/such/model";
    r = RUN(&how, P, "run", "models/tiny-text", "hello"); /* an argument that names a model wins */
    assert_string_equal(r.out, "HELLO\n");
    run_free(&r);
    refused(RUN(&how, P, "run", "models", "hello"), 3, "no/such/model");
    r = RUN(&how, P, "fit", "models/demo"); /* nothing else can stand there */
    run_code(&r, 0);
    run_free(&r);
    refused(RUN(&how, P, "fit", "models/dmeo"), 3, "models/dmeo");
    how.env[0] = "ESPALIER_REPS=nonsense"; /* belongs to another verb */
    r = RUN(&how, P, "run", "models/demo", "x");
    run_code(&r, 0);
    run_free(&r);
}

static void test_json_errors(void **state)
{
    struct run r = RUN(NULL, P, "run", "models/demo", "x", "--json", "--kv", "q3");
    json_t *j = run_json(&r, 0), *e = json_object_get(j, "error");

    (void)state;
    run_code(&r, 2);
    assert_string_equal(json_string_value(json_object_get(j, "schema")), "espalier.run.v1");
    assert_string_equal(json_string_value(json_object_get(e, "code")), "usage");
    assert_non_null(strstr(json_string_value(json_object_get(e, "message")), "q3"));
    json_decref(j);
    run_free(&r);
    r = RUN(NULL, P, "fit", "no/such/model", "--json");
    run_code(&r, 3);
    j = run_json(&r, 0);
    assert_non_null(json_object_get(j, "error"));
    json_decref(j);
    run_free(&r);
}

/* Whether text has word with no letter or dash right behind it. */
static bool has_word(const char *text, const char *word)
{
    const size_t n = strlen(word);

    for (const char *p = strstr(text, word); p; p = strstr(p + 1, word)) {
        if (p[n] != '-' && !(p[n] >= 'a' && p[n] <= 'z'))
            return true;
    }
    return false;
}

static void test_nothing_drifts(void **state)
{
    struct run shells[3] = {RUN(NULL, P, "completion", "bash"), RUN(NULL, P, "completion", "zsh"),
                            RUN(NULL, P, "completion", "fish")};
    char word[64];

    (void)state;
    for (size_t i = 0; i < N_VERBS; i++) {
        const struct esp_verb *v = esp_verb_get((enum esp_verb_id)i);
        struct run help = RUN(NULL, P, v->name, "--help"), same = RUN(NULL, P, "help", v->name);
        struct run man = RUN(NULL, P, "--man", v->name);

        run_code(&help, 0);
        assert_string_equal(help.out, same.out);
        for (size_t k = 0; k < N_OPTS; k++) {
            const struct esp_opt *o = esp_opt_get((enum esp_opt_id)k);

            if (!esp_opt_for(o, v))
                continue;
            snprintf(word, sizeof word, "--%s", o->name);
            if (!has_word(help.out, word) || !has_word(shells[0].out, word) || !has_word(shells[1].out, word))
                fail_msg("%s is not in the help or a completion of %s", word, v->name);
            snprintf(word, sizeof word, "\\-%s", o->name);
            if (!has_word(man.out, word))
                fail_msg("%s is not in the page of %s", word, v->name);
            snprintf(word, sizeof word, "-l %s", o->name);
            if (!has_word(shells[2].out, word))
                fail_msg("%s is not in fish's completion", word);
        }
        run_free(&help);
        run_free(&same);
        run_free(&man);
    }
    for (int i = 0; i < 3; i++)
        run_free(&shells[i]);
}

static void test_shells_accept(void **state)
{
    static const char *const shells[] = {"bash", "zsh", "fish"};
    int tried = 0;

    (void)state;
    for (int i = 0; i < 3; i++) {
        char path[32];
        struct run script, r;
        const char *file;

        snprintf(path, sizeof path, "/usr/bin/%s", shells[i]);
        if (access(path, X_OK) != 0)
            continue;
        script = RUN(NULL, P, "completion", shells[i]);
        file = test_write(test_tmpdir(), "script", script.out, script.n_out);
        r = RUN(NULL, path, "-n", file);
        run_code(&r, 0);
        run_free(&script);
        run_free(&r);
        tried++;
    }
    if (!tried)
        skip();
}

static void test_bash_completes(void **state)
{
    static const char ask[] =
        "eval \"$($0 completion bash)\"; COMP_WORDS=(espalier run --kv ''); COMP_CWORD=3; _espalier; "
        "echo \"${COMPREPLY[*]}\"; COMP_WORDS=(espalier ru); COMP_CWORD=1; _espalier; "
        "echo \"${COMPREPLY[*]}\"; COMP_WORDS=(espalier ppl m --str); COMP_CWORD=3; _espalier; "
        "echo \"${COMPREPLY[*]}\"";
    struct run r;

    (void)state;
    if (access("/usr/bin/bash", X_OK) != 0)
        skip();
    r = RUN(NULL, "/usr/bin/bash", "-c", ask, P);
    run_code(&r, 0);
    assert_string_equal(r.out, "bf16 f32 q8 q6 q4 turbo\nrun\n--stride\n");
    run_free(&r);
}

static void test_man_lint(void **state)
{
    (void)state;
    if (access("/usr/bin/mandoc", X_OK) != 0)
        skip();
    for (size_t i = 0; i <= N_VERBS; i++) {
        const char *name = i < N_VERBS ? esp_verb_get((enum esp_verb_id)i)->name : "espalier";
        struct run page = RUN(NULL, P, "--man", name), lint;

        run_code(&page, 0);
        lint = RUN(NULL, "/usr/bin/mandoc", "-T", "lint", "-W", "warning",
                   test_write(test_tmpdir(), "page.1", page.out, page.n_out));
        if (lint.code || lint.n_out)
            fail_msg("%s: %s", name, lint.out);
        run_free(&page);
        run_free(&lint);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overview),       cmocka_unit_test(test_verbs),
        cmocka_unit_test(test_flags),          cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_sizes),          cmocka_unit_test(test_forms),
        cmocka_unit_test(test_environment),    cmocka_unit_test(test_json_errors),
        cmocka_unit_test(test_nothing_drifts), cmocka_unit_test(test_shells_accept),
        cmocka_unit_test(test_bash_completes), cmocka_unit_test(test_man_lint),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
