/*
 * Reference gated delta rule in the direct chunk form: the state is read, never written, until a chunk
 * closes; a row needs only the rows of its chunk before it. So rows may come one at a time or all at once
 * with the same result. Only sums of log decays (never their differences) are exponentiated, and those are at
 * most 0: nothing overflows. Source: Yang et al., "Gated Delta Networks" (arXiv 2412.06464), and kernels.h
 * for the exact form.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/ref/ref.h"

/* decay[j] = exp(sum of g[j+1..i]) for j <= i; returns exp of the whole sum g[0..i]. */
static float decays(const struct esp_delta *d, size_t i, float *decay)
{
    float log_decay = 0;

    for (size_t j = i; j > 0; j--) {
        decay[j] = expf(log_decay);
        log_decay += d->g[j * d->ld_g];
    }
    decay[0] = expf(log_decay);
    return expf(log_decay + d->g[0]);
}

/* out = sum over j < n of weight[j] * u_j, ascending. */
static void sum_rows(const struct esp_delta *d, const float *weight, size_t n, float *out)
{
    for (size_t c = 0; c < d->dv; c++)
        out[c] = 0;
    for (size_t j = 0; j < n; j++) {
        for (size_t c = 0; c < d->dv; c++)
            out[c] += weight[j] * d->u[j * d->ld_u + c];
    }
}

static void delta_rows(const struct esp_delta *d, float *scratch)
{
    float *decay = scratch;            /* [ESP_CHUNK] */
    float *weight = decay + ESP_CHUNK; /* [ESP_CHUNK] */
    float *sum = weight + ESP_CHUNK;   /* [dv] */

    for (size_t r = 0; r < d->n_row; r++) {
        const size_t i = d->row0 + r;
        const float *k = d->k + i * d->ld_k;
        const float *q = d->q + r * d->ld_q;
        const float *v = d->v + r * d->ld_v;
        const float beta = d->beta[r * d->ld_beta];
        float *u = d->u + i * d->ld_u;
        float *o = d->o + r * d->ld_o;
        const float whole = decays(d, i, decay);

        for (size_t j = 0; j < i; j++)
            weight[j] = decay[j] * dot(k, d->k + j * d->ld_k, d->dk);
        sum_rows(d, weight, i, sum);
        for (size_t c = 0; c < d->dv; c++)
            u[c] = beta * (v[c] - whole * dot(d->s + c * d->dk, k, d->dk) - sum[c]);

        for (size_t j = 0; j <= i; j++)
            weight[j] = decay[j] * dot(q, d->k + j * d->ld_k, d->dk);
        sum_rows(d, weight, i + 1, sum);
        for (size_t c = 0; c < d->dv; c++)
            o[c] = whole * dot(d->s + c * d->dk, q, d->dk) + sum[c];
    }
}

static void delta_fold(const struct esp_delta *d, uint32_t n, float *s_out)
{
    float decay[ESP_CHUNK];
    const float whole = n ? decays(d, n - 1, decay) : 1;

    for (size_t c = 0; c < d->dv; c++) {
        for (size_t i = 0; i < d->dk; i++) {
            float sum = whole * d->s[c * d->dk + i];

            for (size_t j = 0; j < n; j++)
                sum += decay[j] * d->u[j * d->ld_u + c] * d->k[j * d->ld_k + i];
            s_out[c * d->dk + i] = sum;
        }
    }
}

void esp_ref_init_delta(struct esp_kernels *k)
{
    k->delta_rows = delta_rows;
    k->delta_fold = delta_fold;
}
