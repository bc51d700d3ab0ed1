/*
 * See plan.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/plan.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"

enum { TRELLIS_BLOCK = 256, SIGN_GROUP = 64 };

static const char *const METHODS[ESP_METHOD_COUNT] = {"keep", "rtn", "gptq", "trellis"};

const char *esp_method_name(enum esp_quantize_method m)
{
    return METHODS[m];
}

esp_status esp_method_parse(enum esp_quantize_method *out, const char *name, esp_error *err)
{
    for (int i = 0; i < ESP_METHOD_COUNT; i++)
        if (strcmp(name, METHODS[i]) == 0) {
            *out = (enum esp_quantize_method)i;
            return ESP_OK;
        }
    return esp_fail(err, ESP_EINVAL, "method '%s'; known: rtn, gptq, trellis, and keep in recipes", name);
}

/* ---- shapes ---- */

static enum esp_format_id affine_format(uint32_t bits)
{
    switch (bits) {
    case 2:
        return ESP_FORMAT_AFFINE2;
    case 3:
        return ESP_FORMAT_AFFINE3;
    case 4:
        return ESP_FORMAT_AFFINE4;
    case 5:
        return ESP_FORMAT_AFFINE5;
    case 6:
        return ESP_FORMAT_AFFINE6;
    default:
        return ESP_FORMAT_AFFINE8;
    }
}

struct esp_weight esp_choice_weight(const struct esp_choice *c, uint32_t n_out, uint32_t n_in)
{
    return (struct esp_weight){.format = affine_format(c->bits),
                               .scale_type = ESP_SCALE_BF16,
                               .n_out = n_out,
                               .n_in = n_in,
                               .group = c->group,
                               .row_bytes = (size_t)n_in * c->bits / 8,
                               .scale_row_bytes = (size_t)n_in / c->group * 2};
}

double esp_choice_bits(const struct esp_choice *c, uint32_t n_out, uint32_t n_in)
{
    switch (c->method) {
    case ESP_METHOD_TRELLIS:
        return c->bits + 16.0 / (c->axis ? n_in : n_out);
    case ESP_METHOD_RTN:
    case ESP_METHOD_GPTQ:
        return c->bits + 32.0 / c->group;
    default:
        return c->dtype == ESP_DTYPE_F32 ? 32 : 16;
    }
}

bool esp_choice_fits(struct esp_choice *c, const char *name, uint32_t n_out, uint32_t n_in)
{
    if (c->method == ESP_METHOD_KEEP)
        return true;
    if (c->method != ESP_METHOD_TRELLIS)
        return n_in % c->group == 0;
    /* Codes run along the residual stream: outputs of what writes to it, inputs of what reads from it. */
    c->axis = strstr(name, "down_proj") || strstr(name, "o_proj") || strstr(name, "out_proj") ? 0 : 1;
    if ((c->axis ? n_in : n_out) % TRELLIS_BLOCK != 0)
        c->axis = !c->axis;
    return (c->axis ? n_in : n_out) % TRELLIS_BLOCK == 0;
}

static void plane(struct esp_plane *p, const char *module, const char *suffix, enum esp_dtype d, uint64_t a,
                  uint64_t b)
{
    snprintf(p->name, sizeof p->name, "%s%s", module, suffix);
    p->dtype = d;
    p->n_dim = b ? 2 : 1;
    p->shape[0] = a;
    p->shape[1] = b;
    p->bytes = (size_t)(a * (b ? b : 1)) * esp_dtype_size(d);
}

static void module_of(char out[256], const char *stored)
{
    const size_t len = strlen(stored), tail = strlen(".weight");

    snprintf(out, 256, "%s", stored);
    if (len > tail && strcmp(stored + len - tail, ".weight") == 0)
        out[len - tail] = 0;
}

uint32_t esp_plan_planes(const struct esp_plan_row *r, struct esp_plane out[3])
{
    const struct esp_choice *c = &r->choice;
    const uint64_t rows = c->axis ? r->n_out : r->n_in, cols = c->axis ? r->n_in : r->n_out;
    char module[256];

    module_of(module, r->stored);
    switch (c->method) {
    case ESP_METHOD_TRELLIS:
        plane(&out[0], module, ".weight", ESP_DTYPE_U32, rows, cols * c->bits / 32);
        plane(&out[1], module, ".scales", ESP_DTYPE_F16, rows, 0);
        return 2;
    case ESP_METHOD_RTN:
    case ESP_METHOD_GPTQ:
        plane(&out[0], module, ".weight", ESP_DTYPE_U32, r->n_out, (uint64_t)r->n_in * c->bits / 32);
        plane(&out[1], module, ".scales", ESP_DTYPE_BF16, r->n_out, r->n_in / c->group);
        plane(&out[2], module, ".biases", ESP_DTYPE_BF16, r->n_out, r->n_in / c->group);
        return 3;
    default:
        snprintf(out[0].name, sizeof out[0].name, "%s", r->stored);
        out[0].dtype = c->dtype == ESP_DTYPE_NONE ? r->t->dtype : c->dtype;
        out[0].n_dim = r->t->n_dim;
        memcpy(out[0].shape, r->t->shape, sizeof out[0].shape);
        out[0].bytes = r->t->bytes;
        if (c->dtype != ESP_DTYPE_NONE)
            out[0].bytes = (size_t)esp_st_elements(r->t) * esp_dtype_size(c->dtype);
        return 1;
    }
}

uint64_t esp_plan_row_bytes(const struct esp_plan_row *r)
{
    struct esp_plane p[3];
    uint64_t sum = 0;

    for (uint32_t i = 0, n = esp_plan_planes(r, p); i < n; i++)
        sum += p[i].bytes;
    return sum;
}

/* ---- rows ---- */

static void classify(struct esp_plan_row *r, const struct esp_names *names, const struct esp_tensor_set *set)
{
    size_t best = 0;
    bool found = false;

    r->part = ESP_PART_COUNT;
    for (int p = 0; p < ESP_PART_COUNT; p++) {
        const char *prefix = names->prefix[p];
        size_t len;

        if (names->set[p] != set || !prefix)
            continue;
        len = strlen(prefix);
        if (strncmp(r->t->name, prefix, len) == 0 && (!found || len > best)) {
            r->part = (enum esp_part)p;
            best = len;
            found = true;
        }
    }
    snprintf(r->name, sizeof r->name, "%s", r->t->name + best);
    /* tensors of a side file come into the main ones */
    if (found && best == 0 && r->part == ESP_PART_MTP)
        snprintf(r->stored, sizeof r->stored, "mtp.%s", r->t->name);
    else
        snprintf(r->stored, sizeof r->stored, "%s", r->t->name);
}

static void find_site(struct esp_plan_row *r)
{
    static const struct {
        const char *glob;
        enum esp_site site;
    } SITES[] = {
        {"layers.*.self_attn.[qkv]_proj.weight", ESP_SITE_MIXER},
        {"layers.*.linear_attn.in_proj_qkv.weight", ESP_SITE_MIXER},
        {"layers.*.linear_attn.in_proj_z.weight", ESP_SITE_MIXER},
        {"layers.*.self_attn.o_proj.weight", ESP_SITE_OUT},
        {"layers.*.linear_attn.out_proj.weight", ESP_SITE_OUT},
        {"layers.*.mlp.gate_proj.weight", ESP_SITE_MLP},
        {"layers.*.mlp.up_proj.weight", ESP_SITE_MLP},
        {"layers.*.mlp.down_proj.weight", ESP_SITE_DOWN},
    };
    const size_t len = strlen(r->name), tail = strlen(".weight");

    r->layer = UINT32_MAX;
    r->matrix = r->t->n_dim == 2 && ((len > tail && strcmp(r->name + len - tail, ".weight") == 0) ||
                                     strcmp(r->name, "weight") == 0);
    r->n_out = r->matrix ? (uint32_t)r->t->shape[0] : 1;
    r->n_in = r->matrix ? (uint32_t)r->t->shape[1] : 0;
    if (r->part != ESP_PART_TEXT)
        return;
    if (strncmp(r->name, "layers.", 7) == 0)
        r->layer = (uint32_t)strtoul(r->name + 7, NULL, 10);
    for (size_t i = 0; r->matrix && i < sizeof SITES / sizeof SITES[0]; i++)
        if (fnmatch(SITES[i].glob, r->name, 0) == 0) {
            r->layer_matrix = true;
            r->site = SITES[i].site;
        }
}

static esp_status add_set(struct esp_plan_list *p, const struct esp_plan_input *in,
                          const struct esp_tensor_set *set)
{
    for (uint32_t i = 0; i < set->n_tensor; i++) {
        struct esp_plan_row *r = &p->rows[p->n];

        *r = (struct esp_plan_row){.t = set->tensor[i], .loss = -1};
        classify(r, in->names, set);
        if (r->part == ESP_PART_HEAD && in->names->tied)
            continue; /* a copy of the embedding, or of no use */
        find_site(r);
        p->n++;
    }
    return ESP_OK;
}

/* A tied head does not stay tied when the final gain is folded into it. */
static void add_head(struct esp_plan_list *p, const struct esp_plan_input *in)
{
    struct esp_plan_row *r = &p->rows[p->n];

    if (!in->fold->on || !in->names->tied)
        return;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->rows[i].part == ESP_PART_TEXT && strcmp(p->rows[i].name, "embed_tokens.weight") == 0) {
            *r = p->rows[i];
            r->part = ESP_PART_HEAD;
            snprintf(r->name, sizeof r->name, "weight");
            snprintf(r->stored, sizeof r->stored, "%slm_head.weight",
                     strcmp(in->names->prefix[ESP_PART_TEXT], "language_model.model.") == 0
                         ? "language_model."
                         : "");
            r->made = true;
            p->makes_head = true;
            p->n++;
            return;
        }
}

/* What a folded model's MTP layer needs to leave its basis and come back. Signs are exact in two bits. */
static esp_status add_made(struct esp_plan_list *p, const struct esp_plan_input *in, esp_error *err)
{
    const uint32_t h = in->fold->hidden;

    if (!in->fold->on || !in->names->set[ESP_PART_MTP])
        return ESP_OK;
    p->made = esp_alloc_array(ESP_FOLD_MADE_COUNT, sizeof *p->made);
    if (!p->made)
        return esp_fail(err, ESP_ENOMEM, "plan: out of memory");
    for (int m = 0; m < ESP_FOLD_MADE_COUNT; m++) {
        const bool matrix = m != ESP_FOLD_PLAIN_NORM;
        const char *prefix = in->names->prefix[ESP_PART_MTP];
        struct esp_plan_row *r = &p->rows[p->n++];

        *r = (struct esp_plan_row){.t = &p->made[m],
                                   .part = ESP_PART_MTP,
                                   .matrix = matrix,
                                   .layer = UINT32_MAX,
                                   .n_out = matrix ? h : 1,
                                   .n_in = matrix ? h : 0,
                                   .made = true,
                                   .made_as = (enum esp_fold_made)m,
                                   .loss = -1};
        snprintf(r->name, sizeof r->name, "%s.weight", esp_fold_made_name(r->made_as));
        snprintf(r->stored, sizeof r->stored, "%s%s", prefix && *prefix ? prefix : "mtp.", r->name);
        p->made[m] = (struct esp_st_tensor){.name = r->stored,
                                            .dtype = ESP_DTYPE_F32,
                                            .n_dim = matrix ? 2 : 1,
                                            .shape = {h, matrix ? h : 0},
                                            .bytes = (size_t)h * (matrix ? h : 1) * sizeof(float)};
        r->choice =
            (struct esp_choice){.method = ESP_METHOD_KEEP, .dtype = matrix ? ESP_DTYPE_BF16 : ESP_DTYPE_F32};
        if (matrix && h % SIGN_GROUP == 0)
            r->choice = (struct esp_choice){.method = ESP_METHOD_RTN, .bits = 2, .group = SIGN_GROUP};
    }
    return ESP_OK;
}

/* ---- choices ---- */

static struct esp_choice default_choice(const struct esp_plan_input *in, const struct esp_plan_row *r)
{
    struct esp_choice c = {.method = in->method, .bits = in->bits, .group = in->group};

    if (c.method != ESP_METHOD_TRELLIS || r->site == ESP_SITE_MLP || r->site == ESP_SITE_DOWN)
        return c;
    c.method = ESP_METHOD_GPTQ;
    c.bits = c.bits < 4 ? 4 : c.bits == 7 ? 8 : c.bits;
    return c;
}

static bool matches(const struct esp_plan_row *r, const char *pattern)
{
    char module[256], stored[256];

    module_of(module, r->name);
    module_of(stored, r->stored);
    return fnmatch(pattern, module, 0) == 0 || fnmatch(pattern, stored, 0) == 0 ||
           fnmatch(pattern, r->stored, 0) == 0;
}

static esp_status keep_dtype(enum esp_dtype *out, const char *name, const char *text, esp_error *err)
{
    static const struct {
        const char *name;
        enum esp_dtype d;
    } known[] = {{"bf16", ESP_DTYPE_BF16}, {"f16", ESP_DTYPE_F16}, {"f32", ESP_DTYPE_F32}};

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(name, known[i].name) == 0) {
            *out = known[i].d;
            return ESP_OK;
        }
    return esp_fail(err, ESP_EINVAL, "keep '%s': '%s' is no type to keep; bf16, f16 and f32 are", text, name);
}

static esp_status apply_keep(struct esp_plan_list *p, const char *text, esp_error *err)
{
    const char *eq = strrchr(text, '=');
    enum esp_dtype d;
    char pattern[256];
    uint32_t n = 0;

    if (!eq || eq == text || (size_t)(eq - text) >= sizeof pattern)
        return esp_fail(err, ESP_EINVAL, "keep '%s': write PATTERN=dtype, such as '*down_proj=bf16'", text);
    snprintf(pattern, sizeof pattern, "%.*s", (int)(eq - text), text);
    ESP_TRY(keep_dtype(&d, eq + 1, text, err));
    for (uint32_t i = 0; i < p->n; i++) {
        struct esp_plan_row *r = &p->rows[i];

        if (!r->matrix || !esp_dtype_is_weight_float(r->t->dtype) || !matches(r, pattern))
            continue;
        r->choice =
            (struct esp_choice){.method = ESP_METHOD_KEEP, .dtype = d == r->t->dtype ? ESP_DTYPE_NONE : d};
        r->why = "asked to keep";
        n++;
    }
    return n ? ESP_OK : esp_fail(err, ESP_EINVAL, "keep '%s': no matrix of the model is called so", text);
}

static bool affine_bits(json_int_t b)
{
    return b == 2 || b == 3 || b == 4 || b == 5 || b == 6 || b == 8;
}

static esp_status recipe_choice(struct esp_choice *out, const json_t *e, const char *name, uint32_t group,
                                esp_error *err)
{
    const char *method = json_string_value(json_object_get(e, "method")),
               *dtype = json_string_value(json_object_get(e, "dtype"));
    const json_t *g = json_object_get(e, "group");
    const json_int_t bits = json_integer_value(json_object_get(e, "bits"));
    struct esp_choice c = {.group = g ? (uint32_t)json_integer_value(g) : group};

    if (!json_is_object(e) || !method)
        return esp_fail(err, ESP_EFORMAT, "recipe: %s: an object with \"method\" is expected", name);
    ESP_TRY(esp_method_parse(&c.method, method, err));
    if (c.method == ESP_METHOD_KEEP) {
        c.group = 0;
        if (dtype)
            ESP_TRY(keep_dtype(&c.dtype, dtype, name, err));
    } else if (c.method == ESP_METHOD_TRELLIS ? bits < 1 || bits > 8 : !affine_bits(bits)) {
        return esp_fail(err, ESP_EINVAL, "recipe: %s: %lld bits; affine has 2 3 4 5 6 8, trellis 1 to 8",
                        name, (long long)bits);
    } else if (c.method != ESP_METHOD_TRELLIS && c.group != 32 && c.group != 64 && c.group != 128) {
        return esp_fail(err, ESP_EINVAL, "recipe: %s: group %u; 32, 64 and 128 are possible", name, c.group);
    }
    c.bits = (uint32_t)bits;
    *out = c;
    return ESP_OK;
}

static esp_status recipe_row(struct esp_plan_list *p, const struct esp_plan_input *in, const char *name,
                             const json_t *e, esp_error *err)
{
    for (uint32_t i = 0; i < p->n; i++) {
        struct esp_plan_row *r = &p->rows[i];
        char module[256];

        module_of(module, r->stored);
        if (strcmp(module, name) != 0)
            continue;
        ESP_TRY(recipe_choice(&r->choice, e, name, in->group, err));
        if (r->choice.method != ESP_METHOD_KEEP && !r->matrix)
            return esp_fail(err, ESP_EINVAL, "recipe: %s is no matrix", name);
        if (!r->layer_matrix && r->choice.method != ESP_METHOD_KEEP && r->choice.method != ESP_METHOD_RTN)
            return esp_fail(err, ESP_EINVAL,
                            "recipe: %s: its inputs are not measured; rtn and keep are possible", name);
        if (r->choice.dtype == r->t->dtype)
            r->choice.dtype = ESP_DTYPE_NONE;
        r->fixed = true;
        r->why = r->choice.method == ESP_METHOD_KEEP ? "recipe" : NULL;
        return ESP_OK;
    }
    return esp_fail(err, ESP_EINVAL, "recipe: the model has no tensor %s.weight", name);
}

static esp_status apply_recipe(struct esp_plan_list *p, const struct esp_plan_input *in, esp_error *err)
{
    json_t *top, *e;
    const json_t *tensors;
    const char *name;
    esp_status s = ESP_OK;

    ESP_TRY(esp_json_load(&top, in->opts->recipe, ESP_LIMIT_CONFIG_BYTES, ESP_JSON_NO_DUPLICATES, err));
    tensors = json_object_get(top, "tensors");
    if (!json_is_object(tensors))
        s = esp_fail(err, ESP_EFORMAT, "%s: no object \"tensors\"", in->opts->recipe);
    if (s == ESP_OK) {
        json_object_foreach((json_t *)(uintptr_t)tensors, name, e)
        {
            s = recipe_row(p, in, name, e, err);
            if (s != ESP_OK)
                break;
        }
    }
    json_decref(top);
    return s;
}

static void settle(struct esp_plan_list *p, const struct esp_plan_input *in)
{
    for (uint32_t i = 0; i < p->n; i++) {
        struct esp_plan_row *r = &p->rows[i];

        if (in->fold->on && r->part == ESP_PART_MTP && strcmp(r->name, "norm.weight") == 0 &&
            r->t->dtype != ESP_DTYPE_F32)
            r->choice.dtype = ESP_DTYPE_F32; /* a quotient of two gains: 16 bits would round it */
        if (!esp_choice_fits(&r->choice, r->name, r->n_out, r->n_in)) {
            r->why = r->choice.method == ESP_METHOD_TRELLIS ? "size is no multiple of 256"
                                                            : "size is no multiple of the group";
            r->choice = (struct esp_choice){.method = ESP_METHOD_KEEP};
        }
        r->computed = r->choice.method != ESP_METHOD_KEEP || r->choice.dtype != ESP_DTYPE_NONE ||
                      esp_fold_touches(in->fold, r->part, r->name);
    }
}

void esp_plan_free(struct esp_plan_list *p)
{
    esp_free(p->rows);
    esp_free(p->made);
    memset(p, 0, sizeof *p);
}

esp_status esp_plan_make(struct esp_plan_list *out, const struct esp_plan_input *in, esp_error *err)
{
    struct esp_plan_list p = {0};
    esp_status s = ESP_OK;

    p.rows = esp_alloc_array((size_t)in->ck->main.n_tensor + in->ck->side.n_tensor + 1 + ESP_FOLD_MADE_COUNT,
                             sizeof *p.rows);
    if (!p.rows)
        return esp_fail(err, ESP_ENOMEM, "plan: out of memory");
    ESP_TRY(add_set(&p, in, &in->ck->main));
    ESP_TRY(add_set(&p, in, &in->ck->side));
    add_head(&p, in);
    for (uint32_t i = 0; i < p.n; i++)
        if (p.rows[i].layer_matrix)
            p.rows[i].choice = default_choice(in, &p.rows[i]);
    if (in->opts->recipe)
        s = apply_recipe(&p, in, err);
    for (size_t i = 0; s == ESP_OK && i < in->opts->n_keep; i++)
        s = apply_keep(&p, in->opts->keep[i], err);
    if (s == ESP_OK)
        s = add_made(&p, in, err);
    if (s != ESP_OK) {
        esp_plan_free(&p);
        return s;
    }
    settle(&p, in);
    *out = p;
    return ESP_OK;
}

static json_t *recipe_entry(const struct esp_plan_row *r)
{
    const struct esp_choice *c = &r->choice;
    json_t *e = json_pack("{s:s}", "method", METHODS[c->method]);

    if (!e)
        return NULL;
    if (c->method == ESP_METHOD_KEEP) {
        if (c->dtype != ESP_DTYPE_NONE)
            json_object_set_new(e, "dtype",
                                json_string(c->dtype == ESP_DTYPE_BF16  ? "bf16"
                                            : c->dtype == ESP_DTYPE_F16 ? "f16"
                                                                        : "f32"));
        return e;
    }
    json_object_set_new(e, "bits", json_integer(c->bits));
    if (c->method != ESP_METHOD_TRELLIS)
        json_object_set_new(e, "group", json_integer(c->group));
    if (r->loss >= 0)
        json_object_set_new(e, "loss", json_real(r->loss));
    return e;
}

json_t *esp_plan_recipe(const struct esp_plan_list *p, bool folded, uint64_t seed)
{
    json_t *top = json_pack("{s:i,s:b,s:I,s:{}}", "espalier_recipe", 1, "fold", (int)folded, "seed",
                            (json_int_t)seed, "tensors");
    json_t *tensors = json_object_get(top, "tensors");

    for (uint32_t i = 0; top && i < p->n; i++) {
        const struct esp_plan_row *r = &p->rows[i];
        char module[256];

        if (!r->layer_matrix && r->choice.method == ESP_METHOD_KEEP && r->choice.dtype == ESP_DTYPE_NONE)
            continue;
        if (r->made && r->part == ESP_PART_MTP)
            continue; /* follows from the fold */
        module_of(module, r->stored);
        if (json_object_set_new(tensors, module, recipe_entry(r)) != 0) {
            json_decref(top);
            return NULL;
        }
    }
    return top;
}
