/*
 * Jinja expressions: operators over values. Operators of one level become one node with a list instead of a
 * nest of nodes, so that a template's depth counts only real nesting: parentheses, brackets and arguments.
 * Precedence and quirks (unary minus binds tighter than **, ** goes from left to right) are those of Jinja2.
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

/* Arithmetic levels from loosest to tightest; level 1 is ~, which has a node of its own. */
static int arith_op(const struct esp_jtoken *t, int level)
{
    static const struct {
        int token, level, op;
    } ops[] = {{'+', 0, ESP_JOP_ADD},    {'-', 0, ESP_JOP_SUB}, {'*', 2, ESP_JOP_MUL},
               {'/', 2, ESP_JOP_DIV},    {'%', 2, ESP_JOP_MOD}, {OP2_FLOORDIV, 2, ESP_JOP_FLOORDIV},
               {OP2_POW, 3, ESP_JOP_POW}};

    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (ops[i].level == level && esp_jparse_is_op(t, ops[i].token))
            return ops[i].op;
    return 0;
}

static esp_status parse_concat(struct esp_jparser *p, struct esp_jnode **out);

static esp_status parse_arith(struct esp_jparser *p, int level, struct esp_jnode **out)
{
    struct esp_jtail t = {0};
    int op;

    ESP_TRY(level == 0   ? parse_concat(p, out)
            : level == 2 ? parse_arith(p, 3, out)
                         : esp_jparse_unary(p, out));
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
                             : esp_jparse_unary(p, &n->a));
        esp_jparse_append(&t, n);
    }
    return ESP_OK;
}

/* Items of one kind joined by one separator; a single item stays itself. */
static esp_status start_list(struct esp_jparser *p, enum esp_jnode_type type, struct esp_jtail *t,
                             struct esp_jnode **first)
{
    if (t->owner)
        return ESP_OK;
    ESP_TRY(esp_jparse_node(p, type, p->cur.line, &t->owner));
    esp_jparse_append(t, *first);
    *first = t->owner;
    return ESP_OK;
}

static esp_status parse_concat(struct esp_jparser *p, struct esp_jnode **out)
{
    struct esp_jtail t = {0};

    ESP_TRY(parse_arith(p, 2, out));
    while (esp_jparse_is_op(&p->cur, '~')) {
        struct esp_jnode *n;

        ESP_TRY(start_list(p, ESP_JN_CONCAT, &t, out));
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(parse_arith(p, 2, &n));
        esp_jparse_append(&t, n);
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
    struct esp_jtail t = {0};
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
        esp_jparse_append(&t, n);
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
    struct esp_jtail t = {0};

    ESP_TRY(parse_not(p, out));
    while (esp_jparse_is_name(&p->cur, "and")) {
        struct esp_jnode *n;

        ESP_TRY(start_list(p, ESP_JN_AND, &t, out));
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(parse_not(p, &n));
        esp_jparse_append(&t, n);
    }
    return ESP_OK;
}

esp_status esp_jparse_or(struct esp_jparser *p, struct esp_jnode **out)
{
    struct esp_jtail t = {0};

    ESP_TRY(parse_and(p, out));
    while (esp_jparse_is_name(&p->cur, "or")) {
        struct esp_jnode *n;

        ESP_TRY(start_list(p, ESP_JN_OR, &t, out));
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(parse_and(p, &n));
        esp_jparse_append(&t, n);
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
    struct esp_jtail t = {0};
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
        esp_jparse_append(&t, n);
        if (!esp_jparse_is_op(&p->cur, ','))
            break;
        comma = true;
    }
    if (!comma && !t.last && !(flags & ESP_JTUPLE_PAREN))
        return esp_jparse_unexpected(p, "an expression");
    *out = comma || !t.last ? tuple : tuple->list;
    return ESP_OK;
}
