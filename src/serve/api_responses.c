/*
 * /v1/responses: the OpenAI responses dialect. An answer is a list of items; a stream opens, fills and closes
 * them one by one and ends with the whole object. Whole answers go the same way with the events left out.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/mem.h"

#include "serve/constrain.h"
#include "serve/replay.h"
#include "serve/response_input.h"
#include "serve/route.h"
#include "serve/store.h"

enum item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL };

struct response {
    struct esp_gen gen;
    struct esp_chat_params p;
    char id[48], reasoning_id[48];
    int64_t created;
    const char *instructions, *previous;
    bool store, want_summary, want_encrypted;
    json_t *history; /* chat messages without instructions, the new ones included */
    json_t *input;   /* the request's items */
    json_t *custom;  /* names of tools with plain text */
    json_t *output;  /* items so far */
    int64_t sequence;
    /* The item that is open. */
    enum item open;
    char item_id[48];
    struct esp_call_made *made;
    size_t from; /* bytes of the choice's text when it opened */
};

static void free_response(void *answer)
{
    struct response *a = answer;

    esp_gen_free(&a->gen);
    esp_chat_free(&a->p);
    json_decref(a->history);
    json_decref(a->input);
    json_decref(a->custom);
    json_decref(a->output);
    esp_free(a);
}

static struct response *response_of(const struct esp_job *j)
{
    return j->call->answer;
}

/* ---- the object ---- */

static json_t *or_null(const json_t *v)
{
    return v ? json_incref((json_t *)v) : json_null();
}

static json_t *or_other(const json_t *v, json_t *other)
{
    if (!v || json_is_null(v))
        return other;
    json_decref(other);
    return json_incref((json_t *)v);
}

static json_t *text_or_null(const char *s)
{
    return s ? json_string(s) : json_null();
}

/* Keys that come from the request. */
static json_t *request_part(const struct esp_call *c)
{
    const struct response *a = c->answer;
    const json_t *b = c->body, *reasoning = json_object_get(b, "reasoning");

    return json_pack(
        "{s:o,s:b,s:o,s:{s:o,s:o},s:b,s:f,s:f,s:o,s:o,s:o,s:s,s:o,s:o}", "instructions",
        text_or_null(a->instructions), "parallel_tool_calls", a->gen.parallel_calls, "previous_response_id",
        text_or_null(a->previous), "reasoning", "effort", or_null(json_object_get(reasoning, "effort")),
        "summary", or_null(json_object_get(reasoning, "summary")), "store", a->store, "temperature",
        (double)a->gen.sampling.temperature, "top_p", (double)a->gen.sampling.top_p, "text",
        or_other(json_object_get(b, "text"), json_pack("{s:{s:s}}", "format", "type", "text")), "tool_choice",
        or_other(json_object_get(b, "tool_choice"), json_string("auto")), "tools",
        or_other(json_object_get(b, "tools"), json_array()), "truncation", "disabled", "max_output_tokens",
        a->gen.max_tokens >= 0 ? json_integer(a->gen.max_tokens) : json_null(), "metadata",
        or_other(json_object_get(b, "metadata"), json_object()));
}

static json_t *usage_json(const struct esp_job *j)
{
    const struct esp_choice *c = &j->choices[0];

    return json_pack("{s:I,s:{s:I,s:i},s:I,s:{s:I},s:I}", "input_tokens", (json_int_t)j->prompt.n,
                     "input_tokens_details", "cached_tokens", (json_int_t)j->n_cached, "cache_write_tokens",
                     0, "output_tokens", (json_int_t)c->tokens.n, "output_tokens_details", "reasoning_tokens",
                     (json_int_t)c->n_reasoning, "total_tokens",
                     (json_int_t)j->prompt.n + (json_int_t)c->tokens.n);
}

static json_t *object_json(const struct esp_job *j, const char *status)
{
    const struct response *a = response_of(j);
    const bool over = strcmp(status, "in_progress") != 0;
    json_t *v =
        json_pack("{s:s,s:s,s:I,s:o,s:s,s:n,s:n,s:o,s:O}", "id", a->id, "object", "response", "created_at",
                  (json_int_t)a->created, "completed_at",
                  over ? json_integer((json_int_t)time(NULL)) : json_null(), "status", status, "error",
                  "incomplete_details", "model", esp_model_name(j->s, a->gen.adapter), "output", a->output);

    json_object_update_new(v, request_part(j->call));
    json_object_set_new(v, "usage", over ? usage_json(j) : json_null());
    if (strcmp(status, "incomplete") == 0)
        json_object_set_new(v, "incomplete_details", json_pack("{s:s}", "reason", "max_output_tokens"));
    if (strcmp(status, "failed") == 0)
        json_object_set_new(v, "error", json_pack("{s:s,s:s}", "code", j->e.code, "message", j->e.message));
    if (over)
        json_object_set_new(v, "ext", esp_ext_json(j));
    return v;
}

/* ---- events ---- */

/* v gets type and number; released. */
static void send(struct esp_call *c, const char *type, json_t *v)
{
    struct response *a = c->answer;
    char name[64];

    snprintf(name, sizeof name, "response.%s", type);
    if (v && a->gen.stream) {
        json_object_set_new(v, "type", json_string(name));
        json_object_set_new(v, "sequence_number", json_integer(a->sequence++));
        esp_sse_data(c, name, v);
    } else {
        json_decref(v);
    }
}

/* An event of the open item; more: further keys, released. */
static void send_of(struct esp_job *j, const char *type, bool part, json_t *more)
{
    const struct response *a = response_of(j);
    json_t *v;

    if (!a->gen.stream) {
        json_decref(more);
        return;
    }
    v = json_pack("{s:s,s:I}", "item_id", a->item_id, "output_index", (json_int_t)json_array_size(a->output));
    if (part)
        json_object_set_new(v, "content_index", json_integer(0));
    json_object_update_new(v, more);
    send(j->call, type, v);
}

static void send_item(struct esp_job *j, const char *type, json_t *item)
{
    send(j->call, type,
         json_pack("{s:I,s:o}", "output_index", (json_int_t)json_array_size(response_of(j)->output), "item",
                   item));
}

/* ---- items ---- */

static json_t *reasoning_json(const struct response *a, const char *text, size_t len, const char *status)
{
    json_t *v = json_pack("{s:s,s:s,s:[],s:[],s:s}", "type", "reasoning", "id", a->item_id, "summary",
                          "content", "status", status);

    if (len)
        json_array_append_new(json_object_get(v, "content"), json_pack("{s:s,s:o}", "type", "reasoning_text",
                                                                       "text", esp_text_json(text, len)));
    if (len && a->want_summary)
        json_array_append_new(json_object_get(v, "summary"), json_pack("{s:s,s:o}", "type", "summary_text",
                                                                       "text", esp_text_json(text, len)));
    if (len && a->want_encrypted)
        json_object_set_new(v, "encrypted_content", json_sprintf("%s%s", ESP_REASONING_TOKEN, a->item_id));
    return v;
}

static json_t *part_json(const char *text, size_t len, json_t *rows)
{
    return json_pack("{s:s,s:o,s:[],s:o}", "type", "output_text", "text", esp_text_json(text, len),
                     "annotations", "logprobs", rows ? rows : json_array());
}

static json_t *message_json(const struct response *a, json_t *part, const char *status)
{
    json_t *v = json_pack("{s:s,s:s,s:s,s:s,s:[]}", "type", "message", "id", a->item_id, "role", "assistant",
                          "status", status, "content");

    if (part)
        json_array_append_new(json_object_get(v, "content"), part);
    return v;
}

static bool is_custom(const struct response *a, const struct esp_call_made *made)
{
    return json_object_get(a->custom, made->name) != NULL;
}

/* The plain text of a custom tool's one argument. */
static json_t *custom_input(const struct esp_call_made *made)
{
    json_t *args = NULL, *input;

    if (esp_json_parse(&args, esp_strbuf_str(&made->args), made->args.len, "arguments", 0, NULL) != ESP_OK)
        return json_string("");
    input = json_object_get(args, "input");
    input = json_is_string(input) ? json_incref(input) : json_string("");
    json_decref(args);
    return input;
}

static json_t *call_json(const struct response *a, const struct esp_call_made *made, bool full,
                         const char *status)
{
    const char *dot = strchr(made->name, '.');
    json_t *v;

    if (is_custom(a, made))
        return json_pack("{s:s,s:s,s:s,s:s,s:o,s:s}", "type", "custom_tool_call", "id", a->item_id, "call_id",
                         made->id, "name", made->name, "input", full ? custom_input(made) : json_string(""),
                         "status", status);
    v = json_pack("{s:s,s:s,s:s,s:s,s:o,s:s}", "type", "function_call", "id", a->item_id, "call_id", made->id,
                  "name", dot ? dot + 1 : made->name, "arguments",
                  full ? esp_text_json(esp_strbuf_str(&made->args), made->args.len) : json_string(""),
                  "status", status);
    if (dot)
        json_object_set_new(v, "namespace", json_stringn(made->name, (size_t)(dot - made->name)));
    return v;
}

static void close_reasoning(struct esp_choice *c, const char *status)
{
    struct response *a = response_of(c->job);
    const char *text = esp_strbuf_str(&c->reasoning) + a->from;
    const size_t len = c->reasoning.len - a->from;
    json_t *item = reasoning_json(a, text, len, status);

    send_of(c->job, "reasoning_text.done", true, json_pack("{s:o}", "text", esp_text_json(text, len)));
    send_of(c->job, "content_part.done", true,
            json_pack("{s:{s:s,s:o}}", "part", "type", "reasoning_text", "text", esp_text_json(text, len)));
    if (a->want_summary) {
        send_of(
            c->job, "reasoning_summary_part.added", false,
            json_pack("{s:i,s:{s:s,s:s}}", "summary_index", 0, "part", "type", "summary_text", "text", ""));
        send_of(c->job, "reasoning_summary_text.delta", false,
                json_pack("{s:i,s:o}", "summary_index", 0, "delta", esp_text_json(text, len)));
        send_of(c->job, "reasoning_summary_text.done", false,
                json_pack("{s:i,s:o}", "summary_index", 0, "text", esp_text_json(text, len)));
        send_of(c->job, "reasoning_summary_part.done", false,
                json_pack("{s:i,s:{s:s,s:o}}", "summary_index", 0, "part", "type", "summary_text", "text",
                          esp_text_json(text, len)));
    }
    send_item(c->job, "output_item.done", json_incref(item));
    json_array_append_new(a->output, item);
}

static void close_message(struct esp_choice *c, const char *status)
{
    struct response *a = response_of(c->job);
    const char *text = esp_strbuf_str(&c->content) + a->from;
    const size_t len = c->content.len - a->from;
    json_t *rows = json_array(), *part, *item;

    for (size_t i = 0; c->job->gen->logprobs && i < c->n_row; i++)
        if (c->rows[i].start >= a->from && c->rows[i].start < c->content.len)
            json_array_append(rows, c->rows[i].entry);
    part = part_json(text, len, json_incref(rows));
    item = message_json(a, json_incref(part), status);
    send_of(c->job, "output_text.done", true,
            json_pack("{s:o,s:O}", "text", esp_text_json(text, len), "logprobs", rows));
    send_of(c->job, "content_part.done", true, json_pack("{s:O}", "part", part));
    send_item(c->job, "output_item.done", json_incref(item));
    json_array_append_new(a->output, item);
    json_decref(part);
    json_decref(rows);
}

static void close_call(struct esp_choice *c, const char *status)
{
    struct response *a = response_of(c->job);
    const struct esp_call_made *made = a->made;
    json_t *item = call_json(a, made, true, status);

    if (is_custom(a, made)) {
        send_of(c->job, "custom_tool_call_input.delta", false,
                json_pack("{s:o}", "delta", custom_input(made)));
        send_of(c->job, "custom_tool_call_input.done", false,
                json_pack("{s:o}", "input", custom_input(made)));
    } else {
        send_of(c->job, "function_call_arguments.done", false,
                json_pack("{s:o,s:s}", "arguments",
                          esp_text_json(esp_strbuf_str(&made->args), made->args.len), "name", made->name));
    }
    send_item(c->job, "output_item.done", json_incref(item));
    json_array_append_new(a->output, item);
}

static void close_item(struct esp_choice *c, const char *status)
{
    struct response *a = response_of(c->job);
    const enum item open = a->open;

    a->open = ITEM_NONE;
    if (open == ITEM_REASONING)
        close_reasoning(c, status);
    else if (open == ITEM_MESSAGE)
        close_message(c, status);
    else if (open == ITEM_CALL)
        close_call(c, status);
}

static void open_item(struct esp_choice *c, enum item kind, size_t from)
{
    static const char *const prefixes[] = {
        [ITEM_REASONING] = "rs_", [ITEM_MESSAGE] = "msg_", [ITEM_CALL] = "fc_"};
    struct response *a = response_of(c->job);

    close_item(c, "completed");
    a->open = kind;
    a->from = from;
    esp_random_id(a->item_id, sizeof a->item_id, prefixes[kind]);
    if (kind == ITEM_REASONING) {
        snprintf(a->reasoning_id, sizeof a->reasoning_id, "%s", a->item_id);
        send_item(c->job, "output_item.added", reasoning_json(a, "", 0, "in_progress"));
        send_of(c->job, "content_part.added", true,
                json_pack("{s:{s:s,s:s}}", "part", "type", "reasoning_text", "text", ""));
    } else if (kind == ITEM_MESSAGE) {
        send_item(c->job, "output_item.added", message_json(a, NULL, "in_progress"));
        send_of(c->job, "content_part.added", true, json_pack("{s:o}", "part", part_json("", 0, NULL)));
    } else {
        send_item(c->job, "output_item.added", call_json(a, a->made, false, "in_progress"));
    }
}

/* ---- sink ---- */

static void on_text(struct esp_choice *c, enum esp_turn_what what, const char *s, size_t len)
{
    struct response *a = response_of(c->job);
    const bool message = what == ESP_TURN_CONTENT;
    json_t *delta, *rows;

    if (a->open != (message ? ITEM_MESSAGE : ITEM_REASONING))
        open_item(c, message ? ITEM_MESSAGE : ITEM_REASONING,
                  (message ? c->content.len : c->reasoning.len) - len);
    delta = json_pack("{s:o}", "delta", esp_text_json(s, len));
    if (message) {
        rows = esp_choice_rows(c, false);
        json_object_set_new(delta, "logprobs", rows ? rows : json_array());
    }
    send_of(c->job, message ? "output_text.delta" : "reasoning_text.delta", true, delta);
}

static void on_tool(struct esp_choice *c, struct esp_call_made *made, enum esp_turn_what what, const char *s,
                    size_t len)
{
    struct response *a = response_of(c->job);

    if (what == ESP_TURN_CALL) {
        close_item(c, "completed");
        a->made = made;
        open_item(c, ITEM_CALL, 0);
        return;
    }
    a->made = made;
    if (what == ESP_TURN_CALL_END)
        close_item(c, "completed");
    else if (!is_custom(a, made))
        send_of(c->job, "function_call_arguments.delta", false,
                json_pack("{s:o}", "delta", esp_text_json(s, len)));
}

/* What the next request's history has as this turn. */
static json_t *turn_json(const struct esp_choice *c, const struct response *a)
{
    json_t *m = json_pack("{s:s,s:o}", "role", "assistant", "content",
                          esp_text_json(esp_strbuf_str(&c->content), c->content.len)),
           *calls = json_array();

    if (c->reasoning.len)
        json_object_set_new(m, "reasoning_content",
                            esp_text_json(esp_strbuf_str(&c->reasoning), c->reasoning.len));
    if (a->reasoning_id[0])
        json_object_set_new(m, ESP_REPLAY_KEY, json_string(a->reasoning_id));
    for (size_t i = 0; i < c->n_call; i++)
        if (c->calls[i].whole)
            json_array_append_new(
                calls, json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", c->calls[i].id, "type", "function",
                                 "function", "name", c->calls[i].name, "arguments",
                                 esp_text_json(esp_strbuf_str(&c->calls[i].args), c->calls[i].args.len)));
    if (json_array_size(calls))
        json_object_set(m, "tool_calls", calls);
    json_decref(calls);
    return m;
}

static void keep(struct esp_job *j, const json_t *object)
{
    struct response *a = response_of(j);
    esp_error err;

    json_array_append_new(a->history, turn_json(&j->choices[0], a));
    if (esp_store_put(j->s->store, a->id, object, a->history, a->input, &err) != ESP_OK)
        esp_server_log(j->s, json_pack("{s:s,s:s}", "event", "response not stored", "error", err.message));
}

static void on_done(struct esp_job *j)
{
    struct response *a = response_of(j);
    struct esp_choice *c = &j->choices[0];
    const bool cut = c->end == ESP_END_LENGTH;
    const char *status = j->e.http ? "failed" : cut ? "incomplete" : "completed";
    json_t *object;

    if (j->e.http && !a->gen.stream) {
        j->call->e = j->e;
        memset(&j->e, 0, sizeof j->e);
        esp_reply_error(j->call);
        return;
    }
    close_item(c, cut || j->e.http ? "incomplete" : "completed");
    if (!j->e.http)
        esp_replay_keep(j->s->replay, c, a->reasoning_id[0] ? a->reasoning_id : NULL);
    object = object_json(j, status);
    if (!j->e.http && a->store)
        keep(j, object);
    if (!a->gen.stream) {
        esp_reply_json(j->call, 200, object);
        return;
    }
    j->call->e.code = j->e.code;
    send(j->call, status, json_pack("{s:o}", "response", object));
    esp_sse_end(j->call);
}

static const struct esp_sink sink = {on_text, on_tool, NULL, on_done};

/* Clients reset their timers on events, not on comments. */
static void ping(struct esp_call *c)
{
    for (const struct esp_job *j = c->s->jobs; j; j = j->next)
        if (j->call == c) {
            send(c, "in_progress", json_pack("{s:o}", "response", object_json(j, "in_progress")));
            return;
        }
}

/* ---- requests ---- */

static void refuse_fields(struct esp_fields *f, struct response *a)
{
    static const char *const refused[] = {"conversation", "prompt"};
    const json_t *text = NULL, *include = NULL, *v;
    struct esp_fields t;
    bool background = false;
    int truncation = 0;
    size_t i;

    if (esp_field_bool(f, "background", &background) && background)
        esp_api_fail(f->e, "unsupported_value", "background", "background: true is not supported");
    for (i = 0; i < 2; i++)
        if (esp_field_any(f, refused[i]))
            esp_api_fail(f->e, "unsupported_value", refused[i], "%s: not supported here", refused[i]);
    if (esp_field_object(f, "text", &text)) {
        const json_t *format;

        esp_fields_init(&t, text, "text.", f->e);
        format = esp_field_any(&t, "format");
        if (format)
            esp_constrain_format(f, format, "text.format", &a->gen);
    }
    if (esp_field_word(f, "truncation", "disabled|auto", &truncation) && truncation == 1)
        esp_api_fail(f->e, "unsupported_value", "truncation",
                     "truncation: 'auto' is not in this version; disabled is");
    if (esp_field_array(f, "include", &include))
        json_array_foreach(include, i, v)
        {
            const char *s = json_is_string(v) ? json_string_value(v) : "";

            a->want_encrypted = a->want_encrypted || strcmp(s, "reasoning.encrypted_content") == 0;
            a->gen.logprobs = a->gen.logprobs || strcmp(s, "message.output_text.logprobs") == 0;
        }
}

/* History of the answer that this one follows. */
static bool load_previous(struct esp_call *c, struct response *a)
{
    json_t *before, *object;

    if (!a->previous)
        return true;
    before = esp_store_get(c->s->store, a->previous, ESP_STORE_HISTORY);
    object = before ? esp_store_get(c->s->store, a->previous, ESP_STORE_RESPONSE) : NULL;
    if (!before || !object) {
        json_decref(before);
        json_decref(object);
        return esp_api_fail(&c->e, "response_not_found", "previous_response_id",
                            "previous_response_id: '%.100s' is not known or has expired", a->previous);
    }
    json_array_extend(a->history, before);
    if (!a->instructions && json_is_string(json_object_get(object, "instructions"))) {
        /* the text must live as long as the answer: the body keeps it */
        json_object_set(c->body, "instructions", json_object_get(object, "instructions"));
        a->instructions = json_string_value(json_object_get(c->body, "instructions"));
    }
    json_decref(before);
    json_decref(object);
    return true;
}

static bool read_messages(struct esp_call *c, struct esp_fields *f, struct response *a)
{
    const json_t *input = esp_field_any(f, "input");

    esp_field_string(f, "instructions", &a->instructions);
    esp_field_string(f, "previous_response_id", &a->previous);
    if (c->e.http || !load_previous(c, a) || !esp_response_items(input, a->history, &a->gen, &c->e))
        return false;
    a->input = json_is_array(input) ? json_incref((json_t *)input)
                                    : json_pack("[{s:s,s:s,s:[{s:s,s:O}]}]", "type", "message", "role",
                                                "user", "content", "type", "input_text", "text", input);
    a->p.messages = json_array();
    if (a->instructions)
        json_array_append_new(a->p.messages,
                              json_pack("{s:s,s:s}", "role", "system", "content", a->instructions));
    json_array_extend(a->p.messages, a->history);
    if (json_array_size(a->p.messages) == 0 || json_array_size(a->p.messages) > c->s->o.max_messages)
        return esp_api_fail(&c->e, "invalid_value", "input", "input: %zu messages; 1 to %u are accepted",
                            json_array_size(a->p.messages), c->s->o.max_messages);
    return esp_chat_normalize(&a->p, &a->gen, c->s, &c->e);
}

static void read_tools(struct esp_call *c, struct esp_fields *f, struct response *a)
{
    const json_t *list = NULL;
    json_t *body = json_object();
    struct esp_fields inner;

    if (esp_field_array(f, "tools", &list))
        json_object_set_new(body, "tools", esp_response_tools(list, a->custom, &a->gen));
    if (esp_field_any(f, "tool_choice"))
        json_object_set(body, "tool_choice", json_object_get(c->body, "tool_choice"));
    esp_fields_init(&inner, body, "", &c->e);
    esp_chat_read_tools(&inner, &a->p, &a->gen);
    esp_field_bool(f, "parallel_tool_calls", &a->gen.parallel_calls);
    json_decref(body);
}

static bool read_request(struct esp_call *c, struct response *a)
{
    static const char *const no_effect[] = {
        "model",          "metadata", "service_tier",           "safety_identifier", "max_tool_calls",
        "stream_options", "user",     "prompt_cache_retention", "client_metadata",   "prompt_cache_options"};
    const json_t *summary;
    struct esp_fields f;
    int64_t n = 0;

    esp_fields_init(&f, c->body, "", &c->e);
    esp_params_read(&f, &a->gen, c->s);
    if (a->gen.n != 1)
        esp_api_fail(&c->e, "unsupported_value", "n", "n: only 1 is accepted here");
    esp_params_stops(&f, "stop", &a->gen);
    esp_field_bool(&f, "store", &a->store);
    refuse_fields(&f, a);
    if (esp_field_int(&f, "top_logprobs", 0, 20, &n)) {
        a->gen.top = (uint32_t)n;
        a->gen.logprobs = a->gen.logprobs || n > 0;
    }
    esp_chat_read_thinking(&f, &a->p);
    summary = json_object_get(json_object_get(c->body, "reasoning"), "summary");
    a->want_summary = json_is_string(summary);
    read_tools(c, &f, a);
    esp_params_refuse(&f);
    esp_constrain_read(&f, &a->gen);
    for (size_t i = 0; i < sizeof no_effect / sizeof no_effect[0]; i++)
        esp_field_any(&f, no_effect[i]);
    if (!read_messages(c, &f, a))
        return false;
    json_decref(a->gen.ignored);
    a->gen.ignored = esp_fields_ignored(&f);
    return !c->e.http && esp_model_check(c, json_object_get(c->body, "model"));
}

static struct response *make_response(struct esp_call *c)
{
    struct response *a = esp_alloc(sizeof *a);

    if (!a) {
        esp_api_fail(&c->e, "device_lost", NULL, "no memory for the request");
        return NULL;
    }
    esp_gen_init(&a->gen, c->s);
    esp_chat_init(&a->p, c->s);
    a->created = (int64_t)time(NULL);
    a->store = true;
    a->history = json_array();
    a->custom = json_object();
    a->output = json_array();
    esp_random_id(a->id, sizeof a->id, "resp_");
    snprintf(c->answer_id, sizeof c->answer_id, "%s", a->id);
    c->answer = a;
    c->free_answer = free_response;
    return a;
}

void esp_responses(struct esp_call *c)
{
    struct response *a = make_response(c);
    struct esp_prompt prompt;
    struct esp_job *j = NULL;
    uint64_t limit = 0;

    if (!a || !read_request(c, a) || !esp_prompt_chat(&prompt, &a->p, &a->gen, c->s, &c->e))
        return;
    if (esp_job_limit(c->s, &a->gen, prompt.ids.n, &limit, &c->e)) {
        struct esp_job_opts o = esp_prompt_job(c, &prompt, &a->p, &a->gen);

        o.sink = &sink;
        o.call_prefix = "call_";
        if (esp_job_start(&j, &o, limit, &c->e) && a->gen.stream) {
            esp_sse_begin(c);
            c->ping = ping;
            c->ping_interval = a->gen.ping;
            send(c, "created", json_pack("{s:o}", "response", object_json(j, "in_progress")));
            send(c, "in_progress", json_pack("{s:o}", "response", object_json(j, "in_progress")));
        }
    }
    esp_prompt_free(&prompt);
}

void esp_response_tokens(struct esp_call *c)
{
    struct response *a = make_response(c);
    struct esp_prompt prompt;

    if (!a || !read_request(c, a) || !esp_prompt_chat(&prompt, &a->p, &a->gen, c->s, &c->e))
        return;
    esp_reply_json(
        c, 200,
        json_pack("{s:s,s:I}", "object", "response.input_tokens", "input_tokens", (json_int_t)prompt.ids.n));
    esp_prompt_free(&prompt);
}

/* ---- stored ones ---- */

static void not_found(struct esp_call *c)
{
    esp_api_fail(&c->e, "response_not_found", NULL, "'%.100s' is not known or has expired", c->params[0]);
}

void esp_get_response(struct esp_call *c)
{
    json_t *v = esp_store_get(c->s->store, c->params[0], ESP_STORE_RESPONSE);

    if (v)
        esp_reply_json(c, 200, v);
    else
        not_found(c);
}

void esp_get_response_items(struct esp_call *c)
{
    json_t *v = esp_store_get(c->s->store, c->params[0], ESP_STORE_INPUT);

    if (v)
        esp_reply_json(c, 200, json_pack("{s:s,s:o,s:b}", "object", "list", "data", v, "has_more", 0));
    else
        not_found(c);
}

void esp_delete_response(struct esp_call *c)
{
    if (esp_store_delete(c->s->store, c->params[0]))
        esp_reply_json(c, 200,
                       json_pack("{s:s,s:s,s:b}", "id", c->params[0], "object", "response", "deleted", 1));
    else
        not_found(c);
}

void esp_cancel_response(struct esp_call *c)
{
    if (esp_jobs_cancel_id(c->s, c->params[0]))
        esp_reply_json(
            c, 200,
            json_pack("{s:s,s:s,s:s}", "id", c->params[0], "object", "response", "status", "cancelled"));
    else
        not_found(c);
}
