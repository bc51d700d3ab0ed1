/*
 * What the kernels of attention over coded keys and values share: the rows of a span and their scales, and
 * the lines that are asked for ahead of use. Included by attend_kv_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_ATTEND_KV_SIDE_H
#define ESP_KERNELS_X86_ATTEND_KV_SIDE_H

#include "kernels/kernels.h"

enum {
    KV_FOUR = 4,                                   /* query heads of most models' KV heads */
    KV_ROWS = V_ROWS > KV_FOUR ? V_ROWS : KV_FOUR, /* queries of a tile, at most */
    KV_BLOCK = 16,                                 /* positions whose key scales become floats together */
    KV_VALUES = 64, /* positions whose values and their scales stay in the first cache while columns pass */
    KV_SCALES = KV_VALUES * (ESP_KV_HEAD_MAX / ESP_KV_GROUP) + 16 /* floats of a block's scales, and slack */
};

/* Coded keys or values of a span. */
struct kv_side {
    const uint8_t *rows;
    size_t row_bytes;
    size_t code_bytes;    /* of a row; scales follow, then biases */
    uint32_t dim, n_unit; /* units of ESP_KV_GROUP elements */
    uint32_t n_group;     /* of the scheme, each of one unit or more */
    bool f16;             /* scales; else bf16 */
    float *scale, *bias;  /* [positions of a block][n_unit] f32; bias NULL: none */
    const float *levels;  /* of codes, where these are looked up */
};
enum { KV_UNIT = ESP_KV_GROUP / VW, KV_COLS = 4 }; /* vectors of a unit, and at most of a block of columns */

struct kv_tile {
    float *weight; /* [KV_ROWS][ESP_SPAN] */
    float *acc;    /* [KV_ROWS][ESP_HEAD_MAX] */
};

V_INLINE vf kv_half(const uint8_t *p, size_t n, bool f16)
{
    const uint16_t *h = (const uint16_t *)(const void *)p;

    if (n >= VW)
        return f16 ? vf_from_f16(h) : vf_from_bf16(h);
    return f16 ? vf_from_f16_n(h, n) : vf_from_bf16_n(h, n);
}

/* Lane i of a vector of units from u on has the scale of group (u + i) / per; halves are read from p. */
V_INLINE vf kv_spread(const uint8_t *p, uint32_t n_group, uint32_t per, uint32_t u, bool f16)
{
    const uint32_t first = u / per, left = n_group - first;
    const vf x = kv_half(p + 2 * first, left, f16);

    return per == 1 ? x : vf_lanes(x, vi_shr_all(vi_ramp(), per == 2 ? 1 : 2)); /* u is a multiple of per */
}

/*
 * Scales and biases of positions [t0, t1) as floats, from the first place on; turbo's bias is scale * zero,
 * which f32 holds exactly. Rows are stored in ascending order, each over the slack of the one before. f16
 * (turbo), biased and whole are constants; whole: a unit is a group, and units fill vectors.
 */
V_INLINE void kv_scales_kind(bool f16, bool biased, bool whole, const struct kv_side *s, uint32_t t0,
                             uint32_t t1)
{
    const uint32_t n_unit = s->n_unit, n_group = whole ? n_unit : s->n_group, per = n_unit / n_group;
    const uint8_t *p = s->rows + t0 * s->row_bytes + s->code_bytes;
    const size_t row_bytes = s->row_bytes;
    float *scale = s->scale, *bias = s->bias;

    for (uint32_t t = t0; t < t1; t++, p += row_bytes, scale += n_unit) {
        for (uint32_t u = 0; u < n_unit; u += VW) {
            const uint8_t *q = p + 2 * (size_t)n_group;
            const vf x = whole ? kv_half(p + 2 * u, VW, f16) : kv_spread(p, n_group, per, u, f16);

            vf_store(scale + u, x);
            if (biased) {
                const vf b = whole ? kv_half(q + 2 * u, VW, f16) : kv_spread(q, n_group, per, u, f16);

                vf_store(bias + u, f16 ? vf_mul(b, x) : b);
            }
        }
        if (biased)
            bias += n_unit;
    }
}

/* The same of turbo's keys where a row's scales and zeros fill one vector. */
static void kv_scales_one(const struct kv_side *s, uint32_t t0, uint32_t t1)
{
    const uint8_t *p = s->rows + t0 * s->row_bytes + s->code_bytes;
    const vi zeros = vi_add(vi_ramp(), vi_set1(VW / 2));
    float *scale = s->scale, *bias = s->bias;

    for (uint32_t t = t0; t < t1; t++, p += s->row_bytes, scale += VW / 2, bias += VW / 2) {
        const vf x = kv_half(p, VW, true);

        vf_store(scale, x);
        vf_store(bias, vf_mul(vf_lanes(x, zeros), x));
    }
}

static void kv_scales(const struct kv_side *s, uint32_t t0, uint32_t t1)
{
    const bool whole = s->n_unit == s->n_group && s->n_unit % VW == 0;

    if (!s->f16)
        kv_scales_kind(false, true, false, s, t0, t1);
    else if (s->bias && s->n_unit == VW / 2)
        kv_scales_one(s, t0, t1);
    else if (s->bias && whole)
        kv_scales_kind(true, true, true, s, t0, t1);
    else if (s->bias)
        kv_scales_kind(true, true, false, s, t0, t1);
    else if (whole)
        kv_scales_kind(true, false, true, s, t0, t1);
    else
        kv_scales_kind(true, false, false, s, t0, t1);
}

/*
 * Lines to ask for ahead of use, a few at a time and evenly: processors have few places for lines that are
 * under way, and whoever fills them all waits. What memory has to bring of a span, its values and the next
 * keys, is asked for into the second cache in equal parts while keys are multiplied and while values are
 * summed. Asking again for the first cache costs a Xeon more than it gives.
 */
struct kv_far {
    uintptr_t at;
    size_t step; /* bytes to the next line to ask for, at most 64: none is left out */
    bool twice;  /* two of them in one kv_far_go() */
};

/* From `at` on, bytes in n goes. */
V_INLINE struct kv_far kv_far_make(uintptr_t at, size_t bytes, size_t n)
{
    const bool twice = bytes > 64 * n;
    const size_t step = bytes / (twice ? 2 * n : n);

    return (struct kv_far){at, step < 64 ? step : 64, twice};
}

V_INLINE void kv_far_go(struct kv_far *f)
{
    _mm_prefetch((const char *)f->at, _MM_HINT_T1); /* NOLINT(performance-no-int-to-ptr) */
    f->at += f->step;
    if (f->twice) {
        _mm_prefetch((const char *)f->at, _MM_HINT_T1); /* NOLINT(performance-no-int-to-ptr) */
        f->at += f->step;
    }
}

/* Of a position's bytes of the next keys: those asked for while values are summed. */
V_INLINE size_t kv_next_bytes(const struct kv_side *keys, const struct kv_side *values)
{
    const size_t half = (keys->row_bytes + values->row_bytes) / 2;

    return half < keys->row_bytes ? half : keys->row_bytes;
}

/* While the keys of positions from t on are multiplied, KV_BLOCK of them in n goes: the keys not yet there,
 * then values. */
V_INLINE struct kv_far kv_far_values(const struct kv_side *keys, const struct kv_side *values, uint32_t t,
                                     size_t n)
{
    const size_t left = keys->row_bytes - kv_next_bytes(keys, values), each = left + values->row_bytes;
    const size_t done = t * each, keys_left = ESP_SPAN * left;
    const uintptr_t tail = (uintptr_t)keys->rows + ESP_SPAN * keys->row_bytes - keys_left;

    return kv_far_make(done < keys_left ? tail + done : (uintptr_t)values->rows + (done - keys_left),
                       KV_BLOCK * each, n);
}

/* While values of positions from t on are summed, n goes a position: keys of the next span, if there is one.
 */
V_INLINE struct kv_far kv_far_next(const struct kv_side *next, const struct kv_side *values, uint32_t t,
                                   size_t n)
{
    const size_t each = kv_next_bytes(next, values);

    if (!next->rows)
        return (struct kv_far){(uintptr_t)values->rows, 0, false};
    return kv_far_make((uintptr_t)next->rows + t * each, each, n);
}

#endif
