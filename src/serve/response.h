/*
 * A request to /v1/responses while it is answered. Private to api_responses.c, which reads it, and
 * response_output.c, which writes the answer.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_RESPONSE_H
#define ESP_SERVE_RESPONSE_H

#include "serve/frame.h"
#include "serve/params.h"

enum esp_response_item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL };

struct esp_response {
    struct esp_gen gen;
    struct esp_chat_params p;
    char id[48], reasoning_id[48];
    int64_t created;
    const char *instructions, *previous;
    bool store, want_summary, want_encrypted;
    json_t *history; /* chat messages without instructions, the new ones included */
    json_t *input;   /* the request's items */
    json_t *custom;  /* names of tools with plain text */
    json_t *output;  /* items so far */
    int64_t sequence;
    struct esp_frame frame;
    /* The item that is open. */
    enum esp_response_item open;
    char item_id[48];
    struct esp_call_made *made;
    size_t from; /* bytes of the choice's text when it opened */
};

/* ---- response_output.c ---- */

extern const struct esp_sink esp_response_sink;
void esp_response_begin(struct esp_job *j);
/* Clients reset their timers on events, not on comments. */
void esp_response_ping(struct esp_call *c);

#endif
