/*
 * Causal convolution with SiLU: values against double, and the same bits wherever a prompt or the channels
 * are cut. Eight roundings on the sum of four products; SiLU stretches that error by at most 1.1, its
 * steepest slope.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kcheck.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct conv_run {
    const struct esp_kernels *k;
    const float *tail, *p, *w;
    float *y;
    size_t ld_tail, ldp, ldy;
    uint32_t n_tok, c0, c1;
};

static void run_conv(void *ctx)
{
    const struct conv_run *c = ctx;

    c->k->conv_silu(c->tail, c->ld_tail, c->p, c->ldp, c->n_tok, c->w, c->c0, c->c1, c->y, c->ldy);
}

static void check_values(struct kc *kc, const struct conv_run *c)
{
    for (size_t t = 0; t < c->n_tok; t++) {
        for (size_t ch = c->c0; ch < c->c1; ch++) {
            double sum = 0, terms = 0, want;

            for (size_t j = 0; j < ESP_CONV_TAPS; j++) {
                const float x =
                    t + j < 3 ? c->tail[(t + j) * c->ld_tail + ch] : c->p[(t + j - 3) * c->ldp + ch];

                sum += (double)c->w[ch * ESP_CONV_TAPS + j] * x;
                terms += fabs((double)c->w[ch * ESP_CONV_TAPS + j] * x);
            }
            want = sum / (1 + exp(-sum));
            kc_near(kc, t * c->ldy + ch, c->y[t * c->ldy + ch], want,
                    1.1 * 8 * KC_U * terms + KC_SIGMOID * KC_U * fabs(want) + KC_SILU_FLOOR);
        }
    }
}

static void make(struct kc *kc, struct conv_run *c, uint32_t n_tok, uint32_t n_ch, enum kc_pattern p)
{
    float *tail, *rows, *w;

    c->k = kc->k;
    c->n_tok = n_tok;
    c->c0 = 0;
    c->c1 = n_ch;
    c->ld_tail = n_ch + kc_below(kc, 3);
    c->ldp = n_ch + kc_below(kc, 3);
    c->ldy = n_ch + kc_below(kc, 3);
    tail = kc_floats(kc, 2 * c->ld_tail + n_ch);
    rows = kc_floats(kc, (n_tok - 1) * c->ldp + n_ch);
    w = kc_floats(kc, (size_t)n_ch * ESP_CONV_TAPS);
    for (size_t t = 0; t < 3; t++)
        kc_fill(kc, tail + t * c->ld_tail, n_ch, p, 1e4f);
    for (size_t t = 0; t < n_tok; t++)
        kc_fill(kc, rows + t * c->ldp, n_ch, p, 1e4f);
    kc_fill(kc, w, (size_t)n_ch * ESP_CONV_TAPS, KC_RANDOM, 0);
    kc_protect(kc, tail);
    kc_protect(kc, rows);
    kc_protect(kc, w);
    c->tail = tail;
    c->p = rows;
    c->w = w;
    c->y = kc_floats(kc, (n_tok - 1) * c->ldy + n_ch);
}

/* Run rows [t, t + n) alone, with the tail that the rows before them leave. */
static void run_rows(struct kc *kc, const struct conv_run *all, float *y, uint32_t t, uint32_t n)
{
    struct conv_run c = *all;
    const size_t n_ch = all->c1;
    float *tail = kc_floats(kc, 3 * n_ch);

    for (size_t j = 0; j < 3; j++) {
        const float *from = t + j < 3 ? all->tail + (t + j) * all->ld_tail : all->p + (t + j - 3) * all->ldp;

        memcpy(tail + j * n_ch, from, n_ch * sizeof *tail);
    }
    c.tail = tail;
    c.ld_tail = n_ch;
    c.p = all->p + t * all->ldp;
    c.n_tok = n;
    c.y = y + t * all->ldy;
    for (c.c0 = 0; c.c0 < n_ch; c.c0 = c.c1) { /* channels in pieces, too */
        c.c1 = c.c0 + 1 + kc_below(kc, (uint32_t)n_ch);
        c.c1 = c.c1 < n_ch ? c.c1 : (uint32_t)n_ch;
        run_conv(&c);
    }
}

static void check_cuts(struct kc *kc, const struct conv_run *c)
{
    static const uint32_t sizes[] = {1, 2, 3, 5, 64};
    const size_t len = (c->n_tok - 1) * c->ldy + c->c1;
    float *y = kc_floats(kc, len);

    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        memset(y, 0xff, len * sizeof *y);
        for (uint32_t t = 0; t < c->n_tok; t += sizes[s])
            run_rows(kc, c, y, t, c->n_tok - t < sizes[s] ? c->n_tok - t : sizes[s]);
        for (size_t t = 0; t < c->n_tok; t++)
            kc_same(kc, y + t * c->ldy, c->y + t * c->ldy, c->c1);
        kc_gaps(kc, y, c->n_tok, c->c1, c->ldy);
    }
}

static void check(struct kc *kc)
{
    static const uint32_t toks[] = {1, 2, 3, 4, 7, 13};
    struct conv_run c;

    for (uint32_t n = 1; n <= 200; n += 1 + n / 16) {
        for (int p = 0; p < KC_PATTERN_COUNT; p++) {
            const uint32_t n_tok = toks[(n + (uint32_t)p) % 6];

            kc_begin(kc, "ch%u tok%u %s", n, n_tok, kc_pattern_names[p]);
            make(kc, &c, n_tok, n, (enum kc_pattern)p);
            run_conv(&c);
            check_values(kc, &c);
            kc_gaps(kc, c.y, n_tok, n, c.ldy);
            check_cuts(kc, &c);
            kc_end(kc);
        }
    }
    kc_begin(kc, "ch6144 tok20");
    make(kc, &c, 20, 6144, KC_RANDOM);
    run_conv(&c);
    check_values(kc, &c);
    check_cuts(kc, &c);
    kc_end(kc);
}

static void bench(struct kc *kc, uint32_t n_tok)
{
    struct conv_run c;
    double seconds;
    char what[32];

    kc_begin(kc, "bench");
    make(kc, &c, n_tok, 6144, KC_RANDOM);
    seconds = kc_time(run_conv, &c);
    c.k = kc->ref;
    snprintf(what, sizeof what, "ch6144 tok%u", n_tok);
    kc_report(kc, what, seconds, kc_time(run_conv, &c), 4.0 * 6144 * (2.0 * n_tok + 7), 10.0 * 6144 * n_tok);
    kc_end(kc);
}

void kc_conv(struct kc *kc)
{
    if (!KC_ENTRY(kc, conv_silu))
        return;
    if (!kc->bench) {
        check(kc);
        return;
    }
    bench(kc, 1);
    bench(kc, 64);
}
