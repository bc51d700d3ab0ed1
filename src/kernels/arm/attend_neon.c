/*
 * Attention over one span of cached positions: f32, bf16 and coded rows. A row of keys or values becomes
 * floats once for a tile of up to four queries, in a buffer of one row that stays in the first cache; nothing
 * else of the cache is ever decoded. A query's own sums run in an order of its own (a score: four vectors of
 * partial sums over ascending elements, then one tree; values: ascending positions), so they do not depend on
 * the queries beside it.
 *
 * SPDX-License-Identifier: MIT
 */
#include <math.h>

#include "formats/format.h"
#include "formats/turboquant.h"
#include "kernels/arm/exp.h"
#include "kernels/arm/parts.h"

enum { TILE = 4, UNIT = ESP_KV_GROUP };

/* ---- codes to floats ---- */

struct spread {    /* where eight codes of a width below 8 lie in their bytes */
    uint8x16_t at; /* the two bytes that a code may touch */
    int16x8_t down;
    uint16x8_t mask;
};

N_INLINE struct spread spread_make(int bits)
{
    uint8_t at[16];
    int16_t down[8];

    for (int i = 0; i < 8; i++) {
        const int bit = i * bits, next = bit / 8 + 1;

        at[2 * i] = (uint8_t)(bit / 8);
        at[2 * i + 1] = (uint8_t)(next < bits ? next : 255); /* 255: zero, behind the last of the eight */
        down[i] = (int16_t) - (bit % 8);
    }
    return (struct spread){vld1q_u8(at), vld1q_s16(down), vdupq_n_u16((uint16_t)((1 << bits) - 1))};
}

/* Eight codes at p; bits is a constant. Reads up to 3 bytes behind them, which are scales. */
N_INLINE uint16x8_t codes8(int bits, const uint8_t *p, const struct spread *s)
{
    uint8x16_t raw;

    if (bits <= 4) {
        uint32_t v;

        memcpy(&v, p, sizeof v);
        raw = vreinterpretq_u8_u32(vdupq_n_u32(v));
    } else {
        uint64_t v;

        memcpy(&v, p, sizeof v);
        raw = vreinterpretq_u8_u64(vdupq_n_u64(v));
    }
    return vandq_u16(vshlq_u16(vreinterpretq_u16_u8(vqtbl1q_u8(raw, s->at)), s->down), s->mask);
}

N_INLINE struct f8 f8_from_u16(uint16x8_t v)
{
    return (struct f8){vcvtq_f32_u32(vmovl_u16(vget_low_u16(v))), vcvtq_f32_u32(vmovl_high_u16(v))};
}

/* Eight unsigned codes as floats; bits is a constant, 8 among them. */
N_INLINE struct f8 unsigned8(int bits, const uint8_t *p, const struct spread *s)
{
    return f8_from_u16(bits == 8 ? vmovl_u8(vld1_u8(p)) : codes8(bits, p, s));
}

static float half_at(const uint8_t *p, size_t i, bool f16)
{
    uint16_t h;

    memcpy(&h, p + 2 * i, sizeof h);
    return f16 ? vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0) : esp_bf16_to_f32(h);
}

/* An affine row: scale * code + bias a group. */
N_INLINE void affine_row(int bits, const struct esp_attend *a, const uint8_t *row, float *out)
{
    const uint32_t d = a->head_dim, group = a->scheme->group;
    const uint8_t *scales = row + d * (uint32_t)bits / 8, *biases = scales + d / group * 2;
    const struct spread s = spread_make(bits == 8 ? 6 : bits);

    for (uint32_t i = 0; i < d; i += 8) {
        const float32x4_t by = vdupq_n_f32(half_at(scales, i / group, false));
        const float32x4_t plus = vdupq_n_f32(half_at(biases, i / group, false));
        const struct f8 c = unsigned8(bits, row + i * (uint32_t)bits / 8, &s);

        f8_store(out + i, f8_fma((struct f8){plus, plus}, c, (struct f8){by, by}));
    }
}

/* A row of turbo keys: (code + zero) * scale. */
N_INLINE void turbo_key(int bits, const struct esp_attend *a, const uint8_t *row, float *out)
{
    const uint32_t d = a->head_dim;
    const uint8_t *scales = row + d * (uint32_t)bits / 8, *zeros = scales + d / UNIT * 2;
    const struct spread s = spread_make(bits == 8 ? 6 : bits);

    for (uint32_t i = 0; i < d; i += 8) {
        const float32x4_t by = vdupq_n_f32(half_at(scales, i / UNIT, true));
        const float32x4_t zero = vdupq_n_f32(half_at(zeros, i / UNIT, true));
        const uint8_t *p = row + i * (uint32_t)bits / 8;
        struct f8 c;

        if (bits == 8) {
            const int16x8_t w = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));

            c = (struct f8){vcvtq_f32_s32(vmovl_s16(vget_low_s16(w))), vcvtq_f32_s32(vmovl_high_s16(w))};
        } else {
            c = f8_from_u16(codes8(bits, p, &s));
        }
        f8_store(out + i,
                 (struct f8){vmulq_f32(vaddq_f32(c.lo, zero), by), vmulq_f32(vaddq_f32(c.hi, zero), by)});
    }
}

/* Levels of up to 4 bits, as the bytes that a table look-up takes. */
N_INLINE uint8x16x4_t levels_make(const float *levels, int bits)
{
    float t[16];
    uint8x16x4_t v;

    for (int i = 0; i < 16; i++)
        t[i] = levels[i & ((1 << bits) - 1)];
    for (int i = 0; i < 4; i++)
        v.val[i] = vreinterpretq_u8_f32(vld1q_f32(t + 4 * i));
    return v;
}

N_INLINE float32x4_t level4(uint8x16x4_t levels, uint32x4_t code)
{
    const uint32x4_t at = vmlaq_n_u32(vdupq_n_u32(0x03020100), code, 0x04040404);

    return vreinterpretq_f32_u8(vqtbl4q_u8(levels, vreinterpretq_u8_u32(at)));
}

/* A row of turbo values: level[code] * scale. */
N_INLINE void turbo_value(int bits, const struct esp_attend *a, const uint8_t *row, float *out)
{
    const uint32_t d = a->head_dim;
    const uint8_t *scales = row + d * (uint32_t)bits / 8;
    const float *levels = esp_turbo_codebook_of(a->scheme)->levels;
    const struct spread s = spread_make(bits == 8 ? 6 : bits);
    const uint8x16x4_t table = levels_make(levels, bits <= 4 ? bits : 4);

    for (uint32_t i = 0; i < d; i += 8) {
        const float32x4_t by = vdupq_n_f32(half_at(scales, i / UNIT, true));
        const uint8_t *p = row + i * (uint32_t)bits / 8;
        struct f8 v;

        if (bits <= 4) {
            const uint16x8_t c = codes8(bits, p, &s);

            v = (struct f8){level4(table, vmovl_u16(vget_low_u16(c))), level4(table, vmovl_high_u16(c))};
        } else {
            uint16_t c[8];
            float t[8];

            vst1q_u16(c, bits == 8 ? vmovl_u8(vld1_u8(p)) : codes8(bits, p, &s));
            for (int j = 0; j < 8; j++)
                t[j] = levels[c[j]];
            v = f8_load(t);
        }
        f8_store(out + i, (struct f8){vmulq_f32(v.lo, by), vmulq_f32(v.hi, by)});
    }
}

static void affine_any(uint32_t bits, const struct esp_attend *a, const uint8_t *row, float *out)
{
    if (bits == 4)
        affine_row(4, a, row, out);
    else if (bits == 6)
        affine_row(6, a, row, out);
    else
        affine_row(8, a, row, out);
}

static void key_row(const struct esp_attend *a, const uint8_t *row, float *out)
{
    if (a->scheme->kind == ESP_KV_KIND_AFFINE)
        affine_any(a->scheme->k_bits, a, row, out);
    else if (a->scheme->k_bits == 8)
        turbo_key(8, a, row, out);
    else if (a->scheme->k_bits == 5)
        turbo_key(5, a, row, out);
    else if (a->scheme->k_bits == 4)
        turbo_key(4, a, row, out);
    else
        turbo_key(2, a, row, out);
}

static void value_row(const struct esp_attend *a, const uint8_t *row, float *out)
{
    if (a->scheme->kind == ESP_KV_KIND_AFFINE)
        affine_any(a->scheme->v_bits, a, row, out);
    else if (a->scheme->v_bits == 8)
        turbo_value(8, a, row, out);
    else if (a->scheme->v_bits == 5)
        turbo_value(5, a, row, out);
    else if (a->scheme->v_bits == 4)
        turbo_value(4, a, row, out);
    else if (a->scheme->v_bits == 3)
        turbo_value(3, a, row, out);
    else
        turbo_value(2, a, row, out);
}

/* Row t of keys (which 0) or values as floats: in place, or in buf. */
static const float *row_at(enum esp_kv type, uint32_t which, const struct esp_attend *a, size_t t, float *buf)
{
    const void *base = which ? a->v : a->k;
    const uint16_t *half;

    if (type == ESP_KV_F32)
        return (const float *)base + t * a->ld_kv;
    if (type == ESP_KV_CODED) {
        if (which)
            value_row(a, (const uint8_t *)base + t * esp_kv_value_bytes(a->scheme, a->head_dim), buf);
        else
            key_row(a, (const uint8_t *)base + t * esp_kv_key_bytes(a->scheme, a->head_dim), buf);
        return buf;
    }
    half = (const uint16_t *)base + t * a->ld_kv;
    for (size_t i = 0; i < a->head_dim; i += 8)
        f8_store(buf + i, f8_from_bf16(half + i));
    return buf;
}

/* ---- attention ---- */

static float exp1(float x)
{
    return vgetq_lane_f32(exp4(vdupq_n_f32(x)), 0);
}

static void attend_merge(float *m, float *l, float *acc, float m2, float l2, const float *acc2, size_t n)
{
    float top, keep, take;
    size_t i = 0;

    if (l2 == 0)
        return; /* empty partial: its m2 is -inf and would give inf - inf */
    top = m2 > *m ? m2 : *m;
    keep = exp1(*m - top); /* 0 before the first span */
    take = exp1(m2 - top);
    *m = top;
    *l = *l * keep + l2 * take;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(acc + i, vfmaq_n_f32(vmulq_n_f32(vld1q_f32(acc + i), keep), vld1q_f32(acc2 + i), take));
    for (; i < n; i++)
        acc[i] = fmaf(acc2[i], take, acc[i] * keep);
}

/* Scores of n positions to weights in place; returns their maximum, and the weights' sum in *l. */
static float weights(float *score, uint32_t n, float *l)
{
    float32x4_t top = vdupq_n_f32(-INFINITY), sum = vdupq_n_f32(0);
    float m;

    for (uint32_t t = n; t % 4; t++)
        score[t] = -INFINITY; /* weight 0; a row has ESP_SPAN floats */
    for (uint32_t t = 0; t < n; t += 4)
        top = vmaxnmq_f32(vld1q_f32(score + t), top); /* NaN never becomes the maximum, but reaches the sum */
    m = vmaxnmvq_f32(top);
    for (uint32_t t = 0; t < n; t += 4) {
        const float32x4_t p = exp4(vsubq_f32(vld1q_f32(score + t), vdupq_n_f32(m)));

        vst1q_f32(score + t, p);
        sum = vaddq_f32(sum, p);
    }
    *l = vaddvq_f32(sum);
    return m;
}

/* Scores of one row of keys with n_row queries, a constant. */
N_INLINE void score_row(int n_row, const float *const *q, const float *k, uint32_t d, float *score)
{
    struct f8 even[TILE], odd[TILE];

    N_UNROLL
    for (int r = 0; r < n_row; r++)
        even[r] = odd[r] = f8_zero();
    for (uint32_t i = 0; i < d; i += 16) {
        const struct f8 a = f8_load(k + i), b = f8_load(k + i + 8);

        N_UNROLL
        for (int r = 0; r < n_row; r++) {
            even[r] = f8_fma(even[r], a, f8_load(q[r] + i));
            odd[r] = f8_fma(odd[r], b, f8_load(q[r] + i + 8));
        }
    }
    N_UNROLL
    for (int r = 0; r < n_row; r++)
        score[r * ESP_SPAN] =
            f8_sum((struct f8){vaddq_f32(even[r].lo, odd[r].lo), vaddq_f32(even[r].hi, odd[r].hi)});
}

static void score_any(uint32_t n_row, const float *const *q, const float *k, uint32_t d, float *score)
{
    switch (n_row) {
    case 1:
        score_row(1, q, k, d, score);
        break;
    case 2:
        score_row(2, q, k, d, score);
        break;
    case 3:
        score_row(3, q, k, d, score);
        break;
    default:
        score_row(4, q, k, d, score);
        break;
    }
}

N_INLINE void add_row(float *acc, float w, const float *v, uint32_t d)
{
    for (uint32_t i = 0; i < d; i += 8) {
        const struct f8 x = f8_load(v + i), a = f8_load(acc + i);

        f8_store(acc + i, (struct f8){vfmaq_n_f32(a.lo, x.lo, w), vfmaq_n_f32(a.hi, x.hi, w)});
    }
}

/* Queries [q0, q0 + n_row). */
static void attend_tile(enum esp_kv type, const struct esp_attend *a, size_t q0, uint32_t n_row,
                        float *scratch)
{
    float *score = scratch, *acc = score + TILE * ESP_SPAN, *buf = acc + TILE * ESP_HEAD_MAX;
    const uint32_t d = a->head_dim, *n = a->n_visible + q0;
    const float *q[TILE] = {NULL};
    float m[TILE], l[TILE];
    uint32_t high = 0;

    for (uint32_t r = 0; r < n_row; r++) {
        q[r] = a->q + (q0 + r) * a->ldq;
        high = n[r] > high ? n[r] : high;
    }
    for (uint32_t t = 0; t < high; t++) /* a query's scores behind its own positions are never looked at */
        score_any(n_row, q, row_at(type, 0, a, t, buf), d, score + t);
    for (uint32_t r = 0; r < n_row; r++) {
        m[r] = weights(score + r * ESP_SPAN, n[r], &l[r]);
        memset(acc + r * ESP_HEAD_MAX, 0, d * sizeof *acc);
    }
    for (uint32_t t = 0; t < high; t++) {
        const float *v = row_at(type, 1, a, t, buf);

        for (uint32_t r = 0; r < n_row; r++)
            if (t < n[r])
                add_row(acc + r * ESP_HEAD_MAX, score[r * ESP_SPAN + t], v, d);
    }
    for (uint32_t r = 0; r < n_row; r++)
        if (n[r])
            attend_merge(a->m + q0 + r, a->l + q0 + r, a->acc + (q0 + r) * a->ld_acc, m[r], l[r],
                         acc + r * ESP_HEAD_MAX, d);
}

static void attend(enum esp_kv type, const struct esp_attend *a, float *scratch)
{
    for (size_t q = 0; q < a->n_query; q += TILE)
        attend_tile(type, a, q, a->n_query - q < TILE ? (uint32_t)(a->n_query - q) : TILE, scratch);
}

static void attend_f32(const struct esp_attend *a, float *scratch)
{
    attend(ESP_KV_F32, a, scratch);
}

static void attend_bf16(const struct esp_attend *a, float *scratch)
{
    attend(ESP_KV_BF16, a, scratch);
}

static void attend_codes(const struct esp_attend *a, float *scratch)
{
    attend(ESP_KV_CODED, a, scratch);
}

void esp_attend_init_neon(struct esp_kernels *k)
{
    k->attend[ESP_KV_F32] = attend_f32;
    k->attend[ESP_KV_BF16] = attend_bf16;
    k->attend_codes = attend_codes;
    k->attend_merge = attend_merge;
}
