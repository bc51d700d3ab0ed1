/*
 * Names and layout of a checkpoint. Everything is decided from names, shapes and flags; values are read only
 * for the guard that warns, and to see whether a left-over head is a copy of the embedding.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/names.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NAME_BYTES = 512, MAX_PREFIXES = 4, MAX_MARKS = 3, GUARD_TENSORS = 16 };

/* Prefixes in order of preference, and what must follow one for it to count. */
static const struct {
    const char *name;
    const char *prefix[MAX_PREFIXES];
    const char *mark[MAX_MARKS];
} parts[ESP_PART_COUNT] = {
    [ESP_PART_TEXT] = {"text",
                       {"model.language_model.", "language_model.model.", "model.", ""},
                       {"embed_tokens.", "layers.", "norm.weight"}},
    [ESP_PART_HEAD] = {"head",
                       {"lm_head.", "language_model.lm_head.", "model.language_model.lm_head.", NULL},
                       {"weight", "scales", NULL}},
    [ESP_PART_MTP] = {"mtp", {"mtp.", "language_model.mtp.", "model.mtp.", NULL}, {"fc.", "layers.", NULL}},
    [ESP_PART_VISION] = {"vision",
                         {"model.visual.", "visual.", "vision_tower.", "language_model.vision_tower."},
                         {"patch_embed.", "blocks.", "merger."}},
};

const char *esp_part_name(enum esp_part part)
{
    return (unsigned)part < ESP_PART_COUNT ? parts[part].name : "?";
}

/* ---- prefixes ---- */

static bool prefix_present(const struct esp_tensor_set *s, enum esp_part part, const char *prefix)
{
    for (size_t i = 0; i < MAX_MARKS && parts[part].mark[i]; i++) {
        char name[128];

        snprintf(name, sizeof name, "%s%s", prefix, parts[part].mark[i]);
        if (esp_tensor_set_prefix(s, name, NULL))
            return true;
    }
    return false;
}

static void choose_prefix(struct esp_names *out, enum esp_part part, const struct esp_tensor_set *s,
                          struct esp_checkpoint *c)
{
    for (size_t i = 0; i < MAX_PREFIXES && parts[part].prefix[i]; i++) {
        const char *p = parts[part].prefix[i];

        if (!prefix_present(s, part, p))
            continue;
        if (out->set[part]) {
            esp_warn(&c->warnings, "%s: %s tensors with prefix '%s' are ignored, those with '%s' are used",
                     c->dir, parts[part].name, p, out->prefix[part]);
        } else {
            out->set[part] = s;
            out->prefix[part] = p;
        }
    }
}

static void choose_mtp(struct esp_names *out, struct esp_checkpoint *c)
{
    struct esp_names side = {.norms_why = ""};

    choose_prefix(out, ESP_PART_MTP, &c->main, c);
    choose_prefix(&side, ESP_PART_MTP, &c->side, c);
    if (!side.set[ESP_PART_MTP] && prefix_present(&c->side, ESP_PART_MTP, "")) {
        side.set[ESP_PART_MTP] = &c->side;
        side.prefix[ESP_PART_MTP] = "";
    }
    if (out->set[ESP_PART_MTP] && side.set[ESP_PART_MTP]) {
        esp_warn(&c->warnings,
                 "%s: MTP tensors both in the model's files and in mtp*.safetensors: the first are used",
                 c->dir);
        return;
    }
    if (side.set[ESP_PART_MTP]) {
        out->set[ESP_PART_MTP] = side.set[ESP_PART_MTP];
        out->prefix[ESP_PART_MTP] = side.prefix[ESP_PART_MTP];
    }
}

/* ---- norms ---- */

static bool ends_with(const char *s, const char *suffix)
{
    const size_t n = strlen(s), k = strlen(suffix);

    return n >= k && strcmp(s + n - k, suffix) == 0;
}

/* Flag in the metadata of the part's files, else in the config: "" when nothing is said. */
static esp_status norm_flag(const char **out, const struct esp_tensor_set *s, const char *key,
                            const char *config, const struct esp_checkpoint *c, esp_error *err)
{
    *out = config;
    for (uint32_t i = 0; i < s->n_file; i++) {
        const char *v = esp_st_metadata(s->file[i], key);

        if (!v)
            continue;
        if (strcmp(v, "gamma") != 0 && strcmp(v, "gamma-1") != 0)
            return esp_fail(err, ESP_EFORMAT, "%s: metadata %s is '%.40s'; 'gamma' or 'gamma-1' is accepted",
                            esp_st_name(s->file[i]), key, v);
        if (**out && strcmp(*out, v) != 0)
            return esp_fail(err, ESP_EFORMAT, "%s: %s is '%s' in one place and '%s' in %s", c->dir, key, *out,
                            v, esp_st_name(s->file[i]));
        *out = v;
    }
    return ESP_OK;
}

static esp_status conv_of(enum esp_conv_layout *out, const struct esp_st_tensor *t, esp_error *err)
{
    char shape[128];

    *out = ESP_CONV_NONE;
    if (t->n_dim != 3 || (t->shape[1] != 1 && t->shape[2] != 1))
        return esp_fail(err, ESP_EFORMAT,
                        "%s: tensor '%.160s' is %s; [channels,1,taps] or [channels,taps,1] is accepted",
                        esp_st_name(t->file), t->name, esp_st_shape_text(t, shape, sizeof shape));
    if (t->shape[1] != t->shape[2]) /* one tap tells nothing */
        *out = t->shape[2] != 1 ? ESP_CONV_C1K : ESP_CONV_CK1;
    return ESP_OK;
}

static esp_status find_conv(struct esp_names *out, esp_error *err)
{
    const struct esp_tensor_set *s = out->set[ESP_PART_TEXT];
    const struct esp_st_tensor *first = NULL;
    const char *prefix = out->prefix[ESP_PART_TEXT];
    uint32_t i = 0;

    out->conv = ESP_CONV_NONE;
    for (esp_tensor_set_prefix(s, prefix, &i); i < s->n_tensor; i++) {
        const struct esp_st_tensor *t = s->tensor[i];
        enum esp_conv_layout layout;

        if (strncmp(t->name, prefix, strlen(prefix)) != 0)
            break;
        if (!ends_with(t->name, ".conv1d.weight"))
            continue;
        ESP_TRY(conv_of(&layout, t, err));
        if (layout == ESP_CONV_NONE)
            continue;
        if (first && layout != out->conv)
            return esp_fail(
                err, ESP_EFORMAT,
                "%s: tensors '%.160s' and '%.160s' have different layouts: raw and converted parts are mixed",
                esp_st_name(t->file), first->name, t->name);
        first = t;
        out->conv = layout;
    }
    return ESP_OK;
}

static esp_status decide_trunk(struct esp_names *out, struct esp_checkpoint *c, esp_error *err)
{
    const char *flag;

    ESP_TRY(find_conv(out, err));
    ESP_TRY(
        norm_flag(&flag, out->set[ESP_PART_TEXT], "espalier.norm_weights", c->config.norm_weights, c, err));
    if (*flag) {
        out->norms_shifted = strcmp(flag, "gamma") == 0;
        out->norms_why = "flag";
    } else if (out->conv != ESP_CONV_NONE) {
        out->norms_shifted = out->conv == ESP_CONV_CK1;
        out->norms_why = "conv1d shape";
    } else {
        out->norms_shifted = strncmp(out->prefix[ESP_PART_TEXT], "language_model.", 15) == 0;
        out->norms_why = "prefix";
        esp_warn(&c->warnings,
                 "%s: no conv1d weight tells whether norms include the +1; by the prefix '%s' they %s",
                 c->dir, out->prefix[ESP_PART_TEXT], out->norms_shifted ? "do" : "do not");
    }
    return ESP_OK;
}

static esp_status decide_mtp(struct esp_names *out, const struct esp_checkpoint *c, esp_error *err)
{
    const char *p = out->prefix[ESP_PART_MTP], *flag;

    out->mtp_norms_why = "";
    if (!out->set[ESP_PART_MTP])
        return ESP_OK;
    ESP_TRY(norm_flag(&flag, out->set[ESP_PART_MTP], "espalier.mtp_norm_weights", c->config.mtp_norm_weights,
                      c, err));
    out->mtp_norms_shifted =
        *flag ? strcmp(flag, "gamma") == 0 : *p == 0 || strncmp(p, "language_model.", 15) == 0;
    out->mtp_norms_why = *flag ? "flag" : "prefix";
    return ESP_OK;
}

/* ---- guard: compare norms of trunk and MTP ---- */

static float load_float(const struct esp_st_tensor *t, uint64_t i)
{
    uint16_t h;
    uint32_t u;
    float f;

    if (t->dtype == ESP_DTYPE_F32) {
        memcpy(&f, t->data + 4 * i, 4);
        return f;
    }
    memcpy(&h, t->data + 2 * i, 2);
    if (t->dtype == ESP_DTYPE_F16) {
        const int e = h >> 10 & 31, m = h & 1023;

        f = e == 0 ? ldexpf((float)m, -24) : e == 31 ? INFINITY : ldexpf((float)(m | 1024), e - 25);
        return h >> 15 ? -f : f;
    }
    u = (uint32_t)h << 16;
    memcpy(&f, &u, 4);
    return f;
}

/* Mean of the first few q_norm and input_layernorm weights of a part; false when it has none. */
static bool mean_norm(double *out, const struct esp_names *n, enum esp_part part)
{
    const struct esp_tensor_set *s = n->set[part];
    const char *prefix = n->prefix[part];
    double sum = 0;
    uint64_t count = 0;
    uint32_t i = 0, used = 0;

    for (esp_tensor_set_prefix(s, prefix, &i); i < s->n_tensor && used < GUARD_TENSORS; i++) {
        const struct esp_st_tensor *t = s->tensor[i];

        if (strncmp(t->name, prefix, strlen(prefix)) != 0)
            break;
        if (!ends_with(t->name, ".q_norm.weight") && !ends_with(t->name, ".input_layernorm.weight"))
            continue;
        if (t->n_dim != 1 || t->shape[0] > ESP_LIMIT_HIDDEN || !esp_dtype_is_weight_float(t->dtype))
            continue;
        for (uint64_t k = 0; k < t->shape[0]; k++)
            sum += load_float(t, k);
        count += t->shape[0];
        used++;
    }
    if (count == 0)
        return false;
    *out = sum / (double)count;
    return true;
}

static void guard_norms(const struct esp_names *n, struct esp_checkpoint *c)
{
    double trunk, mtp;

    if (!n->set[ESP_PART_MTP] || !mean_norm(&trunk, n, ESP_PART_TEXT) || !mean_norm(&mtp, n, ESP_PART_MTP))
        return;
    trunk += n->norms_shifted ? 0 : 1;
    mtp += n->mtp_norms_shifted ? 0 : 1;
    if (!(fabs(trunk - mtp) <= 0.5)) /* also when one is not a number */
        esp_warn(&c->warnings,
                 "%s: norm weights average %.3g in the trunk (%s) and %.3g in the MTP layer (%s): one of "
                 "them may have "
                 "been shifted wrongly",
                 c->dir, trunk, n->norms_why, mtp, n->mtp_norms_why);
}

/* ---- tied head ---- */

static bool same_tensor(const struct esp_st_tensor *a, const struct esp_st_tensor *b)
{
    if (!a || !b)
        return a == b;
    return a->dtype == b->dtype && a->n_dim == b->n_dim && memcmp(a->shape, b->shape, sizeof a->shape) == 0 &&
           a->bytes == b->bytes && (a->bytes == 0 || memcmp(a->data, b->data, a->bytes) == 0);
}

static bool head_is_copy(const struct esp_names *n)
{
    static const char *const field[] = {"weight", "scales", "biases"};

    for (size_t i = 0; i < 3; i++)
        if (!same_tensor(esp_names_find(n, ESP_PART_HEAD, "%s", field[i]),
                         esp_names_find(n, ESP_PART_TEXT, "embed_tokens.%s", field[i])))
            return false;
    return true;
}

static void drop_head(struct esp_names *n)
{
    n->tied = true;
    n->set[ESP_PART_HEAD] = NULL;
    n->prefix[ESP_PART_HEAD] = NULL;
}

static esp_status decide_head(struct esp_names *n, struct esp_checkpoint *c, esp_error *err)
{
    const struct esp_config *k = &c->config;
    const bool said_tied = (k->tied_top != ESP_TIED_UNSAID ? k->tied_top : k->tied_text) == ESP_TIED_YES;
    const struct esp_st_tensor *w;

    if (k->tied_top != ESP_TIED_UNSAID && k->tied_text != ESP_TIED_UNSAID && k->tied_top != k->tied_text)
        esp_warn(&c->warnings,
                 "%s: tie_word_embeddings is %s at the top of config.json and %s in text_config: the top "
                 "counts",
                 c->dir, k->tied_top == ESP_TIED_YES ? "true" : "false",
                 k->tied_text == ESP_TIED_YES ? "true" : "false");
    if (!n->set[ESP_PART_HEAD]) {
        if (!said_tied)
            return esp_fail(
                err, ESP_EFORMAT,
                "%s: no lm_head tensor, and the config does not say tie_word_embeddings true: the head is "
                "missing",
                c->dir);
        n->tied = true;
        return ESP_OK;
    }
    if (!said_tied)
        return ESP_OK;
    w = esp_names_find(n, ESP_PART_HEAD, "weight");
    if (head_is_copy(n)) {
        drop_head(n);
    } else if (!w || w->n_dim < 1 || w->shape[0] != k->vocab_size) {
        esp_warn(&c->warnings,
                 "%s: tied model with a left-over '%sweight' that is no head of %u rows: ignored", c->dir,
                 n->prefix[ESP_PART_HEAD], k->vocab_size);
        drop_head(n);
    } else {
        esp_warn(&c->warnings,
                 "%s: the config says tied, but '%.160s' differs from the embedding: the tensor is used",
                 c->dir, w->name);
    }
    return ESP_OK;
}

/* ---- public ---- */

esp_status esp_names_resolve(struct esp_names *out, struct esp_checkpoint *c, esp_error *err)
{
    struct esp_names n = {.norms_why = ""};

    choose_prefix(&n, ESP_PART_TEXT, &c->main, c);
    if (!n.set[ESP_PART_TEXT])
        return esp_fail(err, ESP_EFORMAT,
                        "%s: no text model: no tensor embed_tokens or layers.* behind model.language_model., "
                        "language_model.model., model. or nothing",
                        c->dir);
    choose_prefix(&n, ESP_PART_HEAD, &c->main, c);
    choose_prefix(&n, ESP_PART_VISION, &c->main, c);
    choose_mtp(&n, c);
    ESP_TRY(decide_trunk(&n, c, err));
    ESP_TRY(decide_mtp(&n, c, err));
    guard_norms(&n, c);
    ESP_TRY(decide_head(&n, c, err));
    *out = n;
    return ESP_OK;
}

esp_status esp_names_resolve_drafter(struct esp_names *out, struct esp_checkpoint *c, esp_error *err)
{
    struct esp_names n = {.norms_why = ""};

    choose_mtp(&n, c);
    if (!n.set[ESP_PART_MTP] && prefix_present(&c->main, ESP_PART_MTP, "")) {
        n.set[ESP_PART_MTP] = &c->main;
        n.prefix[ESP_PART_MTP] = "";
    }
    if (!n.set[ESP_PART_MTP])
        return esp_fail(err, ESP_EFORMAT,
                        "%s: no MTP layer: no tensor fc or layers.* behind mtp., language_model.mtp., "
                        "model.mtp. or nothing",
                        c->dir);
    ESP_TRY(decide_mtp(&n, c, err));
    *out = n;
    return ESP_OK;
}

/* False when the full name does not fit. */
static bool full_name(char out[MAX_NAME_BYTES], const struct esp_names *n, enum esp_part part,
                      const char *fmt, va_list ap)
{
    const size_t k = strlen(n->prefix[part]);
    int len;

    memcpy(out, n->prefix[part], k);
    len = vsnprintf(out + k, MAX_NAME_BYTES - k, fmt, ap);
    return len >= 0 && (size_t)len < MAX_NAME_BYTES - k;
}

const struct esp_st_tensor *esp_names_find(const struct esp_names *n, enum esp_part part, const char *fmt,
                                           ...)
{
    char name[MAX_NAME_BYTES];
    va_list ap;
    bool ok;

    if (!n->set[part])
        return NULL;
    va_start(ap, fmt);
    ok = full_name(name, n, part, fmt, ap);
    va_end(ap);
    return ok ? esp_tensor_set_find(n->set[part], name) : NULL;
}

esp_status esp_names_need(const struct esp_st_tensor **out, const struct esp_names *n, enum esp_part part,
                          esp_error *err, const char *fmt, ...)
{
    const struct esp_st_tensor *t;
    char name[MAX_NAME_BYTES];
    va_list ap;
    bool ok;

    if (!n->set[part])
        return esp_fail(err, ESP_ENOTFOUND, "the checkpoint has no %s tensors", esp_part_name(part));
    va_start(ap, fmt);
    ok = full_name(name, n, part, fmt, ap);
    va_end(ap);
    t = ok ? esp_tensor_set_find(n->set[part], name) : NULL;
    if (!t)
        return esp_fail(err, ESP_ENOTFOUND, "tensor '%.200s' is missing from %s%s", name,
                        esp_st_name(n->set[part]->file[0]),
                        n->set[part]->n_file > 1 ? " and its other shards" : "");
    ESP_TRY(esp_st_check(t, err));
    *out = t;
    return ESP_OK;
}
