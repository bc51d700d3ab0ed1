/*
 * Saved sequences: whatever the length, also with tokens that have not run, the next logits are the same bits
 * in another engine with another number of threads; a file of another setting, a damaged byte and a cut file
 * are refused; a process killed while it writes leaves a whole one. Case 31 of the field.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/map.h"
#include "espalier/espalier.h"

enum { CONTEXT = 1024 };

static esp_model *models[3]; /* by threads */
static const esp_token prompt[9] = {5, 80, 211, 3, 499, 17, 17, 260, 42};

static esp_engine *open_engine(uint32_t threads, esp_engine_opts o)
{
    esp_engine *g;
    esp_error err;

    o.context = o.context ? o.context : CONTEXT;
    test_ok(esp_engine_open(&g, models[threads], &o, &err), &err);
    return g;
}

static void logits_after(esp_seq *s, float *out)
{
    esp_error err;

    test_ok(esp_seq_logits(s, (esp_token[]){7}, 1, out, &err), &err);
}

/* o: how keys, values and states are kept. */
static void check_save(esp_engine_opts o)
{
    static float want[8192], got[8192];
    static const size_t lengths[] = {0, 1, 64, 255, 256, 300};
    esp_engine *g, *other;
    const char *dir = test_tmpdir();
    esp_model_info info;
    struct esp_map m;
    esp_seq *s, *t = NULL;
    char path[512];
    esp_error err;

    o.max_seqs = 2;
    o.kv_tokens = 2048;
    g = open_engine(1, o);
    esp_model_describe(models[1], &info);
    snprintf(path, sizeof path, "%s/saved", dir);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        test_ok(esp_seq_open(&s, g, NULL, &err), &err);
        for (size_t j = 0; j < lengths[i]; j++)
            test_ok(esp_seq_logits(s, (esp_token[]){(esp_token)(j * 5 % 500)}, 1, got, &err), &err);
        test_ok(esp_seq_append(s, prompt, 9, &err), &err); /* known, not run */
        test_ok(esp_seq_save(s, path, &err), &err);
        logits_after(s, want);
        esp_seq_close(s);
        other = open_engine(2, o);
        test_ok(esp_seq_load(&s, other, path, NULL, &err), &err);
        assert_int_equal(esp_seq_length(s), lengths[i] + 9);
        logits_after(s, got);
        assert_memory_equal(want, got, info.n_vocab * sizeof *want);
        esp_seq_close(s);
        esp_engine_close(other);
    }
    other = open_engine(1, (esp_engine_opts){.max_seqs = 1, .kv = "f32"});
    test_refused(esp_seq_load(&t, other, path, NULL, &err), ESP_EINVAL, &err, "kv f32");
    esp_engine_close(other);
    if (o.kv_start) { /* another beginning of the codes is another cache */
        o.kv_start++;
        other = open_engine(1, o);
        test_refused(esp_seq_load(&t, other, path, NULL, &err), ESP_EINVAL, &err, "kv turbo:k8v4 from 78");
        esp_engine_close(other);
        o.kv_start--;
    }
    other =
        open_engine(1, (esp_engine_opts){.max_seqs = 1, .kv = o.kv, .kv_start = o.kv_start, .state = "q8"});
    test_refused(esp_seq_load(&t, other, path, NULL, &err), ESP_EINVAL, &err, "state q8");
    esp_engine_close(other);
    o.context = o.kv_tokens = 256;
    other = open_engine(1, o);
    test_refused(esp_seq_load(&t, other, path, NULL, &err), ESP_ENOFIT, &err, "256");
    esp_engine_close(other);
    test_refused(esp_seq_load(&t, g, path, &(esp_seq_opts){.cache_salt = 3}, &err), ESP_EINVAL, &err,
                 "made with");
    test_refused(esp_seq_load(&t, g, "/nonexistent", NULL, &err), ESP_ENOTFOUND, &err, "/nonexistent");
    test_ok(esp_map_open(&m, path, &err), &err);
    for (size_t at = 0; at < m.size; at += 1 + at / 7) { /* any byte */
        char bad[512];
        uint8_t *copy = malloc(m.size);

        memcpy(copy, m.data, m.size);
        copy[at] ^= 0x10;
        snprintf(bad, sizeof bad, "%s", test_write(dir, "bad", copy, m.size));
        if (esp_seq_load(&t, g, bad, NULL, &err) == ESP_OK)
            fail_msg("byte %zu of %zu changed and nobody noticed", at, m.size);
        test_write(dir, "bad", copy, at); /* cut */
        assert_true(esp_seq_load(&t, g, bad, NULL, &err) != ESP_OK);
        free(copy);
    }
    esp_map_close(&m);
    esp_engine_close(g);
}

static void test_save(void **state)
{
    (void)state;
    check_save((esp_engine_opts){.kv = NULL});
    check_save((esp_engine_opts){.kv = "turbo:k8v4", .kv_start = 77, .state = "bf16"});
}

/* Keep writing two texts under one name until somebody ends the process; a byte to `tell` after the first. */
static void write_for_ever(const char *path, int tell)
{
    esp_engine *g = open_engine(1, (esp_engine_opts){.max_seqs = 2, .kv_tokens = 1024});
    esp_seq *s[2];
    esp_error err;

    for (int i = 0; i < 2; i++) {
        test_ok(esp_seq_open(&s[i], g, NULL, &err), &err);
        test_ok(esp_seq_append(s[i], prompt, i ? 9 : 4, &err), &err);
    }
    for (int i = 0;; i = !i) {
        if (esp_seq_save(s[i], path, &err) != ESP_OK)
            _exit(1);
        if (tell >= 0 && (write(tell, "", 1) != 1 || close(tell) != 0))
            _exit(1);
        tell = -1;
    }
}

/* Killed anywhere while it writes, a process leaves the old file or the new one, whole. */
static void test_killed(void **state)
{
    esp_engine *g = open_engine(1, (esp_engine_opts){.max_seqs = 1, .kv_tokens = 1024});
    const char *dir = test_tmpdir();
    char path[400];
    esp_error err;

    (void)state;
    snprintf(path, sizeof path, "%.300s/text", dir);
    for (int i = 0; i < (TEST_SANITIZED ? 5 : 20); i++) {
        int status, tell[2];
        esp_seq *s;
        pid_t pid;
        char byte;

        assert_int_equal(pipe(tell), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            write_for_ever(path, tell[1]);
        close(tell[1]);
        assert_int_equal(read(tell[0], &byte, 1), 1);
        close(tell[0]);
        usleep((useconds_t)(7919 * i % 30000));
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        test_ok(esp_seq_load(&s, g, path, NULL, &err), &err);
        assert_true(esp_seq_length(s) == 4 || esp_seq_length(s) == 9);
        esp_seq_close(s);
    }
    esp_engine_close(g);
}

static int with(const char *name)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_save), cmocka_unit_test(test_killed)};
    esp_error err;
    int failed;

    for (uint32_t t = 1; t <= 2; t++)
        if (esp_model_open(&models[t], test_path(name), &(esp_model_opts){.threads = t}, &err) != ESP_OK) {
            fprintf(stderr, "%s\n", err.message);
            return 1;
        }
    failed = _cmocka_run_group_tests(name, tests, sizeof tests / sizeof *tests, NULL, NULL);
    esp_model_close(models[1]);
    esp_model_close(models[2]);
    return failed;
}

int main(void)
{
    return with("models/tiny-text") | with("models/demo");
}
