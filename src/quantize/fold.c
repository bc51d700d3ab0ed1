/*
 * See fold.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/fold.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum side { SIDE_NONE, SIDE_IN, SIDE_OUT, SIDE_UNIT, SIDE_FC, SIDE_MTP_NORM };

struct rule {
    enum esp_part part;
    const char *glob; /* on the name inside the part */
    enum side side;
    const char *gain; /* SIDE_IN: norm in front, %s is the layer's prefix; NULL: no gain */
};

static const struct rule RULES[] = {
    {ESP_PART_TEXT, "embed_tokens.weight", SIDE_IN, NULL},
    {ESP_PART_TEXT, "layers.*.self_attn.[qkv]_proj.weight", SIDE_IN, "input_layernorm.weight"},
    {ESP_PART_TEXT, "layers.*.linear_attn.in_proj_*.weight", SIDE_IN, "input_layernorm.weight"},
    {ESP_PART_TEXT, "layers.*.mlp.gate_proj.weight", SIDE_IN, "post_attention_layernorm.weight"},
    {ESP_PART_TEXT, "layers.*.mlp.up_proj.weight", SIDE_IN, "post_attention_layernorm.weight"},
    {ESP_PART_TEXT, "layers.*.self_attn.o_proj.weight", SIDE_OUT, NULL},
    {ESP_PART_TEXT, "layers.*.linear_attn.out_proj.weight", SIDE_OUT, NULL},
    {ESP_PART_TEXT, "layers.*.mlp.down_proj.weight", SIDE_OUT, NULL},
    {ESP_PART_TEXT, "layers.*.input_layernorm.weight", SIDE_UNIT, NULL},
    {ESP_PART_TEXT, "layers.*.post_attention_layernorm.weight", SIDE_UNIT, NULL},
    {ESP_PART_TEXT, "norm.weight", SIDE_UNIT, NULL},
    {ESP_PART_HEAD, "weight", SIDE_IN, "norm.weight"},
    {ESP_PART_MTP, "fc.weight", SIDE_FC, NULL},
    {ESP_PART_MTP, "pre_fc_norm_embedding.weight", SIDE_UNIT, NULL},
    {ESP_PART_MTP, "norm.weight", SIDE_MTP_NORM, NULL},
    {ESP_PART_VISION, "merger.linear_fc2.*", SIDE_OUT, NULL}, /* its output takes the place of embeddings */
};

static const struct rule *rule_of(enum esp_part part, const char *name)
{
    for (size_t i = 0; i < sizeof RULES / sizeof RULES[0]; i++)
        if (RULES[i].part == part && fnmatch(RULES[i].glob, name, 0) == 0)
            return &RULES[i];
    return NULL;
}

static esp_status gain_of(const struct esp_fold *f, enum esp_part part, const char *norm, float *out,
                          esp_error *err)
{
    const bool shifted = part == ESP_PART_MTP ? f->mtp_shifted : f->src->norms_shifted;

    ESP_TRY(f->src->vector(f->src->ctx, part, norm, f->hidden, out, err));
    for (uint32_t i = 0; !shifted && i < f->hidden; i++)
        out[i] += 1.0f;
    return ESP_OK;
}

esp_status esp_fold_gain(const struct esp_fold *f, const char *norm, float *out, esp_error *err)
{
    return gain_of(f, ESP_PART_TEXT, norm, out, err);
}

esp_status esp_fold_open(struct esp_fold *f, const struct esp_config *c, const struct esp_source *src,
                         bool mtp_shifted, bool on, uint64_t seed, esp_error *err)
{
    esp_status s = ESP_OK;

    *f = (struct esp_fold){.on = on, .hidden = c->hidden, .src = src, .mtp_shifted = mtp_shifted};
    f->final_gain = esp_alloc_array(c->hidden, sizeof(float));
    f->scratch = esp_alloc_array((size_t)c->hidden * 2, sizeof(float));
    if (!f->final_gain || !f->scratch)
        s = esp_fail(err, ESP_ENOMEM, "fold: out of memory");
    if (s == ESP_OK && on)
        s = esp_basis_open(&f->basis, c->hidden, seed, err);
    if (s == ESP_OK && on)
        s = esp_fold_gain(f, "norm.weight", f->final_gain, err);
    if (s != ESP_OK)
        esp_fold_close(f);
    return s;
}

void esp_fold_close(struct esp_fold *f)
{
    esp_basis_close(&f->basis);
    esp_free(f->final_gain);
    esp_free(f->scratch);
    memset(f, 0, sizeof *f);
}

bool esp_fold_touches(const struct esp_fold *f, enum esp_part part, const char *name)
{
    return f->on && rule_of(part, name) != NULL;
}

/* The norm in front of a matrix: its layer's, or the model's last. */
static esp_status gain_before(const struct esp_fold *f, const struct rule *r, enum esp_part part,
                              const char *name, esp_error *err)
{
    char norm[160];
    unsigned long layer;

    if (part == ESP_PART_HEAD)
        return gain_of(f, ESP_PART_TEXT, r->gain, f->scratch, err);
    layer = strtoul(name + strlen("layers."), NULL, 10);
    snprintf(norm, sizeof norm, "layers.%lu.%s", layer, r->gain);
    return gain_of(f, part, norm, f->scratch, err);
}

static void scale_columns(float *w, size_t n_out, size_t ld, const float *gain, size_t n)
{
    for (size_t r = 0; r < n_out; r++)
        for (size_t i = 0; i < n; i++)
            w[r * ld + i] *= gain[i];
}

static esp_status check(const struct esp_fold *f, const char *name, size_t got, size_t want, esp_error *err)
{
    (void)f;
    return got == want ? ESP_OK
                       : esp_fail(err, ESP_EFORMAT, "fold: %s has %zu where the residual stream has %zu",
                                  name, got, want);
}

/* [H][2H]: columns of the embedding, which change their basis, then of the trunk's output, which do not. */
static esp_status fold_fc(const struct esp_fold *f, float *w, size_t n_out, size_t n_in, esp_error *err)
{
    const uint32_t n = f->hidden;

    ESP_TRY(check(f, "mtp fc.weight", n_in, 2 * (size_t)n, err));
    ESP_TRY(check(f, "mtp fc.weight", n_out, n, err));
    ESP_TRY(gain_of(f, ESP_PART_MTP, "pre_fc_norm_embedding.weight", f->scratch, err));
    scale_columns(w, n_out, n_in, f->scratch, n);
    esp_basis_rows(&f->basis, w, n_out, n_in);
    return ESP_OK;
}

/* A stored norm weight: rounded so that both conventions hold the same gain. */
static float stored_gain(const struct esp_fold *f, double gain)
{
    const float less_one = (float)(gain - 1);

    return f->mtp_shifted ? less_one + 1.0f : less_one;
}

/* Behind it comes to_basis, whose entries are 1 and -1, and then the head, which holds the trunk's gain. */
static esp_status mtp_norm(const struct esp_fold *f, float *v, size_t n, esp_error *err)
{
    const double root = sqrt(f->hidden);

    ESP_TRY(check(f, "mtp norm.weight", n, f->hidden, err));
    ESP_TRY(gain_of(f, ESP_PART_MTP, "norm.weight", f->scratch, err));
    for (uint32_t i = 0; i < f->hidden; i++) /* a channel without gain does not reach the head at all */
        v[i] = stored_gain(f, f->final_gain[i] != 0 ? f->scratch[i] / (f->final_gain[i] * root) : 0);
    return ESP_OK;
}

static const char *const MADE[ESP_FOLD_MADE_COUNT] = {
    [ESP_FOLD_TO_PLAIN] = "to_plain", [ESP_FOLD_PLAIN_NORM] = "plain_norm", [ESP_FOLD_TO_BASIS] = "to_basis"};

const char *esp_fold_made_name(enum esp_fold_made m)
{
    return MADE[m];
}

void esp_fold_make(const struct esp_fold *f, enum esp_fold_made m, float *out)
{
    const size_t n = f->hidden;

    if (m == ESP_FOLD_PLAIN_NORM) {
        for (size_t i = 0; i < n; i++)
            out[i] = stored_gain(f, f->final_gain[i]);
        return;
    }
    memset(out, 0, n * n * sizeof *out);
    for (size_t i = 0; i < n; i++)
        out[i * n + i] = 1;
    /* rows of Q, or its columns in rows: y = W x */
    if (m == ESP_FOLD_TO_PLAIN)
        esp_basis_rows(&f->basis, out, n, n);
    else
        esp_basis_cols(&f->basis, out, n, f->scratch);
    for (size_t i = 0; i < n * n; i++)
        out[i] = out[i] > 0 ? 1.0f : -1.0f;
}

esp_status esp_fold_apply(const struct esp_fold *f, enum esp_part part, const char *name, float *w,
                          size_t n_out, size_t n_in, esp_error *err)
{
    const struct rule *r = f->on ? rule_of(part, name) : NULL;
    const bool shifted = part == ESP_PART_MTP ? f->mtp_shifted : f->src->norms_shifted;

    if (!r)
        return ESP_OK;
    switch (r->side) {
    case SIDE_IN:
        ESP_TRY(check(f, name, n_in, f->hidden, err));
        if (r->gain) {
            ESP_TRY(gain_before(f, r, part, name, err));
            scale_columns(w, n_out, n_in, f->scratch, n_in);
        }
        esp_basis_rows(&f->basis, w, n_out, n_in);
        return ESP_OK;
    case SIDE_OUT:
        if (n_out == 1) { /* a bias */
            ESP_TRY(check(f, name, n_in, f->hidden, err));
            esp_basis_rows(&f->basis, w, 1, n_in);
            return ESP_OK;
        }
        ESP_TRY(check(f, name, n_out, f->hidden, err));
        esp_basis_cols(&f->basis, w, n_in, f->scratch);
        return ESP_OK;
    case SIDE_FC:
        return fold_fc(f, w, n_out, n_in, err);
    case SIDE_MTP_NORM:
        return mtp_norm(f, w, n_out * n_in, err);
    default:
        for (size_t i = 0; i < n_out * n_in; i++)
            w[i] = shifted ? 1.0f : 0.0f;
        return ESP_OK;
    }
}
