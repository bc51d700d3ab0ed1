/*
 * Structured output: what a request asks for, compiled to a grammar, and how a generation is held to it. Tool
 * calls are held to the tools' names and schemas in the same way.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_CONSTRAIN_H
#define ESP_SERVE_CONSTRAIN_H

#include "engine/constraint.h"

#include "serve/params.h"

struct esp_grammars;

/* Grammars that were compiled, by what they were compiled from. n_max of them are kept. */
esp_status esp_grammars_open(struct esp_grammars **out, const esp_model *m, size_t n_max, esp_error *err);
void esp_grammars_close(struct esp_grammars *g);

/* Read the fields of chats and completions that ask for a form; more than one is refused. */
void esp_constrain_read(struct esp_fields *f, struct esp_gen *g);
/* One {"type": "text" | "json_object" | "json_schema", ...} of a dialect's own field. */
void esp_constrain_format(struct esp_fields *f, const json_t *format, const char *param, struct esp_gen *g);
/* Compile what g asks for, or what p's tools ask for; p may be NULL. Sets g->grammar and g->match. thinking:
 * the prompt ends inside <think>, and the grammar begins to hold behind it. */
bool esp_constrain_compile(struct esp_server *s, struct esp_gen *g, const struct esp_chat_params *p,
                           bool thinking, struct esp_api_error *e);
/* A constraint for a run of g behind n tokens that were sampled already. out->mask stays NULL when g has
 * none. */
esp_status esp_constrain_open(struct esp_constraint *out, const struct esp_gen *g,
                              const struct esp_ids *sampled, esp_error *err);

#endif
