/*
 * Reference elementwise work: gates, rotary embedding, conversions, and two searches over a logit row.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/ref/ref.h"

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void swiglu(const float *gate, const float *up, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = silu(gate[i]) * up[i];
}

static void sigmoid_mul(float *y, const float *gate, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] *= sigmoid(gate[i]);
}

static void rope(float *x, const float *cos, const float *sin, size_t n_half)
{
    for (size_t j = 0; j < n_half; j++) {
        const float a = x[j], b = x[j + n_half];

        x[j] = a * cos[j] - b * sin[j];
        x[j + n_half] = b * cos[j] + a * sin[j];
    }
}

static void delta_gates(const float *b, const float *a, const float *a_neg, const float *dt_bias, float *beta,
                        float *g, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float s = a[i] + dt_bias[i];

        beta[i] = sigmoid(b[i]);
        g[i] = a_neg[i] * (s > 20 ? s : log1pf(expf(s)));
    }
}

static void f32_to_bf16(const float *x, uint16_t *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = esp_f32_to_bf16(x[i]);
}

static void bf16_to_f32(const uint16_t *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = esp_bf16_to_f32(x[i]);
}

static size_t argmax(const float *x, size_t n)
{
    size_t best = 0;

    for (size_t i = 1; i < n; i++) {
        if (x[i] > x[best] || (isnan(x[best]) && !isnan(x[i])))
            best = i;
    }
    return best;
}

static size_t first_nonfinite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (isnan(x[i]) || x[i] == INFINITY)
            return i;
    }
    return n;
}

void esp_ref_init_vec(struct esp_kernels *k)
{
    k->add = add;
    k->swiglu = swiglu;
    k->sigmoid_mul = sigmoid_mul;
    k->rope = rope;
    k->delta_gates = delta_gates;
    k->f32_to_bf16 = f32_to_bf16;
    k->bf16_to_f32 = bf16_to_f32;
    k->argmax = argmax;
    k->first_nonfinite = first_nonfinite;
}
