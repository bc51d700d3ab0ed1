/*
 * Reference norms. The sum of squares is a dot product of the vector with itself, so its order depends on n
 * alone.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/ref/ref.h"

static void rmsnorm(const float *x, const float *gamma, float eps, float *y, size_t n)
{
    const float inv = 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);

    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * inv * gamma[i];
}

static void l2norm(const float *x, float eps, float scale, float *y, size_t n)
{
    const float inv = 1.0f / sqrtf(dot(x, x, n) + eps);

    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * inv * scale;
}

static void gated_norm(const float *o, const float *z, const float *gamma, float eps, float *y, size_t n)
{
    const float inv = 1.0f / sqrtf(dot(o, o, n) / (float)n + eps);

    for (size_t i = 0; i < n; i++)
        y[i] = o[i] * inv * gamma[i] * silu(z[i]);
}

void esp_ref_init_norm(struct esp_kernels *k)
{
    k->rmsnorm = rmsnorm;
    k->l2norm = l2norm;
    k->gated_norm = gated_norm;
}
