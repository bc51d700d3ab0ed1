/*
 * The gated delta rule on an open chunk, and its fold into the state. Everything that is a dot product (S k,
 * S q, K K^T, Q K^T) is formed first, tiles of rows sharing each row of S; then rows are solved one after
 * another, since u_i needs the u before it. Sums over j are ascending multiply-adds, so a row's bits do not
 * depend on how many rows came with it.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_DELTA_BODY_H
#define ESP_KERNELS_X86_DELTA_BODY_H

#include "kernels/kernels.h"
#include "kernels/x86/dots.h"
#include "kernels/x86/exp.h"

enum { DELTA_VECTORS = 4, DELTA_ROWS = 4 }; /* tile of the fold, and vectors of a row solved at once */

/*
 * decay[j] = exp(g[j+1] + ... + g[i]), summed from j = i downwards, for j <= i; decay rounded up to whole
 * vectors. Returns the exp of the whole sum g[0..i].
 */
static float delta_decays(const struct esp_delta *d, size_t i, float *decay)
{
    float whole[VW] = {0}, sum = 0;

    for (size_t j = i; j > 0; j--) {
        decay[j] = sum;
        sum += d->g[j * d->ld_g];
    }
    decay[0] = sum;
    for (size_t j = i + 1; j % VW; j++)
        decay[j] = 0;
    for (size_t j = 0; j <= i; j += VW)
        vf_store(decay + j, vf_exp(vf_load(decay + j)));
    vf_store(whole, vf_exp(vf_set1(sum + d->g[0])));
    return whole[0];
}

/* Products of one row: with the state (dv each) and with the keys so far (ESP_CHUNK each). */
struct delta_products {
    const float *sk, *sq, *kk, *qk;
};

static void delta_solve(const struct esp_delta *d, size_t r, const struct delta_products *p)
{
    const size_t i = d->row0 + r;
    const float beta = d->beta[r * d->ld_beta];
    const float *v = d->v + r * d->ld_v;
    float *u = d->u + i * d->ld_u, *o = d->o + r * d->ld_o;
    float decay[ESP_CHUNK], wk[ESP_CHUNK], wq[ESP_CHUNK];
    const vf whole = vf_set1(delta_decays(d, i, decay));

    for (size_t j = 0; j <= i; j += VW) {
        const vf e = vf_load(decay + j);

        vf_store(wk + j, vf_mul(e, vf_load(p->kk + j)));
        vf_store(wq + j, vf_mul(e, vf_load(p->qk + j)));
    }
    for (size_t c = 0; c < d->dv; c += VW) {
        vf su = vf_zero(), so = vf_zero(), uv;

        for (size_t j = 0; j < i; j++) {
            const vf uj = vf_load(d->u + j * d->ld_u + c);

            su = vf_fma(vf_set1(wk[j]), uj, su);
            so = vf_fma(vf_set1(wq[j]), uj, so);
        }
        uv = vf_sub(vf_fnma(whole, vf_load(p->sk + c), vf_load(v + c)), su);
        uv = vf_mul(vf_set1(beta), uv);
        so = vf_fma(vf_set1(wq[i]), uv, so);
        vf_store(u + c, uv);
        vf_store(o + c, vf_fma(whole, vf_load(p->sq + c), so));
    }
}

static void delta_rows(const struct esp_delta *d, float *scratch)
{
    float *state = scratch;                             /* [n_row] S k of dv, S q of dv */
    float *keys = state + (size_t)2 * d->n_row * d->dv; /* [n_row] k . k_j, q . k_j, ESP_CHUNK each */
    struct dots s = {(const uint8_t *)d->s, d->dk * sizeof(float), d->dv, d->dk, state, d->dv};
    struct dots k = {(const uint8_t *)d->k, d->ld_k * sizeof(float), 0, d->dk, keys, ESP_CHUNK};

    for (uint32_t r = 0, n; r < d->n_row; r += n) { /* tiles of k and q of n rows */
        const float *x[V_ROWS];

        n = d->n_row - r < V_ROWS / 2 ? d->n_row - r : V_ROWS / 2;
        for (uint32_t j = 0; j < n; j++) {
            x[2 * j] = d->k + (d->row0 + r + j) * d->ld_k;
            x[2 * j + 1] = d->q + (r + j) * d->ld_q;
        }
        k.n_out = d->row0 + r + n;
        dots_rows(ESP_FORMAT_F32, 2 * n, &s, x);
        dots_rows(ESP_FORMAT_F32, 2 * n, &k, x);
        s.y += (size_t)2 * n * s.ldy;
        k.y += (size_t)2 * n * k.ldy;
    }
    for (size_t r = 0; r < d->n_row; r++) {
        const float *kk = keys + 2 * r * ESP_CHUNK;
        const struct delta_products p = {
            .sk = state + 2 * r * d->dv,
            .sq = state + (2 * r + 1) * d->dv,
            .kk = kk,
            .qk = kk + ESP_CHUNK,
        };

        delta_solve(d, r, &p);
    }
}

/* Rows c .. c + 3 of the state, columns i .. of DELTA_VECTORS vectors at most (n of them are inside). */
V_INLINE void delta_fold_tile(const struct esp_delta *d, const float *cu, uint32_t n, size_t c, size_t i,
                              float whole, float *s_out)
{
    vf acc[DELTA_ROWS][DELTA_VECTORS];

    V_UNROLL
    for (int a = 0; a < DELTA_ROWS; a++) {
        V_UNROLL
        for (int v = 0; v < DELTA_VECTORS; v++) {
            const size_t at = i + (size_t)v * VW;

            acc[a][v] = at < d->dk ? vf_mul(vf_set1(whole), vf_load(d->s + (c + a) * d->dk + at)) : vf_zero();
        }
    }
    for (size_t j = 0; j < n; j++) {
        const float *k = d->k + j * d->ld_k + i;
        vf kv[DELTA_VECTORS];

        V_UNROLL
        for (int v = 0; v < DELTA_VECTORS; v++)
            kv[v] = i + (size_t)v * VW < d->dk ? vf_load(k + v * VW) : vf_zero();
        V_UNROLL
        for (int a = 0; a < DELTA_ROWS; a++) {
            const vf u = vf_set1(cu[j * DELTA_ROWS + a]);

            V_UNROLL
            for (int v = 0; v < DELTA_VECTORS; v++)
                acc[a][v] = vf_fma(u, kv[v], acc[a][v]);
        }
    }
    V_UNROLL
    for (int a = 0; a < DELTA_ROWS; a++) {
        V_UNROLL
        for (int v = 0; v < DELTA_VECTORS; v++) {
            const size_t at = i + (size_t)v * VW;

            if (at < d->dk)
                vf_store(s_out + (c + a) * d->dk + at, acc[a][v]);
        }
    }
}

static void delta_fold(const struct esp_delta *d, uint32_t n, float *s_out)
{
    float decay[ESP_CHUNK], cu[ESP_CHUNK * DELTA_ROWS]; /* decayed u of the tile's rows */
    const float whole = n ? delta_decays(d, n - 1, decay) : 1;

    for (size_t c = 0; c < d->dv; c += DELTA_ROWS) {
        for (size_t j = 0; j < n; j++) {
            for (size_t a = 0; a < DELTA_ROWS; a++)
                cu[j * DELTA_ROWS + a] = decay[j] * d->u[j * d->ld_u + c + a];
        }
        for (size_t i = 0; i < d->dk; i += DELTA_VECTORS * VW)
            delta_fold_tile(d, cu, n, c, i, whole, s_out);
    }
}

static void delta_init(struct esp_kernels *k)
{
    k->delta_rows = delta_rows;
    k->delta_fold = delta_fold;
}

#endif
