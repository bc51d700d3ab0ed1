/*
 * Weights of a checkpoint: dense matrices, MLX affine triples and trellis codes, as views into the mapped
 * files.
 *
 * SPDX-License-Identifier: MIT
 */
#include "model/source.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "formats/trellis.h"
#include "io/config_quant.h"

struct ctx {
    struct esp_checkpoint *ck;
    struct esp_names names;
};

static esp_status dense_format(enum esp_format_id *out, const struct esp_st_tensor *t, esp_error *err)
{
    switch (t->dtype) {
    case ESP_DTYPE_F32:
        *out = ESP_FORMAT_F32;
        return ESP_OK;
    case ESP_DTYPE_BF16:
        *out = ESP_FORMAT_BF16;
        return ESP_OK;
    case ESP_DTYPE_F16:
        *out = ESP_FORMAT_F16;
        return ESP_OK;
    default:
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "%s: tensor %s is %s; weights are F32, BF16, F16 or U32 with scales",
                        esp_st_name(t->file), t->name, esp_dtype_name(t->dtype));
    }
}

static enum esp_format_id affine_format(uint32_t bits)
{
    static const enum esp_format_id by_bits[9] = {
        [2] = ESP_FORMAT_AFFINE2, [3] = ESP_FORMAT_AFFINE3, [4] = ESP_FORMAT_AFFINE4,
        [5] = ESP_FORMAT_AFFINE5, [6] = ESP_FORMAT_AFFINE6, [8] = ESP_FORMAT_AFFINE8,
    };

    return bits < 9 ? by_bits[bits] : ESP_FORMAT_F32;
}

static enum esp_scale_type scale_type(enum esp_dtype d)
{
    return d == ESP_DTYPE_BF16 ? ESP_SCALE_BF16 : d == ESP_DTYPE_F16 ? ESP_SCALE_F16 : ESP_SCALE_F32;
}

static esp_status check_rows(const struct esp_st_tensor *t, uint32_t n_out, uint32_t n_in, bool packed,
                             esp_error *err)
{
    char shape[96];

    if (t->n_dim == 2 && t->shape[0] == n_out && (packed || t->shape[1] == n_in))
        return ESP_OK;
    return esp_fail(err, ESP_EFORMAT, "%s: tensor %s is %s, the config asks for %u rows of %u",
                    esp_st_name(t->file), t->name, esp_st_shape_text(t, shape, sizeof shape), n_out, n_in);
}

/* The parts of the code that are constants here and numbers in a config. */
static esp_status check_code(const char *module, const struct esp_quant *q, const struct esp_st_tensor *w,
                             esp_error *err)
{
    if (q->state_bits == 0)
        return esp_fail(err, ESP_EFORMAT,
                        "%s: tensor %s: module %s has mode trellis in the config, but no trellis object",
                        esp_st_name(w->file), w->name, module);
    if (q->group != ESP_TRELLIS_BLOCK || q->state_bits != ESP_TRELLIS_STATE_BITS)
        return esp_fail(
            err, ESP_EUNSUPPORTED,
            "%s: tensor %s: trellis with group_size %u and L %u; group_size %d and L %d can be read",
            esp_st_name(w->file), w->name, q->group, q->state_bits, ESP_TRELLIS_BLOCK,
            ESP_TRELLIS_STATE_BITS);
    return ESP_OK;
}

/* Words [rows, cols k / 32], or [cols / 512, rows, 48] for interleaved pairs of blocks. */
static esp_status trellis(const char *module, const struct esp_quant *q, const struct esp_st_tensor *w,
                          const struct esp_st_tensor *scales, struct esp_weight *out, esp_error *err)
{
    uint64_t rows, cols, pair_words;
    char shape[96];

    ESP_TRY(check_code(module, q, w, err));
    out->format = esp_trellis_format(q->bits);
    out->scale_type = ESP_SCALE_F16;
    out->axis = q->axis;
    out->interleaved = w->n_dim == 3;
    out->scales = scales->data;
    rows = esp_trellis_rows(out);
    cols = esp_trellis_cols(out);
    pair_words = 2 * esp_trellis_block_bytes(q->bits) / 4;
    if (out->interleaved ? w->shape[0] * 512 != cols || w->shape[1] != rows || w->shape[2] != pair_words
                         : w->shape[0] != rows || w->shape[1] * 32 != cols * q->bits)
        return esp_fail(err, ESP_EFORMAT,
                        "%s: tensor %s is %s; the config asks for %u x %u in trellis codes of %u bits along "
                        "axis %u, which is %u rows of %u columns",
                        esp_st_name(w->file), w->name, esp_st_shape_text(w, shape, sizeof shape), out->n_out,
                        out->n_in, q->bits, q->axis, (uint32_t)rows, (uint32_t)cols);
    for (size_t i = 0; i < rows; i++)
        if (!isfinite(
                esp_trellis_scale(&(struct esp_weight){.scales = scales->data, .scale_row_bytes = 2}, i)))
            return esp_fail(err, ESP_ENUMERIC, "%s: tensor %s: scale %zu is not finite",
                            esp_st_name(scales->file), scales->name, i);
    return ESP_OK;
}

static esp_status quantized(struct ctx *c, enum esp_part part, const char *module,
                            const struct esp_st_tensor *w, const struct esp_st_tensor *scales,
                            struct esp_weight *out, esp_error *err)
{
    const struct esp_st_tensor *wsb[3] = {
        w, scales, esp_names_find(&c->names, part, "%s%sbiases", module, *module ? "." : "")};
    static const char *const path[ESP_PART_COUNT] = {"", "lm_head", "mtp.", "visual."};
    char name[512]; /* as a config names the module: "layers.0" of the drafter is not the trunk's */
    struct esp_quant q;

    snprintf(name, sizeof name, "%s%s", path[part], module);
    ESP_TRY(esp_quant_from_tensors(&q, &c->ck->config, name, wsb, out->n_in, &c->ck->warnings, err));
    if (q.mode == ESP_QUANT_TRELLIS)
        return trellis(name, &q, w, scales, out, err);
    if (q.mode != ESP_QUANT_AFFINE)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "%s: tensor %s is quantized as %s; affine and trellis can be read",
                        esp_st_name(w->file), w->name, esp_quant_mode_name(q.mode));
    ESP_TRY(check_rows(w, out->n_out, out->n_in, true, err));
    out->format = affine_format(q.bits);
    out->group = q.group;
    out->scale_type = scale_type(scales->dtype);
    out->scales = scales->data;
    out->biases = wsb[2]->data;
    return ESP_OK;
}

static esp_status matrix(void *ctx, enum esp_part part, const char *module, uint32_t n_out, uint32_t n_in,
                         struct esp_weight *out, esp_error *err)
{
    struct ctx *c = ctx;
    const char *dot = *module ? "." : "";
    const struct esp_st_tensor *w, *scales, *bias;
    struct esp_weight r = {.n_out = n_out, .n_in = n_in};

    ESP_TRY(esp_names_need(&w, &c->names, part, err, "%s%sweight", module, dot));
    scales = esp_names_find(&c->names, part, "%s%sscales", module, dot);
    bias = esp_names_find(&c->names, part, "%s%sbias", module, dot);
    if (bias)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "%s: tensor %s: linear layers of this family have no additive bias",
                        esp_st_name(bias->file), bias->name);
    if (scales) {
        ESP_TRY(quantized(c, part, module, w, scales, &r, err));
    } else {
        ESP_TRY(check_rows(w, n_out, n_in, false, err));
        ESP_TRY(dense_format(&r.format, w, err));
    }
    r.codes = w->data;
    ESP_TRY(esp_weight_layout(&r, w->name, err));
    *out = r;
    return ESP_OK;
}

static esp_status vector(void *ctx, enum esp_part part, const char *name, uint32_t n, float *out,
                         esp_error *err)
{
    struct ctx *c = ctx;
    const struct esp_st_tensor *t;
    struct esp_weight w = {.n_out = 1, .n_in = n};
    char shape[96];

    ESP_TRY(esp_names_need(&t, &c->names, part, err, "%s", name));
    if (esp_st_elements(t) != n)
        return esp_fail(err, ESP_EFORMAT, "%s: tensor %s is %s, the config asks for %u values",
                        esp_st_name(t->file), t->name, esp_st_shape_text(t, shape, sizeof shape), n);
    ESP_TRY(dense_format(&w.format, t, err));
    w.codes = t->data;
    ESP_TRY(esp_weight_layout(&w, t->name, err));
    esp_format_get(w.format)->decode(&w, 0, 0, n, out);
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(out[i]))
            return esp_fail(err, ESP_ENUMERIC, "%s: tensor %s: element %u is not finite",
                            esp_st_name(t->file), t->name, i);
    return ESP_OK;
}

static void release(void *ctx, const struct esp_weight *w)
{
    const struct ctx *c = ctx;

    if (c->ck->in_memory) /* there is no file behind it */
        return;
    esp_map_drop(w->codes,
                 (size_t)(esp_is_trellis(w->format) ? esp_trellis_rows(w) : w->n_out) * w->row_bytes);
}

static void close_source(struct esp_source *s)
{
    esp_free(s->ctx);
    esp_free(s);
}

esp_status esp_source_checkpoint(struct esp_source **out, struct esp_checkpoint *ck, esp_error *err)
{
    struct esp_source *s = esp_alloc(sizeof *s);
    struct ctx *c = esp_alloc(sizeof *c);
    esp_status st = ESP_OK;

    if (!s || !c)
        st = esp_fail(err, ESP_ENOMEM, "%s: out of memory", ck->dir);
    else
        st = esp_names_resolve(&c->names, ck, err);
    if (st != ESP_OK) {
        esp_free(s);
        esp_free(c);
        return st;
    }
    c->ck = ck;
    *s = (struct esp_source){.ctx = c,
                             .norms_shifted = c->names.norms_shifted,
                             .mtp_norms_shifted = c->names.mtp_norms_shifted,
                             .has_mtp = c->names.set[ESP_PART_MTP] != NULL,
                             .mtp_basis = esp_names_find(&c->names, ESP_PART_MTP, "to_plain.weight") != NULL,
                             .tied = c->names.tied,
                             .matrix = matrix,
                             .vector = vector,
                             .release = release,
                             .close = close_source};
    *out = s;
    return ESP_OK;
}
