/*
 * Trusted ranges of a text. A chat template's own text is trusted; text that came from users, tools and tool
 * descriptions is not. Only inside trusted ranges may the tokenizer recognise control tokens.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TEXT_SPAN_H
#define ESP_TEXT_SPAN_H

#include <stddef.h>

/* Bytes [start, end) are trusted. Lists are ascending and do not touch each other. */
struct esp_text_span {
    size_t start;
    size_t end;
};

#endif
