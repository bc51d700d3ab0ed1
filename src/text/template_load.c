/*
 * Finding a model's chat template. Releases keep it in a file of its own; older ones in
 * tokenizer_config.json, there either as one text or as a list of named ones.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/template.h"

#include <string.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"

static esp_status open_file(struct esp_template **out, const char *path, esp_error *err)
{
    char *text;
    size_t len;
    esp_status s;

    ESP_TRY(esp_read_file(&text, &len, path, ESP_LIMIT_TEMPLATE_BYTES, err));
    s = esp_template_open(out, text, len, path, err);
    esp_free(text);
    return s;
}

static esp_status open_value(struct esp_template **out, const json_t *text, const char *path, esp_error *err)
{
    return esp_template_open(out, json_string_value(text), json_string_length(text), path, err);
}

static esp_status open_named(struct esp_template_set *out, const json_t *list, const char *path,
                             esp_error *err)
{
    const json_t *main = NULL, *tool_use = NULL;
    size_t n = json_array_size(list);

    for (size_t i = 0; i < n; i++) {
        const json_t *name = json_object_get(json_array_get(list, i), "name");
        const json_t *text = json_object_get(json_array_get(list, i), "template");

        if (!json_is_string(name) || !json_is_string(text))
            return esp_fail(err, ESP_EFORMAT,
                            "%s: chat_template[%zu] is not {\"name\": string, \"template\": string}", path,
                            i);
        if (n == 1 || strcmp(json_string_value(name), "default") == 0)
            main = text;
        if (strcmp(json_string_value(name), "tool_use") == 0)
            tool_use = text;
    }
    if (!main)
        return esp_fail(err, ESP_ENOTFOUND, "%s: chat_template has %zu entries and none is named \"default\"",
                        path, n);
    ESP_TRY(open_value(&out->main, main, path, err));
    return tool_use && tool_use != main ? open_value(&out->tool_use, tool_use, path, err) : ESP_OK;
}

static esp_status open_config(struct esp_template_set *out, const char *path, const char *dir, esp_error *err)
{
    json_t *config;
    const json_t *t;
    esp_status s = esp_json_load(&config, path, ESP_LIMIT_CONFIG_BYTES, 0, err);

    if (s == ESP_ENOTFOUND)
        return esp_fail(
            err, s, "%s: no chat template: neither chat_template.jinja nor tokenizer_config.json is there",
            dir);
    if (s != ESP_OK)
        return s;
    t = json_object_get(config, "chat_template");
    if (json_is_string(t))
        s = open_value(&out->main, t, path, err);
    else if (json_is_array(t))
        s = open_named(out, t, path, err);
    else if (!t || json_is_null(t))
        s = esp_fail(err, ESP_ENOTFOUND,
                     "%s: no chat template: chat_template.jinja is not there and tokenizer_config.json has "
                     "no chat_template",
                     dir);
    else
        s = esp_fail(err, ESP_EFORMAT, "%s: chat_template is neither a string nor a list", path);
    json_decref(config);
    return s;
}

esp_status esp_template_load(struct esp_template_set *out, const char *dir, const char *override,
                             esp_error *err)
{
    struct esp_template_set set = {0};
    char *own = NULL, *config = NULL;
    esp_status s;

    if (override) {
        ESP_TRY(open_file(&set.main, override, err));
        *out = set;
        return ESP_OK;
    }
    own = esp_path_join(dir, "chat_template.jinja");
    config = esp_path_join(dir, "tokenizer_config.json");
    if (!own || !config)
        s = esp_fail(err, ESP_ENOMEM, "%s: no memory", dir);
    else
        s = open_file(&set.main, own, err);
    if (s == ESP_ENOTFOUND)
        s = open_config(&set, config, dir, err);
    esp_free(own);
    esp_free(config);
    if (s != ESP_OK) {
        esp_template_set_close(&set);
        return s;
    }
    *out = set;
    return ESP_OK;
}

void esp_template_set_close(struct esp_template_set *s)
{
    esp_template_close(s->main);
    esp_template_close(s->tool_use);
    memset(s, 0, sizeof *s);
}

const struct esp_template *esp_template_pick(const struct esp_template_set *s, const json_t *tools)
{
    return s->tool_use && json_array_size(tools) > 0 ? s->tool_use : s->main;
}
