/*
 * Grammars as constraints of sequences: the vocabulary of a model in the form that the grammar room wants,
 * and a matcher behind the table of functions that the engine calls.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_STRUCTURED_H
#define ESP_ENGINE_STRUCTURED_H

#include "engine/constraint.h"
#include "grammar/grammar.h"

/*
 * The tokens of m, once for all grammars of the model; the caller destroys it when no grammar needs it any
 * more. A second of work and about 13 MiB for 248,320 ids. ESP_ENOTFOUND without a tokenizer, ESP_ENOMEM.
 */
esp_status esp_model_vocab(struct esp_vocab **out, const esp_model *m, esp_error *err);

/*
 * A constraint for one sequence: a new matcher of g that starts as o says (NULL: at once). Takes its own
 * reference to g. Errors as for esp_matcher_open. Who does not hand it to a sequence or a service closes it:
 * out->close(out->user).
 */
esp_status esp_constraint_open(struct esp_constraint *out, struct esp_grammar *g,
                               const struct esp_matcher_opts *o, esp_error *err);

#endif
