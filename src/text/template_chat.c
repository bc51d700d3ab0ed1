/*
 * Chats: from an OpenAI-style conversation to a template's variables. Everything a template could trip over
 * is checked here, so that a caller's mistake is reported by the name of its field and not by a line of the
 * template.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/template.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/limits.h"

static const char *type_name(const json_t *j)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};

    return j ? names[json_typeof(j)] : "missing";
}

static esp_status check_content(const json_t *content, size_t i, esp_error *err)
{
    if (!content || json_is_null(content) || json_is_string(content))
        return ESP_OK;
    if (!json_is_array(content))
        return esp_fail(err, ESP_EINVAL,
                        "messages[%zu].content is %s, a string, null or an array of objects is accepted", i,
                        type_name(content));
    for (size_t k = 0; k < json_array_size(content); k++)
        if (!json_is_object(json_array_get(content, k)))
            return esp_fail(err, ESP_EINVAL,
                            "messages[%zu].content[%zu] is %s, only objects are accepted as parts", i, k,
                            type_name(json_array_get(content, k)));
    return ESP_OK;
}

/* The mapping that arguments given as JSON text stand for; *out is a new reference. */
static esp_status parse_arguments(const json_t *text, const char *where, json_t **out, esp_error *err)
{
    const char *s = json_string_value(text);
    size_t len = json_string_length(text), space = strspn(s, " \t\r\n");

    if (space == len) { /* some clients send "" for a call without arguments */
        *out = json_object();
        return *out ? ESP_OK : esp_fail(err, ESP_ENOMEM, "%s: no memory", where);
    }
    if (esp_json_parse(out, s, len, where, ESP_JSON_NO_DUPLICATES, err) != ESP_OK)
        return err && err->status == ESP_ENOMEM
                   ? ESP_ENOMEM
                   : esp_fail_in(err, ESP_EINVAL, "arguments are not a JSON object");
    if (json_is_object(*out))
        return ESP_OK;
    esp_fail(err, ESP_EINVAL, "%s holds %s as JSON text, an object is required", where, type_name(*out));
    json_decref(*out);
    return ESP_EINVAL;
}

/* {function: {name, arguments}} or {name, arguments}. */
static esp_status check_call(const json_t *call, size_t i, size_t k, esp_error *err)
{
    const json_t *function = json_object_get(call, "function"), *holder = function ? function : call;
    const char *dot = function ? ".function" : "";
    const json_t *name = json_object_get(holder, "name");

    if (!json_is_object(holder))
        return esp_fail(err, ESP_EINVAL, "messages[%zu].tool_calls[%zu]%s is %s, an object is required", i, k,
                        dot, type_name(holder));
    if (!json_is_string(name))
        return esp_fail(err, ESP_EINVAL, "messages[%zu].tool_calls[%zu]%s.name is %s, a string is required",
                        i, k, dot, type_name(name));
    return ESP_OK;
}

/* Arguments as a mapping; *out is a new reference. */
static esp_status convert_arguments(const json_t *arguments, const char *where, json_t **out, esp_error *err)
{
    if (json_is_string(arguments))
        return parse_arguments(arguments, where, out, err);
    if (arguments && !json_is_null(arguments) && !json_is_object(arguments))
        return esp_fail(err, ESP_EINVAL, "%s is %s, an object or JSON text of one is required", where,
                        type_name(arguments));
    *out = json_is_object(arguments) ? json_incref((json_t *)(uintptr_t)arguments) : json_object();
    return *out ? ESP_OK : esp_fail(err, ESP_ENOMEM, "%s: no memory", where);
}

/* A copy of a call with its arguments as a mapping. */
static esp_status convert_call(const json_t *call, size_t i, size_t k, json_t **out, esp_error *err)
{
    const json_t *function = json_object_get(call, "function");
    json_t *copy, *inner, *arguments = NULL;
    char where[96];
    int failed;

    ESP_TRY(check_call(call, i, k, err));
    snprintf(where, sizeof where, "messages[%zu].tool_calls[%zu]%s.arguments", i, k,
             function ? ".function" : "");
    ESP_TRY(
        convert_arguments(json_object_get(function ? function : call, "arguments"), where, &arguments, err));
    copy = json_copy((json_t *)(uintptr_t)call); /* shallow; jansson's copy does not write to its argument */
    inner = function ? json_copy((json_t *)(uintptr_t)function) : json_incref(copy);
    failed = !copy || json_object_set_new(inner, "arguments", arguments) != 0;
    failed |= function && json_object_set(copy, "function", inner) != 0;
    json_decref(inner);
    if (failed) {
        json_decref(copy);
        return esp_fail(err, ESP_ENOMEM, "%s: no memory", where);
    }
    *out = copy;
    return ESP_OK;
}

static esp_status convert_calls(const json_t *calls, size_t i, json_t **out, esp_error *err)
{
    json_t *list;

    if (!json_is_array(calls))
        return esp_fail(err, ESP_EINVAL, "messages[%zu].tool_calls is %s, an array is required", i,
                        type_name(calls));
    list = json_array();
    if (!list)
        return esp_fail(err, ESP_ENOMEM, "messages[%zu].tool_calls: no memory", i);
    for (size_t k = 0; k < json_array_size(calls); k++) {
        json_t *call = NULL;
        esp_status s = convert_call(json_array_get(calls, k), i, k, &call, err);

        if (s == ESP_OK && json_array_append_new(list, call) != 0)
            s = esp_fail(err, ESP_ENOMEM, "messages[%zu].tool_calls: no memory", i);
        if (s != ESP_OK) {
            json_decref(list);
            return s;
        }
    }
    *out = list;
    return ESP_OK;
}

/* The message itself, or a copy with converted calls; *out is a new reference. */
static esp_status convert_message(const json_t *m, size_t i, json_t **out, esp_error *err)
{
    const json_t *role = json_object_get(m, "role"), *calls = json_object_get(m, "tool_calls");
    json_t *list = NULL, *copy;

    if (!json_is_object(m))
        return esp_fail(err, ESP_EINVAL, "messages[%zu] is %s, an object is required", i, type_name(m));
    if (!json_is_string(role))
        return esp_fail(err, ESP_EINVAL, "messages[%zu].role is %s, a string is required", i,
                        type_name(role));
    ESP_TRY(check_content(json_object_get(m, "content"), i, err));
    if (!calls || json_is_null(calls)) {
        *out = json_incref((json_t *)(uintptr_t)m);
        return ESP_OK;
    }
    ESP_TRY(convert_calls(calls, i, &list, err));
    copy = json_copy((json_t *)(uintptr_t)m);
    if (json_object_set_new(copy, "tool_calls", list) != 0) {
        json_decref(copy);
        return esp_fail(err, ESP_ENOMEM, "messages[%zu]: no memory", i);
    }
    *out = copy;
    return ESP_OK;
}

static esp_status convert_messages(const json_t *messages, json_t **out, esp_error *err)
{
    json_t *list;

    if (!json_is_array(messages))
        return esp_fail(err, ESP_EINVAL, "messages is %s, an array is required", type_name(messages));
    list = json_array();
    if (!list)
        return esp_fail(err, ESP_ENOMEM, "messages: no memory");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *m = NULL;
        esp_status s = convert_message(json_array_get(messages, i), i, &m, err);

        if (s == ESP_OK && json_array_append_new(list, m) != 0)
            s = esp_fail(err, ESP_ENOMEM, "messages: no memory");
        if (s != ESP_OK) {
            json_decref(list);
            return s;
        }
    }
    *out = list;
    return ESP_OK;
}

static esp_status check_tools(const json_t *tools, esp_error *err)
{
    if (!json_is_array(tools))
        return esp_fail(err, ESP_EINVAL, "tools is %s, an array of objects is required", type_name(tools));
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!json_is_object(json_array_get(tools, i)))
            return esp_fail(err, ESP_EINVAL, "tools[%zu] is %s, an object is required", i,
                            type_name(json_array_get(tools, i)));
    return ESP_OK;
}

static esp_status check_kwargs(const json_t *kwargs, esp_error *err)
{
    if (!kwargs)
        return ESP_OK;
    if (!json_is_object(kwargs))
        return esp_fail(err, ESP_EINVAL, "template variables are %s, an object is required",
                        type_name(kwargs));
    if (json_object_get(kwargs, "messages") || json_object_get(kwargs, "tools"))
        return esp_fail(err, ESP_EINVAL,
                        "template variables cannot set \"%s\", which the request has of its own",
                        json_object_get(kwargs, "messages") ? "messages" : "tools");
    return ESP_OK;
}

/* {messages, tools, add_generation_prompt, kwargs...}; takes the reference to messages. */
static json_t *build_context(const struct esp_chat *chat, json_t *messages, const json_t *tools)
{
    json_t *c = json_object();
    int failed = json_object_set_new(c, "messages", messages);

    failed |= json_object_set_new(c, "tools", tools ? json_incref((json_t *)(uintptr_t)tools) : json_null());
    failed |= json_object_set_new(c, "add_generation_prompt", json_boolean(chat->add_generation_prompt));
    if (chat->kwargs)
        failed |= json_object_update(c, (json_t *)(uintptr_t)chat->kwargs);
    if (failed) {
        json_decref(c);
        return NULL;
    }
    return c;
}

static json_t *build_trusted(const struct esp_chat *chat)
{
    json_t *t = json_object();
    int failed = json_object_set_new(t, "bos_token", json_string(chat->bos_token ? chat->bos_token : ""));

    failed |= json_object_set_new(t, "eos_token", json_string(chat->eos_token ? chat->eos_token : ""));
    if (chat->opts && chat->opts->trusted)
        failed |= json_object_update(t, (json_t *)(uintptr_t)chat->opts->trusted);
    if (failed) {
        json_decref(t);
        return NULL;
    }
    return t;
}

esp_status esp_template_chat(const struct esp_template *t, const struct esp_chat *chat,
                             struct esp_strbuf *out, struct esp_text_spans *spans, esp_error *err)
{
    const json_t *tools = chat->tools && !json_is_null(chat->tools) ? chat->tools : NULL;
    struct esp_template_opts opts = {0};
    json_t *messages = NULL, *context, *trusted;
    esp_error local = {0}; /* the status of a nested parse is needed even when the caller wants no message */
    esp_status s;

    err = err ? err : &local;
    if (tools)
        ESP_TRY(check_tools(tools, err));
    if (tools && json_array_size(tools) == 0)
        tools = NULL;
    ESP_TRY(check_kwargs(chat->kwargs, err));
    ESP_TRY(convert_messages(chat->messages, &messages, err));
    context = build_context(chat, messages, tools);
    trusted = build_trusted(chat);
    if (chat->opts)
        opts = *chat->opts;
    opts.trusted = trusted;
    s = context && trusted
            ? esp_template_render(t, context, &opts, out, spans, err)
            : esp_fail(err, ESP_ENOMEM, "%s: no memory for the conversation", esp_template_name(t));
    json_decref(context);
    json_decref(trusted);
    return s;
}
