/*
 * Token ids back to text, whole or as they come. The streaming form holds back bytes that may still become a
 * character, so every delta is valid UTF-8; joined deltas equal the text decoded at once, whatever the cuts.
 * Ill-formed bytes become U+FFFD, one for each maximal ill-formed part.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TEXT_DETOKENIZE_H
#define ESP_TEXT_DETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/strbuf.h"
#include "text/tokenizer.h"

enum esp_detok_flags {
    ESP_DETOK_SKIP_SPECIAL =
        1 /* tokens flagged special give nothing; <think> and the like are not so flagged */
};

/* One text being decoded. A plain struct: copying it copies the state. Fields are private. */
struct esp_detok {
    const struct esp_tokenizer *t;
    unsigned flags;
    unsigned char n_held;
    char held[4]; /* the beginning of a character */
};

void esp_detok_init(struct esp_detok *d, const struct esp_tokenizer *t, unsigned flags);
/*
 * Append to out the text that is certain once id is known, perhaps none. Undefined ids add nothing.
 * Errors: ESP_ENOMEM when out has no room; d is then as before, and out holds what fitted.
 */
esp_status esp_detok_push(struct esp_detok *d, uint32_t id, struct esp_strbuf *out, esp_error *err);
/* The same for bytes that are not of a token. */
esp_status esp_detok_push_bytes(struct esp_detok *d, const char *bytes, size_t len, struct esp_strbuf *out,
                                esp_error *err);
/* The text is over: a character that never became whole is one U+FFFD. d is ready for another text. */
esp_status esp_detok_finish(struct esp_detok *d, struct esp_strbuf *out, esp_error *err);

/* The text of all ids at once. Errors: ESP_ENOMEM when out has no room. */
esp_status esp_detok_decode(const struct esp_tokenizer *t, const uint32_t *ids, size_t n, unsigned flags,
                            struct esp_strbuf *out, esp_error *err);

#endif
