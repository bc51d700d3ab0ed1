/*
 * Chat templates: opening and rendering one. Each rendering has its own arena and machine, so a template
 * needs no lock.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/template.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

#include "text/jinja.h"

struct esp_template {
    struct esp_arena *arena;
    struct esp_jnode *body;
    char *name;
    char *source;
};

void esp_text_spans_free(struct esp_text_spans *s)
{
    esp_free(s->v);
    memset(s, 0, sizeof *s);
}

esp_status esp_template_open(struct esp_template **out, const char *source, size_t len, const char *name,
                             esp_error *err)
{
    struct esp_template *t;
    esp_status s;
    size_t at;

    if (len > ESP_LIMIT_TEMPLATE_BYTES)
        return esp_fail(err, ESP_ENOFIT, "%s: a template of %zu bytes, at most %u are accepted", name, len,
                        ESP_LIMIT_TEMPLATE_BYTES);
    if (!esp_utf8_valid(source, len, &at))
        return esp_fail(err, ESP_EFORMAT, "%s: invalid UTF-8 at byte %zu", name, at);
    t = esp_alloc(sizeof *t);
    if (t) {
        /* about two nodes a byte at worst ("{{a}}" and lists of one-letter names) */
        t->arena = esp_arena_create(len * 2 * sizeof(struct esp_jnode) + (1u << 20));
        t->name = esp_strndup(name, strlen(name));
        t->source = esp_strndup(source, len);
    }
    if (!t || !t->arena || !t->name || !t->source) {
        esp_template_close(t);
        return esp_fail(err, ESP_ENOMEM, "%s: no memory for the template", name);
    }
    s = esp_jparse(&t->body, t->arena, source, len, t->name, err);
    if (s != ESP_OK) {
        esp_template_close(t);
        return s;
    }
    *out = t;
    return ESP_OK;
}

void esp_template_close(struct esp_template *t)
{
    if (!t)
        return;
    esp_arena_destroy(t->arena);
    esp_free(t->name);
    esp_free(t->source);
    esp_free(t);
}

const char *esp_template_source(const struct esp_template *t)
{
    return t->source;
}

const char *esp_template_name(const struct esp_template *t)
{
    return t->name;
}

/* Variables: the trusted ones, then the context over them. */
static esp_status set_context(struct esp_jvm *vm, const json_t *context, const json_t *trusted)
{
    struct esp_jv vars, more;

    ESP_TRY(esp_jdict_new(vm, ESP_JDICT, &vars));
    if (trusted)
        ESP_TRY(esp_jv_from_json(vm, trusted, true, 0, &vars));
    ESP_TRY(esp_jv_from_json(vm, context, false, 0, &more));
    for (size_t i = 0; i < more.u.d->n; i++)
        ESP_TRY(esp_jdict_set(vm, vars.u.d, more.u.d->key[i], more.u.d->val[i]));
    vm->context = vars.u.d;
    return ESP_OK;
}

esp_status esp_template_render(const struct esp_template *t, const json_t *context,
                               const struct esp_template_opts *opts, struct esp_strbuf *out,
                               struct esp_text_spans *spans, esp_error *err)
{
    static const struct esp_template_opts defaults = {0};
    size_t n_span = spans ? spans->n : 0, last_end = n_span ? spans->v[n_span - 1].end : 0, len = out->len;
    struct esp_jvm vm = {.err = err, .name = t->name, .line = 1, .out = out, .spans = spans};
    esp_status s;

    opts = opts ? opts : &defaults;
    if (!json_is_object(context) || (opts->trusted && !json_is_object(opts->trusted)))
        return esp_fail(err, ESP_EINVAL, "%s: the variables of a template are a JSON object", t->name);
    vm.max_steps = opts->max_steps ? opts->max_steps : ESP_LIMIT_TEMPLATE_STEPS;
    vm.max_output = opts->max_output ? opts->max_output : ESP_LIMIT_TEMPLATE_OUTPUT;
    vm.has_now = opts->has_now;
    vm.now = opts->now;
    vm.arena = esp_arena_create(ESP_LIMIT_TEMPLATE_MEMORY);
    if (!vm.arena)
        return esp_fail(err, ESP_ENOMEM, "%s: no memory to render", t->name);
    s = set_context(&vm, context, opts->trusted);
    if (s == ESP_OK)
        s = esp_jvm_run(&vm, t->body);
    esp_arena_destroy(vm.arena);
    if (s == ESP_OK)
        return ESP_OK;
    out->len = len;
    if (out->data)
        out->data[len] = 0;
    if (spans) {
        spans->n = n_span;
        if (n_span)
            spans->v[n_span - 1].end = last_end; /* may have been extended */
    }
    return s;
}
