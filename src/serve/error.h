/*
 * Refusals as the API has them: an HTTP status, a code word, the place in the body, a sentence. Each is
 * written in one of two shapes, by the family of the route.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_ERROR_H
#define ESP_SERVE_ERROR_H

#include <jansson.h>
#include <stdbool.h>

#include "base/status.h"

enum esp_family { ESP_FAMILY_OPENAI, ESP_FAMILY_ANTHROPIC };

struct esp_api_error {
    int http;         /* 0: no error */
    const char *code; /* a literal; its row in the table of error.c gives the types */
    char param[256];  /* "" : none */
    char message[ESP_ERROR_MESSAGE_BYTES];
    json_t *details; /* or NULL; owned */
    int retry_after; /* seconds; 0: none */
};

/* Fill e, unless it holds an earlier error; always returns false. param may be NULL. */
bool esp_api_fail(struct esp_api_error *e, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* From the library: what its status means to a client. */
bool esp_api_fail_status(struct esp_api_error *e, const char *param, const esp_error *err);
void esp_api_error_clear(struct esp_api_error *e);
/* HTTP status in that family: 503 is 529 in Anthropic's. */
int esp_api_error_http(const struct esp_api_error *e, enum esp_family f);
/* The body; request_id may be NULL. A new reference, NULL without memory. */
json_t *esp_api_error_body(const struct esp_api_error *e, enum esp_family f, const char *request_id);
/* The object inside {"error": ...} of the OpenAI family. */
json_t *esp_api_error_object(const struct esp_api_error *e);

#endif
