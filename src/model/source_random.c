/*
 * Random weights for benchmarks: bytes that look like a trained model's (bf16 values around 0.02, uniform
 * affine codes), made in memory at a few GB/s by a 64-bit mixing counter. The same seed gives the same model.
 *
 * SPDX-License-Identifier: MIT
 */
#include "model/source.h"

#include <inttypes.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "formats/trellis.h"

enum { MAX_BLOCKS = 8192 };

struct ctx {
    enum esp_format_id format;
    uint32_t group;
    enum esp_source_kind kind;
    uint64_t counter;
    struct esp_map blocks[MAX_BLOCKS];
    uint32_t n_block;
};

/* SplitMix64 (Steele, Lea, Flood 2014): a bijective mix of a counter. */
static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static esp_status take(struct ctx *c, size_t bytes, uint8_t **out, esp_error *err)
{
    if (c->n_block == MAX_BLOCKS)
        return esp_fail(err, ESP_ENOFIT, "a random model of more than %d matrices", MAX_BLOCKS);
    ESP_TRY(esp_map_memory(&c->blocks[c->n_block], bytes, esp_source_huge(c->kind), out, err));
    c->n_block++;
    return ESP_OK;
}

static void fill_bytes(struct ctx *c, uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t r = next(&c->counter);

        memcpy(p + i, &r, n - i < 8 ? n - i : 8);
    }
}

/* Sign and 7 mantissa bits random, magnitude in [2^-6, 2^-5): rms about 0.023 whatever the width. */
static void fill_bf16(struct ctx *c, uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 4) {
        uint64_t r = (next(&c->counter) & 0x807f807f807f807fu) | 0x3c803c803c803c80u;

        memcpy(p + i * 2, &r, (n - i < 4 ? n - i : 4) * 2);
    }
}

static void fill_f32(struct ctx *c, uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 2) {
        uint64_t r = (next(&c->counter) & 0x807fffff807fffffu) | 0x3c8000003c800000u;

        memcpy(p + i * 4, &r, (n - i < 2 ? n - i : 2) * 4);
    }
}

static void fill_f16(struct ctx *c, uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 4) {
        uint64_t r = (next(&c->counter) & 0x83ff83ff83ff83ffu) | 0x2400240024002400u;

        memcpy(p + i * 2, &r, (n - i < 4 ? n - i : 4) * 2);
    }
}

/* Scales around 0.04 / 2^bits and biases that centre the codes. */
static void fill_affine(struct ctx *c, struct esp_weight *w, uint8_t *scales, uint8_t *biases, uint32_t bits)
{
    size_t n = (size_t)w->n_out * (w->n_in / w->group);

    for (size_t i = 0; i < n; i++) {
        float s = (0.03f + 0.02f * (float)(next(&c->counter) >> 40) * 0x1p-24f) / (float)(1u << (bits - 1));
        uint16_t sb = esp_f32_to_bf16(s), bb = esp_f32_to_bf16(-s * (float)((1u << bits) - 1) * 0.5f);

        memcpy(scales + i * 2, &sb, 2);
        memcpy(biases + i * 2, &bb, 2);
    }
}

/* One f16 scale a stored row, around 0.023 as the other formats; any codes have values of deviation 1. */
static void fill_trellis(struct ctx *c, uint8_t *scales, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t s = esp_f32_to_f16(0.015f + 0.016f * (float)(next(&c->counter) >> 40) * 0x1p-24f);

        memcpy(scales + i * 2, &s, 2);
    }
}

/*
 * What a converter would make of a matrix: small gates stay exact; trellis codes are for the MLPs, along the
 * residual stream, and everything else beside them is affine of 4 bits.
 */
static struct esp_weight describe(const struct ctx *c, const char *module, uint32_t n_out, uint32_t n_in)
{
    struct esp_weight w = {.format = c->format, .n_out = n_out, .n_in = n_in, .scale_type = ESP_SCALE_BF16};

    if (esp_is_trellis(c->format)) {
        w.axis = strstr(module, "down_proj") == NULL;
        if (!strstr(module, "mlp."))
            w.format = ESP_FORMAT_AFFINE4;
        else if (esp_trellis_cols(&w) % ESP_TRELLIS_BLOCK)
            w.format = ESP_FORMAT_BF16;
    }
    if (esp_format_get(w.format)->integer && n_out < 64)
        w.format = ESP_FORMAT_BF16;
    if (esp_is_trellis(w.format))
        w.scale_type = ESP_SCALE_F16;
    else
        w.axis = 0;
    w.group = esp_format_get(w.format)->grouped ? c->group : 0;
    return w;
}

static void fill(struct ctx *c, struct esp_weight *w, uint8_t *p)
{
    const size_t rows = esp_is_trellis(w->format) ? esp_trellis_rows(w) : w->n_out;
    const size_t codes = w->row_bytes * rows, scales = w->scale_row_bytes * rows;
    const size_t n = (size_t)w->n_out * w->n_in;

    w->codes = p;
    if (esp_format_get(w->format)->grouped) {
        w->scales = p + codes;
        w->biases = p + codes + scales;
        fill_bytes(c, p, codes);
        fill_affine(c, w, p + codes, p + codes + scales, esp_format_get(w->format)->bits);
    } else if (esp_is_trellis(w->format)) {
        w->scales = p + codes;
        fill_bytes(c, p, codes);
        fill_trellis(c, p + codes, rows);
    } else if (w->format == ESP_FORMAT_BF16) {
        fill_bf16(c, p, n);
    } else if (w->format == ESP_FORMAT_F16) {
        fill_f16(c, p, n);
    } else {
        fill_f32(c, p, n);
    }
}

static esp_status matrix(void *ctx, enum esp_part part, const char *module, uint32_t n_out, uint32_t n_in,
                         struct esp_weight *out, esp_error *err)
{
    struct ctx *c = ctx;
    struct esp_weight w = describe(c, module, n_out, n_in);
    uint8_t *p;

    (void)part;
    ESP_TRY(esp_weight_layout(&w, module, err));
    if (c->kind != ESP_SOURCE_SHAPES) {
        ESP_TRY(take(c, esp_weight_bytes(&w), &p, err));
        fill(c, &w, p);
    }
    *out = w;
    return ESP_OK;
}

static esp_status vector(void *ctx, enum esp_part part, const char *name, uint32_t n, float *out,
                         esp_error *err)
{
    struct ctx *c = ctx;

    (void)part;
    (void)name;
    (void)err;
    for (uint32_t i = 0; i < n; i++)
        out[i] = ((float)(next(&c->counter) >> 40) * 0x1p-24f - 0.5f) * 0.2f;
    return ESP_OK;
}

/* The matrix asked for last, when it is w: blocks are made in the order of calls. */
static void release(void *ctx, const struct esp_weight *w)
{
    struct ctx *c = ctx;

    if (c->n_block && c->blocks[c->n_block - 1].data == w->codes)
        esp_map_close(&c->blocks[--c->n_block]);
}

static void close_source(struct esp_source *s)
{
    struct ctx *c = s->ctx;

    for (uint32_t i = 0; i < c->n_block; i++)
        esp_map_close(&c->blocks[i]);
    esp_free(c);
    esp_free(s);
}

esp_status esp_source_random(struct esp_source **out, enum esp_format_id format, uint32_t group, bool tied,
                             enum esp_source_kind kind, uint64_t seed, esp_error *err)
{
    struct esp_source *s = esp_alloc(sizeof *s);
    struct ctx *c = esp_alloc(sizeof *c);

    if (!s || !c) {
        esp_free(s);
        esp_free(c);
        return esp_fail(err, ESP_ENOMEM, "random model: out of memory");
    }
    c->format = format;
    c->group = group;
    c->kind = kind;
    c->counter = seed;
    *s = (struct esp_source){.ctx = c,
                             .norms_shifted = false,
                             .tied = tied,
                             .matrix = matrix,
                             .vector = vector,
                             .release = release,
                             .close = close_source};
    *out = s;
    return ESP_OK;
}
