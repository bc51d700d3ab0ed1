/*
 * Single values of a config: type, finiteness and range are checked in one place, and every refusal says
 * file, key, value and what is accepted. null counts as absent, as writers use it. Private to io.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_IO_CONFIG_VALUE_H
#define ESP_IO_CONFIG_VALUE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "io/warnings.h"

/* One JSON object of one file. */
struct esp_cfg {
    const json_t *object; /* NULL: everything is absent */
    const char *file;
    const char *where; /* "", "text_config." ... in front of keys in messages */
    struct esp_warnings *w;
};

enum esp_need {
    ESP_NEED_REQUIRED,
    ESP_NEED_FAMILY, /* absent: the family's common value, with a warning */
    ESP_NEED_SILENT  /* absent: the value, nothing said */
};

/* An unsigned field of a struct, for tables. */
struct esp_cfg_field {
    const char *key;
    size_t at; /* offsetof a uint32_t */
    uint32_t min, max;
    enum esp_need need;
    uint32_t value; /* when absent */
};

/* The value of key, or NULL when absent or null. */
const json_t *esp_cfg_get(const struct esp_cfg *c, const char *key);
/* Integer or integral float in [min, max] (|bounds| < 2^53); *found false and *out untouched when absent. */
esp_status esp_cfg_int(int64_t *out, bool *found, const struct esp_cfg *c, const char *key,
                       const int64_t range[2], esp_error *err);
/* Finite number in [min, max], bounds included. */
esp_status esp_cfg_real(double *out, bool *found, const struct esp_cfg *c, const char *key,
                        const double range[2], esp_error *err);
esp_status esp_cfg_bool(bool *out, bool *found, const struct esp_cfg *c, const char *key, esp_error *err);
/* *out NULL when absent; borrowed from the JSON. */
esp_status esp_cfg_string(const char **out, const struct esp_cfg *c, const char *key, esp_error *err);
/* A member object: sub->object NULL when absent. sub->where is where. */
esp_status esp_cfg_object(struct esp_cfg *sub, const struct esp_cfg *c, const char *key, const char *where,
                          esp_error *err);
/* Fill n fields of the struct at base. */
esp_status esp_cfg_fields(void *base, const struct esp_cfg *c, const struct esp_cfg_field *f, size_t n,
                          esp_error *err);
/* A number given directly (an array element); what names it. */
esp_status esp_cfg_number(int64_t *out, const json_t *v, const struct esp_cfg *c, const char *key,
                          const int64_t range[2], esp_error *err);

#endif
