/*
 * Methods of dictionaries, lists, loops; those of strings are in jinja_text.c. Only a Python method's
 * everyday form is here; unknown names are simply missing attributes.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <string.h>

static esp_status dict_get(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jdict *d = c->self.u.d;
    size_t at;

    ESP_TRY(esp_jdict_find(vm, d, c->arg[0], &at));
    *out = at < d->n ? d->val[at] : c->given[1] ? c->arg[1] : esp_jv_none();
    return ESP_OK;
}

static esp_status dict_keys(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jdict *d = c->self.u.d;

    ESP_TRY(esp_jlist_new(vm, d->n, ESP_JFORM_LIST, out));
    for (size_t i = 0; i < d->n; i++)
        ESP_TRY(esp_jlist_add(vm, out->u.l, d->key[i]));
    return ESP_OK;
}

static esp_status dict_values(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jdict *d = c->self.u.d;

    ESP_TRY(esp_jlist_new(vm, d->n, ESP_JFORM_LIST, out));
    for (size_t i = 0; i < d->n; i++)
        ESP_TRY(esp_jlist_add(vm, out->u.l, d->val[i]));
    return ESP_OK;
}

esp_status esp_jdict_items(struct esp_jvm *vm, const struct esp_jdict *d, struct esp_jv *out)
{
    ESP_TRY(esp_jlist_new(vm, d->n, ESP_JFORM_LIST, out));
    for (size_t i = 0; i < d->n; i++) {
        struct esp_jv pair;

        ESP_TRY(esp_jlist_new(vm, 2, ESP_JFORM_TUPLE, &pair));
        ESP_TRY(esp_jlist_add(vm, pair.u.l, d->key[i]));
        ESP_TRY(esp_jlist_add(vm, pair.u.l, d->val[i]));
        ESP_TRY(esp_jlist_add(vm, out->u.l, pair));
    }
    return ESP_OK;
}

static esp_status dict_items(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return esp_jdict_items(vm, c->self.u.d, out);
}

static esp_status dict_pop(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    struct esp_jdict *d = c->self.u.d;
    size_t at;

    ESP_TRY(esp_jdict_find(vm, d, c->arg[0], &at));
    if (at == d->n && !c->given[1])
        return esp_jvm_fail(vm, ESP_EINVAL, "pop() of a key that the dict does not have");
    *out = at < d->n ? d->val[at] : c->arg[1];
    return at < d->n ? esp_jdict_remove(vm, d, at) : ESP_OK;
}

static esp_status dict_setdefault(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    struct esp_jdict *d = c->self.u.d;
    size_t at;

    ESP_TRY(esp_jdict_find(vm, d, c->arg[0], &at));
    *out = at < d->n ? d->val[at] : c->given[1] ? c->arg[1] : esp_jv_none();
    return at < d->n ? ESP_OK : esp_jdict_set(vm, d, c->arg[0], *out);
}

static esp_status dict_update(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    (void)out;
    if (c->all->n_pos > 1 || (c->all->n_pos == 1 && c->all->pos[0].kind != ESP_JDICT))
        return esp_jvm_fail(vm, ESP_EINVAL, "update() takes one dict, or keyword arguments");
    for (size_t i = 0; c->all->n_pos && i < c->all->pos[0].u.d->n; i++)
        ESP_TRY(esp_jdict_set(vm, c->self.u.d, c->all->pos[0].u.d->key[i], c->all->pos[0].u.d->val[i]));
    for (size_t i = 0; i < c->all->n_kw; i++) {
        struct esp_jv key;

        ESP_TRY(esp_jstr_view(vm, c->all->kw[i].name, strlen(c->all->kw[i].name), true, &key));
        ESP_TRY(esp_jdict_set(vm, c->self.u.d, key, c->all->kw[i].v));
    }
    return ESP_OK;
}

static esp_status dict_copy(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jdict *d = c->self.u.d;

    ESP_TRY(esp_jdict_new(vm, ESP_JDICT, out));
    for (size_t i = 0; i < d->n; i++)
        ESP_TRY(esp_jdict_set(vm, out->u.d, d->key[i], d->val[i]));
    return ESP_OK;
}

static esp_status list_append(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    (void)out;
    return esp_jlist_add(vm, c->self.u.l, c->arg[0]);
}

static esp_status list_extend(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jv *items;
    size_t n;

    (void)out;
    ESP_TRY(esp_jv_iterate(vm, &c->arg[0], &items, &n));
    for (size_t i = 0; i < n; i++)
        ESP_TRY(esp_jlist_add(vm, c->self.u.l, items[i]));
    return ESP_OK;
}

static esp_status list_insert(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    struct esp_jlist *l = c->self.u.l;
    int64_t at, n = (int64_t)l->n;

    (void)out;
    if (!esp_jv_integer(&c->arg[0], &at))
        return esp_jvm_fail(vm, ESP_EINVAL, "insert() takes an integer first, not %s",
                            esp_jv_type(&c->arg[0]));
    at = at < 0 ? (at + n < 0 ? 0 : at + n) : at > n ? n : at;
    ESP_TRY(esp_jvm_charge(vm, (uint64_t)n));
    ESP_TRY(esp_jlist_add(vm, l, c->arg[1]));
    memmove(l->v + at + 1, l->v + at, (size_t)(n - at) * sizeof *l->v);
    l->v[at] = c->arg[1];
    return ESP_OK;
}

static esp_status list_pop(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    struct esp_jlist *l = c->self.u.l;
    int64_t at = -1;

    if (c->given[0] && !esp_jv_integer(&c->arg[0], &at))
        return esp_jvm_fail(vm, ESP_EINVAL, "pop() of a list takes an integer, not %s",
                            esp_jv_type(&c->arg[0]));
    if (at < 0)
        at += (int64_t)l->n;
    if (at < 0 || (size_t)at >= l->n)
        return esp_jvm_fail(vm, ESP_EINVAL, "pop() outside a list of %zu items", l->n);
    ESP_TRY(esp_jvm_charge(vm, l->n));
    *out = l->v[at];
    memmove(l->v + at, l->v + at + 1, (l->n - (size_t)at - 1) * sizeof *l->v);
    l->n--;
    return ESP_OK;
}

static esp_status list_index(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jlist *l = c->self.u.l;

    for (size_t i = 0; i < l->n; i++) {
        bool same;

        ESP_TRY(esp_jv_equal(vm, &l->v[i], &c->arg[0], &same));
        *out = esp_jv_int((int64_t)i);
        if (same)
            return ESP_OK;
    }
    return esp_jvm_fail(vm, ESP_EINVAL, "index() of a value that the list does not have");
}

static esp_status list_count(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jlist *l = c->self.u.l;
    int64_t n = 0;

    for (size_t i = 0; i < l->n; i++) {
        bool same;

        ESP_TRY(esp_jv_equal(vm, &l->v[i], &c->arg[0], &same));
        n += same;
    }
    *out = esp_jv_int(n);
    return ESP_OK;
}

static esp_status loop_cycle(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    if (c->all->n_pos == 0)
        return esp_jvm_fail(vm, ESP_EINVAL, "loop.cycle() needs values");
    *out = c->all->pos[c->self.u.loop->i % c->all->n_pos];
    return ESP_OK;
}

static esp_status loop_changed(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    struct esp_jloop *l = c->self.u.loop;
    struct esp_jv now;
    bool same = false;

    ESP_TRY(esp_jlist_new(vm, c->all->n_pos, ESP_JFORM_TUPLE, &now));
    for (size_t i = 0; i < c->all->n_pos; i++)
        ESP_TRY(esp_jlist_add(vm, now.u.l, c->all->pos[i]));
    if (l->has_changed)
        ESP_TRY(esp_jv_equal(vm, &l->changed, &now, &same));
    l->changed = now;
    l->has_changed = true;
    *out = esp_jv_bool(!same);
    return ESP_OK;
}

const struct esp_jbuiltin *esp_jmethod_find(const struct esp_jv *self, const char *name, size_t len)
{
    static const struct esp_jbuiltin dict[] = {
        {"get", "key default?", dict_get}, {"keys", "", dict_keys},
        {"values", "", dict_values},       {"items", "", dict_items},
        {"pop", "key default?", dict_pop}, {"setdefault", "key default?", dict_setdefault},
        {"update", NULL, dict_update},     {"copy", "", dict_copy},
    };
    static const struct esp_jbuiltin list[] = {
        {"append", "object", list_append},       {"extend", "iterable", list_extend},
        {"insert", "index object", list_insert}, {"pop", "index?", list_pop},
        {"index", "value", list_index},          {"count", "value", list_count},
    };
    static const struct esp_jbuiltin loop[] = {{"cycle", NULL, loop_cycle}, {"changed", NULL, loop_changed}};

    switch (self->kind) {
    case ESP_JSTR:
        return esp_jmethod_find_str(name, len);
    case ESP_JDICT:
        return esp_jbuiltin_find(dict, sizeof dict / sizeof dict[0], name, len);
    case ESP_JLIST:
        if (self->u.l->form != ESP_JFORM_LIST) /* tuples and ranges are immutable */
            return esp_jbuiltin_find(list + 4, 2, name, len);
        return esp_jbuiltin_find(list, sizeof list / sizeof list[0], name, len);
    case ESP_JLOOP:
        return esp_jbuiltin_find(loop, sizeof loop / sizeof loop[0], name, len);
    default:
        return NULL;
    }
}
