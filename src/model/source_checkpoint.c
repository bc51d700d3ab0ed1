/*
 * Weights of a checkpoint: dense matrices and MLX affine triples, as views into the mapped files.
 *
 * SPDX-License-Identifier: MIT
 */
#include "model/source.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
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

static esp_status affine(struct ctx *c, enum esp_part part, const char *module, const struct esp_st_tensor *w,
                         const struct esp_st_tensor *scales, uint32_t n_in, struct esp_weight *out,
                         esp_error *err)
{
    const struct esp_st_tensor *wsb[3] = {
        w, scales, esp_names_find(&c->names, part, "%s%sbiases", module, *module ? "." : "")};
    struct esp_quant q;

    ESP_TRY(esp_quant_from_tensors(&q, &c->ck->config, *module ? module : "lm_head", wsb, n_in,
                                   &c->ck->warnings, err));
    if (q.mode != ESP_QUANT_AFFINE)
        return esp_fail(err, ESP_EUNSUPPORTED, "%s: tensor %s is quantized as %s; affine can be read",
                        esp_st_name(w->file), w->name, esp_quant_mode_name(q.mode));
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
    ESP_TRY(check_rows(w, n_out, n_in, scales != NULL, err));
    if (scales)
        ESP_TRY(affine(c, part, module, w, scales, n_in, &r, err));
    else
        ESP_TRY(dense_format(&r.format, w, err));
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
                             .tied = c->names.tied,
                             .matrix = matrix,
                             .vector = vector,
                             .close = close_source};
    *out = s;
    return ESP_OK;
}
