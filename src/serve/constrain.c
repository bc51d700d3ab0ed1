/*
 * See the header. Compiling may take up to two seconds on the loop's thread; a grammar that was seen before
 * costs a look-up.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/constrain.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "engine/chat.h"
#include "engine/structured.h"

enum { MAX_SOURCE = 1 << 20, MAX_CHOICES = 10000 };

struct entry {
    char *source; /* zero-terminated; begins with the kind */
    struct esp_grammar *grammar;
    uint64_t used;
};

struct esp_grammars {
    struct esp_vocab *vocab;
    uint32_t end_think; /* </think>; UINT32_MAX: the vocabulary has none */
    uint32_t call;      /* <tool_call>, the same */
    struct entry *v;
    size_t n, cap;
    uint64_t clock;
};

static uint32_t added(const struct esp_vocab *v, const char *text)
{
    uint32_t id;

    return esp_vocab_find_added(v, text, &id) ? id : UINT32_MAX;
}

esp_status esp_grammars_open(struct esp_grammars **out, const esp_model *m, size_t n_max, esp_error *err)
{
    struct esp_grammars *g = esp_alloc(sizeof *g);
    esp_status s = ESP_OK;

    if (g) {
        g->cap = n_max;
        g->v = esp_alloc_array(n_max, sizeof *g->v);
    }
    if (!g || !g->v)
        s = esp_fail(err, ESP_ENOMEM, "no memory for grammars");
    if (s == ESP_OK)
        s = esp_model_vocab(&g->vocab, m, err);
    if (s != ESP_OK) {
        esp_grammars_close(g);
        return s;
    }
    g->end_think = added(g->vocab, "</think>");
    g->call = added(g->vocab, "<tool_call>");
    *out = g;
    return ESP_OK;
}

void esp_grammars_close(struct esp_grammars *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n; i++) {
        esp_free(g->v[i].source);
        esp_grammar_release(g->v[i].grammar);
    }
    esp_vocab_destroy(g->vocab);
    esp_free(g->v);
    esp_free(g);
}

/* ---- requests ---- */

static void ask(struct esp_fields *f, struct esp_gen *g, enum esp_form form, const json_t *value,
                const char *param)
{
    if (g->form != ESP_FORM_FREE)
        esp_api_fail(f->e, "invalid_value", param, "%s: the request asks for another form already", param);
    g->form = form;
    g->form_value = value;
    snprintf(g->form_param, sizeof g->form_param, "%s", param);
}

static void ask_text(struct esp_fields *f, struct esp_gen *g, enum esp_form form, const json_t *v,
                     const char *param)
{
    if (!json_is_string(v))
        esp_api_fail(f->e, "invalid_type", param, "%s: %s is not a string", param, esp_show_value(v));
    else
        ask(f, g, form, v, param);
}

static void ask_schema(struct esp_fields *f, struct esp_gen *g, const json_t *v, const char *param)
{
    if (v && !json_is_null(v) && !json_is_object(v) && !json_is_boolean(v))
        esp_api_fail(f->e, "invalid_type", param, "%s: %s is not a JSON Schema", param, esp_show_value(v));
    else
        ask(f, g, ESP_FORM_SCHEMA, json_is_null(v) ? NULL : v, param);
}

static void ask_choice(struct esp_fields *f, struct esp_gen *g, const json_t *v, const char *param)
{
    size_t i;
    json_t *one;

    if (!json_is_array(v) || json_array_size(v) == 0 || json_array_size(v) > MAX_CHOICES) {
        esp_api_fail(f->e, "invalid_value", param, "%s: an array of 1 to %d strings is needed", param,
                     MAX_CHOICES);
        return;
    }
    json_array_foreach(v, i, one) if (!json_is_string(one)) esp_api_fail(
        f->e, "invalid_type", param, "%s[%zu]: %s is not a string", param, i, esp_show_value(one));
    ask(f, g, ESP_FORM_CHOICE, v, param);
}

void esp_constrain_format(struct esp_fields *f, const json_t *format, const char *param, struct esp_gen *g)
{
    const char *type = json_string_value(json_object_get(format, "type"));
    const json_t *inner = json_object_get(format, "json_schema");

    if (!type) {
        esp_api_fail(f->e, json_is_object(format) ? "missing_field" : "invalid_type", param,
                     "%s: {\"type\":...} is needed", param);
        return;
    }
    if (strcmp(type, "text") == 0)
        return;
    if (!json_is_object(inner))
        inner = format;
    if (strcmp(type, "json_object") == 0) {
        ask_schema(f, g, json_object_get(format, "schema"), param);
    } else if (strcmp(type, "json_schema") == 0) {
        if (!json_object_get(inner, "schema"))
            esp_api_fail(f->e, "missing_field", param, "%s: a schema is needed", param);
        ask_schema(f, g, json_object_get(inner, "schema"), param);
        g->form_strict = json_is_true(json_object_get(inner, "strict"));
    } else {
        esp_api_fail(f->e, "invalid_value", param,
                     "%s: '%.64s'; text, json_object and json_schema are accepted", param, type);
    }
}

static void read_vllm(struct esp_fields *f, struct esp_gen *g)
{
    const json_t *o = NULL, *v;
    struct esp_fields s;
    bool space = true;

    if (!esp_field_object(f, "structured_outputs", &o))
        return;
    esp_fields_init(&s, o, "structured_outputs.", f->e);
    if ((v = esp_field_any(&s, "json")) != NULL)
        ask_schema(f, g, v, "structured_outputs.json");
    if ((v = esp_field_any(&s, "regex")) != NULL)
        ask_text(f, g, ESP_FORM_REGEX, v, "structured_outputs.regex");
    if ((v = esp_field_any(&s, "grammar")) != NULL)
        ask_text(f, g, ESP_FORM_GBNF, v, "structured_outputs.grammar");
    if ((v = esp_field_any(&s, "choice")) != NULL)
        ask_choice(f, g, v, "structured_outputs.choice");
    if (esp_field_bool(&s, "any_whitespace", &space))
        g->form_compact = !space;
}

void esp_constrain_read(struct esp_fields *f, struct esp_gen *g)
{
    const json_t *v;

    if ((v = esp_field_any(f, "response_format")) != NULL)
        esp_constrain_format(f, v, "response_format", g);
    read_vllm(f, g);
    if ((v = esp_field_any(f, "guided_json")) != NULL)
        ask_schema(f, g, v, "guided_json");
    if ((v = esp_field_any(f, "json_schema")) != NULL)
        ask_schema(f, g, v, "json_schema");
    if ((v = esp_field_any(f, "guided_regex")) != NULL)
        ask_text(f, g, ESP_FORM_REGEX, v, "guided_regex");
    if ((v = esp_field_any(f, "guided_grammar")) != NULL)
        ask_text(f, g, ESP_FORM_GBNF, v, "guided_grammar");
    if ((v = esp_field_any(f, "grammar")) != NULL)
        ask_text(f, g, ESP_FORM_GBNF, v, "grammar");
    if ((v = esp_field_any(f, "guided_choice")) != NULL)
        ask_choice(f, g, v, "guided_choice");
}

/* ---- compiling ---- */

struct source {
    enum esp_form form;
    unsigned flags;
    const json_t *value;
};

static esp_status compile_choice(struct esp_grammar **out, const struct esp_vocab *v, const json_t *list,
                                 esp_error *err)
{
    const size_t n = json_array_size(list);
    const char **text = esp_alloc_array(n, sizeof *text);
    esp_status s;

    if (!text)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu choices", n);
    for (size_t i = 0; i < n; i++)
        text[i] = json_string_value(json_array_get(list, i));
    s = esp_grammar_choice(out, v, text, n, err);
    esp_free(text);
    return s;
}

static esp_status compile_tools(struct esp_grammar **out, const struct esp_vocab *v, const struct source *src,
                                esp_error *err)
{
    const size_t n = json_array_size(src->value);
    struct esp_tool *tool = esp_alloc_array(n, sizeof *tool);
    esp_status s;

    if (!tool)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu tools", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *f = json_object_get(json_array_get(src->value, i), "function"),
                     *parameters = json_object_get(f, "parameters");

        tool[i] = (struct esp_tool){.name = json_string_value(json_object_get(f, "name")),
                                    .parameters = json_is_object(parameters) ? parameters : NULL,
                                    .strict = json_is_true(json_object_get(f, "strict"))};
    }
    s = esp_grammar_tools(out, v, tool, n, src->flags, err);
    esp_free(tool);
    return s;
}

static esp_status compile(struct esp_grammar **out, const struct esp_vocab *v, const struct source *src,
                          esp_error *err)
{
    const char *text = json_string_value(src->value);
    const size_t len = json_string_length(src->value);

    switch (src->form) {
    case ESP_FORM_GBNF:
        return esp_grammar_gbnf(out, v, text, len, err);
    case ESP_FORM_REGEX:
        return esp_grammar_regex(out, v, text, len, err);
    case ESP_FORM_CHOICE:
        return compile_choice(out, v, src->value, err);
    case ESP_FORM_TOOLS:
        return compile_tools(out, v, src, err);
    default:
        return esp_grammar_schema(out, v, src->value, src->flags, err);
    }
}

/* The kind, the flags and the source in one text: what the grammar is kept under. */
static char *key_of(const struct source *src)
{
    struct esp_strbuf b;

    esp_strbuf_init(&b, MAX_SOURCE);
    esp_strbuf_printf(&b, "%d %u ", (int)src->form, src->flags);
    if (src->value)
        esp_json_add(&b, src->value);
    if (b.failed) {
        esp_strbuf_free(&b);
        return NULL;
    }
    return esp_strbuf_take(&b);
}

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

static esp_status get(struct esp_grammars *g, const struct source *src, struct esp_grammar **out,
                      esp_error *err)
{
    char *key = key_of(src);
    esp_status s;

    if (!key)
        return esp_fail(err, ESP_ENOFIT, "the grammar's source has more than %d bytes", MAX_SOURCE);
    for (size_t i = 0; i < g->n; i++)
        if (strcmp(g->v[i].source, key) == 0) {
            g->v[i].used = ++g->clock;
            *out = esp_grammar_ref(g->v[i].grammar);
            esp_free(key);
            return ESP_OK;
        }
    s = compile(out, g->vocab, src, err);
    if (s == ESP_OK)
        keep(g, key, *out);
    else
        esp_free(key);
    return s;
}

static bool refuse(struct esp_api_error *e, const char *param, enum esp_form form, const esp_error *err)
{
    const bool schema = form == ESP_FORM_SCHEMA || form == ESP_FORM_TOOLS;

    if (err->status == ESP_ENOMEM)
        return esp_api_fail_status(e, param, err);
    return esp_api_fail(e,
                        err->status == ESP_ENOFIT                   ? "grammar_too_large"
                        : err->status == ESP_EUNSUPPORTED && schema ? "schema_unsupported"
                                                                    : "invalid_grammar",
                        param, "%s: %s", param, err->message);
}

/* Forms of the whole text. Behind thinking, two line ends may come first. */
static bool compile_form(struct esp_grammars *gs, struct esp_gen *g, bool thinking, struct esp_api_error *e)
{
    const unsigned flags = (g->form_strict ? 0u : ESP_SCHEMA_OPEN) |
                           (g->form_compact ? ESP_SCHEMA_COMPACT : 0u) | (thinking ? ESP_SCHEMA_LEAD : 0u);
    const struct source src = {g->form, g->form == ESP_FORM_SCHEMA ? flags : 0, g->form_value};
    esp_error err;

    if (get(gs, &src, &g->grammar, &err) != ESP_OK)
        return refuse(e, g->form_param, g->form, &err);
    if (thinking && gs->end_think != UINT32_MAX) {
        g->match.trigger[0] = gs->end_think;
        g->match.n_trigger = 1;
        g->match.must_start = true;
    }
    return true;
}

/* Calls: when the model begins one, or from the start of its answer on where the request asks for one. */
static bool compile_calls(struct esp_grammars *gs, struct esp_gen *g, const struct esp_chat_params *p,
                          bool thinking, struct esp_api_error *e)
{
    const bool forced = p->tool_choice == ESP_TOOLS_REQUIRED || p->tool_choice == ESP_TOOLS_NAMED;
    struct source src = {ESP_FORM_TOOLS, forced ? ESP_TOOLS_LEAD : ESP_TOOLS_BODY, p->tools};
    json_t *one = NULL;
    esp_error err;
    esp_status s;

    if (gs->call == UINT32_MAX || (thinking && gs->end_think == UINT32_MAX))
        return true; /* nothing to go by */
    if (forced && g->parallel_calls)
        src.flags |= ESP_TOOLS_SEVERAL;
    if (p->tool_choice == ESP_TOOLS_NAMED) {
        size_t i;
        json_t *t;

        one = json_array();
        json_array_foreach(
            p->tools, i,
            t) if (strcmp(json_string_value(json_object_get(json_object_get(t, "function"), "name")),
                          p->tool_name) == 0) json_array_append(one, t);
        src.value = one;
    }
    s = get(gs, &src, &g->grammar, &err);
    json_decref(one);
    if (s != ESP_OK)
        return refuse(e, "tools", ESP_FORM_TOOLS, &err);
    if (forced && !thinking)
        return true;
    g->match.trigger[0] = forced ? gs->end_think : gs->call;
    g->match.n_trigger = 1;
    g->match.must_start = forced;
    g->match.again = !forced;
    if (forced) {
        g->match.ban[0] = gs->call;
        g->match.n_ban = 1;
    }
    return true;
}

bool esp_constrain_compile(struct esp_server *s, struct esp_gen *g, const struct esp_chat_params *p,
                           bool thinking, struct esp_api_error *e)
{
    const bool calls = p && p->tools && p->tool_choice != ESP_TOOLS_NONE;

    if (g->form != ESP_FORM_FREE && calls)
        return esp_api_fail(
            e, "unsupported_value", g->form_param,
            "%s: together with tools it is not in this version; tool_choice \"none\" is accepted",
            g->form_param);
    if (g->form != ESP_FORM_FREE)
        return compile_form(s->grammars, g, thinking, e);
    return !calls || compile_calls(s->grammars, g, p, thinking, e);
}

esp_status esp_constrain_open(struct esp_constraint *out, const struct esp_gen *g,
                              const struct esp_ids *sampled, esp_error *err)
{
    enum esp_constraint_state state;
    esp_status s;

    memset(out, 0, sizeof *out);
    if (!g->grammar)
        return ESP_OK;
    ESP_TRY(esp_constraint_open(out, g->grammar, &g->match, err));
    for (size_t i = 0; sampled && i < sampled->n; i++) {
        s = out->accept(out->user, (esp_token)sampled->data[i], &state, err);
        if (s != ESP_OK) {
            out->close(out->user);
            memset(out, 0, sizeof *out);
            return s;
        }
    }
    return ESP_OK;
}
