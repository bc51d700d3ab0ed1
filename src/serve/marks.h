/*
 * cache_control: places in a client's messages up to which it will send the same text again. Each becomes a
 * position of the prompt whose state is kept for a while.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_MARKS_H
#define ESP_SERVE_MARKS_H

#include <jansson.h>

#include "engine/pins.h"
#include "text/bpe.h"
#include "text/template.h"

struct esp_server;

/* Member of a chat message with its marks, [[bytes of the content, seconds], ...]; templates do not read it.
 */
#define ESP_MARKS_KEY "espalier_marks"

/* Seconds that a block's cache_control asks for; 0: it has none. */
double esp_marks_seconds(const json_t *block);
/* Note in *list (made when it is NULL) that the text up to offset is to be kept, if the block says so. */
void esp_marks_note(json_t **list, const json_t *block, size_t offset);

/* A rendered chat. */
struct esp_marks_input {
    const json_t *messages;
    double tools; /* seconds that the end of the system's turn, tools included, is kept; 0: not */
    const char *text;
    size_t len;
    const struct esp_text_spans *spans;
    const struct esp_ids *ids;
};
/* Positions in ids, ascending; their number. */
uint32_t esp_marks_find(const struct esp_server *s, const struct esp_marks_input *in,
                        struct esp_seq_pin out[ESP_MAX_PINS]);

#endif
