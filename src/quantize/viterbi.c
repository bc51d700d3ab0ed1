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

static void init_range(struct esp_viterbi_code *c, uint32_t k, int32_t factor)
{
    const uint32_t n_edge = ESP_VITERBI_STATES >> k, n_branch = 1u << k;

    c->k = k;
    c->unit = (float)factor * ESP_TRELLIS_DIVISOR; /* a power of two times it: exact */
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
        init_range(&c[i], k, 64 >> i);
}

/* Integer targets in the finest range that holds them all. Returns that range. */
static const struct esp_viterbi_code *set_targets(const struct esp_viterbi_code c[ESP_VITERBI_RANGES],
                                                  const float *u, int16_t *x)
{
    const uint32_t n_range = c->k <= ESP_VITERBI_RANGES_UP_TO ? ESP_VITERBI_RANGES : 1;
    float high = 0;
    uint32_t i = 0;

    for (uint32_t t = 0; t < ESP_VITERBI_STEPS; t++)
        high = fabsf(u[t]) > high ? fabsf(u[t]) : high;
    while (i + 1 < n_range && high * c[i].unit > INT16_MAX)
        i++;
    for (uint32_t t = 0; t < ESP_VITERBI_STEPS; t++) {
        const float v = u[t] * c[i].unit;

        x[t] = (int16_t)lrintf(v < -INT16_MAX ? -INT16_MAX : v > INT16_MAX ? INT16_MAX : v);
    }
    return &c[i];
}

static inline int32_t saturate16(int32_t d)
{
    return d < -32768 ? -32768 : d > 32767 ? 32767 : d;
}

static inline uint32_t step_error(int32_t x, int32_t y)
{
    const int32_t d = saturate16(x - y);

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
                const uint32_t sum = add_cost(cost[s >> c->k], step_error(x[t], c->y[s]));

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
        const uint32_t sum = add_cost(cost[(j + m * n_edge) >> c->k], step_error(x, y[m]));
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
        const uint32_t sum = add_cost(cost[s >> c->k], step_error(x, c->y[s]));

        if (s >> n_new == old && sum < best) {
            best = sum;
            best_s = s;
        }
    }
    return best_s;
}

/* From edge j after step n - 1 back to step `to`; states[t] for t in [to, n). Returns the edge before step
 * `to`. */
static uint32_t walk_back(const struct esp_viterbi_code *c, const int16_t *x, const uint16_t *cost,
                          uint32_t n, uint32_t to, uint32_t j, uint16_t *states)
{
    for (uint32_t t = n; t-- > to;) {
        const uint32_t s = step_back(c, x[t], cost + (size_t)t * c->n_edge, j);

        states[t] = (uint16_t)s;
        j = s >> c->k;
    }
    return j;
}

static uint32_t fixed_steps(const struct esp_viterbi_code *c)
{
    return (ESP_VITERBI_STATE_BITS + c->k - 1) / c->k; /* until every edge has a past */
}

/* Steps, and again with care when the targets are too far out for 16 steps in a row. cost[0] is kept. */
static void run_steps(const struct esp_viterbi_code *c, esp_viterbi_fn steps, const int16_t *x, uint32_t n,
                      uint16_t *cost)
{
    const uint32_t first = fixed_steps(c);

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

    memcpy(s->x_rot, s->x + ESP_VITERBI_STEPS - window, window * sizeof *s->x);
    memcpy(s->x_rot + window, s->x, window * sizeof *s->x);
    memset(s->cost, 0, c->n_edge * sizeof *s->cost);
    run_steps(c, steps, s->x_rot, n, s->cost);
    return walk_back(c, s->x_rot, s->cost, n, window, argmin_cost(s->cost + (size_t)n * c->n_edge, c->n_edge),
                     s->path);
}

void esp_viterbi_block(const struct esp_viterbi_code codes[ESP_VITERBI_RANGES], esp_viterbi_fn steps,
                       uint32_t window, const float *u, struct esp_viterbi_scratch *scratch, uint16_t *states)
{
    const struct esp_viterbi_code *c = set_targets(codes, u, scratch->x);
    const uint32_t n_fixed = fixed_steps(c);
    uint32_t edge, j;

    edge = choose_edge(c, steps, window, scratch);
    memset(scratch->cost, 0xff, c->n_edge * sizeof *scratch->cost);
    scratch->cost[edge] = 0;
    run_steps(c, steps, scratch->x, ESP_VITERBI_STEPS, scratch->cost);
    j = walk_back(c, scratch->x, scratch->cost, ESP_VITERBI_STEPS, n_fixed, edge, states);
    for (uint32_t t = n_fixed; t-- > 0;) {
        states[t] =
            (uint16_t)step_back_fixed(c, scratch->x[t], scratch->cost + (size_t)t * c->n_edge, j, t, edge);
        j = (uint32_t)states[t] >> c->k;
    }
}

/* ---- the same in f32
 * ------------------------------------------------------------------------------------------- */

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
