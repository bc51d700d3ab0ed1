/*
 * Jinja statements: tokens to a tree. What a chat template may say is listed in one table; a statement that
 * Jinja has and we do not is refused by name when the template is opened, not when a chat happens to reach
 * it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* ---- shared with jinja_expr.c ---- */

esp_status esp_jparse_next(struct esp_jparser *p)
{
    if (p->has_ahead) {
        p->cur = p->ahead;
        p->has_ahead = false;
        return ESP_OK;
    }
    return esp_jlex_next(&p->lex, &p->cur);
}

esp_status esp_jparse_look(struct esp_jparser *p, const struct esp_jtoken **out)
{
    if (!p->has_ahead) {
        ESP_TRY(esp_jlex_next(&p->lex, &p->ahead));
        p->has_ahead = true;
    }
    *out = &p->ahead;
    return ESP_OK;
}

esp_status esp_jparse_node(struct esp_jparser *p, enum esp_jnode_type type, int line, struct esp_jnode **out)
{
    struct esp_jnode *n = esp_arena_alloc(p->lex.arena, sizeof *n);

    if (!n)
        return esp_jlex_fail(&p->lex, ESP_ENOMEM, line, "no memory for the template");
    n->type = type;
    n->line = line;
    *out = n;
    return ESP_OK;
}

esp_status esp_jparse_intern(struct esp_jparser *p, const char *s, size_t len, const char **out)
{
    uint32_t h = 2166136261u;
    struct esp_jname *n;

    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t)s[i]) * 16777619u;
    h %= ESP_JNAME_BUCKETS;
    for (n = p->names[h]; n; n = n->next)
        if (n->len == len && memcmp(n->s, s, len) == 0)
            break;
    if (!n) {
        n = esp_arena_alloc(p->lex.arena, sizeof *n + len + 1);
        if (!n)
            return esp_jlex_fail(&p->lex, ESP_ENOMEM, p->lex.line, "no memory for the template");
        memcpy(n->s, s, len);
        n->len = len;
        n->next = p->names[h];
        p->names[h] = n;
    }
    *out = n->s;
    return ESP_OK;
}

bool esp_jparse_is_name(const struct esp_jtoken *t, const char *name)
{
    return t->type == ESP_JT_NAME && t->len == strlen(name) && memcmp(t->s, name, t->len) == 0;
}

bool esp_jparse_is_op(const struct esp_jtoken *t, int op)
{
    return t->type == ESP_JT_OP && t->op == op;
}

/* What stands at the cursor, for messages. */
static void describe(const struct esp_jtoken *t, char *out, size_t cap)
{
    switch (t->type) {
    case ESP_JT_EOF:
        snprintf(out, cap, "the end of the template");
        break;
    case ESP_JT_VAR_END:
        snprintf(out, cap, "\"}}\"");
        break;
    case ESP_JT_BLOCK_END:
        snprintf(out, cap, "\"%%}\"");
        break;
    case ESP_JT_NAME:
        snprintf(out, cap, "\"%.*s\"", t->len < 40 ? (int)t->len : 40, t->s);
        break;
    case ESP_JT_OP:
        if (t->op > 255)
            snprintf(out, cap, "\"%c%c\"", t->op >> 8, t->op & 255);
        else
            snprintf(out, cap, "\"%c\"", t->op);
        break;
    case ESP_JT_STRING:
        snprintf(out, cap, "a string");
        break;
    default:
        snprintf(out, cap, "a number");
    }
}

esp_status esp_jparse_unexpected(struct esp_jparser *p, const char *wanted)
{
    char found[64];

    describe(&p->cur, found, sizeof found);
    return esp_jlex_fail(&p->lex, ESP_EFORMAT, p->cur.line, "found %s where %s was expected", found, wanted);
}

esp_status esp_jparse_expect_op(struct esp_jparser *p, int op)
{
    char wanted[4] = {'"', (char)op, '"', 0};

    if (!esp_jparse_is_op(&p->cur, op))
        return esp_jparse_unexpected(p, wanted);
    return esp_jparse_next(p);
}

esp_status esp_jparse_enter(struct esp_jparser *p)
{
    if (++p->depth > ESP_LIMIT_TEMPLATE_DEPTH)
        return esp_jlex_fail(&p->lex, ESP_ENOFIT, p->cur.line,
                             "blocks and brackets are nested more than %d deep, which is the most accepted",
                             ESP_LIMIT_TEMPLATE_DEPTH);
    return ESP_OK;
}

/* ---- statements ---- */

static esp_status parse_body(struct esp_jparser *p, const char *const *ends, int line,
                             struct esp_jnode **out);

static esp_status expect_block_end(struct esp_jparser *p)
{
    if (p->cur.type != ESP_JT_BLOCK_END)
        return esp_jparse_unexpected(p, "\"%}\"");
    return esp_jparse_next(p);
}

static esp_status expect_word(struct esp_jparser *p, const char *word)
{
    char wanted[32];

    snprintf(wanted, sizeof wanted, "\"%s\"", word);
    return esp_jparse_is_name(&p->cur, word) ? esp_jparse_next(p) : esp_jparse_unexpected(p, wanted);
}

/* "%}", body, and the name of the tag that ended it; the cursor stays on that name. */
static esp_status parse_block(struct esp_jparser *p, const char *const *ends, struct esp_jnode **out)
{
    int line = p->cur.line;

    ESP_TRY(esp_jparse_enter(p));
    ESP_TRY(expect_block_end(p));
    ESP_TRY(parse_body(p, ends, line, out));
    p->depth--;
    return ESP_OK;
}

static esp_status parse_if(struct esp_jparser *p, struct esp_jnode *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    struct esp_jnode **slot = &n->list;

    n->type = ESP_JN_IF;
    for (;;) {
        ESP_TRY(esp_jparse_node(p, ESP_JN_BRANCH, p->cur.line, slot));
        ESP_TRY(esp_jparse_tuple(p, ESP_JTUPLE_NO_COND, NULL, &(*slot)->a));
        ESP_TRY(parse_block(p, ends, &(*slot)->list));
        slot = &(*slot)->next;
        if (!esp_jparse_is_name(&p->cur, "elif"))
            break;
        ESP_TRY(esp_jparse_next(p));
    }
    if (esp_jparse_is_name(&p->cur, "else")) {
        ESP_TRY(esp_jparse_node(p, ESP_JN_BRANCH, p->cur.line, slot));
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(parse_block(p, last, &(*slot)->list));
    }
    return esp_jparse_next(p);
}

/* Names only, possibly in tuples; for set also name.attr of a namespace. */
static esp_status check_target(struct esp_jparser *p, const struct esp_jnode *t)
{
    if (t->type != ESP_JN_TUPLE && t->type != ESP_JN_NAME && t->type != ESP_JN_NSNAME)
        return esp_jlex_fail(&p->lex, ESP_EFORMAT, t->line, "only names can be assigned to");
    for (const struct esp_jnode *i = t->type == ESP_JN_TUPLE ? t->list : NULL; i; i = i->next)
        if (i->type != ESP_JN_NAME)
            return esp_jlex_fail(&p->lex, ESP_EFORMAT, t->line, "only names can be assigned to");
    return ESP_OK;
}

static esp_status parse_target(struct esp_jparser *p, bool with_attr, const char *end, struct esp_jnode **out)
{
    const struct esp_jtoken *ahead;

    ESP_TRY(esp_jparse_look(p, &ahead));
    if (with_attr && p->cur.type == ESP_JT_NAME && esp_jparse_is_op(ahead, '.')) {
        ESP_TRY(esp_jparse_node(p, ESP_JN_NSNAME, p->cur.line, out));
        ESP_TRY(esp_jparse_intern(p, p->cur.s, p->cur.len, &(*out)->name));
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(esp_jparse_next(p));
        if (p->cur.type != ESP_JT_NAME)
            return esp_jparse_unexpected(p, "an attribute name");
        (*out)->value.kind = ESP_JUNDEF; /* only carries the name */
        ESP_TRY(esp_jparse_intern(p, p->cur.s, p->cur.len, &(*out)->value.u.name));
        return esp_jparse_next(p);
    }
    ESP_TRY(esp_jparse_tuple(p, ESP_JTUPLE_TARGET, end, out));
    return check_target(p, *out);
}

static esp_status parse_for(struct esp_jparser *p, struct esp_jnode *n)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    unsigned macros = p->n_macro;

    n->type = ESP_JN_FOR;
    ESP_TRY(esp_jparse_intern(p, "loop", 4, &n->name));
    ESP_TRY(parse_target(p, false, "in", &n->a));
    ESP_TRY(expect_word(p, "in"));
    ESP_TRY(esp_jparse_tuple(p, ESP_JTUPLE_NO_COND, "recursive", &n->b));
    if (esp_jparse_is_name(&p->cur, "if")) {
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(esp_jparse_expr(p, &n->c));
    }
    if (esp_jparse_is_name(&p->cur, "recursive"))
        return esp_jlex_fail(&p->lex, ESP_EUNSUPPORTED, p->cur.line, "recursive for-loops are not supported");
    p->loops++;
    ESP_TRY(parse_block(p, ends, &n->list));
    p->loops--;
    n->flag = p->n_macro != macros;
    if (esp_jparse_is_name(&p->cur, "else")) {
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(parse_block(p, last, &n->other));
    }
    return esp_jparse_next(p);
}

static esp_status parse_set(struct esp_jparser *p, struct esp_jnode *n)
{
    static const char *const ends[] = {"endset", NULL};

    n->type = ESP_JN_SET;
    ESP_TRY(parse_target(p, true, NULL, &n->a));
    if (esp_jparse_is_op(&p->cur, '=')) {
        ESP_TRY(esp_jparse_next(p));
        return esp_jparse_tuple(p, 0, NULL, &n->b);
    }
    n->type = ESP_JN_SETBLOCK;
    ESP_TRY(esp_jparse_filters(p, &n->other));
    ESP_TRY(parse_block(p, ends, &n->list));
    return esp_jparse_next(p);
}

static esp_status parse_signature(struct esp_jparser *p, struct esp_jnode *n)
{
    struct esp_jnode **slot = &n->other;
    bool defaults = false;

    ESP_TRY(esp_jparse_expect_op(p, '('));
    while (!esp_jparse_is_op(&p->cur, ')')) {
        if (slot != &n->other)
            ESP_TRY(esp_jparse_expect_op(p, ','));
        if (p->cur.type != ESP_JT_NAME)
            return esp_jparse_unexpected(p, "a parameter name");
        ESP_TRY(esp_jparse_node(p, ESP_JN_NAME, p->cur.line, slot));
        ESP_TRY(esp_jparse_intern(p, p->cur.s, p->cur.len, &(*slot)->name));
        ESP_TRY(esp_jparse_next(p));
        if (esp_jparse_is_op(&p->cur, '=')) {
            ESP_TRY(esp_jparse_next(p));
            ESP_TRY(esp_jparse_expr(p, &(*slot)->a));
            defaults = true;
        } else if (defaults) {
            return esp_jlex_fail(&p->lex, ESP_EFORMAT, p->cur.line,
                                 "parameter \"%s\" without a default follows one with", (*slot)->name);
        }
        slot = &(*slot)->next;
        n->n++;
    }
    return esp_jparse_next(p);
}

static esp_status parse_macro(struct esp_jparser *p, struct esp_jnode *n)
{
    static const char *const ends[] = {"endmacro", NULL};
    struct esp_jnode *outer = p->macro;
    unsigned loops = p->loops;

    n->type = ESP_JN_MACRO;
    if (p->cur.type != ESP_JT_NAME)
        return esp_jparse_unexpected(p, "a macro name");
    ESP_TRY(esp_jparse_intern(p, p->cur.s, p->cur.len, &n->name));
    ESP_TRY(esp_jparse_next(p));
    p->macro = n;
    p->loops = 0; /* break inside a macro does not reach loops around it */
    p->n_macro++;
    ESP_TRY(parse_signature(p, n));
    ESP_TRY(parse_block(p, ends, &n->list));
    p->macro = outer;
    p->loops = loops;
    for (const struct esp_jnode *i = n->other; i;
         i = i->next) { /* parameters of these names are ordinary ones */
        n->a = n->a && n->a->name == i->name ? NULL : n->a;
        n->b = n->b && n->b->name == i->name ? NULL : n->b;
    }
    ESP_TRY(esp_jparse_next(p));
    if (p->cur.type == ESP_JT_NAME) /* {% endmacro name %} */
        return esp_jparse_next(p);
    return ESP_OK;
}

static esp_status parse_break(struct esp_jparser *p, struct esp_jnode *n)
{
    n->type = ESP_JN_BREAK;
    return p->loops ? ESP_OK : esp_jlex_fail(&p->lex, ESP_EFORMAT, n->line, "\"break\" outside a for-loop");
}

static esp_status parse_continue(struct esp_jparser *p, struct esp_jnode *n)
{
    n->type = ESP_JN_CONTINUE;
    return p->loops ? ESP_OK
                    : esp_jlex_fail(&p->lex, ESP_EFORMAT, n->line, "\"continue\" outside a for-loop");
}

/* Marks what training would count as the model's own text; it prints its body. */
static esp_status parse_generation(struct esp_jparser *p, struct esp_jnode *n)
{
    static const char *const ends[] = {"endgeneration", NULL};
    unsigned loops = p->loops;

    n->type = ESP_JN_SCOPE;
    p->loops = 0; /* the reference extension makes a macro of it */
    ESP_TRY(parse_block(p, ends, &n->list));
    p->loops = loops;
    return esp_jparse_next(p);
}

static esp_status parse_statement(struct esp_jparser *p, struct esp_jnode **out)
{
    static const struct {
        const char *name;
        esp_status (*parse)(struct esp_jparser *p, struct esp_jnode *n);
    } table[] = {{"if", parse_if},
                 {"for", parse_for},
                 {"set", parse_set},
                 {"macro", parse_macro},
                 {"break", parse_break},
                 {"continue", parse_continue},
                 {"generation", parse_generation}};
    static const char *const known[] = {"include",    "import", "from", "extends", "block", "call",  "filter",
                                        "autoescape", "with",   "do",   "trans",   "debug", "print", "while"};

    if (p->cur.type != ESP_JT_NAME)
        return esp_jparse_unexpected(p, "a statement");
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (!esp_jparse_is_name(&p->cur, table[i].name))
            continue;
        ESP_TRY(esp_jparse_node(p, ESP_JN_TEXT, p->cur.line, out));
        ESP_TRY(esp_jparse_next(p));
        ESP_TRY(table[i].parse(p, *out));
        return expect_block_end(p);
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (esp_jparse_is_name(&p->cur, known[i]))
            return esp_jlex_fail(&p->lex, ESP_EUNSUPPORTED, p->cur.line,
                                 "the statement \"%s\" is not supported in chat templates", known[i]);
    return esp_jparse_unexpected(p, "a statement (if, for, set, macro, break, continue, generation, raw)");
}

static esp_status parse_data(struct esp_jparser *p, struct esp_jnode **out)
{
    struct esp_jstr *s = esp_arena_alloc(p->lex.arena, sizeof *s);

    ESP_TRY(esp_jparse_node(p, ESP_JN_TEXT, p->cur.line, out));
    if (!s)
        return esp_jlex_fail(&p->lex, ESP_ENOMEM, p->cur.line, "no memory for the template");
    s->p = p->cur.s;
    s->len = p->cur.len;
    s->trusted = true;
    (*out)->value.kind = ESP_JSTR;
    (*out)->value.u.s = s;
    return esp_jparse_next(p);
}

static esp_status parse_print(struct esp_jparser *p, struct esp_jnode **out)
{
    ESP_TRY(esp_jparse_node(p, ESP_JN_PRINT, p->cur.line, out));
    ESP_TRY(esp_jparse_next(p));
    ESP_TRY(esp_jparse_tuple(p, 0, NULL, &(*out)->a));
    if (p->cur.type != ESP_JT_VAR_END)
        return esp_jparse_unexpected(p, "\"}}\"");
    return esp_jparse_next(p);
}

static bool is_end(const struct esp_jparser *p, const char *const *ends)
{
    for (size_t i = 0; ends && ends[i]; i++)
        if (esp_jparse_is_name(&p->cur, ends[i]))
            return true;
    return false;
}

/* Statements up to one of the ends (NULL: the template's end); line is where the block began. */
static esp_status parse_body(struct esp_jparser *p, const char *const *ends, int line, struct esp_jnode **out)
{
    struct esp_jnode **slot = out;

    *slot = NULL;
    for (;;) {
        switch (p->cur.type) {
        case ESP_JT_DATA:
            ESP_TRY(parse_data(p, slot));
            break;
        case ESP_JT_VAR_BEGIN:
            ESP_TRY(parse_print(p, slot));
            break;
        case ESP_JT_BLOCK_BEGIN:
            ESP_TRY(esp_jparse_next(p));
            if (is_end(p, ends))
                return ESP_OK;
            ESP_TRY(parse_statement(p, slot));
            break;
        default:
            if (ends)
                return esp_jlex_fail(
                    &p->lex, ESP_EFORMAT, line, "the block that begins here is not closed, \"%s\" is missing",
                    ends[0][0] == 'e' && ends[0][1] == 'l' ? (ends[2] ? ends[2] : ends[1]) : ends[0]);
            return ESP_OK;
        }
        slot = &(*slot)->next;
    }
}

esp_status esp_jparse(struct esp_jnode **out, struct esp_arena *a, const char *source, size_t len,
                      const char *name, esp_error *err)
{
    struct esp_jparser *p = esp_alloc(sizeof *p);
    esp_status s;

    if (!p)
        return esp_fail(err, ESP_ENOMEM, "%s: no memory for the template", name);
    s = esp_jlex_init(&p->lex, a, source, len, name, err);
    if (s == ESP_OK)
        s = esp_jparse_next(p);
    if (s == ESP_OK)
        s = parse_body(p, NULL, 1, out);
    esp_free(p);
    return s;
}
