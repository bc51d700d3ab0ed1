/*
 * A pull reader for JSON with a known shape: safetensors headers and shard indexes, which may name a million
 * tensors. It builds nothing, so memory does not depend on the text; the caller has checked that the text is
 * valid UTF-8.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_IO_JSON_SCAN_H
#define ESP_IO_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct esp_jscan {
    const char *s;
    size_t len, pos;
    const char *name; /* of the file, for messages */
};

/* ESP_EFORMAT "NAME: what at byte POS of the JSON". */
esp_status esp_jscan_fail(const struct esp_jscan *j, const char *what, esp_error *err);
/* Next character after white space, not consumed; 0 at the end. */
char esp_jscan_peek(struct esp_jscan *j);
/* Consume c if it is next. */
bool esp_jscan_accept(struct esp_jscan *j, char c);
esp_status esp_jscan_expect(struct esp_jscan *j, char c, esp_error *err);
/*
 * After '{' or '[' was consumed, and after each member: *more tells whether another member follows (its ','
 * is consumed), else the closing bracket was consumed. n counts members so far.
 */
esp_status esp_jscan_more(struct esp_jscan *j, char close, size_t n, bool *more, esp_error *err);
/*
 * A string, unescaped into out with a final zero; *len without it. out needs as many bytes as the text has
 * left. Refused: control characters, unknown escapes, unpaired surrogates, "\u0000". out and len may be NULL
 * together: skip.
 */
esp_status esp_jscan_string(struct esp_jscan *j, char *out, size_t *len, esp_error *err);
/* A count: decimal digits only, no sign, fraction, exponent or leading zero; at most 2^64-1. */
esp_status esp_jscan_u64(struct esp_jscan *j, uint64_t *out, esp_error *err);
/* Skip one value of any kind, at most ESP_LIMIT_JSON_DEPTH deep. */
esp_status esp_jscan_skip(struct esp_jscan *j, esp_error *err);
/* Nothing but white space may follow. */
esp_status esp_jscan_end(struct esp_jscan *j, esp_error *err);

#endif
