/*
 * Jinja operators: arithmetic, comparison, membership, attributes, subscripts and slices, with Python's rules
 * for types and signs. Integers are 64 bits wide; a result that does not fit is refused, never wrapped.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

static const char *const op_names[] = {"",   "+",  "-", "*",  "/", "//", "%",  "**",
                                       "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

static esp_status bad_types(struct esp_jvm *vm, int op, const struct esp_jv *a, const struct esp_jv *b)
{
    if (a->kind == ESP_JUNDEF || b->kind == ESP_JUNDEF)
        return esp_jv_undefined_error(vm, a->kind == ESP_JUNDEF ? a : b);
    return esp_jvm_fail(vm, ESP_EINVAL, "operator %s does not work on %s and %s", op_names[op],
                        esp_jv_type(a), esp_jv_type(b));
}

static esp_status overflow(struct esp_jvm *vm, int op)
{
    return esp_jvm_fail(vm, ESP_EINVAL, "the result of %s does not fit a 64-bit integer", op_names[op]);
}

/* Python's // and %: the remainder has the divisor's sign. */
static double float_floor(int op, double x, double y)
{
    double r = fmod(x, y);

    if (r != 0 && (r < 0) != (y < 0))
        r += y;
    if (op == ESP_JOP_FLOORDIV)
        return round((x - r) / y);
    return r == 0 ? copysign(0.0, y) : r;
}

static esp_status float_pow(struct esp_jvm *vm, double x, double y, struct esp_jv *out)
{
    double r = pow(x, y);

    if ((x == 0 && y < 0) || (x < 0 && y != floor(y)))
        return esp_jvm_fail(vm, ESP_EINVAL, "the power has no real value");
    if (isfinite(x) && isfinite(y) && !isfinite(r))
        return esp_jvm_fail(vm, ESP_EINVAL, "the power is too large for a number");
    *out = esp_jv_float(r);
    return ESP_OK;
}

static esp_status float_arith(struct esp_jvm *vm, int op, double x, double y, struct esp_jv *out)
{
    bool divides = op == ESP_JOP_DIV || op == ESP_JOP_FLOORDIV || op == ESP_JOP_MOD;

    if (op == ESP_JOP_POW)
        return float_pow(vm, x, y, out);
    if (y == 0 && divides)
        return esp_jvm_fail(vm, ESP_EINVAL, "division by zero");
    *out = esp_jv_float(op == ESP_JOP_ADD   ? x + y
                        : op == ESP_JOP_SUB ? x - y
                        : op == ESP_JOP_MUL ? x * y
                        : op == ESP_JOP_DIV ? x / y
                                            : float_floor(op, x, y));
    return ESP_OK;
}

static esp_status int_pow(struct esp_jvm *vm, int64_t x, int64_t y, struct esp_jv *out)
{
    int64_t r = 1;

    if (y < 0)
        return float_arith(vm, ESP_JOP_POW, (double)x, (double)y, out);
    if (x == 0 || x == 1 || x == -1) {
        *out = esp_jv_int(y == 0 || x == 1 || (x == -1 && y % 2 == 0) ? 1 : x);
        return ESP_OK;
    }
    for (; y > 0; y--) /* ends by overflow after at most 64 rounds */
        if (__builtin_mul_overflow(r, x, &r))
            return overflow(vm, ESP_JOP_POW);
    *out = esp_jv_int(r);
    return ESP_OK;
}

static esp_status int_arith(struct esp_jvm *vm, int op, int64_t x, int64_t y, struct esp_jv *out)
{
    bool wrapped = false;
    int64_t r = 0;

    if (op == ESP_JOP_POW)
        return int_pow(vm, x, y, out);
    if (op == ESP_JOP_DIV)
        return float_arith(vm, op, (double)x, (double)y, out);
    if (op == ESP_JOP_ADD) {
        wrapped = __builtin_add_overflow(x, y, &r);
    } else if (op == ESP_JOP_SUB) {
        wrapped = __builtin_sub_overflow(x, y, &r);
    } else if (op == ESP_JOP_MUL) {
        wrapped = __builtin_mul_overflow(x, y, &r);
    } else if (y == 0) {
        return esp_jvm_fail(vm, ESP_EINVAL, "division by zero");
    } else if (y == -1) { /* INT64_MIN / -1 traps */
        wrapped = op == ESP_JOP_FLOORDIV && __builtin_sub_overflow((int64_t)0, x, &r);
    } else {
        int64_t m = x % y;

        m += m != 0 && (m < 0) != (y < 0) ? y : 0;
        r = op == ESP_JOP_MOD ? m : x / y - (x % y != 0 && (x < 0) != (y < 0));
    }
    if (wrapped)
        return overflow(vm, op);
    *out = esp_jv_int(r);
    return ESP_OK;
}

static esp_status repeat(struct esp_jvm *vm, const struct esp_jv *v, int64_t times, struct esp_jv *out)
{
    if (v->kind == ESP_JSTR) {
        struct esp_jbuf *b = esp_jbuf_new(vm);

        if (!b)
            return vm->status;
        for (int64_t i = 0; i < times && v->u.s->len; i++) {
            ESP_TRY(esp_jvm_charge(vm, 1));
            ESP_TRY(esp_jbuf_add_str(vm, b, v->u.s, 0, v->u.s->len));
        }
        return esp_jbuf_finish(vm, b, out);
    }
    ESP_TRY(esp_jlist_new(vm, 0, v->u.l->form, out));
    for (int64_t i = 0; i < times && v->u.l->n; i++)
        for (size_t k = 0; k < v->u.l->n; k++)
            ESP_TRY(esp_jlist_add(vm, out->u.l, v->u.l->v[k]));
    return ESP_OK;
}

static esp_status join_lists(struct esp_jvm *vm, const struct esp_jlist *a, const struct esp_jlist *b,
                             struct esp_jv *out)
{
    ESP_TRY(esp_jlist_new(vm, a->n + b->n, a->form, out));
    for (size_t i = 0; i < a->n; i++)
        ESP_TRY(esp_jlist_add(vm, out->u.l, a->v[i]));
    for (size_t i = 0; i < b->n; i++)
        ESP_TRY(esp_jlist_add(vm, out->u.l, b->v[i]));
    return ESP_OK;
}

static bool repeatable(const struct esp_jv *v)
{
    return v->kind == ESP_JSTR || (v->kind == ESP_JLIST && v->u.l->form != ESP_JFORM_RANGE);
}

static esp_status join(struct esp_jvm *vm, const struct esp_jv *a, const struct esp_jv *b, struct esp_jv *out)
{
    if (a->kind != b->kind || !repeatable(a) || !repeatable(b))
        return bad_types(vm, ESP_JOP_ADD, a, b);
    if (a->kind == ESP_JSTR)
        return esp_jstr_concat(vm, a->u.s, b->u.s, out);
    if (a->u.l->form != b->u.l->form)
        return bad_types(vm, ESP_JOP_ADD, a, b);
    return join_lists(vm, a->u.l, b->u.l, out);
}

/* + and * on strings, lists and tuples. */
static esp_status sequence_arith(struct esp_jvm *vm, int op, const struct esp_jv *a, const struct esp_jv *b,
                                 struct esp_jv *out)
{
    int64_t n;

    if (op == ESP_JOP_ADD)
        return join(vm, a, b, out);
    if (op == ESP_JOP_MUL && repeatable(a) && esp_jv_integer(b, &n))
        return repeat(vm, a, n, out);
    if (op == ESP_JOP_MUL && repeatable(b) && esp_jv_integer(a, &n))
        return repeat(vm, b, n, out);
    if (op == ESP_JOP_MOD && a->kind == ESP_JSTR)
        return esp_jvm_fail(vm, ESP_EUNSUPPORTED, "formatting strings with %% is not supported");
    return bad_types(vm, op, a, b);
}

esp_status esp_jv_arith(struct esp_jvm *vm, int op, const struct esp_jv *a, const struct esp_jv *b,
                        struct esp_jv *out)
{
    const struct esp_jv left = *a, right = *b; /* out may be one of them */
    int64_t i, k;
    double x, y;

    if (esp_jv_integer(&left, &i) && esp_jv_integer(&right, &k))
        return int_arith(vm, op, i, k, out);
    if (esp_jv_number(&left, &x) && esp_jv_number(&right, &y))
        return float_arith(vm, op, x, y, out);
    return sequence_arith(vm, op, &left, &right, out);
}

esp_status esp_jv_contains(struct esp_jvm *vm, const struct esp_jv *hay, const struct esp_jv *v, bool *out)
{
    const struct esp_jv *items;
    size_t n, at;

    *out = false;
    if (hay->kind == ESP_JSTR) {
        if (v->kind != ESP_JSTR)
            return bad_types(vm, ESP_JOP_IN, v, hay);
        ESP_TRY(esp_jvm_charge(vm, hay->u.s->len / 64));
        *out = v->u.s->len == 0 || memmem(hay->u.s->p, hay->u.s->len, v->u.s->p, v->u.s->len);
        return ESP_OK;
    }
    if (hay->kind == ESP_JDICT) {
        ESP_TRY(esp_jdict_find(vm, hay->u.d, *v, &at));
        *out = at < hay->u.d->n;
        return ESP_OK;
    }
    ESP_TRY(esp_jv_iterate(vm, hay, &items, &n));
    for (size_t i = 0; i < n && !*out; i++)
        ESP_TRY(esp_jv_equal(vm, &items[i], v, out));
    return ESP_OK;
}

esp_status esp_jv_compare(struct esp_jvm *vm, int op, const struct esp_jv *a, const struct esp_jv *b,
                          bool *out)
{
    double x, y;
    int c;

    switch (op) {
    case ESP_JOP_EQ:
        return esp_jv_equal(vm, a, b, out);
    case ESP_JOP_NE:
        ESP_TRY(esp_jv_equal(vm, a, b, out));
        *out = !*out;
        return ESP_OK;
    case ESP_JOP_IN:
        return esp_jv_contains(vm, b, a, out);
    case ESP_JOP_NOTIN:
        ESP_TRY(esp_jv_contains(vm, b, a, out));
        *out = !*out;
        return ESP_OK;
    default:
        if (esp_jv_number(a, &x) && esp_jv_number(b, &y) && (isnan(x) || isnan(y))) {
            *out = false;
            return ESP_OK;
        }
        ESP_TRY(esp_jv_order(vm, a, b, &c));
        *out = op == ESP_JOP_LT ? c < 0 : op == ESP_JOP_LE ? c <= 0 : op == ESP_JOP_GT ? c > 0 : c >= 0;
        return ESP_OK;
    }
}

/* ---- attributes and subscripts ---- */

static esp_status loop_attr(struct esp_jvm *vm, const struct esp_jloop *l, const char *name,
                            struct esp_jv *out)
{
    static const char *const names[] = {"index",  "index0", "revindex", "revindex0", "first",   "last",
                                        "length", "depth",  "depth0",   "previtem",  "nextitem"};
    const struct esp_jv values[] = {
        esp_jv_int((int64_t)l->i + 1),
        esp_jv_int((int64_t)l->i),
        esp_jv_int((int64_t)(l->n - l->i)),
        esp_jv_int((int64_t)(l->n - l->i - 1)),
        esp_jv_bool(l->i == 0),
        esp_jv_bool(l->i + 1 == l->n),
        esp_jv_int((int64_t)l->n),
        esp_jv_int(l->depth),
        esp_jv_int(l->depth - 1),
        l->i > 0 ? l->v[l->i - 1] : esp_jv_undef("loop.previtem"),
        l->i + 1 < l->n ? l->v[l->i + 1] : esp_jv_undef("loop.nextitem"),
    };

    (void)vm;
    *out = esp_jv_undef(name);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            *out = values[i];
    return ESP_OK;
}

static esp_status method(struct esp_jvm *vm, const struct esp_jv *v, const struct esp_jbuiltin *fn,
                         struct esp_jv *out)
{
    struct esp_jmethod *m = esp_jvm_alloc(vm, 1, sizeof *m);

    if (!m)
        return vm->status;
    m->fn = fn;
    m->self = *v;
    out->kind = ESP_JMETHOD;
    out->u.bound = m;
    return ESP_OK;
}

esp_status esp_jv_attr(struct esp_jvm *vm, const struct esp_jv *v, const char *name, size_t len,
                       struct esp_jv *out)
{
    const struct esp_jbuiltin *fn = esp_jmethod_find(v, name, len);
    const struct esp_jv self = *v; /* out may be v */
    size_t at;

    v = &self;

    if (fn)
        return method(vm, v, fn, out);
    *out = esp_jv_undef(name);
    switch (v->kind) {
    case ESP_JUNDEF:
        return esp_jv_undefined_error(vm, v);
    case ESP_JDICT:
    case ESP_JNAMESPACE:
        ESP_TRY(esp_jdict_find_name(vm, v->u.d, name, len, &at));
        if (at < v->u.d->n)
            *out = v->u.d->val[at];
        return ESP_OK;
    case ESP_JLOOP:
        return loop_attr(vm, v->u.loop, name, out);
    case ESP_JMACRO:
        if (strcmp(name, "name") == 0)
            return esp_jstr_view(vm, v->u.macro->node->name, strlen(v->u.macro->node->name), true, out);
        return ESP_OK;
    default:
        return ESP_OK;
    }
}

static esp_status item_at(struct esp_jvm *vm, const struct esp_jv *v, int64_t i, struct esp_jv *out)
{
    size_t n = v->kind == ESP_JSTR ? esp_jstr_chars(v->u.s) : v->u.l->n, from;

    *out = esp_jv_undef("item");
    if (i < 0)
        i += (int64_t)n;
    if (i < 0 || (size_t)i >= n)
        return ESP_OK;
    if (v->kind == ESP_JLIST) {
        *out = v->u.l->v[i];
        return ESP_OK;
    }
    ESP_TRY(esp_jvm_charge(vm, v->u.s->len / 64));
    from = esp_jstr_offset(v->u.s, (size_t)i);
    return esp_jstr_slice(vm, v->u.s, from, esp_jstr_offset(v->u.s, (size_t)i + 1), out);
}

static bool hashable(const struct esp_jv *v)
{
    return v->kind <= ESP_JSTR || (v->kind == ESP_JLIST && v->u.l->form == ESP_JFORM_TUPLE);
}

/* v[key] where there is no such item: an attribute of that name, else undefined. */
static esp_status item_as_attr(struct esp_jvm *vm, const struct esp_jv *v, const struct esp_jstr *key,
                               struct esp_jv *out)
{
    const char *name = esp_jstr_short(vm, key);
    const struct esp_jbuiltin *fn;

    if (!name)
        return vm->status;
    *out = esp_jv_undef(name);
    if (v->kind == ESP_JDICT) {
        fn = esp_jmethod_find(v, key->p, key->len);
        return fn ? method(vm, v, fn, out) : ESP_OK;
    }
    return key->len > 64 ? ESP_OK : esp_jv_attr(vm, v, name, strlen(name), out);
}

/* The item first, then an attribute of that name, as Jinja's subscript does. */
esp_status esp_jv_item(struct esp_jvm *vm, const struct esp_jv *v, const struct esp_jv *key,
                       struct esp_jv *out)
{
    const struct esp_jv self = *v; /* out may be v */
    int64_t i;
    size_t at;

    if (self.kind == ESP_JUNDEF)
        return esp_jv_undefined_error(vm, &self);
    if (self.kind == ESP_JDICT && hashable(key)) {
        ESP_TRY(esp_jdict_find(vm, self.u.d, *key, &at));
        if (at < self.u.d->n) {
            *out = self.u.d->val[at];
            return ESP_OK;
        }
    }
    if ((self.kind == ESP_JLIST || self.kind == ESP_JSTR) && esp_jv_integer(key, &i))
        return item_at(vm, &self, i, out);
    if (key->kind == ESP_JSTR)
        return item_as_attr(vm, &self, key->u.s, out);
    *out = esp_jv_undef("item");
    return ESP_OK;
}

static int64_t clamp(int64_t v, int64_t low, int64_t high)
{
    return v < low ? low : v > high ? high : v;
}

/* Python's slice.indices(): first, step and count over n items. */
static esp_status slice_range(struct esp_jvm *vm, const struct esp_jv bound[3], int64_t n, int64_t *first,
                              int64_t *step, int64_t *count)
{
    int64_t b[3] = {0, 0, 1}, low, high;
    bool given[3];

    for (int k = 0; k < 3; k++) {
        given[k] = bound[k].kind != ESP_JUNDEF && bound[k].kind != ESP_JNONE;
        if (given[k] && !esp_jv_integer(&bound[k], &b[k]))
            return esp_jvm_fail(vm, ESP_EINVAL, "slice bounds are integers or none, not %s",
                                esp_jv_type(&bound[k]));
    }
    if (b[2] == 0)
        return esp_jvm_fail(vm, ESP_EINVAL, "the step of a slice is not 0");
    low = b[2] < 0 ? -1 : 0;
    high = b[2] < 0 ? n - 1 : n;
    for (int k = 0; k < 2; k++) {
        if (given[k])
            b[k] = clamp(b[k] < 0 ? b[k] + n : b[k], low, high);
        else
            b[k] = (k == 0) == (b[2] > 0) ? low : high;
    }
    b[2] = clamp(b[2], -n - 1, n + 1); /* more than this changes nothing and could overflow */
    *first = b[0];
    *step = b[2];
    *count = 0; /* the step is not 0: refused above */
    if (b[2] > 0)
        *count = (b[1] - b[0] + b[2] - 1) / b[2];
    else if (b[2] < 0)
        *count = (b[0] - b[1] - b[2] - 1) / -b[2];
    *count = *count < 0 ? 0 : *count;
    return ESP_OK;
}

esp_status esp_jv_slice(struct esp_jvm *vm, const struct esp_jv *v, const struct esp_jv bound[3],
                        struct esp_jv *out)
{
    const struct esp_jv self = *v; /* out may be v */
    struct esp_jbuf *b = NULL;
    const struct esp_jv *items;
    int64_t first = 0, step = 1, count = 0;
    size_t n;

    v = &self;
    if (v->kind == ESP_JUNDEF)
        return esp_jv_undefined_error(vm, v);
    if (v->kind != ESP_JLIST && v->kind != ESP_JSTR)
        return esp_jvm_fail(vm, ESP_EINVAL, "a value of type %s cannot be sliced", esp_jv_type(v));
    n = v->kind == ESP_JSTR ? esp_jstr_chars(v->u.s) : v->u.l->n;
    ESP_TRY(slice_range(vm, bound, (int64_t)n, &first, &step, &count));
    if (v->kind == ESP_JSTR && step == 1) {
        size_t from = esp_jstr_offset(v->u.s, (size_t)first);

        ESP_TRY(esp_jvm_charge(vm, v->u.s->len / 64));
        return esp_jstr_slice(vm, v->u.s, from,
                              count ? esp_jstr_offset(v->u.s, (size_t)(first + count)) : from, out);
    }
    ESP_TRY(esp_jv_iterate(vm, v, &items, &n));
    if (v->kind == ESP_JSTR) {
        b = esp_jbuf_new(vm);
        if (!b)
            return vm->status;
    } else {
        enum esp_jform form = v->u.l->form == ESP_JFORM_TUPLE ? ESP_JFORM_TUPLE : ESP_JFORM_LIST;

        ESP_TRY(esp_jlist_new(vm, (size_t)count, form, out));
    }
    for (int64_t i = 0; i < count; i++) {
        const struct esp_jv *it = &items[first + i * step];

        if (b)
            ESP_TRY(esp_jbuf_add_str(vm, b, it->u.s, 0, it->u.s->len));
        else
            ESP_TRY(esp_jlist_add(vm, out->u.l, *it));
    }
    return b ? esp_jbuf_finish(vm, b, out) : ESP_OK;
}
