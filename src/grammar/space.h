/*
 * Where an automaton can be: sets of configurations (a state, a stack), each set kept once under a number,
 * and the moves between them remembered. Stacks share their lower parts and are kept once too, so equal
 * stacks are equal numbers, and all readings of an ambiguous text that come to the same place become one.
 *
 * A space is a cache of bounded size: when it is full, the owner says which sets it still needs and the rest
 * goes.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_GRAMMAR_SPACE_H
#define ESP_GRAMMAR_SPACE_H

#include "grammar/automaton.h"
#include "grammar/vocab.h"

#define ESP_SPACE_NONE UINT32_MAX /* no set: see fault */
enum { ESP_SPACE_DEAD = 0 };      /* the set of no configurations: the text cannot go on */

struct esp_config {
    uint32_t state, stack; /* stack 0: nothing to return to */
};

struct esp_space_set {
    uint32_t off, n; /* configurations that wait for a byte or token */
    uint32_t row;    /* its moves, or ESP_SPACE_NONE: none looked at yet */
    uint16_t peak;   /* highest stack, with what it takes to complete it, met while making the set */
    bool ends;       /* one reading is complete */
};

struct esp_space_stack {
    uint32_t back, under;
    uint32_t follow; /* set behind the return, or ESP_SPACE_NONE: not looked at yet */
    uint32_t depth;
};

enum esp_space_fault { ESP_SPACE_FINE, ESP_SPACE_FULL, ESP_SPACE_NOMEM, ESP_SPACE_WAYS };

struct esp_space {
    const struct esp_auto *a;
    uint32_t max_set, max_config, max_stack;
    struct esp_space_set *set;
    struct esp_config *config;
    struct esp_space_stack *stack;
    uint32_t *row; /* [n_row][width] set by class of byte, then by token symbol */
    uint32_t *set_slot, *stack_slot;
    uint32_t n_set, n_config, n_stack, n_row;
    uint32_t cap_set, cap_config, cap_stack, cap_row, n_set_slot, n_stack_slot;
    uint32_t width;
    enum esp_space_fault fault; /* why the last call gave ESP_SPACE_NONE, or a dead set it could not follow */
    struct esp_space_work *work;
};

esp_status esp_space_init(struct esp_space *sp, const struct esp_auto *a, uint32_t max_set, esp_error *err);
void esp_space_free(struct esp_space *sp);
/* Keep only the sets live[0..n), whose numbers are updated. False without memory: nothing has changed. */
bool esp_space_compact(struct esp_space *sp, uint32_t *live, uint32_t n);
size_t esp_space_bytes(const struct esp_space *sp);

/* Numbers of sets, or ESP_SPACE_NONE with fault FULL or NOMEM. A set that would have too many readings is
 * DEAD, with fault WAYS. */
uint32_t esp_space_start(struct esp_space *sp);
uint32_t esp_space_single(struct esp_space *sp, uint32_t state,
                          uint32_t stack);                       /* just this, not what it calls */
uint32_t esp_space_follow(struct esp_space *sp, uint32_t stack); /* behind the return from stack */
uint32_t esp_space_move(struct esp_space *sp, uint32_t set, uint32_t symbol); /* looks nothing up */

/* symbol: class of a byte, or n_class + symbol of a token. */
static inline uint32_t esp_space_step(struct esp_space *sp, uint32_t set, uint32_t symbol)
{
    const uint32_t row = sp->set[set].row;
    uint32_t to = row == ESP_SPACE_NONE ? ESP_SPACE_NONE : sp->row[(size_t)row * sp->width + symbol];

    return to != ESP_SPACE_NONE ? to : esp_space_move(sp, set, symbol);
}

static inline uint32_t esp_space_byte(struct esp_space *sp, uint32_t set, unsigned char c)
{
    return esp_space_step(sp, set, sp->a->class_of[c]);
}

/* ---- walk.c: sets against the tree of a vocabulary ---- */

struct esp_walk {
    struct esp_space *sp;
    const struct esp_vocab *v;
    uint32_t *path; /* [max_depth + 1] set after each byte */
    uint64_t *bits; /* [n_word] tokens that the set can take, added */
    /* Nodes at which a reading was complete while the tree goes on; NULL: not wanted. */
    uint32_t *escape;
    uint32_t n_escape, cap_escape;
    bool want_escapes; /* and make room in the space when it is full, which only a space without other users
                          allows */
    uint16_t peak;     /* highest of all sets met */
};

/* All tokens below nodes [from, to), starting in set at depth. False: see w->sp->fault. */
bool esp_walk_tree(struct esp_walk *w, uint32_t set, uint32_t from, uint32_t to, uint32_t depth);

#endif
