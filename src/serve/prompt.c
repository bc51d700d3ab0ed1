/*
 * Chats to prompts. Messages are brought into one plain form (roles, text content, one system message in
 * front), then the model's template writes the text and says which of it is its own; the tokenizer sees
 * control tokens only there.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "engine/chat.h"
#include "text/toolvalue.h"

#include "serve/constrain.h"
#include "serve/marks.h"
#include "serve/params.h"
#include "serve/replay.h"

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

/* content of any form as one string. */
static json_t *flat_content(json_t *m, const struct esp_server *s, struct esp_api_error *e, const char *at,
                            bool first_system)
{
    const json_t *content = json_object_get(m, "content"), *part;
    struct esp_strbuf b;
    json_t *out = NULL, *marks = NULL;
    char where[96];
    size_t i;

    if (!content || json_is_null(content))
        return json_string("");
    if (json_is_string(content) && first_system && is_attribution(content) && !s->o.keep_attribution) {
        const char *rest = strchr(json_string_value(content), '\n');

        return json_string(rest ? rest + 1 : "");
    }
    if (json_is_string(content))
        return json_incref((json_t *)content);
    if (!json_is_array(content)) {
        esp_api_fail(e, "invalid_type", at, "%s.content: %s is neither a string nor an array of parts", at,
                     esp_show_value(content));
        return NULL;
    }
    esp_strbuf_init(&b, (size_t)s->o.max_prompt_bytes);
    json_array_foreach(content, i, part)
    {
        if (first_system && is_attribution(json_object_get(part, "text")) && !s->o.keep_attribution)
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
    if (system && n && !s->o.late_system_user) {
        if (strcmp(json_string_value(json_object_get(json_array_get(list, 0), "role")), "system") != 0)
            json_array_insert_new(list, 0, json_pack("{s:s,s:s}", "role", "system", "content", ""));
        merge_system(list, content);
        return true;
    }
    if (system && n)
        role = "user";
    copy = json_copy((json_t *)m); /* one level: what is inside is not changed */
    json_object_set_new(copy, "role", json_string(role));
    json_object_set(copy, "content", content);
    if (json_is_string(json_object_get(copy, "reasoning")) && !json_object_get(copy, "reasoning_content"))
        json_object_set(copy, "reasoning_content", json_object_get(copy, "reasoning"));
    if (json_is_null(json_object_get(copy, "tool_calls")))
        json_object_del(copy, "tool_calls");
    return json_array_append_new(list, copy) == 0 ||
           esp_api_fail(e, "device_lost", NULL, "no memory for the messages");
}

bool esp_chat_normalize(struct esp_chat_params *p, struct esp_gen *g, const struct esp_server *s,
                        struct esp_api_error *e)
{
    json_t *list = json_array(), *m;
    size_t i;

    (void)g;
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

/* ---- the prompt ---- */

void esp_prompt_free(struct esp_prompt *p)
{
    esp_ids_free(&p->ids);
    esp_strbuf_free(&p->text);
}

/* The last of the template's own text leaves a <think> open. */
static bool opens_thinking(const struct esp_strbuf *text, const struct esp_text_spans *spans)
{
    const char *s = esp_strbuf_str(text), *open = NULL, *at;

    if (spans->n == 0 || spans->v[spans->n - 1].end != text->len)
        return false;
    at = s + spans->v[spans->n - 1].start;
    while ((at = strstr(at, "<think>")) != NULL)
        open = at++;
    return open && !strstr(open, "</think>");
}

/* Take the end of the last turn off, so that its text goes on. */
static void reopen_turn(const struct esp_server *s, struct esp_ids *ids)
{
    size_t n = ids->n;

    while (n > 0 && !esp_token_is_end(s->model, (esp_token)ids->data[n - 1]))
        n--;
    if (n > 0)
        ids->n = n - 1;
}

static bool encode(struct esp_prompt *out, const struct esp_chat_params *p, const struct esp_server *s,
                   const struct esp_text_spans *spans, struct esp_api_error *e)
{
    const struct esp_replay_input in = {
        .messages = p->messages,
        .text = &out->text,
        .spans = spans,
        .stable = json_is_true(json_object_get(p->kwargs, "preserve_thinking")),
    };
    esp_error err;

    return esp_replay_encode(s->replay, s->model, &in, &out->ids, &err) ||
           esp_api_fail_status(e, "messages", &err);
}

/* What the template wrote behind the last turn's header, if it is of the family's form and short. */
static void note_opening(struct esp_prompt *out)
{
    static const char mark[] = "<|im_start|>assistant\n";
    const char *text = esp_strbuf_str(&out->text), *last = NULL;

    for (const char *at = text; (at = strstr(at, mark)) != NULL; at++)
        last = at;
    if (!last || strlen(last + sizeof mark - 1) + strlen(out->forced) >= sizeof out->opening)
        return;
    snprintf(out->opening, sizeof out->opening, "%s", last + sizeof mark - 1);
}

/* Tool choice as text to begin with. */
static void force_call(struct esp_prompt *out, const struct esp_chat_params *p)
{
    const char *name = p->tool_choice == ESP_TOOLS_NAMED ? p->tool_name : NULL;

    if (p->tool_choice == ESP_TOOLS_REQUIRED && json_array_size(p->tools) == 1)
        name = json_string_value(
            json_object_get(json_object_get(json_array_get(p->tools, 0), "function"), "name"));
    if (p->tool_choice == ESP_TOOLS_NAMED || p->tool_choice == ESP_TOOLS_REQUIRED)
        snprintf(out->forced, sizeof out->forced, "<tool_call>\n<function=%s%s", name ? name : "",
                 name ? ">\n" : "");
}

static bool append_forced(struct esp_prompt *out, const struct esp_server *s, struct esp_api_error *e)
{
    const struct esp_tok_input in = {
        .text = out->forced, .len = strlen(out->forced), .flags = ESP_TOK_TRUST_ALL};
    esp_error err;

    if (!out->forced[0] || out->thinking)
        return true;
    esp_strbuf_puts(&out->text, out->forced);
    return esp_model_encode(s->model, &in, &out->ids, &err) == ESP_OK ||
           esp_api_fail_status(e, "tools", &err);
}

static bool thinks_not(const struct esp_chat_params *p)
{
    return p->thinking == 0 || p->budget == 0 || p->continue_final;
}

static bool ban_openers(const struct esp_chat_params *p, struct esp_gen *g, const struct esp_server *s,
                        bool off, struct esp_api_error *e)
{
    if ((!off || esp_gen_ban(g, s->think)) &&
        (p->tool_choice != ESP_TOOLS_NONE || !p->tools || esp_gen_ban(g, s->tool_call)))
        return true;
    return esp_api_fail(e, "device_lost", NULL, "no memory for the request");
}

static bool render(struct esp_prompt *out, const struct esp_chat_params *p, const struct esp_server *s,
                   struct esp_text_spans *spans, struct esp_api_error *e)
{
    const struct esp_chat chat = {.messages = p->messages,
                                  .tools = p->tools,
                                  .kwargs = p->kwargs,
                                  .add_generation_prompt = !p->no_generation_prompt && !p->continue_final};
    esp_error err;

    if (esp_model_render(s->model, &chat, &out->text, spans, &err) != ESP_OK)
        return esp_api_fail_status(e, "messages", &err);
    if (!encode(out, p, s, spans, e))
        return false;
    out->n_pin = esp_marks_find(s,
                                &(struct esp_marks_input){.messages = p->messages,
                                                          .tools = p->keep_tools,
                                                          .text = esp_strbuf_str(&out->text),
                                                          .len = out->text.len,
                                                          .spans = spans,
                                                          .ids = &out->ids},
                                out->pins);
    if (p->continue_final)
        reopen_turn(s, &out->ids);
    out->continued = p->continue_final;
    out->thinking = !p->no_generation_prompt && opens_thinking(&out->text, spans);
    return true;
}

bool esp_prompt_chat(struct esp_prompt *out, const struct esp_chat_params *p, const struct esp_server *s,
                     struct esp_api_error *e)
{
    const bool off = thinks_not(p);
    struct esp_text_spans spans = {0};
    bool ok;

    if (off || p->thinking > 0)
        json_object_set_new(p->kwargs, "enable_thinking", json_boolean(!off));
    memset(out, 0, sizeof *out);
    esp_strbuf_init(&out->text, (size_t)s->o.max_prompt_bytes);
    esp_ids_init(&out->ids, ESP_LIMIT_TURN_BYTES);
    ok = render(out, p, s, &spans, e);
    esp_text_spans_free(&spans);
    if (!ok)
        esp_prompt_free(out);
    return ok;
}

bool esp_prompt_finish(struct esp_prompt *out, const struct esp_chat_params *p, struct esp_gen *g,
                       const struct esp_server *s, struct esp_api_error *e)
{
    if (!g->grammar)
        force_call(out, p); /* without a grammar that does it */
    if (!append_forced(out, s, e))
        return false;
    if (!p->continue_final && !p->no_generation_prompt)
        note_opening(out);
    return ban_openers(p, g, s, thinks_not(p), e);
}

struct esp_job_opts esp_prompt_job(struct esp_call *c, struct esp_prompt *prompt, struct esp_chat_params *p,
                                   struct esp_gen *g)
{
    const struct esp_job_opts o = {.call = c,
                                   .gen = g,
                                   .prompt = prompt->ids,
                                   .opening = prompt->opening,
                                   .thinking = prompt->thinking && !p->raw_reasoning,
                                   .continued = prompt->continued || p->raw_reasoning,
                                   .calls = p->tools && p->tool_choice != ESP_TOOLS_NONE,
                                   .text_in_thinking = c->s->o.text_in_thinking,
                                   .tools = p->tools,
                                   .think_budget = p->budget,
                                   .forced = prompt->forced[0] ? prompt->forced : NULL,
                                   .pins = prompt->pins,
                                   .n_pin = prompt->n_pin};

    memset(&prompt->ids, 0, sizeof prompt->ids);
    return o;
}

bool esp_prompt_text(struct esp_ids *out, const struct esp_server *s, const char *text, size_t len,
                     bool control, struct esp_api_error *e)
{
    const struct esp_tok_input in = {.text = text, .len = len, .flags = control ? ESP_TOK_TRUST_ALL : 0};
    esp_error err;

    if (len > s->o.max_prompt_bytes)
        return esp_api_fail(e, "request_too_large", "prompt", "prompt: %zu bytes; at most %llu are accepted",
                            len, (unsigned long long)s->o.max_prompt_bytes);
    return esp_model_encode(s->model, &in, out, &err) == ESP_OK || esp_api_fail_status(e, "prompt", &err);
}

bool esp_prompt_ids(struct esp_ids *out, const struct esp_server *s, const json_t *ids, const char *param,
                    struct esp_api_error *e)
{
    size_t i;
    json_t *v;

    json_array_foreach(ids, i, v)
    {
        const json_int_t id = json_integer_value(v);

        if (!json_is_integer(v))
            return esp_api_fail(e, "invalid_type", param, "%s[%zu]: %s is not a token id", param, i,
                                esp_show_value(v));
        if (id < 0 || id >= (json_int_t)s->info.n_vocab)
            return esp_api_fail(e, "invalid_value", param, "%s[%zu]: %lld is not a token id; 0 to %u are",
                                param, i, (long long)id, s->info.n_vocab - 1);
        if (esp_ids_push(out, (uint32_t)id, NULL) != ESP_OK)
            return esp_api_fail(e, "device_lost", param, "no memory for %zu token ids", json_array_size(ids));
    }
    return true;
}
