/*
 * Elementwise kernels: sums, gates, rotary embedding. Each output has its own bound from its own terms.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kcheck.h"

#include <math.h>
#include <stdio.h>

enum kind { ADD, SWIGLU, SIGMOID, ROPE, GATES };

/* Up to four inputs of n and two outputs of n; an entry uses what it needs. */
struct vec_run {
    const struct esp_kernels *k;
    enum kind kind;
    float *a, *b, *c, *d, *y, *y2;
    size_t n;
};

static void run_vec(void *ctx)
{
    const struct vec_run *v = ctx;

    switch (v->kind) {
    case ADD:
        v->k->add(v->y, v->a, v->n);
        break;
    case SWIGLU:
        v->k->swiglu(v->a, v->b, v->y, v->n);
        break;
    case SIGMOID:
        v->k->sigmoid_mul(v->y, v->a, v->n);
        break;
    case ROPE:
        v->k->rope(v->y, v->a, v->b, v->n); /* y holds 2 n */
        break;
    case GATES:
        v->k->delta_gates(v->a, v->b, v->c, v->d, v->y, v->y2, v->n);
        break;
    }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void check_gates(struct kc *kc, const struct vec_run *v)
{
    for (size_t i = 0; i < v->n; i++) {
        const float s = v->b[i] + v->d[i]; /* the sum is rounded before softplus: that is the contract */
        const double soft = s > 20 ? (double)s : log1p(exp(s));
        const double beta = sigmoid(v->a[i]), g = v->c[i] * soft;

        kc_near(kc, i, v->y[i], beta, KC_SIGMOID * KC_U * beta + KC_SILU_FLOOR);
        /* exp, then log1p with a condition of at most 1.45, each 4 ulp; exp may flush where it is subnormal
         */
        kc_near(kc, i, v->y2[i], g, 24 * KC_U * fabs(g) + 0x1p-125 * fabs(v->c[i]));
        kc_equal(kc, i, v->y2[i] <= 0 && v->y[i] >= 0 && v->y[i] <= 1, 1);
    }
}

/* before: what y held; first copy of n, for rope of 2 n. */
static void check_result(struct kc *kc, const struct vec_run *v, const float *before, const float *gate,
                         const float *up)
{
    if (v->kind == GATES) {
        check_gates(kc, v);
        return;
    }
    for (size_t i = 0; i < v->n; i++) {
        double x = before[i], want, bound;

        if (v->kind == ADD) {
            want = (double)(float)(before[i] + v->a[i]); /* one rounding: exact */
            bound = 0;
        } else if (v->kind == SWIGLU) {
            want = gate[i] * sigmoid(gate[i]) * up[i];
            bound = (KC_SIGMOID + 2) * KC_U * fabs(want) + KC_SILU_FLOOR * fabs(up[i]) + KC_TINY;
        } else if (v->kind == SIGMOID) {
            want = x * sigmoid(gate[i]);
            bound = (KC_SIGMOID + 2) * KC_U * fabs(want) + KC_SILU_FLOOR * fabs(x) + KC_TINY;
        } else {
            const double x2 = before[i + v->n], c = v->a[i], s = v->b[i];

            want = x * c - x2 * s;
            bound = 3 * KC_U * (fabs(x * c) + fabs(x2 * s)) + 2 * KC_TINY;
            kc_near(kc, i + v->n, v->y[i + v->n], x2 * c + x * s,
                    3 * KC_U * (fabs(x2 * c) + fabs(x * s)) + 2 * KC_TINY);
        }
        kc_near(kc, i, v->y[i], want, bound);
    }
}

static void fill_inputs(struct kc *kc, struct vec_run *v, enum kc_pattern p)
{
    const float extreme = v->kind == ADD ? 1e38f : v->kind == ROPE ? 1e15f : 300;

    v->a = kc_floats(kc, v->n);
    v->b = kc_floats(kc, v->n);
    v->c = kc_floats(kc, v->n);
    v->d = kc_floats(kc, v->n);
    kc_fill(kc, v->a, v->n, p, extreme);
    kc_fill(kc, v->b, v->n, p, extreme);
    kc_fill(kc, v->d, v->n, p == KC_EXTREME ? KC_RANDOM : p, 0);
    for (size_t i = 0; i < v->n; i++) {
        v->c[i] = -expf(kc_uniform(kc, -3, 4)); /* -exp(A_log) */
        if (v->kind == ROPE) {
            const float angle = kc_uniform(kc, 0, 6.2831853f);

            v->a[i] = cosf(angle);
            v->b[i] = sinf(angle);
        }
        if (v->kind == GATES && p == KC_RANDOM && kc_below(kc, 4) == 0)
            v->b[i] = 20 - v->d[i] + kc_uniform(kc, -1e-5f, 1e-5f); /* around softplus's switch */
    }
}

static void check_one(struct kc *kc, enum kind kind, size_t n, enum kc_pattern p)
{
    struct vec_run v = {.k = kc->k, .kind = kind, .n = n};
    const size_t n_y = kind == ROPE ? 2 * n : n;
    const uint32_t alias = kind == SWIGLU ? kc_below(kc, 3) : 0; /* y may be the gate or up */
    float *before = kc_floats(kc, n_y), *gate = kc_floats(kc, n), *up = kc_floats(kc, n);

    fill_inputs(kc, &v, p);
    v.y = alias == 1 ? v.a : alias == 2 ? v.b : kc_floats(kc, n_y);
    v.y2 = kc_floats(kc, n);
    if (!alias)
        kc_fill(kc, v.y, n_y, p, kind == ADD ? 1e38f : 1e15f);
    for (size_t i = 0; i < n_y; i++)
        before[i] = v.y[i];
    for (size_t i = 0; i < n; i++) {
        gate[i] = v.a[i];
        up[i] = v.b[i];
    }
    if (alias != 1)
        kc_protect(kc, v.a);
    if (alias != 2)
        kc_protect(kc, v.b);
    kc_protect(kc, v.c);
    kc_protect(kc, v.d);
    run_vec(&v);
    check_result(kc, &v, before, gate, up);
}

static void check(struct kc *kc, enum kind kind)
{
    static const size_t real[] = {32, 256, 1024, 4096, 17408};

    for (size_t n = 1; n <= 200; n += 1 + n / 16) {
        for (int p = 0; p < KC_PATTERN_COUNT; p++) {
            kc_begin(kc, "n%zu %s", n, kc_pattern_names[p]);
            check_one(kc, kind, n, (enum kc_pattern)p);
            kc_end(kc);
        }
    }
    for (size_t i = 0; i < sizeof real / sizeof real[0]; i++) {
        kc_begin(kc, "n%zu", real[i]);
        check_one(kc, kind, real[i], KC_RANDOM);
        kc_end(kc);
    }
}

static void bench(struct kc *kc, enum kind kind)
{
    static const size_t n[] = {4096, 12288, 4096, 32, 32};
    static const double floats[] = {3, 3, 3, 6, 6};
    struct vec_run v = {.k = kc->k, .kind = kind, .n = n[kind]};
    double seconds;
    char what[32];

    kc_begin(kc, "bench");
    fill_inputs(kc, &v, KC_RANDOM);
    v.y = kc_floats(kc, 2 * v.n);
    v.y2 = kc_floats(kc, v.n);
    kc_fill(kc, v.y, 2 * v.n, KC_ZERO, 0);
    seconds = kc_time(run_vec, &v);
    v.k = kc->ref;
    snprintf(what, sizeof what, "n%zu", v.n);
    kc_report(kc, what, seconds, kc_time(run_vec, &v), 4 * floats[kind] * (double)v.n, 0);
    kc_end(kc);
}

void kc_vec(struct kc *kc)
{
    void (*const go)(struct kc *, enum kind) = kc->bench ? bench : check;

    if (KC_ENTRY(kc, add))
        go(kc, ADD);
    if (KC_ENTRY(kc, swiglu))
        go(kc, SWIGLU);
    if (KC_ENTRY(kc, sigmoid_mul))
        go(kc, SIGMOID);
    if (KC_ENTRY(kc, rope))
        go(kc, ROPE);
    if (KC_ENTRY(kc, delta_gates))
        go(kc, GATES);
}
