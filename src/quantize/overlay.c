/*
 * See overlay.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/overlay.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

esp_status esp_weight_decode(float **out, const struct esp_weight *w, const char *name, esp_error *err)
{
    const struct esp_format *f = esp_format_get(w->format);
    size_t count;
    float *x;

    if (!esp_mul_size(&count, w->n_out, w->n_in))
        return esp_fail(err, ESP_ENOMEM, "%s: %u rows of %u are too many", name, w->n_out, w->n_in);
    x = esp_alloc_array(count, sizeof *x);
    if (!x)
        return esp_fail(err, ESP_ENOMEM, "%s: no memory for %zu values", name, count);
    for (uint32_t r = 0; r < w->n_out; r++) {
        float *row = x + (size_t)r * w->n_in;

        f->decode(w, r, 0, w->n_in, row);
        for (uint32_t i = 0; i < w->n_in; i++)
            if (!isfinite(row[i])) {
                esp_free(x);
                return esp_fail(err, ESP_ENUMERIC, "tensor %s: element [%u][%u] is not finite", name, r, i);
            }
    }
    *out = x;
    return ESP_OK;
}

static bool keep(struct esp_overlay *o, float *x)
{
    if (o->n_owned == o->cap_owned) {
        const uint32_t cap = o->cap_owned ? 2 * o->cap_owned : 64;
        float **list = esp_realloc(o->owned, cap * sizeof *list);

        if (!list)
            return false;
        o->owned = list;
        o->cap_owned = cap;
    }
    o->owned[o->n_owned++] = x;
    return true;
}

static void as_f32(struct esp_weight *out, const float *x, uint32_t n_out, uint32_t n_in)
{
    *out = (struct esp_weight){.format = ESP_FORMAT_F32,
                               .n_out = n_out,
                               .n_in = n_in,
                               .codes = (const uint8_t *)x,
                               .row_bytes = (size_t)n_in * sizeof *x};
}

static int made_by_fold(const struct esp_overlay *o, enum esp_part part, const char *module)
{
    for (int m = 0; o->source.mtp_basis && part == ESP_PART_MTP && m < ESP_FOLD_MADE_COUNT; m++) {
        const char *name = esp_fold_made_name((enum esp_fold_made)m);
        const size_t len = strlen(name);

        if (strncmp(module, name, len) == 0 && (!module[len] || strcmp(module + len, ".weight") == 0))
            return m;
    }
    return -1;
}

static esp_status made_matrix(struct esp_overlay *o, enum esp_fold_made m, struct esp_weight *out,
                              esp_error *err)
{
    const uint32_t n = o->fold->hidden;
    float *x = esp_alloc_array((size_t)n * n, sizeof *x);

    if (!x || !keep(o, x)) {
        esp_free(x);
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", esp_fold_made_name(m));
    }
    esp_fold_make(o->fold, m, x);
    as_f32(out, x, n, n);
    return ESP_OK;
}

static esp_status matrix(void *ctx, enum esp_part part, const char *module, uint32_t n_out, uint32_t n_in,
                         struct esp_weight *out, esp_error *err)
{
    struct esp_overlay *o = ctx;
    const bool folds = o->fold && o->fold->on;
    const int made = made_by_fold(o, part, module);
    char name[192];
    float *x;
    esp_status s;

    if (made >= 0)
        return made_matrix(o, (enum esp_fold_made)made, out, err);
    if (o->module && part == ESP_PART_TEXT && strcmp(module, o->module) == 0) {
        as_f32(out, o->values, n_out, n_in);
        return ESP_OK;
    }
    if (part == ESP_PART_HEAD && o->inner->tied)
        ESP_TRY(o->inner->matrix(o->inner->ctx, ESP_PART_TEXT, "embed_tokens", n_out, n_in, out, err));
    else
        ESP_TRY(o->inner->matrix(o->inner->ctx, part, module, n_out, n_in, out, err));
    snprintf(name, sizeof name, "%s%sweight", module, *module ? "." : "");
    if (!folds || !esp_fold_touches(o->fold, part, name))
        return ESP_OK;
    ESP_TRY(esp_weight_decode(&x, out, name, err));
    s = esp_fold_apply(o->fold, part, name, x, n_out, n_in, err);
    if (s == ESP_OK && !keep(o, x))
        s = esp_fail(err, ESP_ENOMEM, "%s: out of memory", name);
    if (s != ESP_OK) {
        esp_free(x);
        return s;
    }
    as_f32(out, x, n_out, n_in);
    return ESP_OK;
}

static esp_status vector(void *ctx, enum esp_part part, const char *name, uint32_t n, float *out,
                         esp_error *err)
{
    struct esp_overlay *o = ctx;

    if (made_by_fold(o, part, name) == ESP_FOLD_PLAIN_NORM) {
        esp_fold_make(o->fold, ESP_FOLD_PLAIN_NORM, out);
        return ESP_OK;
    }
    ESP_TRY(o->inner->vector(o->inner->ctx, part, name, n, out, err));
    return o->fold ? esp_fold_apply(o->fold, part, name, out, 1, n, err) : ESP_OK;
}

void esp_overlay_init(struct esp_overlay *o, const struct esp_source *inner, const struct esp_fold *fold)
{
    memset(o, 0, sizeof *o);
    o->inner = inner;
    o->fold = fold;
    o->source = (struct esp_source){.ctx = o,
                                    .norms_shifted = inner->norms_shifted,
                                    .mtp_norms_shifted = inner->mtp_norms_shifted,
                                    .mtp_basis = inner->has_mtp && fold && fold->on,
                                    .tied = inner->tied && !(fold && fold->on),
                                    .matrix = matrix,
                                    .vector = vector};
}

void esp_overlay_close(struct esp_overlay *o)
{
    for (uint32_t i = 0; i < o->n_owned; i++)
        esp_free(o->owned[i]);
    esp_free(o->owned);
    memset(o, 0, sizeof *o);
}
