/*
 * Dot products of a few f32 rows with many rows of f32, bf16 or f16: the core of dense products, attention
 * scores and the delta rule. Included after vec_avx2.h or vec_avx512.h.
 *
 * A result is one vector of partial sums, inputs ascending, a short last step padded with zeros, then one
 * fixed tree: its bits depend on its two rows alone. A tile of up to V_ROWS rows by 4 outputs shares every
 * load; the number of rows is a constant in each instance, so that the accumulators are registers.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_DOTS_H
#define ESP_KERNELS_X86_DOTS_H

#include "formats/format.h"

enum {
    DOT_OUTS = 4,     /* outputs of a tile */
    DOT_STEPS = 4,    /* vectors of a row taken without a branch */
    DOT_SHORT = 1024, /* bytes of a short row */
};

struct dots {
    const uint8_t *w; /* [n_out] rows, stride bytes apart, any alignment */
    size_t stride;
    uint32_t n_out;
    size_t n_in;
    float *y; /* [n_row][ldy] */
    size_t ldy;
};

V_INLINE size_t dot_bytes(int type)
{
    return type == ESP_FORMAT_F32 ? 4 : 2;
}

V_INLINE vf dot_load(const uint8_t *p, int type)
{
    if (type == ESP_FORMAT_F32)
        return vf_load((const float *)(const void *)p);
    if (type == ESP_FORMAT_BF16)
        return vf_from_bf16((const uint16_t *)(const void *)p);
    return vf_from_f16((const uint16_t *)(const void *)p);
}

V_INLINE vf dot_load_n(const uint8_t *p, int type, size_t n)
{
    if (type == ESP_FORMAT_F32)
        return vf_load_n((const float *)(const void *)p, n);
    if (type == ESP_FORMAT_BF16)
        return vf_from_bf16_n((const uint16_t *)(const void *)p, n);
    return vf_from_f16_n((const uint16_t *)(const void *)p, n);
}

/* Which lines a tile asks for ahead of use. */
enum dots_ahead {
    AHEAD_NONE,
    AHEAD_EACH, /* beside each output's row, the same place in the next tile */
};

/* Accumulate n_row rows by n_out outputs; these and `ahead` are constants. */
V_INLINE void dots_tile(int type, int n_row, int n_out, const struct dots *d, const float *const *x,
                        const uint8_t *const *w, enum dots_ahead ahead, vf (*acc)[DOT_OUTS])
{
    const size_t size = dot_bytes(type), n_in = d->n_in;
    size_t k = 0;

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int o = 0; o < n_out; o++)
            acc[r][o] = vf_zero();
    }
    for (; k + VW <= n_in; k += VW) {
        vf xv[V_ROWS];

        V_UNROLL
        for (int r = 0; r < n_row; r++)
            xv[r] = vf_load(x[r] + k);
        V_UNROLL
        for (int o = 0; o < n_out; o++) {
            const vf wv = dot_load(w[o] + k * size, type);

            if (ahead == AHEAD_EACH)
                _mm_prefetch((const char *)((uintptr_t)w[o] + DOT_OUTS * d->stride + k * size), _MM_HINT_T0);
            V_UNROLL
            for (int r = 0; r < n_row; r++)
                acc[r][o] = vf_fma(xv[r], wv, acc[r][o]);
        }
    }
    if (k < n_in) {
        V_UNROLL
        for (int o = 0; o < n_out; o++) {
            const vf wv = dot_load_n(w[o] + k * size, type, n_in - k);

            V_UNROLL
            for (int r = 0; r < n_row; r++)
                acc[r][o] = vf_fma(vf_load_n(x[r] + k, n_in - k), wv, acc[r][o]);
        }
    }
}

/*
 * The same sums for short rows of w that lie one behind the other, such as a state's or cached keys: output
 * by output, so that memory is read as it lies and processors see what comes. Four rows of 512 bytes side
 * by side are no stream that they know, and asking for them takes the few buffers of the first cache (Zen
 * 4, a state from memory: 11.6 GB/s side by side, 24.8 in order). The sums of several outputs overlap by
 * themselves.
 */
V_INLINE void dots_in_order(int type, int n_row, const struct dots *d, const float *const *x,
                            const uint8_t *w, vf (*acc)[DOT_OUTS])
{
    const size_t size = dot_bytes(type);

    V_UNROLL
    for (int o = 0; o < DOT_OUTS; o++, w += d->stride) {
        V_UNROLL
        for (int r = 0; r < n_row; r++)
            acc[r][o] = vf_zero();
        for (size_t k = 0; k < d->n_in; k += DOT_STEPS * VW) {
            V_UNROLL
            for (size_t i = 0; i < DOT_STEPS * VW; i += VW) {
                const vf wv = dot_load(w + (k + i) * size, type);

                V_UNROLL
                for (int r = 0; r < n_row; r++)
                    acc[r][o] = vf_fma(vf_load(x[r] + k + i), wv, acc[r][o]);
            }
        }
    }
}

/* Whether the four rows from w on are read in order. */
V_INLINE int dots_short(int type, int n_row, const struct dots *d, const uint8_t *const *w)
{
    return n_row <= 4 && d->stride <= DOT_SHORT && d->stride == d->n_in * dot_bytes(type) &&
           d->n_in % (DOT_STEPS * VW) == 0 && w[3] == w[0] + 3 * d->stride;
}

/* Up to four rows wait for memory, more for arithmetic. */
V_INLINE void dots_four(int type, int n_row, const struct dots *d, const float *const *x,
                        const uint8_t *const *w, __m128 *out)
{
    vf acc[V_ROWS][DOT_OUTS];

    if (dots_short(type, n_row, d, w)) {
        dots_in_order(type, n_row, d, x, w[0], acc);
    } else {
        dots_tile(type, n_row, DOT_OUTS, d, x, w, n_row <= 4 ? AHEAD_EACH : AHEAD_NONE, acc);
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++)
        out[r] = vf_sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
}

/*
 * Long rows of half floats: the four outputs of a tile come from the quarters of the range, which are
 * streams of their own, read as they lie. (Zen 4, one row from memory: 30 to 34 GB/s, against 21 to 30 by
 * neighbours.) The number of outputs done.
 */
V_INLINE uint32_t dots_quarters(int type, int n_row, const struct dots *d, const float *const *x)
{
    const uint32_t quarter = d->n_out / DOT_OUTS;

    for (uint32_t o = 0; o < quarter; o++) {
        const uint8_t *w[DOT_OUTS];
        vf acc[V_ROWS][DOT_OUTS];

        for (uint32_t j = 0; j < DOT_OUTS; j++)
            w[j] = d->w + (o + j * quarter) * d->stride;
        dots_tile(type, n_row, DOT_OUTS, d, x, w, AHEAD_NONE, acc);
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            float sums[DOT_OUTS];

            _mm_storeu_ps(sums, vf_sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]));
            V_UNROLL
            for (uint32_t j = 0; j < DOT_OUTS; j++)
                d->y[(size_t)r * d->ldy + o + j * quarter] = sums[j];
        }
    }
    return quarter * DOT_OUTS;
}

V_INLINE void dots_run(int type, int n_row, const struct dots *d, const float *const *x)
{
    const int far = n_row <= 4 && VW == 16 && dot_bytes(type) == 2 && d->stride > DOT_SHORT;

    for (uint32_t o = far ? dots_quarters(type, n_row, d, x) : 0; o < d->n_out; o += DOT_OUTS) {
        const uint32_t n = d->n_out - o < DOT_OUTS ? d->n_out - o : DOT_OUTS;
        const uint8_t *w[DOT_OUTS];
        __m128 out[V_ROWS];

        for (uint32_t j = 0; j < DOT_OUTS; j++) /* past the end the last row again: computed, not stored */
            w[j] = d->w + (o + (j < n ? j : n - 1)) * d->stride;
        dots_four(type, n_row, d, x, w, out);
        for (int r = 0; r < n_row; r++)
            v_store4(d->y + (size_t)r * d->ldy + o, out[r], n);
    }
}

/* All of d for the rows at x[0 .. n_row), n_row <= V_ROWS. */
V_INLINE void dots_rows(int type, uint32_t n_row, const struct dots *d, const float *const *x)
{
    switch (n_row) {
    case 1:
        dots_run(type, 1, d, x);
        break;
    case 2:
        dots_run(type, 2, d, x);
        break;
    case 3:
        dots_run(type, 3, d, x);
        break;
#if V_ROWS > 3
    case 4:
        dots_run(type, 4, d, x);
        break;
    case 5:
        dots_run(type, 5, d, x);
        break;
    case 6:
        dots_run(type, 6, d, x);
        break;
#endif
    default:
        break;
    }
}

#endif
