/*
 * What every front end (GBNF, regex, JSON Schema, tool calls) writes and the compiler reads: rules, each a
 * nondeterministic automaton over bytes whose edges may also call another rule or ask for one token. There is
 * no syntax tree: a front end joins fragments while it reads, so that neither reading nor compiling recurses.
 * Characters become byte sequences here; behind this file nothing knows of UTF-8.
 *
 * Source: Thompson, "Regular expression search algorithm", CACM 1968, for the fragments.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_GRAMMAR_IR_H
#define ESP_GRAMMAR_IR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

#define ESP_IR_NONE UINT32_MAX

enum esp_ir_kind { ESP_IR_EPS, ESP_IR_RANGE, ESP_IR_CALL, ESP_IR_TOKEN };

struct esp_ir_state {
    uint32_t out;   /* ESP_IR_NONE: the end of a fragment that nothing was joined to */
    uint32_t out2;  /* second way of an EPS state, or ESP_IR_NONE */
    uint32_t arg;   /* CALL: the rule; TOKEN: the id */
    uint8_t kind;   /* esp_ir_kind */
    uint8_t lo, hi; /* RANGE: one byte of lo..hi */
};

/* Part of an automaton: enter at start, leave at end (an EPS state without a way out yet). */
struct esp_frag {
    uint32_t start, end;
};

enum esp_ir_flags {
    ESP_IR_DEFINED = 1,
    ESP_IR_FIRST = 2,  /* ends at its first possible end: "text up to X" */
    ESP_IR_BOTH = 4,   /* no states of its own: the words that both of two other rules accept */
    ESP_IR_SHARED = 8, /* never copied into its callers, so that all of them share its masks */
    ESP_IR_FLAT = 16   /* all that it calls is copied into it, and it has no calls left */
};

struct esp_ir_rule {
    const char *name; /* for messages */
    uint32_t at;      /* where it was first named, for messages: byte of the source */
    unsigned flags;
    uint32_t both[2];
    struct esp_ir_state *state; /* [n_state], in the arena */
    uint32_t n_state;
    struct esp_frag frag;
};

/* How characters of a text are written in the output. */
enum esp_ir_text {
    ESP_IR_PLAIN, /* as UTF-8 */
    ESP_IR_JSON   /* as in a JSON string: \" \\ \b \f \n \r \t escaped, other control characters not at all */
};

struct esp_ir {
    struct esp_arena *arena;
    struct esp_ir_rule *rule; /* [n_rule] */
    uint32_t n_rule, cap_rule;
    uint32_t n_total; /* states of all rules */
    uint32_t root;
    /* The first failure; all later calls do nothing, so that a front end checks once. */
    esp_status failed;
    const char *why;
};

/* The rule being written. */
struct esp_nfa {
    struct esp_ir *ir;
    struct esp_ir_state *state;
    uint32_t n, cap;
};

esp_status esp_ir_init(struct esp_ir *ir, esp_error *err);
void esp_ir_free(struct esp_ir *ir);
/* Pass a failure of the builder on, with what it was building. */
esp_status esp_ir_check(const struct esp_ir *ir, const char *what, esp_error *err);

/* A new rule without a definition; name is copied. */
uint32_t esp_ir_declare(struct esp_ir *ir, const char *name, size_t len, uint32_t at);
void esp_nfa_begin(struct esp_nfa *b, struct esp_ir *ir);
/* f is the definition of rule; b is empty afterwards. */
void esp_nfa_end(struct esp_nfa *b, uint32_t rule, struct esp_frag f, unsigned flags);
/* Drop what was written. */
void esp_nfa_drop(struct esp_nfa *b);
/* Append states of another set of rules, whose numbers there are by smaller; b must be empty. */
void esp_nfa_copy(struct esp_nfa *b, const struct esp_ir_state *state, uint32_t n, uint32_t by);
/* rule is the words of both x and y; neither may call rules that stay rules. */
void esp_ir_both(struct esp_ir *ir, uint32_t rule, uint32_t x, uint32_t y);

/* A state to link others from and to, and an edge without a symbol between two states, the first of them EPS.
 */
uint32_t esp_nfa_node(struct esp_nfa *b);
void esp_nfa_link(struct esp_nfa *b, uint32_t from, uint32_t to);
struct esp_frag esp_nfa_empty(struct esp_nfa *b);
struct esp_frag esp_nfa_range(struct esp_nfa *b, unsigned lo, unsigned hi); /* one byte */
struct esp_frag esp_nfa_bytes(struct esp_nfa *b, const char *s, size_t len);
struct esp_frag esp_nfa_puts(struct esp_nfa *b, const char *s);
struct esp_frag esp_nfa_call(struct esp_nfa *b, uint32_t rule);
struct esp_frag esp_nfa_token(struct esp_nfa *b, uint32_t id);
struct esp_frag esp_nfa_seq(struct esp_nfa *b, struct esp_frag f, struct esp_frag g);
struct esp_frag esp_nfa_alt(struct esp_nfa *b, struct esp_frag f, struct esp_frag g);
struct esp_frag esp_nfa_opt(struct esp_nfa *b, struct esp_frag f);
struct esp_frag esp_nfa_star(struct esp_nfa *b, struct esp_frag f);
/*
 * f min to max times (max ESP_IR_NONE: without end). All states from number mark on are f's. Long counts are
 * cut into blocks that are rules of their own.
 */
struct esp_frag esp_nfa_repeat(struct esp_nfa *b, struct esp_frag f, uint32_t mark, uint32_t min,
                               uint32_t max);

/* A set of characters: ranges in any order until esp_class_norm(). */
struct esp_class {
    struct esp_class_range {
        uint32_t lo, hi;
    } * r; /* [n], in the arena */
    uint32_t n, cap;
};
void esp_class_add(struct esp_ir *ir, struct esp_class *c, uint32_t lo, uint32_t hi);
void esp_class_norm(struct esp_class *c);                      /* sorted, disjoint, without surrogates */
void esp_class_invert(struct esp_ir *ir, struct esp_class *c); /* of a normal one; stays normal */
void esp_class_add_ascii(struct esp_ir *ir, struct esp_class *c,
                         char letter); /* d w s D W S, as after a backslash */
/* One character of a normal class. An empty class gives a fragment that nothing passes. */
struct esp_frag esp_nfa_class(struct esp_nfa *b, const struct esp_class *c, enum esp_ir_text text);
struct esp_frag esp_nfa_char(struct esp_nfa *b, uint32_t cp, enum esp_ir_text text);
struct esp_frag esp_nfa_any(struct esp_nfa *b, enum esp_ir_text text); /* any character but NUL */

#endif
