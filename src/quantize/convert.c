/*
 * Between the two layouts of a checkpoint. HF: names begin with "model.language_model.", convolutions are [C,
 * 1, 4], norm weights are gain - 1. MLX: "language_model.model.", [C, 4, 1], gain. Adding 1 in bf16 may lose
 * bits, and then the way back would not give the original: such norms are stored as f32, which holds both
 * forms of every bf16 and f16 value that a trained norm has; where even that is not exact the conversion is
 * refused rather than silently rounded. Metadata of the files says which convention is in use, so readers
 * need not guess.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "espalier/quantize.h"

#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "formats/format.h"
#include "io/names.h"
#include "io/safetensors_write.h"
#include "quantize/files.h"
#include "quantize/folder.h"
#include "quantize/progress.h"

enum layout { LAYOUT_HF, LAYOUT_MLX };

struct item {
    const struct esp_st_tensor *t;
    enum esp_part part;
    char stored[288];
    bool norm, conv, patch;
    enum esp_dtype dtype;
    uint64_t shape[ESP_LIMIT_DIMS];
    size_t bytes;
};

struct work {
    const char *source, *output;
    const esp_convert_opts *opts;
    struct esp_progress_to progress;
    char *folder; /* OUTPUT.convert */
    struct esp_checkpoint *ck;
    struct esp_names names;
    enum layout from, to;
    enum esp_dtype cast; /* NONE: keep */
    struct item *items;
    uint32_t n;
};

static bool ends(const char *s, const char *tail)
{
    const size_t n = strlen(s), k = strlen(tail);

    return n >= k && strcmp(s + n - k, tail) == 0;
}

static bool is_norm(const char *name, enum esp_part part)
{
    if (part == ESP_PART_MTP)
        return ends(name, "norm.weight") || strstr(name, "pre_fc_norm_") != NULL;
    return part == ESP_PART_TEXT && !strstr(name, "linear_attn.") && ends(name, "norm.weight");
}

static const char *prefix_of(enum layout l, enum esp_part p)
{
    static const char *const prefix[2][ESP_PART_COUNT] = {
        {"model.language_model.", "lm_head.", "mtp.", "model.visual."},
        {"language_model.model.", "language_model.lm_head.", "language_model.mtp.", "vision_tower."}};

    return prefix[l][p];
}

static float load(enum esp_dtype d, const uint8_t *p, size_t i)
{
    uint16_t half;
    float f;

    if (d == ESP_DTYPE_F32) {
        memcpy(&f, p + 4 * i, 4);
        return f;
    }
    memcpy(&half, p + 2 * i, 2);
    return d == ESP_DTYPE_BF16 ? esp_bf16_to_f32(half) : esp_f16_to_f32(half);
}

static void store(enum esp_dtype d, uint8_t *p, size_t i, float v)
{
    const uint16_t half = d == ESP_DTYPE_BF16 ? esp_f32_to_bf16(v) : esp_f32_to_f16(v);

    if (d == ESP_DTYPE_F32)
        memcpy(p + 4 * i, &v, 4);
    else
        memcpy(p + 2 * i, &half, 2);
}

/* The narrowest of the source's type and f32 in which shifting there and back is exact. */
static bool norm_dtype(enum esp_dtype *out, const struct esp_st_tensor *t, float shift)
{
    const enum esp_dtype tries[2] = {t->dtype, ESP_DTYPE_F32};
    const size_t n = (size_t)esp_st_elements(t);

    for (int k = 0; k < 2; k++) {
        bool exact = true;

        for (size_t i = 0; exact && i < n; i++) {
            uint8_t cell[4];
            const float x = load(t->dtype, t->data, i);

            store(tries[k], cell, 0, x + shift);
            exact = load(tries[k], cell, 0) - shift == x &&
                    (double)load(tries[k], cell, 0) == (double)x + (double)shift;
        }
        if (exact) {
            *out = tries[k];
            return true;
        }
    }
    return false;
}

static float shift_of(const struct work *w, enum esp_part part)
{
    const bool shifted = part == ESP_PART_MTP ? w->names.mtp_norms_shifted : w->names.norms_shifted;

    return (w->to == LAYOUT_MLX ? 1.0f : 0.0f) - (shifted ? 1.0f : 0.0f);
}

/* ---- planning ---- */

static void find_part(const struct work *w, const struct esp_tensor_set *set, struct item *it,
                      const char **name)
{
    size_t best = 0;
    bool found = false;

    it->part = ESP_PART_COUNT;
    for (int p = 0; p < ESP_PART_COUNT; p++) {
        const size_t len = w->names.prefix[p] ? strlen(w->names.prefix[p]) : 0;

        if (w->names.set[p] == set && w->names.prefix[p] &&
            strncmp(it->t->name, w->names.prefix[p], len) == 0 && (!found || len > best)) {
            it->part = (enum esp_part)p;
            best = len;
            found = true;
        }
    }
    *name = it->t->name + best;
}

static void reshape(const struct work *w, struct item *it, const char *name)
{
    it->conv = it->part == ESP_PART_TEXT && ends(name, "conv1d.weight") && it->t->n_dim == 3;
    it->patch = it->part == ESP_PART_VISION && ends(name, "patch_embed.proj.weight") && it->t->n_dim == 5;
    if (w->from == w->to) {
        it->conv = it->patch = false;
        return;
    }
    if (it->conv) { /* one of the two is 1, so the bytes stay in order */
        it->shape[1] = it->t->shape[2];
        it->shape[2] = it->t->shape[1];
    }
    if (it->patch && w->to == LAYOUT_MLX) {
        for (int d = 1; d < 4; d++)
            it->shape[d] = it->t->shape[d + 1];
        it->shape[4] = it->t->shape[1];
    } else if (it->patch) {
        for (int d = 2; d < 5; d++)
            it->shape[d] = it->t->shape[d - 1];
        it->shape[1] = it->t->shape[4];
    }
}

static esp_status plan_item(struct work *w, const struct esp_tensor_set *set, const struct esp_st_tensor *t,
                            esp_error *err)
{
    struct item *it = &w->items[w->n];
    const char *name;

    *it = (struct item){.t = t, .dtype = t->dtype, .bytes = t->bytes};
    memcpy(it->shape, t->shape, sizeof it->shape);
    ESP_TRY(esp_st_check(t, err));
    find_part(w, set, it, &name);
    if (it->part == ESP_PART_HEAD && w->names.tied)
        return ESP_OK; /* not counted: a tied head is the embedding */
    snprintf(it->stored, sizeof it->stored, "%s%s",
             it->part == ESP_PART_COUNT ? "" : prefix_of(w->to, it->part), name);
    it->norm = is_norm(name, it->part) && esp_dtype_is_weight_float(t->dtype) && shift_of(w, it->part) != 0;
    reshape(w, it, name);
    if (it->norm && !norm_dtype(&it->dtype, t, shift_of(w, it->part)))
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "%s: tensor %s: its values cannot be shifted by 1 and back without loss in f32",
                        esp_st_name(t->file), t->name);
    if (w->cast != ESP_DTYPE_NONE && esp_dtype_is_weight_float(t->dtype) && t->n_dim >= 2 && !it->conv)
        it->dtype = w->cast;
    it->bytes = it->dtype == t->dtype ? t->bytes : (size_t)esp_st_elements(t) * esp_dtype_size(it->dtype);
    w->n++;
    return ESP_OK;
}

static esp_status plan(struct work *w, esp_error *err)
{
    const struct esp_tensor_set *sets[2] = {&w->ck->main, &w->ck->side};

    w->items = esp_alloc_array((size_t)sets[0]->n_tensor + sets[1]->n_tensor + 1, sizeof *w->items);
    if (!w->items)
        return esp_fail(err, ESP_ENOMEM, "convert: out of memory");
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < sets[k]->n_tensor; i++)
            ESP_TRY(plan_item(w, sets[k], sets[k]->tensor[i], err));
    return ESP_OK;
}

/* ---- bytes ---- */

/* Index in the source of element i of the output: for patch embeddings the channel moves between the ends. */
static size_t source_index(const struct work *w, const struct item *it, size_t i)
{
    size_t d[5], n;

    if (!it->patch)
        return i;
    for (int k = 4; k >= 0; k--) {
        d[k] = i % it->shape[k];
        i /= it->shape[k];
    }
    if (w->to == LAYOUT_MLX) { /* out [D, a, b, c, ch] from [D, ch, a, b, c] */
        n = ((d[0] * it->t->shape[1] + d[4]) * it->t->shape[2] + d[1]) * it->t->shape[3] + d[2];
        return n * it->t->shape[4] + d[3];
    }
    n = ((d[0] * it->t->shape[1] + d[2]) * it->t->shape[2] + d[3]) * it->t->shape[3] + d[4];
    return n * it->t->shape[4] + d[1];
}

/* The item's bytes: the source's own, or *made. */
static esp_status bytes_of(const struct work *w, const struct item *it, const uint8_t **out, uint8_t **made,
                           esp_error *err)
{
    const size_t n = (size_t)esp_st_elements(it->t);
    const float shift = it->norm ? shift_of(w, it->part) : 0;

    *made = NULL;
    *out = it->t->data;
    if (!it->norm && !it->patch && it->dtype == it->t->dtype)
        return ESP_OK;
    *made = esp_alloc(it->bytes + 1);
    if (!*made)
        return esp_fail(err, ESP_ENOMEM, "convert: no memory for %s", it->stored);
    for (size_t i = 0; i < n; i++)
        store(it->dtype, *made, i, load(it->t->dtype, it->t->data, source_index(w, it, i)) + shift);
    *out = *made;
    return ESP_OK;
}

static esp_status write_tensors(struct work *w, const char *path, esp_error *err)
{
    struct esp_st_writer *f = NULL;
    const char *norms = w->to == LAYOUT_MLX ? "gamma" : "gamma-1";
    esp_status s = esp_st_writer_create(&f, path, err);

    if (s == ESP_OK)
        s = esp_st_writer_metadata(f, "format", w->to == LAYOUT_MLX ? "mlx" : "pt", err);
    if (s == ESP_OK)
        s = esp_st_writer_metadata(f, "espalier.norm_weights", norms, err);
    if (s == ESP_OK && w->names.set[ESP_PART_MTP])
        s = esp_st_writer_metadata(f, "espalier.mtp_norm_weights", norms, err);
    for (uint32_t i = 0; s == ESP_OK && i < w->n; i++)
        s = esp_st_writer_declare(f, w->items[i].stored, w->items[i].dtype, w->items[i].t->n_dim,
                                  w->items[i].shape, err);
    for (uint32_t i = 0; s == ESP_OK && i < w->n; i++) {
        const uint8_t *data;
        uint8_t *made = NULL;

        s = esp_progress_tell(&w->progress, "writing", w->items[i].stored, i, w->n, err);
        if (s == ESP_OK)
            s = bytes_of(w, &w->items[i], &data, &made, err);
        if (s == ESP_OK)
            s = esp_st_writer_data(f, data, w->items[i].bytes, err);
        esp_free(made);
    }
    if (s == ESP_OK)
        s = esp_st_writer_finish(f, err);
    esp_st_writer_destroy(f);
    return s;
}

/* ---- checking ---- */

/* Read the output and undo every change: each value must be the source's. */
static esp_status check(const struct work *w, const char *path, esp_error *err)
{
    struct esp_st_file *f;
    esp_status s = ESP_OK;

    ESP_TRY(esp_st_open(&f, path, err));
    for (uint32_t i = 0; s == ESP_OK && i < w->n; i++) {
        const struct item *it = &w->items[i];
        const struct esp_st_tensor *t = esp_st_find(f, it->stored);
        const size_t n = (size_t)esp_st_elements(it->t);
        const float shift = it->norm ? shift_of(w, it->part) : 0;
        bool same = t != NULL && t->bytes == it->bytes;

        s = esp_progress_tell(&w->progress, "checking", it->stored, i, w->n, err);
        if (same && !it->norm && !it->patch) {
            same = memcmp(t->data, it->t->data, t->bytes) == 0;
        } else {
            for (size_t k = 0; same && k < n; k++) {
                const size_t at = source_index(w, it, k);
                uint8_t cell[4];

                store(it->t->dtype, cell, 0, load(t->dtype, t->data, k) - shift);
                same = memcmp(cell, it->t->data + at * esp_dtype_size(it->t->dtype),
                              esp_dtype_size(it->t->dtype)) == 0;
            }
        }
        if (s == ESP_OK && !same)
            s = esp_fail(err, ESP_EIO, "%s: tensor %s does not read back as it was", path, it->stored);
    }
    esp_st_close(f);
    return s;
}

/* ---- the whole ---- */

static esp_status parse(struct work *w, esp_error *err)
{
    const esp_convert_opts *o = w->opts;

    w->from =
        w->names.prefix[ESP_PART_TEXT] && strcmp(w->names.prefix[ESP_PART_TEXT], "language_model.model.") == 0
            ? LAYOUT_MLX
            : LAYOUT_HF;
    w->to = w->from == LAYOUT_HF ? LAYOUT_MLX : LAYOUT_HF;
    if (o->layout && strcmp(o->layout, "hf") != 0 && strcmp(o->layout, "mlx") != 0)
        return esp_fail(err, ESP_EINVAL, "layout '%s'; hf and mlx are possible", o->layout);
    if (o->layout)
        w->to = strcmp(o->layout, "hf") == 0 ? LAYOUT_HF : LAYOUT_MLX;
    w->cast = ESP_DTYPE_NONE;
    if (o->dtype) {
        w->cast = strcmp(o->dtype, "bf16") == 0  ? ESP_DTYPE_BF16
                  : strcmp(o->dtype, "f16") == 0 ? ESP_DTYPE_F16
                  : strcmp(o->dtype, "f32") == 0 ? ESP_DTYPE_F32
                                                 : ESP_DTYPE_NONE;
        if (w->cast == ESP_DTYPE_NONE)
            return esp_fail(err, ESP_EINVAL, "dtype '%s'; bf16, f16 and f32 are possible", o->dtype);
    }
    return ESP_OK;
}

static esp_status run(struct work *w, esp_error *err)
{
    char *path;
    esp_status s;

    if (esp_file_exists(w->output))
        return esp_fail(err, ESP_ESTATE, "%s exists; choose another name or remove it", w->output);
    ESP_TRY(esp_checkpoint_open(&w->ck, w->source, err));
    ESP_TRY(esp_names_resolve(&w->names, w->ck, err));
    ESP_TRY(parse(w, err));
    ESP_TRY(plan(w, err));
    ESP_TRY(esp_folder_make(w->folder, err));
    ESP_TRY(esp_folder_sweep(w->folder, err));
    path = esp_path_join(w->folder, "model.safetensors");
    s = path ? write_tensors(w, path, err) : esp_fail(err, ESP_ENOMEM, "%s: out of memory", w->folder);
    if (s == ESP_OK && w->cast == ESP_DTYPE_NONE)
        s = check(w, path, err);
    esp_free(path);
    if (s == ESP_OK)
        s = esp_folder_copy_text(w->folder, w->source, true, err);
    return s == ESP_OK ? esp_folder_publish(w->folder, w->output, err) : s;
}

esp_status esp_convert(const char *source, const char *output, const esp_convert_opts *opts, esp_error *err)
{
    static const esp_convert_opts none;
    struct work w = {.source = source, .output = output, .opts = opts ? opts : &none};
    const size_t len = output ? strlen(output) : 0;
    esp_status s;

    if (!source || len == 0 || output[len - 1] == '/')
        return esp_fail(err, ESP_EINVAL, "esp_convert needs a source and an output without a final slash");
    w.progress = (struct esp_progress_to){w.opts->progress, w.opts->progress_user};
    w.folder = esp_alloc(len + sizeof ".convert");
    if (!w.folder)
        return esp_fail(err, ESP_ENOMEM, "convert: out of memory");
    snprintf(w.folder, len + sizeof ".convert", "%s.convert", output);
    s = run(&w, err);
    esp_free(w.items);
    esp_checkpoint_close(w.ck);
    esp_free(w.folder);
    return s;
}
