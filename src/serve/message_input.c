/*
 * Blocks to messages: every message of the client becomes one or several of the chat's, since results of
 * tools are messages of their own there.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/message_input.h"

#include <stdio.h>
#include <string.h>

#include "serve/marks.h"
#include "serve/replay.h"

struct turn { /* one message being read */
    struct esp_api_error *e;
    const struct esp_server *s;
    json_t *out;      /* array of chat messages */
    const char *role; /* user, assistant or system */
    struct esp_strbuf text, thinking;
    json_t *calls;
    const char *signature;
    json_t *marks; /* of the message's cache_control; NULL: none */
    bool any;
};

static void put_turn(struct turn *t)
{
    json_t *m;

    if (!t->any)
        return;
    m = json_pack("{s:s,s:o}", "role", t->role, "content",
                  esp_text_json(esp_strbuf_str(&t->text), t->text.len));
    if (t->thinking.len)
        json_object_set_new(m, "reasoning_content",
                            esp_text_json(esp_strbuf_str(&t->thinking), t->thinking.len));
    if (t->signature)
        json_object_set_new(m, ESP_REPLAY_KEY, json_string(t->signature));
    if (json_array_size(t->calls)) {
        json_object_set_new(m, "tool_calls", t->calls);
        t->calls = json_array();
    }
    if (t->marks)
        json_object_set_new(m, ESP_MARKS_KEY, t->marks);
    t->marks = NULL;
    json_array_append_new(t->out, m);
    esp_strbuf_clear(&t->text);
    esp_strbuf_clear(&t->thinking);
    t->signature = NULL;
    t->any = false;
}

static bool add_text(struct turn *t, struct esp_strbuf *b, const json_t *text, const char *at)
{
    if (!json_is_string(text))
        return esp_api_fail(t->e, "invalid_type", at, "%s: a string is needed, not %s", at,
                            text ? esp_show_value(text) : "nothing");
    t->any = true;
    return esp_strbuf_add(b, json_string_value(text), json_string_length(text)) ||
           esp_api_fail(t->e, "request_too_large", at, "%s: the text is too long", at);
}

/* Text of a tool_result, document or search_result: a string, or an array of text blocks. */
static bool add_nested(struct turn *t, struct esp_strbuf *b, const json_t *content, const char *at)
{
    const json_t *part;
    size_t i;

    if (!content || json_is_null(content))
        return true;
    if (json_is_string(content))
        return add_text(t, b, content, at);
    if (!json_is_array(content))
        return esp_api_fail(t->e, "invalid_type", at, "%s: %s is neither a string nor an array of blocks", at,
                            esp_show_value(content));
    json_array_foreach(content, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));

        if (!type || strcmp(type, "text") != 0)
            return esp_api_fail(t->e,
                                type && strcmp(type, "image") == 0 ? "media_unsupported" : "invalid_value",
                                at, "%s[%zu]: '%.40s' blocks are not supported; %.100s is served for text",
                                at, i, type ? type : "?", t->s->o.model_id);
        if (!add_text(t, b, json_object_get(part, "text"), at))
            return false;
    }
    return true;
}

static bool add_result(struct turn *t, const json_t *block, const char *at)
{
    json_t *marks = NULL;
    struct esp_strbuf b;
    bool ok;

    put_turn(t); /* text in front of a result is a message of its own */
    esp_strbuf_init(&b, (size_t)t->s->o.max_prompt_bytes);
    if (json_is_true(json_object_get(block, "is_error")))
        esp_strbuf_puts(&b, "Error: ");
    ok = add_nested(t, &b, json_object_get(block, "content"), at);
    t->any = false;
    esp_marks_note(&marks, block, b.len);
    if (ok)
        json_array_append_new(t->out, json_pack("{s:s,s:o,s:O*,s:o*}", "role", "tool", "content",
                                                esp_text_json(esp_strbuf_str(&b), b.len), "tool_call_id",
                                                json_object_get(block, "tool_use_id"), ESP_MARKS_KEY, marks));
    else
        json_decref(marks);
    esp_strbuf_free(&b);
    return ok;
}

static bool add_use(struct turn *t, const json_t *block, const char *at)
{
    const json_t *name = json_object_get(block, "name"), *input = json_object_get(block, "input");

    if (!json_is_string(name))
        return esp_api_fail(t->e, "missing_field", at, "%s.name: a string is needed", at);
    if (input && !json_is_object(input))
        return esp_api_fail(t->e, "invalid_type", at, "%s.input: %s is not an object", at,
                            esp_show_value(input));
    t->any = true;
    json_array_append_new(t->calls, json_pack("{s:O*,s:s,s:{s:O,s:o}}", "id", json_object_get(block, "id"),
                                              "type", "function", "function", "name", name, "arguments",
                                              input ? json_incref((json_t *)input) : json_object()));
    return true;
}

static bool add_document(struct turn *t, const json_t *block, const char *at)
{
    const json_t *source = json_object_get(block, "source");
    const char *type = json_string_value(json_object_get(source, "type"));

    if (type && strcmp(type, "text") == 0)
        return add_text(t, &t->text, json_object_get(source, "data"), at);
    if (type && strcmp(type, "content") == 0)
        return add_nested(t, &t->text, json_object_get(source, "content"), at);
    return esp_api_fail(t->e, "media_unsupported", at, "%s.source: only documents of text are supported", at);
}

static bool add_block(struct turn *t, const json_t *block, const char *at)
{
    const char *type = json_string_value(json_object_get(block, "type"));

    if (!type)
        return esp_api_fail(t->e, "invalid_value", at, "%s: {\"type\":...} is needed", at);
    if (strcmp(type, "text") == 0)
        return add_text(t, &t->text, json_object_get(block, "text"), at);
    if (strcmp(type, "tool_result") == 0)
        return add_result(t, block, at);
    if (strcmp(type, "tool_use") == 0)
        return add_use(t, block, at);
    if (strcmp(type, "thinking") == 0) {
        t->signature = json_string_value(json_object_get(block, "signature"));
        return add_text(t, &t->thinking, json_object_get(block, "thinking"), at);
    }
    if (strcmp(type, "redacted_thinking") == 0)
        return true;
    if (strcmp(type, "document") == 0)
        return add_document(t, block, at);
    if (strcmp(type, "search_result") == 0)
        return add_nested(t, &t->text, json_object_get(block, "content"), at);
    if (strcmp(type, "image") == 0)
        return esp_api_fail(t->e, "media_unsupported", at,
                            "%s: images are not supported; %.100s is served for text", at, t->s->o.model_id);
    return esp_api_fail(t->e, "invalid_value", at, "%s.type: '%.64s' is not known", at, type);
}

static bool read_message(struct turn *t, const json_t *m, size_t i)
{
    static const char *const roles[] = {"user", "assistant", "system"};
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content"), *block;
    char at[64];
    size_t k;

    t->role = NULL;
    for (size_t r = 0; role && r < 3; r++)
        if (strcmp(role, roles[r]) == 0)
            t->role = roles[r];
    snprintf(at, sizeof at, "messages[%zu]", i);
    if (!t->role)
        return esp_api_fail(t->e, "invalid_value", at, "%s.role: user and assistant are accepted", at);
    if (json_is_string(content)) {
        add_text(t, &t->text, content, at);
    } else if (json_is_array(content)) {
        json_array_foreach(content, k, block)
        {
            snprintf(at, sizeof at, "messages[%zu].content[%zu]", i, k);
            if (!add_block(t, block, at))
                return false;
            if (t->any)
                esp_marks_note(&t->marks, block, t->text.len);
        }
    } else {
        return esp_api_fail(t->e, content ? "invalid_type" : "missing_field", at,
                            "%s.content: a string or an array of blocks is needed", at);
    }
    put_turn(t);
    return !t->e->http;
}

/* cache_control of the request as a whole: the end of its last message. */
static void mark_all(json_t *messages, struct esp_fields *f)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1),
           *marks = json_object_get(last, ESP_MARKS_KEY);

    json_incref(marks);
    if (last && esp_field_any(f, "cache_control"))
        esp_marks_note(&marks, f->object, json_string_length(json_object_get(last, "content")));
    if (marks)
        json_object_set_new(last, ESP_MARKS_KEY, marks);
}

void esp_message_read(struct esp_call *c, struct esp_fields *f, struct esp_chat_params *p, struct esp_gen *g)
{
    const json_t *list = NULL, *system = esp_field_any(f, "system"), *m;
    struct turn t = {.e = &c->e, .s = c->s, .out = json_array(), .calls = json_array()};
    size_t i;

    esp_strbuf_init(&t.text, (size_t)c->s->o.max_prompt_bytes);
    esp_strbuf_init(&t.thinking, (size_t)c->s->o.max_prompt_bytes);
    if (system)
        json_array_append_new(t.out, json_pack("{s:s,s:O}", "role", "system", "content", system));
    if (!esp_field_array(f, "messages", &list) && !c->e.http)
        esp_api_fail(&c->e, "missing_field", "messages", "messages: missing; an array of messages is needed");
    if (!c->e.http && (json_array_size(list) == 0 || json_array_size(list) > c->s->o.max_messages))
        esp_api_fail(&c->e, "invalid_value", "messages", "messages: %zu of them; 1 to %u are accepted",
                     json_array_size(list), c->s->o.max_messages);
    if (!c->e.http)
        json_array_foreach(list, i, m) if (!read_message(&t, m, i)) break;
    mark_all(t.out, f);
    p->messages = t.out;
    json_decref(t.calls);
    json_decref(t.marks);
    esp_strbuf_free(&t.text);
    esp_strbuf_free(&t.thinking);
    if (!c->e.http && esp_chat_normalize(p, g, c->s, &c->e)) {
        m = json_array_get(p->messages, json_array_size(p->messages) - 1);
        p->continue_final = strcmp(json_string_value(json_object_get(m, "role")), "assistant") == 0;
    }
}

/* Tools in the chat's form, as a body that the chat's reader takes. */
static json_t *chat_tools(const json_t *list, struct esp_chat_params *p, struct esp_gen *g)
{
    json_t *out = json_array(), *t;
    size_t i;

    json_array_foreach(list, i, t)
    {
        json_t *schema = json_object_get(t, "input_schema");
        const double keep = esp_marks_seconds(t);

        p->keep_tools = keep > p->keep_tools ? keep : p->keep_tools;
        if (!schema && json_object_get(t, "type")) {
            esp_gen_warn(g, "a tool that only the service could run was dropped");
            continue;
        }
        json_array_append_new(out, json_pack("{s:s,s:{s:O*,s:O*,s:O*,s:O*}}", "type", "function", "function",
                                             "name", json_object_get(t, "name"), "description",
                                             json_object_get(t, "description"), "parameters", schema,
                                             "strict", json_object_get(t, "strict")));
    }
    return out;
}

void esp_message_read_tools(struct esp_call *c, struct esp_fields *f, struct esp_chat_params *p,
                            struct esp_gen *g)
{
    const json_t *list = NULL, *choice = NULL;
    json_t *body = json_object();
    struct esp_fields inner, k;
    bool no_parallel = false;
    const char *name = NULL;
    int type = 0;

    if (esp_field_array(f, "tools", &list))
        json_object_set_new(body, "tools", chat_tools(list, p, g));
    if (esp_field_object(f, "tool_choice", &choice)) {
        static const char *const words[] = {"auto", "required", "none"};

        esp_fields_init(&k, choice, "tool_choice.", &c->e);
        esp_field_bool(&k, "disable_parallel_tool_use", &no_parallel);
        if (!esp_field_word(&k, "type", "auto|any|none|tool", &type) && !c->e.http)
            esp_api_fail(&c->e, "missing_field", "tool_choice.type",
                         "tool_choice.type: auto, any, none or tool");
        if (type == 3 && !esp_field_string(&k, "name", &name) && !c->e.http)
            esp_api_fail(&c->e, "missing_field", "tool_choice.name", "tool_choice.name: a string is needed");
        if (!c->e.http)
            json_object_set_new(body, "tool_choice",
                                type == 3
                                    ? json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name", name)
                                    : json_string(words[type]));
    }
    esp_fields_init(&inner, body, "", &c->e);
    esp_chat_read_tools(&inner, p, g);
    g->parallel_calls = !no_parallel;
    json_decref(body);
}
