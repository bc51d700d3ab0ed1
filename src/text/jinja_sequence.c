/*
 * Jinja filters on sequences. Where Jinja2 gives a lazy generator we give a list, which can do all that and
 * more.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <string.h>

/* ---- attribute paths: "a.b.0" ---- */

/* v.path, where path is a string of names and numbers with dots, or an integer; fallback (or NULL) stands in
 * for each part that is missing. */
static esp_status get_path(struct esp_jvm *vm, const struct esp_jv *v, const struct esp_jv *path,
                           const struct esp_jv *fallback, struct esp_jv *out)
{
    struct esp_jv at = *v;
    size_t from = 0;

    if (path->kind != ESP_JSTR) {
        ESP_TRY(esp_jv_item(vm, v, path, out));
        *out = fallback && out->kind == ESP_JUNDEF ? *fallback : *out;
        return ESP_OK;
    }
    for (size_t i = 0; i <= path->u.s->len; i++) {
        struct esp_jv key;
        int64_t number = 0;
        bool digits = i > from && i - from < 10;

        if (i < path->u.s->len && path->u.s->p[i] != '.')
            continue;
        for (size_t k = from; k < i && digits; k++) {
            digits = path->u.s->p[k] >= '0' && path->u.s->p[k] <= '9';
            number = number * 10 + (path->u.s->p[k] - '0');
        }
        ESP_TRY(esp_jstr_slice(vm, path->u.s, from, i, &key));
        if (digits)
            key = esp_jv_int(number);
        ESP_TRY(esp_jv_item(vm, &at, &key, &at));
        if (fallback && at.kind == ESP_JUNDEF)
            at = *fallback;
        from = i + 1;
    }
    *out = at;
    return ESP_OK;
}

/* Lower-case copy for comparisons that ignore case; other types pass. */
static esp_status fold(struct esp_jvm *vm, struct esp_jv *v)
{
    struct esp_jargs none = {0};

    return v->kind == ESP_JSTR ? esp_jvm_filter(vm, "lower", *v, &none, v) : ESP_OK;
}

/* What sort, unique, min and max compare. */
static esp_status key_of(struct esp_jvm *vm, const struct esp_jv *v, const struct esp_jv *attribute,
                         bool ignore_case, struct esp_jv *out)
{
    *out = *v;
    if (attribute)
        ESP_TRY(get_path(vm, v, attribute, NULL, out));
    return ignore_case ? fold(vm, out) : ESP_OK;
}

static const struct esp_jv *given(const struct esp_jcall *c, int i)
{
    return c->given[i] && c->arg[i].kind != ESP_JNONE ? &c->arg[i] : NULL;
}

static bool flag(const struct esp_jcall *c, int i)
{
    return c->given[i] && esp_jv_truth(&c->arg[i]);
}

/* ---- picking ---- */

static esp_status list_of(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jv *items;
    size_t n;

    ESP_TRY(esp_jv_iterate(vm, &c->self, &items, &n));
    ESP_TRY(esp_jlist_new(vm, n, ESP_JFORM_LIST, out));
    for (size_t i = 0; i < n; i++)
        ESP_TRY(esp_jlist_add(vm, out->u.l, items[i]));
    return ESP_OK;
}

static esp_status first(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jv *items;
    size_t n;

    ESP_TRY(esp_jv_iterate(vm, &c->self, &items, &n));
    *out = n ? items[0] : esp_jv_undef("first of an empty sequence");
    return ESP_OK;
}

static esp_status last(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jv *items;
    size_t n;

    ESP_TRY(esp_jv_iterate(vm, &c->self, &items, &n));
    *out = n ? items[n - 1] : esp_jv_undef("last of an empty sequence");
    return ESP_OK;
}

static esp_status reverse(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jv step[3] = {esp_jv_undef(NULL), esp_jv_undef(NULL), esp_jv_int(-1)};
    struct esp_jv list = c->self;

    if (c->self.kind != ESP_JSTR)
        ESP_TRY(list_of(vm, c, &list));
    return esp_jv_slice(vm, &list, step, out);
}

static esp_status join(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    struct esp_jbuf *b = esp_jbuf_new(vm);
    const struct esp_jv *items;
    struct esp_jv sep, v;
    size_t n;

    if (!b)
        return vm->status;
    ESP_TRY(esp_jstr_view(vm, "", 0, true, &sep));
    if (c->given[0])
        ESP_TRY(esp_jv_str(vm, &c->arg[0], &sep));
    ESP_TRY(esp_jv_iterate(vm, &c->self, &items, &n));
    for (size_t i = 0; i < n; i++) {
        ESP_TRY(esp_jvm_charge(vm, 1));
        if (i)
            ESP_TRY(esp_jbuf_add_str(vm, b, sep.u.s, 0, sep.u.s->len));
        ESP_TRY(key_of(vm, &items[i], given(c, 1), false, &v));
        ESP_TRY(esp_jv_print(vm, b, &v));
    }
    return esp_jbuf_finish(vm, b, out);
}

/* ---- map, select, reject ---- */

static esp_status text_arg(struct esp_jvm *vm, const struct esp_jcall *c, size_t i, const char *what,
                           const char **out)
{
    if (i >= c->all->n_pos || c->all->pos[i].kind != ESP_JSTR)
        return esp_jvm_fail(vm, ESP_EINVAL, "filter \"%s\" needs %s as a string", c->fn->name, what);
    *out = esp_jstr_short(vm, c->all->pos[i].u.s);
    return *out ? ESP_OK : vm->status;
}

/* Here Jinja asks first whether the value is true: none, false and 0 count as empty. */
static esp_status iterate_true(struct esp_jvm *vm, const struct esp_jv *v, const struct esp_jv **items,
                               size_t *n)
{
    *items = NULL;
    *n = 0;
    return esp_jv_truth(v) ? esp_jv_iterate(vm, v, items, n) : ESP_OK;
}

static const struct esp_jv *keyword(const struct esp_jcall *c, const char *name)
{
    for (size_t i = 0; i < c->all->n_kw; i++)
        if (strcmp(c->all->kw[i].name, name) == 0)
            return &c->all->kw[i].v;
    return NULL;
}

static esp_status map(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jv *items, *attribute = c->all->n_pos ? NULL : keyword(c, "attribute");
    const struct esp_jv *fallback = keyword(c, "default");
    struct esp_jargs rest = *c->all;
    const char *filter = NULL;
    struct esp_jv v;
    size_t n;

    if (!attribute) {
        ESP_TRY(text_arg(vm, c, 0, "attribute= or the name of a filter", &filter));
        rest.pos++;
        rest.n_pos--;
    }
    ESP_TRY(iterate_true(vm, &c->self, &items, &n));
    ESP_TRY(esp_jlist_new(vm, n, ESP_JFORM_LIST, out));
    for (size_t i = 0; i < n; i++) {
        if (filter)
            ESP_TRY(esp_jvm_filter(vm, filter, items[i], &rest, &v));
        else
            ESP_TRY(get_path(vm, &items[i], attribute, fallback, &v));
        ESP_TRY(esp_jlist_add(vm, out->u.l, v));
    }
    return ESP_OK;
}

/* The items for which the test (after `skip` arguments; default: truth) is `wanted`. */
static esp_status choose(struct esp_jvm *vm, const struct esp_jcall *c, size_t skip, bool wanted,
                         struct esp_jv *out)
{
    struct esp_jargs rest = *c->all;
    const char *test = NULL;
    const struct esp_jv *items;
    size_t n;

    if (skip && c->all->n_pos < 1)
        return esp_jvm_fail(vm, ESP_EINVAL, "filter \"%s\" needs an attribute", c->fn->name);
    if (c->all->n_pos > skip)
        ESP_TRY(text_arg(vm, c, skip, "the name of a test", &test));
    if (test) {
        rest.pos += skip + 1;
        rest.n_pos -= skip + 1;
    }
    ESP_TRY(iterate_true(vm, &c->self, &items, &n));
    ESP_TRY(esp_jlist_new(vm, 0, ESP_JFORM_LIST, out));
    for (size_t i = 0; i < n; i++) {
        struct esp_jv v = items[i];
        bool yes;

        if (skip)
            ESP_TRY(get_path(vm, &items[i], &c->all->pos[0], NULL, &v));
        yes = esp_jv_truth(&v);
        if (test)
            ESP_TRY(esp_jvm_test(vm, test, v, &rest, &yes));
        if (yes == wanted)
            ESP_TRY(esp_jlist_add(vm, out->u.l, items[i]));
    }
    return ESP_OK;
}

static esp_status select_items(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return choose(vm, c, 0, true, out);
}

static esp_status reject(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return choose(vm, c, 0, false, out);
}

static esp_status selectattr(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return choose(vm, c, 1, true, out);
}

static esp_status rejectattr(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return choose(vm, c, 1, false, out);
}

/* ---- order ---- */

/* Stable merge sort of `at` by keys, bottom up. */
static esp_status sort_by(struct esp_jvm *vm, const struct esp_jv *keys, size_t n, bool down, uint32_t *at)
{
    uint32_t *tmp = esp_jvm_alloc(vm, n + 1, sizeof *tmp);

    if (!tmp)
        return vm->status;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n, hi = lo + 2 * width < n ? lo + 2 * width : n;
            size_t i = lo, k = mid;

            for (size_t o = lo; o < hi; o++) {
                int cmp = 0;

                if (i < mid && k < hi && (keys[at[i]].kind != ESP_JUNDEF || keys[at[k]].kind != ESP_JUNDEF))
                    ESP_TRY(esp_jv_order(vm, &keys[at[i]], &keys[at[k]], &cmp));
                tmp[o] = i < mid && (k >= hi || (down ? cmp >= 0 : cmp <= 0)) ? at[i++] : at[k++];
            }
        }
        memcpy(at, tmp, n * sizeof *at);
    }
    return ESP_OK;
}

static esp_status sorted(struct esp_jvm *vm, const struct esp_jv *items, size_t n, const struct esp_jv *keys,
                         bool down, struct esp_jv *out)
{
    uint32_t *at = esp_jvm_alloc(vm, n + 1, sizeof *at);

    if (!at)
        return vm->status;
    for (size_t i = 0; i < n; i++)
        at[i] = (uint32_t)i;
    ESP_TRY(sort_by(vm, keys, n, down, at));
    ESP_TRY(esp_jlist_new(vm, n, ESP_JFORM_LIST, out));
    for (size_t i = 0; i < n; i++)
        ESP_TRY(esp_jlist_add(vm, out->u.l, items[at[i]]));
    return ESP_OK;
}

/* Sort keys of all items; attribute may list several with commas. */
static esp_status sort_keys(struct esp_jvm *vm, const struct esp_jv *items, size_t n,
                            const struct esp_jv *attribute, bool ignore_case, struct esp_jv **out)
{
    *out = esp_jvm_alloc(vm, n + 1, sizeof **out);
    if (!*out)
        return vm->status;
    for (size_t i = 0; i < n; i++)
        ESP_TRY(key_of(vm, &items[i], attribute, ignore_case, &(*out)[i]));
    return ESP_OK;
}

static esp_status sort(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jv *items;
    struct esp_jv *keys;
    size_t n;

    if (given(c, 2) && c->arg[2].kind == ESP_JSTR && memchr(c->arg[2].u.s->p, ',', c->arg[2].u.s->len))
        return esp_jvm_fail(vm, ESP_EUNSUPPORTED, "sort by several attributes is not supported");
    ESP_TRY(esp_jv_iterate(vm, &c->self, &items, &n));
    ESP_TRY(sort_keys(vm, items, n, given(c, 2), !flag(c, 1), &keys));
    return sorted(vm, items, n, keys, flag(c, 0), out);
}

static esp_status dictsort(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    struct esp_jv list, *keys;
    struct esp_jv pos = esp_jv_int(0);

    if (c->self.kind != ESP_JDICT)
        return esp_jvm_fail(vm, ESP_EINVAL, "dictsort needs a mapping, not %s", esp_jv_type(&c->self));
    if (c->given[1] && c->arg[1].kind == ESP_JSTR && esp_jstr_is(c->arg[1].u.s, "value"))
        pos = esp_jv_int(1);
    else if (c->given[1] && (c->arg[1].kind != ESP_JSTR || !esp_jstr_is(c->arg[1].u.s, "key")))
        return esp_jvm_fail(vm, ESP_EINVAL, "dictsort: by is key or value");
    ESP_TRY(esp_jdict_items(vm, c->self.u.d, &list));
    ESP_TRY(sort_keys(vm, list.u.l->v, list.u.l->n, &pos, !flag(c, 0), &keys));
    return sorted(vm, list.u.l->v, list.u.l->n, keys, flag(c, 2), out);
}

static esp_status unique(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jv *items;
    struct esp_jv seen, key;
    size_t n, at;

    ESP_TRY(esp_jv_iterate(vm, &c->self, &items, &n));
    ESP_TRY(esp_jlist_new(vm, 0, ESP_JFORM_LIST, out));
    ESP_TRY(esp_jdict_new(vm, ESP_JDICT, &seen));
    for (size_t i = 0; i < n; i++) {
        ESP_TRY(key_of(vm, &items[i], given(c, 1), !flag(c, 0), &key));
        ESP_TRY(esp_jdict_find(vm, seen.u.d, key, &at));
        if (at < seen.u.d->n)
            continue;
        ESP_TRY(esp_jdict_set(vm, seen.u.d, key, esp_jv_none()));
        ESP_TRY(esp_jlist_add(vm, out->u.l, items[i]));
    }
    return ESP_OK;
}

static esp_status extreme(struct esp_jvm *vm, const struct esp_jcall *c, int sign, struct esp_jv *out)
{
    const struct esp_jv *items;
    struct esp_jv *keys;
    size_t n, best = 0;

    ESP_TRY(esp_jv_iterate(vm, &c->self, &items, &n));
    *out = esp_jv_undef("extreme of an empty sequence");
    if (n == 0)
        return ESP_OK;
    ESP_TRY(sort_keys(vm, items, n, given(c, 1), !flag(c, 0), &keys));
    for (size_t i = 1; i < n; i++) {
        int cmp;

        ESP_TRY(esp_jv_order(vm, &keys[i], &keys[best], &cmp));
        best = cmp * sign > 0 ? i : best;
    }
    *out = items[best];
    return ESP_OK;
}

static esp_status min_of(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return extreme(vm, c, -1, out);
}

static esp_status max_of(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return extreme(vm, c, 1, out);
}

static esp_status sum(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jv *items;
    struct esp_jv v;
    size_t n;

    ESP_TRY(esp_jv_iterate(vm, &c->self, &items, &n));
    *out = c->given[1] ? c->arg[1] : esp_jv_int(0);
    for (size_t i = 0; i < n; i++) {
        ESP_TRY(key_of(vm, &items[i], given(c, 0), false, &v));
        ESP_TRY(esp_jv_arith(vm, ESP_JOP_ADD, out, &v, out));
    }
    return ESP_OK;
}

const struct esp_jbuiltin *esp_jfilter_find_sequence(const char *name)
{
    static const struct esp_jbuiltin table[] = {
        {"list", "", list_of},
        {"first", "", first},
        {"last", "", last},
        {"reverse", "", reverse},
        {"join", "d? attribute?", join},
        {"map", NULL, map},
        {"select", NULL, select_items},
        {"reject", NULL, reject},
        {"selectattr", NULL, selectattr},
        {"rejectattr", NULL, rejectattr},
        {"sort", "reverse? case_sensitive? attribute?", sort},
        {"dictsort", "case_sensitive? by? reverse?", dictsort},
        {"unique", "case_sensitive? attribute?", unique},
        {"min", "case_sensitive? attribute?", min_of},
        {"max", "case_sensitive? attribute?", max_of},
        {"sum", "attribute? start?", sum},
    };

    return esp_jbuiltin_find(table, sizeof table / sizeof table[0], name, strlen(name));
}
