/*
 * tiny-text against its reference values: logits, hidden states at every tap, cached logits, greedy ids; at
 * every CPU level of this machine, 1 and 2 threads, and every cut. The goldens were computed in f32 by the
 * reference implementation; the tolerance is 1e-4 of the logits' standard deviation.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/safetensors.h"
#include "support/net.h"

enum { N = 150, V = 512, H = 256, N_HIDDEN = 5, GREEDY_FROM = 40, N_GREEDY = 40, N_CACHED = 130 };

static struct esp_st_file *golden;
static float *logits; /* [N][V] */

static const void *tensor(const char *name, size_t bytes)
{
    const struct esp_st_tensor *t = esp_st_find(golden, name);

    assert_non_null(t);
    assert_int_equal(t->bytes, bytes);
    return t->data;
}

static double deviation(const float *x, size_t n)
{
    double sum = 0, sq = 0;

    for (size_t i = 0; i < n; i++) {
        sum += x[i];
        sq += (double)x[i] * x[i];
    }
    return sqrt(sq / (double)n - sum / (double)n * sum / (double)n);
}

/* Fail when got and want differ by more than 1e-4 of want's standard deviation anywhere. */
static void close_to(const char *what, const float *got, const float *want, size_t n)
{
    double tol = 1e-4 * deviation(want, n);

    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tol))
            fail_msg("%s[%zu]: %g instead of %g (tolerance %g)", what, i, got[i], want[i], tol);
}

struct hidden {
    float rows[N_HIDDEN][N][H];
    uint32_t n[N_HIDDEN];
};

static void keep(void *user, const char *name, const float *rows, uint32_t n_row, uint32_t width)
{
    struct hidden *h = user;
    uint32_t i;

    if (strncmp(name, "hidden.", 7) == 0 && name[7] < '4')
        i = (uint32_t)(name[7] - '0');
    else if (strcmp(name, "final.4") == 0)
        i = 4; /* the reference's last hidden state is after the final norm */
    else
        return;
    assert_int_equal(width, H);
    memcpy(h->rows[i][h->n[i]], rows, sizeof(float) * H * n_row);
    h->n[i] += n_row;
}

static int32_t argmax(const float *x)
{
    int32_t best = 0;

    for (int32_t i = 1; i < V; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static void check_greedy(struct test_net *t, const int32_t *ids)
{
    const int32_t *want = tensor("greedy_from_40", N_GREEDY * sizeof *want);
    struct esp_state *s;
    esp_error err;
    int32_t next;

    test_ok(esp_state_open(&s, t->pools, 2048, 0, &err), &err);
    test_net_run(t, s, ids, GREEDY_FROM, 0, logits, NULL, NULL);
    next = argmax(logits + (size_t)(GREEDY_FROM - 1) * V);
    for (int i = 0; i < N_GREEDY; i++) {
        assert_int_equal(next, want[i]);
        test_net_run(t, s, &next, 1, 0, logits, NULL, NULL);
        next = argmax(logits);
    }
    esp_state_close(s);
}

static void check_level(enum esp_cpu_level level, uint32_t threads)
{
    static const uint32_t cuts[] = {0, 1, 7, 64, 100};
    const int32_t *ids = tensor("input_ids", N * sizeof *ids);
    struct test_net t;
    esp_error err;

    test_net_open(&t,
                  (struct test_net_opts){.folder = "models/tiny-text", .level = level, .threads = threads});
    for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
        struct hidden *h = calloc(1, sizeof *h);
        struct esp_state *s;

        test_ok(esp_state_open(&s, t.pools, 2048, 0, &err), &err);
        test_net_run(&t, s, ids, N, cuts[c], logits, keep, h);
        close_to("logits", logits, tensor("logits", sizeof(float) * N * V), (size_t)N * V);
        close_to("cached", logits, tensor("logits_cached", sizeof(float) * N_CACHED * V),
                 (size_t)N_CACHED * V);
        for (int i = 0; i < N_HIDDEN; i++) {
            char name[16] = "hidden.?";

            name[7] = (char)('0' + i);
            assert_int_equal(h->n[i], N);
            close_to(name, h->rows[i][0], tensor(name, sizeof h->rows[i]), (size_t)N * H);
        }
        esp_state_close(s);
        free(h);
    }
    check_greedy(&t, ids);
    test_net_close(&t);
}

static void test_levels(void **state)
{
    (void)state;
    for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++) {
        enum esp_cpu_level l;

        if (esp_cpu_level_parse(&l, esp_cpu_level_name((enum esp_cpu_level)level), NULL) != ESP_OK)
            continue;
        for (uint32_t threads = 1; threads <= 2; threads++)
            check_level(l, threads);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_levels)};
    int failed;

    if (esp_st_open(&golden, test_path("models/tiny-text/golden.safetensors"), NULL) != ESP_OK)
        return 1;
    logits = malloc(sizeof(float) * N * V);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(logits);
    esp_st_close(golden);
    return failed;
}
