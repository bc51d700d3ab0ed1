/*
 * Calling what is built in: finds a filter, test, method or function by name, sorts the arguments into its
 * parameters, and refuses what does not fit, with the names a template's author would recognise.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <string.h>

const struct esp_jbuiltin *esp_jbuiltin_find(const struct esp_jbuiltin *table, size_t n, const char *name,
                                             size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(table[i].name) == len && memcmp(table[i].name, name, len) == 0)
            return &table[i];
    return NULL;
}

const struct esp_jbuiltin *esp_jfilter_find(const char *name)
{
    const struct esp_jbuiltin *f = esp_jfilter_find_value(name);

    if (!f)
        f = esp_jfilter_find_sequence(name);
    return f ? f : esp_jfilter_find_string(name);
}

/* Parameter i of "old new count?": its name, length and whether it may be missing; false behind the last. */
static bool param(const char *spec, size_t i, const char **name, size_t *len, bool *optional)
{
    while (i-- > 0) {
        spec = strchr(spec, ' ');
        if (!spec)
            return false;
        spec++;
    }
    if (!*spec)
        return false;
    *name = spec;
    *len = strcspn(spec, " ?");
    *optional = spec[*len] == '?';
    return true;
}

static esp_status place_keyword(struct esp_jvm *vm, const char *what, struct esp_jcall *c,
                                const struct esp_jkw *kw)
{
    const char *name;
    size_t len;
    bool optional;

    for (size_t i = 0; param(c->fn->params, i, &name, &len, &optional); i++) {
        if (strlen(kw->name) != len || memcmp(kw->name, name, len) != 0)
            continue;
        if (c->given[i])
            return esp_jvm_fail(vm, ESP_EINVAL, "%s \"%s\" got \"%s\" twice", what, c->fn->name, kw->name);
        c->arg[i] = kw->v;
        c->given[i] = true;
        return ESP_OK;
    }
    return esp_jvm_fail(vm, ESP_EINVAL, "%s \"%s\" has no parameter \"%s\"", what, c->fn->name, kw->name);
}

esp_status esp_jvm_call_builtin(struct esp_jvm *vm, const char *what, const struct esp_jbuiltin *fn,
                                struct esp_jv self, const struct esp_jargs *args, struct esp_jv *out)
{
    struct esp_jcall c = {.fn = fn, .self = self, .all = args};
    struct esp_jv result = esp_jv_none();
    const char *name;
    size_t len, n = 0;
    bool optional;

    ESP_TRY(esp_jvm_charge(vm, 1));
    if (fn->params) {
        for (; param(fn->params, n, &name, &len, &optional); n++) {
            c.arg[n] = n < args->n_pos ? args->pos[n] : esp_jv_undef(NULL);
            c.given[n] = n < args->n_pos;
        }
        if (args->n_pos > n)
            return esp_jvm_fail(vm, ESP_EINVAL, "%s \"%s\" takes at most %zu arguments, %zu given", what,
                                fn->name, n, args->n_pos);
        for (size_t i = 0; i < args->n_kw; i++)
            ESP_TRY(place_keyword(vm, what, &c, &args->kw[i]));
        for (size_t i = 0; param(fn->params, i, &name, &len, &optional); i++)
            if (!optional && !c.given[i])
                return esp_jvm_fail(vm, ESP_EINVAL, "%s \"%s\" needs its argument \"%.*s\"", what, fn->name,
                                    (int)len, name);
    }
    ESP_TRY(fn->fn(vm, &c, &result));
    *out = result;
    return ESP_OK;
}

esp_status esp_jvm_filter(struct esp_jvm *vm, const char *name, struct esp_jv self,
                          const struct esp_jargs *args, struct esp_jv *out)
{
    const struct esp_jbuiltin *f = esp_jfilter_find(name);

    if (!f)
        return esp_jvm_fail(vm, ESP_EUNSUPPORTED, "there is no filter \"%s\"", name);
    return esp_jvm_call_builtin(vm, "filter", f, self, args, out);
}

esp_status esp_jvm_test(struct esp_jvm *vm, const char *name, struct esp_jv self,
                        const struct esp_jargs *args, bool *out)
{
    const struct esp_jbuiltin *f = esp_jtest_find(name);
    struct esp_jv v;

    if (!f)
        return esp_jvm_fail(vm, ESP_EUNSUPPORTED, "there is no test \"%s\"", name);
    ESP_TRY(esp_jvm_call_builtin(vm, "test", f, self, args, &v));
    *out = v.u.b;
    return ESP_OK;
}
