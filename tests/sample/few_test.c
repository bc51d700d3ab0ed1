/*
 * Draws from the greatest values of a row against draws from the whole row: the same id, the same number of
 * candidates, or a plain "not enough". Rows with ties, bans, masks, both zeros; every filter; penalties that
 * push the greatest values below the rest; and what may never be drawn that way.
 *
 * SPDX-License-Identifier: MIT
 */
#include "sample_help.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 3001, WORDS = (VOCAB + 63) / 64, ROUNDS = 4000 };

static uint32_t state = 20260;

static uint32_t rnd(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x < y) - (x > y);
}

static void fill(float *row)
{
    const float step = (const float[]){1, 0.25f, 0.01f, 1e-4f}[rnd(4)];

    for (uint32_t i = 0; i < VOCAB; i++) {
        float x = 0;

        for (int j = 0; j < 4; j++)
            x += (float)rnd(1000) * 0.01f - 5;
        row[i] = rnd(50) == 0 ? -INFINITY : rnd(40) == 0 ? (rnd(2) ? 0.0f : -0.0f) : rintf(x / step) * step;
    }
}

/* All ids from the rank-th greatest value on, in an order of no meaning. */
static uint32_t greatest(const float *row, uint32_t rank, uint32_t *id, float *value)
{
    static float sorted[VOCAB];
    uint32_t n = 0;

    memcpy(sorted, row, sizeof sorted);
    qsort(sorted, VOCAB, sizeof *sorted, by_value);
    for (uint32_t i = 0; i < VOCAB; i++) {
        const uint32_t at = (i * 1009 + rank) % VOCAB;

        if (row[at] >= sorted[rank - 1]) {
            id[n] = at;
            value[n++] = row[at];
        }
    }
    return n;
}

static struct esp_sample_params random_params(struct esp_sample_bias *bias, uint32_t *end,
                                              const uint64_t *breakers)
{
    struct esp_sample_params p;

    esp_sample_params_init(&p);
    p.temperature = rnd(3) ? 0.1 + 0.01 * rnd(200) : 0;
    p.top_k = rnd(4) ? 1 + rnd(60) : 0;
    p.top_p = rnd(2) ? 0.2 + 0.001 * rnd(800) : 1;
    p.min_p = rnd(3) ? 0 : 0.001 * rnd(300);
    p.typical_p = rnd(4) ? 1 : 0.3 + 0.001 * rnd(700);
    p.repetition_penalty = rnd(2) ? 1 : 0.9 + 0.01 * rnd(60);
    p.presence_penalty = rnd(2) ? 0 : 0.01 * rnd(200) - 0.1;
    p.frequency_penalty = rnd(3) ? 0 : 0.01 * rnd(100);
    p.xtc_probability = rnd(3) ? 0 : 0.5;
    p.xtc_threshold = 0.05;
    p.dry_multiplier = rnd(3) ? 0 : 0.8;
    p.dry_breakers = breakers;
    p.n_dry_word = WORDS;
    for (p.n_bias = 0; p.n_bias < rnd(6); p.n_bias++)
        bias[p.n_bias] = (struct esp_sample_bias){.id = (uint32_t)p.n_bias * 500 + rnd(500),
                                                  .bias = rnd(8) ? -(float)rnd(101) : 3.0f};
    p.bias = bias;
    end[0] = rnd(VOCAB);
    p.end_ids = end;
    p.n_end = 1;
    p.min_tokens = rnd(2) ? 0 : 100;
    p.seed = rnd(1000);
    return p;
}

/* Most history is of ids that the row likes, so that penalties hit the greatest values. */
static void live(struct esp_sampler *s, const uint32_t *id, uint32_t n)
{
    esp_error err;

    for (uint32_t i = rnd(MAX_HISTORY); i > 0; i--) {
        const uint32_t t = rnd(4) ? id[rnd(n)] : rnd(VOCAB);

        if (rnd(3))
            test_ok(esp_sampler_push(s, t, &err), &err);
        else
            test_ok(esp_sampler_push_prompt(s, &t, 1, &err), &err);
    }
}

static void test_same(void **unused)
{
    static float row[VOCAB], value[VOCAB];
    static uint32_t id[VOCAB];
    static const uint64_t breakers[WORDS];
    struct esp_sample_work *w = make_work(VOCAB);
    uint32_t enough = 0, not_enough = 0, greedy = 0;

    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        struct esp_sample_bias bias[8];
        uint64_t mask[WORDS];
        uint32_t end[1], n;
        struct esp_sample_params p = random_params(bias, end, breakers);
        struct esp_sampler *s = make_sampler(&p, w);
        const uint64_t *allowed = rnd(2) ? NULL : mask;
        struct esp_sample_result got = {UINT32_MAX, 0}, want;
        esp_error err;

        for (uint32_t k = 0; k < WORDS; k++)
            mask[k] = (uint64_t)rnd(1 << 24) << 40 ^ (uint64_t)rnd(1 << 24) << 20 ^ rnd(1 << 24);
        fill(row);
        n = greatest(row, 1 + rnd(200), id, value);
        live(s, id, n);
        const struct esp_sample_few few = {n, id, value};
        const bool ok = esp_sampler_draw_few(s, &few, allowed, (uint64_t)i, &got);

        if (ok) {
            test_ok(esp_sampler_draw(s, row, allowed, (uint64_t)i, &want, &err), &err);
            assert_int_equal(got.id, want.id);
            assert_int_equal(got.n_kept, want.n_kept);
            assert_true(esp_sampler_needs_few(s));
            greedy += p.temperature == 0;
        }
        enough += ok;
        not_enough += !ok && esp_sampler_needs_few(s);
        esp_sampler_destroy(s);
    }
    printf("%u draws equal, %u of them greedy; %u of few that did not suffice\n", enough, greedy, not_enough);
    assert_true(enough > ROUNDS / 4 && greedy > ROUNDS / 20 && not_enough > ROUNDS / 50);
    esp_sample_work_destroy(w);
}

static void refuse(struct esp_sample_params p, const struct esp_sample_few *few, const uint64_t *allowed)
{
    struct esp_sample_work *w = make_work(VOCAB);
    struct esp_sampler *s = make_sampler(&p, w);
    struct esp_sample_result r = {7, 7};

    assert_false(esp_sampler_draw_few(s, few, allowed, 0, &r));
    assert_int_equal(r.id, 7);
    esp_sampler_destroy(s);
    esp_sample_work_destroy(w);
}

static void test_not_enough(void **unused)
{
    const uint32_t id[] = {5, 9, 2000};
    const float value[] = {3, 2, 1}, banned[] = {-INFINITY, -INFINITY, -INFINITY};
    const struct esp_sample_few few = {3, id, value}, none = {0, id, value}, all_banned = {3, id, banned};
    const struct esp_sample_bias up = {.id = 1, .bias = 1}, ban[] = {{5, -100}, {9, -100}, {2000, -100}};
    static const uint64_t nothing[WORDS];
    struct esp_sample_params p;

    (void)unused;
    esp_sample_params_init(&p);
    refuse(p, &few, NULL); /* no top_k: the mass of all counts */
    p.top_k = 4;
    refuse(p, &few, NULL); /* more than there are */
    p.top_k = 3;
    refuse(p, &none, NULL);
    refuse(p, &all_banned, NULL);
    refuse(p, &few, nothing);
    p.bias = &up, p.n_bias = 1; /* id 1 might be raised above them */
    refuse(p, &few, NULL);
    p.bias = ban, p.n_bias = 3;
    refuse(p, &few, NULL);
    p.temperature = 0;
    refuse(p, &few, NULL);
    p.n_bias = 0, p.repetition_penalty = 0.9;
    refuse(p, &few, NULL);
    p.repetition_penalty = 1, p.presence_penalty = -0.1;
    refuse(p, &few, NULL);
    p.presence_penalty = 0, p.frequency_penalty = -0.1;
    refuse(p, &few, NULL);
    p.frequency_penalty = 0, p.end_ids = id, p.n_end = 3,
    p.min_tokens = 1; /* they may come if nothing else may */
    refuse(p, &few, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same), cmocka_unit_test(test_not_enough)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
