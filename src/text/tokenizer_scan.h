/*
 * The two big tables of a tokenizer.json, read without a JSON tree. A vocabulary of 250,000 tokens and its
 * merges as a tree cost half a second and 100 MiB; scanned in place they cost neither. The rest of the file,
 * with both tables emptied, is small and goes through base/json.h, which also catches whatever is malformed
 * outside of them.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TEXT_TOKENIZER_SCAN_H
#define ESP_TEXT_TOKENIZER_SCAN_H

#include "base/status.h"
#include "base/strbuf.h"
#include "text/bpe.h"

/* A JSON text and where the values of model.vocab (an object) and model.merges (an array) lie; start = end:
 * absent. */
struct esp_tok_scan {
    const char *text;
    size_t len;
    size_t vocab_start, vocab_end;
    size_t merges_start, merges_end;
};

/* Find both tables and append the text with {} and [] in their places to rest. Errors: ESP_ENOMEM. */
esp_status esp_tok_scan_split(struct esp_tok_scan *s, const char *text, size_t len, struct esp_strbuf *rest,
                              esp_error *err);
/*
 * Read the tables into b, in this order. Errors: ESP_EFORMAT with the line, for JSON that is malformed or of
 * the wrong type, and everything that esp_bpe_add_token and esp_bpe_add_merge refuse; ESP_ENOMEM.
 */
esp_status esp_tok_scan_vocab(const struct esp_tok_scan *s, struct esp_bpe *b, esp_error *err);
esp_status esp_tok_scan_merges(const struct esp_tok_scan *s, struct esp_bpe *b, esp_error *err);

#endif
