/*
 * What a model of the family writes in its turn, taken apart as it comes: reasoning, visible text, tool calls
 * in the family's XML form with arguments as JSON. The result does not depend on how the text is cut into
 * pieces, and the pieces handed out, joined, are what they would be in one go.
 *
 * Where tags are missing, doubled or nested oddly the parser goes on with what was most likely meant and says
 * so in a warning; nothing the model can write is an error.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TEXT_TOOLCALL_H
#define ESP_TEXT_TOOLCALL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct esp_turn;

enum esp_turn_what {
    ESP_TURN_REASONING,
    ESP_TURN_CONTENT,
    ESP_TURN_CALL,    /* a call begins; the text is the function's name */
    ESP_TURN_ARGS,    /* a piece of the arguments' JSON object */
    ESP_TURN_CALL_END /* the arguments are complete */
};
/* Pieces are never empty but for CALL_END's, hold whole characters, and are not zero-terminated. */
typedef void (*esp_turn_fn)(void *user, enum esp_turn_what what, const char *s, size_t len);
typedef void (*esp_turn_warn_fn)(void *user, const char *message);

struct esp_turn_opts {
    bool raw;               /* no tags at all: everything is content, unchanged */
    bool thinking;          /* the prompt has opened <think> */
    bool continued;         /* the prompt ends inside visible text: white space at the start counts */
    bool calls;             /* recognise tool calls */
    bool calls_in_thinking; /* a call inside <think> ends the reasoning; else it is part of it */
    const json_t *tools;    /* types of arguments; borrowed, may be NULL */
    esp_turn_fn fn;
    esp_turn_warn_fn warn;
    void *user;
};

esp_status esp_turn_create(struct esp_turn **out, const struct esp_turn_opts *o, esp_error *err);
void esp_turn_destroy(struct esp_turn *t);
/* Whole characters of UTF-8. A zero character becomes U+FFFD: as \u0000 in JSON it is refused by many a
 * reader, this project's among them, and a conversation with one in its history could not go on. ESP_ENOMEM:
 * out of memory, or a call longer than ESP_LIMIT_TURN_BYTES. */
esp_status esp_turn_feed(struct esp_turn *t, const char *s, size_t len, esp_error *err);
/* The turn is over. ended: by itself, so that a call whose closing tags are missing counts; else it was cut,
 * and an unfinished call never ends. What was held back as a possible tag is handed out. */
esp_status esp_turn_finish(struct esp_turn *t, bool ended, esp_error *err);

/* Bytes so far that turned out to be visible text or reasoning, those held back as white space included. */
size_t esp_turn_content_bytes(const struct esp_turn *t);
size_t esp_turn_reasoning_bytes(const struct esp_turn *t);
/* Bytes of which it is not known yet what they are. */
size_t esp_turn_undecided(const struct esp_turn *t);
bool esp_turn_in_reasoning(const struct esp_turn *t);
/* Inside a call's tags. */
bool esp_turn_in_call(const struct esp_turn *t);

#endif
