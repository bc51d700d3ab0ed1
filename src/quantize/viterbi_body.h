/*
 * The steps of the search for any vector width, included once by each CPU level's file, which defines
 *     vec (LANES u16), v_load, v_store, v_splat, v_subs and v_double (signed, saturating), v_square (d * d /
 * 2^15, rounded), v_adds (unsigned, saturating), v_min (unsigned), v_sub, and v_zip0, v_zip1 (lower and upper
 * half of a0 b0 a1 b1 ..).
 *
 * Up to k = 4, lanes are edges: for one branch b, states j * 2^k + b of consecutive edges j lie side by side,
 * costs of edges are read as they are stored, and the minimum over m is one between whole vectors. The
 * results of 2^k branches then have to be interleaved, k zips for each vector of edges instead of one
 * permutation for each vector of states. From k = 5 on, lanes are branches of one edge, and its cost is
 * spread over a vector.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_VITERBI_BODY_H
#define ESP_QUANTIZE_VITERBI_BODY_H

#include <stddef.h>

#include "quantize/viterbi.h"

#define B_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define B_UNROLL _Pragma("clang loop unroll(full)")
#else
#define B_UNROLL _Pragma("GCC unroll 16")
#endif

/* r[b] holds branch b of LANES edges (of HALF of them when the slices are that short); write all in edge
 * order. */
B_INLINE void store_interleaved(vec r[16], uint32_t n, uint16_t *out)
{
    vec t[16];

    B_UNROLL
    for (uint32_t half = n / 2; half >= 1; half /= 2) {
        const uint32_t width = n / (2 * half); /* vectors that one row holds so far */

        B_UNROLL
        for (uint32_t b = 0; b < half; b++) {
            B_UNROLL
            for (uint32_t i = 0; i < width; i++) {
                t[(b * width + i) * 2] = v_zip0(r[b * width + i], r[(b + half) * width + i]);
                t[(b * width + i) * 2 + 1] = v_zip1(r[b * width + i], r[(b + half) * width + i]);
            }
        }
        B_UNROLL
        for (uint32_t i = 0; i < n; i++)
            r[i] = t[i];
    }
    B_UNROLL
    for (uint32_t i = 0; i < n; i++)
        v_store(out + (size_t)i * LANES, r[i]);
}

/* One step for k <= 4 with slices of at least LANES edges. */
B_INLINE void step_edges(const int16_t *lanes, uint32_t k, vec x, const uint16_t *cost, uint16_t *next)
{
    const uint32_t n_branch = 1u << k, n_edge = ESP_VITERBI_STATES >> k, slice = n_edge >> k;

    for (uint32_t i = 0; i < slice; i += LANES) {
        vec e[16], r[16];

        B_UNROLL
        for (uint32_t m = 0; m < n_branch; m++)
            e[m] = v_load(cost + m * slice + i);
        B_UNROLL
        for (uint32_t b = 0; b < n_branch; b++) {
            const int16_t *y = lanes + (size_t)b * n_edge + i;

            r[b] = v_adds(e[0], v_square(v_subs(x, v_load(y))));
            B_UNROLL
            for (uint32_t m = 1; m < n_branch; m++)
                r[b] = v_min(r[b], v_adds(e[m], v_square(v_subs(x, v_load(y + (size_t)m * slice)))));
        }
        store_interleaved(r, n_branch, next + (size_t)i * n_branch);
    }
}

#ifdef v_fold
/* One step for k = 4 with slices of half a vector: two slices a vector, folded at the end. */
B_INLINE void step_half(const int16_t *lanes, vec x, const uint16_t *cost, uint16_t *next)
{
    vec e[8], r[16];

    B_UNROLL
    for (uint32_t m = 0; m < 8; m++)
        e[m] = v_load(cost + (size_t)m * LANES);
    B_UNROLL
    for (uint32_t b = 0; b < 16; b++) {
        const int16_t *y = lanes + (size_t)b * 8 * LANES;

        r[b] = v_adds(e[0], v_square(v_subs(x, v_load(y))));
        B_UNROLL
        for (uint32_t m = 1; m < 8; m++)
            r[b] = v_min(r[b], v_adds(e[m], v_square(v_subs(x, v_load(y + (size_t)m * LANES)))));
        r[b] = v_fold(r[b]);
    }
    B_UNROLL
    for (uint32_t b = 0; b < 8; b++)
        r[b] = v_zip0(r[b], r[b + 8]);
    /* r[b] is now one row of branches b and b + 8: three more rounds on eight vectors */
    store_interleaved(r, 8, next);
}
#endif

/* One step for k >= 5: LANES divides the 2^k branches of an edge. */
B_INLINE void step_branches(const int16_t *y, uint32_t k, uint32_t n_double, vec x, const uint16_t *cost,
                            uint16_t *next)
{
    enum { N_ACC_MAX = 128 / LANES };
    const uint32_t n_edge = ESP_VITERBI_STATES >> k;
    const uint32_t n_acc = n_edge > LANES ? n_edge / LANES : 1;
    _Alignas(64) uint16_t last[LANES];
    vec acc[N_ACC_MAX];

    B_UNROLL
    for (uint32_t i = 0; i < n_acc; i++)
        acc[i] = v_splat(ESP_VITERBI_COST_MAX);
    for (uint32_t s = 0; s < ESP_VITERBI_STATES; s += n_acc * LANES) {
        B_UNROLL
        for (uint32_t i = 0; i < n_acc; i++) {
            vec d = v_subs(x, v_load(y + s + (size_t)i * LANES));

            B_UNROLL
            for (uint32_t n = 0; n < n_double; n++)
                d = v_double(d);
            acc[i] = v_min(acc[i], v_adds(v_splat(cost[(s + i * LANES) >> k]), v_square(d)));
        }
    }
    if (n_edge >= LANES) {
        B_UNROLL
        for (uint32_t i = 0; i < n_acc; i++)
            v_store(next + (size_t)i * LANES, acc[i]);
        return;
    }
    v_store(last, acc[0]); /* fewer edges than lanes: lanes n_edge apart are the same edge */
    for (uint32_t j = 0; j < n_edge; j++) {
        next[j] = last[j];
        for (uint32_t i = j + n_edge; i < LANES; i += n_edge)
            next[j] = last[i] < next[j] ? last[i] : next[j];
    }
}

B_INLINE uint32_t subtract_least(uint16_t *cost, uint32_t n_edge)
{
    _Alignas(64) uint16_t last[LANES];
    uint32_t least = ESP_VITERBI_COST_MAX;
    vec v = v_splat(ESP_VITERBI_COST_MAX);

    if (n_edge < LANES) {
        for (uint32_t j = 0; j < n_edge; j++)
            least = cost[j] < least ? cost[j] : least;
        for (uint32_t j = 0; j < n_edge; j++)
            cost[j] = (uint16_t)(cost[j] - least);
        return least;
    }
    for (uint32_t j = 0; j < n_edge; j += LANES)
        v = v_min(v, v_load(cost + j));
    v_store(last, v);
    for (uint32_t i = 0; i < LANES; i++)
        least = last[i] < least ? last[i] : least;
    v = v_splat((uint16_t)least);
    for (uint32_t j = 0; j < n_edge; j += LANES)
        v_store(cost + j, v_sub(v_load(cost + j), v));
    return least;
}

B_INLINE uint32_t steps_for(const struct esp_viterbi_code *c, uint32_t k, uint32_t n_double,
                            const int16_t *xs, uint32_t n, const uint32_t limits[2], uint16_t *cost)
{
    const uint32_t n_edge = ESP_VITERBI_STATES >> k;
    uint32_t high = 0;

    for (uint32_t t = 0; t < n; t++, cost += n_edge) {
        const vec x = v_splat((uint16_t)xs[t]);

        if (k >= 5)
            step_branches(c->lanes, k, n_double, x, cost, cost + n_edge);
#ifdef v_fold
        else if (k == 4)
            step_half(c->lanes, x, cost, cost + n_edge);
#endif
        else
            step_edges(c->lanes, k, x, cost, cost + n_edge);
        if (t + 1 >= limits[0] && (t + 1) % limits[1] == 0) {
            const uint32_t least = subtract_least(cost + n_edge, n_edge);

            high = least > high ? least : high;
        }
    }
    return high;
}

B_INLINE uint32_t steps_few(const struct esp_viterbi_code *c, const int16_t *x, uint32_t n,
                            const uint32_t limits[2], uint16_t *cost)
{
    switch (c->k) {
    case 1:
        return steps_for(c, 1, 0, x, n, limits, cost);
    case 2:
        return steps_for(c, 2, 0, x, n, limits, cost);
    case 3:
        return steps_for(c, 3, 0, x, n, limits, cost);
    default:
        return steps_for(c, 4, 0, x, n, limits, cost);
    }
}

B_INLINE uint32_t steps_many(const struct esp_viterbi_code *c, uint32_t n_double, const int16_t *x,
                             uint32_t n, const uint32_t limits[2], uint16_t *cost)
{
    switch (c->k) {
    case 5:
        return steps_for(c, 5, n_double, x, n, limits, cost);
    case 6:
        return steps_for(c, 6, n_double, x, n, limits, cost);
    case 7:
        return steps_for(c, 7, n_double, x, n, limits, cost);
    default:
        return steps_for(c, 8, n_double, x, n, limits, cost);
    }
}

B_INLINE uint32_t steps_any(const struct esp_viterbi_code *c, const int16_t *x, uint32_t n,
                            const uint32_t limits[2], uint16_t *cost)
{
    if (c->k <= 4)
        return steps_few(c, x, n, limits, cost);
    switch (c->n_double) {
    case 0:
        return steps_many(c, 0, x, n, limits, cost);
    case 1:
        return steps_many(c, 1, x, n, limits, cost);
    default:
        return steps_many(c, 2, x, n, limits, cost);
    }
}

#endif
