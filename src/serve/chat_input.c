/*
 * What every chat dialect reads in the end: thinking switches, tools, and messages, which are brought into
 * one plain form (roles, text content, one system message in front).
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>

#include "text/toolvalue.h"

#include "serve/marks.h"
#include "serve/params.h"
#include "serve/tool_history.h"

enum { MAX_TOOLS = 1024, MAX_TOOL_NAME = 128 };

void esp_chat_init(struct esp_chat_params *p, const struct esp_server *s)
{
    memset(p, 0, sizeof *p);
    p->kwargs = json_object();
    p->thinking = s->o.thinking == ESP_THINKING_MODEL ? -1 : s->o.thinking == ESP_THINKING_ON;
    p->budget = s->o.thinking_budget;
    p->effort_budgets = s->o.effort_budgets;
    p->include_reasoning = true;
    if (s->o.stable_history)
        json_object_set_new(p->kwargs, "preserve_thinking", json_true());
}

void esp_chat_free(struct esp_chat_params *p)
{
    json_decref(p->messages);
    json_decref(p->tools);
    json_decref(p->kwargs);
}

/* ---- thinking ---- */

static void read_effort(struct esp_fields *f, const char *name, struct esp_chat_params *p)
{
    int word = 0;

    if (!esp_field_word(f, name, "none|minimal|low|medium|high|xhigh|max", &word))
        return;
    p->thinking = word > 0;
    if (word > 0 && p->effort_budgets[word - 1] > 0)
        p->budget = p->effort_budgets[word - 1];
}

static void read_thinking_object(struct esp_fields *f, struct esp_chat_params *p)
{
    const json_t *object = NULL;
    struct esp_fields t;
    int type = 0;

    if (!esp_field_object(f, "thinking", &object))
        return;
    esp_fields_init(&t, object, "thinking.", f->e);
    if (esp_field_word(&t, "type", "disabled|enabled|adaptive", &type))
        p->thinking = type > 0;
    esp_field_int(&t, "budget_tokens", -1, INT32_MAX, &p->budget);
}

void esp_chat_read_thinking(struct esp_fields *f, struct esp_chat_params *p)
{
    static const char *const budgets[] = {"thinking_budget", "reasoning_budget", "reasoning_budget_tokens",
                                          "thinking_token_budget", "thinking_budget_tokens"};
    const json_t *kwargs = NULL, *reasoning = NULL;
    struct esp_fields r;
    bool on = false;

    read_thinking_object(f, p);
    if (esp_field_object(f, "reasoning", &reasoning)) {
        esp_fields_init(&r, reasoning, "reasoning.", f->e);
        if (esp_field_bool(&r, "enabled", &on))
            p->thinking = on;
        esp_field_int(&r, "max_tokens", -1, INT32_MAX, &p->budget);
    }
    if (esp_field_bool(f, "enable_thinking", &on))
        p->thinking = on;
    if (esp_field_object(f, "chat_template_kwargs", &kwargs)) {
        struct esp_fields k;

        esp_fields_init(&k, kwargs, "chat_template_kwargs.", f->e);
        if (esp_field_bool(&k, "enable_thinking", &on))
            p->thinking = on;
        json_object_update(p->kwargs, (json_t *)kwargs);
    }
    if (reasoning)
        read_effort(&r, "effort", p);
    read_effort(f, "reasoning_effort", p);
    for (size_t i = 0; i < sizeof budgets / sizeof budgets[0]; i++)
        esp_field_int(f, budgets[i], -1, INT32_MAX, &p->budget);
}

/* ---- tools ---- */

static bool check_tool(struct esp_fields *f, const json_t *tool, size_t i)
{
    const json_t *fn = json_object_get(tool, "function");
    const char *type = json_string_value(json_object_get(tool, "type")),
               *name = json_string_value(json_object_get(fn, "name"));
    const json_t *parameters = json_object_get(fn, "parameters");
    char at[64];

    snprintf(at, sizeof at, "tools[%zu]", i);
    if (!json_is_object(tool) || (type && strcmp(type, "function") != 0) || !json_is_object(fn))
        return esp_api_fail(f->e, "invalid_value", at,
                            "%s: {\"type\":\"function\",\"function\":{...}} is accepted", at);
    if (!name || !*name || strlen(name) > MAX_TOOL_NAME)
        return esp_api_fail(f->e, "invalid_value", at,
                            "%s.function.name: a string of 1 to %d characters is needed", at, MAX_TOOL_NAME);
    for (const char *c = name; *c; c++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-", *c))
            return esp_api_fail(f->e, "invalid_value", at,
                                "%s.function.name: '%.128s'; letters, digits and _ . : - are accepted", at,
                                name);
    if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
        return esp_api_fail(f->e, "invalid_type", at,
                            "%s.function.parameters: a JSON Schema object is needed", at);
    return true;
}

static bool has_tool(const json_t *tools, const char *name)
{
    return esp_tool_find(tools, name) != NULL;
}

static void read_choice(struct esp_fields *f, struct esp_chat_params *p)
{
    const json_t *v = esp_field_any(f, "tool_choice");
    const char *name;
    int word = 0;

    if (!v)
        return;
    if (json_is_string(v)) {
        if (esp_field_word(f, "tool_choice", "auto|none|required", &word))
            p->tool_choice = (enum esp_tool_choice)word;
    } else {
        name = json_string_value(json_object_get(json_object_get(v, "function"), "name"));
        if (!name)
            name = json_string_value(json_object_get(v, "name"));
        if (!name) {
            esp_api_fail(f->e, "invalid_value", "tool_choice",
                         "tool_choice: %s; \"auto\", \"none\", \"required\" or "
                         "{\"type\":\"function\",\"function\":{\"name\":...}} is accepted",
                         esp_show_value(v));
            return;
        }
        if (!has_tool(p->tools, name)) {
            esp_api_fail(f->e, "invalid_value", "tool_choice",
                         "tool_choice: '%.128s' is not one of the tools", name);
            return;
        }
        p->tool_choice = ESP_TOOLS_NAMED;
        snprintf(p->tool_name, sizeof p->tool_name, "%s", name);
    }
    if (p->tool_choice == ESP_TOOLS_REQUIRED && !p->tools)
        esp_api_fail(f->e, "invalid_value", "tool_choice", "tool_choice: 'required' needs tools");
}

void esp_chat_read_tools(struct esp_fields *f, struct esp_chat_params *p, struct esp_gen *g)
{
    const json_t *list = NULL;
    size_t i;
    json_t *t;

    if (esp_field_array(f, "tools", &list) && json_array_size(list)) {
        if (json_array_size(list) > MAX_TOOLS)
            esp_api_fail(f->e, "invalid_value", "tools", "tools: %zu of them; at most %d are accepted",
                         json_array_size(list), MAX_TOOLS);
        json_array_foreach(list, i, t) if (!f->e->http && !check_tool(f, t, i)) return;
        p->tools = json_incref((json_t *)list);
    }
    read_choice(f, p);
    esp_field_bool(f, "parallel_tool_calls", &g->parallel_calls);
}

/* ---- messages ---- */

static bool add_text(struct esp_strbuf *b, const json_t *text, struct esp_api_error *e, const char *at)
{
    if (!json_is_string(text))
        return esp_api_fail(e, "invalid_type", at, "%s.text: %s is not a string", at, esp_show_value(text));
    return esp_strbuf_add(b, json_string_value(text), json_string_length(text)) ||
           esp_api_fail(e, "request_too_large", at, "%s: the text is too long", at);
}

/* A client's line that changes with every request and would void every cached prefix. */
static bool is_attribution(const json_t *text)
{
    static const char mark[] = "x-anthropic-billing-header:";
    const char *s = json_string_value(text);

    return s && strncmp(s, mark, sizeof mark - 1) == 0;
}

static bool add_part(struct esp_strbuf *b, const json_t *part, const struct esp_server *s,
                     struct esp_api_error *e, const char *at)
{
    const char *type = json_string_value(json_object_get(part, "type"));

    if (!json_is_object(part) || !type)
        return esp_api_fail(e, "invalid_value", at, "%s: {\"type\":...} is needed", at);
    if (strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0 || strcmp(type, "output_text") == 0)
        return add_text(b, json_object_get(part, "text"), e, at);
    if (strcmp(type, "refusal") == 0)
        return add_text(b, json_object_get(part, "refusal"), e, at);
    if (strstr(type, "image") || strstr(type, "video") || strstr(type, "audio") || strstr(type, "file"))
        return esp_api_fail(e, "media_unsupported", at,
                            "%s: '%.64s' parts are not supported; %.128s is served for text", at, type,
                            s->o.model_id);
    return esp_api_fail(e, "invalid_value", at, "%s.type: '%.64s' is not known; text is accepted", at, type);
}

/* An array of parts as one string; m gets the marks of its parts. */
static json_t *flat_parts(json_t *m, const struct esp_server *s, struct esp_api_error *e, const char *at,
                          bool strip)
{
    json_t *out = NULL, *marks = NULL, *part;
    struct esp_strbuf b;
    char where[96];
    size_t i;

    esp_strbuf_init(&b, (size_t)s->o.max_prompt_bytes);
    json_array_foreach(json_object_get(m, "content"), i, part)
    {
        if (strip && is_attribution(json_object_get(part, "text")))
            continue;
        snprintf(where, sizeof where, "%s.content[%zu]", at, i);
        if (!add_part(&b, part, s, e, where))
            break;
        esp_marks_note(&marks, part, b.len);
    }
    if (marks)
        json_object_set_new(m, ESP_MARKS_KEY, marks);
    if (!e->http)
        out = esp_text_json(esp_strbuf_str(&b), b.len);
    esp_strbuf_free(&b);
    return out;
}

/* content of any form as one string. */
static json_t *flat_content(json_t *m, const struct esp_server *s, struct esp_api_error *e, const char *at,
                            bool first_system)
{
    const json_t *content = json_object_get(m, "content");
    const bool strip = first_system && !s->o.keep_attribution;

    if (!content || json_is_null(content))
        return json_string("");
    if (json_is_array(content))
        return flat_parts(m, s, e, at, strip);
    if (json_is_string(content) && strip && is_attribution(content)) {
        const char *rest = strchr(json_string_value(content), '\n');

        return json_string(rest ? rest + 1 : "");
    }
    if (json_is_string(content))
        return json_incref((json_t *)content);
    esp_api_fail(e, "invalid_type", at, "%s.content: %s is neither a string nor an array of parts", at,
                 esp_show_value(content));
    return NULL;
}

static const char *role_of(const json_t *m)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    static const char *const as[] = {"system", "system", "user", "assistant", "tool", "tool"};
    const char *role = json_string_value(json_object_get(m, "role"));

    for (size_t i = 0; role && i < sizeof roles / sizeof roles[0]; i++)
        if (strcmp(role, roles[i]) == 0)
            return as[i];
    return NULL;
}

/* Put text in front of the list's first message, a system message. */
static void merge_system(json_t *list, const json_t *content)
{
    json_t *first = json_array_get(list, 0);
    const char *a = json_string_value(json_object_get(first, "content")), *b = json_string_value(content);

    if (*a && *b)
        json_object_set_new(first, "content", json_sprintf("%s\n\n%s", a, b));
    else if (*b)
        json_object_set(first, "content", (json_t *)content);
}

/* m in the form that templates know. */
static json_t *plain_copy(const json_t *m, const char *role, json_t *content)
{
    json_t *copy = json_copy((json_t *)m); /* one level: what is inside is not changed */

    json_object_set_new(copy, "role", json_string(role));
    json_object_set(copy, "content", content);
    if (json_is_string(json_object_get(copy, "reasoning")) && !json_object_get(copy, "reasoning_content"))
        json_object_set(copy, "reasoning_content", json_object_get(copy, "reasoning"));
    if (json_is_null(json_object_get(copy, "tool_calls")))
        json_object_del(copy, "tool_calls");
    return copy;
}

/* The same for one that comes late, also when none stands in front. */
static bool merge_late(json_t *list, const json_t *content)
{
    if (strcmp(json_string_value(json_object_get(json_array_get(list, 0), "role")), "system") != 0)
        json_array_insert_new(list, 0, json_pack("{s:s,s:s}", "role", "system", "content", ""));
    merge_system(list, content);
    return true;
}

static bool add_message(json_t *list, const json_t *m, const char *role, json_t *content,
                        const struct esp_server *s, struct esp_api_error *e, const char *at)
{
    const size_t n = json_array_size(list);
    const char *last = json_string_value(json_object_get(json_array_get(list, n - 1), "role"));
    const bool system = strcmp(role, "system") == 0;
    json_t *copy;

    if (system && n == 1 && strcmp(last, "system") == 0) {
        merge_system(list, content);
        return true;
    }
    if (system && n && s->o.late_system_error)
        return esp_api_fail(e, "invalid_value", at, "%s: a system message must come first", at);
    if (system && n && !s->o.late_system_user)
        return merge_late(list, content);
    if (system && n)
        role = "user";
    copy = plain_copy(m, role, content);
    return json_array_append_new(list, copy) == 0 ||
           esp_api_fail(e, "device_lost", NULL, "no memory for the messages");
}

bool esp_chat_normalize(struct esp_chat_params *p, struct esp_gen *g, const struct esp_server *s,
                        struct esp_api_error *e)
{
    json_t *list = json_array(), *m;
    size_t i;

    json_array_foreach(p->messages, i, m)
    {
        const char *role = role_of(m);
        json_t *content = NULL;
        char at[48];

        snprintf(at, sizeof at, "messages[%zu]", i);
        if (!json_is_object(m))
            esp_api_fail(e, "invalid_type", at, "%s: %s is not an object", at, esp_show_value(m));
        else if (!role)
            esp_api_fail(e, json_object_get(m, "role") ? "invalid_value" : "missing_field", at,
                         "%s.role: %s; system, developer, user, assistant and tool are accepted", at,
                         json_object_get(m, "role") ? esp_show_value(json_object_get(m, "role")) : "missing");
        else
            content = flat_content(m, s, e, at, strcmp(role, "system") == 0 && json_array_size(list) == 0);
        if (content)
            add_message(list, m, role, content, s, e, at);
        json_decref(content);
        if (e->http)
            break;
    }
    if (!e->http)
        esp_history_tools(list, s->o.strict_history, g, e);
    json_decref(p->messages);
    p->messages = list;
    return !e->http;
}

void esp_chat_read_messages(struct esp_fields *f, struct esp_chat_params *p, struct esp_gen *g,
                            const struct esp_server *s)
{
    const json_t *list = NULL, *last;
    bool on = true;

    if (!esp_field_array(f, "messages", &list) && !f->e->http)
        esp_api_fail(f->e, "missing_field", "messages", "messages: missing; an array of messages is needed");
    if (f->e->http)
        return;
    if (json_array_size(list) == 0)
        esp_api_fail(f->e, "invalid_value", "messages", "messages: empty; at least one message is needed");
    if (json_array_size(list) > s->o.max_messages)
        esp_api_fail(f->e, "invalid_value", "messages", "messages: %zu of them; at most %u are accepted",
                     json_array_size(list), s->o.max_messages);
    p->messages = json_incref((json_t *)list);
    last = json_array_get(list, json_array_size(list) - 1);
    if (json_is_true(json_object_get(last, "prefix")))
        p->continue_final = true;
    esp_field_bool(f, "continue_final_message", &p->continue_final);
    if (esp_field_bool(f, "add_generation_prompt", &on))
        p->no_generation_prompt = !on;
    if (!f->e->http && esp_chat_normalize(p, g, s, f->e) && p->continue_final) {
        last = json_array_get(p->messages, json_array_size(p->messages) - 1);
        if (strcmp(json_string_value(json_object_get(last, "role")), "assistant") != 0)
            esp_api_fail(f->e, "invalid_value", "continue_final_message",
                         "continue_final_message: the last message is not the assistant's");
    }
}
