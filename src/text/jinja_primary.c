/*
 * Jinja values in expressions: literals, names, brackets, and everything that may follow a value (.name,
 * [key], (args), |filter, is test), which becomes one chain node whatever its length. jinja_expr.c combines
 * them with operators.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <string.h>

void esp_jparse_append(struct esp_jtail *t, struct esp_jnode *n)
{
    if (t->last)
        t->last->next = n;
    else
        t->owner->list = n;
    t->last = n;
    t->owner->n++;
}

static esp_status expect_name(struct esp_jparser *p, const char **out)
{
    if (p->cur.type != ESP_JT_NAME)
        return esp_jparse_unexpected(p, "a name");
    ESP_TRY(esp_jparse_intern(p, p->cur.s, p->cur.len, out));
    return esp_jparse_next(p);
}

/* A constant string of the template: trusted. */
static esp_status set_string(struct esp_jparser *p, struct esp_jnode *n, const char *s, size_t len)
{
    struct esp_jstr *str = esp_arena_alloc(p->lex.arena, sizeof *str);

    if (!str)
        return esp_jlex_fail(&p->lex, ESP_ENOMEM, n->line, "no memory");
    str->p = s;
    str->len = len;
    str->trusted = true;
    n->value.kind = ESP_JSTR;
    n->value.u.s = str;
    return ESP_OK;
}

/* Adjacent string literals are one string. */
static esp_status parse_string(struct esp_jparser *p, struct esp_jnode *n)
{
    const char *s = p->cur.s;
    size_t len = p->cur.len;

    ESP_TRY(esp_jparse_next(p));
    if (p->cur.type == ESP_JT_STRING) {
        struct esp_strbuf b;
        bool ok;

        esp_strbuf_init(&b, ESP_LIMIT_TEMPLATE_BYTES);
        esp_strbuf_add(&b, s, len);
        while (p->cur.type == ESP_JT_STRING) {
            esp_status st;

            esp_strbuf_add(&b, p->cur.s, p->cur.len);
            st = esp_jparse_next(p);
            if (st != ESP_OK) {
                esp_strbuf_free(&b);
                return st;
            }
        }
        len = b.len;
        s = esp_arena_strndup(p->lex.arena, esp_strbuf_str(&b), len);
        ok = !b.failed && s;
        esp_strbuf_free(&b);
        if (!ok)
            return esp_jlex_fail(&p->lex, ESP_ENOMEM, n->line, "no memory");
    }
    return set_string(p, n, s, len);
}

static esp_status parse_list(struct esp_jparser *p, struct esp_jnode **out)
{
    struct esp_jtail t = {0};
    struct esp_jnode *item;

    ESP_TRY(esp_jparse_node(p, ESP_JN_LIST, p->cur.line, out));
    t.owner = *out;
    ESP_TRY(esp_jparse_next(p));
    while (!esp_jparse_is_op(&p->cur, ']')) {
        if (t.last)
            ESP_TRY(esp_jparse_expect_op(p, ','));
        if (esp_jparse_is_op(&p->cur, ']'))
            break;
        ESP_TRY(esp_jparse_expr(p, &item));
        esp_jparse_append(&t, item);
    }
    return esp_jparse_expect_op(p, ']');
}

static esp_status parse_dict(struct esp_jparser *p, struct esp_jnode **out)
{
    struct esp_jtail t = {0};
    struct esp_jnode *key, *val;

    ESP_TRY(esp_jparse_node(p, ESP_JN_DICT, p->cur.line, out));
    t.owner = *out;
    ESP_TRY(esp_jparse_next(p));
    while (!esp_jparse_is_op(&p->cur, '}')) {
        if (t.last)
            ESP_TRY(esp_jparse_expect_op(p, ','));
        if (esp_jparse_is_op(&p->cur, '}'))
            break;
        ESP_TRY(esp_jparse_expr(p, &key));
        ESP_TRY(esp_jparse_expect_op(p, ':'));
        ESP_TRY(esp_jparse_expr(p, &val));
        esp_jparse_append(&t, key);
        esp_jparse_append(&t, val);
    }
    return esp_jparse_expect_op(p, '}');
}

static bool constant_name(const struct esp_jtoken *t, struct esp_jv *out)
{
    if (esp_jparse_is_name(t, "true") || esp_jparse_is_name(t, "True"))
        *out = esp_jv_bool(true);
    else if (esp_jparse_is_name(t, "false") || esp_jparse_is_name(t, "False"))
        *out = esp_jv_bool(false);
    else if (esp_jparse_is_name(t, "none") || esp_jparse_is_name(t, "None"))
        *out = esp_jv_none();
    else
        return false;
    return true;
}

static esp_status parse_name(struct esp_jparser *p, struct esp_jnode *n)
{
    if (constant_name(&p->cur, &n->value))
        return esp_jparse_next(p);
    n->type = ESP_JN_NAME;
    if (p->macro && esp_jparse_is_name(&p->cur, "varargs"))
        p->macro->a = n;
    if (p->macro && esp_jparse_is_name(&p->cur, "kwargs"))
        p->macro->b = n;
    return expect_name(p, &n->name);
}

static esp_status parse_bracketed(struct esp_jparser *p, struct esp_jnode **out)
{
    esp_status s;

    ESP_TRY(esp_jparse_enter(p));
    if (esp_jparse_is_op(&p->cur, '[')) {
        s = parse_list(p, out);
    } else if (esp_jparse_is_op(&p->cur, '{')) {
        s = parse_dict(p, out);
    } else {
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(esp_jparse_tuple(p, ESP_JTUPLE_PAREN, NULL, out));
        s = esp_jparse_expect_op(p, ')');
    }
    p->depth--;
    return s;
}

esp_status esp_jparse_primary(struct esp_jparser *p, struct esp_jnode **out)
{
    struct esp_jnode *n;

    if (esp_jparse_is_op(&p->cur, '(') || esp_jparse_is_op(&p->cur, '[') || esp_jparse_is_op(&p->cur, '{'))
        return parse_bracketed(p, out);
    ESP_TRY(esp_jparse_node(p, ESP_JN_CONST, p->cur.line, &n));
    *out = n;
    switch (p->cur.type) {
    case ESP_JT_NAME:
        return parse_name(p, n);
    case ESP_JT_STRING:
        return parse_string(p, n);
    case ESP_JT_INT:
        n->value = esp_jv_int(p->cur.i);
        return esp_jparse_next(p);
    case ESP_JT_FLOAT:
        n->value = esp_jv_float(p->cur.f);
        return esp_jparse_next(p);
    default:
        return esp_jparse_unexpected(p, "an expression");
    }
}

/* "(" args ")": positional, then name=value. */
static esp_status parse_args(struct esp_jparser *p, struct esp_jnode *call)
{
    struct esp_jtail t = {.owner = call};
    bool keywords = false;

    ESP_TRY(esp_jparse_enter(p));
    ESP_TRY(esp_jparse_expect_op(p, '('));
    while (!esp_jparse_is_op(&p->cur, ')')) {
        struct esp_jnode *arg, *kw;
        const struct esp_jtoken *ahead;

        if (t.last) {
            ESP_TRY(esp_jparse_expect_op(p, ','));
            if (esp_jparse_is_op(&p->cur, ')'))
                break;
        }
        if (esp_jparse_is_op(&p->cur, '*') || esp_jparse_is_op(&p->cur, '*' << 8 | '*'))
            return esp_jlex_fail(&p->lex, ESP_EUNSUPPORTED, p->cur.line,
                                 "unpacking of arguments (* and **) is not supported");
        ESP_TRY(esp_jparse_look(p, &ahead));
        if (p->cur.type == ESP_JT_NAME && esp_jparse_is_op(ahead, '=')) {
            ESP_TRY(esp_jparse_node(p, ESP_JN_KW, p->cur.line, &kw));
            ESP_TRY(expect_name(p, &kw->name));
            ESP_TRY(esp_jparse_next(p));
            ESP_TRY(esp_jparse_expr(p, &kw->a));
            keywords = true;
            esp_jparse_append(&t, kw);
            continue;
        }
        if (keywords)
            return esp_jlex_fail(&p->lex, ESP_EFORMAT, p->cur.line,
                                 "positional argument behind a keyword argument");
        ESP_TRY(esp_jparse_expr(p, &arg));
        esp_jparse_append(&t, arg);
    }
    p->depth--;
    return esp_jparse_expect_op(p, ')');
}

static bool subscript_part_ends(const struct esp_jparser *p)
{
    return esp_jparse_is_op(&p->cur, ']') || esp_jparse_is_op(&p->cur, ',') || esp_jparse_is_op(&p->cur, ':');
}

/* "[" key "]" or "[" start ":" stop ":" step "]" */
static esp_status parse_subscript(struct esp_jparser *p, struct esp_jnode *n)
{
    struct esp_jnode **part[3] = {&n->a, &n->b, &n->c};
    int i = 0;

    ESP_TRY(esp_jparse_enter(p));
    ESP_TRY(esp_jparse_next(p));
    n->type = ESP_JN_ITEM;
    if (esp_jparse_is_op(&p->cur, ']'))
        return esp_jparse_unexpected(p, "a subscript");
    for (;;) {
        if (!subscript_part_ends(p))
            ESP_TRY(esp_jparse_expr(p, part[i]));
        if (!esp_jparse_is_op(&p->cur, ':') || i == 2)
            break;
        n->type = ESP_JN_SLICE;
        i++;
        ESP_TRY(esp_jparse_next(p));
    }
    if (esp_jparse_is_op(&p->cur, ','))
        return esp_jlex_fail(&p->lex, ESP_EUNSUPPORTED, p->cur.line,
                             "subscripts with a comma are not supported");
    p->depth--;
    return esp_jparse_expect_op(p, ']');
}

static esp_status parse_dot(struct esp_jparser *p, struct esp_jnode *n)
{
    ESP_TRY(esp_jparse_next(p));
    if (p->cur.type == ESP_JT_INT) {
        n->type = ESP_JN_ITEM;
        return esp_jparse_primary(p, &n->a);
    }
    return expect_name(p, &n->name);
}

/* Start or extend a chain: *head becomes an ESP_JN_CHAIN when it is not this function's already. */
static esp_status chain(struct esp_jparser *p, struct esp_jtail *t, struct esp_jnode **head,
                        struct esp_jnode *link)
{
    if (!t->owner) {
        struct esp_jnode *c;

        ESP_TRY(esp_jparse_node(p, ESP_JN_CHAIN, link->line, &c));
        c->a = *head;
        *head = c;
        t->owner = c;
    }
    esp_jparse_append(t, link);
    return ESP_OK;
}

static esp_status parse_postfix(struct esp_jparser *p, struct esp_jtail *t, struct esp_jnode **head)
{
    for (;;) {
        struct esp_jnode *n;

        if (!esp_jparse_is_op(&p->cur, '.') && !esp_jparse_is_op(&p->cur, '[') &&
            !esp_jparse_is_op(&p->cur, '('))
            return ESP_OK;
        ESP_TRY(esp_jparse_node(p, ESP_JN_ATTR, p->cur.line, &n));
        if (esp_jparse_is_op(&p->cur, '.')) {
            ESP_TRY(parse_dot(p, n));
        } else if (esp_jparse_is_op(&p->cur, '[')) {
            ESP_TRY(parse_subscript(p, n));
        } else {
            n->type = ESP_JN_CALL;
            ESP_TRY(parse_args(p, n));
        }
        ESP_TRY(chain(p, t, head, n));
    }
}

/* A filter or test name may be dotted: nothing we have is, so the whole name is what the message will show.
 */
static esp_status parse_dotted(struct esp_jparser *p, const char **out)
{
    const char *from = p->cur.s;
    size_t len = p->cur.len;

    if (p->cur.type != ESP_JT_NAME)
        return esp_jparse_unexpected(p, "a name");
    ESP_TRY(esp_jparse_next(p));
    while (esp_jparse_is_op(&p->cur, '.')) {
        ESP_TRY(esp_jparse_next(p));
        if (p->cur.type != ESP_JT_NAME)
            return esp_jparse_unexpected(p, "a name");
        len = (size_t)(p->cur.s + p->cur.len - from);
        ESP_TRY(esp_jparse_next(p));
    }
    return esp_jparse_intern(p, from, len, out);
}

static esp_status parse_filter(struct esp_jparser *p, struct esp_jnode **out)
{
    ESP_TRY(esp_jparse_node(p, ESP_JN_FILTER, p->cur.line, out));
    ESP_TRY(esp_jparse_next(p));
    ESP_TRY(parse_dotted(p, &(*out)->name));
    return esp_jparse_is_op(&p->cur, '(') ? parse_args(p, *out) : ESP_OK;
}

esp_status esp_jparse_filters(struct esp_jparser *p, struct esp_jnode **out)
{
    struct esp_jtail t = {0};

    *out = NULL;
    while (esp_jparse_is_op(&p->cur, '|')) {
        struct esp_jnode *f;

        ESP_TRY(parse_filter(p, &f));
        ESP_TRY(chain(p, &t, out, f));
    }
    return ESP_OK;
}

/* Whether a test's argument may start here without parentheses. */
static bool bare_test_arg(const struct esp_jtoken *t)
{
    if (t->type == ESP_JT_NAME)
        return !esp_jparse_is_name(t, "else") && !esp_jparse_is_name(t, "or") &&
               !esp_jparse_is_name(t, "and");
    return t->type == ESP_JT_STRING || t->type == ESP_JT_INT || t->type == ESP_JT_FLOAT ||
           esp_jparse_is_op(t, '[') || esp_jparse_is_op(t, '{');
}

static esp_status parse_test(struct esp_jparser *p, struct esp_jnode **out)
{
    struct esp_jtail t = {0};

    ESP_TRY(esp_jparse_node(p, ESP_JN_TEST, p->cur.line, out));
    ESP_TRY(esp_jparse_next(p));
    if (esp_jparse_is_name(&p->cur, "not")) {
        (*out)->op = 1;
        ESP_TRY(esp_jparse_next(p));
    }
    ESP_TRY(parse_dotted(p, &(*out)->name));
    if (esp_jparse_is_op(&p->cur, '('))
        return parse_args(p, *out);
    if (bare_test_arg(&p->cur)) {
        struct esp_jnode *arg;

        if (esp_jparse_is_name(&p->cur, "is"))
            return esp_jlex_fail(&p->lex, ESP_EFORMAT, p->cur.line,
                                 "tests with \"is\" cannot follow each other");
        ESP_TRY(esp_jparse_primary(p, &arg));
        ESP_TRY(parse_postfix(p, &t, &arg));
        (*out)->list = arg;
        (*out)->n = 1;
    }
    return ESP_OK;
}

static esp_status parse_filters_and_tests(struct esp_jparser *p, struct esp_jtail *t, struct esp_jnode **head)
{
    for (;;) {
        struct esp_jnode *n;

        if (esp_jparse_is_op(&p->cur, '|')) {
            ESP_TRY(parse_filter(p, &n));
        } else if (esp_jparse_is_name(&p->cur, "is")) {
            ESP_TRY(parse_test(p, &n));
        } else if (esp_jparse_is_op(&p->cur, '(')) {
            ESP_TRY(esp_jparse_node(p, ESP_JN_CALL, p->cur.line, &n));
            ESP_TRY(parse_args(p, n));
        } else {
            return ESP_OK;
        }
        ESP_TRY(chain(p, t, head, n));
    }
}

/* Signs, a value, what follows it. Signs bind tighter than filters: -1|abs is (-1)|abs. */
esp_status esp_jparse_unary(struct esp_jparser *p, struct esp_jnode **out)
{
    struct esp_jnode *outer = NULL, **slot = &outer;
    struct esp_jtail t = {0};
    unsigned signs = 0;

    while (esp_jparse_is_op(&p->cur, '-') || esp_jparse_is_op(&p->cur, '+')) {
        bool minus = esp_jparse_is_op(&p->cur, '-');

        if (signs++ >= ESP_LIMIT_TEMPLATE_DEPTH)
            return esp_jlex_fail(&p->lex, ESP_ENOFIT, p->cur.line, "more than %d signs in a row",
                                 ESP_LIMIT_TEMPLATE_DEPTH);
        ESP_TRY(esp_jparse_node(p, minus ? ESP_JN_NEG : ESP_JN_POS, p->cur.line, slot));
        slot = &(*slot)->a;
        ESP_TRY(esp_jparse_next(p));
    }
    ESP_TRY(esp_jparse_primary(p, slot));
    ESP_TRY(parse_postfix(p, &t, slot));
    if (signs)
        t = (struct esp_jtail){0};
    ESP_TRY(parse_filters_and_tests(p, &t, &outer));
    *out = outer;
    return ESP_OK;
}
