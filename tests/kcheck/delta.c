/*
 * Gated delta rule: an open chunk against the same formula in double, with a bound carried along row by row,
 * because an error in u_j reaches every later row through D_ij (k_i . k_j); the same bits however the rows
 * are cut; and the fold of a chunk into the state.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kcheck.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum style { PLAIN, NO_DECAY, STRONG_DECAY, SAME_KEYS, LARGE, ONE_HOT, STYLE_COUNT };
static const char *const style_names[STYLE_COUNT] = {"plain",    "nodecay", "g-50",
                                                     "samekeys", "large",   "onehot"};

enum { N = ESP_CHUNK, D_MAX = 256 };

struct job {
    struct esp_delta d;
    float *q, *v, *beta, *scratch;
};

static void unit(struct kc *kc, float *x, size_t n, double scale, enum style style)
{
    double sum = 0;

    kc_fill(kc, x, n, style == ONE_HOT ? KC_ONEHOT : KC_RANDOM, 0);
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(x[i] / sqrt(sum) * scale);
}

static float decay(struct kc *kc, enum style style)
{
    switch (style) {
    case NO_DECAY:
        return 0;
    case STRONG_DECAY:
        return -50;
    default:
        return -expf(kc_uniform(kc, -6, 1));
    }
}

static void fill_rows(struct kc *kc, struct job *j, uint32_t n, enum style style)
{
    struct esp_delta *d = &j->d;

    for (size_t i = 0; i < n; i++) {
        unit(kc, d->k + i * d->ld_k, d->dk, 1, style);
        if (style == SAME_KEYS && i)
            memcpy(d->k + i * d->ld_k, d->k, d->dk * sizeof(float));
        unit(kc, j->q + i * d->ld_q, d->dk, 1 / sqrt(d->dk), style);
        kc_fill(kc, j->v + i * d->ld_v, d->dv, style == LARGE ? KC_EXTREME : KC_RANDOM, 1e6f);
        j->beta[i * d->ld_beta] = style == SAME_KEYS ? 1 : kc_uniform(kc, 0, 1);
        d->g[i * d->ld_g] = decay(kc, style);
    }
}

static void make(struct kc *kc, struct job *j, uint32_t dk, uint32_t dv, uint32_t n, enum style style)
{
    struct esp_delta *d = &j->d;
    float *s = kc_floats(kc, (size_t)dk * dv);

    *d = (struct esp_delta){.dk = dk, .dv = dv, .s = s, .n_row = n};
    d->ld_k = dk + kc_below(kc, 3);
    d->ld_u = dv + kc_below(kc, 3);
    d->ld_q = dk + kc_below(kc, 3);
    d->ld_v = dv + kc_below(kc, 3);
    d->ld_o = dv + kc_below(kc, 3);
    d->ld_g = 1 + kc_below(kc, 4);
    d->ld_beta = 1 + kc_below(kc, 4);
    d->k = kc_floats(kc, (n - 1) * d->ld_k + dk);
    d->u = kc_floats(kc, (n - 1) * d->ld_u + dv);
    d->g = kc_floats(kc, (n - 1) * d->ld_g + 1);
    d->o = kc_floats(kc, (n - 1) * d->ld_o + dv);
    j->q = kc_floats(kc, (n - 1) * d->ld_q + dk);
    j->v = kc_floats(kc, (n - 1) * d->ld_v + dv);
    j->beta = kc_floats(kc, (n - 1) * d->ld_beta + 1);
    j->scratch = kc_alloc(kc, esp_delta_scratch_floats() * sizeof(float), 64, 0);
    kc_fill(kc, s, (size_t)dk * dv, style == LARGE ? KC_EXTREME : KC_RANDOM, 1e5f);
    fill_rows(kc, j, n, style);
    d->q = j->q;
    d->v = j->v;
    d->beta = j->beta;
    kc_protect(kc, s);
    kc_protect(kc, j->q);
    kc_protect(kc, j->v);
    kc_protect(kc, j->beta);
}

struct bounded {
    double value, error;
};

/* exp of the log decay of rows [j + 1, i], i - j additions; exp may flush where it is subnormal. */
static struct bounded exp_of(double log_decay, size_t additions)
{
    const double e = exp(log_decay);

    return (struct bounded){e, e * (KC_EXP + (double)additions * fabs(log_decay)) * KC_U + 0x1p-125};
}

/* scale * (a . b), with the magnitude of its terms in *terms. */
static struct bounded scaled_dot(struct bounded scale, const float *a, const float *b, size_t n,
                                 double *terms)
{
    double sum = 0;

    *terms = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)a[i] * b[i];
        *terms += fabs((double)a[i] * b[i]);
    }
    return (struct bounded){scale.value * sum, *terms * (scale.error + scale.value * (KC_SUM(n) + 2) * KC_U)};
}

/* Oracle of one row against the keys: weights D_ij (x . k_j) for j < n, and E_i. */
static struct bounded row_weights(const struct esp_delta *d, const float *x, size_t i, size_t n,
                                  struct bounded *w)
{
    double log_decay = 0, terms;

    for (size_t j = i;; j--) {
        if (j < n)
            w[j] = scaled_dot(exp_of(log_decay, i - j), x, d->k + j * d->ld_k, d->dk, &terms);
        log_decay += d->g[j * d->ld_g];
        if (j == 0)
            return exp_of(log_decay, i + 1);
    }
}

/* sum over j < n of w_j u_j[c]; magnitude of the terms in *terms. */
static struct bounded sum_rows(const struct bounded *w, struct bounded (*u)[D_MAX], size_t n, size_t c,
                               double *terms)
{
    struct bounded sum = {0, 0};

    *terms = 0;
    for (size_t j = 0; j < n; j++) {
        sum.value += w[j].value * u[j][c].value;
        sum.error += w[j].error * (fabs(u[j][c].value) + u[j][c].error) + fabs(w[j].value) * u[j][c].error;
        *terms += fabs(w[j].value * u[j][c].value);
    }
    sum.error += (double)(n + 4) * KC_U * *terms;
    return sum;
}

static void check_values(struct kc *kc, const struct job *j, uint32_t n)
{
    static struct bounded u[N][D_MAX], w[N];
    const struct esp_delta *d = &j->d;

    for (size_t i = 0; i < n; i++) {
        const float *k = d->k + i * d->ld_k, *q = j->q + i * d->ld_q;
        const double beta = j->beta[i * d->ld_beta];
        struct bounded whole = row_weights(d, k, i, i, w);
        double terms, dot_terms;

        for (size_t c = 0; c < d->dv; c++) {
            const double v = j->v[i * d->ld_v + c];
            const struct bounded read = scaled_dot(whole, d->s + c * d->dk, k, d->dk, &dot_terms);
            const struct bounded sum = sum_rows(w, u, i, c, &terms);

            u[i][c].value = beta * (v - read.value - sum.value);
            u[i][c].error =
                fabs(beta) * (read.error + sum.error + 6 * KC_U * (fabs(v) + fabs(read.value) + terms)) +
                KC_TINY;
            kc_near(kc, i * d->ld_u + c, d->u[i * d->ld_u + c], u[i][c].value, 1.1 * u[i][c].error);
        }
        whole = row_weights(d, q, i, i + 1, w);
        for (size_t c = 0; c < d->dv; c++) {
            const struct bounded read = scaled_dot(whole, d->s + c * d->dk, q, d->dk, &dot_terms);
            const struct bounded sum = sum_rows(w, u, i + 1, c, &terms);
            const double bound = read.error + sum.error + 4 * KC_U * (fabs(read.value) + terms) + KC_TINY;

            kc_near(kc, i * d->ld_o + c, d->o[i * d->ld_o + c], read.value + sum.value, 1.1 * bound);
        }
    }
}

/* The rows again in pieces of step; rows that have not come yet hold NaN. */
static void check_cut(struct kc *kc, const struct job *j, uint32_t n, uint32_t step)
{
    const struct esp_delta *all = &j->d;
    struct esp_delta d = *all;

    d.k = kc_floats(kc, (n - 1) * d.ld_k + d.dk);
    d.u = kc_floats(kc, (n - 1) * d.ld_u + d.dv);
    d.g = kc_floats(kc, (n - 1) * d.ld_g + 1);
    for (uint32_t i = 0; i < n; i += d.n_row) {
        d.row0 = i;
        d.n_row = step ? step : 1 + kc_below(kc, N);
        d.n_row = d.n_row < n - i ? d.n_row : n - i;
        for (size_t r = i; r < i + d.n_row; r++) {
            memcpy(d.k + r * d.ld_k, all->k + r * d.ld_k, d.dk * sizeof(float));
            d.g[r * d.ld_g] = all->g[r * d.ld_g];
        }
        d.q = all->q + i * d.ld_q;
        d.v = all->v + i * d.ld_v;
        d.beta = all->beta + i * d.ld_beta;
        d.o = kc_floats(kc, (d.n_row - 1) * d.ld_o + d.dv);
        memset(j->scratch, 0xff, esp_delta_scratch_floats() * sizeof(float));
        kc->k->delta_rows(&d, j->scratch);
        for (size_t r = 0; r < d.n_row; r++) {
            kc_same(kc, d.o + r * d.ld_o, all->o + (i + r) * d.ld_o, d.dv);
            kc_same(kc, d.u + (i + r) * d.ld_u, all->u + (i + r) * d.ld_u, d.dv);
        }
        kc_gaps(kc, d.o, d.n_row, d.dv, d.ld_o);
    }
    kc_gaps(kc, d.u, n, d.dv, d.ld_u);
}

static void check_rows(struct kc *kc, uint32_t dk, uint32_t dv, uint32_t n, enum style style)
{
    static const uint32_t steps[] = {1, 7, 8, 0};
    struct job j;

    kc_begin(kc, "dk%u dv%u n%u %s", dk, dv, n, style_names[style]);
    make(kc, &j, dk, dv, n, style);
    kc->k->delta_rows(&j.d, j.scratch);
    check_values(kc, &j, n);
    kc_gaps(kc, j.d.o, n, dv, j.d.ld_o);
    kc_gaps(kc, j.d.u, n, dv, j.d.ld_u);
    kc_end(kc);
    for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
        if (!kc_begin(kc, "dk%u dv%u n%u %s step%u", dk, dv, n, style_names[style], steps[s]))
            continue;
        make(kc, &j, dk, dv, n, style);
        kc->k->delta_rows(&j.d, j.scratch);
        check_cut(kc, &j, n, steps[s]);
        kc_end(kc);
    }
}

static void check_fold(struct kc *kc, uint32_t dk, uint32_t dv, uint32_t n, enum style style)
{
    struct bounded w[N], whole;
    double log_decay = 0;
    float *out, *in_place;
    struct job j;

    if (!kc_begin(kc, "dk%u dv%u n%u %s", dk, dv, n, style_names[style]))
        return;
    make(kc, &j, dk, dv, n, style);
    for (size_t i = 0; i < n; i++)
        kc_fill(kc, j.d.u + i * j.d.ld_u, dv, KC_RANDOM, 0);
    out = kc_floats(kc, (size_t)dk * dv);
    in_place = kc_floats(kc, (size_t)dk * dv);
    memcpy(in_place, j.d.s, (size_t)dk * dv * sizeof *out);
    kc_protect(kc, j.d.k);
    kc_protect(kc, j.d.u);
    kc_protect(kc, j.d.g);
    kc->k->delta_fold(&j.d, n, out);
    for (size_t i = n; i-- > 0;) {
        w[i] = exp_of(log_decay, n - 1 - i);
        log_decay += j.d.g[i * j.d.ld_g];
    }
    whole = exp_of(log_decay, n);
    for (size_t c = 0; c < dv; c++) {
        for (size_t i = 0; i < dk; i++) {
            const double s = j.d.s[c * dk + i];
            double sum = whole.value * s, terms = fabs(sum), error = whole.error * fabs(s);

            for (size_t r = 0; r < n; r++) {
                const double uk = (double)j.d.u[r * j.d.ld_u + c] * j.d.k[r * j.d.ld_k + i];

                sum += w[r].value * uk;
                terms += fabs(w[r].value * uk);
                error += w[r].error * fabs(uk);
            }
            kc_near(kc, c * dk + i, out[c * dk + i], sum, error + (n + 4) * KC_U * terms + n * KC_TINY);
        }
    }
    j.d.s = in_place;
    kc->k->delta_fold(&j.d, n, in_place);
    kc_same(kc, in_place, out, (size_t)dk * dv);
    kc_end(kc);
}

static void check(struct kc *kc, void (*one)(struct kc *, uint32_t, uint32_t, uint32_t, enum style))
{
    static const uint32_t sizes[][2] = {{16, 16}, {16, 48}, {48, 16}, {32, 64}, {80, 112}, {128, 128}};
    static const uint32_t rows[] = {1, 2, 3, 5, 8, 15, 17, 31, 33, 63, 64};

    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
            one(kc, sizes[s][0], sizes[s][1], rows[r], (enum style)((s + r) % STYLE_COUNT));
    }
    for (int style = 0; style < STYLE_COUNT; style++)
        one(kc, 128, 128, N, (enum style)style);
    one(kc, 256, 256, 20, PLAIN);
    one(kc, 256, 128, 9, LARGE);
}

struct delta_run {
    const struct esp_kernels *k;
    struct job *j;
    float *s_out;
};

static void run_rows(void *ctx)
{
    const struct delta_run *c = ctx;

    c->k->delta_rows(&c->j->d, c->j->scratch);
}

static void run_fold(void *ctx)
{
    const struct delta_run *c = ctx;

    c->k->delta_fold(&c->j->d, N, c->s_out);
}

static void bench(struct kc *kc, void (*run)(void *), uint32_t row0, uint32_t n, double bytes, double flops)
{
    struct job j;
    struct delta_run c = {kc->k, &j, NULL};
    double seconds;
    char what[48];

    kc_begin(kc, "bench");
    make(kc, &j, 128, 128, N, PLAIN);
    c.s_out = kc_floats(kc, 128 * 128);
    kc->ref->delta_rows(&j.d, j.scratch); /* fills u */
    j.d.row0 = row0;
    j.d.n_row = n;
    seconds = kc_time(run, &c);
    c.k = kc->ref;
    snprintf(what, sizeof what, "128x128 row0 %u rows %u", row0, n);
    kc_report(kc, what, seconds, kc_time(run, &c), bytes, flops);
    kc_end(kc);
}

void kc_delta(struct kc *kc)
{
    const double state = 128 * 128;

    if (KC_ENTRY(kc, delta_rows)) {
        if (kc->bench) {
            bench(kc, run_rows, 32, 1, 4 * (state + 2 * 32 * 128), 4 * state + 8 * 32 * 128);
            bench(kc, run_rows, 0, N, 4 * state, N * (4 * state + 8 * 32 * 128));
        } else {
            check(kc, check_rows);
        }
    }
    if (KC_ENTRY(kc, delta_fold)) {
        if (kc->bench)
            bench(kc, run_fold, 0, N, 8 * state, 2 * N * state);
        else
            check(kc, check_fold);
    }
}
