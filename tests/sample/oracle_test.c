/*
 * The filters against the shortest program that could be right: sort everything, add in long double, cut.
 * Thousands of random rows with many ties. A case in which the exact sums lie within 1e-12 of a limit may go
 * either way in double and is left out; their share is bounded. SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "sample/select.h"

enum { SMALL_V = 900, MAX_V = 20000 };

struct item {
    uint32_t id;
    float value;
    long double weight, key; /* smaller key first */
};

struct oracle {
    struct item item[MAX_V];
    uint32_t n;
    bool unsure;
};

static double uniform(uint32_t *counter)
{
    const struct esp_rng_key key = {.seed = 7, .position = (*counter)++};

    return esp_rng_uniform(&key);
}

static int by_key(const void *a, const void *b)
{
    const struct item *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static long double total_of(const struct oracle *o)
{
    long double t = 0;

    for (uint32_t i = 0; i < o->n; i++)
        t += o->item[i].weight;
    return t;
}

/* Sort by key and keep the shortest prefix with mass >= p of the total. */
static void keep_mass(struct oracle *o, double p)
{
    long double total = total_of(o), mass = 0;
    uint32_t n = 0;

    qsort(o->item, o->n, sizeof o->item[0], by_key);
    while (n < o->n && (n == 0 || mass < p * total)) {
        mass += o->item[n++].weight;
        o->unsure |= fabsl(mass - p * total) < 1e-12L * total;
    }
    if (n < o->n) /* keys that differ by rounding only (typical_p: two values at one distance) */
        o->unsure |= o->item[n].value != o->item[n - 1].value &&
                     fabsl(o->item[n].key - o->item[n - 1].key) < 1e-5L * (1 + fabsl(o->item[n].key));
    o->n = n;
}

static void oracle_select(struct oracle *o, const struct esp_sample_params *p, const float *logits,
                          uint32_t n_vocab)
{
    float max = -INFINITY;
    uint32_t kept = 0;

    o->n = 0;
    o->unsure = false;
    for (uint32_t i = 0; i < n_vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    for (uint32_t i = 0; i < n_vocab; i++) {
        long double x = ((long double)logits[i] - (long double)max) / p->temperature;

        o->unsure |= fabsl(x + 60) < 1e-12L;
        if (x >= -60)
            o->item[o->n++] = (struct item){i, logits[i], expl(x), -(long double)logits[i]};
    }
    qsort(o->item, o->n, sizeof o->item[0], by_key);
    if (p->top_k > 0 && p->top_k < o->n)
        o->n = (uint32_t)p->top_k;
    if (p->top_p < 1)
        keep_mass(o, p->top_p);
    for (uint32_t i = 0; i < o->n; i++) {
        o->unsure |= p->min_p > 0 && p->min_p < 1 && fabsl(o->item[i].weight - p->min_p) < 1e-12L;
        if (o->item[i].weight >= p->min_p)
            o->item[kept++] = o->item[i];
    }
    o->n = kept;
    if (p->typical_p < 1) {
        long double mean = 0, total = total_of(o);

        for (uint32_t i = 0; i < o->n; i++)
            mean += o->item[i].weight / total * logl(o->item[i].weight);
        for (uint32_t i = 0; i < o->n; i++)
            o->item[i].key = fabsl(logl(o->item[i].weight) - mean);
        keep_mass(o, p->typical_p);
    }
    for (uint32_t i = 0; i < o->n; i++)
        o->item[i].key = o->item[i].id;
    qsort(o->item, o->n, sizeof o->item[0], by_key);
}

static uint32_t oracle_pick(struct oracle *o, double u)
{
    long double total = total_of(o), mass = 0;

    for (uint32_t i = 0; i + 1 < o->n; i++) {
        mass += o->item[i].weight;
        o->unsure |= fabsl(mass - u * total) < 1e-12L * total;
        if (mass > u * total)
            return o->item[i].id;
    }
    return o->item[o->n - 1].id;
}

static uint32_t random_row(float *logits, uint32_t max_v, uint32_t *r)
{
    static const double steps[] = {1e-3, 0.25, 1, 4};
    uint32_t n =
        uniform(r) < 0.5 ? 1 + (uint32_t)(uniform(r) * 12) : 1 + (uint32_t)(uniform(r) * (max_v - 1));
    uint32_t levels = 1 + (uint32_t)(uniform(r) * uniform(r) * 200);
    double step = steps[(int)(uniform(r) * 4)], banned = uniform(r) < 0.3 ? 0.5 : 0;

    for (uint32_t i = 0; i < n; i++) {
        double level = floor(uniform(r) * levels) - levels / 2;

        logits[i] = uniform(r) < banned ? -INFINITY : (float)(level * step);
        if (logits[i] == 0 && i % 2)
            logits[i] = -0.0f;
    }
    logits[(uint32_t)(uniform(r) * n)] = 0.5f;
    return n;
}

static void random_params(struct esp_sample_params *p, uint32_t n, uint32_t *r)
{
    static const double temperatures[] = {1e-6, 0.3, 0.7, 1, 1, 5};

    esp_sample_params_init(p);
    p->temperature = temperatures[(int)(uniform(r) * 6)];
    if (uniform(r) < 0.5)
        p->top_k =
            uniform(r) < 0.3 ? 1 + (int64_t)(uniform(r) * 14) : (int64_t)(uniform(r) * uniform(r) * (n + 5));
    if (uniform(r) < 0.5)
        p->top_p = uniform(r) < 0.2 ? 1e-9 : uniform(r) < 0.3 ? 0.95 : 1 - uniform(r);
    if (uniform(r) < 0.3)
        p->min_p = uniform(r) < 0.2 ? 1 : uniform(r) * uniform(r);
    if (uniform(r) < 0.2)
        p->typical_p = 1 - uniform(r);
    p->seed = *r;
}

struct tally {
    uint32_t unsure, heap, sorted, by_blocks;
};

/* Draw at three positions and compare kept set and id with the oracle. */
static void check_row(const struct esp_sample_params *p, const float *logits, uint32_t n, struct tally *t)
{
    static struct oracle o;
    struct esp_sample_work *w = NULL;
    struct esp_sampler *s = NULL;
    struct esp_sample_result got;
    esp_error err;

    test_ok(esp_sample_work_create(&w, n, &err), &err);
    test_ok(esp_sampler_create(&s, p, w, 1, &err), &err);
    for (uint64_t position = 0; position < 3; position++) {
        const struct esp_rng_key key = {.seed = p->seed, .position = position};
        uint32_t want;

        oracle_select(&o, p, logits, n);
        want = oracle_pick(&o, esp_rng_uniform(&key));
        test_ok(esp_sampler_draw(s, logits, NULL, position, &got, &err), &err);
        if (o.unsure) {
            t->unsure++;
            continue;
        }
        t->heap += p->top_k > 0 && p->top_k <= 128 && p->top_k < n;
        t->sorted += p->top_k > 128 && p->top_k < n;
        t->by_blocks += p->top_k > 128 && p->top_k <= n / 64;
        if (got.n_kept != o.n)
            fail_msg("seed %u: n %u, kept %u, oracle %u; T %g k %d top_p %.17g min_p %g typical %g",
                     (unsigned)p->seed, n, got.n_kept, o.n, p->temperature, (int)p->top_k, p->top_p, p->min_p,
                     p->typical_p);
        for (uint32_t i = 0; i < o.n; i++)
            assert_int_equal(w->id[i], o.item[i].id);
        assert_int_equal(got.id, want);
    }
    esp_sampler_destroy(s);
    esp_sample_work_destroy(w);
}

static void test_filters(void **state)
{
    enum { ROUNDS = 20000 };
    static float logits[SMALL_V];
    struct tally t = {0};
    uint32_t r = 0;

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t n = random_row(logits, SMALL_V, &r);
        struct esp_sample_params p;

        random_params(&p, n, &r);
        check_row(&p, logits, n, &t);
    }
    assert_true(t.unsure < ROUNDS * 3 / 10);
    assert_true(t.heap > 5000 && t.sorted > 2000);
}

/* Rows wide enough that a large top_k is narrowed by block maxima first. */
static void test_wide(void **state)
{
    static float logits[MAX_V];
    struct tally t = {0};
    uint32_t r = 5000000;

    (void)state;
    for (int round = 0; round < 60; round++) {
        uint32_t n;
        struct esp_sample_params p;

        do
            n = random_row(logits, MAX_V, &r);
        while (n < MAX_V / 2);
        random_params(&p, n, &r);
        p.top_k = 129 + (int64_t)(uniform(&r) * (n / 64 - 128));
        check_row(&p, logits, n, &t);
    }
    assert_true(t.by_blocks > 100);
}

/* One peak a block: the k-th greatest value is the k-th greatest block maximum, so the limit is exact. */
static void test_one_peak_a_block(void **state)
{
    enum { BLOCKS = 300, V = BLOCKS * 64 };
    static float logits[V];
    struct tally t = {0};

    (void)state;
    for (uint32_t i = 0; i < V; i++)
        logits[i] =
            i % 64 == i / 64 % 64 ? 10 + (float)(i / 64 * 7 % BLOCKS) * 0.01f : (float)(i % 13) * 0.05f;
    for (int64_t k = 129; k <= BLOCKS + 1; k++) {
        struct esp_sample_params p;

        esp_sample_params_init(&p);
        p.temperature = 5;
        p.top_k = k;
        check_row(&p, logits, V, &t);
    }
    assert_int_equal(t.by_blocks, (BLOCKS - 128) * 3);
}

/* Mass that meets top_p exactly is enough: equal logits have equal weights and sums without rounding. */
static void test_exact_mass(void **state)
{
    static const struct {
        double top_p;
        uint32_t n_kept;
    } cases[] = {{0.25, 1}, {0.250001, 2}, {0.5, 2}, {0.75, 3}, {0.750001, 4}, {1, 4}};
    const float logits[5] = {-INFINITY, 1.5f, 1.5f, 1.5f, 1.5f};
    struct esp_sample_work *w = NULL;

    (void)state;
    assert_int_equal(esp_sample_work_create(&w, 5, NULL), ESP_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct esp_sample_params p;
        struct esp_sample_result got;
        struct esp_sampler *s = NULL;

        esp_sample_params_init(&p);
        p.top_p = cases[i].top_p;
        assert_int_equal(esp_sampler_create(&s, &p, w, 1, NULL), ESP_OK);
        assert_int_equal(esp_sampler_draw(s, logits, NULL, 0, &got, NULL), ESP_OK);
        assert_int_equal(got.n_kept, cases[i].n_kept);
        for (uint32_t k = 0; k < got.n_kept; k++)
            assert_int_equal(w->id[k], k + 1); /* lowest ids first */
        esp_sampler_destroy(s);
    }
    esp_sample_work_destroy(w);
}

/* The same kept set by different filters gives the same draw: what was filtered out leaves no trace. */
static void test_draw_depends_on_kept_set(void **state)
{
    enum { V = 700, KEEP = 300 };
    static float logits[V];
    struct esp_sample_work *w = NULL;
    struct esp_sampler *s[3];
    struct esp_sample_params p;
    uint64_t allowed[(V + 63) / 64] = {0};
    uint32_t r = 1000000;

    (void)state;
    assert_int_equal(esp_sample_work_create(&w, V, NULL), ESP_OK);
    for (uint32_t i = 0; i < V; i++) {
        bool keep = i * 271 % V < KEEP;

        logits[i] = (float)uniform(&r) + (keep ? 5 : 0);
        allowed[i / 64] |= (uint64_t)keep << (i % 64);
    }
    esp_sample_params_init(&p);
    p.seed = 3;
    assert_int_equal(esp_sampler_create(&s[0], &p, w, 1, NULL), ESP_OK); /* by the mask alone */
    p.top_k = KEEP;
    assert_int_equal(esp_sampler_create(&s[1], &p, w, 1, NULL), ESP_OK);
    p.top_k = 0;
    p.min_p = exp(-4.0 / p.temperature) * 0.5;
    assert_int_equal(esp_sampler_create(&s[2], &p, w, 1, NULL), ESP_OK);
    for (uint64_t position = 0; position < 2000; position++) {
        struct esp_sample_result got[3];

        for (int k = 0; k < 3; k++)
            assert_int_equal(esp_sampler_draw(s[k], logits, k == 0 ? allowed : NULL, position, &got[k], NULL),
                             ESP_OK);
        assert_int_equal(got[0].n_kept, KEEP);
        assert_memory_equal(&got[0], &got[1], sizeof got[0]);
        if (got[2].n_kept == KEEP)
            assert_memory_equal(&got[0], &got[2], sizeof got[0]);
        else
            fail_msg("min_p kept %u", got[2].n_kept);
    }
    for (int k = 0; k < 3; k++)
        esp_sampler_destroy(s[k]);
    esp_sample_work_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_wide),
        cmocka_unit_test(test_one_peak_a_block),
        cmocka_unit_test(test_exact_mass),
        cmocka_unit_test(test_draw_depends_on_kept_set),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
