/*
 * Jinja values: lists, ordered dictionaries, truth, equality, order, and the way in from JSON. Semantics are
 * Python's: True == 1 == 1.0 as values and as keys, and an undefined value is empty, false and iterable but
 * good for nothing else.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { DICT_LINEAR = 8 }; /* up to here a scan is faster than an index */

const char *esp_jv_type(const struct esp_jv *v)
{
    static const char *const names[] = {"undefined", "none",   "bool", "int",       "float",
                                        "str",       "list",   "dict", "namespace", "macro",
                                        "function",  "method", "loop"};

    if (v->kind == ESP_JLIST && v->u.l->form != ESP_JFORM_LIST)
        return v->u.l->form == ESP_JFORM_TUPLE ? "tuple" : "range";
    return names[v->kind];
}

bool esp_jv_truth(const struct esp_jv *v)
{
    switch (v->kind) {
    case ESP_JUNDEF:
    case ESP_JNONE:
        return false;
    case ESP_JBOOL:
        return v->u.b;
    case ESP_JINT:
        return v->u.i != 0;
    case ESP_JFLOAT:
        return v->u.f != 0;
    case ESP_JSTR:
        return v->u.s->len > 0;
    case ESP_JLIST:
        return v->u.l->n > 0;
    case ESP_JDICT:
        return v->u.d->n > 0;
    default:
        return true;
    }
}

bool esp_jv_integer(const struct esp_jv *v, int64_t *out)
{
    if (v->kind != ESP_JINT && v->kind != ESP_JBOOL)
        return false;
    *out = v->kind == ESP_JINT ? v->u.i : v->u.b;
    return true;
}

bool esp_jv_number(const struct esp_jv *v, double *out)
{
    int64_t i;

    if (v->kind == ESP_JFLOAT)
        *out = v->u.f;
    else if (esp_jv_integer(v, &i))
        *out = (double)i;
    else
        return false;
    return true;
}

esp_status esp_jv_undefined_error(struct esp_jvm *vm, const struct esp_jv *v)
{
    return esp_jvm_fail(vm, ESP_EINVAL, "'%s' is undefined", v->u.name ? v->u.name : "value");
}

/* ---- lists ---- */

esp_status esp_jlist_new(struct esp_jvm *vm, size_t cap, enum esp_jform form, struct esp_jv *out)
{
    struct esp_jlist *l = esp_jvm_alloc(vm, 1, sizeof *l);

    if (!l)
        return vm->status;
    if (cap) {
        l->v = esp_jvm_alloc(vm, cap, sizeof *l->v);
        if (!l->v)
            return vm->status;
    }
    l->cap = cap;
    l->form = form;
    out->kind = ESP_JLIST;
    out->u.l = l;
    return ESP_OK;
}

esp_status esp_jlist_add(struct esp_jvm *vm, struct esp_jlist *l, struct esp_jv v)
{
    ESP_TRY(esp_jvm_charge(vm, 1));
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 8;
        struct esp_jv *p = esp_jvm_alloc(vm, cap, sizeof *p);

        if (!p)
            return vm->status;
        if (l->n)
            memcpy(p, l->v, l->n * sizeof *p);
        l->v = p;
        l->cap = cap;
    }
    l->v[l->n++] = v;
    return ESP_OK;
}

static esp_status chars_of(struct esp_jvm *vm, const struct esp_jstr *s, struct esp_jv *out)
{
    size_t from = 0;

    ESP_TRY(esp_jlist_new(vm, esp_jstr_chars(s), ESP_JFORM_LIST, out));
    for (size_t i = 1; i <= s->len; i++) {
        struct esp_jv c;

        if (i < s->len && ((uint8_t)s->p[i] & 0xc0) == 0x80)
            continue;
        ESP_TRY(esp_jstr_slice(vm, s, from, i, &c));
        ESP_TRY(esp_jlist_add(vm, out->u.l, c));
        from = i;
    }
    return ESP_OK;
}

esp_status esp_jv_iterate(struct esp_jvm *vm, const struct esp_jv *v, const struct esp_jv **items, size_t *n)
{
    struct esp_jv list;

    *items = NULL;
    *n = 0;
    switch (v->kind) {
    case ESP_JUNDEF:
        return ESP_OK;
    case ESP_JSTR:
        ESP_TRY(chars_of(vm, v->u.s, &list));
        *items = list.u.l->v;
        *n = list.u.l->n;
        return ESP_OK;
    case ESP_JLIST:
        *items = v->u.l->v;
        *n = v->u.l->n;
        return ESP_OK;
    case ESP_JDICT:
        *items = v->u.d->key;
        *n = v->u.d->n;
        return ESP_OK;
    default:
        return esp_jvm_fail(vm, ESP_EINVAL, "a value of type %s cannot be iterated over", esp_jv_type(v));
    }
}

/* ---- dictionaries ---- */

static uint64_t hash_bytes(uint64_t h, const void *p, size_t n)
{
    const uint8_t *b = p;

    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 1099511628211u;
    return h ^ h >> 29;
}

/* Equal keys hash equally: numbers by their value as double. Collisions cost steps, see esp_jdict_find. */
static esp_status hash_key(struct esp_jvm *vm, const struct esp_jv *k, uint64_t *h)
{
    double f;

    if (esp_jv_number(k, &f)) {
        f = f == 0 ? 0 : f; /* -0.0 */
        *h = hash_bytes(*h, &f, sizeof f);
        return ESP_OK;
    }
    if (k->kind == ESP_JSTR) {
        *h = hash_bytes(*h, k->u.s->p, k->u.s->len);
        return ESP_OK;
    }
    if (k->kind == ESP_JNONE || k->kind == ESP_JUNDEF) {
        *h = hash_bytes(*h, &k->kind, sizeof k->kind);
        return ESP_OK;
    }
    if (k->kind == ESP_JLIST && k->u.l->form == ESP_JFORM_TUPLE) {
        ESP_TRY(esp_jvm_enter(vm));
        for (size_t i = 0; i < k->u.l->n; i++)
            ESP_TRY(hash_key(vm, &k->u.l->v[i], h));
        vm->depth--;
        return ESP_OK;
    }
    return esp_jvm_fail(vm, ESP_EINVAL, "a value of type %s cannot be a key of a dict", esp_jv_type(k));
}

esp_status esp_jdict_new(struct esp_jvm *vm, enum esp_jkind kind, struct esp_jv *out)
{
    struct esp_jdict *d = esp_jvm_alloc(vm, 1, sizeof *d);

    if (!d)
        return vm->status;
    out->kind = kind;
    out->u.d = d;
    return ESP_OK;
}

esp_status esp_jdict_find(struct esp_jvm *vm, const struct esp_jdict *d, struct esp_jv key, size_t *at)
{
    uint64_t h = 14695981039346656037u;
    bool same = false;

    ESP_TRY(hash_key(vm, &key, &h));
    *at = d->n;
    if (!d->index) {
        for (size_t i = 0; i < d->n && !same; i++) {
            ESP_TRY(esp_jv_equal(vm, &d->key[i], &key, &same));
            if (same)
                *at = i;
        }
        return ESP_OK;
    }
    for (size_t i = h % d->index_cap; d->index[i] && !same; i = (i + 1) % d->index_cap) {
        ESP_TRY(esp_jvm_charge(vm, 1));
        ESP_TRY(esp_jv_equal(vm, &d->key[d->index[i] - 1], &key, &same));
        if (same)
            *at = d->index[i] - 1;
    }
    return ESP_OK;
}

esp_status esp_jdict_find_name(struct esp_jvm *vm, const struct esp_jdict *d, const char *p, size_t len,
                               size_t *at)
{
    struct esp_jstr s = {.p = p, .len = len};
    struct esp_jv key = {ESP_JSTR, {.s = &s}};

    return esp_jdict_find(vm, d, key, at);
}

static esp_status index_entry(struct esp_jvm *vm, struct esp_jdict *d, size_t e)
{
    uint64_t h = 14695981039346656037u;
    size_t i;

    ESP_TRY(hash_key(vm, &d->key[e], &h));
    for (i = h % d->index_cap; d->index[i]; i = (i + 1) % d->index_cap)
        ESP_TRY(esp_jvm_charge(vm, 1));
    d->index[i] = (uint32_t)e + 1;
    return ESP_OK;
}

static esp_status reindex(struct esp_jvm *vm, struct esp_jdict *d, size_t cap)
{
    d->index = esp_jvm_alloc(vm, cap, sizeof *d->index);
    if (!d->index)
        return vm->status;
    d->index_cap = cap;
    for (size_t i = 0; i < d->n; i++)
        ESP_TRY(index_entry(vm, d, i));
    return ESP_OK;
}

esp_status esp_jdict_set(struct esp_jvm *vm, struct esp_jdict *d, struct esp_jv key, struct esp_jv val)
{
    size_t at;

    ESP_TRY(esp_jvm_charge(vm, 1));
    ESP_TRY(esp_jdict_find(vm, d, key, &at));
    if (at < d->n) {
        d->val[at] = val;
        return ESP_OK;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        struct esp_jv *k = esp_jvm_alloc(vm, cap, sizeof *k), *v = esp_jvm_alloc(vm, cap, sizeof *v);

        if (!k || !v)
            return vm->status;
        if (d->n) {
            memcpy(k, d->key, d->n * sizeof *k);
            memcpy(v, d->val, d->n * sizeof *v);
        }
        d->key = k;
        d->val = v;
        d->cap = cap;
    }
    d->key[d->n] = key;
    d->val[d->n] = val;
    d->n++;
    if (d->index && d->n * 2 < d->index_cap)
        return index_entry(vm, d, d->n - 1);
    return d->n > DICT_LINEAR ? reindex(vm, d, d->cap * 4) : ESP_OK;
}

esp_status esp_jdict_remove(struct esp_jvm *vm, struct esp_jdict *d, size_t at)
{
    ESP_TRY(esp_jvm_charge(vm, d->n));
    memmove(d->key + at, d->key + at + 1, (d->n - at - 1) * sizeof *d->key);
    memmove(d->val + at, d->val + at + 1, (d->n - at - 1) * sizeof *d->val);
    d->n--;
    if (!d->index)
        return ESP_OK;
    return reindex(vm, d, d->index_cap);
}

/* ---- from JSON ---- */

static esp_status list_from_json(struct esp_jvm *vm, const json_t *j, bool trusted, unsigned depth,
                                 struct esp_jv *out)
{
    size_t n = json_array_size(j);

    ESP_TRY(esp_jlist_new(vm, n, ESP_JFORM_LIST, out));
    for (size_t i = 0; i < n; i++) {
        struct esp_jv v;

        ESP_TRY(esp_jv_from_json(vm, json_array_get(j, i), trusted, depth, &v));
        ESP_TRY(esp_jlist_add(vm, out->u.l, v));
    }
    return ESP_OK;
}

static esp_status dict_from_json(struct esp_jvm *vm, json_t *j, bool trusted, unsigned depth,
                                 struct esp_jv *out)
{
    ESP_TRY(esp_jdict_new(vm, ESP_JDICT, out));
    for (void *it = json_object_iter(j); it; it = json_object_iter_next(j, it)) {
        const char *name = json_object_iter_key(it);
        struct esp_jv key, val;

        ESP_TRY(esp_jstr_view(vm, name, strlen(name), trusted, &key));
        ESP_TRY(esp_jv_from_json(vm, json_object_iter_value(it), trusted, depth, &val));
        ESP_TRY(esp_jdict_set(vm, out->u.d, key, val));
    }
    return ESP_OK;
}

esp_status esp_jv_from_json(struct esp_jvm *vm, const json_t *j, bool trusted, unsigned depth,
                            struct esp_jv *out)
{
    if (depth > ESP_LIMIT_JSON_DEPTH + 4) /* what render and chat put around parsed JSON */
        return esp_jvm_fail(vm, ESP_ENOFIT, "data nested more than %d deep", ESP_LIMIT_JSON_DEPTH);
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        return dict_from_json(vm, (json_t *)(uintptr_t)j, trusted, depth + 1,
                              out); /* iterators want non-const */
    case JSON_ARRAY:
        return list_from_json(vm, j, trusted, depth + 1, out);
    case JSON_STRING:
        return esp_jstr_view(vm, json_string_value(j), json_string_length(j), trusted, out);
    case JSON_INTEGER:
        *out = esp_jv_int(json_integer_value(j));
        return ESP_OK;
    case JSON_REAL:
        *out = esp_jv_float(json_real_value(j));
        return ESP_OK;
    case JSON_NULL:
        *out = esp_jv_none();
        return ESP_OK;
    default:
        *out = esp_jv_bool(json_is_true(j));
        return ESP_OK;
    }
}

/* ---- comparison ---- */

static esp_status equal_lists(struct esp_jvm *vm, const struct esp_jlist *a, const struct esp_jlist *b,
                              bool *out)
{
    *out = a->form == b->form && a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++)
        ESP_TRY(esp_jv_equal(vm, &a->v[i], &b->v[i], out));
    return ESP_OK;
}

static esp_status equal_dicts(struct esp_jvm *vm, const struct esp_jdict *a, const struct esp_jdict *b,
                              bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        size_t at;

        ESP_TRY(esp_jdict_find(vm, b, a->key[i], &at));
        *out = at < b->n;
        if (*out)
            ESP_TRY(esp_jv_equal(vm, &a->val[i], &b->val[at], out));
    }
    return ESP_OK;
}

esp_status esp_jv_equal(struct esp_jvm *vm, const struct esp_jv *a, const struct esp_jv *b, bool *out)
{
    double x, y;
    int64_t i, k;
    esp_status s = ESP_OK;

    ESP_TRY(esp_jvm_charge(vm, 1));
    if (esp_jv_integer(a, &i) && esp_jv_integer(b, &k)) {
        *out = i == k;
    } else if (esp_jv_number(a, &x) && esp_jv_number(b, &y)) {
        *out = x == y;
    } else if (a->kind != b->kind) {
        *out = false;
    } else if (a->kind == ESP_JUNDEF || a->kind == ESP_JNONE) {
        *out = true;
    } else if (a->kind == ESP_JSTR) {
        ESP_TRY(esp_jvm_charge(vm, a->u.s->len / 256));
        *out = a->u.s->len == b->u.s->len && memcmp(a->u.s->p, b->u.s->p, a->u.s->len) == 0;
    } else if (a->kind == ESP_JLIST || a->kind == ESP_JDICT) {
        ESP_TRY(esp_jvm_enter(vm));
        s = a->kind == ESP_JLIST ? equal_lists(vm, a->u.l, b->u.l, out)
                                 : equal_dicts(vm, a->u.d, b->u.d, out);
        vm->depth--;
    } else {
        *out = a->u.fn == b->u.fn;
    }
    return s;
}

static esp_status order_lists(struct esp_jvm *vm, const struct esp_jlist *a, const struct esp_jlist *b,
                              int *out)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;

        ESP_TRY(esp_jv_equal(vm, &a->v[i], &b->v[i], &same));
        if (!same)
            return esp_jv_order(vm, &a->v[i], &b->v[i], out);
    }
    *out = (a->n > b->n) - (a->n < b->n);
    return ESP_OK;
}

/* Byte order of UTF-8 is code point order. */
static int order_strings(const struct esp_jstr *a, const struct esp_jstr *b)
{
    int c = memcmp(a->p, b->p, a->len < b->len ? a->len : b->len);

    return c ? c : (a->len > b->len) - (a->len < b->len);
}

/* Whether both are numbers; *out is their order, or 2 when there is none (nan). */
static bool order_numbers(const struct esp_jv *a, const struct esp_jv *b, int *out)
{
    double x, y;
    int64_t i, k;

    if (esp_jv_integer(a, &i) && esp_jv_integer(b, &k)) {
        *out = (i > k) - (i < k);
        return true;
    }
    if (!esp_jv_number(a, &x) || !esp_jv_number(b, &y))
        return false;
    *out = isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);
    return true;
}

esp_status esp_jv_order(struct esp_jvm *vm, const struct esp_jv *a, const struct esp_jv *b, int *out)
{
    ESP_TRY(esp_jvm_charge(vm, 1));
    if (order_numbers(a, b, out))
        return *out == 2 ? esp_jvm_fail(vm, ESP_EINVAL, "nan has no order") : ESP_OK;
    if (a->kind == ESP_JSTR && b->kind == ESP_JSTR) {
        *out = order_strings(a->u.s, b->u.s);
        return esp_jvm_charge(vm, a->u.s->len / 256);
    }
    if (a->kind == ESP_JLIST && b->kind == ESP_JLIST && a->u.l->form == b->u.l->form &&
        a->u.l->form != ESP_JFORM_RANGE) {
        ESP_TRY(esp_jvm_enter(vm));
        ESP_TRY(order_lists(vm, a->u.l, b->u.l, out));
        vm->depth--;
        return ESP_OK;
    }
    if (a->kind == ESP_JUNDEF || b->kind == ESP_JUNDEF)
        return esp_jv_undefined_error(vm, a->kind == ESP_JUNDEF ? a : b);
    return esp_jvm_fail(vm, ESP_EINVAL, "values of type %s and %s have no order", esp_jv_type(a),
                        esp_jv_type(b));
}
