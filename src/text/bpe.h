/*
 * Byte-level BPE: a vocabulary of byte strings, ranked merges, and the encoder of one piece. The file's
 * strings are in the GPT-2 alphabet (one printable character a byte); they are turned into plain bytes once,
 * at load, so that encoding and decoding never see the alphabet. Source: the vocab and merges of a
 * tokenizer.json; merge order as in doc of that format: lowest rank first, leftmost among equals.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TEXT_BPE_H
#define ESP_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Growing list of token ids with a stated maximum. Zeroed memory with max set is an empty list. */
struct esp_ids {
    uint32_t *data; /* NULL while cap is 0 */
    size_t n;
    size_t cap;
    size_t max; /* most ids it will hold */
};

void esp_ids_init(struct esp_ids *v, size_t max);
void esp_ids_free(struct esp_ids *v);
/* Errors: ESP_ENOFIT beyond max, ESP_ENOMEM; the list is then as before. */
esp_status esp_ids_push(struct esp_ids *v, uint32_t id, esp_error *err);

struct esp_bpe_merge {
    uint32_t left, right, result; /* ids; the rank is the index */
};

enum esp_bpe_flags {
    ESP_BPE_USED = 1, /* the id has a token */
    ESP_BPE_LITERAL =
        2 /* its string is outside the byte alphabet: kept as written, unreachable by encoding */
};

struct esp_bpe {
    uint32_t n_ids;    /* highest id + 1 */
    uint32_t n_tokens; /* ids in use */
    uint32_t cap_ids;
    uint32_t *off;  /* [cap_ids] start in blob */
    uint16_t *len;  /* [cap_ids] bytes */
    uint8_t *flags; /* [cap_ids] esp_bpe_flags */
    char *blob;     /* all tokens' bytes */
    size_t blob_len;
    size_t blob_cap;
    uint32_t *slot;              /* [n_slots] id + 1 by hash of bytes, 0 empty */
    uint32_t n_slots;            /* power of two */
    struct esp_bpe_merge *merge; /* [n_merges] by rank */
    uint32_t n_merges;
    uint32_t cap_merges;
    uint32_t *merge_slot; /* [n_merge_slots] rank + 1 by hash of the pair, 0 empty */
    uint32_t n_merge_slots;
    uint32_t byte_id[256]; /* UINT32_MAX for the bytes that UTF-8 never has, when the vocabulary lacks them */
    bool ignore_merges;    /* a piece that is a token becomes that token without looking at merges */
};

/*
 * Building: every token, then esp_bpe_end_tokens, every merge in rank order, then esp_bpe_end_merges. Strings
 * are as in the file (valid UTF-8). Errors: ESP_EFORMAT for ids out of range or given twice, a token given
 * twice, a merge that names no token, a byte of UTF-8 without a token; ESP_ENOMEM. After a failure only
 * esp_bpe_free is allowed. When a pair is listed twice the later rank counts.
 */
esp_status esp_bpe_add_token(struct esp_bpe *b, const char *s, size_t len, uint64_t id, esp_error *err);
esp_status esp_bpe_end_tokens(struct esp_bpe *b, esp_error *err);
esp_status esp_bpe_add_merge(struct esp_bpe *b, const char *l, size_t n_l, const char *r, size_t n_r,
                             esp_error *err);
esp_status esp_bpe_end_merges(struct esp_bpe *b, esp_error *err);
void esp_bpe_free(struct esp_bpe *b);
size_t esp_bpe_bytes(const struct esp_bpe *b); /* memory held, without the struct */

/* The token written s in the file's alphabet, or the one whose plain bytes are s; false when there is none.
 */
bool esp_bpe_find_written(const struct esp_bpe *b, const char *s, size_t len, uint32_t *id);
bool esp_bpe_find_bytes(const struct esp_bpe *b, const char *s, size_t len, uint32_t *id);

/* Scratch of one caller; zeroed is empty. */
struct esp_bpe_work {
    struct esp_bpe_symbol *symbol;
    size_t symbol_cap;
    uint64_t *heap; /* rank << 32 | position */
    size_t heap_len;
    size_t heap_cap;
    struct esp_bpe_cached *cache; /* NULL: off */
};

/* Remember short pieces from now on: pays from a few KiB of text; without memory it stays off. */
void esp_bpe_work_cache(struct esp_bpe_work *w);
void esp_bpe_work_free(struct esp_bpe_work *w);

/*
 * Append the ids of one piece s[0..len) of valid UTF-8 to out, O(len log len). With the cache on, out must
 * not lose ids between calls. Errors: ESP_ENOMEM, ESP_ENOFIT from out.
 */
esp_status esp_bpe_encode(const struct esp_bpe *b, struct esp_bpe_work *w, const char *s, size_t len,
                          struct esp_ids *out, esp_error *err);

#endif
