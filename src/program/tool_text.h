/*
 * Tool calls in an answer, for people: the XML that the model writes around a call becomes its name and a
 * line for each argument. Text around calls passes as it comes.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_TOOL_TEXT_H
#define ESP_PROGRAM_TOOL_TEXT_H

#include <stddef.h>

#include "base/status.h"

/* Called with what may be shown; len is never 0. */
typedef void (*esp_tool_text_fn)(void *user, const char *s, size_t len);

struct esp_tool_text;

/* ESP_ENOMEM. */
esp_status esp_tool_text_create(struct esp_tool_text **out, esp_tool_text_fn fn, void *user, esp_error *err);
void esp_tool_text_destroy(struct esp_tool_text *t); /* NULL is fine */
/*
 * Take a piece of the answer; how it is cut into pieces does not matter. A call is shown when it is whole:
 *
 *     tool call: NAME
 *       KEY: VALUE
 *       KEY:
 *         first line of a value of several
 *         second line
 */
void esp_tool_text_feed(struct esp_tool_text *t, const char *s, size_t len);
/* The answer is over. Of a call that was cut, what has come is shown and called unfinished. */
void esp_tool_text_end(struct esp_tool_text *t);

#endif
