/*
 * bench --serve against a server: counts that add up, answers that are the same under load, refusals that
 * count as such, and everything that it should refuse.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/process.h"

#include <stdio.h>
#include <string.h>

#include "program/spawn/spawn.h"

static struct process p;
static char url[64];

static int start(void **state)
{
    (void)state;
    PROCESS(&p, "--parallel", "4", "--queue", "32", "--ctx", "256", "--api-key", "k");
    snprintf(url, sizeof url, "http://127.0.0.1:%u", p.at.port);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    process_stop(&p);
    return 0;
}

static void test_rows(void **state)
{
    struct run r = RUN(NULL, ESP_PROGRAM, "bench", "--serve", url, "--api-key", "k", "-p", "16", "-n", "8",
                       "--concurrency", "1,8", "--requests", "24", "--verify", "--leave", "20", "--stall",
                       "4", "--json");

    (void)state;
    run_code(&r, 0);
    assert_int_equal(run_lines(&r), 2);
    for (size_t i = 0; i < 2; i++) {
        json_t *j = run_json(&r, i);

        assert_string_equal(text_at(j, "schema"), "espalier.bench_serve.v1");
        assert_int_equal(int_at(j, "clients"), i ? 8 : 1);
        assert_int_equal(int_at(j, "sent"), 24);
        assert_int_equal(int_at(j, "whole") + int_at(j, "left") + int_at(j, "stalled"), 24);
        assert_int_equal(int_at(j, "errors") + int_at(j, "different") + int_at(j, "refused"), 0);
        assert_int_equal(int_at(j, "tokens"), 8 * int_at(j, "whole"));
        assert_true(int_at(j, "ttft_ms.n") >= int_at(j, "whole"));
        assert_true(json_number_value(at(j, "ttft_ms.p50")) <= json_number_value(at(j, "ttft_ms.p99")));
        assert_true(json_number_value(at(j, "outside_ms.p50")) > 0);
        assert_true(json_is_true(at(j, "verified")));
        json_decref(j);
    }
    run_free(&r);
}

/* Requests that come by the clock, also with fewer clients than are due. */
static void test_rate(void **state)
{
    struct run r = RUN(NULL, ESP_PROGRAM, "bench", "--serve", url, "--api-key", "k", "-p", "4", "-n", "4",
                       "--concurrency", "2", "--rate", "200", "--requests", "40", "--format", "jsonl");
    json_t *j;

    (void)state;
    run_code(&r, 0);
    j = run_json(&r, 0);
    assert_int_equal(int_at(j, "whole"), 40);
    assert_int_equal(int_at(j, "sent"), 40);
    json_decref(j);
    run_free(&r);
    r = RUN(NULL, ESP_PROGRAM, "bench", "--serve", url, "--api-key", "k", "-p", "4", "-n", "4", "--max-time",
            "300ms");
    run_code(&r, 0);
    run_prints(&r, "| clients |");
    run_free(&r);
    r = RUN(NULL, ESP_PROGRAM, "bench", "--serve", url, "--api-key", "k", "-p", "4", "-n", "4", "--format",
            "csv");
    run_code(&r, 0);
    run_prints(&r, "clients,prompt,gen,rate");
    run_free(&r);
}

static void refused(int code, const char *says, const char *const more[])
{
    const char *argv[16] = {ESP_PROGRAM, "bench"};
    struct run r;
    size_t n = 2;

    while (more[n - 2]) {
        argv[n] = more[n - 2];
        n++;
    }
    argv[n] = NULL;
    r = run_with(NULL, argv);
    run_code(&r, code);
    run_says(&r, says);
    run_free(&r);
}
#define REFUSED(code, says, ...) refused(code, says, (const char *const[]){__VA_ARGS__, NULL})

static void test_refusals(void **state)
{
    (void)state;
    REFUSED(1, "no server at", "--serve", "http://127.0.0.1:1");
    REFUSED(2, "no MODEL", "models/demo", "--serve", url);
    REFUSED(2, "one --prompt-tokens", "--serve", url, "-p", "1,2");
    REFUSED(2, "more than 100 percent", "--serve", url, "--leave", "60", "--stall", "60");
    REFUSED(7, "status 401", "--serve", url, "-p", "4", "-n", "4"); /* without the key */
    REFUSED(1, "alone, 0 of 8", "--serve", url, "-p", "4", "-n", "4", "--verify");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_rate),
                                       cmocka_unit_test(test_refusals)};

    return cmocka_run_group_tests(tests, start, stop);
}
