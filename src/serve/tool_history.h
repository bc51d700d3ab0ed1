/*
 * Calls and results of earlier turns as a template can show them.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_TOOL_HISTORY_H
#define ESP_SERVE_TOOL_HISTORY_H

#include "serve/job.h"

/*
 * In messages of the plain form, which are changed one level deep: results come in the order of their
 * calls, and arguments are JSON objects. What came as JSON text is parsed, once for all that read it
 * later; what is no JSON object becomes the text of one parameter, with a warning, or is refused when
 * strict. False with e.
 */
bool esp_history_tools(json_t *messages, bool strict, struct esp_gen *g, struct esp_api_error *e);

#endif
