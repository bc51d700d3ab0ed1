/*
 * Fill-in-the-middle: a prompt in front of a gap and a suffix behind it, in the tokens that code models are
 * trained with.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_FIM_H
#define ESP_SERVE_FIM_H

#include "serve/job.h"

/* Look for the model's tokens; s->fim.known afterwards says whether it has them. */
void esp_fim_find(struct esp_server *s);
/*
 * The field suffix: *suffix stays NULL when it is absent. With it the tokens that end a piece of code become
 * stop tokens of g. False with f->e: the model has no such tokens, or the field is wrong.
 */
bool esp_fim_read(struct esp_fields *f, struct esp_gen *g, const struct esp_server *s, const json_t **suffix);
/* Make prefix, suffix and the place of the answer of the prompt in ids. False with e. */
bool esp_fim_wrap(struct esp_ids *ids, const struct esp_server *s, const json_t *suffix, bool control,
                  struct esp_api_error *e);

#endif
