/*
 * The work folder: a run that is killed anywhere and resumed gives the bytes of an undisturbed one; nothing
 * half-written loads; what must be refused is refused before any work. And conversion there and back, bit for
 * bit.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/map.h"
#include "base/mem.h"
#include "espalier/espalier.h"
#include "espalier/quantize.h"
#include "io/checkpoint.h"
#include "quantize/files.h"

static const char *path_in(const char *dir, const char *name)
{
    static char buf[64][1024];
    static int at;

    at = (at + 1) % 64;
    snprintf(buf[at], sizeof buf[at], "%s/%s", dir, name);
    return buf[at];
}

struct fuse {
    long left; /* calls of the progress function until the process kills itself */
};

static bool burn(void *user, const char *what, const char *item, double done, double total)
{
    struct fuse *f = user;

    (void)what;
    (void)item;
    (void)done;
    (void)total;
    if (f->left-- == 0)
        raise(SIGKILL);
    return true;
}

enum { SLOW = TEST_SANITIZED }; /* choosing bits runs the model for every matrix */

static const char *const KEEP[] = {"*attn*=bf16", "layers.[1-7].mlp.*=bf16"};

static esp_quantize_opts opts(struct fuse *f, const char *method)
{
    return (esp_quantize_opts){.method = method,
                               .bits = 3,
                               .target_bpw = !SLOW && strcmp(method, "trellis") == 0 ? 3.2 : 0,
                               .keep = KEEP,
                               .n_keep = 2,
                               .calib_tokens = 1024,
                               .memory = 14 << 20, /* several passes */
                               .resume = true,
                               .no_eval = true,
                               .threads = 1,
                               .scale = "fixed", /* searching takes most of the time where rows are short */
                               .fold = ESP_FOLD_ON,
                               .progress = burn,
                               .progress_user = f};
}

static void same_file(const char *a, const char *b)
{
    struct esp_map x = {0}, y = {0};
    esp_error err;

    test_ok(esp_map_open(&x, a, &err), &err);
    test_ok(esp_map_open(&y, b, &err), &err);
    assert_int_equal(x.size, y.size);
    if (x.size)
        assert_memory_equal(x.data, y.data, x.size);
    esp_map_close(&x);
    esp_map_close(&y);
}

static int same_folder(const char *a, const char *b)
{
    DIR *d = opendir(a);
    const struct dirent *e;
    int n = 0;

    assert_non_null(d);
    while ((e = readdir(d)) != NULL)
        if (e->d_name[0] != '.') {
            same_file(path_in(a, e->d_name), path_in(b, e->d_name));
            n++;
        }
    closedir(d);
    return n;
}

/* Run in a child that dies at progress call `at`; whether it died. */
static bool run_until(const char *out, const char *method, long at)
{
    int status;
    const pid_t pid = fork();

    if (pid == 0) {
        struct fuse f = {at};
        const esp_quantize_opts o = opts(&f, method);

        _exit(esp_quantize(test_path("models/demo"), out, &o, NULL, NULL, NULL, NULL) == ESP_OK ? 0 : 1);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return true;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return false;
}

static void resume(const char *method)
{
    const char *dir = test_tmpdir();
    char plain[512], killed[512], work[520];
    uint32_t seed = 20;
    int deaths = 0;
    struct fuse never = {-1};
    const esp_quantize_opts o = opts(&never, method);
    esp_error err;
    struct esp_model *m;

    snprintf(plain, sizeof plain, "%s/plain", dir);
    snprintf(killed, sizeof killed, "%s/killed", dir);
    snprintf(work, sizeof work, "%s.work", killed);
    test_ok(esp_quantize(test_path("models/demo"), plain, &o, NULL, NULL, NULL, &err), &err);
    for (int i = 0; i < 40; i++) {
        seed = seed * 1664525u + 1013904223u;
        /* checking takes 190 calls; deaths spread over calibration, measuring, coding, writing */
        if (!run_until(killed, method, 180 + (long)(seed >> 8) % 200 + 60L * i))
            break;
        deaths++;
        assert_false(esp_file_exists(killed));
        assert_int_not_equal(esp_model_open(&m, work, NULL, NULL), ESP_OK);
    }
    assert_true(deaths >= 2);
    printf("%d deaths\n", deaths);
    assert_true(esp_file_exists(killed));
    assert_false(esp_file_exists(work));
    assert_true(same_folder(plain, killed) >= 5);
    test_refused(esp_quantize(test_path("models/demo"), killed, &o, NULL, NULL, NULL, &err), ESP_ESTATE, &err,
                 "exists");
}

static void test_resume_gptq(void **state)
{
    (void)state;
    resume("gptq");
}

static void test_resume_trellis(void **state)
{
    (void)state;
    resume("trellis");
}

/* ---- killed at any moment ---- */

/* Run in a child that is killed from outside after so long; whether it was. */
static bool run_for(const char *out, const char *method, long us)
{
    const struct timespec t = {us / 1000000, us % 1000000 * 1000};
    int status;
    const pid_t pid = fork();

    if (pid == 0) {
        struct fuse f = {-1};
        const esp_quantize_opts o = opts(&f, method);

        _exit(esp_quantize(test_path("models/demo"), out, &o, NULL, NULL, NULL, NULL) == ESP_OK ? 0 : 1);
    }
    assert_true(pid > 0);
    nanosleep(&t, NULL);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status))
        return true;
    assert_int_equal(WEXITSTATUS(status), 0);
    return false;
}

/*
 * ESPALIER_SOAK runs of each method, each killed again and again: waits grow from one death to the next, so
 * that every stage is hit and the run ends.
 */
static void test_kill_soak(void **state)
{
    static const char *const methods[] = {"rtn", "gptq", "trellis"};
    const char *soak = getenv("ESPALIER_SOAK");
    const long n = soak ? strtol(soak, NULL, 10) : 0;
    uint32_t seed = 9;
    long deaths = 0;

    (void)state;
    if (n <= 0)
        skip();
    for (size_t m = 0; m < 3; m++) {
        const char *dir = test_tmpdir();
        char plain[512], killed[512], work[520];
        struct fuse never = {-1};
        const esp_quantize_opts o = opts(&never, methods[m]);
        esp_model *model;
        esp_error err;

        snprintf(plain, sizeof plain, "%s/plain", dir);
        test_ok(esp_quantize(test_path("models/demo"), plain, &o, NULL, NULL, NULL, &err), &err);
        for (long i = 0; i < n; i++) {
            long most = 20000;

            snprintf(killed, sizeof killed, "%s/killed-%ld", dir, i);
            snprintf(work, sizeof work, "%s.work", killed);
            for (;; most += most / 8) {
                seed = seed * 1664525u + 1013904223u;
                if (!run_for(killed, methods[m], (long)(seed >> 8) % most))
                    break;
                deaths++;
                if (esp_file_exists(killed)) /* the kill may come after the last rename */
                    break;
                if (esp_model_open(&model, work, NULL, NULL) == ESP_OK) { /* just before it: all is there */
                    esp_model_close(model);
                    assert_true(same_folder(plain, work) >= 5);
                }
            }
            assert_true(same_folder(plain, killed) >= 5);
        }
    }
    printf("%ld kills\n", deaths);
}

/* ---- out of memory ---- */

/* Every allocation that fails, in steps that grow: a message about memory, no output, and the rest can go on.
 */
static void test_out_of_memory(void **state)
{
    const char *dir = test_tmpdir();
    char out[512];
    struct fuse never = {-1};
    esp_quantize_opts o = opts(&never, "rtn");
    esp_status s = ESP_ENOMEM;
    esp_error err;
    int64_t at = 0;
    uint32_t failures = 0;

    (void)state;
    o.target_bpw = 0;
    o.bits = 4;
    snprintf(out, sizeof out, "%s/out", dir);
    for (; s == ESP_ENOMEM; at += 1 + at / 6) {
        esp_mem_fail_at(at);
        s = esp_quantize(test_path("models/tiny-text"), out, &o, NULL, NULL, NULL, &err);
        esp_mem_fail_at(-1);
        if (s == ESP_OK)
            break;
        failures++;
        assert_false(esp_file_exists(out));
        if (s != ESP_ENOMEM || !strstr(err.message, "memory"))
            fail_msg("allocation %lld: %s: %s", (long long)at, esp_status_name(s), err.message);
    }
    test_ok(s, &err);
    assert_true(failures > 10);
    assert_true(esp_file_exists(out));
}

static bool stop(void *user, const char *what, const char *item, double done, double total)
{
    (void)user;
    (void)item;
    (void)done;
    (void)total;
    return strcmp(what, "coding") != 0;
}

static void refuse(esp_quantize_opts o, esp_status wanted, const char *part)
{
    const char *out = path_in(test_tmpdir(), "out");
    esp_error err;

    o.no_eval = true;
    o.threads = 1;
    test_refused(esp_quantize(test_path("models/demo"), out, &o, NULL, NULL, NULL, &err), wanted, &err, part);
    assert_false(esp_file_exists(out));
}

static void test_refusals(void **state)
{
    static const char *const unknown[] = {"*no_such*=bf16"}, *const untyped[] = {"*attn*"},
                             *const badtype[] = {"*attn*=int3"};
    const char *dir = test_tmpdir();
    char out[512];
    static const char RECIPE[] = "{\"tensors\": {\"model.nothing\": {\"method\": \"rtn\", \"bits\": 4}}}";
    const char *recipe = test_write(dir, "r.json", RECIPE, strlen(RECIPE));
    esp_quantize_opts o = {.method = "rtn", .no_eval = true, .threads = 1, .progress = stop};
    esp_error err;

    (void)state;
    snprintf(out, sizeof out, "%s/out", dir);
    refuse((esp_quantize_opts){.method = "awq"}, ESP_EINVAL, "rtn, gptq, trellis");
    refuse((esp_quantize_opts){.bits = 7}, ESP_EINVAL, "7 bits");
    refuse((esp_quantize_opts){.group = 48}, ESP_EINVAL, "group 48");
    refuse((esp_quantize_opts){.keep = unknown, .n_keep = 1}, ESP_EINVAL, "no_such");
    refuse((esp_quantize_opts){.keep = untyped, .n_keep = 1}, ESP_EINVAL, "PATTERN=dtype");
    refuse((esp_quantize_opts){.keep = badtype, .n_keep = 1}, ESP_EINVAL, "int3");
    refuse((esp_quantize_opts){.recipe = recipe}, ESP_EINVAL, "model.nothing");
    /* stopped: the folder stays, is refused without resume and with other options, and goes on with it */
    test_refused(esp_quantize(test_path("models/demo"), out, &o, NULL, NULL, NULL, &err), ESP_ECANCELLED,
                 &err, NULL);
    test_refused(esp_quantize(test_path("models/demo"), out, &o, NULL, NULL, NULL, &err), ESP_ESTATE, &err,
                 "resume");
    o.resume = true;
    o.bits = 8;
    test_refused(esp_quantize(test_path("models/demo"), out, &o, NULL, NULL, NULL, &err), ESP_ESTATE, &err,
                 "another");
    o.bits = 4;
    o.progress = NULL;
    test_ok(esp_quantize(test_path("models/demo"), out, &o, NULL, NULL, NULL, &err), &err);
    test_refused(esp_quantize(out, path_in(dir, "twice"), &o, NULL, NULL, NULL, &err), ESP_EUNSUPPORTED, &err,
                 "already");
}

/* A weight that is not finite is named before any work. */
static void test_case_46_not_finite(void **state)
{
    const char *dir = test_tmpdir(), *cfg = test_path("models/tiny-text/config.json");
    struct esp_map m;
    uint8_t *copy;
    const uint16_t nan = 0x7fc0;
    esp_quantize_opts o = {.method = "rtn", .no_eval = true, .threads = 1};
    struct esp_st_file *f;
    const struct esp_st_tensor *t;
    char from[512], name[128];
    esp_error err;

    (void)state;
    snprintf(from, sizeof from, "%s", test_path("models/tiny-text/model.safetensors"));
    test_ok(esp_map_open(&m, from, &err), &err);
    test_ok(esp_st_open(&f, from, &err), &err);
    t = NULL;
    for (uint32_t i = 0; i < esp_st_count(f); i++)
        if (strstr(esp_st_get(f, i)->name, "layers.1.mlp.up_proj.weight"))
            t = esp_st_get(f, i);
    assert_non_null(t);
    assert_int_equal(t->dtype, ESP_DTYPE_BF16);
    snprintf(name, sizeof name, "%s", t->name);
    copy = malloc(m.size);
    memcpy(copy, m.data, m.size);
    {
        size_t end = 0, at;

        for (uint32_t i = 0; i < esp_st_count(f); i++)
            end += esp_st_get(f, i)->bytes;
        at = m.size - end; /* start of the data area */
        for (uint32_t i = 0; i < esp_st_count(f); i++)
            if (esp_st_get(f, i)->data < t->data)
                at += esp_st_get(f, i)->bytes;
        memcpy(copy + at + 10, &nan, sizeof nan);
    }
    test_write(dir, "model.safetensors", copy, m.size);
    free(copy);
    esp_st_close(f);
    esp_map_close(&m);
    test_ok(esp_file_copy(path_in(dir, "config.json"), cfg, &err), &err);
    test_refused(esp_quantize(dir, path_in(dir, "out"), &o, NULL, NULL, NULL, &err), ESP_ENUMERIC, &err,
                 name);
    assert_false(esp_file_exists(path_in(dir, "out.work")));
}

static void test_convert_round_trip(void **state)
{
    const char *dir = test_tmpdir();
    const esp_convert_opts none = {0}, mlx = {.layout = "mlx"}, bad = {.layout = "gguf"};
    char there[512], back[512];
    struct esp_checkpoint *a, *b, *c;
    esp_error err;

    (void)state;
    snprintf(there, sizeof there, "%s/mlx", dir);
    snprintf(back, sizeof back, "%s/hf", dir);
    test_refused(esp_convert(test_path("models/demo"), there, &bad, &err), ESP_EINVAL, &err, "hf and mlx");
    test_ok(esp_convert(test_path("models/demo"), there, &mlx, &err), &err);
    test_ok(esp_convert(there, back, &none, &err), &err);
    test_refused(esp_convert(there, back, &none, &err), ESP_ESTATE, &err, "exists");
    test_ok(esp_checkpoint_open(&a, test_path("models/demo"), &err), &err);
    test_ok(esp_checkpoint_open(&b, back, &err), &err);
    test_ok(esp_checkpoint_open(&c, there, &err), &err);
    assert_int_equal(a->main.n_tensor, b->main.n_tensor);
    for (uint32_t i = 0; i < a->main.n_tensor; i++) {
        const struct esp_st_tensor *x = a->main.tensor[i], *y = b->main.tensor[i];

        assert_string_equal(x->name, y->name);
        assert_int_equal(x->n_dim, y->n_dim);
        assert_memory_equal(x->shape, y->shape, x->n_dim * sizeof x->shape[0]);
        if (x->dtype == y->dtype) {
            assert_memory_equal(x->data, y->data, x->bytes);
        } else { /* norms that needed f32 on the way: the value is the same */
            assert_int_equal(y->dtype, ESP_DTYPE_F32);
            assert_int_equal(x->dtype, ESP_DTYPE_BF16);
            for (size_t k = 0; k < esp_st_elements(x); k++) {
                uint32_t bits;
                uint16_t half;

                memcpy(&bits, y->data + 4 * k, 4);
                memcpy(&half, x->data + 2 * k, 2);
                assert_int_equal(bits, (uint32_t)half << 16);
            }
        }
    }
    assert_non_null(esp_checkpoint_find(c, "language_model.model.embed_tokens.weight"));
    assert_null(esp_checkpoint_find(c, "model.language_model.embed_tokens.weight"));
    esp_checkpoint_close(a);
    esp_checkpoint_close(b);
    esp_checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),           cmocka_unit_test(test_case_46_not_finite),
        cmocka_unit_test(test_convert_round_trip), cmocka_unit_test(test_resume_gptq),
        cmocka_unit_test(test_resume_trellis),     cmocka_unit_test(test_kill_soak),
        cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
