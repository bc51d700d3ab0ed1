/*
 * run and generate over the stand-in library: what goes to which stream, endings, interruptions, broken
 * outputs.
 *
 * SPDX-License-Identifier: MIT
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/map.h"
#include "program/spawn/spawn.h"
#include "support/support.h"

#define P ESP_PROGRAM_DOUBLE
#define M "models/demo"

static void test_prompt_sources(void **state)
{
    const char *dir = test_tmpdir(), *file = test_write(dir, "f", "from file\n", 10);
    struct run_how piped = {.input = "from pipe\n"};
    struct run r = RUN(NULL, P, "run", M, "hello", "you");

    (void)state;
    run_code(&r, 0);
    assert_string_equal(r.out, "HELLO YOU\n");
    run_free(&r);
    r = RUN(&piped, P, "run", M);
    assert_string_equal(r.out, "FROM PIPE\n");
    run_free(&r);
    r = RUN(NULL, P, "run", M, "-f", file);
    assert_string_equal(r.out, "FROM FILE\n");
    run_free(&r);
    r = RUN(&piped, P, "run", M, "ask:", "-f", "-");
    assert_string_equal(r.out, "ASK:\n\nFROM PIPE\n");
    run_free(&r);
    r = RUN(NULL, P, "run", M); /* standard input is empty */
    run_code(&r, 2);
    run_says(&r, "the prompt is empty");
    run_free(&r);
    r = RUN(NULL, P, "run", M, "-f", "/no/such/file");
    run_code(&r, 3);
    run_says(&r, "/no/such/file");
    run_silent(&r);
    run_free(&r);
}

static void test_thinking(void **state)
{
    struct run r = RUN(NULL, P, "run", M, "THINK now");

    (void)state;
    assert_string_equal(r.out, "THINK NOW\n");
    assert_string_equal(r.err, "hm\n");
    run_free(&r);
    r = RUN(NULL, P, "run", M, "THINK now", "--hide-thinking");
    assert_string_equal(r.err, "");
    run_free(&r);
    r = RUN(NULL, P, "run", M, "THINK now", "-q");
    assert_string_equal(r.err, "");
    run_free(&r);
    /* with --thinking on the prompt opens the tag, so all of an answer without the closing one is thinking */
    r = RUN(NULL, P, "run", M, "x", "--thinking", "on");
    assert_string_equal(r.out, "");
    assert_string_equal(r.err, "X\n");
    run_free(&r);
}

static void test_run_json(void **state)
{
    struct run r = RUN(NULL, P, "run", M, "THINK h\xc3\xa9", "--json", "-s", "7");
    char text[64] = "", thinking[64] = "";
    json_t *end, *usage;

    (void)state;
    run_code(&r, 0);
    for (size_t i = 0; i + 1 < run_lines(&r); i++) {
        json_t *j = run_json(&r, i);
        const bool answer = strcmp(json_string_value(json_object_get(j, "channel")), "answer") == 0;

        assert_string_equal(json_string_value(json_object_get(j, "type")), "delta");
        strncat(answer ? text : thinking, json_string_value(json_object_get(j, "text")), 30);
        json_decref(j);
    }
    assert_string_equal(text, "THINK H\xc3\xa9");
    assert_string_equal(thinking, "hm");
    end = run_json(&r, run_lines(&r) - 1);
    assert_string_equal(json_string_value(json_object_get(end, "text")), text);
    assert_string_equal(json_string_value(json_object_get(end, "finish_reason")), "end");
    assert_int_equal(json_integer_value(json_object_get(end, "seed")), 7);
    usage = json_object_get(end, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 19 + 9);
    json_decref(end);
    run_free(&r);
}

static void test_ends(void **state)
{
    struct run r = RUN(NULL, P, "run", M, "hello", "--stop", "LL", "--json");
    json_t *end = run_json(&r, run_lines(&r) - 1);

    (void)state;
    assert_string_equal(json_string_value(json_object_get(end, "text")), "HE");
    assert_string_equal(json_string_value(json_object_get(end, "finish_reason")), "stop");
    assert_string_equal(json_string_value(json_object_get(end, "stop")), "LL");
    json_decref(end);
    run_free(&r);
    r = RUN(NULL, P, "run", M, "hello", "-n", "3", "--json");
    end = run_json(&r, run_lines(&r) - 1);
    assert_string_equal(json_string_value(json_object_get(end, "finish_reason")), "length");
    json_decref(end);
    run_free(&r);
    r = RUN(NULL, P, "run", M, "hello", "-n", "0", "--json"); /* the prompt alone */
    run_code(&r, 0);
    end = run_json(&r, 0);
    assert_int_equal(run_lines(&r), 1);
    assert_string_equal(json_string_value(json_object_get(end, "finish_reason")), "length");
    assert_string_equal(json_string_value(json_object_get(end, "text")), "");
    json_decref(end);
    run_free(&r);
    r = RUN(NULL, P, "generate", M, "-p", "ab", "-n", "0", "-N", "2", "-s", "1");
    run_prints(&r, "--- 1 (length, 0 tokens");
    run_free(&r);
    r = RUN(NULL, P, "run", M, "ab\xc3\xa9", "-n", "3"); /* cut inside a character */
    assert_string_equal(r.out, "AB\xef\xbf\xbd\n");
    run_free(&r);
    r = RUN(NULL, P, "run", M, "FAIL now", "--json");
    run_code(&r, 1);
    end = run_json(&r, run_lines(&r) - 1);
    assert_string_equal(json_string_value(json_object_get(json_object_get(end, "error"), "message")),
                        "failed on purpose");
    json_decref(end);
    run_free(&r);
    r = RUN(NULL, P, "run", M, "hello", "-c", "8");
    run_code(&r, 4);
    run_says(&r, "context of 8");
    run_silent(&r);
    run_free(&r);
    r = RUN(NULL, P, "run", M, "hello", "--memory-budget", "1M");
    run_code(&r, 4);
    run_says(&r, "the budget is 1000000");
    run_silent(&r);
    run_free(&r);
}

static void test_interrupt(void **state)
{
    struct run_how how = {.signal = SIGINT};
    struct run r = RUN(&how, P, "run", M, "FOREVER SLOW");

    (void)state;
    run_code(&r, 130);
    run_free(&r);
    how.signal = -SIGINT; /* twice */
    r = RUN(&how, P, "run", M, "FOREVER SLOW");
    run_code(&r, 130);
    run_free(&r);
    how.signal = SIGTERM;
    r = RUN(&how, P, "generate", M, "-p", "FOREVER SLOW");
    run_code(&r, 143);
    run_free(&r);
    how.signal = SIGINT;
    r = RUN(&how, P, "run", M, "FOREVER SLOW", "--json");
    run_code(&r, 130);
    json_t *end = run_json(&r, run_lines(&r) - 1);

    assert_string_equal(json_string_value(json_object_get(end, "finish_reason")), "interrupted");
    json_decref(end);
    run_free(&r);
}

static void test_broken_output(void **state)
{
    struct run_how full = {.output = "/dev/full"}, gone = {.close_after = 3};
    static const char *const calls[][5] = {{P, "run", M, "hello", NULL},
                                           {P, "tokenize", M, "hello", NULL},
                                           {P, "help", "run", NULL, NULL},
                                           {P, "devices", "--json", NULL, NULL},
                                           {P, "completion", "zsh", NULL, NULL}};

    (void)state;
    for (size_t i = 0; i < 5; i++) {
        struct run r = run_with(&full, calls[i]);

        run_code(&r, 1);
        run_says(&r, "standard output: No space left on device");
        run_free(&r);
    }
    struct run r = RUN(&gone, P, "run", M, "SLOW FOREVER"); /* the reader leaves while tokens come */

    run_code(&r, 141);
    assert_string_equal(r.err, "");
    run_free(&r);
}

static void test_transcript(void **state)
{
    const char *dir = test_tmpdir();
    char path[256];
    struct stat st;
    char *text;
    size_t len;

    (void)state;
    snprintf(path, sizeof path, "%s/t.jsonl", dir);
    for (int i = 0; i < 2; i++) {
        struct run r = RUN(NULL, P, "run", M, "hi", "--system", "be brief", "--transcript", path);

        run_code(&r, 0);
        run_free(&r);
    }
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    test_ok(esp_read_file(&text, &len, path, 1 << 20, NULL), NULL);
    assert_string_equal(
        text, "{\"role\":\"system\",\"content\":\"be brief\"}\n{\"role\":\"user\",\"content\":\"hi\"}\n"
              "{\"role\":\"assistant\",\"content\":\"HI\"}\n"
              "{\"role\":\"system\",\"content\":\"be brief\"}\n{\"role\":\"user\",\"content\":\"hi\"}\n"
              "{\"role\":\"assistant\",\"content\":\"HI\"}\n");
    esp_free(text);
}

static void test_tools_file(void **state)
{
    const char *bad = test_write(test_tmpdir(), "t.json", "{}", 2);
    struct run r = RUN(NULL, P, "run", M, "hi", "--tools", bad);

    (void)state;
    run_code(&r, 3);
    run_says(&r, "an array of tools");
    run_free(&r);
}

static void test_generate(void **state)
{
    struct run r = RUN(NULL, P, "generate", M, "-p", "abc", "-n", "5");

    (void)state;
    assert_string_equal(r.out, "abc\n");
    run_free(&r);
    r = RUN(NULL, P, "generate", M, "-p", "abc", "--echo", "--ignore-eos", "-n", "6");
    assert_string_equal(r.out, "abcabcla \n");
    run_free(&r);
    r = RUN(NULL, P, "generate", M, "--ids", "-p", "[65, 66]", "--echo");
    assert_string_equal(r.out, "65 66 65 66\n");
    run_free(&r);
    r = RUN(NULL, P, "generate", M, "-p", "ab", "-N", "3", "-s", "5");
    run_prints(&r, "--- 0 (end, 2 tokens, seed 5)\nab\n");
    run_prints(&r, "--- 2 (end, 2 tokens, seed ");
    run_free(&r);
    r = RUN(NULL, P, "generate", M, "-p", "ab", "--logprobs", "1");
    assert_string_equal(r.out, "0\t97\t-0.500000\t\"a\"\n0\t(97)\t-0.500000\t\"a\"\n0\t98\t-0."
                               "500000\t\"b\"\n0\t(98)\t-0.500000\t\"b\"\n");
    run_free(&r);
    r = RUN(NULL, P, "generate", M, "-p", "a", "--chat", "--json", "--logprobs", "0");
    run_code(&r, 0);
    json_t *j = run_json(&r, 0);

    assert_int_equal(json_integer_value(json_object_get(j, "id")), 'A');
    json_decref(j);
    run_free(&r);
}

static void test_generate_refuses(void **state)
{
    static const char *const bad[][2] = {
        {"1 x", "'x' is not a token id"}, {"264", "0 to 263 are"}, {"-1", "is not a token id"}};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct run r = RUN(NULL, P, "generate", M, "--ids", "-p", bad[i][0]);

        run_code(&r, 2);
        run_says(&r, bad[i][1]);
        run_silent(&r);
        run_free(&r);
    }
    struct run r = RUN(NULL, P, "generate", M, "--chat", "--ids", "-p", "1");

    run_code(&r, 2);
    run_says(&r, "excludes --raw and --ids");
    run_free(&r);
    r = RUN(NULL, P, "generate", M, "-p", "a", "-f", "b");
    run_code(&r, 2);
    run_says(&r, "one prompt is enough");
    run_free(&r);
    r = RUN(NULL, P, "generate", M, "-p", "");
    run_code(&r, 2);
    run_says(&r, "has no tokens");
    run_free(&r);
}

static void test_bad_input_text(void **state)
{
    struct run_how how = {.input = "a\xff\xfe z"};
    struct run r = RUN(&how, P, "run", M, "--json");
    json_t *end;

    (void)state;
    run_code(&r, 0);
    end = run_json(&r, run_lines(&r) - 1);
    assert_string_equal(json_string_value(json_object_get(end, "text")), "A\xef\xbf\xbd\xef\xbf\xbd Z");
    json_decref(end);
    run_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_sources), cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_run_json),       cmocka_unit_test(test_ends),
        cmocka_unit_test(test_interrupt),      cmocka_unit_test(test_broken_output),
        cmocka_unit_test(test_transcript),     cmocka_unit_test(test_tools_file),
        cmocka_unit_test(test_generate),       cmocka_unit_test(test_generate_refuses),
        cmocka_unit_test(test_bad_input_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
