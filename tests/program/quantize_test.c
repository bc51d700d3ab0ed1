/*
 * quantize from the command line: Ctrl-C keeps what is done and says how to go on, texts and chats to measure
 * on, what is wrong with them, and the plan as a table and as a picture.
 *
 * SPDX-License-Identifier: MIT
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program/spawn/spawn.h"
#include "support/support.h"

#define P ESP_PROGRAM
#define M "models/demo"
/* the search for row scales takes most of the time where rows are short */
#define FAST                                                                                                 \
    "--no-eval", "-t", "1", "--calib-tokens", "1024", "--trellis-scale", "fixed", "--keep",                  \
        "layers.[2-7].mlp.*=bf16", "--keep", "*attn*=bf16"

static const struct run_how with = {.env = {"ESPALIER_CUDA_LIBRARY=" ESP_CUDA_DOUBLE}};

static const char *in(const char *dir, const char *name)
{
    static char path[8][1024];
    static int at;

    at = (at + 1) % 8;
    snprintf(path[at], sizeof path[at], "%s/%s", dir, name);
    return path[at];
}

static void same_file(const char *a, const char *b)
{
    struct run r = RUN(NULL, "/usr/bin/cmp", a, b);

    run_code(&r, 0);
    run_free(&r);
}

static void test_interrupted(void **state)
{
    const struct run_how how = {.signal = SIGINT, .signal_on = "coding "};
    const char *dir = test_tmpdir();
    char out[512], plain[512];
    struct run r;

    (void)state;
    snprintf(out, sizeof out, "%s/out", dir);
    snprintf(plain, sizeof plain, "%s/plain", dir);
    r = RUN(&how, P, "quantize", M, "-o", out, "--method", "trellis", "-v", FAST);
    run_code(&r, 8);
    run_says(&r, "interrupted");
    run_says(&r, "--resume");
    run_says(&r, in(dir, "out.work"));
    run_free(&r);
    assert_int_not_equal(access(out, F_OK), 0);
    assert_int_equal(access(in(dir, "out.work/state/job.json"), F_OK), 0);
    r = RUN(NULL, P, "quantize", M, "-o", out, "--method", "trellis", FAST); /* not by accident */
    assert_true(r.code != 0);
    run_says(&r, "resume");
    run_free(&r);
    r = RUN(&with, P, "quantize", M, "-o", out, "--method", "trellis", "--resume", "--device", "cuda:1",
            FAST);
    run_code(&r, 0);
    run_prints(&r, "searched on cuda:1 (stand-in)"); /* and what it did is what the CPU does */
    run_free(&r);
    r = RUN(NULL, P, "quantize", M, "-o", plain, "--method", "trellis", "--device", "cpu", FAST);
    run_code(&r, 0);
    run_prints(&r, "searched on cpu");
    run_free(&r);
    same_file(in(out, "model.safetensors"), in(plain, "model.safetensors"));
    same_file(in(out, "config.json"), in(plain, "config.json"));
}

/* A device that was named must be there before any work; no device is asked for when nothing is searched. */
static void test_devices(void **state)
{
    static const struct run_how none = {.env = {"ESPALIER_CUDA_LIBRARY=/nonexistent/espalier_cuda.so"}};
    const char *dir = test_tmpdir();
    char out[512];
    struct run r;

    (void)state;
    snprintf(out, sizeof out, "%s/out", dir);
    r = RUN(&with, P, "quantize", M, "-o", out, "--method", "trellis", "--device", "cuda:2", FAST);
    run_code(&r, 5);
    run_says(&r, "no device 2");
    run_free(&r);
    r = RUN(&none, P, "quantize", M, "-o", out, "--method", "trellis", "--device", "cuda", FAST);
    run_code(&r, 5);
    run_says(&r, "/nonexistent/espalier_cuda.so");
    run_free(&r);
    r = RUN(NULL, P, "quantize", M, "-o", out, "--method", "rtn", "--device", "gpu", FAST);
    run_code(&r, 2);
    run_says(&r, "cpu, cuda, cuda:N");
    run_free(&r);
    assert_int_not_equal(access(in(dir, "out.work"), F_OK), 0);
    r = RUN(&none, P, "quantize", M, "-o", out, "--method", "rtn", "--device", "cuda", FAST);
    run_code(&r, 0);
    run_free(&r);
}

static void test_calibration_texts(void **state)
{
    static const char chat[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"What is two and two, and why "
        "does it matter to anyone at all?\"}, {\"role\": \"assistant\", \"content\": \"Four.\"}]}\n";
    const char *dir = test_tmpdir();
    char *chats = calloc(40, sizeof chat), *text = calloc(1, 32768), out[512];
    struct run r;

    (void)state;
    for (int i = 0; i < 39; i++)
        strcat(chats, chat);
    for (int i = 0; i < 700; i++)
        strcat(text, "The old man went down to the river. ");
    snprintf(out, sizeof out, "%s/chats", dir);
    r = RUN(NULL, P, "quantize", M, "-o", out, "--calib", test_write(dir, "c.jsonl", chats, strlen(chats)),
            FAST);
    run_code(&r, 0);
    run_free(&r);
    snprintf(out, sizeof out, "%s/text", dir);
    r = RUN(NULL, P, "quantize", M, "-o", out, "--calib", test_write(dir, "c.txt", text, strlen(text)), FAST);
    run_code(&r, 0);
    run_free(&r);
    snprintf(out, sizeof out, "%s/bad", dir);
    strcat(chats, "{\"prompt\": 1}\n");
    r = RUN(NULL, P, "quantize", M, "-o", out, "--no-eval", "--calib",
            test_write(dir, "d.jsonl", chats, strlen(chats)));
    assert_true(r.code == 1 || r.code == 3);
    run_says(&r, "d.jsonl line 40");
    run_says(&r, "messages");
    run_free(&r);
    r = RUN(NULL, P, "quantize", M, "-o", out, "--calib", test_write(dir, "e.txt", "short", 5), FAST);
    assert_true(r.code != 0);
    run_says(&r, "at least");
    run_free(&r);
    r = RUN(NULL, P, "quantize", M, "-o", out, "--calib", "no/such/file", FAST);
    run_code(&r, 3);
    run_says(&r, "no/such/file");
    run_free(&r);
    free(chats);
    free(text);
}

/* The recipe of the result, as text and as SVG; quantized twice from it, the same bits. */
static void test_plan(void **state)
{
    const char *dir = test_tmpdir();
    char out[512], again[512], svg[512], plan[600];
    struct run r;

    (void)state;
    snprintf(out, sizeof out, "%s/out", dir);
    snprintf(again, sizeof again, "%s/again", dir);
    snprintf(svg, sizeof svg, "%s/plan.svg", dir);
    snprintf(plan, sizeof plan, "--plan=%s", svg);
    r = RUN(NULL, P, "quantize", M, "-o", out, "--method", "trellis", "--target-bpw", "3.2", FAST);
    run_code(&r, 0);
    run_prints(&r, "bits a weight");
    run_free(&r);
    r = RUN(NULL, P, "inspect", out, "--plan");
    run_code(&r, 0);
    run_prints(&r, "mlp.down_proj");
    run_prints(&r, "trellis");
    run_free(&r);
    r = RUN(NULL, P, "inspect", out, plan);
    run_code(&r, 0);
    run_free(&r);
    r = RUN(NULL, "/bin/cat", svg);
    run_prints(&r, "<svg");
    run_prints(&r, "</svg>");
    run_free(&r);
    r = RUN(NULL, P, "quantize", M, "-o", again, "--recipe", in(out, "espalier_recipe.json"), FAST);
    run_code(&r, 0);
    run_free(&r);
    same_file(in(out, "model.safetensors"), in(again, "model.safetensors"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_calibration_texts),
        cmocka_unit_test(test_plan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
