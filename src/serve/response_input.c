/*
 * Items that belong to one turn of the assistant (reasoning, message, calls) become one message.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/response_input.h"

#include <stdio.h>
#include <string.h>

#include "serve/replay.h"

struct reader {
    json_t *out;
    json_t *turn; /* the assistant's message being put together, or NULL */
    struct esp_gen *g;
    struct esp_api_error *e;
};

static void put_turn(struct reader *r)
{
    if (r->turn)
        json_array_append_new(r->out, r->turn);
    r->turn = NULL;
}

static json_t *turn(struct reader *r)
{
    if (!r->turn)
        r->turn = json_pack("{s:s,s:s}", "role", "assistant", "content", "");
    return r->turn;
}

static bool missing(struct reader *r, const char *at, const char *field)
{
    return esp_api_fail(r->e, "missing_field", at, "%s.%s: a string is needed", at, field);
}

static bool add_message(struct reader *r, const json_t *item, const char *at)
{
    const char *role = json_string_value(json_object_get(item, "role"));
    json_t *content = json_object_get(item, "content");

    if (!role)
        return missing(r, at, "role");
    if (r->turn && (json_object_get(r->turn, "tool_calls") || json_object_get(r->turn, "said")))
        put_turn(r);
    if (strcmp(role, "assistant") == 0) {
        json_object_set_new(turn(r), "said", json_true()); /* one message a turn; templates do not read it */
        if (content)
            json_object_set(turn(r), "content", content);
        return true;
    }
    put_turn(r);
    json_array_append_new(r->out, json_pack("{s:s,s:O*}", "role", role, "content", content));
    return true;
}

static bool add_call(struct reader *r, const json_t *item, const char *at, bool custom)
{
    json_t *name = json_object_get(item, "name"),
           *args = json_object_get(item, custom ? "input" : "arguments"), *calls,
           *space = json_object_get(item, "namespace"), *status = json_object_get(item, "status");

    if (!json_is_string(name))
        return missing(r, at, "name");
    if (json_is_string(status) && strcmp(json_string_value(status), "incomplete") == 0) {
        esp_gen_warn(r->g, "a call that had been cut off was left out");
        return true;
    }
    calls = json_object_get(turn(r), "tool_calls");
    if (!calls) {
        calls = json_array();
        json_object_set_new(turn(r), "tool_calls", calls);
    }
    json_array_append_new(
        calls, json_pack("{s:O*,s:s,s:{s:o,s:o*}}", "id", json_object_get(item, "call_id"), "type",
                         "function", "function", "name",
                         json_is_string(space)
                             ? json_sprintf("%s.%s", json_string_value(space), json_string_value(name))
                             : json_incref(name),
                         "arguments", custom ? json_pack("{s:O*}", "input", args) : json_incref(args)));
    return true;
}

static bool add_output(struct reader *r, const json_t *item, const char *at)
{
    json_t *output = json_object_get(item, "output");

    if (!json_is_string(output) && !json_is_array(output))
        return missing(r, at, "output");
    put_turn(r);
    json_array_append_new(r->out, json_pack("{s:s,s:O,s:O*}", "role", "tool", "content", output,
                                            "tool_call_id", json_object_get(item, "call_id")));
    return true;
}

static bool add_reasoning(struct reader *r, const json_t *item)
{
    const char *token = json_string_value(json_object_get(item, "encrypted_content")),
               *id = json_string_value(json_object_get(item, "id"));
    const json_t *content = json_object_get(item, "content"), *part;
    struct esp_strbuf text;
    size_t i;

    put_turn(r);
    if (token && strncmp(token, ESP_REASONING_TOKEN, strlen(ESP_REASONING_TOKEN)) == 0)
        id = token + strlen(ESP_REASONING_TOKEN);
    else if (token)
        esp_gen_warn(r->g, "encrypted_content of another server was ignored");
    esp_strbuf_init(&text, 64u << 20);
    json_array_foreach(content, i, part)
    {
        const json_t *t = json_object_get(part, "text");

        if (json_is_string(t))
            esp_strbuf_add(&text, json_string_value(t), json_string_length(t));
    }
    if (text.len)
        json_object_set_new(turn(r), "reasoning_content", esp_text_json(esp_strbuf_str(&text), text.len));
    if (id)
        json_object_set_new(turn(r), ESP_REPLAY_KEY, json_string(id));
    esp_strbuf_free(&text);
    return true;
}

static bool add_item(struct reader *r, const json_t *item, const char *at)
{
    const char *type = json_string_value(json_object_get(item, "type"));

    if (!json_is_object(item))
        return esp_api_fail(r->e, "invalid_type", at, "%s: %s is not an object", at, esp_show_value(item));
    if (!type || strcmp(type, "message") == 0)
        return add_message(r, item, at);
    if (strcmp(type, "function_call") == 0)
        return add_call(r, item, at, false);
    if (strcmp(type, "custom_tool_call") == 0)
        return add_call(r, item, at, true);
    if (strcmp(type, "function_call_output") == 0 || strcmp(type, "custom_tool_call_output") == 0)
        return add_output(r, item, at);
    if (strcmp(type, "reasoning") == 0)
        return add_reasoning(r, item);
    esp_gen_warn(r->g, "an input item of an unknown type was skipped");
    return true;
}

bool esp_response_items(const json_t *input, json_t *messages, struct esp_gen *g, struct esp_api_error *e)
{
    struct reader r = {.out = messages, .g = g, .e = e};
    const json_t *item;
    char at[32];
    size_t i;

    if (json_is_string(input)) {
        json_array_append_new(messages, json_pack("{s:s,s:O}", "role", "user", "content", input));
        return true;
    }
    if (!json_is_array(input))
        return esp_api_fail(e, input ? "invalid_type" : "missing_field", "input",
                            "input: a string or an array of items is needed");
    json_array_foreach(input, i, item)
    {
        snprintf(at, sizeof at, "input[%zu]", i);
        if (!add_item(&r, item, at))
            break;
    }
    put_turn(&r);
    return !e->http;
}

/* ---- tools ---- */

static void add_function(json_t *out, const json_t *t, const char *space)
{
    json_t *name = json_object_get(t, "name");

    json_array_append_new(
        out, json_pack("{s:s,s:{s:o*,s:O*,s:O*,s:O*}}", "type", "function", "function", "name",
                       space && json_is_string(name) ? json_sprintf("%s.%s", space, json_string_value(name))
                                                     : json_incref(name),
                       "description", json_object_get(t, "description"), "parameters",
                       json_object_get(t, "parameters"), "strict", json_object_get(t, "strict")));
}

json_t *esp_response_tools(const json_t *list, json_t *custom, struct esp_gen *g)
{
    json_t *out = json_array(), *t, *inner;
    size_t i, k;

    json_array_foreach(list, i, t)
    {
        const char *type = json_string_value(json_object_get(t, "type")),
                   *name = json_string_value(json_object_get(t, "name"));

        if (!type || strcmp(type, "function") == 0) {
            add_function(out, t, NULL);
        } else if (strcmp(type, "custom") == 0 && name) {
            json_object_set_new(custom, name, json_true());
            json_array_append_new(out,
                                  json_pack("{s:s,s:{s:s,s:O*,s:{s:s,s:{s:{s:s}},s:[s]}}}", "type",
                                            "function", "function", "name", name, "description",
                                            json_object_get(t, "description"), "parameters", "type", "object",
                                            "properties", "input", "type", "string", "required", "input"));
        } else if (strcmp(type, "namespace") == 0 && name) {
            json_array_foreach(json_object_get(t, "tools"), k, inner)
            {
                add_function(out, inner, name);
            }
        } else {
            esp_gen_warn(g, "a tool that only a hosted service could run was dropped");
        }
    }
    return out;
}
