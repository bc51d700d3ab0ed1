/*
 * The scalar reference: what every faster kernel is compared with, and what runs on a CPU without one. Plain
 * C, never tuned. Sums over a vector go into eight partial sums by index modulo 8, so that a sum of n terms
 * passes each term through at most n / 8 + 3 additions: that is the bound kernels.h promises, and a single
 * running sum would break it on constant inputs.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_REF_H
#define ESP_KERNELS_REF_H

#include <math.h>

#include "kernels/kernels.h"

enum { LANES = 8 };

/* lane[i % 8] += a[i] * b[i]; calls may follow one another when n is a multiple of 8. */
static inline void lanes_add(float lane[LANES], const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        lane[i % LANES] += a[i] * b[i];
}

static inline float lanes_sum(const float lane[LANES])
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static inline float dot(const float *a, const float *b, size_t n)
{
    float lane[LANES] = {0};

    lanes_add(lane, a, b, n);
    return lanes_sum(lane);
}

static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static inline float silu(float x)
{
    return x / (1.0f + expf(-x)); /* -inf gives NaN, as it should: it never comes out of finite sums */
}

void esp_ref_init_linear(struct esp_kernels *k);
void esp_ref_init_trellis(struct esp_kernels *k);
void esp_ref_init_norm(struct esp_kernels *k);
void esp_ref_init_conv(struct esp_kernels *k);
void esp_ref_init_delta(struct esp_kernels *k);
void esp_ref_init_attend(struct esp_kernels *k);
void esp_ref_init_vec(struct esp_kernels *k);

#endif
