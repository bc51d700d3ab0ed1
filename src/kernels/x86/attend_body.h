/*
 * Attention of a few queries over one span of cached keys and values. Tiles of up to V_ROWS queries share
 * every row of K and V they read. A query's value sum runs over its own visible positions in ascending order:
 * the positions that all of a tile see in common, then each query's rest, so hidden positions (which may hold
 * anything) never enter.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_ATTEND_BODY_H
#define ESP_KERNELS_X86_ATTEND_BODY_H

#include "kernels/kernels.h"
#include "kernels/x86/dots.h"
#include "kernels/x86/attend_softmax.h"

enum { ATTEND_BLOCK = 16 }; /* positions whose values pass before the next are asked for */

/* Queries of a tile. */
struct attend_tile {
    float *weight; /* [V_ROWS][ESP_SPAN] */
    float *acc;    /* [V_ROWS][ESP_HEAD_MAX] */
};

/* Columns [c, c + n_col vectors): acc += sum over t in [t0, t1) of weight_t * v_t. n_row and n_col are
 * constants. */
V_INLINE void attend_values_block(int type, int n_row, int n_col, const struct esp_attend *a,
                                  const struct attend_tile *tile, uint32_t t0, uint32_t t1, size_t c)
{
    const size_t size = dot_bytes(type);
    const uint8_t *v = (const uint8_t *)a->v + (t0 * a->ld_kv + c) * size;
    /* Columns of rows are no stream to the CPU: while a share of the columns passes, as large a part of the
       rows behind is asked for, in the order of memory. */
    const uint8_t *next = (const uint8_t *)a->v + (t1 * a->ld_kv + c * (t1 - t0)) * size;
    vf acc[V_ROWS * 4];

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int j = 0; j < n_col; j++)
            acc[r * n_col + j] = vf_load(tile->acc + r * ESP_HEAD_MAX + c + j * VW);
    }
    for (uint32_t t = t0; t < t1; t++, v += a->ld_kv * size) {
        vf p[V_ROWS];

        V_UNROLL
        for (int r = 0; r < n_row; r++)
            p[r] = vf_set1(tile->weight[r * ESP_SPAN + t]);
        V_UNROLL
        for (int j = 0; j < n_col; j++) {
            const vf vv = dot_load(v + (size_t)j * VW * size, type);

            if (j * VW * size % 64 == 0) {
                _mm_prefetch((const char *)next, _MM_HINT_T0);
                next += 64;
            }
            V_UNROLL
            for (int r = 0; r < n_row; r++)
                acc[r * n_col + j] = vf_fma(p[r], vv, acc[r * n_col + j]);
        }
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int j = 0; j < n_col; j++)
            vf_store(tile->acc + r * ESP_HEAD_MAX + c + j * VW, acc[r * n_col + j]);
    }
}

V_INLINE void attend_values(int type, int n_row, const struct esp_attend *a, const struct attend_tile *tile,
                            uint32_t t0, uint32_t t1)
{
    const int wide = n_row == 1 ? 8 : 4;

    for (uint32_t end; t0 < t1; t0 = end) {
        size_t c = 0;

        end = t1 - t0 < ATTEND_BLOCK ? t1 : t0 + ATTEND_BLOCK;
        for (; c + (size_t)wide * VW <= a->head_dim; c += (size_t)wide * VW)
            attend_values_block(type, n_row, wide, a, tile, t0, end, c);
        for (; c < a->head_dim; c += VW)
            attend_values_block(type, n_row, 1, a, tile, t0, end, c);
    }
}

V_INLINE void attend_tile(int type, int n_row, const struct esp_attend *a, size_t q0, float *scratch)
{
    const struct attend_tile tile = {scratch, scratch + V_ROWS * ESP_SPAN};
    const uint32_t *n = a->n_visible + q0;
    const float *x[V_ROWS];
    float m[V_ROWS], l[V_ROWS];
    uint32_t high = 0, low = ESP_SPAN;
    struct dots d;

    for (int r = 0; r < n_row; r++) {
        x[r] = a->q + (q0 + (size_t)r) * a->ldq;
        high = n[r] > high ? n[r] : high;
        low = n[r] < low ? n[r] : low;
    }
    if (high == 0)
        return;
    d = (struct dots){
        (const uint8_t *)a->k, a->ld_kv * dot_bytes(type), high, a->head_dim, tile.weight, ESP_SPAN,
    };
    dots_run(type, n_row, &d, x);
    for (int r = 0; r < n_row; r++) {
        m[r] = attend_weights(tile.weight + r * ESP_SPAN, n[r], &l[r]);
        for (size_t c = 0; c < a->head_dim; c += VW)
            vf_store(tile.acc + r * ESP_HEAD_MAX + c, vf_zero());
    }
    if (low > 0)
        attend_values(type, n_row, a, &tile, 0, low);
    for (int r = 0; r < n_row; r++) {
        const struct attend_tile one = {tile.weight + r * ESP_SPAN, tile.acc + r * ESP_HEAD_MAX};
        const size_t q = q0 + (size_t)r;

        if (n[r] == 0)
            continue;
        if (n[r] > low)
            attend_values(type, 1, a, &one, low, n[r]);
        attend_merge(a->m + q, a->l + q, a->acc + q * a->ld_acc, m[r], l[r], one.acc, a->head_dim);
    }
}

V_INLINE void attend_span(int type, const struct esp_attend *a, float *scratch)
{
    for (size_t q = 0; q < a->n_query; q += V_ROWS) {
        switch (a->n_query - q) {
        case 1:
            attend_tile(type, 1, a, q, scratch);
            break;
        case 2:
            attend_tile(type, 2, a, q, scratch);
            break;
#if V_ROWS > 3
        case 3:
            attend_tile(type, 3, a, q, scratch);
            break;
        case 4:
            attend_tile(type, 4, a, q, scratch);
            break;
        case 5:
            attend_tile(type, 5, a, q, scratch);
            break;
#endif
        default:
            attend_tile(type, V_ROWS, a, q, scratch);
            break;
        }
    }
}

static void attend_f32(const struct esp_attend *a, float *scratch)
{
    attend_span(ESP_FORMAT_F32, a, scratch);
}

static void attend_bf16(const struct esp_attend *a, float *scratch)
{
    attend_span(ESP_FORMAT_BF16, a, scratch);
}

static void attend_init(struct esp_kernels *k)
{
    k->attend[ESP_KV_F32] = attend_f32;
    k->attend[ESP_KV_BF16] = attend_bf16;
    k->attend_merge = attend_merge;
}

#endif
