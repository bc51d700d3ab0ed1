/*
 * The type of a tool's argument: the model writes text between tags, the client's schema says whether it
 * means a string, a number or a structure.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TEXT_TOOLVALUE_H
#define ESP_TEXT_TOOLVALUE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/strbuf.h"

enum esp_tool_type { /* a set: a schema may allow several */
                     ESP_TOOL_STRING = 1,
                     ESP_TOOL_INTEGER = 2,
                     ESP_TOOL_NUMBER = 4,
                     ESP_TOOL_BOOLEAN = 8,
                     ESP_TOOL_NULL = 16,
                     ESP_TOOL_OBJECT = 32,
                     ESP_TOOL_ARRAY = 64
};

/* The tool called name in an array of tools ({"function": {...}} or flat), or NULL. */
const json_t *esp_tool_find(const json_t *tools, const char *name);
/* Types that the tool's schema allows for the parameter; 0 when it does not say. */
unsigned esp_tool_types(const json_t *tool, const char *parameter);
/*
 * Append text[0..len) as JSON of one of the types: of the other members first, as a string when that is
 * allowed or nothing else fits. No types: JSON when it is JSON, else a string. *odd: types were given and
 * none fitted. Numbers and nested values keep the digits that were written; white space between tokens goes.
 * False: out has no room.
 */
bool esp_tool_value(unsigned types, const char *text, size_t len, struct esp_strbuf *out, bool *odd);
/* Append text[0..len), valid UTF-8, with JSON's escapes, without quotes. */
bool esp_json_escape(struct esp_strbuf *out, const char *text, size_t len);

#endif
