/*
 * GBNF: `name ::= ...` rules with literals in quotes, classes in brackets, alternatives, groups and counts. A
 * rule ends with its line, unless a group is open or the line behind it begins with a bar.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/grammar.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/utf8.h"

#include "grammar/expr.h"
#include "grammar/front.h"

static const char what[] = "grammar";

struct gbnf {
    struct esp_reader r;
    struct esp_ir ir;
    struct esp_nfa b;
    struct esp_expr e;
    uint32_t *slot; /* [n_slot] rule + 1 by name */
    uint32_t n_slot;
};

static esp_status bad(const struct gbnf *g, size_t at, const char *why, esp_error *err)
{
    return esp_reader_fail(&g->r, at, ESP_EFORMAT, why, err);
}

static char peek(const struct gbnf *g)
{
    return g->r.pos < g->r.len ? g->r.s[g->r.pos] : 0;
}

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* White space and comments; newlines too if they mean nothing here. */
static void skip(struct gbnf *g, bool newlines)
{
    for (;; g->r.pos++) {
        char c = peek(g);

        if (c == '#') {
            while (g->r.pos < g->r.len && g->r.s[g->r.pos] != '\n')
                g->r.pos++;
            c = peek(g);
        }
        if (g->r.pos >= g->r.len || !(c == ' ' || c == '\t' || c == '\r' || (newlines && c == '\n')))
            return;
    }
}

static bool rehash(struct gbnf *g)
{
    const uint32_t n = g->n_slot ? g->n_slot * 2 : 256;
    uint32_t *slot = esp_alloc_array(n, sizeof *slot);

    if (!slot)
        return false;
    for (uint32_t i = 0; i < g->ir.n_rule; i++) {
        uint64_t h = esp_hash(g->ir.rule[i].name, strlen(g->ir.rule[i].name), 0);

        while (slot[h & (n - 1)])
            h++;
        slot[h & (n - 1)] = i + 1;
    }
    esp_free(g->slot);
    g->slot = slot;
    g->n_slot = n;
    return true;
}

/* The rule called name, which need not be defined yet. */
static esp_status find_rule(struct gbnf *g, const char *name, size_t len, size_t at, uint32_t *rule,
                            esp_error *err)
{
    uint64_t h;

    if (g->ir.n_rule * 2 >= g->n_slot && !rehash(g))
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", what);
    for (h = esp_hash(name, len, 0); g->slot[h & (g->n_slot - 1)]; h++) {
        const uint32_t i = g->slot[h & (g->n_slot - 1)] - 1;

        if (strlen(g->ir.rule[i].name) == len && memcmp(g->ir.rule[i].name, name, len) == 0) {
            *rule = i;
            return ESP_OK;
        }
    }
    *rule = esp_ir_declare(&g->ir, name, len, (uint32_t)at);
    ESP_TRY(esp_ir_check(&g->ir, what, err));
    g->slot[h & (g->n_slot - 1)] = *rule + 1;
    return ESP_OK;
}

/* One character of a literal or class. */
static esp_status read_char(struct gbnf *g, uint32_t *cp, esp_error *err)
{
    static const char from[] = "nrt\\\"[]-^", to[] = "\n\r\t\\\"[]-^";
    const size_t at = g->r.pos;
    const char *p;
    char c;

    if (peek(g) != '\\') {
        *cp = esp_reader_char(&g->r);
        return ESP_OK;
    }
    g->r.pos++;
    c = peek(g);
    p = c ? strchr(from, c) : NULL;
    g->r.pos += g->r.pos < g->r.len;
    if (p)
        *cp = (unsigned char)to[p - from];
    else if (!((c == 'x' && esp_reader_hex(&g->r, 2, cp)) || (c == 'u' && esp_reader_hex(&g->r, 4, cp)) ||
               (c == 'U' && esp_reader_hex(&g->r, 8, cp))))
        return bad(
            g, at,
            "unknown escape; known are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH \\UHHHHHHHH", err);
    if (*cp > 0x10ffff || (*cp >= 0xd800 && *cp < 0xe000))
        return bad(g, at, "the escape is not the number of a character", err);
    return ESP_OK;
}

static esp_status read_literal(struct gbnf *g, esp_error *err)
{
    const size_t at = g->r.pos;
    const uint32_t mark = esp_expr_mark(&g->e);
    struct esp_frag f = esp_nfa_empty(&g->b);

    for (g->r.pos++; g->r.pos < g->r.len && peek(g) != '"' && peek(g) != '\n';) {
        uint32_t cp;

        ESP_TRY(read_char(g, &cp, err));
        f = esp_nfa_seq(&g->b, f, esp_nfa_char(&g->b, cp, ESP_IR_PLAIN));
    }
    if (peek(g) != '"')
        return bad(g, at, "a literal without its closing quote on the same line", err);
    g->r.pos++;
    esp_expr_item(&g->e, f, mark);
    return ESP_OK;
}

static esp_status read_class(struct gbnf *g, esp_error *err)
{
    const size_t at = g->r.pos++;
    const bool invert = peek(g) == '^';
    const uint32_t mark = esp_expr_mark(&g->e);
    struct esp_class c = {0};

    g->r.pos += invert;
    while (g->r.pos < g->r.len && peek(g) != ']' && peek(g) != '\n') {
        const size_t from = g->r.pos;
        uint32_t lo, hi;

        ESP_TRY(read_char(g, &lo, err));
        hi = lo;
        if (peek(g) == '-' && g->r.pos + 1 < g->r.len && g->r.s[g->r.pos + 1] != ']') {
            g->r.pos++;
            ESP_TRY(read_char(g, &hi, err));
        }
        if (hi < lo)
            return bad(g, from, "a range in a class goes from a character up to another", err);
        esp_class_add(&g->ir, &c, lo, hi);
    }
    if (peek(g) != ']')
        return bad(g, at, "a class without its ] on the same line", err);
    g->r.pos++;
    esp_class_norm(&c);
    if (c.n == 0 && !invert)
        return bad(g, at, "an empty class", err);
    if (invert)
        esp_class_invert(&g->ir, &c);
    esp_expr_item(&g->e, esp_nfa_class(&g->b, &c, ESP_IR_PLAIN), mark);
    return ESP_OK;
}

static esp_status read_call(struct gbnf *g, esp_error *err)
{
    const size_t at = g->r.pos;
    const uint32_t mark = esp_expr_mark(&g->e);
    uint32_t rule;

    while (name_char(peek(g)))
        g->r.pos++;
    ESP_TRY(find_rule(g, g->r.s + at, g->r.pos - at, at, &rule, err));
    esp_expr_item(&g->e, esp_nfa_call(&g->b, rule), mark);
    return ESP_OK;
}

static esp_status read_count(struct gbnf *g, esp_error *err)
{
    const size_t at = g->r.pos;
    const char c = peek(g);
    uint32_t min = c == '+', max = c == '?' ? 1 : ESP_IR_NONE;

    if (c != '{')
        g->r.pos++;
    else if (!esp_reader_counts(&g->r, &min, &max))
        return bad(g, at, "a count is {m}, {m,} or {m,n}", err);
    if (max < min)
        return bad(g, at, "{m,n} needs m <= n", err);
    if (!esp_expr_repeat(&g->e, min, max))
        return bad(g, at, "nothing to repeat", err);
    return ESP_OK;
}

/* One item, bar or parenthesis; *end: the rule is over. */
static esp_status read_item(struct gbnf *g, bool *end, esp_error *err)
{
    const size_t at = g->r.pos;
    const char c = peek(g);

    switch (c) {
    case '"':
        return read_literal(g, err);
    case '[':
        return read_class(g, err);
    case '*':
    case '+':
    case '?':
    case '{':
        return read_count(g, err);
    case '.': {
        const uint32_t mark = esp_expr_mark(&g->e);

        g->r.pos++;
        esp_expr_item(&g->e, esp_nfa_any(&g->b, ESP_IR_PLAIN), mark);
        return ESP_OK;
    }
    case '|':
        g->r.pos++;
        esp_expr_bar(&g->e);
        skip(g, true);
        return ESP_OK;
    case '(':
        g->r.pos++;
        if (!esp_expr_open(&g->e))
            return esp_reader_fail(&g->r, at, ESP_ENOFIT, "groups nested more than 64 deep", err);
        return ESP_OK;
    case ')':
        g->r.pos++;
        return esp_expr_close(&g->e) ? ESP_OK : bad(g, at, "a ) without its (", err);
    default:
        break;
    }
    if (name_char(c))
        return read_call(g, err);
    if (g->r.pos < g->r.len && c != '\n')
        return bad(
            g, at,
            "unknown here; expected a literal in quotes, a class in brackets, a name, ( ) | * + ? { or .",
            err);
    skip(g, true); /* a rule may go on with a bar */
    *end = peek(g) != '|';
    return ESP_OK;
}

static esp_status read_rule(struct gbnf *g, esp_error *err)
{
    const size_t at = g->r.pos;
    uint32_t rule;
    size_t len;
    bool end = false;

    while (name_char(peek(g)))
        g->r.pos++;
    len = g->r.pos - at;
    if (len == 0)
        return bad(g, at, "expected the name of a rule", err);
    skip(g, false);
    if (g->r.len - g->r.pos < 3 || memcmp(g->r.s + g->r.pos, "::=", 3) != 0)
        return bad(g, g->r.pos, "expected ::= behind the name of a rule", err);
    g->r.pos += 3;
    ESP_TRY(find_rule(g, g->r.s + at, len, at, &rule, err));
    if (g->ir.rule[rule].flags & ESP_IR_DEFINED)
        return bad(g, at, "the rule is defined twice", err);
    esp_nfa_begin(&g->b, &g->ir);
    esp_expr_begin(&g->e, &g->b);
    skip(g, true);
    while (!end && g->ir.failed == ESP_OK) {
        ESP_TRY(read_item(g, &end, err));
        if (!end)
            skip(g, g->e.depth > 0);
    }
    ESP_TRY(esp_ir_check(&g->ir, what, err));
    if (g->e.depth)
        return bad(g, g->r.pos, "a ( without its )", err);
    esp_nfa_end(&g->b, rule, esp_expr_end(&g->e), 0);
    return esp_ir_check(&g->ir, what, err);
}

static esp_status read_grammar(struct gbnf *g, esp_error *err)
{
    size_t at;

    if (g->r.len > ESP_LIMIT_GRAMMAR_BYTES)
        return esp_fail(err, ESP_ENOFIT, "%s: %zu bytes, at most %u are accepted", what, g->r.len,
                        ESP_LIMIT_GRAMMAR_BYTES);
    if (!esp_utf8_valid(g->r.s, g->r.len, &at))
        return bad(g, at, "invalid UTF-8", err);
    ESP_TRY(find_rule(g, "root", 4, g->r.len, &g->ir.root, err));
    for (skip(g, true); g->r.pos < g->r.len; skip(g, true))
        ESP_TRY(read_rule(g, err));
    if (!(g->ir.rule[g->ir.root].flags & ESP_IR_DEFINED))
        return bad(g, g->r.len, "there is no rule called root", err);
    for (uint32_t i = 0; i < g->ir.n_rule; i++)
        if (!(g->ir.rule[i].flags & ESP_IR_DEFINED)) {
            char why[160];

            snprintf(why, sizeof why, "the rule \"%.100s\" is not defined", g->ir.rule[i].name);
            return bad(g, g->ir.rule[i].at, why, err);
        }
    return ESP_OK;
}

esp_status esp_front_gbnf(struct esp_front *f, const char *text, size_t len, esp_error *err)
{
    struct gbnf g = {.r = {.s = text, .len = len, .what = what}};
    esp_status s;

    memset(f, 0, sizeof *f);
    f->what = what;
    ESP_TRY(esp_ir_init(&g.ir, err));
    s = read_grammar(&g, err);
    if (g.b.ir)
        esp_nfa_drop(&g.b);
    esp_free(g.slot);
    if (s == ESP_OK)
        f->ir = g.ir;
    else
        esp_ir_free(&g.ir);
    return s;
}

esp_status esp_grammar_gbnf(struct esp_grammar **out, const struct esp_vocab *v, const char *text, size_t len,
                            esp_error *err)
{
    struct esp_front f;

    return esp_front_finish(out, v, &f, esp_front_gbnf(&f, text, len, err), err);
}
