/*
 * Answers held to a JSON schema, a grammar or a regular expression, for the verbs that generate.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_STRUCTURED_H
#define ESP_PROGRAM_STRUCTURED_H

#include "engine/structured.h"

#include "program/options.h"

struct esp_structure { /* zeroed: answers are free */
    struct esp_vocab *vocab;
    struct esp_grammar *grammar;
    struct esp_grammar *behind_thinking; /* the same behind newlines, for schemas in a chat; else NULL */
};

/* What the flags ask for; nothing when they do not. chat: answers are turns, which may
 * begin with thinking.
 */
esp_status esp_structure_open(struct esp_structure *st, const struct esp_options *opt, const esp_model *m,
                              bool chat, esp_error *err);
void esp_structure_close(struct esp_structure *st);
/* Hold what seq generates next to it; thinking: from </think> on. */
esp_status esp_structure_apply(const struct esp_structure *st, esp_seq *seq, bool thinking, esp_error *err);
/* Whether a prompt of n tokens ends in an opened <think>. */
bool esp_prompt_thinks(const esp_model *m, const esp_token *ids, size_t n);
/* seq, which does not generate, is free again. */
void esp_structure_lift(const struct esp_structure *st, esp_seq *seq);

#endif
