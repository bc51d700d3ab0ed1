/*
 * Jinja expressions: tokens to nodes. Operators of one level, and everything that follows a value (.name,
 * [key], (args), |filter, is test), become one node with a list instead of a nest of nodes, so that a
 * template's depth counts only real nesting: parentheses, brackets and arguments. Precedence and quirks
 * (unary minus binds tighter than **, a filter after a test argument belongs to the whole) are those of
 * Jinja2.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <string.h>

enum {
    OP2_FLOORDIV = '/' << 8 | '/',
    OP2_POW = '*' << 8 | '*',
    OP2_EQ = '=' << 8 | '=',
    OP2_NE = '!' << 8 | '='
};
enum { OP2_GE = '>' << 8 | '=', OP2_LE = '<' << 8 | '=' };

/* Appends to a node's list in O(1). */
struct tail {
    struct esp_jnode *owner;
    struct esp_jnode *last;
};

static void append(struct tail *t, struct esp_jnode *n)
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
    struct tail t = {0};
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
        append(&t, item);
    }
    return esp_jparse_expect_op(p, ']');
}

static esp_status parse_dict(struct esp_jparser *p, struct esp_jnode **out)
{
    struct tail t = {0};
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
        append(&t, key);
        append(&t, val);
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
    struct tail t = {.owner = call};
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
        if (esp_jparse_is_op(&p->cur, '*') || esp_jparse_is_op(&p->cur, OP2_POW))
            return esp_jlex_fail(&p->lex, ESP_EUNSUPPORTED, p->cur.line,
                                 "unpacking of arguments (* and **) is not supported");
        ESP_TRY(esp_jparse_look(p, &ahead));
        if (p->cur.type == ESP_JT_NAME && esp_jparse_is_op(ahead, '=')) {
            ESP_TRY(esp_jparse_node(p, ESP_JN_KW, p->cur.line, &kw));
            ESP_TRY(expect_name(p, &kw->name));
            ESP_TRY(esp_jparse_next(p));
            ESP_TRY(esp_jparse_expr(p, &kw->a));
            keywords = true;
            append(&t, kw);
            continue;
        }
        if (keywords)
            return esp_jlex_fail(&p->lex, ESP_EFORMAT, p->cur.line,
                                 "positional argument behind a keyword argument");
        ESP_TRY(esp_jparse_expr(p, &arg));
        append(&t, arg);
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
static esp_status chain(struct esp_jparser *p, struct tail *t, struct esp_jnode **head,
                        struct esp_jnode *link)
{
    if (!t->owner) {
        struct esp_jnode *c;

        ESP_TRY(esp_jparse_node(p, ESP_JN_CHAIN, link->line, &c));
        c->a = *head;
        *head = c;
        t->owner = c;
    }
    append(t, link);
    return ESP_OK;
}

static esp_status parse_postfix(struct esp_jparser *p, struct tail *t, struct esp_jnode **head)
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
    struct tail t = {0};

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
    struct tail t = {0};

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

static esp_status parse_filters_and_tests(struct esp_jparser *p, struct tail *t, struct esp_jnode **head)
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
static esp_status parse_unary(struct esp_jparser *p, struct esp_jnode **out)
{
    struct esp_jnode *outer = NULL, **slot = &outer;
    struct tail t = {0};
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
        t = (struct tail){0};
    ESP_TRY(parse_filters_and_tests(p, &t, &outer));
    *out = outer;
    return ESP_OK;
}

/* Arithmetic levels from loosest to tightest; level 1 is ~, which has a node of its own. */
static int arith_op(const struct esp_jtoken *t, int level)
{
    if (t->type != ESP_JT_OP)
        return 0;
    switch (t->op) {
    case '+':
        return level == 0 ? ESP_JOP_ADD : 0;
    case '-':
        return level == 0 ? ESP_JOP_SUB : 0;
    case '*':
        return level == 2 ? ESP_JOP_MUL : 0;
    case '/':
        return level == 2 ? ESP_JOP_DIV : 0;
    case OP2_FLOORDIV:
        return level == 2 ? ESP_JOP_FLOORDIV : 0;
    case '%':
        return level == 2 ? ESP_JOP_MOD : 0;
    case OP2_POW:
        return level == 3 ? ESP_JOP_POW : 0;
    default:
        return 0;
    }
}

static esp_status parse_concat(struct esp_jparser *p, struct esp_jnode **out);

static esp_status parse_arith(struct esp_jparser *p, int level, struct esp_jnode **out)
{
    struct tail t = {0};
    int op;

    ESP_TRY(level == 0 ? parse_concat(p, out) : level == 2 ? parse_arith(p, 3, out) : parse_unary(p, out));
    while ((op = arith_op(&p->cur, level)) != 0) {
        struct esp_jnode *n;

        if (!t.owner) {
            ESP_TRY(esp_jparse_node(p, ESP_JN_ARITH, p->cur.line, &t.owner));
            t.owner->a = *out;
            *out = t.owner;
        }
        ESP_TRY(esp_jparse_node(p, ESP_JN_OPERAND, p->cur.line, &n));
        n->op = op;
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(level == 0   ? parse_concat(p, &n->a)
                : level == 2 ? parse_arith(p, 3, &n->a)
                             : parse_unary(p, &n->a));
        append(&t, n);
    }
    return ESP_OK;
}

/* Items of one kind joined by one separator; a single item stays itself. */
static esp_status start_list(struct esp_jparser *p, enum esp_jnode_type type, struct tail *t,
                             struct esp_jnode **first)
{
    if (t->owner)
        return ESP_OK;
    ESP_TRY(esp_jparse_node(p, type, p->cur.line, &t->owner));
    append(t, *first);
    *first = t->owner;
    return ESP_OK;
}

static esp_status parse_concat(struct esp_jparser *p, struct esp_jnode **out)
{
    struct tail t = {0};

    ESP_TRY(parse_arith(p, 2, out));
    while (esp_jparse_is_op(&p->cur, '~')) {
        struct esp_jnode *n;

        ESP_TRY(start_list(p, ESP_JN_CONCAT, &t, out));
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(parse_arith(p, 2, &n));
        append(&t, n);
    }
    return ESP_OK;
}

/* The comparison at the cursor, taking its first token off when it has two ("not in"). */
static esp_status compare_op(struct esp_jparser *p, int *op)
{
    static const struct {
        int token, op;
    } ops[] = {{OP2_EQ, ESP_JOP_EQ}, {OP2_NE, ESP_JOP_NE}, {'<', ESP_JOP_LT},
               {OP2_LE, ESP_JOP_LE}, {'>', ESP_JOP_GT},    {OP2_GE, ESP_JOP_GE}};
    const struct esp_jtoken *ahead;

    *op = 0;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (esp_jparse_is_op(&p->cur, ops[i].token))
            *op = ops[i].op;
    if (esp_jparse_is_name(&p->cur, "in"))
        *op = ESP_JOP_IN;
    if (!esp_jparse_is_name(&p->cur, "not"))
        return ESP_OK;
    ESP_TRY(esp_jparse_look(p, &ahead));
    if (!esp_jparse_is_name(ahead, "in"))
        return ESP_OK;
    *op = ESP_JOP_NOTIN;
    return esp_jparse_next(p);
}

static esp_status parse_compare(struct esp_jparser *p, struct esp_jnode **out)
{
    struct tail t = {0};
    int op;

    ESP_TRY(parse_arith(p, 0, out));
    for (;;) {
        struct esp_jnode *n;
        int line = p->cur.line;

        ESP_TRY(compare_op(p, &op));
        if (op == 0)
            return ESP_OK;
        if (!t.owner) {
            ESP_TRY(esp_jparse_node(p, ESP_JN_COMPARE, line, &t.owner));
            t.owner->a = *out;
            *out = t.owner;
        }
        ESP_TRY(esp_jparse_node(p, ESP_JN_OPERAND, line, &n));
        n->op = op;
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(parse_arith(p, 0, &n->a));
        append(&t, n);
    }
}

static esp_status parse_not(struct esp_jparser *p, struct esp_jnode **out)
{
    struct esp_jnode **slot = out;
    unsigned n = 0;

    while (esp_jparse_is_name(&p->cur, "not")) {
        if (n++ >= ESP_LIMIT_TEMPLATE_DEPTH)
            return esp_jlex_fail(&p->lex, ESP_ENOFIT, p->cur.line, "more than %d \"not\" in a row",
                                 ESP_LIMIT_TEMPLATE_DEPTH);
        ESP_TRY(esp_jparse_node(p, ESP_JN_NOT, p->cur.line, slot));
        slot = &(*slot)->a;
        ESP_TRY(esp_jparse_next(p));
    }
    return parse_compare(p, slot);
}

static esp_status parse_and(struct esp_jparser *p, struct esp_jnode **out)
{
    struct tail t = {0};

    ESP_TRY(parse_not(p, out));
    while (esp_jparse_is_name(&p->cur, "and")) {
        struct esp_jnode *n;

        ESP_TRY(start_list(p, ESP_JN_AND, &t, out));
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(parse_not(p, &n));
        append(&t, n);
    }
    return ESP_OK;
}

esp_status esp_jparse_or(struct esp_jparser *p, struct esp_jnode **out)
{
    struct tail t = {0};

    ESP_TRY(parse_and(p, out));
    while (esp_jparse_is_name(&p->cur, "or")) {
        struct esp_jnode *n;

        ESP_TRY(start_list(p, ESP_JN_OR, &t, out));
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(parse_and(p, &n));
        append(&t, n);
    }
    return ESP_OK;
}

/* a if b else c if d else e: nests to the right, one level each. */
esp_status esp_jparse_expr(struct esp_jparser *p, struct esp_jnode **out)
{
    struct esp_jnode **slot = out;
    unsigned entered = 0;

    ESP_TRY(esp_jparse_or(p, slot));
    while (esp_jparse_is_name(&p->cur, "if")) {
        struct esp_jnode *cond;

        ESP_TRY(esp_jparse_node(p, ESP_JN_COND, p->cur.line, &cond));
        cond->a = *slot;
        *slot = cond;
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(esp_jparse_or(p, &cond->b));
        if (!esp_jparse_is_name(&p->cur, "else"))
            continue; /* "x if a if b": the second if is about the whole */
        ESP_TRY(esp_jparse_enter(p));
        entered++;
        slot = &cond->c;
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(esp_jparse_or(p, slot));
    }
    p->depth -= entered;
    return ESP_OK;
}

static bool tuple_ends(const struct esp_jparser *p, const char *end_name)
{
    return p->cur.type == ESP_JT_VAR_END || p->cur.type == ESP_JT_BLOCK_END ||
           esp_jparse_is_op(&p->cur, ')') || (end_name && esp_jparse_is_name(&p->cur, end_name));
}

esp_status esp_jparse_tuple(struct esp_jparser *p, unsigned flags, const char *end_name,
                            struct esp_jnode **out)
{
    struct tail t = {0};
    struct esp_jnode *tuple;
    bool comma = false;

    ESP_TRY(esp_jparse_node(p, ESP_JN_TUPLE, p->cur.line, &tuple));
    t.owner = tuple;
    for (;;) {
        struct esp_jnode *n;

        if (t.last)
            ESP_TRY(esp_jparse_expect_op(p, ','));
        if (tuple_ends(p, end_name))
            break;
        ESP_TRY(flags & ESP_JTUPLE_TARGET    ? esp_jparse_primary(p, &n)
                : flags & ESP_JTUPLE_NO_COND ? esp_jparse_or(p, &n)
                                             : esp_jparse_expr(p, &n));
        append(&t, n);
        if (!esp_jparse_is_op(&p->cur, ','))
            break;
        comma = true;
    }
    if (!comma && !t.last && !(flags & ESP_JTUPLE_PAREN))
        return esp_jparse_unexpected(p, "an expression");
    *out = comma || !t.last ? tuple : tuple->list;
    return ESP_OK;
}
