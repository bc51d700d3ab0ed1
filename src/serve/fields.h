/*
 * Typed fields of a JSON object, with the API's errors: null is absent, integral floats are integers, what is
 * out of range or of the wrong type is refused by name. The first error stays; after it every getter does
 * nothing, so a list of fields needs one check at its end. Fields never asked for are known at the end: they
 * are ignored.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_FIELDS_H
#define ESP_SERVE_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "serve/error.h"

enum { ESP_FIELDS_MAX_SEEN = 200 };

struct esp_fields {
    const json_t *object;
    const char *at; /* "" or a prefix such as "stream_options." */
    struct esp_api_error *e;
    const char *seen[ESP_FIELDS_MAX_SEEN];
    size_t n_seen;
};

void esp_fields_init(struct esp_fields *f, const json_t *object, const char *at, struct esp_api_error *e);
/* The field's full name in a rotating buffer. */
const char *esp_field_path(const struct esp_fields *f, const char *name);

/* Each: false when absent or wrong, *out untouched; true when given. */
const json_t *esp_field_any(struct esp_fields *f, const char *name); /* NULL when absent */
bool esp_field_int(struct esp_fields *f, const char *name, int64_t least, int64_t most, int64_t *out);
/* above: least itself is refused */
enum esp_bound { ESP_FROM, ESP_ABOVE };
bool esp_field_real(struct esp_fields *f, const char *name, enum esp_bound bound, double least, double most,
                    double *out);
bool esp_field_bool(struct esp_fields *f, const char *name, bool *out);
bool esp_field_string(struct esp_fields *f, const char *name, const char **out);
bool esp_field_object(struct esp_fields *f, const char *name, const json_t **out);
bool esp_field_array(struct esp_fields *f, const char *name, const json_t **out);
/* Index of the string in the |-separated list. */
bool esp_field_word(struct esp_fields *f, const char *name, const char *words, int *out);
/* Say that the field has another type than wanted ("a string"). Returns false. */
bool esp_field_wrong(struct esp_fields *f, const char *name, const json_t *got, const char *wanted);

/* Names of the object's fields that nobody asked for: a new array. */
json_t *esp_fields_ignored(const struct esp_fields *f);

/* At most 200 bytes of a value as JSON for a message, in a rotating buffer. */
const char *esp_show_value(const json_t *v);

#endif
