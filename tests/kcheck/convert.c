/*
 * Exact kernels: conversions between f32 and bf16 (every bf16 value, and the neighbourhood of every rounding
 * border), and the two searches over a logit row.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kcheck.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static float float_of(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Any quiet NaN will do; everything else is exact. Subnormals are kept. */
static void check_to_bf16(struct kc *kc, const float *x, size_t n)
{
    uint16_t *y = kc_alloc(kc, n * sizeof *y, sizeof *y, 0);

    kc->k->f32_to_bf16(x, y, n);
    for (size_t i = 0; i < n; i++) {
        if (isnan(x[i]))
            kc_equal(kc, i, (y[i] & 0x7fc0) == 0x7fc0, 1);
        else
            kc_equal(kc, i, y[i], esp_f32_to_bf16(x[i]));
    }
}

static void to_bf16(struct kc *kc)
{
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    enum { N = 65536 };

    for (size_t l = 0; l < sizeof low / sizeof low[0]; l++) {
        float *x;

        kc_begin(kc, "every upper half with low bits %04x", low[l]);
        x = kc_floats(kc, N);
        for (uint32_t i = 0; i < N; i++)
            x[i] = float_of(i << 16 | low[l]);
        check_to_bf16(kc, x, N);
        kc_end(kc);
    }
    for (size_t n = 0; n <= 100; n++) {
        float *x;

        kc_begin(kc, "n%zu any bits", n);
        x = kc_floats(kc, n);
        for (size_t i = 0; i < n; i++)
            x[i] = float_of((uint32_t)kc_next(kc));
        check_to_bf16(kc, x, n);
        kc_end(kc);
    }
}

static void from_bf16(struct kc *kc)
{
    static const size_t sizes[] = {0,  1,  2,  3,  5,  7,  8,  9,  15,  16,
                                   17, 31, 32, 33, 47, 63, 64, 65, 100, 65536};

    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const size_t n = sizes[s];
        uint16_t *x;
        float *y;

        kc_begin(kc, "n%zu", n);
        x = kc_alloc(kc, n * sizeof *x, sizeof *x, 0);
        y = kc_floats(kc, n);
        for (size_t i = 0; i < n; i++)
            x[i] = (uint16_t)(n == 65536 ? i : kc_next(kc));
        kc->k->bf16_to_f32(x, y, n);
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;

            memcpy(&bits, y + i, sizeof bits);
            kc_equal(kc, i, bits, (uint32_t)x[i] << 16);
        }
        kc_end(kc);
    }
}

static size_t plain_argmax(const float *x, size_t n)
{
    size_t best = n;

    for (size_t i = 0; i < n; i++) {
        if (!isnan(x[i]) && (best == n || x[i] > x[best]))
            best = i;
    }
    return best;
}

static void check_argmax(struct kc *kc, const float *x, size_t n)
{
    const size_t want = plain_argmax(x, n), got = kc->k->argmax(x, n);

    kc_equal(kc, 0, want == n ? got < n : got == want, 1); /* all NaN: any valid index */
}

static void argmax(struct kc *kc)
{
    for (size_t n = 1; n <= 300; n += 1 + n / 16) {
        float *x;

        kc_begin(kc, "n%zu", n);
        x = kc_floats(kc, n);
        kc_fill(kc, x, n, KC_RANDOM, 0);
        check_argmax(kc, x, n);
        for (size_t i = 0; i < n; i++) { /* the maximum at each place, with a tie behind and a NaN beside */
            kc_fill(kc, x, n, KC_RANDOM, 0);
            x[i] = 1e4f;
            x[i + kc_below(kc, (uint32_t)(n - i))] = 1e4f;
            x[kc_below(kc, (uint32_t)n)] = NAN;
            check_argmax(kc, x, n);
        }
        for (size_t i = 0; i < n; i++)
            x[i] = -INFINITY;
        check_argmax(kc, x, n);
        x[0] = NAN;
        check_argmax(kc, x, n);
        for (size_t i = 0; i < n; i++)
            x[i] = NAN;
        check_argmax(kc, x, n);
        x[n - 1] = -3e38f;
        check_argmax(kc, x, n);
        kc_end(kc);
    }
    kc_begin(kc, "n248320 few values");
    {
        float *x = kc_floats(kc, 248320);

        for (size_t i = 0; i < 248320; i++)
            x[i] = (float)kc_below(kc, 1000);
        check_argmax(kc, x, 248320);
    }
    kc_end(kc);
}

static void first_nonfinite(struct kc *kc)
{
    for (size_t n = 0; n <= 300; n += 1 + n / 16) {
        float *x;

        kc_begin(kc, "n%zu", n);
        x = kc_floats(kc, n);
        kc_fill(kc, x, n, KC_EXTREME, 3.4e38f);
        if (n)
            x[kc_below(kc, (uint32_t)n)] = -INFINITY;
        kc_equal(kc, 0, kc->k->first_nonfinite(x, n), n);
        for (size_t i = n; i-- > 0;) { /* from the back, so the first one moves */
            x[i] = kc_below(kc, 2) ? INFINITY : float_of((uint32_t)kc_next(kc) | 0x7f800001);
            kc_equal(kc, i, kc->k->first_nonfinite(x, n), i);
            if (kc_below(kc, 2)) {
                x[i] = 0;
                kc_equal(kc, i, kc->k->first_nonfinite(x, n) > i, 1);
                x[i] = NAN;
            }
        }
        kc_end(kc);
    }
}

enum kind { TO_BF16, FROM_BF16, ARGMAX, NONFINITE };

struct convert_run {
    const struct esp_kernels *k;
    enum kind kind;
    float *x;
    uint16_t *half;
    size_t n, sink;
};

static void run_convert(void *ctx)
{
    struct convert_run *c = ctx;

    if (c->kind == TO_BF16)
        c->k->f32_to_bf16(c->x, c->half, c->n);
    else if (c->kind == FROM_BF16)
        c->k->bf16_to_f32(c->half, c->x, c->n);
    else if (c->kind == ARGMAX)
        c->sink += c->k->argmax(c->x, c->n);
    else
        c->sink += c->k->first_nonfinite(c->x, c->n);
}

static void bench(struct kc *kc, enum kind kind)
{
    struct convert_run c = {.k = kc->k, .kind = kind, .n = kind < ARGMAX ? 4096 : 248320};
    double seconds;
    char what[32];

    kc_begin(kc, "bench");
    c.x = kc_floats(kc, c.n);
    c.half = kc_alloc(kc, c.n * sizeof *c.half, 2, 0);
    kc_fill(kc, c.x, c.n, KC_RANDOM, 0);
    seconds = kc_time(run_convert, &c);
    c.k = kc->ref;
    snprintf(what, sizeof what, "n%zu", c.n);
    kc_report(kc, what, seconds, kc_time(run_convert, &c), (kind < ARGMAX ? 6.0 : 4.0) * (double)c.n, 0);
    kc_end(kc);
}

static void go(struct kc *kc, void (*check)(struct kc *), enum kind kind)
{
    if (kc->bench)
        bench(kc, kind);
    else
        check(kc);
}

void kc_convert(struct kc *kc)
{
    if (KC_ENTRY(kc, f32_to_bf16))
        go(kc, to_bf16, TO_BF16);
    if (KC_ENTRY(kc, bf16_to_f32))
        go(kc, from_bf16, FROM_BF16);
    if (KC_ENTRY(kc, argmax))
        go(kc, argmax, ARGMAX);
    if (KC_ENTRY(kc, first_nonfinite))
        go(kc, first_nonfinite, NONFINITE);
}
