/*
 * Regular expressions: literals, escapes, classes, groups, alternatives, counts, and anchors at the ends.
 * Only what describes a set of texts is accepted; whatever looks around or back is refused by name. Classes
 * \d \w \s are those of ASCII, and greed does not matter, since nothing is captured.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/front.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

#include "grammar/expr.h"
#include "grammar/grammar.h"

struct regex {
    struct esp_reader r;
    struct esp_expr e;
    struct esp_nfa *b;
    enum esp_ir_text text;
    enum esp_regex_scope scope;
};

static esp_status bad(const struct regex *x, size_t at, const char *why, esp_error *err)
{
    return esp_reader_fail(&x->r, at, ESP_EFORMAT, why, err);
}

static esp_status unsupported(const struct regex *x, size_t at, const char *why, esp_error *err)
{
    return esp_reader_fail(&x->r, at, ESP_EUNSUPPORTED, why, err);
}

static char peek(const struct regex *x)
{
    return x->r.pos < x->r.len ? x->r.s[x->r.pos] : 0;
}

/* \u and \x, whose letter has been read. */
static esp_status read_code(struct regex *x, char letter, size_t at, uint32_t *cp, esp_error *err)
{
    if (letter == 'u' && peek(x) == '{') {
        uint32_t v = 0, d;

        for (x->r.pos++; esp_reader_hex(&x->r, 1, &d); v = v << 4 | d)
            if (v > 0x10ffff)
                break;
        if (peek(x) != '}' || v > 0x10ffff)
            return bad(x, at, "\\u{...} takes the hexadecimal number of a character, at most 10FFFF", err);
        x->r.pos++;
        *cp = v;
    } else if (!esp_reader_hex(&x->r, letter == 'u' ? 4 : 2, cp)) {
        return bad(x, at,
                   letter == 'u' ? "\\u takes four hexadecimal digits" : "\\x takes two hexadecimal digits",
                   err);
    }
    if (*cp >= 0xd800 && *cp < 0xe000)
        return unsupported(x, at, "surrogates are not supported; write \\u{...} with the character's number",
                           err);
    return ESP_OK;
}

/* Escapes that are letters or digits and are refused, with the reason. */
static const char *why_not(char c)
{
    if (c == 'b' || c == 'B')
        return "word boundaries (\\b, \\B) are not supported";
    if (c == 'p' || c == 'P')
        return "Unicode properties (\\p) are not supported; list the ranges in a class";
    if ((c >= '1' && c <= '9') || c == 'k')
        return "back-references are not supported";
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return "this escape is not supported; known are \\d \\w \\s \\D \\W \\S \\n \\r \\t \\f \\v \\0 "
               "\\xHH "
               "\\uHHHH \\u{H}";
    return NULL;
}

/* An escape; its backslash has been read. Either *cp, or *letter: one of dwsDWS. */
static esp_status read_escape(struct regex *x, uint32_t *cp, char *letter, esp_error *err)
{
    static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v";
    const size_t at = x->r.pos - 1;
    const char c = peek(x);
    const char *p = c ? strchr(from, c) : NULL;

    *letter = 0;
    if (x->r.pos == x->r.len)
        return bad(x, at, "a backslash at the end", err);
    if ((unsigned char)c >= 0x80) {
        *cp = esp_reader_char(&x->r);
        return ESP_OK;
    }
    x->r.pos++;
    if (c == 'u' || c == 'x')
        return read_code(x, c, at, cp, err);
    *cp = p ? (uint32_t)to[p - from] : (unsigned char)c;
    if (c && strchr("dwsDWS", c))
        *letter = c;
    else if (!p && why_not(c))
        return unsupported(x, at, why_not(c), err);
    return ESP_OK;
}

/* One member of a class: a character or a set like \d, which *letter names. */
static esp_status read_member(struct regex *x, uint32_t *cp, char *letter, esp_error *err)
{
    *letter = 0;
    if (peek(x) != '\\') {
        *cp = esp_reader_char(&x->r);
        return ESP_OK;
    }
    x->r.pos++;
    if (peek(x) == 'b') { /* in a class it is a character */
        x->r.pos++;
        *cp = '\b';
        return ESP_OK;
    }
    return read_escape(x, cp, letter, err);
}

static esp_status read_class(struct regex *x, struct esp_class *c, esp_error *err)
{
    const size_t at = x->r.pos - 1;
    const bool invert = peek(x) == '^';

    x->r.pos += invert;
    if (peek(x) == ']')
        return bad(x, at, "an empty class; write \\] for the bracket itself", err);
    while (x->r.pos < x->r.len && peek(x) != ']') {
        const size_t from = x->r.pos;
        uint32_t lo = 0, hi = 0;
        char set, end;

        ESP_TRY(read_member(x, &lo, &set, err));
        if (set) {
            esp_class_add_ascii(x->b->ir, c, set);
            continue;
        }
        hi = lo;
        if (peek(x) == '-' && x->r.pos + 1 < x->r.len && x->r.s[x->r.pos + 1] != ']') {
            x->r.pos++;
            ESP_TRY(read_member(x, &hi, &end, err));
            if (end || hi < lo)
                return bad(x, from, "a range in a class goes from a character up to another", err);
        }
        esp_class_add(x->b->ir, c, lo, hi);
    }
    if (x->r.pos == x->r.len)
        return bad(x, at, "a class without its ]", err);
    x->r.pos++;
    esp_class_norm(c);
    if (invert)
        esp_class_invert(x->b->ir, c);
    return ESP_OK;
}

static void add_class(struct regex *x, struct esp_class *c)
{
    const uint32_t mark = esp_expr_mark(&x->e);

    esp_class_norm(c);
    esp_expr_item(&x->e, esp_nfa_class(x->b, c, x->text), mark);
}

static esp_status open_group(struct regex *x, esp_error *err)
{
    const size_t at = x->r.pos - 1;

    if (peek(x) == '?') {
        if (x->r.len - x->r.pos < 2 || x->r.s[x->r.pos + 1] != ':')
            return unsupported(
                x, at,
                "look-around, names and options in groups are not supported; known are ( ) and "
                "(?: )",
                err);
        x->r.pos += 2;
    }
    if (!esp_expr_open(&x->e))
        return esp_reader_fail(&x->r, at, ESP_ENOFIT, "groups nested more than 64 deep", err);
    return ESP_OK;
}

/* Anything before or behind what was written, where no anchor says otherwise. */
static void add_anything(struct regex *x)
{
    const uint32_t mark = esp_expr_mark(&x->e);

    if (x->scope == ESP_REGEX_SEARCH && x->e.depth == 0)
        esp_expr_item(&x->e, esp_nfa_star(x->b, esp_nfa_any(x->b, x->text)), mark);
}

/* The start of an alternative of the whole expression. */
static void start_alternative(struct regex *x)
{
    if (x->e.depth)
        return;
    if (peek(x) == '^')
        x->r.pos++;
    else
        add_anything(x);
}

static esp_status read_atom(struct regex *x, esp_error *err)
{
    const size_t at = x->r.pos;
    struct esp_class c = {0};
    uint32_t cp;
    char letter = 0;

    cp = esp_reader_char(&x->r);
    switch (cp) {
    case '(':
        return open_group(x, err);
    case '[':
        ESP_TRY(read_class(x, &c, err));
        add_class(x, &c);
        return ESP_OK;
    case '.':
        esp_class_add(x->b->ir, &c, 1, 0x10ffff);
        esp_class_norm(&c);
        esp_class_invert(x->b->ir, &c);
        esp_class_add(x->b->ir, &c, '\n', '\n');
        esp_class_add(x->b->ir, &c, '\r', '\r');
        esp_class_norm(&c);
        esp_class_invert(x->b->ir, &c);
        add_class(x, &c);
        return ESP_OK;
    case '^':
    case '$':
        return unsupported(x, at, "^ and $ are supported at the ends of the whole expression only", err);
    case '*':
    case '+':
    case '?':
        return bad(x, at, "nothing to repeat; write a backslash before the character itself", err);
    case '\\':
        ESP_TRY(read_escape(x, &cp, &letter, err));
        break;
    default:
        break;
    }
    if (letter)
        esp_class_add_ascii(x->b->ir, &c, letter);
    else
        esp_class_add(x->b->ir, &c, cp, cp);
    add_class(x, &c);
    return ESP_OK;
}

/* A count behind an item, if there is one; a ? behind it asks for the shortest match, which changes nothing
 * here. */
static esp_status read_count(struct regex *x, bool *found, esp_error *err)
{
    const size_t at = x->r.pos;
    uint32_t min = 0, max = ESP_IR_NONE;
    const char c = peek(x);

    *found = true;
    if (c == '*' || c == '+' || c == '?') {
        min = c == '+';
        max = c == '?' ? 1 : ESP_IR_NONE;
        x->r.pos++;
    } else if (c != '{' || !esp_reader_counts(&x->r, &min, &max)) {
        *found = false;
        return ESP_OK;
    }
    if (max < min)
        return bad(x, at, "{m,n} needs m <= n", err);
    if (!esp_expr_repeat(&x->e, min, max))
        return bad(x, at, "nothing to repeat; write a backslash before the character itself", err);
    if (peek(x) == '?')
        x->r.pos++;
    else if (peek(x) == '+')
        return unsupported(x, at, "possessive counts are not supported", err);
    if (peek(x) == '*')
        return bad(x, x->r.pos, "a count behind a count", err);
    return ESP_OK;
}

static bool at_end_anchor(const struct regex *x)
{
    return x->e.depth == 0 && peek(x) == '$' && (x->r.pos + 1 == x->r.len || x->r.s[x->r.pos + 1] == '|');
}

static esp_status read_all(struct regex *x, esp_error *err)
{
    bool anchored = false, countable = false;

    start_alternative(x);
    while (x->r.pos < x->r.len && x->b->ir->failed == ESP_OK) {
        const char c = peek(x);
        bool found = false;

        if (countable)
            ESP_TRY(read_count(x, &found, err));
        countable = false;
        if (found)
            continue;
        if (at_end_anchor(x)) {
            x->r.pos++;
            anchored = true;
        } else if (c == '|') {
            x->r.pos++;
            if (!anchored)
                add_anything(x);
            anchored = false;
            esp_expr_bar(&x->e);
            start_alternative(x);
        } else if (c == ')') {
            if (!esp_expr_close(&x->e))
                return bad(x, x->r.pos, "a ) without its (; write \\) for the character itself", err);
            x->r.pos++;
            countable = true;
        } else {
            ESP_TRY(read_atom(x, err));
            countable = c != '(';
        }
    }
    ESP_TRY(esp_ir_check(x->b->ir, x->r.what, err));
    if (x->e.depth)
        return bad(x, x->r.len, "a ( without its )", err);
    if (!anchored)
        add_anything(x);
    return ESP_OK;
}

esp_status esp_regex_build(struct esp_nfa *b, const char *s, size_t len, enum esp_ir_text text,
                           enum esp_regex_scope scope, const char *what, struct esp_frag *out, esp_error *err)
{
    struct regex x = {.r = {.s = s, .len = len, .what = what}, .b = b, .text = text, .scope = scope};
    size_t at;

    if (len > ESP_LIMIT_GRAMMAR_BYTES)
        return esp_fail(err, ESP_ENOFIT, "%s: %zu bytes, at most %u are accepted", what, len,
                        ESP_LIMIT_GRAMMAR_BYTES);
    if (!esp_utf8_valid(s, len, &at))
        return esp_reader_fail(&x.r, at, ESP_EFORMAT, "invalid UTF-8", err);
    esp_expr_begin(&x.e, b);
    ESP_TRY(read_all(&x, err));
    *out = esp_expr_end(&x.e);
    return esp_ir_check(b->ir, what, err);
}

esp_status esp_front_regex(struct esp_front *front, const char *text, size_t len, esp_error *err)
{
    struct esp_nfa b;
    struct esp_frag f = {0, 0};
    esp_status s;

    memset(front, 0, sizeof *front);
    front->what = "regular expression";
    ESP_TRY(esp_ir_init(&front->ir, err));
    front->ir.root = esp_ir_declare(&front->ir, "root", 4, 0);
    esp_nfa_begin(&b, &front->ir);
    s = esp_regex_build(&b, text, len, ESP_IR_PLAIN, ESP_REGEX_WHOLE, front->what, &f, err);
    if (s == ESP_OK)
        esp_nfa_end(&b, front->ir.root, f, 0);
    esp_nfa_drop(&b);
    if (s != ESP_OK)
        esp_ir_free(&front->ir);
    return s;
}

esp_status esp_grammar_regex(struct esp_grammar **out, const struct esp_vocab *v, const char *text,
                             size_t len, esp_error *err)
{
    struct esp_front f;

    return esp_front_finish(out, v, &f, esp_front_regex(&f, text, len, err), err);
}

esp_status esp_front_choice(struct esp_front *front, const char *const *text, size_t n, esp_error *err)
{
    struct esp_ir *ir = &front->ir;
    struct esp_nfa b;
    struct esp_frag f;
    esp_status s = ESP_OK;
    uint32_t start;

    memset(front, 0, sizeof *front);
    front->what = "choice";
    if (n == 0 || n > ESP_LIMIT_SCHEMA_ENUM)
        return esp_fail(err, n ? ESP_ENOFIT : ESP_EINVAL, "a choice of %zu texts; 1 to %u are accepted", n,
                        ESP_LIMIT_SCHEMA_ENUM);
    ESP_TRY(esp_ir_init(ir, err));
    ir->root = esp_ir_declare(ir, "root", 4, 0);
    esp_nfa_begin(&b, ir);
    start = esp_nfa_node(&b);
    f.end = esp_nfa_node(&b);
    f.start = start;
    for (size_t i = 0; i < n && s == ESP_OK; i++) {
        struct esp_frag g;

        if (!esp_utf8_valid(text[i], strlen(text[i]), NULL)) {
            s = esp_fail(err, ESP_EFORMAT, "text %zu of a choice is not valid UTF-8", i);
            break;
        }
        g = esp_nfa_puts(&b, text[i]);
        esp_nfa_link(&b, start, g.start);
        esp_nfa_link(&b, g.end, f.end);
    }
    if (s == ESP_OK)
        esp_nfa_end(&b, ir->root, f, 0);
    esp_nfa_drop(&b);
    if (s != ESP_OK)
        esp_ir_free(ir);
    return s;
}

esp_status esp_grammar_choice(struct esp_grammar **out, const struct esp_vocab *v, const char *const *text,
                              size_t n, esp_error *err)
{
    struct esp_front f;

    return esp_front_finish(out, v, &f, esp_front_choice(&f, text, n, err), err);
}
