/*
 * Sets of tokens by what their text is: bit (id % 64) of word (id / 64).
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TEXT_TOKEN_SETS_H
#define ESP_TEXT_TOKEN_SETS_H

#include <stddef.h>
#include <stdint.h>

#include "text/tokenizer.h"

struct esp_token_set {
    uint64_t *bits; /* [n_words], owned by the caller */
    size_t n_words;
};

/*
 * Add the tokens that contain one of n texts; for a text that no token contains, the last token that it is
 * encoded as. Errors: ESP_EINVAL for an empty text, those of encoding.
 */
esp_status esp_token_set_add_texts(const struct esp_token_set *set, const struct esp_tokenizer *t,
                                   const char *const *texts, size_t n, esp_error *err);
/* Add the tokens that are line ends and nothing else. */
void esp_token_set_add_line_ends(const struct esp_token_set *set, const struct esp_tokenizer *t);

#endif
