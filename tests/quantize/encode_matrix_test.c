/*
 * Quantized matrices: what is reported against what the format decodes, gains of scale search and of
 * feedback, equal bytes for any number of threads, and every refusal.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "formats/trellis.h"
#include "quantize/encode_matrix.h"

enum law { NORMAL, STUDENT8, LAPLACE };
enum moments { AR5, AR9, DENSE7, DENSE12 };

struct fixture {
    struct esp_pool *pool;
    struct esp_encoder *e;
    uint32_t n_out, n_in;
    float *w;
    uint8_t *codes;
    uint16_t *scales;
};

static double uniform(uint64_t i, uint32_t what)
{
    return esp_rng_uniform(&(struct esp_rng_key){.seed = 7, .position = i, .draw = what}) + 0x1p-54;
}

static double normal(uint64_t i, uint32_t what)
{
    return sqrt(-2 * log(uniform(i, what))) * cos(6.283185307179586 * uniform(i, what + 1));
}

static double draw(uint64_t i, enum law law)
{
    double chi = 0;

    if (law == NORMAL)
        return normal(i, 0);
    if (law == LAPLACE)
        return (uniform(i, 0) < 0.5 ? -1 : 1) * -log(uniform(i, 1)) / sqrt(2);
    for (uint32_t j = 0; j < 8; j++)
        chi += normal(i, 2 + 2 * j) * normal(i, 2 + 2 * j);
    return normal(i, 0) / sqrt(chi / 8) * sqrt(6.0 / 8);
}

static struct fixture make(uint32_t n_out, uint32_t n_in, enum law law, uint32_t n_thread)
{
    struct fixture x = {.n_out = n_out, .n_in = n_in};
    const size_t n = (size_t)n_out * n_in;
    esp_error err;

    test_ok(esp_pool_create(&x.pool, n_thread, &err), &err);
    test_ok(esp_encoder_create(&x.e, x.pool, esp_cpu_best(), &err), &err);
    x.w = malloc(n * sizeof *x.w);
    x.codes = calloc(n, 1);
    x.scales = calloc((size_t)n_out + n_in, sizeof *x.scales);
    assert_true(x.w && x.codes && x.scales);
    for (size_t i = 0; i < n; i++)
        x.w[i] = (float)(0.02 * draw(i, law));
    return x;
}

static void drop(struct fixture *x)
{
    esp_encoder_destroy(x->e);
    esp_pool_destroy(x->pool);
    free(x->w);
    free(x->codes);
    free(x->scales);
}

static struct esp_trellis_job job_of(const struct fixture *x, uint32_t k, uint32_t axis)
{
    return (struct esp_trellis_job){.w = x->w,
                                    .n_out = x->n_out,
                                    .n_in = x->n_in,
                                    .codes = x->codes,
                                    .scales = x->scales,
                                    .opts = {.k = k, .axis = axis}};
}

static struct esp_trellis_report quantize(const struct fixture *x, const struct esp_trellis_job *job)
{
    struct esp_trellis_report r;
    esp_error err;

    test_ok(esp_trellis_quantize(x->e, job, &r, &err), &err);
    return r;
}

/* Second moments as in the experiments of doc/quality.md. */
static float *make_moments(uint32_t n, enum moments kind)
{
    float *h = malloc((size_t)n * n * sizeof *h);
    double *q, *a;

    assert_non_null(h);
    if (kind == AR5 || kind == AR9) {
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++)
                h[i * n + j] = (float)pow(kind == AR5 ? 0.5 : 0.9, fabs((double)i - (double)j));
        return h;
    }
    q = malloc((size_t)n * n * sizeof *q);
    a = calloc((size_t)n * n, sizeof *a);
    assert_true(q && a);
    for (size_t i = 0; i < n; i++) { /* a random orthogonal basis, row by row */
        double length = 0;

        for (size_t c = 0; c < n; c++)
            q[i * n + c] = normal(i * n + c, 40);
        for (size_t j = 0; j < i; j++) {
            double dot = 0;

            for (size_t c = 0; c < n; c++)
                dot += q[i * n + c] * q[j * n + c];
            for (size_t c = 0; c < n; c++)
                q[i * n + c] -= dot * q[j * n + c];
        }
        for (size_t c = 0; c < n; c++)
            length += q[i * n + c] * q[i * n + c];
        for (size_t c = 0; c < n; c++)
            q[i * n + c] /= sqrt(length);
        for (size_t r = 0; r < n; r++)
            for (size_t c = 0; c < n; c++)
                a[r * n + c] +=
                    pow((double)i + 1, kind == DENSE7 ? -0.7 : -1.2) * q[i * n + r] * q[i * n + c];
    }
    for (size_t i = 0; i < (size_t)n * n; i++)
        h[i] = (float)a[i];
    free(a);
    free(q);
    return h;
}

static struct esp_ldlq *factor(const struct fixture *x, const float *h, uint32_t group, double damping)
{
    struct esp_ldlq *f = NULL;
    esp_error err;

    test_ok(esp_ldlq_create(&f, h, x->n_in, &(struct esp_ldlq_opts){group, damping, x->pool}, &err), &err);
    return f;
}

/* w^ of the whole matrix by the format's own decoder: [n_out][n_in]. */
static float *decode(const struct fixture *x, uint32_t k, uint32_t axis)
{
    float *out = malloc((size_t)x->n_out * x->n_in * sizeof *out);
    struct esp_weight w = {.format = esp_trellis_format(k),
                           .n_out = x->n_out,
                           .n_in = x->n_in,
                           .axis = (uint8_t)axis,
                           .scale_type = ESP_SCALE_F16,
                           .codes = x->codes,
                           .scales = (const uint8_t *)x->scales};
    esp_error err;

    assert_non_null(out);
    test_ok(esp_weight_layout(&w, "test", &err), &err);
    for (size_t o = 0; o < x->n_out; o++)
        esp_trellis_decode(&w, o, 0, x->n_in, out + o * x->n_in);
    return out;
}

/* tr(M H M^T) */
static double proxy(const float *m, const float *h, uint32_t n_out, uint32_t n_in)
{
    double sum = 0;

    for (size_t o = 0; o < n_out; o++)
        for (size_t i = 0; i < n_in; i++) {
            double dot = 0;

            for (size_t j = 0; j < n_in; j++)
                dot += (double)h[i * n_in + j] * m[o * n_in + j];
            sum += dot * m[o * n_in + i];
        }
    return sum;
}

static void near(double got, double want, double relative, const char *what)
{
    if (!(fabs(got - want) <= relative * fabs(want)))
        fail_msg("%s: %.9g, wanted %.9g within %g", what, got, want, relative);
}

/* mse, loss and power are those of the decoded matrix, for both axes, all ways of feedback, odd numbers of
 * inputs. */
static void test_report(void **state)
{
    static const struct {
        uint32_t axis, n_out, n_in, group;
        enum esp_trellis_feedback feedback;
    } cases[] = {{0, 512, 300, 1, ESP_TRELLIS_FEEDBACK_ON},   {0, 256, 300, 16, ESP_TRELLIS_FEEDBACK_ON},
                 {0, 256, 520, 256, ESP_TRELLIS_FEEDBACK_ON}, {1, 70, 512, 256, ESP_TRELLIS_FEEDBACK_ON},
                 {1, 65, 768, 32, ESP_TRELLIS_FEEDBACK_ON},   {1, 30, 512, 64, ESP_TRELLIS_FEEDBACK_OFF},
                 {0, 256, 100, 1, ESP_TRELLIS_FEEDBACK_OFF}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture x = make(cases[i].n_out, cases[i].n_in, NORMAL, 2);
        float *h = make_moments(x.n_in, AR9), *back;
        struct esp_ldlq *f = factor(&x, h, cases[i].group, 0);
        struct esp_trellis_job job = job_of(&x, 3, cases[i].axis);
        struct esp_trellis_report r;
        double error = 0, power = 0;

        job.ldlq = f;
        job.opts.feedback = cases[i].feedback;
        job.opts.want_power = true;
        r = quantize(&x, &job);
        back = decode(&x, 3, cases[i].axis);
        for (size_t n = 0; n < (size_t)x.n_out * x.n_in; n++) {
            back[n] = x.w[n] - back[n];
            error += (double)back[n] * back[n];
            power += (double)x.w[n] * x.w[n];
        }
        near(r.mse, error / ((double)x.n_out * x.n_in), 1e-6, "mse");
        near(r.rel_mse, error / power, 1e-6, "relative mse");
        near(r.loss, proxy(back, h, x.n_out, x.n_in), 2e-4, "loss");
        near(r.power, proxy(x.w, h, x.n_out, x.n_in), 2e-4, "power");
        near(r.alpha, 0.92, 1e-9, "alpha");
        assert_false(r.unweighted);
        assert_true(r.seconds > 0);
        free(back);
        free(h);
        esp_ldlq_destroy(f);
        drop(&x);
    }
}

static void test_rms_rule(void **state)
{
    enum { COLS = 2560 };
    static const uint16_t bits[2] = {0x2514, 0x250f}; /* of enc_rows.json */
    static float input[64 * 256];
    struct fixture x = make(2, COLS, NORMAL, 1);
    FILE *file = fopen(test_path("tests/data/vectors/trellis/enc_input_64x256.f32le"), "rb");

    (void)state;
    assert_non_null(file);
    assert_int_equal(fread(input, sizeof *input, 64 * 256, file), 64 * 256);
    fclose(file);
    for (size_t i = 0; i < 2 * COLS; i++)
        x.w[i] = 0.02f * input[i];
    for (uint32_t k = 2; k <= 4; k++) {
        struct esp_trellis_job job = job_of(&x, k, 1);

        job.opts.scale = ESP_TRELLIS_SCALE_RMS;
        quantize(&x, &job);
        assert_memory_equal(x.scales, bits, sizeof bits);
    }
    drop(&x);
}

static double rel_mse(enum law law, uint32_t k, enum esp_trellis_scale scale)
{
    struct fixture x = make(64, 1024, law, 2);
    struct esp_trellis_job job = job_of(&x, k, 1);
    double v;

    job.opts.scale = scale;
    v = quantize(&x, &job).rel_mse;
    drop(&x);
    return v;
}

/* Fixed alphas win on normal weights what they should; a search wins on heavier tails, and never loses much.
 */
static void test_scales(void **state)
{
    static const double rms[] = {0, 0, 0.07478, 0.01984, 0.005519},
                        fixed[] = {0, 0, 0.07448, 0.01927, 0.005015};

    (void)state;
    for (uint32_t k = 2; k <= 4; k++) {
        const double got = rel_mse(NORMAL, k, ESP_TRELLIS_SCALE_FIXED);

        near(rel_mse(NORMAL, k, ESP_TRELLIS_SCALE_RMS), rms[k], 0.02, "rms rule");
        near(got, fixed[k], 0.02, "fixed alpha");
        assert_true(rel_mse(NORMAL, k, ESP_TRELLIS_SCALE_TENSOR) <= got * 1.005);
        assert_true(rel_mse(NORMAL, k, ESP_TRELLIS_SCALE_ROW) <= got * 1.01);
    }
    near(rel_mse(STUDENT8, 3, ESP_TRELLIS_SCALE_RMS), 0.0283, 0.15, "student, k 3, rms rule");
    near(rel_mse(STUDENT8, 3, ESP_TRELLIS_SCALE_TENSOR), 0.0239, 0.12, "student, k 3, search");
    assert_true(rel_mse(STUDENT8, 4, ESP_TRELLIS_SCALE_TENSOR) <
                0.65 * rel_mse(STUDENT8, 4, ESP_TRELLIS_SCALE_RMS));
    assert_true(rel_mse(LAPLACE, 4, ESP_TRELLIS_SCALE_TENSOR) <
                0.55 * rel_mse(LAPLACE, 4, ESP_TRELLIS_SCALE_RMS));
    assert_true(rel_mse(LAPLACE, 4, ESP_TRELLIS_SCALE_ROW) <
                0.55 * rel_mse(LAPLACE, 4, ESP_TRELLIS_SCALE_RMS));
}

static double proxy_of(const struct fixture *x, const float *h, uint32_t axis, uint32_t group)
{
    struct esp_ldlq *f = factor(x, h, group ? group : 256, 1e-9);
    struct esp_trellis_job job = job_of(x, 3, axis);
    struct esp_trellis_report r;

    job.ldlq = f;
    job.opts.feedback = group ? ESP_TRELLIS_FEEDBACK_ON : ESP_TRELLIS_FEEDBACK_OFF;
    job.opts.want_power = true;
    r = quantize(x, &job);
    esp_ldlq_destroy(f);
    return r.loss / r.power;
}

/* Proxy losses by group of inputs, 512 inputs, 256 outputs, k = 3, against an independent experiment. */
static void test_feedback(void **state)
{
    static const uint32_t groups[] = {0, 256, 64, 16, 4, 1};
    static const double want[4][6] = {{.01930, .01928, .01923, .01893, .01776, .01464},
                                      {.01903, .01888, .01806, .01473, .00794, .00406},
                                      {.01907, .01597, .01402, .01358, .01349, .01347},
                                      {.01843, .01148, .00611, .00512, .00490, .00486}};
    struct fixture x = make(256, 512, NORMAL, 2);

    (void)state;
    for (int kind = AR5; kind <= DENSE12; kind++) {
        float *h = make_moments(x.n_in, (enum moments)kind);

        for (size_t g = 0; g < 6; g++) {
            char name[64];

            snprintf(name, sizeof name, "moments %d, group %u", kind, groups[g]);
            near(proxy_of(&x, h, 0, groups[g]), want[kind][g], 0.08, name);
        }
        if (kind >= DENSE7) { /* codes along the inputs: errors of the block itself count too */
            const double block = proxy_of(&x, h, 1, 256),
                         inside = proxy_of(&x, h, 1, ESP_TRELLIS_GROUP_AXIS1);

            near(block, want[kind][1], 0.08, "block feedback, axis 1");
            assert_true(inside < block * (kind == DENSE7 ? 0.94 : 0.7));
        }
        free(h);
    }
    drop(&x);
}

/* One thread, three, and the scalar search: the same bytes. */
static void test_threads(void **state)
{
    (void)state;
    for (uint32_t axis = 0; axis < 2; axis++) {
        struct fixture one = make(512, 512, STUDENT8, 1), three = make(512, 512, STUDENT8, 3);
        float *h = make_moments(512, AR9);
        struct esp_ldlq *f = factor(&one, h, axis ? 32 : 1, 0);
        struct esp_trellis_job a = job_of(&one, 2, axis), b = job_of(&three, 2, axis);
        struct esp_trellis_report ra, rb;

        a.ldlq = b.ldlq = f;
        a.opts.scale = b.opts.scale = axis ? ESP_TRELLIS_SCALE_ROW : ESP_TRELLIS_SCALE_TENSOR;
        ra = quantize(&one, &a);
        rb = quantize(&three, &b);
        assert_memory_equal(one.codes, three.codes, 512 * 512 / 4);
        assert_memory_equal(one.scales, three.scales, 512 * sizeof *one.scales);
        assert_true(ra.loss == rb.loss && ra.mse == rb.mse);
        free(h);
        esp_ldlq_destroy(f);
        drop(&one);
        drop(&three);
    }
}

/* Feedback that grows beyond reason is dropped as a whole: the codes are those without it. */
static void test_guard(void **state)
{
    (void)state;
    for (uint32_t axis = 0; axis < 2; axis++) {
        struct fixture x = make(256, 512, NORMAL, 2), plain = make(256, 512, NORMAL, 1);
        float *h = make_moments(512, AR5);
        struct esp_ldlq *f = factor(&x, h, axis ? 256 : 1, 0);
        struct esp_trellis_job job = job_of(&x, 3, axis), without = job_of(&plain, 3, axis);

        f->feed[3 * 512 + 400] = axis ? 1e6f : NAN;
        job.ldlq = f;
        assert_true(quantize(&x, &job).unweighted);
        assert_false(quantize(&plain, &without).unweighted);
        assert_memory_equal(x.codes, plain.codes, (size_t)256 * 512 * 3 / 8);
        free(h);
        esp_ldlq_destroy(f);
        drop(&x);
        drop(&plain);
    }
}

/* Zero, tiny, constant and lopsided rows decode to what they can; too large ones are refused. */
static void test_extremes(void **state)
{
    struct fixture x = make(8, 512, NORMAL, 1);
    struct esp_trellis_job job = job_of(&x, 3, 1);
    struct esp_trellis_report r;
    esp_error err;
    float *back;

    (void)state;
    for (size_t i = 0; i < 512; i++) {
        x.w[0 * 512 + i] = 0;
        x.w[1 * 512 + i] = 1e-42f;
        x.w[2 * 512 + i] = 0.5f;
        x.w[3 * 512 + i] *= 1e6f;
        x.w[4 * 512 + i] *= 1e-5f; /* a subnormal scale */
    }
    x.w[5 * 512 + 100] = 4; /* 200 deviations */
    quantize(&x, &job);
    back = decode(&x, 3, 1);
    assert_int_equal(x.scales[0], 0);
    assert_int_equal(x.scales[1], 0);
    for (size_t i = 0; i < 2 * 512; i++)
        assert_true(back[i] == 0);
    for (size_t row = 2; row < 8; row++) {
        double error = 0, power = 0;

        for (size_t i = 0; i < 512; i++) {
            const double d = (double)x.w[row * 512 + i] - back[row * 512 + i];

            error += d * d;
            power += (double)x.w[row * 512 + i] * x.w[row * 512 + i];
        }
        if (!(error < (row == 5 ? 0.75 : row == 4 ? 0.08 : 0.04) * power))
            fail_msg("row %zu: error %g of %g", row, error, power);
    }
    free(back);
    memset(x.w, 0, 8 * 512 * sizeof *x.w);
    r = quantize(&x, &job);
    assert_true(r.mse == 0 && r.rel_mse == 0 && r.alpha == 0);
    x.w[6 * 512 + 3] = 1e30f;
    test_refused(esp_trellis_quantize(x.e, &job, &r, &err), ESP_ENUMERIC, &err, "output 6");
    x.w[6 * 512 + 3] = NAN;
    test_refused(esp_trellis_quantize(x.e, &job, &r, &err), ESP_ENUMERIC, &err, "row 6, column 3");
    drop(&x);
}

static void refuse(const struct fixture *x, const struct esp_trellis_job *job, esp_status s, const char *part)
{
    struct esp_trellis_report r;
    esp_error err;

    test_refused(esp_trellis_quantize(x->e, job, &r, &err), s, &err, part);
}

static bool stop_late(void *user, uint64_t done, uint64_t total)
{
    uint64_t *calls = user;

    assert_true(done > 0 && done <= total && total == 256 * 512);
    return ++*calls < 2;
}

static void test_refusals(void **state)
{
    struct fixture x = make(256, 512, NORMAL, 1);
    float *h = make_moments(512, AR5);
    struct esp_ldlq *f = factor(&x, h, 8, 0);
    const struct esp_trellis_job good = job_of(&x, 3, 1);
    struct esp_trellis_job job = good;
    uint64_t calls = 0;

    (void)state;
    job.opts.k = 0;
    refuse(&x, &job, ESP_EINVAL, "0 bits");
    job = good;
    job.opts.axis = 2;
    refuse(&x, &job, ESP_EINVAL, "axis 2");
    job = good;
    job.opts.scale = ESP_TRELLIS_SCALE_COUNT;
    refuse(&x, &job, ESP_EINVAL, "scale 4");
    job = good;
    job.n_in = 300;
    refuse(&x, &job, ESP_EINVAL, "inputs must be a multiple of 256");
    job.opts.axis = 0;
    job.n_out = 255;
    refuse(&x, &job, ESP_EINVAL, "outputs must be a multiple of 256");
    job = good;
    job.n_out = 0;
    refuse(&x, &job, ESP_EINVAL, "0 x 512");
    job = good;
    job.ldlq = f;
    refuse(&x, &job, ESP_EINVAL, "groups of 8");
    job.n_in = 256;
    refuse(&x, &job, ESP_EINVAL, "factor of 512 inputs for weights with 256");
    job = good;
    job.opts.progress = stop_late;
    job.opts.user = &calls;
    refuse(&x, &job, ESP_ECANCELLED, "stopped after");
    assert_int_equal(calls, 2);
    free(h);
    esp_ldlq_destroy(f);
    drop(&x);
}

static void test_no_memory(void **state)
{
    struct fixture x = make(256, 256, NORMAL, 1);
    struct esp_trellis_job job = job_of(&x, 2, 0);
    esp_status s = ESP_ENOMEM;
    int64_t fail_at;

    (void)state;
    for (fail_at = 0; s == ESP_ENOMEM; fail_at++) {
        struct esp_trellis_report r;
        esp_error err;

        esp_mem_fail_at(fail_at);
        s = esp_trellis_quantize(x.e, &job, &r, &err);
        esp_mem_fail_at(-1);
    }
    assert_int_equal(s, ESP_OK);
    assert_int_equal(fail_at, 6);
    drop(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_report),   cmocka_unit_test(test_rms_rule), cmocka_unit_test(test_scales),
        cmocka_unit_test(test_feedback), cmocka_unit_test(test_threads),  cmocka_unit_test(test_guard),
        cmocka_unit_test(test_extremes), cmocka_unit_test(test_refusals), cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
