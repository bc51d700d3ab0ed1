/*
 * The feedback factor: it reproduces H, does not depend on threads, and refuses what is not a matrix of
 * second moments.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "quantize/ldlq.h"

/* AR(1) correlations times uneven scales. */
static float *make_h(uint32_t n, double rho)
{
    float *h = malloc((size_t)n * n * sizeof *h);

    assert_non_null(h);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++)
            h[(size_t)i * n + j] = (float)(pow(rho, fabs((double)i - j)) * (1 + i % 3) * (1 + j % 3));
    return h;
}

static struct esp_ldlq *make(const float *h, uint32_t n, uint32_t group, uint32_t n_thread)
{
    struct esp_pool *pool;
    struct esp_ldlq *f = NULL;
    esp_error err;
    struct esp_ldlq_opts o = {.group = group};

    test_ok(esp_pool_create(&pool, n_thread, &err), &err);
    o.pool = pool;
    test_ok(esp_ldlq_create(&f, h, n, &o, &err), &err);
    esp_pool_destroy(pool);
    return f;
}

/* C = (feed + 1) * diag, group by group; C C^T = H + damping. */
static void check_product(const struct esp_ldlq *f, const float *h)
{
    const size_t n = f->n, g = f->group;
    double *c = calloc(n * n, sizeof *c), worst = 0;

    assert_non_null(c);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            const size_t first = j / g * g;

            if (i / g == j / g)
                c[i * n + j] = f->diag[i * g + (j - first)];
            else if (i < first)
                for (size_t q = first; q <= j; q++)
                    c[i * n + j] += (double)f->feed[i * n + q] * f->diag[q * g + (j - first)];
            else
                assert_true(f->feed[i * n + j] == 0);
            if (j < i)
                assert_true(c[i * n + j] == 0);
        }
    for (size_t i = 0; i < n; i++)
        for (size_t j = i; j < n; j++) {
            double sum = 0;

            for (size_t q = j; q < n; q++)
                sum += c[i * n + q] * c[j * n + q];
            worst = fmax(worst, fabs(sum - h[i * n + j] - (i == j ? f->damping : 0)));
        }
    free(c);
    assert_true(worst < 2e-5);
}

static void test_product(void **state)
{
    static const uint32_t sizes[] = {1, 5, 255, 256, 300, 600}, groups[] = {1, 16, 256};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t j = 0; j < sizeof groups / sizeof *groups; j++) {
            float *h = make_h(sizes[i], 0.9);
            struct esp_ldlq *f = make(h, sizes[i], groups[j], 1);

            assert_int_equal(f->n_try, 1);
            check_product(f, h);
            esp_ldlq_destroy(f);
            free(h);
        }
}

static void test_threads(void **state)
{
    const uint32_t n = 700;
    float *h = make_h(n, 0.7);
    struct esp_ldlq *one = make(h, n, 16, 1), *three = make(h, n, 16, 3);

    (void)state;
    assert_memory_equal(one->feed, three->feed, (size_t)n * n * sizeof *one->feed);
    assert_memory_equal(one->diag, three->diag, (size_t)n * 16 * sizeof *one->diag);
    esp_ldlq_destroy(one);
    esp_ldlq_destroy(three);
    free(h);
}

/* Dead inputs, a singular matrix, and one that only more damping saves. */
static void test_damping(void **state)
{
    const uint32_t n = 64;
    float *h = calloc((size_t)n * n, sizeof *h);
    struct esp_ldlq *f;

    (void)state;
    h[5 * n + 5] = 64;
    f = make(h, n, 1, 1);
    assert_int_equal(f->n_try, 1);
    assert_true(fabs(f->damping - 0.01) < 1e-9);
    check_product(f, h);
    esp_ldlq_destroy(f);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++)
            h[i * n + j] = 1;
    f = make(h, n, 1, 1);
    check_product(f, h);
    esp_ldlq_destroy(f);
    memset(h, 0, (size_t)n * n * sizeof *h);
    for (uint32_t i = 0; i < n; i++)
        h[i * n + i] = 1;
    h[0 * n + 1] = h[1 * n + 0] = 1.05f; /* an eigenvalue of -0.05: 0.01 is too little, 0.1 is enough */
    f = make(h, n, 1, 1);
    assert_int_equal(f->n_try, 2);
    assert_true(fabs(f->damping - 0.1) < 1e-9);
    esp_ldlq_destroy(f);
    free(h);
}

static void refuse(const float *h, uint32_t n, struct esp_ldlq_opts o, esp_status s, const char *part)
{
    struct esp_ldlq *f = NULL;
    esp_error err;

    test_refused(esp_ldlq_create(&f, h, n, &o, &err), s, &err, part);
    assert_null(f);
}

static void test_refusals(void **state)
{
    const uint32_t n = 8;
    float *h = make_h(n, 0.5);
    const struct esp_ldlq_opts o = {.group = 1};

    (void)state;
    refuse(h, 0, o, ESP_EINVAL, "0 inputs");
    refuse(h, n, (struct esp_ldlq_opts){.group = 3}, ESP_EINVAL, "groups of 3");
    refuse(h, n, (struct esp_ldlq_opts){.group = 512}, ESP_EINVAL, "groups of 512");
    refuse(h, n, (struct esp_ldlq_opts){.damping = -1}, ESP_EINVAL, "damping -1");
    refuse(h, n, (struct esp_ldlq_opts){.damping = (double)NAN}, ESP_EINVAL, "damping");
    h[2 * n + 5] = NAN;
    refuse(h, n, o, ESP_ENUMERIC, "entry 2, 5");
    h[2 * n + 5] = 0;
    h[3 * n + 3] = -1;
    refuse(h, n, o, ESP_ENUMERIC, "entry 3, 3 is -1");
    h[3 * n + 3] = 1;
    h[0 * n + 1] = 1e6f;
    refuse(h, n, o, ESP_ENUMERIC, "not positive definite");
    memset(h, 0, (size_t)n * n * sizeof *h);
    refuse(h, n, o, ESP_ENUMERIC, "all zero");
    free(h);
}

static void test_no_memory(void **state)
{
    const uint32_t n = 40;
    float *h = make_h(n, 0.5);
    const struct esp_ldlq_opts o = {.group = 16};
    esp_status s = ESP_ENOMEM;
    int64_t fail_at;

    (void)state;
    for (fail_at = 0; s == ESP_ENOMEM; fail_at++) {
        struct esp_ldlq *f = NULL;
        esp_error err;

        esp_mem_fail_at(fail_at);
        s = esp_ldlq_create(&f, h, n, &o, &err);
        esp_mem_fail_at(-1);
        assert_true(s == ESP_OK ? f != NULL : f == NULL);
        esp_ldlq_destroy(f);
    }
    assert_int_equal(s, ESP_OK);
    assert_true(fail_at > 3);
    free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_product),  cmocka_unit_test(test_threads),   cmocka_unit_test(test_damping),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
