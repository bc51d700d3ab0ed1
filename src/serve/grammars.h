/*
 * Grammars, made on threads and kept by what they were made from. A large schema takes seconds; the loop and
 * every stream go on meanwhile. Requests that ask for the same grammar share one piece of work.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_GRAMMARS_H
#define ESP_SERVE_GRAMMARS_H

#include "serve/job.h"

struct esp_grammars;

/* What a grammar is made from. */
struct esp_grammar_source {
    enum esp_form form; /* FREE: calls alone */
    unsigned flags;
    const json_t *value;
    const json_t *tools; /* calls of these (OpenAI form), or in place of the form; NULL: none */
    unsigned tool_flags;
    bool strict; /* all of the tools */
};

/* n_max are kept. */
esp_status esp_grammars_open(struct esp_grammars **out, struct esp_server *s, const esp_model *m,
                             size_t n_max, esp_error *err);
/* Fail what waits for a thread. What runs is waited for by the threads' owner, who must end before close. */
void esp_grammars_stop(struct esp_grammars *g);
void esp_grammars_close(struct esp_grammars *g);
/* Id of an added token, UINT32_MAX when the vocabulary has none. */
uint32_t esp_grammars_token(const struct esp_grammars *g, const char *text);

/* g is borrowed; NULL: err says why. */
typedef void (*esp_grammars_fn)(void *user, struct esp_grammar *g, const esp_error *err);
/* fn(user, ...) once, on the loop: before this returns when the grammar is known, else when it has been made.
 * ESP_ECANCELLED: the server ends; ESP_ESTATE: too many wait. */
void esp_grammars_get(struct esp_grammars *g, const struct esp_grammar_source *src, esp_grammars_fn fn,
                      void *user);

#endif
