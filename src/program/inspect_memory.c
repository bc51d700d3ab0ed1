/*
 * See inspect_memory.h. Bytes are those of an engine's pages and slots (graph/layout.h); fit adds what does
 * not grow with texts, and what drafts take.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/inspect_memory.h"

#include "engine/kv.h"

#include "program/output.h"

esp_status esp_inspect_layout(struct esp_layout *out, const struct esp_config *config,
                              const struct esp_options *o, esp_error *err)
{
    struct esp_layout l = {
        .n_attn = config->n_full,
        .n_delta = config->n_layer - config->n_full,
        .n_kv_head = config->n_kv_head,
        .head_dim = config->head_dim,
        .kh = config->lin_k_head,
        .vh = config->lin_v_head,
        .dk = config->lin_k_dim,
        .dv = config->lin_v_dim,
        .conv_dim = 2 * config->lin_k_head * config->lin_k_dim + config->lin_v_head * config->lin_v_dim,
    };

    ESP_TRY(esp_kv_choose(&l, config, o->v[OPT_KV].s, err));
    ESP_TRY(esp_recurrent_parse(&l.state, o->v[OPT_STATE].s, err));
    if (o->v[OPT_KV_START].i > config->max_position)
        return esp_fail(err, ESP_EINVAL, "kv_start %lld; at most the context, %u, is possible",
                        (long long)o->v[OPT_KV_START].i, config->max_position);
    l.kv_start = (uint32_t)o->v[OPT_KV_START].i;
    ESP_TRY(esp_layout_finish(&l, err));
    *out = l;
    return ESP_OK;
}

/* Keys and values of a token in one attention layer. */
static size_t token_bytes(const struct esp_layout *l, const struct esp_layout_kv *a)
{
    return (size_t)l->n_kv_head * (a->k_row + a->v_row);
}

static size_t of_one(size_t all, uint32_t n)
{
    return n ? all / n : 0;
}

void esp_inspect_memory_print(const struct esp_layout *l, const struct esp_config *config)
{
    const size_t state = of_one(esp_layout_state_bytes(l), l->n_delta);
    char name[ESP_KV_NAME], text[32];
    uint32_t attn = 0;

    esp_out_printf("%5s  %-6s  %-18s %14s %14s\n", "layer", "kind", "kept as", "bytes a token",
                   "bytes a text");
    for (uint32_t i = 0; i < config->n_layer; i++) {
        if (config->is_full[i]) {
            esp_kv_name(&l->layers[attn].scheme, name);
            esp_out_printf("%5u  %-6s  %-18s %14zu %14s\n", i, "full", name, token_bytes(l, &l->layers[attn]),
                           "-");
            attn++;
        } else {
            esp_out_printf("%5u  %-6s  %-18s %14s %14zu\n", i, "linear", esp_recurrent_name(l->state), "-",
                           state);
        }
    }
    esp_out_printf("%5s  %-6s  %-18s %14zu %14zu\n", "all", "", "", esp_layout_kv_per_token(l),
                   esp_layout_state_bytes(l));
    if (l->kv_start)
        esp_out_printf("the first %u tokens: exact, %s for each text\n", l->kv_start,
                       esp_format_bytes(text, sizeof text, (double)l->exact_pages * (double)l->page_bytes));
    esp_out_printf("open rows of linear layers: %zu bytes a text\n", esp_layout_open_bytes(l));
}

json_t *esp_inspect_memory_json(const struct esp_layout *l, const struct esp_config *config)
{
    const json_int_t state = (json_int_t)of_one(esp_layout_state_bytes(l), l->n_delta);
    json_t *layers = json_array();
    char name[ESP_KV_NAME];
    uint32_t attn = 0;

    for (uint32_t i = 0; i < config->n_layer; i++) {
        const struct esp_layout_kv *a = &l->layers[attn];

        if (!config->is_full[i]) {
            json_array_append_new(layers,
                                  json_pack("{s:i,s:s,s:s,s:I}", "layer", i, "kind", "linear", "state",
                                            esp_recurrent_name(l->state), "state_bytes", state));
            continue;
        }
        esp_kv_name(&a->scheme, name);
        json_array_append_new(layers, json_pack("{s:i,s:s,s:s,s:I,s:i,s:i}", "layer", i, "kind", "full", "kv",
                                                name, "kv_per_token", (json_int_t)token_bytes(l, a),
                                                "key_bytes", (int)a->k_row, "value_bytes", (int)a->v_row));
        attn++;
    }
    esp_kv_describe(l, name);
    return json_pack("{s:s,s:s,s:I,s:i,s:I,s:I,s:I,s:o}", "kv", name, "state", esp_recurrent_name(l->state),
                     "kv_per_token", (json_int_t)esp_layout_kv_per_token(l), "kv_start", (int)l->kv_start,
                     "kv_start_bytes", (json_int_t)l->exact_pages * (json_int_t)l->page_bytes, "state_bytes",
                     (json_int_t)esp_layout_state_bytes(l), "open_row_bytes",
                     (json_int_t)esp_layout_open_bytes(l), "layers", layers);
}
