/*
 * config.json: architecture, sizes, layer kinds; the other parts are in config_parts.c and config_quant.c.
 * Read as tables of fields, so that every key has its range beside it. Source: published configs of the
 * family.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/config.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "io/config_parts.h"
#include "io/config_quant.h"

/* ---- architecture ---- */

static const struct {
    const char *name;
    enum esp_arch arch;
} arch_names[] = {
    {"Qwen3_5ForConditionalGeneration", ESP_ARCH_QWEN35},
    {"Qwen3_5ForCausalLM", ESP_ARCH_QWEN35},
    {"Qwen3_5MoeForConditionalGeneration", ESP_ARCH_QWEN35_MOE},
    {"Qwen3_5MoeForCausalLM", ESP_ARCH_QWEN35_MOE},
    {"qwen3_5", ESP_ARCH_QWEN35},
    {"qwen3_5_text", ESP_ARCH_QWEN35},
    {"qwen3_5_moe", ESP_ARCH_QWEN35_MOE},
    {"qwen3_5_moe_text", ESP_ARCH_QWEN35_MOE},
};

const char *esp_arch_name(enum esp_arch a)
{
    return a == ESP_ARCH_QWEN35 ? "qwen3_5" : a == ESP_ARCH_QWEN35_MOE ? "qwen3_5_moe" : "none";
}

static enum esp_arch find_arch(const char *name)
{
    for (size_t i = 0; i < sizeof arch_names / sizeof arch_names[0]; i++)
        if (strcmp(name, arch_names[i].name) == 0)
            return arch_names[i].arch;
    return ESP_ARCH_NONE;
}

static esp_status add_arch(struct esp_config *out, const char *name, const struct esp_cfg *c, esp_error *err)
{
    const enum esp_arch a = find_arch(name);

    if (a == ESP_ARCH_NONE)
        return esp_fail(
            err, ESP_EUNSUPPORTED,
            "%s: architecture '%.80s' is not supported (supported: Qwen3_5ForConditionalGeneration, "
            "Qwen3_5ForCausalLM, Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeForCausalLM)",
            c->file, name);
    if (out->arch != ESP_ARCH_NONE && out->arch != a)
        return esp_fail(err, ESP_EFORMAT, "%s: %smodel_type '%s' contradicts '%s'", c->file, c->where, name,
                        out->architecture);
    if (out->arch == ESP_ARCH_NONE)
        snprintf(out->architecture, sizeof out->architecture, "%s", name);
    out->arch = a;
    return ESP_OK;
}

static esp_status read_arch(struct esp_config *out, const struct esp_cfg *top, const struct esp_cfg *text,
                            esp_error *err)
{
    const json_t *list = esp_cfg_get(top, "architectures");
    const char *type, *text_type;

    if (list && (!json_is_array(list) || !json_is_string(json_array_get(list, 0))))
        return esp_fail(err, ESP_EFORMAT, "%s: architectures must be an array of names", top->file);
    if (list)
        ESP_TRY(add_arch(out, json_string_value(json_array_get(list, 0)), top, err));
    ESP_TRY(esp_cfg_string(&type, top, "model_type", err));
    ESP_TRY(esp_cfg_string(&text_type, text, "model_type", err));
    if (type)
        ESP_TRY(add_arch(out, type, top, err));
    if (text_type && text->object != top->object)
        ESP_TRY(add_arch(out, text_type, text, err));
    if (out->arch == ESP_ARCH_NONE)
        return esp_fail(err, ESP_EFORMAT,
                        "%s: missing keys architectures and model_type: not a model's config", top->file);
    snprintf(out->model_type, sizeof out->model_type, "%s", type ? type : text_type ? text_type : "");
    return ESP_OK;
}

/* ---- sizes ---- */

/* Widths of projections; far above any model, low enough that products of two fit 64 bits with ease. */
#define MAX_WIDTH (16u * ESP_LIMIT_HIDDEN)

#define FIELD(key, field, min, max, need, value)                                                             \
    {                                                                                                        \
        key, offsetof(struct esp_config, field), min, max, ESP_NEED_##need, value                            \
    }

static const struct esp_cfg_field text_fields[] = {
    FIELD("vocab_size", vocab_size, 1, ESP_LIMIT_VOCAB, REQUIRED, 0),
    FIELD("hidden_size", hidden, 1, ESP_LIMIT_HIDDEN, REQUIRED, 0),
    FIELD("num_hidden_layers", n_layer, 1, ESP_LIMIT_LAYERS, REQUIRED, 0),
    FIELD("num_attention_heads", n_head, 1, ESP_LIMIT_HIDDEN, REQUIRED, 0),
    FIELD("num_key_value_heads", n_kv_head, 1, ESP_LIMIT_HIDDEN, REQUIRED, 0),
    FIELD("head_dim", head_dim, 2, ESP_LIMIT_HIDDEN, FAMILY, 256),
    FIELD("linear_num_key_heads", lin_k_head, 1, ESP_LIMIT_HIDDEN, REQUIRED, 0),
    FIELD("linear_num_value_heads", lin_v_head, 1, ESP_LIMIT_HIDDEN, REQUIRED, 0),
    FIELD("linear_key_head_dim", lin_k_dim, 1, ESP_LIMIT_HIDDEN, FAMILY, 128),
    FIELD("linear_value_head_dim", lin_v_dim, 1, ESP_LIMIT_HIDDEN, FAMILY, 128),
    FIELD("linear_conv_kernel_dim", conv_kernel, 1, 64, FAMILY, 4),
    FIELD("max_position_embeddings", max_position, 1, 1 << 30, FAMILY, 262144),
    FIELD("mtp_num_hidden_layers", n_mtp_layer, 0, 16, SILENT, 0),
};

static const struct esp_cfg_field dense_fields[] = {
    FIELD("intermediate_size", ffn, 1, MAX_WIDTH, REQUIRED, 0),
};

static const struct esp_cfg_field moe_fields[] = {
    FIELD("num_experts", n_expert, 1, 65536, REQUIRED, 0),
    FIELD("num_experts_per_tok", n_expert_used, 1, 65536, REQUIRED, 0),
    FIELD("moe_intermediate_size", expert_ffn, 1, MAX_WIDTH, REQUIRED, 0),
    FIELD("shared_expert_intermediate_size", shared_ffn, 1, MAX_WIDTH, REQUIRED, 0),
};

static esp_status read_moe(struct esp_config *out, const struct esp_cfg *text, esp_error *err)
{
    const json_t *dense = esp_cfg_get(text, "mlp_only_layers");
    const int64_t one[2] = {1, 1};
    int64_t step;
    bool found;

    ESP_TRY(esp_cfg_fields(out, text, moe_fields, sizeof moe_fields / sizeof moe_fields[0], err));
    if (out->n_expert_used > out->n_expert)
        return esp_fail(err, ESP_EFORMAT, "%s: %snum_experts_per_tok %u is above num_experts %u", text->file,
                        text->where, out->n_expert_used, out->n_expert);
    if (dense && (!json_is_array(dense) || json_array_size(dense) > 0))
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "%s: %smlp_only_layers is not empty: mixed layers are not supported", text->file,
                        text->where);
    ESP_TRY(esp_cfg_int(&step, &found, text, "decoder_sparse_step", one, err));
    out->norm_topk_prob = true;
    return esp_cfg_bool(&out->norm_topk_prob, &found, text, "norm_topk_prob", err);
}

static esp_status check_width(const struct esp_cfg *c, const char *what, uint64_t width, esp_error *err)
{
    if (width <= MAX_WIDTH)
        return ESP_OK;
    return esp_fail(err, ESP_EFORMAT, "%s: %s is %llu wide, at most %u is accepted", c->file, what,
                    (unsigned long long)width, MAX_WIDTH);
}

static esp_status check_sizes(const struct esp_config *c, const struct esp_cfg *text, esp_error *err)
{
    const uint64_t key = (uint64_t)c->lin_k_head * c->lin_k_dim,
                   value = (uint64_t)c->lin_v_head * c->lin_v_dim;

    if (c->n_head % c->n_kv_head != 0)
        return esp_fail(err, ESP_EFORMAT,
                        "%s: %snum_attention_heads %u is not a multiple of num_key_value_heads %u",
                        text->file, text->where, c->n_head, c->n_kv_head);
    if (c->lin_v_head % c->lin_k_head != 0)
        return esp_fail(err, ESP_EFORMAT,
                        "%s: %slinear_num_value_heads %u is not a multiple of linear_num_key_heads %u",
                        text->file, text->where, c->lin_v_head, c->lin_k_head);
    if (c->head_dim % 2 != 0)
        return esp_fail(err, ESP_EFORMAT, "%s: %shead_dim %u is odd", text->file, text->where, c->head_dim);
    ESP_TRY(check_width(text, "the query projection", 2ull * c->n_head * c->head_dim, err));
    return check_width(text, "the linear-attention projection", 2 * key + value, err);
}

/* ---- layers, switches ---- */

static esp_status read_layer_list(struct esp_config *out, const json_t *list, const struct esp_cfg *text,
                                  esp_error *err)
{
    if (!json_is_array(list) || json_array_size(list) != out->n_layer)
        return esp_fail(err, ESP_EFORMAT,
                        "%s: %slayer_types must be an array of num_hidden_layers = %u names, found %zu",
                        text->file, text->where, out->n_layer, json_array_size(list));
    for (uint32_t i = 0; i < out->n_layer; i++) {
        const char *s = json_string_value(json_array_get(list, i));

        if (!s)
            return esp_fail(err, ESP_EFORMAT, "%s: %slayer_types[%u] is not a string", text->file,
                            text->where, i);
        out->is_full[i] = strcmp(s, "full_attention") == 0;
        if (!out->is_full[i] && strcmp(s, "linear_attention") != 0)
            return esp_fail(err, ESP_EUNSUPPORTED,
                            "%s: %slayer_types[%u] '%.60s' is not supported (supported: linear_attention, "
                            "full_attention)",
                            text->file, text->where, i, s);
    }
    return ESP_OK;
}

static esp_status read_layers(struct esp_config *out, const struct esp_cfg *text, esp_error *err)
{
    const json_t *list = esp_cfg_get(text, "layer_types");
    const int64_t range[2] = {1, ESP_LIMIT_LAYERS};
    int64_t every = 4;
    bool found;

    ESP_TRY(esp_cfg_int(&every, &found, text, "full_attention_interval", range, err));
    if (list) {
        ESP_TRY(read_layer_list(out, list, text, err));
    } else {
        if (!found)
            esp_warn(
                text->w,
                "%s: missing keys layer_types and full_attention_interval: every 4th layer is full attention",
                text->file);
        for (uint32_t i = 0; i < out->n_layer; i++)
            out->is_full[i] = (i + 1) % (uint32_t)every == 0;
    }
    for (uint32_t i = 0; i < out->n_layer; i++)
        out->n_full += out->is_full[i];
    return ESP_OK;
}

/* Keys whose other values would mean another forward pass. */
static esp_status check_switches(struct esp_config *out, const struct esp_cfg *text, esp_error *err)
{
    bool bias = false, gate = true, found;
    const char *act, *gate_act, *state;

    ESP_TRY(esp_cfg_bool(&bias, &found, text, "attention_bias", err));
    ESP_TRY(esp_cfg_bool(&gate, &found, text, "attn_output_gate", err));
    ESP_TRY(esp_cfg_bool(&out->mtp_dedicated_embeddings, &found, text, "mtp_use_dedicated_embeddings", err));
    ESP_TRY(esp_cfg_string(&act, text, "hidden_act", err));
    ESP_TRY(esp_cfg_string(&gate_act, text, "output_gate_type", err));
    ESP_TRY(esp_cfg_string(&state, text, "mamba_ssm_dtype", err));
    if (bias || !gate)
        return esp_fail(err, ESP_EUNSUPPORTED, "%s: %s%s is not supported", text->file, text->where,
                        bias ? "attention_bias true" : "attn_output_gate false");
    if (act && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return esp_fail(err, ESP_EUNSUPPORTED, "%s: %shidden_act '%.40s' is not supported (supported: silu)",
                        text->file, text->where, act);
    if (gate_act && strcmp(gate_act, "swish") != 0 && strcmp(gate_act, "silu") != 0)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "%s: %soutput_gate_type '%.40s' is not supported (supported: swish, silu)",
                        text->file, text->where, gate_act);
    if (state && strcmp(state, "float32") != 0)
        esp_warn(text->w, "%s: %smamba_ssm_dtype '%.40s': the state is kept in float32", text->file,
                 text->where, state);
    return ESP_OK;
}

static esp_status read_eps(struct esp_config *out, const struct esp_cfg *text, esp_error *err)
{
    static const double range[2] = {1e-12, 0.1};
    bool found;

    ESP_TRY(esp_cfg_real(&out->rms_eps, &found, text, "rms_norm_eps", range, err));
    if (!found) {
        out->rms_eps = 1e-6;
        esp_warn(text->w, "%s: missing key %srms_norm_eps, taken as 1e-6", text->file, text->where);
    }
    return ESP_OK;
}

static esp_status read_dtype(struct esp_config *out, const struct esp_cfg *top, const struct esp_cfg *text,
                             esp_error *err)
{
    static const struct {
        const char *name;
        enum esp_dtype type;
    } known[] = {{"bfloat16", ESP_DTYPE_BF16}, {"float16", ESP_DTYPE_F16}, {"float32", ESP_DTYPE_F32}};
    const struct esp_cfg *const at[2] = {text, top};
    const char *s = NULL;

    for (size_t i = 0; i < 4 && !s; i++)
        ESP_TRY(esp_cfg_string(&s, at[i / 2], i % 2 ? "torch_dtype" : "dtype", err));
    out->dtype = ESP_DTYPE_BF16;
    if (!s)
        return ESP_OK;
    if (strncmp(s, "torch.", 6) == 0)
        s += 6;
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(s, known[i].name) == 0) {
            out->dtype = known[i].type;
            return ESP_OK;
        }
    }
    esp_warn(top->w, "%s: dtype '%.40s' is not known, taken as bfloat16", top->file, s);
    return ESP_OK;
}

static esp_status read_tied(enum esp_tied *out, const struct esp_cfg *c, esp_error *err)
{
    bool v = false, found;

    ESP_TRY(esp_cfg_bool(&v, &found, c, "tie_word_embeddings", err));
    *out = !found ? ESP_TIED_UNSAID : v ? ESP_TIED_YES : ESP_TIED_NO;
    return ESP_OK;
}

static esp_status read_norm_flag(char out[16], const struct esp_cfg *top, const char *key, esp_error *err)
{
    const char *s;

    ESP_TRY(esp_cfg_string(&s, top, key, err));
    if (!s)
        return ESP_OK;
    if (strcmp(s, "gamma") != 0 && strcmp(s, "gamma-1") != 0)
        return esp_fail(err, ESP_EFORMAT, "%s: %s is '%.40s'; 'gamma' or 'gamma-1' is accepted", top->file,
                        key, s);
    snprintf(out, 16, "%s", s);
    return ESP_OK;
}

/* ---- the whole ---- */

static esp_status read_text(struct esp_config *out, const struct esp_cfg *text, esp_error *err)
{
    ESP_TRY(esp_cfg_fields(out, text, text_fields, sizeof text_fields / sizeof text_fields[0], err));
    if (out->arch == ESP_ARCH_QWEN35_MOE)
        ESP_TRY(read_moe(out, text, err));
    else
        ESP_TRY(esp_cfg_fields(out, text, dense_fields, sizeof dense_fields / sizeof dense_fields[0], err));
    ESP_TRY(check_sizes(out, text, err));
    ESP_TRY(read_layers(out, text, err));
    ESP_TRY(check_switches(out, text, err));
    ESP_TRY(read_eps(out, text, err));
    return esp_config_read_rope(out, text, err);
}

static esp_status read_all(struct esp_config *out, const struct esp_cfg *top,
                           const struct esp_cfg *generation, esp_error *err)
{
    struct esp_cfg text;

    ESP_TRY(esp_cfg_object(&text, top, "text_config", "text_config.", err));
    if (!text.object)
        text = *top; /* flat: a text-only export */
    ESP_TRY(read_arch(out, top, &text, err));
    ESP_TRY(read_text(out, &text, err));
    ESP_TRY(read_dtype(out, top, &text, err));
    ESP_TRY(esp_config_read_vision(out, top, &text, err));
    ESP_TRY(esp_config_read_generation(&out->generation, generation, err));
    ESP_TRY(esp_config_read_special(out, generation, top, &text, err));
    ESP_TRY(read_tied(&out->tied_top, top, err));
    if (text.object != top->object)
        ESP_TRY(read_tied(&out->tied_text, &text, err));
    ESP_TRY(read_norm_flag(out->norm_weights, top, "norm_weights", err));
    ESP_TRY(read_norm_flag(out->mtp_norm_weights, top, "mtp_norm_weights", err));
    return esp_config_quant_read(&out->quant, top->object, text.object, top->file, err);
}

esp_status esp_config_read(struct esp_config *out, const json_t *config, const json_t *generation,
                           const char *name, struct esp_warnings *w, esp_error *err)
{
    struct esp_config c = {.arch = ESP_ARCH_NONE};
    const struct esp_cfg top = {.object = config, .file = name, .where = "", .w = w};
    const struct esp_cfg gen = {.object = generation, .file = name, .where = "generation_config.", .w = w};
    esp_status s;

    if (!json_is_object(config) || (generation && !json_is_object(generation)))
        return esp_fail(err, ESP_EFORMAT, "%s: an object is expected at the top of a config", name);
    s = read_all(&c, &top, &gen, err);
    if (s != ESP_OK) {
        esp_config_free(&c);
        return s;
    }
    *out = c;
    return ESP_OK;
}

static esp_status load_json(json_t **out, const char *dir, const char *name, esp_error *err)
{
    char *path = esp_path_join(dir, name);
    esp_status s;

    if (!path)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", dir);
    s = esp_json_load(out, path, ESP_LIMIT_CONFIG_BYTES, ESP_JSON_NO_DUPLICATES, err);
    esp_free(path);
    return s;
}

esp_status esp_config_load(struct esp_config *out, const char *dir, struct esp_warnings *w, esp_error *err)
{
    json_t *config = NULL, *generation = NULL;
    char *name = esp_path_join(dir, "config.json");
    esp_status s;

    if (!name)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", dir);
    s = load_json(&config, dir, "config.json", err);
    if (s == ESP_OK) {
        s = load_json(&generation, dir, "generation_config.json", err);
        if (s == ESP_ENOTFOUND)
            s = ESP_OK;
    }
    if (s == ESP_OK)
        s = esp_config_read(out, config, generation, name, w, err);
    json_decref(config);
    json_decref(generation);
    esp_free(name);
    return s;
}

void esp_config_free(struct esp_config *c)
{
    esp_config_quant_free(&c->quant);
    memset(c, 0, sizeof *c);
}
