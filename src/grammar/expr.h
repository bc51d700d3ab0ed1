/*
 * What expressions of GBNF and of regular expressions have in common: sequences, alternatives, groups,
 * repetition. The reader says what it sees from left to right; open groups are a stack of bounded depth.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_GRAMMAR_EXPR_H
#define ESP_GRAMMAR_EXPR_H

#include "base/limits.h"

#include "grammar/ir.h"

struct esp_expr {
    struct esp_nfa *b;
    uint32_t depth;
    struct esp_expr_group {
        struct esp_frag sum, seq, last; /* alternatives so far; this one without its last item; that item */
        uint32_t mark, last_mark;       /* first states of the group and of the item */
        bool has_sum, has_last;
    } group[ESP_LIMIT_GRAMMAR_NESTING + 1];
};

void esp_expr_begin(struct esp_expr *e, struct esp_nfa *b);
/* Before building an item: its first state. */
uint32_t esp_expr_mark(const struct esp_expr *e);
void esp_expr_item(struct esp_expr *e, struct esp_frag f, uint32_t mark);
bool esp_expr_repeat(struct esp_expr *e, uint32_t min, uint32_t max); /* false: there is no item to repeat */
void esp_expr_bar(struct esp_expr *e);
bool esp_expr_open(struct esp_expr *e);  /* false: too deep */
bool esp_expr_close(struct esp_expr *e); /* false: no group is open */
/* The whole; all groups are closed. */
struct esp_frag esp_expr_end(struct esp_expr *e);
/* Whether the present alternative has no item yet. */
bool esp_expr_at_start(const struct esp_expr *e);

/* A reader's place in its text, for messages "WHAT, line L, column C: ...". */
struct esp_reader {
    const char *s;
    size_t len, pos;
    const char *what;
};
esp_status esp_reader_fail(const struct esp_reader *r, size_t at, esp_status s, const char *why,
                           esp_error *err);
/* n hexadecimal digits at pos, consumed; false: there are none. */
bool esp_reader_hex(struct esp_reader *r, unsigned n, uint32_t *out);
/* A decimal number at pos, consumed; larger ones than 2^30 read as 2^30. False: there is none. */
bool esp_reader_number(struct esp_reader *r, uint32_t *out);
/* {m}, {m,}, {m,n} at pos, consumed. False: it is something else. */
bool esp_reader_counts(struct esp_reader *r, uint32_t *min, uint32_t *max);
/* One character of valid UTF-8 at pos, consumed. */
uint32_t esp_reader_char(struct esp_reader *r);

#endif
