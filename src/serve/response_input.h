/*
 * Input items of /v1/responses as chat messages, and its tools as the chat's. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_RESPONSE_INPUT_H
#define ESP_SERVE_RESPONSE_INPUT_H

#include "serve/params.h"

/* What an encrypted_content of ours begins with; the id of the reasoning item follows. */
#define ESP_REASONING_TOKEN "espr1."

/* Append the input (a string or an array of items) to messages. False with e. */
bool esp_response_items(const json_t *input, json_t *messages, struct esp_gen *g, struct esp_api_error *e);
/* tools in the chat's form, a new array. custom: names of those whose one argument is plain text; spaces: of
 * namespaces. */
json_t *esp_response_tools(const json_t *list, json_t *custom, struct esp_gen *g);

#endif
