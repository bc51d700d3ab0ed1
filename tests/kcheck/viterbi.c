/*
 * The trellis encoder's vector code: costs of every step are the reference's, for every k, range, way of
 * subtracting and size of targets; and blocks searched with it are as close to their targets as a search in
 * f32. The encoder is no entry of the kernel table, so a CPU level stands for the function that it would
 * take.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kcheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quantize/viterbi.h"

/* Any costs to begin with, saturated ones among them; targets from tame to all of int16. */
static void check_steps(struct kc *kc, esp_viterbi_fn steps, const struct esp_viterbi_code *c, uint32_t every,
                        uint32_t spread)
{
    enum { STEPS = 40 };
    const size_t n = (size_t)(STEPS + 1) * c->n_edge;
    uint16_t *got = kc_alloc(kc, n * sizeof *got, 64, 0), *want = kc_alloc(kc, n * sizeof *want, 64, 0);
    int16_t *x = kc_alloc(kc, STEPS * sizeof *x, 2, 0);

    for (int i = 0; i < STEPS; i++)
        x[i] = (int16_t)((int32_t)kc_below(kc, 2 * spread) - (int32_t)spread);
    for (uint32_t j = 0; j < c->n_edge; j++)
        got[j] = want[j] = (uint16_t)(kc_below(kc, 8) ? kc_below(kc, 3000) : ESP_VITERBI_COST_MAX);
    kc_protect(kc, x);
    kc_equal(kc, 0, steps(c, x, STEPS, 5, every, got), esp_viterbi_steps_ref(c, x, STEPS, 5, every, want));
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i]) {
            kc_equal(kc, i, got[i], want[i]);
            break;
        }
}

/* Mean squared error of blocks of normal targets, against two passes in f32. */
static void check_blocks(struct kc *kc, esp_viterbi_fn steps, const struct esp_viterbi_code *c, uint32_t k)
{
    enum { BLOCKS = 3 };
    static struct esp_viterbi_scratch scratch;
    uint16_t states[ESP_TRELLIS_BLOCK];
    float u[ESP_TRELLIS_BLOCK];
    double fast = 0, slow = 0;

    for (int b = 0; b < BLOCKS; b++) {
        for (int i = 0; i < ESP_TRELLIS_BLOCK; i++)
            u[i] = fminf(fmaxf(kc_normal(kc), -3), 3); /* what lies beyond is clamped from k = 5 on */
        esp_viterbi_block(c, steps, k < 3 ? ESP_VITERBI_WINDOW_LONG : ESP_VITERBI_WINDOW, u, &scratch,
                          states);
        for (int i = 0; i < ESP_TRELLIS_BLOCK; i++) {
            const double d = (double)(c->v[states[i]] - u[i]);

            fast += d * d;
            kc_equal(kc, (size_t)i, esp_trellis_follows(k, states[i], states[(i + 1) % ESP_TRELLIS_BLOCK]),
                     1);
        }
        esp_viterbi_block_f32(c, u, &scratch, states);
        for (int i = 0; i < ESP_TRELLIS_BLOCK; i++) {
            const double d = (double)(c->v[states[i]] - u[i]);

            slow += d * d;
        }
    }
    /* the window may take another edge in one block of a few: 0.05 % on average, 1 % in so few. At k = 8 the
     * mean error is one and a half steps of the costs, whose rounding then shows. */
    kc_near(kc, 0, fast / slow, 1, k < 7 ? 0.01 : 0.03);
}

struct bench {
    esp_viterbi_fn steps;
    const struct esp_viterbi_code *c;
    const float *u;
    struct esp_viterbi_scratch *scratch;
};

static void search(void *ctx)
{
    struct bench *b = ctx;
    uint16_t states[ESP_TRELLIS_BLOCK];

    esp_viterbi_block(b->c, b->steps, ESP_VITERBI_WINDOW, b->u, b->scratch, states);
}

static void bench(struct kc *kc, esp_viterbi_fn steps, const struct esp_viterbi_code *c)
{
    static struct esp_viterbi_scratch scratch;
    float u[ESP_TRELLIS_BLOCK];
    struct bench b = {steps, c, u, &scratch};
    double seconds, ref;
    char what[64];

    kc_begin(kc, "bench");
    for (int i = 0; i < ESP_TRELLIS_BLOCK; i++)
        u[i] = kc_normal(kc);
    seconds = kc_time(search, &b);
    b.steps = esp_viterbi_steps_ref;
    ref = kc->below ? kc_time(search, &b) : seconds;
    snprintf(what, sizeof what, "%.2f Mweights/s", ESP_TRELLIS_BLOCK / seconds * 1e-6);
    kc_report(kc, what, seconds, ref, 0, 0);
    kc_end(kc);
}

void kc_viterbi(struct kc *kc)
{
    static struct esp_viterbi_code code[ESP_VITERBI_RANGES];
    static const uint32_t spread[] = {300, 9600, 32768};
    const esp_viterbi_fn steps = esp_viterbi_steps_of(kc->k->level),
                         below = kc->below ? esp_viterbi_steps_of(kc->below->level) : NULL;

    for (uint32_t k = 1; k <= ESP_TRELLIS_BITS_MAX; k++) {
        if (!kc_entry(kc, (kc_fn)steps, (kc_fn)below, "viterbi.k%u", k))
            continue;
        esp_viterbi_code_init(code, k);
        if (kc->bench) {
            bench(kc, steps, code);
            continue;
        }
        for (uint32_t r = 0; r < code->n_range; r++)
            for (size_t s = 0; s < sizeof spread / sizeof *spread; s++) {
                kc_begin(kc, "range%u spread%u", r, spread[s]);
                check_steps(kc, steps, &code[r], ESP_VITERBI_EVERY, spread[s]);
                check_steps(kc, steps, &code[r], 1, spread[s]);
                kc_end(kc);
            }
        kc_begin(kc, "blocks");
        check_blocks(kc, steps, code, k);
        kc_end(kc);
    }
}
