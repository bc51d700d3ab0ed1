/*
 * See the header. What is compiled follows from form, tools, tool choice and thinking: a form, calls, or a
 * form with calls in its place.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/constrain.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/structured.h"
#include "text/toolvalue.h"

#include "serve/grammars.h"

enum { MAX_CHOICES = 10000 };

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
                     "%s: {\"type\": \"text\", \"json_object\" or \"json_schema\", ...} is needed", param);
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

struct asking {
    struct esp_constrain_ask a;
    json_t *one; /* the named tool alone */
    bool calls, form;
};

static bool is_schema(const struct asking *x)
{
    return x->calls || x->a.gen->form == ESP_FORM_SCHEMA;
}

static void refuse(const struct asking *x, const esp_error *err)
{
    struct esp_api_error *e = x->a.e;
    const char *param = x->form ? x->a.gen->form_param : "tools";

    if (err->status == ESP_ENOMEM || err->status == ESP_ECANCELLED)
        esp_api_fail_status(e, param, err);
    else if (err->status == ESP_ESTATE)
        esp_api_fail(e, "queue_full", param, "%s: %s", param, err->message);
    else
        esp_api_fail(e,
                     err->status == ESP_ENOFIT                         ? "grammar_too_large"
                     : err->status == ESP_EUNSUPPORTED && is_schema(x) ? "schema_unsupported"
                                                                       : "invalid_grammar",
                     param, "%s: %s", param, err->message);
}

static void got(void *user, struct esp_grammar *g, const esp_error *err)
{
    struct asking *x = user;

    if (g)
        x->a.gen->grammar = esp_grammar_ref(g);
    else
        refuse(x, err);
    x->a.done(x->a.user);
    json_decref(x->one);
    esp_free(x);
}

/* The form: behind thinking, or from the first token on. Calls may come instead of it. */
static void form_source(const struct asking *x, struct esp_grammar_source *src)
{
    struct esp_gen *g = x->a.gen;
    const unsigned flags = (g->form_strict ? 0u : ESP_SCHEMA_OPEN) |
                           (g->form_compact ? ESP_SCHEMA_COMPACT : 0u) |
                           (x->a.thinking ? ESP_SCHEMA_LEAD : 0u);
    const uint32_t end_think = esp_grammars_token(x->a.s->grammars, "</think>"),
                   call = esp_grammars_token(x->a.s->grammars, "<tool_call>");

    src->form = g->form;
    src->flags = g->form == ESP_FORM_SCHEMA ? flags : 0;
    src->value = g->form_value;
    if (x->a.thinking && end_think != UINT32_MAX) {
        g->match.trigger[0] = end_think;
        g->match.n_trigger = 1;
        g->match.must_start = true;
        if (x->calls && call != UINT32_MAX) {
            g->match.ban[0] = call;
            g->match.n_ban = 1;
        }
    }
    if (x->calls) {
        src->tools = x->a.p->tools;
        src->tool_flags = ESP_TOOLS_LEAD | (g->parallel_calls ? ESP_TOOLS_SEVERAL : 0u);
    }
}

/* Calls: when the model begins one, or from the start of its answer on where the request asks for one. False:
 * the vocabulary has nothing to go by. */
static bool calls_source(struct asking *x, struct esp_grammar_source *src)
{
    const struct esp_chat_params *p = x->a.p;
    struct esp_gen *g = x->a.gen;
    const bool forced = p->tool_choice == ESP_TOOLS_REQUIRED || p->tool_choice == ESP_TOOLS_NAMED;
    const uint32_t end_think = esp_grammars_token(x->a.s->grammars, "</think>"),
                   call = esp_grammars_token(x->a.s->grammars, "<tool_call>");

    if (call == UINT32_MAX || (x->a.thinking && end_think == UINT32_MAX))
        return false;
    src->tools = p->tools;
    src->tool_flags = forced ? ESP_TOOLS_LEAD : ESP_TOOLS_BODY;
    if (forced && g->parallel_calls)
        src->tool_flags |= ESP_TOOLS_SEVERAL;
    if (p->tool_choice == ESP_TOOLS_NAMED)
        src->tools = x->one =
            json_pack("[{s:s,s:O}]", "type", "function", "function", esp_tool_find(p->tools, p->tool_name));
    if (forced && !x->a.thinking)
        return true;
    g->match.trigger[0] = forced ? end_think : call;
    g->match.n_trigger = 1;
    g->match.must_start = forced;
    g->match.again = !forced;
    if (forced) {
        g->match.ban[0] = call;
        g->match.n_ban = 1;
    }
    return true;
}

void esp_constrain_compile(const struct esp_constrain_ask *ask)
{
    const struct esp_chat_params *p = ask->p;
    const bool calls = p && p->tools && p->tool_choice != ESP_TOOLS_NONE,
               forced = calls && p->tool_choice != ESP_TOOLS_AUTO;
    struct esp_grammar_source src = {.form = ESP_FORM_FREE, .strict = ask->s->o.strict_tools};
    struct asking *x;

    if (!calls && ask->gen->form == ESP_FORM_FREE) {
        ask->done(ask->user);
        return;
    }
    x = esp_alloc(sizeof *x);
    if (!x) {
        esp_api_fail(ask->e, "device_lost", NULL, "no memory for the request");
        ask->done(ask->user);
        return;
    }
    x->a = *ask;
    x->calls = calls;
    x->form = ask->gen->form != ESP_FORM_FREE && !forced; /* a call that must come is no text to be held */
    if (x->form) {
        form_source(x, &src);
    } else if (!calls_source(x, &src)) {
        esp_free(x);
        ask->done(ask->user);
        return;
    }
    esp_grammars_get(ask->s->grammars, &src, got, x);
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
