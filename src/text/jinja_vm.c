/*
 * Jinja machine, the services: failing with a line, counting steps and depth, memory, output with its trusted
 * spans, and variables. jinja_eval.c walks the tree with them.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* ---- services ---- */

esp_status esp_jvm_fail(struct esp_jvm *vm, esp_status s, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    vm->status = s;
    return esp_fail(vm->err, s, "%s:%d: %s", vm->name, vm->line, text);
}

esp_status esp_jvm_charge(struct esp_jvm *vm, uint64_t n)
{
    vm->steps += n;
    if (vm->steps <= vm->max_steps)
        return ESP_OK;
    return esp_jvm_fail(vm, ESP_ENOFIT, "the template takes more than %llu steps, the most accepted",
                        (unsigned long long)vm->max_steps);
}

esp_status esp_jvm_enter(struct esp_jvm *vm)
{
    if (++vm->depth <= ESP_LIMIT_TEMPLATE_FRAMES)
        return ESP_OK;
    return esp_jvm_fail(vm, ESP_ENOFIT, "evaluation is nested more than %d deep, the most accepted",
                        ESP_LIMIT_TEMPLATE_FRAMES);
}

void *esp_jvm_alloc(struct esp_jvm *vm, size_t n, size_t size)
{
    void *p = esp_arena_alloc_array(vm->arena, n, size);
    size_t want;

    if (p)
        return p;
    if (!esp_mul_size(&want, n, size) || want > ESP_LIMIT_TEMPLATE_MEMORY - esp_arena_used(vm->arena))
        esp_jvm_fail(vm, ESP_ENOFIT, "the template's values take more than %u MiB, the most accepted",
                     ESP_LIMIT_TEMPLATE_MEMORY >> 20);
    else
        esp_jvm_fail(vm, ESP_ENOMEM, "no memory for a value of %zu bytes", want);
    return NULL;
}

static esp_status add_span(struct esp_jvm *vm, size_t start, size_t end)
{
    struct esp_text_spans *s = vm->spans;

    if (!s)
        return ESP_OK;
    if (s->n > 0 && s->v[s->n - 1].end == start) {
        s->v[s->n - 1].end = end;
        return ESP_OK;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 16, bytes;
        void *p = esp_mul_size(&bytes, cap, sizeof *s->v) ? esp_realloc(s->v, bytes) : NULL;

        if (!p)
            return esp_jvm_fail(vm, ESP_ENOMEM, "no memory for %zu spans", cap);
        s->v = p;
        s->cap = cap;
    }
    s->v[s->n++] = (struct esp_text_span){start, end};
    return ESP_OK;
}

esp_status esp_jvm_emit(struct esp_jvm *vm, const char *p, size_t len, const uint8_t *mark, bool trusted)
{
    size_t at = vm->out->len;

    if (len == 0)
        return ESP_OK;
    if (vm->capture)
        return esp_jbuf_add(vm, vm->capture, p, len, mark, trusted);
    ESP_TRY(esp_jvm_charge(vm, len / 256));
    if (len > vm->max_output || vm->out->len > vm->max_output - len || len > vm->out->max - vm->out->len)
        return esp_jvm_fail(vm, ESP_ENOFIT,
                            "the output would become longer than %zu bytes, the most accepted",
                            vm->max_output < vm->out->max ? vm->max_output : vm->out->max);
    if (!esp_strbuf_add(vm->out, p, len))
        return esp_jvm_fail(vm, ESP_ENOMEM, "no memory for %zu bytes of output", len);
    if (!mark)
        return trusted ? add_span(vm, at, at + len) : ESP_OK;
    for (size_t i = 0, end; i < len; i = end) {
        for (end = i + 1; end < len && mark[end] == mark[i];)
            end++;
        if (mark[i])
            ESP_TRY(add_span(vm, at + i, at + end));
    }
    return ESP_OK;
}

/* ---- variables ---- */

esp_status esp_jvm_set(struct esp_jvm *vm, struct esp_jscope *sc, const char *name, struct esp_jv v)
{
    struct esp_jvar *var;

    for (var = sc->vars; var; var = var->next) {
        ESP_TRY(esp_jvm_charge(vm, 1));
        if (var->name == name) {
            var->v = v;
            return ESP_OK;
        }
    }
    var = vm->free_vars;
    if (var)
        vm->free_vars = var->next;
    else
        var = esp_jvm_alloc(vm, 1, sizeof *var);
    if (!var)
        return vm->status;
    var->name = name;
    var->v = v;
    var->next = sc->vars;
    sc->vars = var;
    return ESP_OK;
}

esp_status esp_jvm_get(struct esp_jvm *vm, const struct esp_jscope *sc, const char *name, struct esp_jv *out)
{
    size_t at;

    for (; sc; sc = sc->parent) {
        for (const struct esp_jvar *var = sc->vars; var; var = var->next) {
            ESP_TRY(esp_jvm_charge(vm, 1));
            if (var->name == name) {
                *out = var->v;
                return ESP_OK;
            }
        }
    }
    ESP_TRY(esp_jdict_find_name(vm, vm->context, name, strlen(name), &at));
    if (at < vm->context->n) {
        *out = vm->context->val[at];
        return ESP_OK;
    }
    *out = esp_jv_undef(name);
    out->u.fn = esp_jfunction_find(name, vm);
    if (out->u.fn)
        out->kind = ESP_JFUNCTION;
    else
        out->u.name = name;
    return ESP_OK;
}

/* Forget the variables of one round, so that long loops do not grow. Only when no macro could hold the scope.
 */
void esp_jvm_recycle(struct esp_jvm *vm, struct esp_jscope *sc)
{
    while (sc->vars) {
        struct esp_jvar *next = sc->vars->next;

        sc->vars->next = vm->free_vars;
        vm->free_vars = sc->vars;
        sc->vars = next;
    }
}
