/*
 * Schemes by name, the bytes of their rows, and the affine rows. Affine rows take MLX's scale and bias, but
 * choose codes against what is stored, and fall back to a scale that covers the group from the rounded bias
 * where the rounding would clip it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "formats/kv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/affine.h"
#include "formats/format.h"
#include "formats/turboquant.h"

static const float INPUT_MAX = 65504; /* largest f16: what the scales of turbo can hold */

/* ---- schemes ---- */

bool esp_kv_coded(const struct esp_kv_scheme *s)
{
    return s->kind == ESP_KV_KIND_AFFINE || s->kind == ESP_KV_KIND_TURBO;
}

bool esp_kv_rotated(const struct esp_kv_scheme *s)
{
    return s->kind == ESP_KV_KIND_TURBO;
}

bool esp_kv_same(const struct esp_kv_scheme *a, const struct esp_kv_scheme *b)
{
    return a->kind == b->kind && a->k_bits == b->k_bits && a->v_bits == b->v_bits && a->group == b->group &&
           a->tune == b->tune;
}

static const char *const TUNES[ESP_KV_TUNE_COUNT] = {"", ":least", ":own"};

/* The digit at p when it is one that ok takes; else 0. */
static uint8_t digit(char c, bool (*ok)(uint32_t))
{
    const uint32_t v = c >= '0' && c <= '9' ? (uint32_t)(c - '0') : 0;

    return ok(v) ? (uint8_t)v : 0;
}

static bool affine_bits(uint32_t bits)
{
    return bits == 4 || bits == 6 || bits == 8;
}

static bool parse_turbo(struct esp_kv_scheme *s, const char *p)
{
    *s = (struct esp_kv_scheme){.kind = ESP_KV_KIND_TURBO, .k_bits = 8, .v_bits = 3, .group = ESP_KV_GROUP};
    if (*p == 0)
        return true;
    if (p[0] != ':' || p[1] != 'k' || p[2] == 0 || p[3] != 'v' || p[4] == 0)
        return false;
    s->k_bits = digit(p[2], esp_turbo_key_bits);
    s->v_bits = digit(p[4], esp_turbo_value_bits);
    for (int t = 0; t < ESP_KV_TUNE_COUNT; t++)
        if (strcmp(p + 5, TUNES[t]) == 0) {
            s->tune = (uint8_t)t;
            return s->k_bits && s->v_bits;
        }
    return false;
}

static bool parse_affine(struct esp_kv_scheme *s, const char *p)
{
    const uint8_t bits = digit(*p, affine_bits);

    *s = (struct esp_kv_scheme){.kind = ESP_KV_KIND_AFFINE, .k_bits = bits, .v_bits = bits, .group = 64};
    if (bits == 0 || p[1] == 0)
        return bits != 0;
    for (unsigned g = 32; g <= ESP_AFFINE_GROUP_MAX; g *= 2) {
        char suffix[8];

        snprintf(suffix, sizeof suffix, ":g%u", g);
        s->group = (uint8_t)g;
        if (strcmp(p + 1, suffix) == 0)
            return true;
    }
    return false;
}

esp_status esp_kv_parse(struct esp_kv_scheme *out, const char *name, esp_error *err)
{
    struct esp_kv_scheme s = {0};
    bool ok = true;

    if (strcmp(name, "bf16") == 0)
        s.kind = ESP_KV_KIND_BF16;
    else if (strncmp(name, "turbo", 5) == 0)
        ok = parse_turbo(&s, name + 5);
    else if (name[0] == 'q')
        ok = parse_affine(&s, name + 1);
    else
        ok = strcmp(name, "f32") == 0;
    if (!ok)
        return esp_fail(
            err, ESP_EINVAL,
            "kv \"%s\"; accepted: bf16, f32, q8, q6, q4 (:g32, :g64, :g128), turbo, turbo:kKvV with "
            "K 8, 5, 4 or 2 and V 8, 5, 4, 3 or 2 (:least, :own), or a kv_config.json",
            name);
    *out = s;
    return ESP_OK;
}

void esp_kv_name(const struct esp_kv_scheme *s, char out[ESP_KV_NAME])
{
    if (s->kind == ESP_KV_KIND_TURBO)
        snprintf(out, ESP_KV_NAME, "turbo:k%uv%u%s", s->k_bits, s->v_bits, TUNES[s->tune]);
    else if (s->kind == ESP_KV_KIND_AFFINE && s->group == 64)
        snprintf(out, ESP_KV_NAME, "q%u", s->k_bits);
    else if (s->kind == ESP_KV_KIND_AFFINE)
        snprintf(out, ESP_KV_NAME, "q%u:g%u", s->k_bits, s->group);
    else
        snprintf(out, ESP_KV_NAME, "%s", s->kind == ESP_KV_KIND_F32 ? "f32" : "bf16");
}

esp_status esp_kv_check(const struct esp_kv_scheme *s, uint32_t head_dim, esp_error *err)
{
    char name[ESP_KV_NAME];

    esp_kv_name(s, name);
    if (s->kind == ESP_KV_KIND_TURBO && !esp_turbo_head(head_dim))
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "kv %s: heads of %u; turbo takes 64, 96, 128, 256 and 512 (q8:g32 takes multiples of "
                        "32, bf16 any)",
                        name, head_dim);
    if (s->kind == ESP_KV_KIND_AFFINE && (head_dim == 0 || head_dim % s->group || head_dim > ESP_KV_HEAD_MAX))
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "kv %s: heads of %u; multiples of the group (%u) up to %d are possible, groups are "
                        ":g32, :g64 and :g128",
                        name, head_dim, s->group, ESP_KV_HEAD_MAX);
    return ESP_OK;
}

static size_t plain_bytes(const struct esp_kv_scheme *s, uint32_t d)
{
    return (size_t)d * (s->kind == ESP_KV_KIND_F32 ? 4 : 2);
}

size_t esp_kv_key_bytes(const struct esp_kv_scheme *s, uint32_t d)
{
    return esp_kv_coded(s) ? (size_t)d * s->k_bits / 8 + d / s->group * 4 : plain_bytes(s, d);
}

size_t esp_kv_value_bytes(const struct esp_kv_scheme *s, uint32_t d)
{
    if (!esp_kv_coded(s))
        return plain_bytes(s, d);
    return (size_t)d * s->v_bits / 8 + d / s->group * (s->kind == ESP_KV_KIND_TURBO ? 2 : 4);
}

/* ---- inputs ---- */

/* Copy x with what no scale can hold repaired; returns how many were. */
static uint32_t repair(const float *x, uint32_t d, float *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < d; i++) {
        out[i] = x[i];
        if (fabsf(x[i]) <= INPUT_MAX)
            continue;
        n++;
        out[i] = isnan(x[i]) ? 0 : copysignf(INPUT_MAX, x[i]);
    }
    return n;
}

static void store16(uint8_t *plane, size_t i, uint16_t v)
{
    memcpy(plane + 2 * i, &v, 2);
}

static uint16_t load16(const uint8_t *plane, size_t i)
{
    uint16_t v;

    memcpy(&v, plane + 2 * i, 2);
    return v;
}

static void encode_plain(const struct esp_kv_scheme *s, uint32_t d, const float *x, uint8_t *row)
{
    if (s->kind == ESP_KV_KIND_F32) {
        memcpy(row, x, d * sizeof *x);
        return;
    }
    for (uint32_t i = 0; i < d; i++)
        store16(row, i, esp_f32_to_bf16(x[i]));
}

static void decode_plain(const struct esp_kv_scheme *s, uint32_t d, const uint8_t *row, float *out)
{
    if (s->kind == ESP_KV_KIND_F32) {
        memcpy(out, row, d * sizeof *out);
        return;
    }
    for (uint32_t i = 0; i < d; i++)
        out[i] = esp_bf16_to_f32(load16(row, i));
}

/* ---- affine ---- */

struct affine_group {
    uint8_t codes[ESP_AFFINE_GROUP_MAX];
    float scale, bias; /* as stored */
};

/* Codes of x for g's scale and bias; returns the largest error. */
static float affine_codes(const float *x, uint32_t n, uint32_t bits, struct affine_group *g)
{
    const float top = (float)((1u << bits) - 1);
    float worst = 0;

    for (uint32_t i = 0; i < n; i++) {
        const float q = rintf((x[i] - g->bias) / g->scale);
        const float c = q > 0 ? (q < top ? q : top) : 0;
        const float e = fabsf(x[i] - (g->scale * c + g->bias));

        g->codes[i] = (uint8_t)c;
        worst = e > worst ? e : worst;
    }
    return worst;
}

struct affine_range {
    float lo, hi, step; /* step: of codes that just reach from lo to hi */
};

static struct affine_range affine_range(const float *x, uint32_t n, uint32_t bits)
{
    struct affine_range r = {.lo = x[0], .hi = x[0]};

    for (uint32_t i = 1; i < n; i++) {
        r.lo = x[i] < r.lo ? x[i] : r.lo;
        r.hi = x[i] > r.hi ? x[i] : r.hi;
    }
    r.step = (r.hi - r.lo) / (float)((1u << bits) - 1);
    return r;
}

/* A bias at or below the smallest value, then a scale that reaches the largest from there: nothing is
 * clipped. */
static void affine_refit(const struct affine_range *r, uint32_t bits, struct affine_group *g)
{
    uint16_t h = esp_f32_to_bf16(r->lo);
    float step;

    if (esp_bf16_to_f32(h) > r->lo) /* one down; a lo that rounds to +0 is not below it */
        h = (uint16_t)(h & 0x8000 ? h + 1 : h - 1);
    g->bias = esp_bf16_to_f32(h);
    step = (r->hi - g->bias) / (float)((1u << bits) - 1);
    step = step > 0x1p-100f ? step : 0x1p-100f; /* a constant group needs a divisor only */
    h = esp_f32_to_bf16(step);
    if (esp_bf16_to_f32(h) < step)
        h++;
    g->scale = esp_bf16_to_f32(h);
}

static void affine_group(const float *x, uint32_t n, uint32_t bits, const struct esp_weight *like,
                         struct affine_group *g)
{
    const struct affine_range r = affine_range(x, n, bits);
    uint8_t scale[2], bias[2];
    struct affine_group refit;
    float error;

    esp_affine_encode(like, x, n, g->codes, scale, bias);
    g->scale = esp_scale_load(ESP_SCALE_BF16, scale, 0);
    g->bias = esp_scale_load(ESP_SCALE_BF16, bias, 0);
    error = affine_codes(x, n, bits, g);
    if (error <= esp_kv_affine_slack * r.step) /* half a step, as well as a bf16 scale can give it */
        return;
    affine_refit(&r, bits, &refit);
    if (affine_codes(x, n, bits, &refit) < error)
        *g = refit;
}

static struct esp_weight like_of(uint32_t bits, uint32_t group)
{
    static const enum esp_format_id formats[] = {
        [4] = ESP_FORMAT_AFFINE4, [6] = ESP_FORMAT_AFFINE6, [8] = ESP_FORMAT_AFFINE8};

    return (struct esp_weight){.format = formats[bits], .scale_type = ESP_SCALE_BF16, .group = group};
}

void esp_kv_affine_group(const float *x, uint32_t n, uint32_t bits, uint8_t *codes, uint16_t *scale,
                         uint16_t *bias)
{
    const struct esp_weight like = like_of(bits, n);
    struct affine_group g;

    affine_group(x, n, bits, &like, &g);
    memcpy(codes, g.codes, n);
    *scale = esp_f32_to_bf16(g.scale);
    *bias = esp_f32_to_bf16(g.bias);
}

static void encode_affine(const struct esp_kv_scheme *s, uint32_t bits, uint32_t d, const float *x,
                          uint8_t *row)
{
    const uint32_t n = s->group;
    const struct esp_weight like = like_of(bits, n);
    uint8_t *scales = row + d * bits / 8, *biases = scales + d / n * 2;

    for (uint32_t i = 0; i < d; i += n) {
        struct affine_group g;

        affine_group(x + i, n, bits, &like, &g);
        esp_affine_pack(bits, g.codes, n, row + i * bits / 8);
        esp_scale_store(ESP_SCALE_BF16, scales, i / n, g.scale);
        esp_scale_store(ESP_SCALE_BF16, biases, i / n, g.bias);
    }
}

static void decode_affine(const struct esp_kv_scheme *s, uint32_t bits, uint32_t d, const uint8_t *row,
                          float *out)
{
    const uint8_t *scales = row + d * bits / 8, *biases = scales + d / s->group * 2;

    for (uint32_t i = 0; i < d; i += s->group) {
        const float scale = esp_scale_load(ESP_SCALE_BF16, scales, i / s->group);
        const float bias = esp_scale_load(ESP_SCALE_BF16, biases, i / s->group);
        uint8_t codes[ESP_AFFINE_GROUP_MAX];

        esp_affine_unpack(bits, row, i, s->group, codes);
        for (uint32_t j = 0; j < s->group; j++)
            out[i + j] = scale * (float)codes[j] + bias;
    }
}

/* ---- rows ---- */

uint32_t esp_kv_encode_key(const struct esp_kv_scheme *s, uint32_t d, const float *x, uint8_t *row)
{
    float y[ESP_KV_HEAD_MAX] = {0}; /* all of a last group is there, whatever d is */
    uint8_t *scales = row + d * s->k_bits / 8, *zeros = scales + d / ESP_KV_GROUP * 2;
    uint32_t n;

    if (!esp_kv_coded(s)) {
        encode_plain(s, d, x, row);
        return 0;
    }
    n = repair(x, d, y);
    if (s->kind == ESP_KV_KIND_AFFINE) {
        encode_affine(s, s->k_bits, d, y, row);
        return n;
    }
    for (uint32_t i = 0; i < d; i += ESP_KV_GROUP) {
        struct esp_turbo_group g;

        esp_turbo_key_group(y + i, s->k_bits, &g);
        esp_affine_pack(s->k_bits, g.codes, ESP_KV_GROUP, row + i * s->k_bits / 8);
        store16(scales, i / ESP_KV_GROUP, g.scale);
        store16(zeros, i / ESP_KV_GROUP, g.zero);
    }
    return n;
}

uint32_t esp_kv_encode_value(const struct esp_kv_scheme *s, uint32_t d, const float *x, uint8_t *row)
{
    float y[ESP_KV_HEAD_MAX] = {0}; /* all of a last group is there, whatever d is */
    uint8_t *scales = row + d * s->v_bits / 8;
    uint32_t n;

    if (!esp_kv_coded(s)) {
        encode_plain(s, d, x, row);
        return 0;
    }
    n = repair(x, d, y);
    if (s->kind == ESP_KV_KIND_AFFINE) {
        encode_affine(s, s->v_bits, d, y, row);
        return n;
    }
    esp_turbo_rotate(y, d);
    for (uint32_t i = 0; i < d; i += ESP_KV_GROUP) {
        struct esp_turbo_group g;

        esp_turbo_value_group(y + i, s, &g);
        esp_affine_pack(s->v_bits, g.codes, ESP_KV_GROUP, row + i * s->v_bits / 8);
        store16(scales, i / ESP_KV_GROUP, g.scale);
    }
    return n;
}

void esp_kv_decode_key(const struct esp_kv_scheme *s, uint32_t d, const uint8_t *row, float *out)
{
    const uint8_t *scales = row + d * s->k_bits / 8, *zeros = scales + d / ESP_KV_GROUP * 2;

    if (!esp_kv_coded(s)) {
        decode_plain(s, d, row, out);
        return;
    }
    if (s->kind == ESP_KV_KIND_AFFINE) {
        decode_affine(s, s->k_bits, d, row, out);
        return;
    }
    for (uint32_t i = 0; i < d; i += ESP_KV_GROUP) {
        struct esp_turbo_group g = {.scale = load16(scales, i / ESP_KV_GROUP),
                                    .zero = load16(zeros, i / ESP_KV_GROUP)};

        esp_affine_unpack(s->k_bits, row, i, ESP_KV_GROUP, g.codes);
        esp_turbo_key_values(&g, s->k_bits, out + i);
    }
}

void esp_kv_decode_value(const struct esp_kv_scheme *s, uint32_t d, const uint8_t *row, float *out)
{
    const uint8_t *scales = row + d * s->v_bits / 8;
    const float *levels;

    if (!esp_kv_coded(s)) {
        decode_plain(s, d, row, out);
        return;
    }
    if (s->kind == ESP_KV_KIND_AFFINE) {
        decode_affine(s, s->v_bits, d, row, out);
        return;
    }
    levels = esp_turbo_codebook_of(s)->levels;
    for (uint32_t i = 0; i < d; i += ESP_KV_GROUP) {
        const float scale = esp_f16_to_f32(load16(scales, i / ESP_KV_GROUP));
        uint8_t codes[ESP_KV_GROUP];

        esp_affine_unpack(s->v_bits, row, i, ESP_KV_GROUP, codes);
        for (uint32_t j = 0; j < ESP_KV_GROUP; j++)
            out[i + j] = levels[codes[j]] * scale;
    }
}

void esp_kv_rotate(const struct esp_kv_scheme *s, uint32_t d, float *x)
{
    if (esp_kv_rotated(s))
        esp_turbo_rotate(x, d);
}

void esp_kv_unrotate(const struct esp_kv_scheme *s, uint32_t d, float *x)
{
    if (esp_kv_rotated(s))
        esp_turbo_unrotate(x, d);
}
