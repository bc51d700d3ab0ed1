/*
 * The search of one 256-block, private to the encoder. A state s has 12 bits; with G = 2^(12 - k), its
 * successors are ((s << k) | b) mod 4096, so all that matters of a past is its edge j = s mod G, and state s
 * comes from edge s >> k. Only the cheapest cost of every edge is kept:
 *
 *     E[t+1][j] = min over m < 2^k of E[t][s >> k] + (x_t - y_s)^2,   s = j + m G
 *
 * No decisions are stored: the way back recomputes 2^k sums a step from the kept costs, which is far cheaper
 * than storing 4096 comparisons.
 *
 * Costs are u16, with saturation. Code values and targets are multiples of y, and (d * d + 2^14) >> 15 of a
 * difference d is an error in steps of 1/2731 of v^2 when they are 64 y (truncating instead of rounding costs
 * 0.15 % of error at k = 4). A saturated cost is a way that lost. The smallest cost is subtracted every 16
 * steps; a block whose smallest cost has passed COST_HIGH by then (only targets far outside the code do that)
 * is searched again with that done after every step.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_VITERBI_H
#define ESP_QUANTIZE_VITERBI_H

#include <stddef.h>
#include <stdint.h>

#include "formats/trellis.h"
#include "kernels/kernels.h"

enum {
    ESP_VITERBI_STATE_BITS = ESP_TRELLIS_STATE_BITS,
    ESP_VITERBI_STATES = ESP_TRELLIS_STATES,
    ESP_VITERBI_STEPS = ESP_TRELLIS_BLOCK,
    ESP_VITERBI_WINDOW = 64, /* weights before and after the wrap that choose the tail-biting edge, k >= 3 */
    ESP_VITERBI_WINDOW_LONG = 96, /* k = 1, 2: states remember 12 and 6 weights, and errors are larger */
    ESP_VITERBI_EVERY = 16,       /* steps between subtractions of the smallest cost */
    ESP_VITERBI_COST_HIGH = 24000,
    ESP_VITERBI_COST_MAX = 65535
};

/*
 * The code as one k sees it, in integers of a certain step; a block takes the first range that reaches its
 * farthest target.
 *
 * k <= 4: 64 y, 32 y, 16 y, for targets up to 3.46, 6.93, 13.86. Few blocks of normal weights need the
 * second, but a clamped target would not pull hard enough at its neighbours (0.14 % of error at k = 4).
 *
 * k >= 5: errors are so small that differences are doubled before they are squared, once for k = 5, 6, twice
 * beyond; what then saturates, 1.7 or 0.87 away, is hardly ever the nearest. Blocks with targets beyond 3,
 * where it might be, do without, and targets beyond 3.46 count as that.
 */
enum { ESP_VITERBI_RANGES = 3 };

struct esp_viterbi_code {
    uint32_t k;
    uint32_t n_range;  /* of this k */
    uint32_t n_double; /* how often a difference is doubled, with saturation */
    int32_t factor;    /* integers for 1 of y */
    float unit;        /* integers for 1.0 of v */
    float reach;       /* largest |u| */
    uint32_t n_edge;   /* G */
    /* [4096] states in the order of the vector kernels: k <= 4: [b][j] for s = j * 2^k + b; else by s. */
    _Alignas(64) int16_t lanes[ESP_VITERBI_STATES];
    int16_t y[ESP_VITERBI_STATES];    /* [s] */
    int16_t back[ESP_VITERBI_STATES]; /* [j][m] s = j + m G: the candidates on the way back */
    float v[ESP_VITERBI_STATES];      /* [s] exact code value */
};

/*
 * Steps 0..n-1 with targets x: cost[0] is given, cost[1..n] are computed; cost [n + 1][G], 64-byte aligned.
 * After step i, when i + 1 >= first and every divides i + 1, the smallest cost is subtracted. Returns the
 * largest value so subtracted.
 */
typedef uint32_t (*esp_viterbi_fn)(const struct esp_viterbi_code *c, const int16_t *x, uint32_t n,
                                   uint32_t first, uint32_t every, uint16_t *cost);

uint32_t esp_viterbi_steps_ref(const struct esp_viterbi_code *c, const int16_t *x, uint32_t n, uint32_t first,
                               uint32_t every, uint16_t *cost);
#if defined(__x86_64__)
uint32_t esp_viterbi_steps_avx2(const struct esp_viterbi_code *c, const int16_t *x, uint32_t n,
                                uint32_t first, uint32_t every, uint16_t *cost);
uint32_t esp_viterbi_steps_avx512(const struct esp_viterbi_code *c, const int16_t *x, uint32_t n,
                                  uint32_t first, uint32_t every, uint16_t *cost); /* needs BW */
#endif
#if defined(__aarch64__)
uint32_t esp_viterbi_steps_neon(const struct esp_viterbi_code *c, const int16_t *x, uint32_t n,
                                uint32_t first, uint32_t every, uint16_t *cost);
#endif

/* The fastest of these for a level. */
esp_viterbi_fn esp_viterbi_steps_of(enum esp_cpu_level level);

/* What one thread needs to search a block; k = 1 has 2048 edges. */
struct esp_viterbi_scratch {
    _Alignas(64) uint16_t cost[(ESP_VITERBI_STEPS + 1) * (ESP_VITERBI_STATES / 2)];
    int16_t x[ESP_VITERBI_STEPS];
    int16_t x_rot[ESP_VITERBI_STEPS];
    uint16_t path[ESP_VITERBI_STEPS];
    float rest[ESP_VITERBI_STEPS];
};

/* Fill c for k = 1..8, all ranges. */
void esp_viterbi_code_init(struct esp_viterbi_code c[ESP_VITERBI_RANGES], uint32_t k);

/*
 * Tail-biting search for u [256]; finite. window: half the length of the free search that chooses the edge of
 * the wrap, at most 128. Targets beyond +-13.86 (+-3.46 from
 * k = 5 on) count as that. states [256].
 */
void esp_viterbi_block(const struct esp_viterbi_code c[ESP_VITERBI_RANGES], esp_viterbi_fn steps,
                       uint32_t window, const float *u, struct esp_viterbi_scratch *scratch,
                       uint16_t *states);

/* Feedback inside a block whose weights are inputs, in units of the row's scale. */
struct esp_viterbi_feed {
    const float *w; /* [256] the weights themselves */
    const float *u; /* [256] targets: weights and what earlier blocks left to correct */
    const float
        *taps; /* [256][ld] taps[i][t]: how much of w_i - w^_i is added to target t, i before t's group */
    size_t ld;
    uint32_t group; /* weights whose targets are fixed together: 16, 32, 64 or 128 */
};

/*
 * As esp_viterbi_block(), with targets that follow the errors of the block itself: before each group, the
 * cheapest path so far is taken for the final one, and its errors are fed on to the group.
 */
void esp_viterbi_block_fed(const struct esp_viterbi_code c[ESP_VITERBI_RANGES], esp_viterbi_fn steps,
                           uint32_t window, const struct esp_viterbi_feed *feed,
                           struct esp_viterbi_scratch *scratch, uint16_t *states);

/* The same in f32, two passes, scalar: the reference for quality. */
void esp_viterbi_block_f32(const struct esp_viterbi_code *c, const float *u,
                           struct esp_viterbi_scratch *scratch, uint16_t *states);

#endif
