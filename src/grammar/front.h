/*
 * The front ends, for each other: a schema holds regular expressions, calls of tools hold schemas.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_GRAMMAR_FRONT_H
#define ESP_GRAMMAR_FRONT_H

#include "grammar/ir.h"

enum esp_regex_scope {
    ESP_REGEX_WHOLE, /* the text matches from end to end */
    ESP_REGEX_SEARCH /* part of it does, unless ^ and $ say otherwise */
};

/* The texts that match s[0..len), written as `text` says; what stands in messages. Errors as for
 * esp_grammar_regex. */
esp_status esp_regex_build(struct esp_nfa *b, const char *s, size_t len, enum esp_ir_text text,
                           enum esp_regex_scope scope, const char *what, struct esp_frag *out,
                           esp_error *err);

#endif
