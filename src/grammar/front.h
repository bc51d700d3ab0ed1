/*
 * The front ends, for each other: a schema holds regular expressions, calls of tools hold schemas.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_GRAMMAR_FRONT_H
#define ESP_GRAMMAR_FRONT_H

#include "grammar/grammar.h"
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

/* What a front end has written: a root and all that it calls. Free with esp_ir_free(&f->ir). */
struct esp_front {
    struct esp_ir ir;
    const char *what; /* in messages: a literal */
    esp_error never;  /* message "": nothing; else why no text can satisfy it */
};

/* Arguments and errors as for the functions of grammar.h; after an error there is nothing to free. */
esp_status esp_front_gbnf(struct esp_front *f, const char *text, size_t len, esp_error *err);
esp_status esp_front_regex(struct esp_front *f, const char *text, size_t len, esp_error *err);
esp_status esp_front_choice(struct esp_front *f, const char *const *text, size_t n, esp_error *err);
esp_status esp_front_schema(struct esp_front *f, const json_t *schema, unsigned flags, esp_error *err);
esp_status esp_front_tools(struct esp_front *f, const struct esp_vocab *v, const struct esp_tool *tool,
                           size_t n, unsigned flags, esp_error *err);
/* Compile f and free it. s: of the front end; when it is not ESP_OK it is only passed on. */
esp_status esp_front_finish(struct esp_grammar **out, const struct esp_vocab *v, struct esp_front *f,
                            esp_status s, esp_error *err);

#endif
