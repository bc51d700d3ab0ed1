/*
 * Config values; see the header.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/config_value.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const json_t *esp_cfg_get(const struct esp_cfg *c, const char *key)
{
    const json_t *v = c->object ? json_object_get(c->object, key) : NULL;

    return json_is_null(v) ? NULL : v;
}

/* A short picture of a value for a message. */
static const char *describe(const json_t *v, char *out, size_t cap)
{
    static const char *const kinds[] = {"an object", "an array", "a string", "", "", "true", "false", "null"};

    if (json_is_integer(v))
        snprintf(out, cap, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_real(v))
        snprintf(out, cap, "%.17g", json_real_value(v));
    else if (json_is_string(v))
        snprintf(out, cap, "the string \"%.40s\"", json_string_value(v));
    else
        snprintf(out, cap, "%s", kinds[json_typeof(v)]);
    return out;
}

esp_status esp_cfg_number(int64_t *out, const json_t *v, const struct esp_cfg *c, const char *key,
                          const int64_t range[2], esp_error *err)
{
    char text[80];
    int64_t i = 0;
    bool ok = false;

    if (json_is_integer(v)) {
        i = json_integer_value(v);
        ok = i >= range[0] && i <= range[1];
    } else if (json_is_real(v)) {
        const double d = json_real_value(v);

        ok = isfinite(d) && d == floor(d) && d >= (double)range[0] && d <= (double)range[1];
        i = ok ? (int64_t)d : 0;
    }
    if (!ok)
        return esp_fail(err, ESP_EFORMAT,
                        "%s: %s%s is %s; an integer from %" PRId64 " to %" PRId64 " is accepted", c->file,
                        c->where, key, describe(v, text, sizeof text), range[0], range[1]);
    *out = i;
    return ESP_OK;
}

esp_status esp_cfg_int(int64_t *out, bool *found, const struct esp_cfg *c, const char *key,
                       const int64_t range[2], esp_error *err)
{
    const json_t *v = esp_cfg_get(c, key);

    *found = false;
    if (!v)
        return ESP_OK;
    ESP_TRY(esp_cfg_number(out, v, c, key, range, err));
    *found = true;
    return ESP_OK;
}

esp_status esp_cfg_real(double *out, bool *found, const struct esp_cfg *c, const char *key,
                        const double range[2], esp_error *err)
{
    const json_t *v = esp_cfg_get(c, key);
    char text[80];
    double d;

    *found = false;
    if (!v)
        return ESP_OK;
    d = json_is_number(v) ? json_number_value(v) : NAN;
    if (!isfinite(d) || d < range[0] || d > range[1])
        return esp_fail(err, ESP_EFORMAT, "%s: %s%s is %s; a finite number from %g to %g is accepted",
                        c->file, c->where, key, describe(v, text, sizeof text), range[0], range[1]);
    *out = d;
    *found = true;
    return ESP_OK;
}

esp_status esp_cfg_bool(bool *out, bool *found, const struct esp_cfg *c, const char *key, esp_error *err)
{
    const json_t *v = esp_cfg_get(c, key);
    char text[80];

    *found = false;
    if (!v)
        return ESP_OK;
    if (!json_is_boolean(v))
        return esp_fail(err, ESP_EFORMAT, "%s: %s%s is %s; true or false is accepted", c->file, c->where, key,
                        describe(v, text, sizeof text));
    *out = json_is_true(v);
    *found = true;
    return ESP_OK;
}

esp_status esp_cfg_string(const char **out, const struct esp_cfg *c, const char *key, esp_error *err)
{
    const json_t *v = esp_cfg_get(c, key);
    char text[80];

    *out = NULL;
    if (!v)
        return ESP_OK;
    if (!json_is_string(v))
        return esp_fail(err, ESP_EFORMAT, "%s: %s%s is %s; a string is accepted", c->file, c->where, key,
                        describe(v, text, sizeof text));
    *out = json_string_value(v);
    return ESP_OK;
}

esp_status esp_cfg_object(struct esp_cfg *sub, const struct esp_cfg *c, const char *key, const char *where,
                          esp_error *err)
{
    const json_t *v = esp_cfg_get(c, key);
    char text[80];

    if (v && !json_is_object(v))
        return esp_fail(err, ESP_EFORMAT, "%s: %s%s is %s; an object is accepted", c->file, c->where, key,
                        describe(v, text, sizeof text));
    *sub = *c;
    sub->object = v;
    sub->where = where;
    return ESP_OK;
}

esp_status esp_cfg_fields(void *base, const struct esp_cfg *c, const struct esp_cfg_field *f, size_t n,
                          esp_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const int64_t range[2] = {f[i].min, f[i].max};
        uint32_t value = f[i].value;
        int64_t v = 0;
        bool found;

        ESP_TRY(esp_cfg_int(&v, &found, c, f[i].key, range, err));
        if (!found && f[i].need == ESP_NEED_REQUIRED)
            return esp_fail(err, ESP_EFORMAT, "%s: missing key %s%s (an integer from %u to %u)", c->file,
                            c->where, f[i].key, f[i].min, f[i].max);
        if (!found && f[i].need == ESP_NEED_FAMILY)
            esp_warn(c->w, "%s: missing key %s%s, taken as %u", c->file, c->where, f[i].key, value);
        if (found)
            value = (uint32_t)v;
        memcpy((char *)base + f[i].at, &value, sizeof value);
    }
    return ESP_OK;
}
