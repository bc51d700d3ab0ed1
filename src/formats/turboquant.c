/*
 * TurboQuant, scalar. Bytes equal the published encoder's wherever that one is sane; where it would store
 * infinities, or zeros that f16 cannot hold, the group is fitted again against what will be stored, and the
 * better of the two is kept. All arithmetic is f32, in the order of doc/formats/turboquant.md, with true
 * divisions: the bytes do not depend on the machine.
 *
 * SPDX-License-Identifier: MIT
 */
#include "formats/turboquant.h"

#include <math.h>
#include <string.h>

#include "formats/format.h"

static const float EPS = 1e-8f; /* keeps the step of a constant group from being zero */
static const float F16_MAX = 65504;
static const float SCALE_SANE = 0x1p-14f; /* smallest normal f16: below it a scale loses digits */
static const float ZERO_SANE = 2048;      /* largest zero up to which f16 has every integer */

bool esp_turbo_head(uint32_t d)
{
    return d == 64 || d == 96 || d == 128 || d == 256 || d == 512;
}

bool esp_turbo_key_bits(uint32_t bits)
{
    return bits == 2 || bits == 4 || bits == 5 || bits == 8;
}

bool esp_turbo_value_bits(uint32_t bits)
{
    return bits == 3 || esp_turbo_key_bits(bits);
}

/* ---- rotation ---- */

const uint32_t *esp_turbo_signs(uint32_t d)
{
    switch (d) {
    case 64:
        return esp_turbo_signs64;
    case 96:
        return esp_turbo_signs96;
    case 128:
        return esp_turbo_signs128;
    case 256:
        return esp_turbo_signs256;
    default:
        return esp_turbo_signs512;
    }
}

static void apply_signs(float *x, uint32_t d)
{
    const uint32_t *signs = esp_turbo_signs(d);

    for (uint32_t i = 0; i < d; i++)
        x[i] = signs[i / 32] >> i % 32 & 1 ? -x[i] : x[i];
}

/* Sylvester's matrix of order n, without the factor; sums in stages of distance 1, 2, 4, ... */
static void butterflies(float *restrict x, uint32_t n)
{
    for (uint32_t h = 1; h < n; h *= 2) {
        for (uint32_t i = 0; i < n; i += 2 * h) {
            for (uint32_t j = i; j < i + h; j++) {
                const float a = x[j], b = x[j + h];

                x[j] = a + b;
                x[j + h] = a - b;
            }
        }
    }
}

/* Heads of 96 are 12 rows of 8: the rows by butterflies, then the columns by the matrix of order 12. */
static void mix_twelve(float *x)
{
    for (uint32_t i = 0; i < 8; i++) {
        float in[12];

        for (uint32_t k = 0; k < 12; k++)
            in[k] = x[k * 8 + i];
        for (uint32_t r = 0; r < 12; r++) {
            float sum = 0;

            for (uint32_t k = 0; k < 12; k++)
                sum += esp_turbo_hadamard12[r][k] > 0 ? in[k] : -in[k];
            x[r * 8 + i] = sum;
        }
    }
}

static void hadamard(float *x, uint32_t d)
{
    const float scale = (float)(1 / sqrt((double)d));

    if (d == 96) {
        for (uint32_t r = 0; r < 12; r++)
            butterflies(x + r * 8, 8);
        mix_twelve(x);
    } else {
        butterflies(x, d);
    }
    for (uint32_t i = 0; i < d; i++)
        x[i] *= scale;
}

void esp_turbo_rotate(float *x, uint32_t d)
{
    apply_signs(x, d);
    hadamard(x, d);
}

void esp_turbo_unrotate(float *x, uint32_t d)
{
    hadamard(x, d);
    apply_signs(x, d);
}

/* ---- keys ---- */

struct key_range { /* of the codes of a width, and of a group */
    float lo, hi, span;
    float min, max;
    float step, guarded, zero; /* as the published encoder computes them, not yet rounded to f16 */
};

static struct key_range range_of(float min, float max, uint32_t bits)
{
    struct key_range r = {.lo = -127, .hi = 127, .span = 254, .min = min, .max = max};

    if (bits != 8) {
        r.lo = 0;
        r.hi = r.span = (float)((1u << bits) - 1);
    }
    r.step = (r.max - r.min) / r.span;
    r.guarded = r.step + EPS;
    r.zero = bits == 8 ? rintf((r.max + r.min) / (2 * r.guarded)) : rintf(r.min / r.guarded);
    return r;
}

static struct key_range key_range(const float *x, uint32_t bits)
{
    float min = x[0], max = x[0];

    for (uint32_t i = 1; i < ESP_KV_GROUP; i++) {
        min = x[i] < min ? x[i] : min;
        max = x[i] > max ? x[i] : max;
    }
    return range_of(min, max, bits);
}

static bool sane(const struct key_range *r)
{
    return r->step >= SCALE_SANE && fabsf(r->zero) <= ZERO_SANE;
}

bool esp_turbo_key_plan(float min, float max, uint32_t bits, struct esp_turbo_key_plan *out)
{
    const struct key_range r = range_of(min, max, bits);

    *out = (struct esp_turbo_key_plan){
        r.guarded, r.zero, r.lo, r.hi, esp_f32_to_f16(r.step), esp_f32_to_f16(r.zero)};
    return sane(&r) && min != 0 && max != 0;
}

static uint8_t key_code(float x, const struct key_range *r, float step, float zero)
{
    const float q = rintf(x / step - zero);
    const float c = q > r->lo ? (q < r->hi ? q : r->hi) : r->lo;

    return (uint8_t)(int8_t)(int)c;
}

static void key_codes(const float *x, const struct key_range *r, float step, float zero,
                      struct esp_turbo_group *out)
{
    for (uint32_t i = 0; i < ESP_KV_GROUP; i++)
        out->codes[i] = key_code(x[i], r, step, zero);
}

/* Codes against the unrounded step and zero, as published. */
static void key_published(const float *x, const struct key_range *r, struct esp_turbo_group *out)
{
    key_codes(x, r, r->guarded, r->zero, out);
    out->scale = esp_f32_to_f16(r->step);
    out->zero = esp_f32_to_f16(r->zero);
}

/* Smallest f16 at or above x > 0. */
static uint16_t f16_up(float x)
{
    const uint16_t h = esp_f32_to_f16(x);

    return esp_f16_to_f32(h) < x ? (uint16_t)(h + 1) : h;
}

/* Largest f16 at or below the integer x. */
static uint16_t f16_down(float x)
{
    const uint16_t h = esp_f32_to_f16(x);

    if (!(esp_f16_to_f32(h) > x))
        return h;
    return (uint16_t)(h & 0x8000 ? h + 1 : h - 1);
}

/*
 * Step and zero that f16 holds, then codes against these. A zero of magnitude up to 2046 u is known to u, so
 * u steps of the range are given up for it; the u that asks for the smallest step wins. No code is clipped by
 * more than rounding: |error| <= step / 2.
 */
static void key_refit(const float *x, uint32_t bits, const struct key_range *r, struct esp_turbo_group *out)
{
    const float anchor = bits == 8 ? 0.5f * (r->min + r->max) : r->min, range = r->max - r->min;
    float need = INFINITY, step, zero;

    for (float u = 1; u <= 32 && u < r->span; u *= 2) {
        const float a = range / (r->span - u), b = fabsf(anchor) / (2046 * u), most = a > b ? a : b;

        need = most < need ? most : need;
    }
    out->scale = f16_up(need > 0x1p-24f ? need : 0x1p-24f);
    step = esp_f16_to_f32(out->scale);
    if (bits == 8)
        out->zero = esp_f32_to_f16(rintf(anchor / step));
    else
        out->zero = f16_down(floorf(anchor / step));
    zero = esp_f16_to_f32(out->zero);
    key_codes(x, r, step, zero, out);
}

void esp_turbo_key_values(const struct esp_turbo_group *g, uint32_t bits, float *out)
{
    const float scale = esp_f16_to_f32(g->scale), zero = esp_f16_to_f32(g->zero);

    for (uint32_t i = 0; i < ESP_KV_GROUP; i++) {
        const float code = bits == 8 ? (float)(int8_t)g->codes[i] : (float)g->codes[i];

        out[i] = (code + zero) * scale;
    }
}

/* Largest error of a coded group; infinity when a value is not finite. */
static float key_error(const float *x, uint32_t bits, const struct esp_turbo_group *g)
{
    float y[ESP_KV_GROUP], worst = 0;

    esp_turbo_key_values(g, bits, y);
    for (uint32_t i = 0; i < ESP_KV_GROUP; i++) {
        const float e = fabsf(x[i] - y[i]);

        if (!isfinite(y[i]))
            return INFINITY;
        worst = e > worst ? e : worst;
    }
    return worst;
}

void esp_turbo_key_group(const float *x, uint32_t bits, struct esp_turbo_group *out)
{
    const struct key_range r = key_range(x, bits);
    struct esp_turbo_group refit;

    if (r.min == 0 && r.max == 0) {
        memset(out, 0, sizeof *out);
        return;
    }
    key_published(x, &r, out);
    if (sane(&r))
        return;
    key_refit(x, bits, &r, &refit);
    if (!(key_error(x, bits, out) <= key_error(x, bits, &refit)))
        *out = refit;
}

/* ---- values ---- */

const struct esp_turbo_codebook *esp_turbo_codebook_of(const struct esp_kv_scheme *s)
{
    return s->tune == ESP_KV_TUNE_OWN ? &esp_turbo_own[s->v_bits] : &esp_turbo_published[s->v_bits];
}

uint8_t esp_turbo_code(const struct esp_turbo_codebook *b, uint32_t bits, float x)
{
    uint32_t at = 0;

    for (uint32_t half = 1u << (bits - 1); half; half /= 2)
        at += x > b->edges[at + half - 1] ? half : 0;
    return (uint8_t)at;
}

float esp_turbo_value_rms(float sum)
{
    return sqrtf(sum * (1.0f / ESP_KV_GROUP));
}

float esp_turbo_value_step(float rms)
{
    return rms + EPS;
}

uint16_t esp_turbo_value_scale(float scale)
{
    return esp_f32_to_f16(scale < F16_MAX ? scale : F16_MAX);
}

void esp_turbo_value_group(const float *y, const struct esp_kv_scheme *s, struct esp_turbo_group *out)
{
    const struct esp_turbo_codebook *b = esp_turbo_codebook_of(s);
    float sum = 0, scale, by, cross = 0, power = 0;

    for (uint32_t i = 0; i < ESP_KV_GROUP; i++)
        sum += y[i] * y[i];
    scale = esp_turbo_value_rms(sum);
    by = esp_turbo_value_step(scale);
    for (uint32_t i = 0; i < ESP_KV_GROUP; i++) {
        float level;

        out->codes[i] = esp_turbo_code(b, s->v_bits, y[i] / by);
        level = b->levels[out->codes[i]];
        cross += y[i] * level;
        power += level * level;
    }
    if (s->tune != ESP_KV_TUNE_NONE)
        scale = cross > 0 ? cross / power : 0; /* of all scales the one with the least squared error */
    out->scale = esp_turbo_value_scale(scale);
    out->zero = 0;
}
