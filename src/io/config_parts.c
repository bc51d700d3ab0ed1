/*
 * Rotary embedding, vision tower, sampling defaults and special ids of a config.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/config_parts.h"

#include <math.h>
#include <string.h>

/* ---- rotary embedding ---- */

/*
 * Newer files nest everything in rope_parameters (per layer type in some), older ones have rope_scaling and
 * keep rope_theta beside it.
 */
static esp_status find_rope(struct esp_cfg *rope, const struct esp_cfg *text, esp_error *err)
{
    struct esp_cfg old, full;

    ESP_TRY(esp_cfg_object(rope, text, "rope_parameters", "rope_parameters.", err));
    ESP_TRY(esp_cfg_object(&old, text, "rope_scaling", "rope_scaling.", err));
    if (!rope->object) {
        *rope = old;
        return ESP_OK;
    }
    if (old.object)
        esp_warn(text->w, "%s: both rope_parameters and rope_scaling: the first is used", text->file);
    ESP_TRY(esp_cfg_object(&full, rope, "full_attention", "rope_parameters.full_attention.", err));
    if (full.object)
        *rope = full;
    return ESP_OK;
}

/* From the rope object, else from beside it. */
static esp_status real_either(double *out, bool *found, const struct esp_cfg *const at[2], const char *key,
                              const double range[2], esp_error *err)
{
    double outer = 0;
    bool has_outer;

    ESP_TRY(esp_cfg_real(out, found, at[0], key, range, err));
    ESP_TRY(esp_cfg_real(&outer, &has_outer, at[1], key, range, err));
    if (*found && has_outer && outer != *out)
        esp_warn(at[0]->w, "%s: %s%s %g differs from %s%s %g: the first is used", at[0]->file, at[0]->where,
                 key, *out, at[1]->where, key, outer);
    if (!*found && has_outer) {
        *out = outer;
        *found = true;
    }
    return ESP_OK;
}

static esp_status read_type(enum esp_rope_type *out, const struct esp_cfg *rope, esp_error *err)
{
    const char *type, *old;

    ESP_TRY(esp_cfg_string(&type, rope, "rope_type", err));
    ESP_TRY(esp_cfg_string(&old, rope, "type", err));
    type = type ? type : old;
    *out = ESP_ROPE_DEFAULT;
    if (!type || strcmp(type, "default") == 0 || strcmp(type, "mrope") == 0)
        return ESP_OK;
    if (strcmp(type, "yarn") != 0)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "%s: %srope_type '%.60s' is not supported (supported: default, yarn)", rope->file,
                        rope->where, type);
    *out = ESP_ROPE_YARN;
    return ESP_OK;
}

static esp_status read_sections(struct esp_config_rope *r, const struct esp_cfg *rope,
                                const struct esp_cfg *text, esp_error *err)
{
    static const uint32_t family[3] = {11, 11, 10};
    const json_t *v = esp_cfg_get(rope, "mrope_section");
    const int64_t range[2] = {0, ESP_LIMIT_HIDDEN};
    uint64_t sum = 0;

    v = v ? v : esp_cfg_get(text, "mrope_section");
    if (!v)
        esp_warn(text->w, "%s: missing key mrope_section, taken as [11,11,10]", text->file);
    else if (!json_is_array(v) || json_array_size(v) != 3)
        return esp_fail(err, ESP_EFORMAT, "%s: mrope_section must be an array of 3 integers", text->file);
    for (size_t i = 0; i < 3; i++) {
        int64_t n = family[i];

        if (v)
            ESP_TRY(esp_cfg_number(&n, json_array_get(v, i), rope, "mrope_section", range, err));
        r->section[i] = (uint32_t)n;
        sum += r->section[i];
    }
    if (sum != r->rotary_dims / 2)
        return esp_fail(err, ESP_EFORMAT,
                        "%s: mrope_section [%u,%u,%u] sums to %u, half of the %u rotary dims is %u",
                        text->file, r->section[0], r->section[1], r->section[2], (unsigned)sum,
                        r->rotary_dims, r->rotary_dims / 2);
    return ESP_OK;
}

static esp_status read_yarn(struct esp_config_rope *r, const struct esp_cfg *rope, uint32_t max_position,
                            esp_error *err)
{
    static const double factor_range[2] = {1, 1024}, beta_range[2] = {1e-6, 1e6},
                        attention_range[2] = {1e-3, 1e3};
    static const char *const unsupported[] = {"mscale", "mscale_all_dim", "truncate"};
    const int64_t length[2] = {1, 1 << 30};
    int64_t n = 0;
    bool found;

    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++)
        if (esp_cfg_get(rope, unsupported[i]))
            return esp_fail(err, ESP_EUNSUPPORTED, "%s: %s%s is not supported with yarn", rope->file,
                            rope->where, unsupported[i]);
    ESP_TRY(esp_cfg_real(&r->factor, &found, rope, "factor", factor_range, err));
    if (!found)
        return esp_fail(err, ESP_EFORMAT, "%s: missing key %sfactor, needed with yarn", rope->file,
                        rope->where);
    ESP_TRY(esp_cfg_int(&n, &found, rope, "original_max_position_embeddings", length, err));
    if (!found) {
        n = max_position;
        esp_warn(rope->w, "%s: missing key %soriginal_max_position_embeddings, taken as %u", rope->file,
                 rope->where, max_position);
    }
    r->original_max = (uint32_t)n;
    r->beta_fast = 32;
    r->beta_slow = 1;
    ESP_TRY(esp_cfg_real(&r->beta_fast, &found, rope, "beta_fast", beta_range, err));
    ESP_TRY(esp_cfg_real(&r->beta_slow, &found, rope, "beta_slow", beta_range, err));
    if (r->beta_fast <= r->beta_slow)
        return esp_fail(err, ESP_EFORMAT, "%s: %sbeta_fast %g must be above beta_slow %g", rope->file,
                        rope->where, r->beta_fast, r->beta_slow);
    r->attention_factor = 0.1 * log(r->factor) + 1;
    return esp_cfg_real(&r->attention_factor, &found, rope, "attention_factor", attention_range, err);
}

esp_status esp_config_read_rope(struct esp_config *out, const struct esp_cfg *text, esp_error *err)
{
    static const double theta_range[2] = {1.0000001, 1e12}, partial_range[2] = {1e-6, 1};
    struct esp_config_rope *r = &out->rope;
    struct esp_cfg rope;
    const struct esp_cfg *const either[2] = {&rope, text};
    double dims;
    bool found, interleaved = true;

    ESP_TRY(find_rope(&rope, text, err));
    ESP_TRY(read_type(&r->type, &rope, err));
    ESP_TRY(real_either(&r->theta, &found, either, "rope_theta", theta_range, err));
    if (!found)
        return esp_fail(err, ESP_EFORMAT, "%s: missing key rope_theta, in %srope_parameters or beside it",
                        text->file, text->where);
    ESP_TRY(real_either(&r->partial, &found, either, "partial_rotary_factor", partial_range, err));
    if (!found) {
        r->partial = 0.25;
        esp_warn(text->w, "%s: missing key partial_rotary_factor, taken as 0.25", text->file);
    }
    dims = r->partial * out->head_dim;
    if (dims < 2 || fabs(dims - 2 * nearbyint(dims / 2)) > 1e-6)
        return esp_fail(err, ESP_EFORMAT,
                        "%s: partial_rotary_factor %g of head_dim %u gives %g rotary dims; an even number "
                        "from 2 to %u is "
                        "accepted",
                        text->file, r->partial, out->head_dim, dims, out->head_dim);
    r->rotary_dims = 2 * (uint32_t)nearbyint(dims / 2);
    ESP_TRY(esp_cfg_bool(&interleaved, &found, &rope, "mrope_interleaved", err));
    if (!interleaved)
        return esp_fail(err, ESP_EUNSUPPORTED, "%s: %smrope_interleaved false is not supported", text->file,
                        rope.where);
    ESP_TRY(read_sections(r, &rope, text, err));
    return r->type == ESP_ROPE_YARN ? read_yarn(r, &rope, out->max_position, err) : ESP_OK;
}

/* ---- vision ---- */

#define VISION(key, field, min, max, need, value)                                                            \
    {                                                                                                        \
        key, offsetof(struct esp_config_vision, field), min, max, ESP_NEED_##need, value                     \
    }

static const struct esp_cfg_field vision_fields[] = {
    VISION("depth", depth, 1, ESP_LIMIT_LAYERS, REQUIRED, 0),
    VISION("hidden_size", hidden, 1, ESP_LIMIT_HIDDEN, REQUIRED, 0),
    VISION("num_heads", n_head, 1, ESP_LIMIT_HIDDEN, REQUIRED, 0),
    VISION("intermediate_size", intermediate, 1, 16 * ESP_LIMIT_HIDDEN, REQUIRED, 0),
    VISION("out_hidden_size", out_hidden, 1, ESP_LIMIT_HIDDEN, REQUIRED, 0),
    VISION("patch_size", patch_size, 1, 256, FAMILY, 16),
    VISION("temporal_patch_size", temporal_patch_size, 1, 16, FAMILY, 2),
    VISION("spatial_merge_size", spatial_merge_size, 1, 16, FAMILY, 2),
    VISION("in_channels", in_channels, 1, 16, FAMILY, 3),
    VISION("num_position_embeddings", n_position, 1, 1 << 20, FAMILY, 2304),
};

static esp_status check_vision(struct esp_config_vision *v, const struct esp_cfg *c, uint32_t hidden,
                               esp_error *err)
{
    const json_t *deepstack = esp_cfg_get(c, "deepstack_visual_indexes");
    const char *act;

    if (deepstack && (!json_is_array(deepstack) || json_array_size(deepstack) > 0))
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "%s: %sdeepstack_visual_indexes is not empty: deepstack is not supported", c->file,
                        c->where);
    ESP_TRY(esp_cfg_string(&act, c, "hidden_act", err));
    if (act && strcmp(act, "gelu_pytorch_tanh") != 0)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "%s: %shidden_act '%.40s' is not supported (supported: gelu_pytorch_tanh)", c->file,
                        c->where, act);
    if (v->hidden % v->n_head != 0 || v->hidden / v->n_head % 4 != 0)
        return esp_fail(err, ESP_EFORMAT,
                        "%s: %shidden_size %u does not give num_heads %u a multiple of 4 dims each", c->file,
                        c->where, v->hidden, v->n_head);
    v->head_dim = v->hidden / v->n_head;
    if (v->out_hidden != hidden)
        return esp_fail(err, ESP_EFORMAT,
                        "%s: %sout_hidden_size %u differs from the text model's hidden_size %u", c->file,
                        c->where, v->out_hidden, hidden);
    v->position_side = (uint32_t)lround(sqrt(v->n_position));
    if (v->position_side * v->position_side != v->n_position)
        return esp_fail(err, ESP_EFORMAT, "%s: %snum_position_embeddings %u is not a square number", c->file,
                        c->where, v->n_position);
    return ESP_OK;
}

static esp_status read_vision_tokens(struct esp_config_vision *v, const struct esp_cfg *top, uint32_t vocab,
                                     esp_error *err)
{
    const struct {
        const char *key;
        uint32_t *out;
        uint32_t family;
    } ids[] = {
        {"image_token_id", &v->image_token, 248056},
        {"video_token_id", &v->video_token, 248057},
        {"vision_start_token_id", &v->vision_start_token, 248053},
        {"vision_end_token_id", &v->vision_end_token, 248054},
    };
    const int64_t range[2] = {0, (int64_t)vocab - 1};

    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        int64_t id = ids[i].family;
        bool found;

        ESP_TRY(esp_cfg_int(&id, &found, top, ids[i].key, range, err));
        if (!found && ids[i].family >= vocab)
            return esp_fail(err, ESP_EFORMAT, "%s: missing key %s, needed with vision_config", top->file,
                            ids[i].key);
        if (!found)
            esp_warn(top->w, "%s: missing key %s, taken as %u", top->file, ids[i].key, ids[i].family);
        *ids[i].out = (uint32_t)id;
    }
    return ESP_OK;
}

esp_status esp_config_read_vision(struct esp_config *out, const struct esp_cfg *top,
                                  const struct esp_cfg *text, esp_error *err)
{
    struct esp_config_vision v = {.present = true};
    struct esp_cfg c;
    bool language_only = false, found;

    ESP_TRY(esp_cfg_object(&c, top, "vision_config", "vision_config.", err));
    ESP_TRY(esp_cfg_bool(&language_only, &found, top, "language_model_only", err));
    if (!found)
        ESP_TRY(esp_cfg_bool(&language_only, &found, text, "language_model_only", err));
    if (!c.object || json_object_size(c.object) == 0 || language_only)
        return ESP_OK;
    ESP_TRY(esp_cfg_fields(&v, &c, vision_fields, sizeof vision_fields / sizeof vision_fields[0], err));
    ESP_TRY(check_vision(&v, &c, out->hidden, err));
    ESP_TRY(read_vision_tokens(&v, top, out->vocab_size, err));
    out->vision = v;
    return ESP_OK;
}

/* ---- generation ---- */

esp_status esp_config_read_generation(struct esp_config_generation *out, const struct esp_cfg *g,
                                      esp_error *err)
{
    const struct {
        const char *key;
        double *out;
        bool *has;
        double range[2];
    } reals[] = {
        {"temperature", &out->temperature, &out->has_temperature, {0, 100}},
        {"top_p", &out->top_p, &out->has_top_p, {1e-9, 1}},
        {"min_p", &out->min_p, &out->has_min_p, {0, 1}},
        {"repetition_penalty", &out->repetition_penalty, &out->has_repetition, {1e-6, 100}},
        {"presence_penalty", &out->presence_penalty, &out->has_presence, {-100, 100}},
        {"frequency_penalty", &out->frequency_penalty, &out->has_frequency, {-100, 100}},
    };
    const int64_t range[2] = {-1, INT32_MAX};
    int64_t k = 0;

    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++)
        ESP_TRY(esp_cfg_real(reals[i].out, reals[i].has, g, reals[i].key, reals[i].range, err));
    ESP_TRY(esp_cfg_bool(&out->do_sample, &out->has_do_sample, g, "do_sample", err));
    ESP_TRY(esp_cfg_int(&k, &out->has_top_k, g, "top_k", range, err));
    out->top_k = k < 0 ? 0 : (uint32_t)k;
    return ESP_OK;
}

static esp_status add_eos(struct esp_config *out, const json_t *v, const struct esp_cfg *c, esp_error *err)
{
    const int64_t range[2] = {0, (int64_t)out->vocab_size - 1};
    int64_t id;

    ESP_TRY(esp_cfg_number(&id, v, c, "eos_token_id", range, err));
    for (uint32_t i = 0; i < out->n_eos; i++)
        if (out->eos[i] == id)
            return ESP_OK;
    if (out->n_eos == ESP_CONFIG_MAX_EOS)
        return esp_fail(err, ESP_EFORMAT, "%s: more than %d different eos_token_id", c->file,
                        ESP_CONFIG_MAX_EOS);
    out->eos[out->n_eos++] = (uint32_t)id;
    return ESP_OK;
}

static esp_status read_eos(struct esp_config *out, const struct esp_cfg *c, esp_error *err)
{
    const json_t *v = esp_cfg_get(c, "eos_token_id");

    if (!v)
        return ESP_OK;
    if (!json_is_array(v))
        return add_eos(out, v, c, err);
    for (size_t i = 0; i < json_array_size(v); i++)
        ESP_TRY(add_eos(out, json_array_get(v, i), c, err));
    return ESP_OK;
}

/* The first place that has one; a list (seen for pad) is taken by its first id. */
static esp_status read_single(int64_t *out, const struct esp_cfg *const at[3], const char *key,
                              esp_error *err)
{
    const int64_t range[2] = {-1, ESP_LIMIT_VOCAB};

    *out = -1;
    for (size_t i = 0; i < 3; i++) {
        const json_t *v = esp_cfg_get(at[i], key);

        if (json_is_array(v))
            v = json_array_get(v, 0);
        if (v)
            return esp_cfg_number(out, v, at[i], key, range, err);
    }
    return ESP_OK;
}

esp_status esp_config_read_special(struct esp_config *out, const struct esp_cfg *generation,
                                   const struct esp_cfg *top, const struct esp_cfg *text, esp_error *err)
{
    const struct esp_cfg *const at[3] = {generation, top, text};

    for (size_t i = 0; i < 3; i++)
        ESP_TRY(read_eos(out, at[i], err));
    if (out->n_eos == 0)
        esp_warn(top->w, "%s: no eos_token_id anywhere: generation ends only by length or stop strings",
                 top->file);
    ESP_TRY(read_single(&out->bos, at, "bos_token_id", err));
    return read_single(&out->pad, at, "pad_token_id", err);
}
