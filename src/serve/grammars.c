/*
 * A store of grammars and a queue in front of two threads. A piece of work owns all it needs: its source as
 * text, which is also the key, so that no JSON value is looked at by two threads.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/grammars.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/structured.h"

#include "serve/background.h"

enum {
    MAX_SOURCE = 8 << 20, /* bytes of a source: 1,024 tools of 8 KiB */
    MAX_WAITING = 64
};

struct entry {
    char *source; /* zero-terminated */
    struct esp_grammar *grammar;
    uint64_t used;
};

struct waiter {
    struct waiter *next;
    esp_grammars_fn fn;
    void *user;
};

struct work {
    struct work *next;
    struct esp_grammars *owner;
    char *source;
    struct waiter *waiters;
    struct esp_grammar *grammar;
    double seconds;
    bool running;
};

struct esp_grammars {
    struct esp_server *s;
    struct esp_vocab *vocab;
    struct entry *v;
    size_t n, cap;
    uint64_t clock;
    struct work *work; /* oldest first */
    unsigned n_running, n_work;
    bool stopped;
};

esp_status esp_grammars_open(struct esp_grammars **out, struct esp_server *s, const esp_model *m,
                             size_t n_max, esp_error *err)
{
    struct esp_grammars *g = esp_alloc(sizeof *g);
    esp_status st = ESP_OK;

    if (g) {
        g->s = s;
        g->cap = n_max;
        g->v = esp_alloc_array(n_max, sizeof *g->v);
    }
    if (!g || !g->v)
        st = esp_fail(err, ESP_ENOMEM, "no memory for grammars");
    if (st == ESP_OK)
        st = esp_model_vocab(&g->vocab, m, err);
    if (st != ESP_OK) {
        esp_grammars_close(g);
        return st;
    }
    *out = g;
    return ESP_OK;
}

void esp_grammars_close(struct esp_grammars *g)
{
    if (!g)
        return;
    ESP_ASSERT(!g->work);
    for (size_t i = 0; i < g->n; i++) {
        esp_free(g->v[i].source);
        esp_grammar_release(g->v[i].grammar);
    }
    esp_vocab_destroy(g->vocab);
    esp_free(g->v);
    esp_free(g);
}

uint32_t esp_grammars_token(const struct esp_grammars *g, const char *text)
{
    uint32_t id;

    return esp_vocab_find_added(g->vocab, text, &id) ? id : UINT32_MAX;
}

/* ---- compiling: on a thread ---- */

struct parts { /* of a source, parsed */
    struct esp_grammar_form form;
    struct esp_grammar_calls calls;
    const char **choice;
    struct esp_tool *tool;
};

static esp_status take_choice(struct parts *p, const json_t *list, esp_error *err)
{
    const size_t n = json_array_size(list);

    p->choice = esp_alloc_array(n, sizeof *p->choice);
    if (!p->choice)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu choices", n);
    for (size_t i = 0; i < n; i++)
        p->choice[i] = json_string_value(json_array_get(list, i));
    p->form.choice = p->choice;
    p->form.n_choice = n;
    return ESP_OK;
}

static esp_status take_tools(struct parts *p, const json_t *list, bool strict, esp_error *err)
{
    const size_t n = json_array_size(list);

    p->tool = esp_alloc_array(n, sizeof *p->tool);
    if (!p->tool)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu tools", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *f = json_object_get(json_array_get(list, i), "function"),
                     *parameters = json_object_get(f, "parameters");

        p->tool[i] = (struct esp_tool){.name = json_string_value(json_object_get(f, "name")),
                                       .parameters = json_is_object(parameters) ? parameters : NULL,
                                       .strict = strict || json_is_true(json_object_get(f, "strict"))};
    }
    p->calls.tool = p->tool;
    p->calls.n = n;
    return ESP_OK;
}

static esp_status compile_form(struct esp_grammar **out, const struct esp_vocab *v,
                               const struct esp_grammar_form *f, esp_error *err)
{
    switch (f->kind) {
    case ESP_GRAMMAR_GBNF:
        return esp_grammar_gbnf(out, v, f->text, f->len, err);
    case ESP_GRAMMAR_REGEX:
        return esp_grammar_regex(out, v, f->text, f->len, err);
    case ESP_GRAMMAR_CHOICE:
        return esp_grammar_choice(out, v, f->choice, f->n_choice, err);
    default:
        return esp_grammar_schema(out, v, f->schema, f->flags, err);
    }
}

/* source: [form, flags, value, tool_flags, tools, strict] */
static esp_status compile(struct esp_grammar **out, const struct esp_vocab *v, const json_t *source,
                          esp_error *err)
{
    static const enum esp_grammar_kind kinds[] = {[ESP_FORM_SCHEMA] = ESP_GRAMMAR_SCHEMA,
                                                  [ESP_FORM_REGEX] = ESP_GRAMMAR_REGEX,
                                                  [ESP_FORM_CHOICE] = ESP_GRAMMAR_CHOICE,
                                                  [ESP_FORM_GBNF] = ESP_GRAMMAR_GBNF};
    const json_int_t form = json_integer_value(json_array_get(source, 0));
    const json_t *value = json_array_get(source, 2), *tools = json_array_get(source, 4);
    struct parts p = {.form = {.kind = kinds[form],
                               .text = json_string_value(value),
                               .len = json_string_length(value),
                               .schema = json_is_null(value) ? NULL : value,
                               .flags = (unsigned)json_integer_value(json_array_get(source, 1))},
                      .calls = {.flags = (unsigned)json_integer_value(json_array_get(source, 3))}};
    esp_status s = ESP_OK;

    if (form == ESP_FORM_CHOICE)
        s = take_choice(&p, value, err);
    if (s == ESP_OK && json_is_array(tools))
        s = take_tools(&p, tools, json_is_true(json_array_get(source, 5)), err);
    if (s == ESP_OK && !p.tool)
        s = compile_form(out, v, &p.form, err);
    else if (s == ESP_OK && form == ESP_FORM_FREE)
        s = esp_grammar_tools(out, v, p.tool, p.calls.n, p.calls.flags, err);
    else if (s == ESP_OK)
        s = esp_grammar_either(out, v, &p.form, &p.calls, err);
    esp_free(p.choice);
    esp_free(p.tool);
    return s;
}

static esp_status run_work(void *arg, esp_error *err)
{
    struct work *w = arg;
    const double from = esp_serve_now();
    json_t *source = NULL;
    esp_status s = esp_json_parse(&source, w->source, strlen(w->source), "grammar", 0, err);

    if (s == ESP_OK)
        s = compile(&w->grammar, w->owner->vocab, source, err);
    json_decref(source);
    w->seconds = esp_serve_now() - from;
    return s;
}

/* ---- the store ---- */

static void keep(struct esp_grammars *g, char *source, struct esp_grammar *grammar)
{
    struct entry *e = &g->v[0];

    if (g->n < g->cap)
        e = &g->v[g->n++];
    else
        for (size_t i = 1; i < g->n; i++)
            if (g->v[i].used < e->used)
                e = &g->v[i];
    esp_free(e->source);
    esp_grammar_release(e->grammar);
    *e = (struct entry){source, esp_grammar_ref(grammar), ++g->clock};
}

static void start_some(struct esp_grammars *g);

/* Tell everybody and forget w. */
static void end_work(struct work *w, esp_status status, const esp_error *err)
{
    struct esp_grammars *g = w->owner;
    struct work **at = &g->work;
    struct waiter *x, *next;

    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    g->n_work--;
    g->n_running -= w->running;
    if (status == ESP_OK) {
        keep(g, w->source, w->grammar);
        w->source = NULL;
    }
    for (x = w->waiters; x; x = next) {
        next = x->next;
        x->fn(x->user, w->grammar, err);
        esp_free(x);
    }
    esp_grammar_release(w->grammar);
    esp_free(w->source);
    esp_free(w);
}

static void work_done(void *arg, esp_status status, const esp_error *err)
{
    struct work *w = arg;
    struct esp_grammars *g = w->owner;

    esp_observe_seconds(&g->s->metrics.grammar, esp_buckets_phase, w->seconds);
    end_work(w, status, err);
    start_some(g);
}

/* Give threads to the oldest that have none. */
static void start_some(struct esp_grammars *g)
{
    struct work *next;
    esp_error err;

    for (struct work *w = g->work; w && g->n_running < g->s->o.http_threads && !g->stopped; w = next) {
        esp_status s;

        next = w->next;
        if (w->running)
            continue;
        w->running = true;
        g->n_running++;
        s = esp_background_run(g->s->background, run_work, work_done, w, &err);
        if (s != ESP_OK)
            end_work(w, s, &err);
    }
}

void esp_grammars_stop(struct esp_grammars *g)
{
    struct work *next;
    esp_error err;

    if (!g)
        return;
    g->stopped = true;
    esp_fail(&err, ESP_ECANCELLED, "the server is shutting down");
    for (struct work *w = g->work; w; w = next) {
        next = w->next;
        if (!w->running)
            end_work(w, ESP_ECANCELLED, &err);
    }
}

/* ---- asking ---- */

static char *key_of(const struct esp_grammar_source *src)
{
    json_t *v = json_pack("[i,i,O?,i,O?,b]", (int)src->form, (int)src->flags, src->value,
                          (int)src->tool_flags, src->tools, src->strict);
    struct esp_strbuf b;

    esp_strbuf_init(&b, MAX_SOURCE);
    if (!v || !esp_json_add_exact(&b, v)) {
        esp_strbuf_free(&b);
        json_decref(v);
        return NULL;
    }
    json_decref(v);
    return esp_strbuf_take(&b);
}

static struct work *find_work(const struct esp_grammars *g, const char *source)
{
    struct work *w = g->work;

    while (w && strcmp(w->source, source) != 0)
        w = w->next;
    return w;
}

/* The piece of work for source, which is taken over; NULL with err. */
static struct work *make_work(struct esp_grammars *g, char *source, esp_error *err)
{
    struct work *w = find_work(g, source), **at = &g->work;

    if (w) {
        esp_free(source);
        return w;
    }
    w = g->n_work < MAX_WAITING && !g->stopped ? esp_alloc(sizeof *w) : NULL;
    if (!w) {
        if (g->stopped)
            esp_fail(err, ESP_ECANCELLED, "the server is shutting down");
        else if (g->n_work < MAX_WAITING)
            esp_fail(err, ESP_ENOMEM, "no memory for the grammar");
        else
            esp_fail(err, ESP_ESTATE, "%u grammars are being compiled already", g->n_work);
        esp_free(source);
        return NULL;
    }
    w->owner = g;
    w->source = source;
    while (*at)
        at = &(*at)->next;
    *at = w;
    g->n_work++;
    return w;
}

void esp_grammars_get(struct esp_grammars *g, const struct esp_grammar_source *src, esp_grammars_fn fn,
                      void *user)
{
    char *key = key_of(src);
    struct waiter *x, **at;
    struct work *w;
    esp_error err;

    if (!key) {
        esp_fail(&err, ESP_ENOFIT, "the grammar's source has more than %d bytes", MAX_SOURCE);
        fn(user, NULL, &err);
        return;
    }
    for (size_t i = 0; i < g->n; i++)
        if (strcmp(g->v[i].source, key) == 0) {
            g->v[i].used = ++g->clock;
            esp_free(key);
            fn(user, g->v[i].grammar, NULL);
            return;
        }
    w = make_work(g, key, &err);
    x = w ? esp_alloc(sizeof *x) : NULL;
    if (!x) {
        if (w)
            esp_fail(&err, ESP_ENOMEM, "no memory for the request");
        fn(user, NULL, &err);
        return; /* work without waiters ends in the store */
    }
    *x = (struct waiter){NULL, fn, user};
    for (at = &w->waiters; *at; at = &(*at)->next)
        ;
    *at = x;
    start_some(g);
}
