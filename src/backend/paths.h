/*
 * Cheapest trellis paths of many blocks at once, for devices that search faster than the CPU. The code and
 * its successor rule are those of formats/trellis.h; the arithmetic of the search is part of the contract, so
 * that whoever does it finds the same paths, bit for bit:
 *
 * Let G = 2^(12 - k). A state s comes from edge s >> k and leads to edge s mod G, and
 *     E[t + 1][j] = min over m < 2^k of min(65535, E[t][s >> k] + e(x_t, s)),     s = j + m G,
 *     e(x, s) = (d * d + 2^14) >> 15,   d = (x - y_s * factor) * 2^n_double cut to -32768 .. 32767,
 * in integers. Of equal sums the one of the smallest m is taken. x is u * unit rounded to the nearest even
 * integer, within +-32767, in the first range whose reach holds the largest |u| of the block, else the last.
 * After step i of a run, when i + 1 >= first and `every` divides i + 1, the smallest cost is subtracted from
 * all; when the largest value so subtracted passes cost_high, the run is repeated with `every` = 1.
 *
 * 1. The edge of the wrap: targets 256 - window .. 255, 0 .. window - 1 from costs of 0, first = 1. Back from
 *    the end of the smallest cost (of equal ones the smallest edge), the edge in front of target 0 is taken.
 * 2. The block: cost 0 at that edge, 65535 elsewhere, first = ceil(12 / k); back from the same edge. For as
 *    long as a state holds bits from before the block, these are bits of the edge.
 *
 * With feedback (group > 0), 2 goes group by group: each is a run of its own (first = 1 after the first
 * group). Before each but the first the path back from the smallest cost so far gives rest_i = w_i - v_i of
 * all weights i before it, and x_t is made anew from u_t + taps[0][t] rest_0 + taps[1][t] rest_1 + .. in f32,
 * product by product and sum by sum, each rounded.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_PATHS_H
#define ESP_BACKEND_PATHS_H

#include <stddef.h>
#include <stdint.h>

enum { ESP_PATHS_RANGES = 3 };

struct esp_paths_range {
    float unit;  /* integers for 1.0 of u */
    float reach; /* largest |u| */
    int32_t factor;
    uint32_t n_double;
};

struct esp_paths {
    uint32_t k;      /* 1..8 */
    uint32_t window; /* 1..128 */
    uint32_t every, cost_high;
    uint32_t n_range; /* 1..3 */
    struct esp_paths_range range[ESP_PATHS_RANGES];
    uint32_t n;        /* blocks */
    uint32_t group;    /* 16, 32, 64, 128; 0: no feedback */
    const float *u;    /* [n][256] finite */
    const float *w;    /* [n][256] in the unit of u; with feedback */
    const float *taps; /* [256][ld], the same for all blocks; with feedback */
    size_t ld;
    uint16_t *states; /* [n][256] */
};

#endif
