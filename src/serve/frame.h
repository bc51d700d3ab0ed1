/*
 * Events of a stream written by hand. A piece of text is the most frequent event by far: what all of a
 * stream's share is rendered once, and only text and numbers are put in. The bytes are those that
 * esp_sse_data() makes. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_FRAME_H
#define ESP_SERVE_FRAME_H

#include <stdint.h>

#include "serve/server.h"

struct esp_frame {
    struct esp_strbuf head; /* what every one begins with; may be empty */
    struct esp_strbuf out;  /* the one being made */
};

void esp_frame_init(struct esp_frame *f);
void esp_frame_free(struct esp_frame *f);
/* Begin an event with the head. */
struct esp_strbuf *esp_frame_begin(struct esp_frame *f);
/* It is whole: send it. Nothing without memory, as when an object cannot be made. */
void esp_frame_send(struct esp_frame *f, struct esp_call *c);
/* A string without its quotes, escaped as in every other answer; valid UTF-8. */
void esp_frame_text(struct esp_strbuf *b, const char *s, size_t len);
void esp_frame_number(struct esp_strbuf *b, uint64_t n);
/* The head of chunks: all of object but its choices and usage, up to the first choice's index. Released. */
void esp_frame_chunk_head(struct esp_frame *f, json_t *object);

#endif
