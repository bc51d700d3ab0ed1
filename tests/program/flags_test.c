/*
 * The flags that the design promises, group by group: each is in the manual page, the completions and the
 * dry run of the server. And those that say where and how a model is computed: what they accept, that the
 * text stays the same, and what they refuse by name.
 *
 * SPDX-License-Identifier: MIT
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "program/spawn/spawn.h"
#include "support/support.h"

#define P ESP_PROGRAM
#define M "models/demo"

static const struct run_how none = {.env = {"ESPALIER_CUDA_LIBRARY=/nonexistent.so"}};

static const char *const promised[] = {
    /* the same names in every verb */
    "model", "adapter", "chat-template", "tokenizer", "device", "threads", "threads-batch", "cpu-mask",
    "numa", "huge-pages", "mlock", "mmap", "gpu-layers", "cpu-moe", "place", "fit", "fit-margin",
    "memory-budget", "cache-ram", "cache-disk", "cache-dir", "ctx", "rope-scaling", "chunk", "kv", "kv-start",
    "act", "state", "spec", "spec-tokens", "spec-min-rate", "temperature", "top-p", "top-k", "min-p",
    "repeat-penalty", "presence-penalty", "frequency-penalty", "max-tokens", "thinking", "thinking-budget",
    "json",
    /* the server's: sources, network, keys */
    "config", "profile", "dry-run", "host", "port", "api-prefix", "backlog", "http-threads",
    "max-connections", "insecure", "allowed-hosts", "api-key", "api-key-file", "metrics-public",
    "cors-origins", "trusted-proxies",
    /* memory, rows, queue */
    "min-ctx", "admission", "parallel", "queue", "queue-timeout", "max-stall", "per-key-rows",
    "priority-aging",
    /* limits, life */
    "max-body", "max-messages", "max-prompt-bytes", "header-timeout", "body-timeout", "write-timeout",
    "keepalive-timeout", "request-timeout", "sse-ping", "stream-buffer", "ready-fd", "pidfile",
    "shutdown-timeout", "idle-sleep", "isolate", "log-format", "log-content", "ui", "metrics",
    "metrics-names",
    /* answers and caches */
    "alias", "model-check", "determinism", "strict-max-tokens", "tool-grammar", "tool-in-thinking",
    "replay-entries", "replay-bytes", "strict-history", "messages-thinking", "effort-budgets",
    "thinking-budget-message", "answer-reserve", "reasoning-field", "history", "late-system",
    "strip-client-attribution", "response-store", "response-ttl", "response-dir", "codex-catalog",
    "adapter-dir", "checkpoint-every", "checkpoints-per-path", "slots-text", "slot-save-path", "cache-debug",
    "diag-entries"};

static void test_every_flag(void **state)
{
    struct run man = RUN(NULL, P, "--man", "serve"), dry = RUN(&none, P, "serve", M, "--dry-run", "--json"),
               shells[] = {RUN(NULL, P, "completion", "bash"), RUN(NULL, P, "completion", "zsh"),
                           RUN(NULL, P, "completion", "fish")};
    json_t *v = run_json(&dry, 0);
    char word[64];

    (void)state;
    run_code(&dry, 0);
    for (size_t i = 0; i < sizeof promised / sizeof promised[0]; i++) {
        const json_t *set = json_object_get(json_object_get(v, "settings"), promised[i]);

        if (!json_object_get(set, "value") || !json_object_get(set, "source"))
            fail_msg("--%s is not in the dry run", promised[i]);
        snprintf(word, sizeof word, "\\-%s", promised[i]);
        if (!strstr(man.out, word))
            fail_msg("--%s is not in the manual page", promised[i]);
        for (int k = 0; k < 3; k++) {
            snprintf(word, sizeof word, k < 2 ? "--%s" : "-l %s", promised[i]);
            if (!strstr(shells[k].out, word))
                fail_msg("--%s is not in completion %d", promised[i], k);
        }
    }
    json_decref(v);
    run_free(&man);
    run_free(&dry);
    for (int k = 0; k < 3; k++)
        run_free(&shells[k]);
}

/* ---- the same text ---- */

static void answer(char *out, size_t cap, const char *a, const char *b)
{
    struct run r = RUN(&none, P, "generate", M, "-p", "Once upon a time there was a garden behind the house",
                       "-n", "12", "--temp", "0", a, b);

    run_code(&r, 0);
    snprintf(out, cap, "%s", r.out);
    run_free(&r);
}

static void test_same_text(void **state)
{
    static const char *const same[][2] = {
        {"--no-mmap", NULL}, {"--threads-batch", "3"},  {"--tokenizer", M},   {"--gpu-layers", "0"},
        {"-ngl", "auto"},    {"-ngl=0", NULL},          {"--cpu-moe", "all"}, {"--place", ".*=cpu"},
        {"--fit", "off"},    {"--rope-scaling", "none"}};
    char want[512], got[512], mask[32];
    cpu_set_t set;
    int first = 0;

    (void)state;
    answer(want, sizeof want, "--threads", "1");
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        answer(got, sizeof got, same[i][0], same[i][1]);
        assert_string_equal(got, want);
    }
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    while (!CPU_ISSET((size_t)first, &set))
        first++;
    snprintf(mask, sizeof mask, "%d-%d", first, first);
    answer(got, sizeof got, "--cpu-mask", mask);
    assert_string_equal(got, want);
}

static json_int_t fit_context(const char *scaling)
{
    struct run r = RUN(&none, P, "fit", M, "--json", "--rope-scaling", scaling);
    json_t *v = run_json(&r, 0);
    const json_int_t n = json_integer_value(json_object_get(json_object_get(v, "model"), "context"));

    run_code(&r, 0);
    json_decref(v);
    run_free(&r);
    return n;
}

static void test_rope(void **state)
{
    const json_int_t plain = fit_context("model");

    (void)state;
    assert_true(plain > 0);
    assert_int_equal(fit_context("none"), plain);
    assert_int_equal(fit_context("yarn:4"), 4 * plain);
    assert_int_equal(fit_context("yarn:2.5:1000"), 2500);
}

/* ---- refusals ---- */

static void refused(const char *const argv[], int code, const char *part)
{
    struct run r = run_with(&none, argv);

    run_code(&r, code);
    run_says(&r, part);
    run_silent(&r);
    run_free(&r);
}
#define REFUSED(code, part, ...)                                                                             \
    refused((const char *const[]){P, "generate", M, "-p", "x", "-n", "1", __VA_ARGS__, NULL}, code, part)

static void test_refusals(void **state)
{
    (void)state;
    REFUSED(5, "--gpu-layers all: ", "--gpu-layers", "all");
    REFUSED(5, "--gpu-layers 3: ", "-ngl", "3");
    REFUSED(2, "is not auto, all, or a number of layers", "--gpu-layers", "most");
    REFUSED(2, "--device cpu and --gpu-layers all", "--gpu-layers", "all", "--device", "cpu");
    REFUSED(2, "--gpu-layers 0 and --place mlp=cuda", "--gpu-layers", "0", "--place", "mlp=cuda");
    REFUSED(2, "not of the form REGEX=DEVICE", "--place", "mlp");
    REFUSED(2, "not of the form REGEX=DEVICE", "--place", "mlp=tpu");
    REFUSED(2, "is no regular expression", "--place", "(=cpu");
    REFUSED(5, "--place mlp=cuda:1: ", "--place", "mlp=cuda:1");
    REFUSED(2, "--cpu-moe: 'some'", "--cpu-moe", "some");
    REFUSED(2, "names no processors", "--cpu-mask", "3-1");
    REFUSED(2, "names no processors", "--cpu-mask", "0x0");
    REFUSED(2, "names no processors", "--cpu-mask", "0x1g");
    REFUSED(2, "may not run on processor 1023", "--cpu-mask", "1023");
    REFUSED(2, "models of this family know no other", "--rope-scaling", "linear:2");
    REFUSED(2, "yarn:FACTOR", "--rope-scaling", "yarn:0.5");
    REFUSED(2, "yarn:FACTOR", "--rope-scaling", "yarn:2:");
    REFUSED(3, "/nonexistent", "--tokenizer", "/nonexistent");
    REFUSED(2, "DEVICE=SIZE with host, cpu, cuda or cuda:N", "--memory-budget", "8G,gpu=1G");
    REFUSED(2, "is not a size", "--memory-budget", "8G,host=");
    REFUSED(4, "budget", "--memory-budget", "host=1M");
    REFUSED(4, "budget", "--memory-budget", "8G,cpu=1M");
    REFUSED(2, "0 to 1024 is accepted", "--threads-batch", "2000");
}

/* Budgets of other memories are not this one's. */
static void test_budgets(void **state)
{
    struct run r = RUN(&none, P, "fit", M, "--memory-budget", "cuda:0=1K");

    (void)state;
    run_code(&r, 0);
    run_free(&r);
    r = RUN(&none, P, "fit", M, "--memory-budget", "1K,host=8G");
    run_code(&r, 0);
    run_prints(&r, "budget");
    run_free(&r);
    r = RUN(&none, P, "serve", M, "--dry-run", "--json", "--memory-budget", "8G,cuda=1G");
    run_code(&r, 0);
    run_prints(&r, "\"8G,cuda=1G\"");
    run_free(&r);
}

static void test_machine(void **state)
{
    static const char small[] =
        "{\"machine\":{\"cpu\":\"X\",\"cores\":2,\"ram\":1000000,\"ram_available\":900000}}",
                      large[] = "{\"ram\":64000000000}", none_[] = "{\"cores\":2}";
    const char *dir = test_tmpdir();
    struct run r =
        RUN(&none, P, "fit", M, "--json", "--machine", test_write(dir, "small", small, sizeof small - 1));

    (void)state;
    run_code(&r, 4);
    run_prints(&r, "\"budget_bytes\":900000");
    run_prints(&r, "\"cpu\":\"X\"");
    run_free(&r);
    r = RUN(&none, P, "fit", M, "--json", "--machine", test_write(dir, "large", large, sizeof large - 1));
    run_code(&r, 0);
    run_prints(&r, "\"budget_bytes\":64000000000");
    run_free(&r);
    r = RUN(&none, P, "fit", M, "--machine", test_write(dir, "none", none_, sizeof none_ - 1));
    run_code(&r, 3);
    run_says(&r, "no ram in bytes");
    run_free(&r);
}

/* serve shortens what does not fit, unless told to leave it. */
static void test_fit(void **state)
{
    static const char *const dry[] = {
        P,   "serve",           M,      "--dry-run", "--parallel", "64", "--ctx", "4096", "--cache-ram",
        "0", "--memory-budget", "300M", "--fit",     "off",        NULL};
    struct run r = run_with(&none, dry);

    (void)state;
    run_code(&r, 4);
    run_says(&r, "leave --fit off out");
    run_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_flag), cmocka_unit_test(test_same_text),
                                       cmocka_unit_test(test_rope),       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_budgets),    cmocka_unit_test(test_fit),
                                       cmocka_unit_test(test_machine)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
