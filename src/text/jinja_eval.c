/*
 * Jinja machine: walks the tree. Recursion follows the tree and macro calls only, each level is counted
 * against ESP_LIMIT_TEMPLATE_FRAMES, and every node visited is a step, so a hostile template ends in an error
 * after bounded time, stack and memory. Scoping is Jinja's: a for-loop's body is a new scope in every round,
 * if opens none, a macro sees the scope it was defined in.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <string.h>

/* ---- expressions ---- */

static esp_status eval(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n,
                       struct esp_jv *out);

static esp_status eval_args(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *list, size_t n,
                            struct esp_jargs *out)
{
    memset(out, 0, sizeof *out);
    if (n == 0)
        return ESP_OK;
    out->pos = esp_jvm_alloc(vm, n, sizeof *out->pos);
    out->kw = esp_jvm_alloc(vm, n, sizeof *out->kw);
    if (!out->pos || !out->kw)
        return vm->status;
    for (const struct esp_jnode *a = list; a && out->n_pos + out->n_kw < n; a = a->next) {
        if (a->type != ESP_JN_KW) {
            ESP_TRY(eval(vm, sc, a, &out->pos[out->n_pos++]));
            continue;
        }
        for (size_t i = 0; i < out->n_kw; i++)
            if (out->kw[i].name == a->name)
                return esp_jvm_fail(vm, ESP_EINVAL, "keyword argument \"%s\" is given twice", a->name);
        out->kw[out->n_kw].name = a->name;
        ESP_TRY(eval(vm, sc, a->a, &out->kw[out->n_kw++].v));
    }
    return ESP_OK;
}

static esp_status exec(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n, int *flow);

/* Arguments that no parameter took: varargs and kwargs where the macro asks for them, else an error. */
static esp_status macro_rest(struct esp_jvm *vm, const struct esp_jmacro *m, const struct esp_jargs *args,
                             const bool *used, struct esp_jscope *sc)
{
    struct esp_jv rest, named;
    size_t taken = m->node->n;

    if (args->n_pos > taken && !m->node->a)
        return esp_jvm_fail(vm, ESP_EINVAL, "macro \"%s\" takes at most %zu arguments, %zu given",
                            m->node->name, taken, args->n_pos);
    ESP_TRY(esp_jlist_new(vm, 0, ESP_JFORM_TUPLE, &rest));
    for (size_t i = taken; i < args->n_pos; i++)
        ESP_TRY(esp_jlist_add(vm, rest.u.l, args->pos[i]));
    ESP_TRY(esp_jdict_new(vm, ESP_JDICT, &named));
    for (size_t i = 0; i < args->n_kw; i++) {
        struct esp_jv key;

        if (used[i])
            continue;
        if (!m->node->b)
            return esp_jvm_fail(vm, ESP_EINVAL, "macro \"%s\" has no parameter \"%s\"", m->node->name,
                                args->kw[i].name);
        ESP_TRY(esp_jstr_view(vm, args->kw[i].name, strlen(args->kw[i].name), true, &key));
        ESP_TRY(esp_jdict_set(vm, named.u.d, key, args->kw[i].v));
    }
    if (m->node->a)
        ESP_TRY(esp_jvm_set(vm, sc, m->node->a->name, rest));
    if (m->node->b)
        ESP_TRY(esp_jvm_set(vm, sc, m->node->b->name, named));
    return ESP_OK;
}

static esp_status bind_params(struct esp_jvm *vm, const struct esp_jmacro *m, const struct esp_jargs *args,
                              struct esp_jscope *sc)
{
    bool *used = esp_jvm_alloc(vm, args->n_kw + 1, 1);
    size_t i = 0;

    if (!used)
        return vm->status;
    for (const struct esp_jnode *p = m->node->other; p; p = p->next, i++) {
        struct esp_jv v = esp_jv_undef(p->name);
        bool given = i < args->n_pos;

        if (given)
            v = args->pos[i];
        for (size_t k = 0; k < args->n_kw; k++) {
            if (args->kw[k].name != p->name)
                continue;
            if (given)
                return esp_jvm_fail(vm, ESP_EINVAL, "macro \"%s\" got \"%s\" twice", m->node->name, p->name);
            v = args->kw[k].v;
            used[k] = given = true;
        }
        if (!given && p->a)
            ESP_TRY(eval(vm, sc, p->a, &v));
        ESP_TRY(esp_jvm_set(vm, sc, p->name, v));
    }
    return macro_rest(vm, m, args, used, sc);
}

/* Run a body with its output caught as a string. */
static esp_status capture(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *body,
                          struct esp_jv *out)
{
    struct esp_jbuf *b = esp_jbuf_new(vm), *outer = vm->capture;
    int flow = 0;
    esp_status s;

    if (!b)
        return vm->status;
    vm->capture = b;
    s = exec(vm, sc, body, &flow);
    vm->capture = outer;
    return s == ESP_OK ? esp_jbuf_finish(vm, b, out) : s;
}

static esp_status call_macro(struct esp_jvm *vm, const struct esp_jmacro *m, const struct esp_jargs *args,
                             struct esp_jv *out)
{
    struct esp_jscope *sc = esp_jvm_alloc(vm, 1, sizeof *sc);
    unsigned loops = vm->loop_depth;

    if (!sc)
        return vm->status;
    if (++vm->macro_depth > ESP_LIMIT_TEMPLATE_DEPTH)
        return esp_jvm_fail(vm, ESP_ENOFIT, "macro calls are nested more than %d deep, the most accepted",
                            ESP_LIMIT_TEMPLATE_DEPTH);
    sc->parent = m->scope;
    vm->loop_depth = 0;
    ESP_TRY(bind_params(vm, m, args, sc));
    ESP_TRY(capture(vm, sc, m->node->list, out));
    vm->loop_depth = loops;
    vm->macro_depth--;
    return ESP_OK;
}

static esp_status call(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n, struct esp_jv *v)
{
    struct esp_jargs args;

    if (v->kind == ESP_JUNDEF)
        return esp_jv_undefined_error(vm, v);
    if (v->kind != ESP_JMACRO && v->kind != ESP_JFUNCTION && v->kind != ESP_JMETHOD)
        return esp_jvm_fail(vm, ESP_EINVAL, "a value of type %s cannot be called", esp_jv_type(v));
    ESP_TRY(eval_args(vm, sc, n->list, n->n, &args));
    vm->line = n->line;
    if (v->kind == ESP_JMACRO)
        return call_macro(vm, v->u.macro, &args, v);
    if (v->kind == ESP_JFUNCTION)
        return esp_jvm_call_builtin(vm, "function", v->u.fn, esp_jv_none(), &args, v);
    return esp_jvm_call_builtin(vm, "method", v->u.bound->fn, v->u.bound->self, &args, v);
}

static esp_status subscript(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n,
                            struct esp_jv *v)
{
    const struct esp_jnode *part[3] = {n->a, n->b, n->c};
    struct esp_jv b[3];

    for (int i = 0; i < 3; i++) {
        b[i] = esp_jv_undef(NULL);
        if (part[i])
            ESP_TRY(eval(vm, sc, part[i], &b[i]));
        if (part[i] && n->type == ESP_JN_SLICE && b[i].kind == ESP_JUNDEF)
            return esp_jv_undefined_error(vm, &b[i]);
    }
    vm->line = n->line;
    return n->type == ESP_JN_ITEM ? esp_jv_item(vm, v, &b[0], v) : esp_jv_slice(vm, v, b, v);
}

static esp_status filter_or_test(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n,
                                 struct esp_jv *v)
{
    struct esp_jargs args;
    bool yes;

    ESP_TRY(eval_args(vm, sc, n->list, n->n, &args));
    vm->line = n->line;
    if (n->type == ESP_JN_FILTER)
        return esp_jvm_filter(vm, n->name, *v, &args, v);
    ESP_TRY(esp_jvm_test(vm, n->name, *v, &args, &yes));
    *v = esp_jv_bool(yes != (n->op == 1));
    return ESP_OK;
}

/* The links of a chain from `link` on, applied to *v. */
static esp_status follow(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *link,
                         struct esp_jv *v)
{
    for (; link; link = link->next) {
        ESP_TRY(esp_jvm_charge(vm, 1));
        vm->line = link->line;
        switch (link->type) {
        case ESP_JN_ATTR:
            ESP_TRY(esp_jv_attr(vm, v, link->name, strlen(link->name), v));
            break;
        case ESP_JN_CALL:
            ESP_TRY(call(vm, sc, link, v));
            break;
        case ESP_JN_FILTER:
        case ESP_JN_TEST:
            ESP_TRY(filter_or_test(vm, sc, link, v));
            break;
        default:
            ESP_TRY(subscript(vm, sc, link, v));
        }
    }
    return ESP_OK;
}

static esp_status eval_list(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n,
                            struct esp_jv *out)
{
    struct esp_jv list, key, v;

    if (n->type == ESP_JN_DICT) {
        ESP_TRY(esp_jdict_new(vm, ESP_JDICT, &list));
        for (const struct esp_jnode *i = n->list; i && i->next; i = i->next->next) {
            ESP_TRY(eval(vm, sc, i, &key));
            ESP_TRY(eval(vm, sc, i->next, &v));
            ESP_TRY(esp_jdict_set(vm, list.u.d, key, v));
        }
    } else {
        ESP_TRY(esp_jlist_new(vm, n->n, n->type == ESP_JN_TUPLE ? ESP_JFORM_TUPLE : ESP_JFORM_LIST, &list));
        for (const struct esp_jnode *i = n->list; i; i = i->next) {
            ESP_TRY(eval(vm, sc, i, &v));
            ESP_TRY(esp_jlist_add(vm, list.u.l, v));
        }
    }
    *out = list;
    return ESP_OK;
}

static esp_status eval_concat(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n,
                              struct esp_jv *out)
{
    struct esp_jv acc, v;

    ESP_TRY(eval(vm, sc, n->list, &v));
    ESP_TRY(esp_jv_str(vm, &v, &acc));
    for (const struct esp_jnode *i = n->list->next; i; i = i->next) {
        ESP_TRY(eval(vm, sc, i, &v));
        ESP_TRY(esp_jv_str(vm, &v, &v));
        ESP_TRY(esp_jstr_concat(vm, acc.u.s, v.u.s, &acc));
    }
    *out = acc;
    return ESP_OK;
}

static esp_status eval_compare(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n,
                               struct esp_jv *out)
{
    struct esp_jv left, right;
    bool yes = true;

    ESP_TRY(eval(vm, sc, n->a, &left));
    for (const struct esp_jnode *i = n->list; i && yes; i = i->next) {
        ESP_TRY(eval(vm, sc, i->a, &right));
        vm->line = i->line;
        ESP_TRY(esp_jv_compare(vm, i->op, &left, &right, &yes));
        left = right;
    }
    *out = esp_jv_bool(yes);
    return ESP_OK;
}

static esp_status eval_arith(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n,
                             struct esp_jv *out)
{
    struct esp_jv acc, v;

    ESP_TRY(eval(vm, sc, n->a, &acc));
    for (const struct esp_jnode *i = n->list; i; i = i->next) {
        ESP_TRY(eval(vm, sc, i->a, &v));
        vm->line = i->line;
        ESP_TRY(esp_jv_arith(vm, i->op, &acc, &v, &acc));
    }
    *out = acc;
    return ESP_OK;
}

static esp_status eval_logic(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n,
                             struct esp_jv *out)
{
    bool stop_at = n->type == ESP_JN_OR;

    for (const struct esp_jnode *i = n->list; i; i = i->next) {
        ESP_TRY(eval(vm, sc, i, out));
        if (esp_jv_truth(out) == stop_at)
            break;
    }
    return ESP_OK;
}

static esp_status eval_sign(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n,
                            struct esp_jv *out)
{
    struct esp_jv v;
    int64_t i;

    ESP_TRY(eval(vm, sc, n->a, &v));
    vm->line = n->line;
    if (v.kind == ESP_JFLOAT) {
        *out = esp_jv_float(n->type == ESP_JN_NEG ? -v.u.f : v.u.f);
        return ESP_OK;
    }
    if (v.kind == ESP_JUNDEF)
        return esp_jv_undefined_error(vm, &v);
    if (!esp_jv_integer(&v, &i))
        return esp_jvm_fail(vm, ESP_EINVAL, "a value of type %s has no sign", esp_jv_type(&v));
    if (n->type == ESP_JN_NEG && __builtin_sub_overflow((int64_t)0, i, &i))
        return esp_jvm_fail(vm, ESP_EINVAL, "the result of - does not fit a 64-bit integer");
    *out = esp_jv_int(i);
    return ESP_OK;
}

static esp_status eval_cond(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n,
                            struct esp_jv *out)
{
    struct esp_jv test;

    ESP_TRY(eval(vm, sc, n->b, &test));
    if (esp_jv_truth(&test))
        return eval(vm, sc, n->a, out);
    if (n->c)
        return eval(vm, sc, n->c, out);
    *out = esp_jv_undef("the inline if without else");
    return ESP_OK;
}

static esp_status eval_node(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n,
                            struct esp_jv *out)
{
    switch (n->type) {
    case ESP_JN_LIST:
    case ESP_JN_TUPLE:
    case ESP_JN_DICT:
        return eval_list(vm, sc, n, out);
    case ESP_JN_COND:
        return eval_cond(vm, sc, n, out);
    case ESP_JN_AND:
    case ESP_JN_OR:
        return eval_logic(vm, sc, n, out);
    case ESP_JN_NOT:
        ESP_TRY(eval(vm, sc, n->a, out));
        *out = esp_jv_bool(!esp_jv_truth(out));
        return ESP_OK;
    case ESP_JN_COMPARE:
        return eval_compare(vm, sc, n, out);
    case ESP_JN_ARITH:
        return eval_arith(vm, sc, n, out);
    case ESP_JN_CONCAT:
        return eval_concat(vm, sc, n, out);
    case ESP_JN_NEG:
    case ESP_JN_POS:
        return eval_sign(vm, sc, n, out);
    default:
        ESP_TRY(eval(vm, sc, n->a, out));
        return follow(vm, sc, n->list, out);
    }
}

static esp_status eval(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n,
                       struct esp_jv *out)
{
    struct esp_jv v;

    ESP_TRY(esp_jvm_charge(vm, 1));
    vm->line = n->line;
    if (n->type == ESP_JN_CONST) {
        *out = n->value;
        return ESP_OK;
    }
    if (n->type == ESP_JN_NAME)
        return esp_jvm_get(vm, sc, n->name, out);
    ESP_TRY(esp_jvm_enter(vm));
    ESP_TRY(eval_node(vm, sc, n, &v));
    vm->depth--;
    *out = v;
    return ESP_OK;
}

/* ---- statements ---- */

enum { FLOW_BREAK = 1, FLOW_CONTINUE };

static esp_status assign(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *t,
                         const struct esp_jv *v)
{
    const struct esp_jv *items;
    struct esp_jv ns, key;
    size_t n;

    if (t->type == ESP_JN_NAME)
        return esp_jvm_set(vm, sc, t->name, *v);
    if (t->type == ESP_JN_NSNAME) {
        ESP_TRY(esp_jvm_get(vm, sc, t->name, &ns));
        if (ns.kind != ESP_JNAMESPACE)
            return esp_jvm_fail(vm, ESP_EINVAL, "attributes can only be set on a namespace, \"%s\" is %s",
                                t->name, esp_jv_type(&ns));
        ESP_TRY(esp_jstr_view(vm, t->value.u.name, strlen(t->value.u.name), true, &key));
        return esp_jdict_set(vm, ns.u.d, key, *v);
    }
    ESP_TRY(esp_jv_iterate(vm, v, &items, &n));
    if (n != t->n)
        return esp_jvm_fail(vm, ESP_EINVAL, "%zu values cannot be unpacked into %u names", n, t->n);
    for (const struct esp_jnode *i = t->list; i; i = i->next)
        ESP_TRY(esp_jvm_set(vm, sc, i->name, *items++));
    return ESP_OK;
}

/* The items a for-loop visits: all, or those its filter lets through. */
static esp_status loop_items(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n,
                             const struct esp_jv **items, size_t *n_items)
{
    struct esp_jscope inner = {.parent = sc};
    struct esp_jv v, kept, test;

    ESP_TRY(eval(vm, sc, n->b, &v));
    vm->line = n->line;
    ESP_TRY(esp_jv_iterate(vm, &v, items, n_items));
    ESP_TRY(esp_jlist_new(vm, n->c ? 0 : *n_items, ESP_JFORM_LIST, &kept));
    for (size_t i = 0; i < *n_items; i++) { /* a copy: the body may change the list */
        if (n->c) {
            ESP_TRY(assign(vm, &inner, n->a, &(*items)[i]));
            ESP_TRY(eval(vm, &inner, n->c, &test));
            if (!esp_jv_truth(&test))
                continue;
        }
        ESP_TRY(esp_jlist_add(vm, kept.u.l, (*items)[i]));
    }
    esp_jvm_recycle(vm, &inner);
    *items = kept.u.l->v;
    *n_items = kept.u.l->n;
    return ESP_OK;
}

static esp_status exec_for(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n, int *flow)
{
    struct esp_jloop *loop = esp_jvm_alloc(vm, 1, sizeof *loop);
    struct esp_jscope *inner = esp_jvm_alloc(vm, 1, sizeof *inner);
    struct esp_jv self = {ESP_JLOOP, {.loop = loop}};
    bool finished = false;

    if (!loop || !inner)
        return vm->status;
    ESP_TRY(loop_items(vm, sc, n, &loop->v, &loop->n));
    loop->depth = ++vm->loop_depth;
    inner->parent = sc;
    for (size_t i = 0; i < loop->n; i++) {
        int inside = 0;

        loop->i = i;
        ESP_TRY(esp_jvm_set(vm, inner, n->name, self));
        ESP_TRY(assign(vm, inner, n->a, &loop->v[i]));
        ESP_TRY(exec(vm, inner, n->list, &inside));
        if (n->flag) {
            inner = esp_jvm_alloc(vm, 1, sizeof *inner);
            if (!inner)
                return vm->status;
            inner->parent = sc;
        } else {
            esp_jvm_recycle(vm, inner);
        }
        finished |= inside == 0;
        if (inside == FLOW_BREAK)
            break;
    }
    vm->loop_depth--;
    /* as Jinja2 has it: else runs unless some round came to its end, so also after a break in the first */
    return n->other && !finished ? exec(vm, sc, n->other, flow) : ESP_OK;
}

static esp_status exec_if(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n, int *flow)
{
    for (const struct esp_jnode *b = n->list; b; b = b->next) {
        struct esp_jv test;

        if (b->a) {
            ESP_TRY(eval(vm, sc, b->a, &test));
            if (!esp_jv_truth(&test))
                continue;
        }
        return exec(vm, sc, b->list, flow);
    }
    return ESP_OK;
}

static esp_status exec_print(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n)
{
    struct esp_jv v;

    ESP_TRY(eval(vm, sc, n->a, &v));
    vm->line = n->line;
    ESP_TRY(esp_jv_str(vm, &v, &v));
    return esp_jvm_emit(vm, v.u.s->p, v.u.s->len, v.u.s->mark, v.u.s->trusted);
}

static esp_status exec_set(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n)
{
    struct esp_jv v;

    if (n->type == ESP_JN_SET) {
        ESP_TRY(eval(vm, sc, n->b, &v));
    } else {
        struct esp_jscope *inner = esp_jvm_alloc(vm, 1, sizeof *inner);

        if (!inner)
            return vm->status;
        inner->parent = sc;
        ESP_TRY(capture(vm, inner, n->list, &v));
        if (n->other)
            ESP_TRY(follow(vm, sc, n->other->list, &v));
    }
    vm->line = n->line;
    return assign(vm, sc, n->a, &v);
}

static esp_status exec_macro(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n)
{
    struct esp_jmacro *m = esp_jvm_alloc(vm, 1, sizeof *m);
    struct esp_jv v = {ESP_JMACRO, {.macro = m}};

    if (!m)
        return vm->status;
    m->node = n;
    m->scope = sc;
    return esp_jvm_set(vm, sc, n->name, v);
}

static esp_status exec_scope(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n, int *flow)
{
    struct esp_jscope *inner = esp_jvm_alloc(vm, 1, sizeof *inner);

    if (!inner)
        return vm->status;
    inner->parent = sc;
    return exec(vm, inner, n->list, flow);
}

static esp_status exec_one(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n, int *flow)
{
    switch (n->type) {
    case ESP_JN_TEXT:
        return esp_jvm_emit(vm, n->value.u.s->p, n->value.u.s->len, NULL, true);
    case ESP_JN_PRINT:
        return exec_print(vm, sc, n);
    case ESP_JN_IF:
        return exec_if(vm, sc, n, flow);
    case ESP_JN_FOR:
        return exec_for(vm, sc, n, flow);
    case ESP_JN_MACRO:
        return exec_macro(vm, sc, n);
    case ESP_JN_BREAK:
        *flow = FLOW_BREAK;
        return ESP_OK;
    case ESP_JN_CONTINUE:
        *flow = FLOW_CONTINUE;
        return ESP_OK;
    case ESP_JN_SCOPE:
        return exec_scope(vm, sc, n, flow);
    default:
        return exec_set(vm, sc, n);
    }
}

/* Statements in order until break or continue. */
static esp_status exec(struct esp_jvm *vm, struct esp_jscope *sc, const struct esp_jnode *n, int *flow)
{
    ESP_TRY(esp_jvm_enter(vm));
    for (; n && *flow == 0; n = n->next) {
        ESP_TRY(esp_jvm_charge(vm, 1));
        vm->line = n->line;
        ESP_TRY(exec_one(vm, sc, n, flow));
    }
    vm->depth--;
    return ESP_OK;
}

esp_status esp_jvm_run(struct esp_jvm *vm, const struct esp_jnode *body)
{
    struct esp_jscope *top = esp_jvm_alloc(vm, 1, sizeof *top);
    int flow = 0;

    return top ? exec(vm, top, body, &flow) : vm->status;
}
