/*
 * Messages and tools of /v1/messages in the chat's form. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_MESSAGE_INPUT_H
#define ESP_SERVE_MESSAGE_INPUT_H

#include "serve/params.h"

/* Errors are the call's. */
void esp_message_read(struct esp_call *c, struct esp_fields *f, struct esp_chat_params *p, struct esp_gen *g);
void esp_message_read_tools(struct esp_call *c, struct esp_fields *f, struct esp_chat_params *p,
                            struct esp_gen *g);

#endif
