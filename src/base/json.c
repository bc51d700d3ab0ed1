/*
 * JSON in. The depth check runs before jansson's recursive parser sees the text: jansson's own limit (2,048)
 * is too deep for small thread stacks.
 *
 * SPDX-License-Identifier: MIT
 */
#include "base/json.h"

#include <stdbool.h>
#include <string.h>

#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"

/* Greatest nesting of [ and { outside strings. */
static size_t nesting(const char *s, size_t len)
{
    size_t depth = 0, max = 0;
    bool in_string = false;

    for (size_t i = 0; i < len; i++) {
        if (in_string) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                in_string = false;
        } else if (s[i] == '"') {
            in_string = true;
        } else if (s[i] == '[' || s[i] == '{') {
            if (++depth > max)
                max = depth;
        } else if ((s[i] == ']' || s[i] == '}') && depth > 0) {
            depth--;
        }
    }
    return max;
}

esp_status esp_json_parse(json_t **out, const char *text, size_t len, const char *name, unsigned flags,
                          esp_error *err)
{
    json_error_t je;
    json_t *root;
    size_t at, depth;

    if (!esp_utf8_valid(text, len, &at))
        return esp_fail(err, ESP_EFORMAT, "%s: invalid UTF-8 at byte %zu", name, at);
    depth = nesting(text, len);
    if (depth > ESP_LIMIT_JSON_DEPTH)
        return esp_fail(err, ESP_EFORMAT, "%s: JSON nested %zu deep, at most %d are accepted", name, depth,
                        ESP_LIMIT_JSON_DEPTH);
    root = json_loadb(text, len,
                      JSON_DECODE_ANY | (flags & ESP_JSON_NO_DUPLICATES ? JSON_REJECT_DUPLICATES : 0), &je);
    if (!root) {
        if (json_error_code(&je) == json_error_out_of_memory)
            return esp_fail(err, ESP_ENOMEM, "%s: out of memory in JSON of %zu bytes", name, len);
        if (json_error_code(&je) == json_error_duplicate_key)
            return esp_fail(err, ESP_EFORMAT, "%s: %s (line %d, column %d): keys must be unique", name,
                            je.text, je.line, je.column);
        if (json_error_code(&je) == json_error_null_character)
            return esp_fail(err, ESP_EFORMAT,
                            "%s: line %d, column %d: \\u0000 in a string; no text has that character", name,
                            je.line, je.column);
        return esp_fail(err, ESP_EFORMAT, "%s: invalid JSON at line %d, column %d: %s", name, je.line,
                        je.column, je.text);
    }
    *out = root;
    return ESP_OK;
}

esp_status esp_json_load(json_t **out, const char *path, size_t max, unsigned flags, esp_error *err)
{
    char *text;
    size_t len;
    esp_status s;

    ESP_TRY(esp_read_file(&text, &len, path, max, err));
    s = esp_json_parse(out, text, len, path, flags, err);
    esp_free(text);
    return s;
}
