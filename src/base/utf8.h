/*
 * UTF-8, strictly as RFC 3629 has it: no surrogates, no overlong forms, nothing above U+10FFFF.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_UTF8_H
#define ESP_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decode the character at s[0..len): its length 1..4 and *cp, or 0 when the bytes are invalid, incomplete or
 * none. */
size_t esp_utf8_decode(const char *s, size_t len, uint32_t *cp);

/* Write cp as 1..4 bytes; returns the count. Surrogates and values above U+10FFFF become U+FFFD. */
size_t esp_utf8_encode(uint32_t cp, char out[4]);

/* Whether s[0..len) is valid; if not and at is given, *at is the offset of the first bad byte. */
bool esp_utf8_valid(const char *s, size_t len, size_t *at);

/*
 * How many bytes at the end of s[0..len) are a proper, so far valid prefix of one character (0..3). Those may
 * become a whole character when more bytes come; anything else invalid never will.
 */
size_t esp_utf8_incomplete_tail(const char *s, size_t len);

/*
 * Length of the longest valid or replaceable unit at s: >0 bytes to skip for one U+FFFD when the bytes are
 * invalid, following the "maximal subpart" practice of Unicode (as Python's errors="replace").
 */
size_t esp_utf8_bad_span(const char *s, size_t len);

#endif
