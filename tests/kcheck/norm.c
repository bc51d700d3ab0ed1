/*
 * Norms. The sum of squares has no cancellation, so the result's relative error is half of the sum's, plus a
 * few roundings for division, root and products; the gated norm adds that of silu.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kcheck.h"

#include <math.h>
#include <stdio.h>

enum kind { RMS, L2, GATED };

struct norm_run {
    const struct esp_kernels *k;
    enum kind kind;
    const float *x, *z, *gamma;
    float *y;
    size_t n;
};

static const float EPS = 1e-6f;
static const float L2_SCALE = 0.08838835f; /* 128^-1/2 */

static void run_norm(void *ctx)
{
    const struct norm_run *c = ctx;

    if (c->kind == RMS)
        c->k->rmsnorm(c->x, c->gamma, EPS, c->y, c->n);
    else if (c->kind == L2)
        c->k->l2norm(c->x, EPS, L2_SCALE, c->y, c->n);
    else
        c->k->gated_norm(c->x, c->z, c->gamma, EPS, c->y, c->n);
}

static void check_result(struct kc *kc, const struct norm_run *c, const float *x)
{
    double sum = 0, inv;

    for (size_t i = 0; i < c->n; i++)
        sum += (double)x[i] * x[i];
    inv = 1 / sqrt((c->kind == L2 ? sum : sum / (double)c->n) + (double)EPS);
    for (size_t i = 0; i < c->n; i++) {
        const double factor = c->kind == L2 ? (double)L2_SCALE : (double)c->gamma[i];
        const double base = x[i] * inv * factor, z = c->kind == GATED ? (double)c->z[i] : 0;
        const double want = c->kind == GATED ? base * z / (1 + exp(-z)) : base;
        const double spare = c->kind == GATED ? fabs(base) * KC_SILU_FLOOR : 0;
        const double silu = c->kind == GATED ? KC_SIGMOID : 0;

        kc_near(kc, i, c->y[i], want,
                (KC_SUM(c->n) / 2 + 12 + silu) * KC_U * fabs(want) + spare + KC_TINY * (2 + fabs(factor)));
    }
}

static void check_one(struct kc *kc, enum kind kind, size_t n, enum kc_pattern p, bool in_place)
{
    struct norm_run c = {.k = kc->k, .kind = kind, .n = n};
    float *x = kc_floats(kc, n), *copy = kc_floats(kc, n), *gamma = kc_floats(kc, n), *z = kc_floats(kc, n);

    kc_fill(kc, x, n, p, 1e15f);
    kc_fill(kc, gamma, n, KC_RANDOM, 0);
    kc_fill(kc, z, n, p == KC_EXTREME ? KC_EXTREME : KC_RANDOM, 300);
    for (size_t i = 0; i < n; i++)
        copy[i] = x[i];
    c.x = x;
    c.gamma = gamma;
    c.z = z;
    c.y = in_place ? x : kc_floats(kc, n);
    kc_protect(kc, gamma);
    kc_protect(kc, z);
    if (!in_place)
        kc_protect(kc, x);
    run_norm(&c);
    check_result(kc, &c, copy);
}

static void check(struct kc *kc, enum kind kind)
{
    static const size_t real[] = {256, 1024, 2048, 2560, 4096, 5120};

    for (size_t n = 1; n <= 200; n += 1 + n / 16) {
        for (int p = 0; p < KC_PATTERN_COUNT; p++) {
            kc_begin(kc, "n%zu %s", n, kc_pattern_names[p]);
            check_one(kc, kind, n, (enum kc_pattern)p, (n + (size_t)p) % 2);
            kc_end(kc);
        }
    }
    for (size_t i = 0; i < sizeof real / sizeof real[0]; i++) {
        kc_begin(kc, "n%zu", real[i]);
        check_one(kc, kind, real[i], KC_RANDOM, i % 2);
        kc_end(kc);
    }
}

static void bench(struct kc *kc, enum kind kind)
{
    struct norm_run c = {.k = kc->k, .kind = kind, .n = kind == RMS ? 4096 : 128};
    float *x, *gamma;
    double seconds;
    char what[32];

    kc_begin(kc, "bench");
    x = kc_floats(kc, c.n);
    gamma = kc_floats(kc, c.n);
    kc_fill(kc, x, c.n, KC_RANDOM, 0);
    kc_fill(kc, gamma, c.n, KC_RANDOM, 0);
    c.x = c.z = x;
    c.gamma = gamma;
    c.y = kc_floats(kc, c.n);
    seconds = kc_time(run_norm, &c);
    c.k = kc->ref;
    snprintf(what, sizeof what, "n%zu", c.n);
    kc_report(kc, what, seconds, kc_time(run_norm, &c), (kind == GATED ? 16.0 : 12.0) * (double)c.n,
              5.0 * (double)c.n);
    kc_end(kc);
}

void kc_norm(struct kc *kc)
{
    if (KC_ENTRY(kc, rmsnorm))
        (kc->bench ? bench : check)(kc, RMS);
    if (KC_ENTRY(kc, l2norm))
        (kc->bench ? bench : check)(kc, L2);
    if (KC_ENTRY(kc, gated_norm))
        (kc->bench ? bench : check)(kc, GATED);
}
