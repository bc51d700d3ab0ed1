/*
 * See kv.h. A file is a JSON array of objects with "layer_idx" (of the decoder), and either "bits" and
 * "group_size" as mlx-lm writes them or a "scheme" by its name here; layers that are not listed keep bf16.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/kv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/limits.h"

bool esp_kv_is_file(const char *name)
{
    const size_t n = strlen(name);

    return strchr(name, '/') || (n > 5 && strcmp(name + n - 5, ".json") == 0);
}

static void set_all(struct esp_layout *l, struct esp_kv_scheme s)
{
    l->kv = s.kind == ESP_KV_KIND_F32 ? ESP_KV_F32 : s.kind == ESP_KV_KIND_BF16 ? ESP_KV_BF16 : ESP_KV_CODED;
    for (uint32_t i = 0; i < ESP_LAYOUT_ATTN; i++)
        l->layers[i].scheme = s;
}

/* Number of decoder layer i among the attention layers. */
static uint32_t attention_index(const struct esp_config *c, uint32_t i)
{
    uint32_t n = 0;

    while (i--)
        n += c->is_full[i];
    return n;
}

/* The scheme of one entry. */
static esp_status entry_scheme(const json_t *e, struct esp_kv_scheme *out, const char *path, size_t at,
                               esp_error *err)
{
    const json_t *scheme = json_object_get(e, "scheme"), *bits = json_object_get(e, "bits"),
                 *group = json_object_get(e, "group_size");
    char name[ESP_KV_NAME];
    esp_error why;

    if (json_is_string(scheme))
        snprintf(name, sizeof name, "%.31s", json_string_value(scheme));
    else if (json_is_integer(bits) && (!group || json_is_integer(group)))
        snprintf(name, sizeof name, "q%" PRId64 ":g%" PRId64, (int64_t)json_integer_value(bits),
                 group ? (int64_t)json_integer_value(group) : 64);
    else
        return esp_fail(err, ESP_EINVAL,
                        "%s: entry %zu: \"bits\" and \"group_size\" are numbers, or \"scheme\" a name", path,
                        at);
    if (esp_kv_parse(out, name, &why) != ESP_OK)
        return esp_fail(err, ESP_EINVAL, "%s: entry %zu: %s", path, at, why.message);
    return ESP_OK;
}

static esp_status read_entry(struct esp_layout *l, const struct esp_config *c, const json_t *e,
                             const char *path, size_t at, uint8_t *seen, esp_error *err)
{
    const json_t *index = json_object_get(e, "layer_idx");
    const json_int_t i = json_is_integer(index) ? json_integer_value(index) : -1;
    struct esp_kv_scheme s;
    uint32_t attn;

    if (i < 0 || i >= (json_int_t)c->n_layer)
        return esp_fail(err, ESP_EINVAL, "%s: entry %zu: \"layer_idx\" is one of 0 to %u", path, at,
                        c->n_layer - 1);
    if (!c->is_full[i])
        return esp_fail(err, ESP_EINVAL, "%s: entry %zu: layer %d is recurrent, it has no keys and values",
                        path, at, (int)i);
    attn = attention_index(c, (uint32_t)i);
    if (attn >= ESP_LAYOUT_ATTN || seen[attn])
        return esp_fail(err, ESP_EINVAL, "%s: entry %zu: layer %d is there twice", path, at, (int)i);
    ESP_TRY(entry_scheme(e, &s, path, at, err));
    seen[attn] = 1;
    l->layers[attn].scheme = s;
    if (s.kind != ESP_KV_KIND_BF16)
        l->kv = ESP_KV_CODED; /* layers differ: each has its own form */
    return ESP_OK;
}

static esp_status read_list(struct esp_layout *l, const struct esp_config *c, const json_t *list,
                            const char *path, esp_error *err)
{
    uint8_t seen[ESP_LAYOUT_ATTN] = {0};

    if (!json_is_array(list))
        return esp_fail(err, ESP_EINVAL,
                        "%s: an array of {\"layer_idx\", \"bits\", \"group_size\"} is expected", path);
    for (size_t i = 0; i < json_array_size(list); i++)
        ESP_TRY(read_entry(l, c, json_array_get(list, i), path, i, seen, err));
    return ESP_OK;
}

esp_status esp_kv_choose(struct esp_layout *l, const struct esp_config *config, const char *name,
                         esp_error *err)
{
    struct esp_kv_scheme s = {.kind = ESP_KV_KIND_BF16};
    esp_status status;
    json_t *list;

    if (!name || !esp_kv_is_file(name)) {
        if (name)
            ESP_TRY(esp_kv_parse(&s, name, err));
        set_all(l, s);
        return ESP_OK;
    }
    set_all(l, s);
    ESP_TRY(esp_json_load(&list, name, ESP_LIMIT_CONFIG_BYTES, ESP_JSON_NO_DUPLICATES, err));
    status = read_list(l, config, list, name, err);
    json_decref(list);
    return status;
}

void esp_kv_describe(const struct esp_layout *l, char out[ESP_KV_NAME])
{
    uint64_t h = 0;

    for (uint32_t i = 0; i < l->n_attn; i++) {
        if (!esp_kv_same(&l->layers[i].scheme, &l->layers[0].scheme)) {
            for (uint32_t j = 0; j < l->n_attn; j++)
                h = esp_hash(&l->layers[j].scheme, sizeof l->layers[j].scheme, h);
            snprintf(out, ESP_KV_NAME, "mixed-%016" PRIx64, h);
            return;
        }
    }
    esp_kv_name(&l->layers[0].scheme, out);
}
