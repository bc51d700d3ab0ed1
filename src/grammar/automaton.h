/*
 * What the compiler makes of rules: one deterministic automaton a rule, all in the same arrays, joined by
 * call edges. A configuration of the whole is a state and a stack of states to return to; the automaton is
 * the constant part of that. Immutable once built.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_GRAMMAR_AUTOMATON_H
#define ESP_GRAMMAR_AUTOMATON_H

#include "grammar/ir.h"

enum esp_auto_flags {
    ESP_AUTO_FINAL = 1, /* the rule may end here */
    ESP_AUTO_SINK = 2   /* and cannot go on: returning here needs no place on the stack */
};

struct esp_auto_state {
    uint32_t edge, call, token; /* first of each kind */
    uint32_t n_call;
    uint16_t n_edge; /* at most 256 */
    uint16_t n_token;
    uint8_t flags;
    uint16_t need; /* least growth of the stack with which the rule can be completed from here */
};

struct esp_auto_edge {
    uint32_t to;
    uint8_t lo, hi; /* sorted, disjoint within a state */
};

struct esp_auto_call {
    uint32_t start; /* of the rule called */
    uint32_t back;
};

struct esp_auto_token {
    uint32_t id, to;
    uint32_t symbol; /* index of id among all ids that occur */
};

struct esp_auto {
    struct esp_auto_state *state;
    struct esp_auto_edge *edge;
    struct esp_auto_call *call;
    struct esp_auto_token *token;
    uint32_t n_state, n_edge, n_call, n_token;
    uint32_t cap_state, cap_edge, cap_call, cap_token;
    uint32_t start;
    uint8_t class_of[256]; /* bytes that no edge tells apart share a class */
    uint32_t n_class;
    uint32_t *symbol; /* [n_symbol] token ids that occur, ascending */
    uint32_t n_symbol;
};

/*
 * Compile ir, whose root and all rules that it calls are defined. what stands in messages. Errors:
 * ESP_EFORMAT for left recursion and for a grammar that no text satisfies, ESP_ENOFIT when a limit of
 * base/limits.h is passed, ESP_ENOMEM.
 */
esp_status esp_auto_build(struct esp_auto *out, const struct esp_ir *ir, const char *what, esp_error *err);
void esp_auto_free(struct esp_auto *a);
size_t esp_auto_bytes(const struct esp_auto *a);

/* ---- dfa.c, for the compiler ---- */

struct esp_dfa_work { /* shared by all rules of one compilation */
    struct esp_auto *a;
    const char *what;
    uint64_t steps;
};

/* Room for `more` elements of `size` bytes behind n; false without memory. */
bool esp_auto_grow(void *array, uint32_t *cap, uint32_t n, uint32_t more, size_t size);
/* Append the states of one rule to w->a; the calls hold rule numbers instead of states. *start is its first.
 */
esp_status esp_dfa_build(struct esp_dfa_work *w, const struct esp_ir_rule *r, uint32_t *start,
                         esp_error *err);
/* The same for the words that both automata starting at x and y accept. */
esp_status esp_dfa_both(struct esp_dfa_work *w, const struct esp_ir_rule *r, const uint32_t start[2],
                        uint32_t *out, esp_error *err);
esp_status esp_dfa_step(struct esp_dfa_work *w, uint64_t n, esp_error *err); /* charge n steps */

/* ---- finish.c, for the compiler ---- */

typedef const char *(*esp_auto_name_fn)(const void *user, uint32_t state);
/* The automaton w->a, joined, made ready for use, or refused (ESP_EFORMAT) with the name of a rule. */
esp_status esp_auto_finish(struct esp_dfa_work *w, esp_auto_name_fn rule_at, const void *user,
                           esp_error *err);

#endif
