/*
 * Stop strings over a stream of bytes, with hold-back. One automaton (Aho-Corasick) for all strings; it holds
 * exactly the longest suffix that may still become part of a match, and decides a match only when no byte to
 * come could change which one wins. So the result does not depend on how the stream is cut into pieces.
 *
 * Source: Aho, Corasick, "Efficient string matching", CACM 18(6), 1975.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TEXT_STOP_H
#define ESP_TEXT_STOP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/strbuf.h"

enum {
    ESP_STOP_MAX_STRINGS = 16,
    ESP_STOP_MAX_BYTES = 256 /* of one string */
};

struct esp_stop;

struct esp_stop_string {
    const char *text; /* not zero-terminated */
    size_t len;       /* 1..ESP_STOP_MAX_BYTES */
};

/*
 * A matcher for n strings (0 is allowed: everything passes). The strings are copied. Errors: ESP_EINVAL
 * naming the string's index for an empty one, one that is too long or is not UTF-8, or too many of them;
 * ESP_ENOMEM.
 */
esp_status esp_stop_create(struct esp_stop **out, const struct esp_stop_string *strings, size_t n,
                           esp_error *err);
void esp_stop_destroy(struct esp_stop *m);
/* Back to the start of a stream. */
void esp_stop_reset(struct esp_stop *m);

/*
 * Take bytes[0..len) and append to out what may be sent. The earliest match wins, of equal starts the
 * longest; text before it is released, the match and everything after it never. If a longer or earlier match
 * is still possible the decision waits for more bytes (at most 255). After a match further bytes are
 * swallowed. Whole characters in give whole characters out. Errors: ESP_ENOMEM when out could not grow; the
 * stream is then lost, reset or destroy the matcher.
 */
esp_status esp_stop_feed(struct esp_stop *m, const char *bytes, size_t len, struct esp_strbuf *out,
                         esp_error *err);
/* The stream ends: a match that was waiting is decided, else the held bytes are appended to out. */
esp_status esp_stop_flush(struct esp_stop *m, struct esp_strbuf *out, esp_error *err);

/* Index of the string that matched (the first of equal strings), -1 while none has. */
int esp_stop_matched(const struct esp_stop *m);
/* A whole stop string has been seen and only which one wins is open: flush now ends the text just as well. */
bool esp_stop_pending(const struct esp_stop *m);
/* Bytes held back now. */
size_t esp_stop_held(const struct esp_stop *m);

#endif
