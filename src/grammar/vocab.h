/*
 * A vocabulary as a tree of bytes: what the masks walk. Tokens are sorted by their bytes and the tree's nodes
 * are stored in that order, each with the place behind its subtree, so that a walk is a loop over arrays and
 * cutting a branch is one jump. Constant once built; any number of threads may use it.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_GRAMMAR_VOCAB_H
#define ESP_GRAMMAR_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define ESP_VOCAB_NONE UINT32_MAX

struct esp_vocab_node {
    uint32_t end;   /* number of the first node behind the subtree */
    uint32_t token; /* a token that ends here, or ESP_VOCAB_NONE */
    uint16_t depth; /* bytes from the root to here, 1 and up */
    uint8_t byte;
};

struct esp_vocab {
    uint32_t n_ids, n_word; /* ids of the vocabulary; 64-bit words of a mask */
    struct esp_vocab_node *node;
    uint32_t n_node;
    uint32_t max_depth;
    uint32_t first[256]; /* node of a first byte, or ESP_VOCAB_NONE */
    uint32_t *same;      /* [n_ids] another token with the same bytes, or ESP_VOCAB_NONE */
    uint64_t *plain;     /* [n_word] tokens that text may be made of: in the tree */
    uint32_t *off;       /* [n_ids + 1] bytes of a token */
    char *bytes;
};

static inline bool esp_vocab_is_plain(const struct esp_vocab *v, uint32_t id)
{
    return id < v->n_ids && v->plain[id / 64] >> id % 64 & 1;
}

#endif
