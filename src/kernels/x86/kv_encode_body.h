/*
 * Coding keys and values a vector at a time, to the bytes of the scalar encoder (formats/kv.h). What is
 * decided by element (divisions, roundings, comparisons with a codebook's edges, butterflies of the rotation)
 * is the same arithmetic in vectors; what is decided by group is left to the functions of formats/; sums,
 * whose order is part of the bytes, are added in that order, several groups side by side. Groups out of the
 * ordinary (numbers that need repair, ranges that end in a zero, scales that need a second fit) go to the
 * scalar encoder as they are.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_KV_ENCODE_BODY_H
#define ESP_KERNELS_X86_KV_ENCODE_BODY_H

#include <math.h>
#include <string.h>

#include "formats/affine.h"
#include "formats/turboquant.h"
#include "kernels/kernels.h"

enum { GROUP = ESP_KV_GROUP };

/* ---- packing ---- */

/* n codes, a multiple of 8, one a byte, to the bit stream: eight at a time by halving steps. */
static void kv_pack(uint32_t bits, const uint8_t *codes, size_t n, uint8_t *out)
{
    if (bits == 8) {
        memcpy(out, codes, n);
        return;
    }
    for (size_t i = 0; i < n; i += 8, out += bits) {
        uint64_t v;

        memcpy(&v, codes + i, sizeof v);
        v = (v & 0x00ff00ff00ff00ff) | (v & 0xff00ff00ff00ff00) >> (8 - bits);
        v = (v & 0x0000ffff0000ffff) | (v & 0xffff0000ffff0000) >> (16 - 2 * bits);
        v = (v & 0x00000000ffffffff) | (v & 0xffffffff00000000) >> (32 - 4 * bits);
        for (uint32_t b = 0; b < bits; b++)
            out[b] = (uint8_t)(v >> 8 * b);
    }
}

static void kv_store16(uint8_t *plane, size_t i, uint16_t v)
{
    memcpy(plane + 2 * i, &v, 2);
}

/* ---- ranges ---- */

static void kv_range(const float *x, uint32_t n, float *min, float *max)
{
    vf lo = vf_load(x), hi = lo;

    for (uint32_t i = VW; i < n; i += VW) {
        lo = vf_min(vf_load(x + i), lo);
        hi = vf_max(vf_load(x + i), hi);
    }
    *max = vf_hmax(hi);
    *min = -vf_hmax(vf_sub(vf_zero(), lo));
}

/* Whether every number is one that needs no repair. */
static bool kv_plain(const float *x, uint32_t d)
{
    const vf most = vf_set1(65504);
    uint32_t good = ~0u;

    for (uint32_t i = 0; i < d; i += VW)
        good &= vm_bits(vf_ge(most, vf_abs(vf_load(x + i)))); /* false for NaN */
    return (good & ((1u << VW) - 1)) == (1u << VW) - 1;
}

/* ---- keys ---- */

static void kv_key_group(const float *x, uint32_t bits, uint8_t *codes, uint16_t *scale, uint16_t *zero)
{
    struct esp_turbo_key_plan p;
    float min, max;

    kv_range(x, GROUP, &min, &max);
    if (!esp_turbo_key_plan(min, max, bits, &p)) {
        struct esp_turbo_group g;

        esp_turbo_key_group(x, bits, &g);
        memcpy(codes, g.codes, GROUP);
        *scale = g.scale;
        *zero = g.zero;
        return;
    }
    for (uint32_t i = 0; i < GROUP; i += VW) {
        const vf q = vf_round(vf_sub(vf_div(vf_load(x + i), vf_set1(p.step)), vf_set1(p.zero)));
        const vf c = vf_max(vf_min(q, vf_set1(p.hi)), vf_set1(p.lo));

        kv_store_bytes(codes + i, vi_from_f(c));
    }
    *scale = p.scale16;
    *zero = p.zero16;
}

/* ---- affine ---- */

static void kv_affine_group(const float *x, uint32_t n, uint32_t bits, uint8_t *codes, uint16_t *scale,
                            uint16_t *bias)
{
    const uint32_t top = (1u << bits) - 1;
    float lo, hi, s, b, step;
    vf worst = vf_zero();

    kv_range(x, n, &lo, &hi);
    esp_affine_step(lo, hi, top, &s, &b);
    *scale = esp_f32_to_bf16(s);
    *bias = esp_f32_to_bf16(b);
    s = esp_bf16_to_f32(*scale);
    b = esp_bf16_to_f32(*bias);
    step = (hi - lo) / (float)top;
    for (uint32_t i = 0; i < n; i += VW) {
        const vf v = vf_load(x + i);
        const vf q = vf_round(vf_div(vf_sub(v, vf_set1(b)), vf_set1(s)));
        const vf c = vf_max(vf_min(q, vf_set1((float)top)), vf_zero());

        worst = vf_max(vf_abs(vf_sub(v, vf_add(vf_mul(vf_set1(s), c), vf_set1(b)))), worst);
        kv_store_bytes(codes + i, vi_from_f(c));
    }
    if (lo == 0 || hi == 0 || !(vf_hmax(worst) <= esp_kv_affine_slack * step))
        esp_kv_affine_group(x, n, bits, codes, scale, bias);
}

static void kv_affine_row(const struct esp_kv_scheme *s, uint32_t bits, uint32_t d, const float *x,
                          uint8_t *row)
{
    const uint32_t n = s->group;
    uint8_t *scales = row + d * bits / 8, *biases = scales + d / n * 2;

    for (uint32_t i = 0; i < d; i += n) {
        uint8_t codes[ESP_AFFINE_GROUP_MAX];
        uint16_t scale, bias;

        kv_affine_group(x + i, n, bits, codes, &scale, &bias);
        kv_pack(bits, codes, n, row + i * bits / 8);
        kv_store16(scales, i / n, scale);
        kv_store16(biases, i / n, bias);
    }
}

/* ---- values ---- */

/* Butterflies inside a vector: each lane takes its partner's number plus or minus its own. */
V_INLINE vf kv_mix(vf v, const int32_t *partner, const float *sign)
{
    return vf_add(kv_lanes_at(v, partner), vf_mul(v, vf_load(sign)));
}

static void kv_rotate(float *x, uint32_t d)
{
    enum { STEPS = VW == 8 ? 3 : 4 }; /* inside a vector: log2 of VW */
    const uint32_t *signs = esp_turbo_signs(d);
    const vf scale = vf_set1((float)(1 / sqrt((double)d)));
    int32_t partner[STEPS][VW];
    float sign[STEPS][VW];

    for (int k = 0; k < STEPS; k++)
        for (int i = 0; i < VW; i++) {
            partner[k][i] = i ^ 1 << k;
            sign[k][i] = i >> k & 1 ? -1 : 1;
        }
    for (uint32_t i = 0; i < d; i += VW) {
        vf v = kv_flip(vf_load(x + i), signs[i / 32] >> i % 32);

        V_UNROLL
        for (int k = 0; k < STEPS; k++)
            v = kv_mix(v, partner[k], sign[k]);
        vf_store(x + i, v);
    }
    for (uint32_t h = VW; h < d; h *= 2) {
        for (uint32_t i = 0; i < d; i += 2 * h) {
            for (uint32_t j = i; j < i + h; j += VW) {
                const vf a = vf_load(x + j), b = vf_load(x + j + h);

                vf_store(x + j, vf_add(a, b));
                vf_store(x + j + h, vf_sub(a, b));
            }
        }
    }
    for (uint32_t i = 0; i < d; i += VW)
        vf_store(x + i, vf_mul(vf_load(x + i), scale));
}

/* Sums of n_group groups, each in ascending order; four at a time, for one alone would wait for itself. */
static void kv_ordered_sums(const float *x, uint32_t n_group, float *sum)
{
    uint32_t g = 0;

    for (; g + 4 <= n_group; g += 4) {
        const float *p = x + g * GROUP;
        float a = 0, b = 0, c = 0, e = 0;

        for (uint32_t i = 0; i < GROUP; i++) {
            a += p[i];
            b += p[i + GROUP];
            c += p[i + 2 * GROUP];
            e += p[i + 3 * GROUP];
        }
        sum[g] = a;
        sum[g + 1] = b;
        sum[g + 2] = c;
        sum[g + 3] = e;
    }
    for (; g < n_group; g++) {
        sum[g] = 0;
        for (uint32_t i = 0; i < GROUP; i++)
            sum[g] += x[g * GROUP + i];
    }
}

/* Number of edges below each lane of x. */
V_INLINE vi kv_code(const float *edges, uint32_t bits, vf x)
{
    const bool small = (1u << bits) <= VW; /* edges of a vector */
    const vf table = small ? vf_load_n(edges, (1u << bits) - 1) : vf_zero();
    vi at = vi_zero();

    for (int32_t half = 1 << (bits - 1); half; half /= 2) {
        const vi i = vi_add(at, vi_set1(half - 1));
        const vf e = small ? vf_lanes(table, i) : kv_gather(edges, i);

        at = vi_select(vf_gt(x, e), vi_add(at, vi_set1(half)), at);
    }
    return at;
}

/* Scales by least squares: sum of y * level over sum of level^2, or 0. */
static void kv_least(const struct esp_turbo_codebook *b, const float *y, const uint8_t *codes, uint32_t d,
                     float *scale)
{
    float cross[ESP_KV_HEAD_MAX], power[ESP_KV_HEAD_MAX], sum[ESP_KV_HEAD_MAX / GROUP];

    for (uint32_t i = 0; i < d; i++) {
        const float level = b->levels[codes[i]];

        cross[i] = y[i] * level;
        power[i] = level * level;
    }
    kv_ordered_sums(cross, d / GROUP, scale);
    kv_ordered_sums(power, d / GROUP, sum);
    for (uint32_t g = 0; g < d / GROUP; g++)
        scale[g] = scale[g] > 0 ? scale[g] / sum[g] : 0;
}

static void kv_value_row(const struct esp_kv_scheme *s, uint32_t d, const float *x, uint8_t *row)
{
    const struct esp_turbo_codebook *b = esp_turbo_codebook_of(s);
    float y[ESP_KV_HEAD_MAX], t[ESP_KV_HEAD_MAX], scale[ESP_KV_HEAD_MAX / GROUP];
    uint8_t codes[ESP_KV_HEAD_MAX], *scales = row + d * s->v_bits / 8;

    memcpy(y, x, d * sizeof *y);
    if (d == 96)
        esp_turbo_rotate(y, d); /* 12 rows: not worth vectors */
    else
        kv_rotate(y, d);
    for (uint32_t i = 0; i < d; i += VW)
        vf_store(t + i, vf_mul(vf_load(y + i), vf_load(y + i)));
    kv_ordered_sums(t, d / GROUP, scale);
    for (uint32_t g = 0; g < d / GROUP; g++) {
        vf by;

        scale[g] = esp_turbo_value_rms(scale[g]);
        by = vf_set1(esp_turbo_value_step(scale[g]));
        for (uint32_t i = g * GROUP; i < (g + 1) * GROUP; i += VW)
            kv_store_bytes(codes + i, kv_code(b->edges, s->v_bits, vf_div(vf_load(y + i), by)));
    }
    if (s->tune != ESP_KV_TUNE_NONE)
        kv_least(b, y, codes, d, scale);
    for (uint32_t g = 0; g < d / GROUP; g++)
        kv_store16(scales, g, esp_turbo_value_scale(scale[g]));
    kv_pack(s->v_bits, codes, d, row);
}

/* ---- rows ---- */

static uint32_t kv_encode_key(const struct esp_kv_scheme *s, uint32_t d, const float *x, uint8_t *row)
{
    uint8_t *scales = row + d * s->k_bits / 8, *zeros = scales + d / GROUP * 2;

    if (!esp_kv_coded(s) || !kv_plain(x, d))
        return esp_kv_encode_key(s, d, x, row);
    if (s->kind == ESP_KV_KIND_AFFINE) {
        kv_affine_row(s, s->k_bits, d, x, row);
        return 0;
    }
    for (uint32_t i = 0; i < d; i += GROUP) {
        uint8_t codes[GROUP];
        uint16_t scale, zero;

        kv_key_group(x + i, s->k_bits, codes, &scale, &zero);
        kv_pack(s->k_bits, codes, GROUP, row + i * s->k_bits / 8);
        kv_store16(scales, i / GROUP, scale);
        kv_store16(zeros, i / GROUP, zero);
    }
    return 0;
}

static uint32_t kv_encode_value(const struct esp_kv_scheme *s, uint32_t d, const float *x, uint8_t *row)
{
    if (!esp_kv_coded(s) || !kv_plain(x, d))
        return esp_kv_encode_value(s, d, x, row);
    if (s->kind == ESP_KV_KIND_AFFINE)
        kv_affine_row(s, s->v_bits, d, x, row);
    else
        kv_value_row(s, d, x, row);
    return 0;
}

#endif
