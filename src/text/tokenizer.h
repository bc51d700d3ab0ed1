/*
 * Tokenizer: text to token ids and back, as the model's own tokenizer.json says (byte-level BPE). Everything
 * is read from the file: added tokens, normaliser, split patterns, vocabulary, merges, decoder; what is not
 * supported is refused by name at open. An open tokenizer is constant: any number of threads may use it.
 *
 * Encoding: cut out added tokens (leftmost, longest) where the text is trusted; bring the rest into the
 * normal form; cut it by the split patterns; turn each piece into ids by merging. No token is added at the
 * beginning or end. "padding" and "truncation" in the file are not applied.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TEXT_TOKENIZER_H
#define ESP_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "text/bpe.h" /* struct esp_ids */
#include "text/span.h"

struct esp_tokenizer;

/*
 * Open path: a tokenizer.json, or a folder that has one. The added_tokens_decoder of a tokenizer_config.json
 * in the same folder adds tokens that the first file lacks; where both have a token, the first file's flags
 * count. Errors: ESP_ENOTFOUND, ESP_EIO, ESP_ENOMEM; ESP_EFORMAT for malformed files, wrong types, duplicate
 * tokens or ids, ids of ESP_LIMIT_VOCAB and up, merges of unknown tokens, files that contradict each other;
 * ESP_EUNSUPPORTED for a model, normalizer, pre_tokenizer, post_processor, decoder or option that is not
 * built in.
 */
esp_status esp_tokenizer_open(struct esp_tokenizer **out, const char *path, esp_error *err);
/* The same from memory; config[0..config_len) is a tokenizer_config.json or NULL; name stands in messages. */
esp_status esp_tokenizer_parse(struct esp_tokenizer **out, const char *json, size_t len, const char *config,
                               size_t config_len, const char *name, esp_error *err);
void esp_tokenizer_close(struct esp_tokenizer *t); /* NULL is fine */

enum esp_tok_flags {
    ESP_TOK_TRUST_ALL =
        1, /* added tokens are recognised everywhere: what the reference implementation does */
    ESP_TOK_REFUSE_INVALID = 2 /* invalid UTF-8 is an error instead of becoming U+FFFD */
};

/*
 * A text to encode. Added tokens, special or not, are recognised only where all their bytes are trusted; with
 * no spans and no flag the text is plain text throughout. Trust changes nothing else: spans are no borders
 * for the split. (White space that a token with lstrip or rstrip swallows need not be trusted.) The spans are
 * in bytes of text as given, ascending and within it.
 */
struct esp_tok_input {
    const char *text;
    size_t len;                          /* at most ESP_LIMIT_TEXT_BYTES */
    const struct esp_text_span *trusted; /* [n_trusted] */
    size_t n_trusted;
    unsigned flags; /* esp_tok_flags */
};

/*
 * Append the ids of the text to out. Invalid UTF-8 is read as by Python's errors="replace": each maximal
 * ill-formed part is one U+FFFD. On failure out holds what it held before. Time is O(n log n) for n bytes,
 * whatever they are. Errors: ESP_EINVAL for spans out of order or range, and, with ESP_TOK_REFUSE_INVALID,
 * for invalid UTF-8 (with its place); ESP_ENOFIT when out->max ids or ESP_LIMIT_TEXT_BYTES are not enough, or
 * the file's split pattern takes too many steps; ESP_ENOMEM.
 */
esp_status esp_tokenizer_encode(const struct esp_tokenizer *t, const struct esp_tok_input *in,
                                struct esp_ids *out, esp_error *err);

/* Highest id of a token + 1. The model's matrices may have more rows; those rows' ids are undefined here. */
uint32_t esp_tokenizer_n_ids(const struct esp_tokenizer *t);
/* Bytes of memory that the tokenizer holds. */
size_t esp_tokenizer_bytes(const struct esp_tokenizer *t);

/*
 * The exact bytes that a token stands for, not zero-terminated and not always whole characters; an added
 * token's are its content. Undefined ids, any number at all, have none: *len is 0. The bytes live as long as
 * t.
 */
void esp_tokenizer_token_bytes(const struct esp_tokenizer *t, uint32_t id, const char **bytes, size_t *len);
bool esp_tokenizer_is_defined(const struct esp_tokenizer *t, uint32_t id);
bool esp_tokenizer_is_added(const struct esp_tokenizer *t, uint32_t id);
bool esp_tokenizer_is_special(const struct esp_tokenizer *t, uint32_t id); /* added, and flagged special */
/* The token that stands for exactly these bytes; added tokens come first. False when there is none. */
bool esp_tokenizer_find(const struct esp_tokenizer *t, const char *bytes, size_t len, uint32_t *id);

#endif
