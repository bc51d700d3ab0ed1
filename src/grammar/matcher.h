/*
 * What a matcher holds. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_GRAMMAR_MATCHER_H
#define ESP_GRAMMAR_MATCHER_H

#include "grammar/masks.h"

enum {
    ESP_MATCH_RING = 512,   /* places of the text that can be gone back to at once */
    ESP_MATCH_TRIGGER = 64, /* bytes of a trigger text, at most */
    ESP_MATCH_ACTIVE =
        255 /* mode: the grammar holds; below: it waits, so many bytes of the trigger text were read */
};

/* Tokens that would go past the end of the trigger text after so many of its bytes were read. */
struct esp_match_past {
    uint32_t *id;
    uint32_t n;
    bool known;
};

struct esp_matcher {
    struct esp_grammar *g;
    const struct esp_vocab *v;
    struct esp_matcher_opts o;
    char trigger[ESP_MATCH_TRIGGER];
    uint8_t border[ESP_MATCH_TRIGGER + 1]; /* longest proper border of the first so many bytes */
    uint32_t n_trigger;
    struct esp_match_past past[ESP_MATCH_TRIGGER];
    struct esp_space space;
    uint32_t set[ESP_MATCH_RING]; /* place i of the text at i % RING */
    uint8_t mode[ESP_MATCH_RING];
    size_t n, oldest; /* tokens accepted; first place that the ring still has */
    uint32_t *token;  /* [n] */
    uint32_t cap_token;
    uint64_t *allow; /* [n_word] scratch */
    uint32_t *path;  /* [max_depth + 1] scratch */
    bool broken;     /* a rollback had no memory: nothing works any more */
};

/* ---- match_wait.c ---- */
void esp_match_prepare(struct esp_matcher *m);
/* The mode after token id while it waits; *past: the trigger text ended inside the token. */
uint8_t esp_match_wait(const struct esp_matcher *m, uint8_t mode, uint32_t id, bool *past);
/* Clear what may not come while it waits. False without memory. */
bool esp_match_wait_mask(struct esp_matcher *m, uint8_t mode, uint64_t *bits, size_t n_word);

/* Index of id among the automaton's token symbols, or ESP_IR_NONE. */
uint32_t esp_match_symbol(const struct esp_auto *a, uint32_t id);
/* Drop all sets that no place in the ring needs. False without memory. */
bool esp_match_compact(struct esp_matcher *m);

#endif
