/*
 * Tables, scalar steps, the way back, and the tail-biting search around them; see viterbi.h.
 *
 * Source  code and rounding: doc/formats/trellis.md. Choosing the edge of the wrap by a free search around
 * it, then fixing it: arXiv:2406.11235, algorithm 4; that 64 weights on both sides are enough is our
 * measurement.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/viterbi.h"

#include <math.h>
#include <string.h>

#include "formats/trellis.h"

esp_viterbi_fn esp_viterbi_steps_of(enum esp_cpu_level level)
{
    switch (level) {
#if defined(__x86_64__)
    case ESP_CPU_AVX2:
        return esp_viterbi_steps_avx2;
    case ESP_CPU_AVX512:
    case ESP_CPU_AMX:
        return esp_viterbi_steps_avx512;
#endif
#if defined(__aarch64__)
    case ESP_CPU_NEON:
        return esp_viterbi_steps_neon;
#endif
    default:
        return esp_viterbi_steps_ref;
    }
}

static void init_range(struct esp_viterbi_code *c, uint32_t k, uint32_t range)
{
    const uint32_t n_edge = ESP_VITERBI_STATES >> k, n_branch = 1u << k;
    const int32_t factor = k <= 4 ? 64 >> range : 64;

    c->k = k;
    c->n_range = k <= 4 ? ESP_VITERBI_RANGES : 2;
    c->n_double = k <= 4 || range > 0 ? 0 : k <= 6 ? 1 : 2;
    c->factor = factor;
    c->unit = (float)factor * ESP_TRELLIS_DIVISOR; /* a power of two times it: exact */
    c->reach = c->n_double ? 3 : INT16_MAX / c->unit;
    c->n_edge = n_edge;
    for (uint32_t s = 0; s < ESP_VITERBI_STATES; s++) {
        const int32_t y = esp_trellis_value(s);

        c->y[s] = (int16_t)(y * factor);
        c->v[s] = (float)y / ESP_TRELLIS_DIVISOR;
        c->back[s % n_edge * n_branch + s / n_edge] = c->y[s];
        c->lanes[k <= 4 ? s % n_branch * n_edge + s / n_branch : s] = c->y[s];
    }
}

void esp_viterbi_code_init(struct esp_viterbi_code c[ESP_VITERBI_RANGES], uint32_t k)
{
    for (uint32_t i = 0; i < ESP_VITERBI_RANGES; i++)
        init_range(&c[i], k, i);
}

static int16_t round_target(float x)
{
    return (int16_t)lrintf(x < -INT16_MAX ? -INT16_MAX : x > INT16_MAX ? INT16_MAX : x);
}

/* Integer targets in the finest range that holds them all. Returns that range. */
static const struct esp_viterbi_code *set_targets(const struct esp_viterbi_code c[ESP_VITERBI_RANGES],
                                                  const float *u, int16_t *x)
{
    float high = 0;
    uint32_t i = 0;

    for (uint32_t t = 0; t < ESP_VITERBI_STEPS; t++)
        high = fabsf(u[t]) > high ? fabsf(u[t]) : high;
    while (i + 1 < c->n_range && high > c[i].reach)
        i++;
    for (uint32_t t = 0; t < ESP_VITERBI_STEPS; t++)
        x[t] = round_target(u[t] * c[i].unit);
    return &c[i];
}

static inline int32_t saturate16(int32_t d)
{
    return d < -32768 ? -32768 : d > 32767 ? 32767 : d;
}

static inline uint32_t step_error(const struct esp_viterbi_code *c, int32_t x, int32_t y)
{
    int32_t d = saturate16(x - y);

    for (uint32_t i = 0; i < c->n_double; i++)
        d = saturate16(2 * d);
    return ((uint32_t)(d * d) + 0x4000) >> 15;
}

static inline uint32_t add_cost(uint32_t a, uint32_t b)
{
    return a + b < ESP_VITERBI_COST_MAX ? a + b : ESP_VITERBI_COST_MAX;
}

static uint32_t subtract_min(uint16_t *cost, uint32_t n)
{
    uint32_t least = cost[0];

    for (uint32_t j = 1; j < n; j++)
        least = cost[j] < least ? cost[j] : least;
    for (uint32_t j = 0; j < n; j++)
        cost[j] = (uint16_t)(cost[j] - least);
    return least;
}

uint32_t esp_viterbi_steps_ref(const struct esp_viterbi_code *c, const int16_t *x, uint32_t n, uint32_t first,
                               uint32_t every, uint16_t *cost)
{
    const uint32_t n_edge = c->n_edge;
    uint32_t high = 0;

    for (uint32_t t = 0; t < n; t++, cost += n_edge) {
        uint16_t *next = cost + n_edge;

        for (uint32_t j = 0; j < n_edge; j++) {
            uint32_t best = ESP_VITERBI_COST_MAX;

            for (uint32_t s = j; s < ESP_VITERBI_STATES; s += n_edge) {
                const uint32_t sum = add_cost(cost[s >> c->k], step_error(c, x[t], c->y[s]));

                best = sum < best ? sum : best;
            }
            next[j] = (uint16_t)best;
        }
        if (t + 1 >= first && (t + 1) % every == 0) {
            const uint32_t least = subtract_min(next, n_edge);

            high = least > high ? least : high;
        }
    }
    return high;
}

/* The cheapest candidate into edge j at one step; ties go to the smallest m. */
static inline uint32_t step_back(const struct esp_viterbi_code *c, int32_t x, const uint16_t *cost,
                                 uint32_t j)
{
    const uint32_t n_branch = 1u << c->k, n_edge = c->n_edge;
    const int16_t *y = c->back + (size_t)j * n_branch;
    uint32_t best = UINT32_MAX;

    for (uint32_t m = 0; m < n_branch; m++) {
        const uint32_t sum = add_cost(cost[(j + m * n_edge) >> c->k], step_error(c, x, y[m]));
        const uint32_t key = sum << 8 | m;

        best = key < best ? key : best;
    }
    return j + (best & 255) * n_edge;
}

/* Near a fixed start not every edge has a past: only states whose older bits are the edge `start` do. */
static uint32_t step_back_fixed(const struct esp_viterbi_code *c, int32_t x, const uint16_t *cost, uint32_t j,
                                uint32_t t, uint32_t start)
{
    const uint32_t n_new = c->k * (t + 1); /* bits of s_t that are symbols of this block */
    const uint32_t old =
        n_new < ESP_VITERBI_STATE_BITS ? start & ((1u << (ESP_VITERBI_STATE_BITS - n_new)) - 1) : 0;
    uint32_t best = UINT32_MAX, best_s = j;

    for (uint32_t s = j; s < ESP_VITERBI_STATES; s += c->n_edge) {
        const uint32_t sum = add_cost(cost[s >> c->k], step_error(c, x, c->y[s]));

        if (s >> n_new == old && sum < best) {
            best = sum;
            best_s = s;
        }
    }
    return best_s;
}

static uint32_t fixed_steps(const struct esp_viterbi_code *c)
{
    return (ESP_VITERBI_STATE_BITS + c->k - 1) / c->k; /* until every edge has a past */
}

/* The state at step t on the way back from edge j, in a block that starts in edge `start`. */
static uint32_t block_step_back(const struct esp_viterbi_code *c, const struct esp_viterbi_scratch *scratch,
                                uint32_t j, uint32_t t, uint32_t start)
{
    const uint16_t *cost = scratch->cost + (size_t)t * c->n_edge;

    return t < fixed_steps(c) ? step_back_fixed(c, scratch->x[t], cost, j, t, start)
                              : step_back(c, scratch->x[t], cost, j);
}

/* Steps, and again with care when the targets are too far out for 16 steps in a row. cost[0] is kept. */
static void run_steps(const struct esp_viterbi_code *c, esp_viterbi_fn steps, const int16_t *x, uint32_t n,
                      uint32_t first, uint16_t *cost)
{
    if (steps(c, x, n, first, ESP_VITERBI_EVERY, cost) > ESP_VITERBI_COST_HIGH)
        steps(c, x, n, first, 1, cost);
}

static uint32_t argmin_cost(const uint16_t *cost, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t j = 1; j < n; j++)
        best = cost[j] < cost[best] ? j : best;
    return best;
}

/* The edge from which the block shall start and in which it shall end. */
static uint32_t choose_edge(const struct esp_viterbi_code *c, esp_viterbi_fn steps, uint32_t window,
                            struct esp_viterbi_scratch *s)
{
    const uint32_t n = 2 * window;
    uint32_t edge;

    memcpy(s->x_rot, s->x + ESP_VITERBI_STEPS - window, window * sizeof *s->x);
    memcpy(s->x_rot + window, s->x, window * sizeof *s->x);
    memset(s->cost, 0, c->n_edge * sizeof *s->cost);
    run_steps(c, steps, s->x_rot, n, 1, s->cost);
    edge = argmin_cost(s->cost + (size_t)n * c->n_edge, c->n_edge);
    for (uint32_t t = n; t-- > window;)
        edge = step_back(c, s->x_rot[t], s->cost + (size_t)t * c->n_edge, edge) >> c->k;
    return edge;
}

static void fix_start(const struct esp_viterbi_code *c, uint16_t *cost, uint32_t edge)
{
    memset(cost, 0xff, c->n_edge * sizeof *cost);
    cost[edge] = 0;
}

void esp_viterbi_block(const struct esp_viterbi_code codes[ESP_VITERBI_RANGES], esp_viterbi_fn steps,
                       uint32_t window, const float *u, struct esp_viterbi_scratch *scratch, uint16_t *states)
{
    const struct esp_viterbi_code *c = set_targets(codes, u, scratch->x);
    const uint32_t edge = choose_edge(c, steps, window, scratch);
    uint32_t j = edge;

    fix_start(c, scratch->cost, edge);
    run_steps(c, steps, scratch->x, ESP_VITERBI_STEPS, fixed_steps(c), scratch->cost);
    for (uint32_t t = ESP_VITERBI_STEPS; t-- > 0;) {
        states[t] = (uint16_t)block_step_back(c, scratch, j, t, edge);
        j = (uint32_t)states[t] >> c->k;
    }
}

/* ---- with feedback inside the block ---- */

/* Take the path that ends in edge j after n steps, of which an older one of n_old steps is known: where both
   meet they stay together. */
static void take_path(const struct esp_viterbi_code *c, const struct esp_viterbi_feed *f,
                      struct esp_viterbi_scratch *scratch, const uint32_t ends[2], uint32_t n_old, uint32_t n,
                      uint16_t *states)
{
    uint32_t j = ends[1];

    for (uint32_t t = n; t-- > 0;) {
        const uint32_t s = block_step_back(c, scratch, j, t, ends[0]);

        if (t < n_old && states[t] == s)
            return;
        states[t] = (uint16_t)s;
        scratch->rest[t] = f->w[t] - c->v[s];
        j = s >> c->k;
    }
}

/* Targets of the group that starts at step q, from the errors before it. */
static void feed_group(const struct esp_viterbi_code *c, const struct esp_viterbi_feed *f, uint32_t q,
                       struct esp_viterbi_scratch *scratch)
{
    float sum[ESP_VITERBI_STEPS];

    memcpy(sum, f->u + q, f->group * sizeof *sum);
    for (uint32_t i = 0; i < q; i++) {
        const float *taps = f->taps + i * f->ld + q;

        for (uint32_t t = 0; t < f->group; t++)
            sum[t] += taps[t] * scratch->rest[i];
    }
    for (uint32_t t = 0; t < f->group; t++)
        scratch->x[q + t] = round_target(sum[t] * c->unit);
}

void esp_viterbi_block_fed(const struct esp_viterbi_code codes[ESP_VITERBI_RANGES], esp_viterbi_fn steps,
                           uint32_t window, const struct esp_viterbi_feed *f,
                           struct esp_viterbi_scratch *scratch, uint16_t *states)
{
    const struct esp_viterbi_code *c = set_targets(codes, f->u, scratch->x);
    const uint32_t edge =
        choose_edge(c, steps, window, scratch); /* by targets without the block's own errors */
    uint32_t n_old = 0;

    fix_start(c, scratch->cost, edge);
    for (uint32_t q = 0; q < ESP_VITERBI_STEPS; q += f->group) {
        uint16_t *cost = scratch->cost + (size_t)q * c->n_edge;

        if (q > 0) {
            take_path(c, f, scratch, (uint32_t[]){edge, argmin_cost(cost, c->n_edge)}, n_old, q, states);
            feed_group(c, f, q, scratch);
            n_old = q;
        }
        run_steps(c, steps, scratch->x + q, f->group, q ? 1 : fixed_steps(c), cost);
    }
    take_path(c, f, scratch, (uint32_t[]){edge, edge}, n_old, ESP_VITERBI_STEPS, states);
}

/* ---- the same in f32 ---- */

struct float_search {
    float cost[2][ESP_VITERBI_STATES / 2];
    uint8_t from[ESP_VITERBI_STEPS][ESP_VITERBI_STATES / 2]; /* m of the winner */
};

_Static_assert(sizeof(struct float_search) <= sizeof(((struct esp_viterbi_scratch *)0)->cost),
               "the f32 search lives in the same scratch");

/* 256 steps from cost[0]; the last costs end up in cost[0]. */
static void float_steps(const struct esp_viterbi_code *c, const float *u, uint32_t rotate,
                        struct float_search *f)
{
    for (uint32_t t = 0; t < ESP_VITERBI_STEPS; t++) {
        const float x = u[(t + rotate) % ESP_VITERBI_STEPS];
        const float *cost = f->cost[t & 1];

        for (uint32_t j = 0; j < c->n_edge; j++) {
            float best = INFINITY;
            uint32_t best_m = 0;

            for (uint32_t m = 0; m < 1u << c->k; m++) {
                const uint32_t s = j + m * c->n_edge;
                const float sum = cost[s >> c->k] + (c->v[s] - x) * (c->v[s] - x);

                if (sum < best) {
                    best = sum;
                    best_m = m;
                }
            }
            f->cost[(t + 1) & 1][j] = best;
            f->from[t][j] = (uint8_t)best_m;
        }
    }
}

static uint32_t float_back(const struct esp_viterbi_code *c, const struct float_search *f, uint32_t to,
                           uint32_t j, uint16_t *states)
{
    for (uint32_t t = ESP_VITERBI_STEPS; t-- > to;) {
        const uint32_t s = j + f->from[t][j] * c->n_edge;

        states[t] = (uint16_t)s;
        j = s >> c->k;
    }
    return j;
}

void esp_viterbi_block_f32(const struct esp_viterbi_code *c, const float *u,
                           struct esp_viterbi_scratch *scratch, uint16_t *states)
{
    struct float_search *f = (void *)scratch->cost;
    uint32_t best = 0, edge;

    for (uint32_t j = 0; j < c->n_edge; j++)
        f->cost[0][j] = 0;
    float_steps(c, u, ESP_VITERBI_STEPS / 2, f);
    for (uint32_t j = 1; j < c->n_edge; j++)
        best = f->cost[0][j] < f->cost[0][best] ? j : best;
    edge = float_back(c, f, ESP_VITERBI_STEPS / 2, best, states);
    for (uint32_t j = 0; j < c->n_edge; j++)
        f->cost[0][j] = j == edge ? 0 : INFINITY;
    float_steps(c, u, 0, f);
    float_back(c, f, 0, edge, states);
}
