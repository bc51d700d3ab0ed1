/*
 * Structured output: which form a request asks for, and how a generation is held to it. Tool calls are held
 * to the tools' names and schemas in the same way. Making the grammars is the work of grammars.h.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_CONSTRAIN_H
#define ESP_SERVE_CONSTRAIN_H

#include "engine/constraint.h"

#include "serve/params.h"

/* Read the fields of chats and completions that ask for a form; more than one is refused. */
void esp_constrain_read(struct esp_fields *f, struct esp_gen *g);
/* One {"type": "text" | "json_object" | "json_schema", ...} of a dialect's own field. */
void esp_constrain_format(struct esp_fields *f, const json_t *format, const char *param, struct esp_gen *g);

struct esp_constrain_ask {
    struct esp_server *s;
    struct esp_gen *gen;             /* grammar and match are set */
    const struct esp_chat_params *p; /* its tools count; NULL: none */
    bool thinking; /* the prompt ends inside <think>, and the grammar begins to hold behind it */
    struct esp_api_error *e;
    void (*done)(void *user); /* once, on the loop, perhaps before compile() returns; e->http when refused */
    void *user;
};
/* Get the grammar for what the request asks for. *ask is copied, what it points to must live until done. */
void esp_constrain_compile(const struct esp_constrain_ask *ask);
/* A constraint for a run of g behind n tokens that were sampled already. out->mask stays NULL when g has
 * none. */
esp_status esp_constrain_open(struct esp_constraint *out, const struct esp_gen *g,
                              const struct esp_ids *sampled, esp_error *err);

#endif
