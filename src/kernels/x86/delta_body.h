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

/* Weights of the rows before one row: decayed products of its key and its query with theirs. */
struct delta_weights {
    float k[ESP_CHUNK], q[ESP_CHUNK];
    float whole; /* exp of all log decays up to the row */
};

/* Columns c .. of n_col vectors of row r; n_col is a constant, several vectors cover the latency of
 * multiply-add. */
V_INLINE void delta_columns(const struct esp_delta *d, size_t r, const struct delta_products *p,
                            const struct delta_weights *w, size_t c, int n_col)
{
    const size_t i = d->row0 + r;
    const vf beta = vf_set1(d->beta[r * d->ld_beta]), whole = vf_set1(w->whole), wq = vf_set1(w->q[i]);
    const float *v = d->v + r * d->ld_v + c;
    float *u = d->u + i * d->ld_u + c, *o = d->o + r * d->ld_o + c;
    vf su[DELTA_VECTORS], so[DELTA_VECTORS];

    V_UNROLL
    for (int x = 0; x < n_col; x++) {
        su[x] = vf_zero();
        so[x] = vf_zero();
    }
    for (size_t j = 0; j < i; j++) {
        const float *uj = d->u + j * d->ld_u + c;
        const vf a = vf_set1(w->k[j]), b = vf_set1(w->q[j]);

        V_UNROLL
        for (int x = 0; x < n_col; x++) {
            const vf ujx = vf_load(uj + x * VW);

            su[x] = vf_fma(a, ujx, su[x]);
            so[x] = vf_fma(b, ujx, so[x]);
        }
    }
    V_UNROLL
    for (int x = 0; x < n_col; x++) {
        const vf left = vf_fnma(whole, vf_load(p->sk + c + x * VW), vf_load(v + x * VW));
        const vf ui = vf_mul(beta, vf_sub(left, su[x]));
        const vf sum = vf_fma(wq, ui, so[x]);

        vf_store(u + x * VW, ui);
        vf_store(o + x * VW, vf_fma(whole, vf_load(p->sq + c + x * VW), sum));
    }
}

static void delta_solve(const struct esp_delta *d, size_t r, const struct delta_products *p)
{
    const size_t i = d->row0 + r;
    struct delta_weights w;
    float decay[ESP_CHUNK];
    size_t c = 0;

    w.whole = delta_decays(d, i, decay);
    for (size_t j = 0; j <= i; j += VW) {
        const size_t n = i + 1 - j;

        vf_store(w.k + j, vf_mul(vf_load(decay + j), vf_load_n(p->kk + j, n)));
        vf_store(w.q + j, vf_mul(vf_load(decay + j), vf_load_n(p->qk + j, n)));
    }
    for (; c + DELTA_VECTORS * VW <= d->dv; c += DELTA_VECTORS * VW)
        delta_columns(d, r, p, &w, c, DELTA_VECTORS);
    for (; c < d->dv; c += VW)
        delta_columns(d, r, p, &w, c, 1);
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
