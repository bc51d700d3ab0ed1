/*
 * The encoder with a device: paths, codes and scales are those of the CPU, bit for bit, for every k, search,
 * group of feedback and size of targets, and a device that fails is an error. Runs with the stand-in of
 * tests/program/device wherever there is no device.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "quantize/encode_matrix.h"
#include "quantize/encode_parts.h"

enum { T = 256, MANY = 600, FEW = 37 }; /* a device may search few blocks in another way than many */

enum law { NORMAL, WIDE, FAR, SPARSE, EDGE, FLAT, CALM, LAWS };

static struct esp_pool *pool;
static struct esp_dev *dev;
static struct esp_encoder *cpu, *other;
static float u[MANY * T], w[MANY * T], taps[T * (T + 3)];
static uint16_t want[MANY * T], got[MANY * T];

/* Blocks for what a device does with many; the stand-in has one way for all. */
static uint32_t many(void)
{
    if (TEST_SANITIZED)
        return MANY / 16;
    return strstr(dev->name, "stand-in") ? MANY / 6 : MANY;
}

static double uniform(uint64_t i, uint32_t what)
{
    return esp_rng_uniform(&(struct esp_rng_key){.seed = 11, .position = i, .draw = what}) + 0x1p-54;
}

static double normal(uint64_t i, uint32_t what)
{
    return sqrt(-2 * log(uniform(i, what))) * cos(6.283185307179586 * uniform(i, what + 1));
}

/* Targets inside the code, in every range of costs, far outside, and such as make costs saturate. */
static float target(uint64_t i, enum law law)
{
    switch (law) {
    case NORMAL:
        return (float)normal(i, 0);
    case WIDE:
        return (float)(4 * normal(i, 0));
    case FAR:
        return (float)(uniform(i, 0) < 0.5 ? -1e4 : 1e4);
    case SPARSE:
        return uniform(i, 0) < 0.97 ? 0 : (float)(20 * normal(i, 1));
    case EDGE:
        return (float)((uniform(i, 0) < 0.5 ? -1 : 1) * (3.4 + 0.1 * uniform(i, 1)));
    case FLAT:
        return (float)(i / T % 2 ? 13.8 : -13.8);
    default:
        return (float)(0.1 * normal(i, 0));
    }
}

static void compare(uint32_t n, const char *what, uint32_t k, unsigned a, unsigned b)
{
    for (uint32_t i = 0; i < n * T; i++)
        if (got[i] != want[i])
            fail_msg("%s, k %u, %u, %u: block %u, weight %u has state %u instead of %u", what, k, a, b, i / T,
                     i % T, got[i], want[i]);
}

static void encode(struct esp_encoder *e, uint32_t k, enum esp_search search, uint32_t n, uint16_t *states)
{
    esp_error err;
    const struct esp_encode_rows job = {
        .k = k, .search = search, .n_row = n, .n_col = T, .u = u, .ld = T, .states = states};

    memset(states, 0xee, sizeof got);
    test_ok(esp_encode_rows(e, &job, &err), &err);
}

static void test_paths(void **state)
{
    const uint32_t sizes[] = {TEST_SANITIZED ? 2 : FEW, many()};

    (void)state;
    for (uint32_t law = 0; law < LAWS; law++) {
        for (uint32_t i = 0; i < MANY * T; i++)
            u[i] = target(i, (enum law)law);
        for (uint32_t k = 1; k <= 8; k++)
            for (int search = 0; search < ESP_SEARCH_F32; search++)
                for (int size = 0; size < 2; size++) {
                    const uint32_t n = sizes[size];

                    if (search == ESP_SEARCH_TWO_PASS && (size || law == CALM))
                        continue; /* nothing new */
                    encode(cpu, k, (enum esp_search)search, n, want);
                    encode(other, k, (enum esp_search)search, n, got);
                    compare(n, "paths", k, law, (unsigned)search);
                }
    }
}

/* Rows apart, values, and a search that stays on the CPU. */
static void test_rows(void **state)
{
    enum { ROWS = 3, COLS = 512, LD = 530 };
    static float a[ROWS * COLS], b[ROWS * COLS];
    struct esp_encode_rows job = {
        .k = 3, .n_row = ROWS, .n_col = COLS, .u = u, .ld = LD, .states = want, .values = a};
    esp_error err;

    (void)state;
    for (uint32_t i = 0; i < ROWS * LD; i++)
        u[i] = target(i, NORMAL);
    test_ok(esp_encode_rows(cpu, &job, &err), &err);
    job.states = got;
    job.values = b;
    test_ok(esp_encode_rows(other, &job, &err), &err);
    compare(ROWS * COLS / T, "rows", 3, 0, 0);
    assert_memory_equal(a, b, sizeof a);
    encode(cpu, 4, ESP_SEARCH_F32, 1, want);
    encode(other, 4, ESP_SEARCH_F32, 1, got);
    compare(1, "f32", 4, 0, 0);
}

static void fed(uint32_t k, uint32_t group, uint32_t n)
{
    struct esp_viterbi_feed feed = {.w = w, .taps = taps, .ld = T + 3, .group = group};
    esp_error err;

    memset(got, 0xee, sizeof got);
    test_ok(esp_encoder_blocks(other, k, ESP_SEARCH_WINDOW, n, u, &feed, got, &err), &err);
    for (uint32_t i = 0; i < n; i++) {
        feed.u = u + i * T;
        feed.w = w + i * T;
        esp_encoder_block_fed(cpu, 0, k, ESP_SEARCH_WINDOW, &feed, want + i * T);
    }
    compare(n, "feedback", k, group, n);
}

static void test_feedback(void **state)
{
    static const double size[] = {0.03, 0.4};
    const uint32_t few = TEST_SANITIZED ? 2 : FEW;

    (void)state;
    for (int loud = 0; loud < 2; loud++) {
        for (uint32_t i = 0; i < T * (T + 3); i++)
            taps[i] = (float)(size[loud] * normal(i, 5));
        for (uint32_t i = 0; i < MANY * T; i++) {
            w[i] = target(i, loud ? SPARSE : NORMAL);
            u[i] = w[i] + (float)(0.05 * normal(i, 7));
        }
        for (uint32_t k = 1; k <= 8; k++)
            for (uint32_t group = 16; group < T; group *= 2)
                fed(k, group, few);
        fed(2, 32, many());
        fed(3, 32, many());
        fed(4, 16, many());
    }
}

/* ---- matrices ---- */

struct made {
    uint8_t codes[400 * 512];
    uint16_t scales[512];
    struct esp_trellis_report report;
};

static struct esp_ldlq *factor(uint32_t n, uint32_t group, esp_status *s)
{
    float *h = malloc((size_t)n * n * sizeof *h);
    struct esp_ldlq *f = NULL;

    assert_non_null(h);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++)
            h[(size_t)i * n + j] = (float)pow(0.9, fabs((double)i - (double)j));
    *s = esp_ldlq_create(&f, h, n, &(struct esp_ldlq_opts){.group = group, .damping = 0.01, .pool = pool},
                         NULL);
    free(h);
    return f;
}

static void quantize(struct esp_encoder *e, struct esp_trellis_job job, struct made *m)
{
    esp_error err;

    memset(m, 0, sizeof *m);
    job.codes = m->codes;
    job.scales = m->scales;
    test_ok(esp_trellis_quantize(e, &job, &m->report, &err), &err);
    m->report.seconds = 0;
}

static void matrix(uint32_t n_out, uint32_t n_in, uint32_t group, struct esp_trellis_opts o)
{
    static struct made a, b;
    struct esp_trellis_job job = {.w = w, .n_out = n_out, .n_in = n_in, .opts = o};
    struct esp_ldlq *f = NULL;
    esp_status s = ESP_OK;

    if (group)
        f = factor(n_in, group, &s);
    if (s == ESP_EUNSUPPORTED) { /* no OpenBLAS here */
        printf("skipped: matrices with feedback\n");
        return;
    }
    job.ldlq = f;
    quantize(cpu, job, &a);
    quantize(other, job, &b);
    esp_ldlq_destroy(f);
    assert_memory_equal(a.scales, b.scales, sizeof a.scales);
    assert_memory_equal(a.codes, b.codes, sizeof a.codes);
    assert_memory_equal(&a.report, &b.report, sizeof a.report);
    assert_true(a.report.mse > 0);
}

static void test_matrices(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < MANY * T; i++)
        w[i] = (float)(0.02 * normal(i, 9));
    memset(w + 512, 0, 512 * sizeof *w); /* a row of zeros, and one of scale 0 */
    for (uint32_t i = 0; i < 512; i++)
        w[3 * 512 + i] *= 1e-9F;
    matrix(70, 512, 32,
           (struct esp_trellis_opts){.k = 3, .axis = 1, .scale = ESP_TRELLIS_SCALE_ROW, .want_power = true});
    matrix(70, 512, 256, (struct esp_trellis_opts){.k = 2, .axis = 1, .scale = ESP_TRELLIS_SCALE_TENSOR});
    matrix(512, 300, 1,
           (struct esp_trellis_opts){.k = 4, .axis = 0, .scale = ESP_TRELLIS_SCALE_ROW, .want_power = true});
    matrix(256, 270, 16, (struct esp_trellis_opts){.k = 3, .axis = 0});
    matrix(64, 256, 64, (struct esp_trellis_opts){.k = 3, .axis = 1, .feedback = ESP_TRELLIS_FEEDBACK_OFF});
    matrix(256, 256, 0, (struct esp_trellis_opts){.k = 5, .axis = 0});
    matrix(8, 256, 0, (struct esp_trellis_opts){.k = 3, .axis = 1, .search = ESP_SEARCH_F32});
}

/* ---- failures ---- */

static struct esp_backend_ops broken;
static uint32_t calls_left;

static esp_status fail_late(struct esp_dev *d, const struct esp_paths *p, esp_error *err)
{
    (void)d;
    if (calls_left-- == 0)
        return esp_fail(err, ESP_EDEVICE, "the device is lost");
    memset(p->states, 0, (size_t)p->n * T * sizeof *p->states); /* all zeros are a path */
    return ESP_OK;
}

static esp_status garbage(struct esp_dev *d, const struct esp_paths *p, esp_error *err)
{
    (void)d;
    (void)err;
    for (size_t i = 0; i < (size_t)p->n * T; i++)
        p->states[i] = (uint16_t)(i * 1237 % 4096);
    return ESP_OK;
}

static esp_status try_matrix(struct esp_dev *d, esp_error *err)
{
    static struct made m;
    struct esp_encoder *e = NULL;
    const struct esp_trellis_job job = {.w = w,
                                        .n_out = 5,
                                        .n_in = 512,
                                        .codes = m.codes,
                                        .scales = m.scales,
                                        .opts = {.k = 3, .axis = 1, .scale = ESP_TRELLIS_SCALE_ROW}};
    esp_status s;

    test_ok(esp_encoder_create(&e, pool, esp_cpu_best(), err), err);
    test_ok(esp_encoder_on(e, d, err), err);
    s = esp_trellis_quantize(e, &job, &m.report, err);
    esp_encoder_destroy(e);
    return s;
}

static void test_failures(void **state)
{
    struct esp_dev lost = {.ops = &broken, .name = "cuda:9 (broken)"}, *plain;
    esp_error err;

    (void)state;
    for (uint32_t i = 0; i < 5 * 512; i++)
        w[i] = (float)(0.02 * normal(i, 9));
    broken.paths = fail_late;
    for (uint32_t n = 0; n < 3; n++) { /* row scales, and two blocks of inputs */
        calls_left = n;
        test_refused(try_matrix(&lost, &err), ESP_EDEVICE, &err, "lost");
    }
    calls_left = 3;
    test_ok(try_matrix(&lost, &err), &err);
    broken.paths = garbage;
    test_refused(try_matrix(&lost, &err), ESP_EDEVICE, &err, "cuda:9 (broken)");
    test_ok(esp_cpu_open(&plain, esp_cpu_best(), 1, &err), &err);
    test_refused(esp_encoder_on(cpu, plain, &err), ESP_EUNSUPPORTED, &err, "no search");
    plain->ops->close(plain);
}

static void test_refusals(void **state)
{
    static float x[T];
    struct esp_paths p = {
        .k = 3, .window = 64, .every = 16, .cost_high = 24000, .n_range = 1, .n = 1, .u = x, .states = got};
    esp_error err;

    (void)state;
    p.range[0] = (struct esp_paths_range){1, 1, 1, 0};
    test_ok(dev->ops->paths(dev, &p, &err), &err);
    p.k = 9;
    test_refused(dev->ops->paths(dev, &p, &err), ESP_EINVAL, &err, "9 bits");
    p.k = 3;
    p.window = 129;
    test_refused(dev->ops->paths(dev, &p, &err), ESP_EINVAL, &err, "window 129");
    p.window = 64;
    p.group = 48;
    test_refused(dev->ops->paths(dev, &p, &err), ESP_EINVAL, &err, "groups of 48");
    p.group = 0;
    p.n = 0;
    test_ok(dev->ops->paths(dev, &p, &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths),    cmocka_unit_test(test_rows),     cmocka_unit_test(test_feedback),
        cmocka_unit_test(test_matrices), cmocka_unit_test(test_failures), cmocka_unit_test(test_refusals),
    };
    esp_error err;
    int failed;

    if (esp_cuda_open(&dev, 0, &err) != ESP_OK) {
        fprintf(stderr, "skipped: %s\n", err.message);
        return 77;
    }
    if (esp_pool_create(&pool, 2, &err) != ESP_OK ||
        esp_encoder_create(&cpu, pool, esp_cpu_best(), &err) != ESP_OK ||
        esp_encoder_create(&other, pool, esp_cpu_best(), &err) != ESP_OK ||
        esp_encoder_on(other, dev, &err) != ESP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    esp_encoder_destroy(other);
    esp_encoder_destroy(cpu);
    esp_pool_destroy(pool);
    dev->ops->close(dev);
    return failed;
}
