/*
 * Reading JSON with our limits: jansson underneath, one line of error with file, line and column.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_JSON_H
#define ESP_BASE_JSON_H

#include <jansson.h>
#include <stddef.h>

#include "base/status.h"

/*
 * Parse text[0..len) as one JSON value; name stands in messages. Refused: invalid UTF-8, nesting deeper than
 * ESP_LIMIT_JSON_DEPTH, trailing bytes other than space, "\u0000" in strings, and, with
 * ESP_JSON_NO_DUPLICATES, an object key that occurs twice (the message says "duplicate"). *out is a new
 * reference (json_decref).
 */
enum esp_json_flags { ESP_JSON_NO_DUPLICATES = 1 };
esp_status esp_json_parse(json_t **out, const char *text, size_t len, const char *name, unsigned flags,
                          esp_error *err);

/* esp_read_file and esp_json_parse in one; at most max bytes. */
esp_status esp_json_load(json_t **out, const char *path, size_t max, unsigned flags, esp_error *err);

#endif
