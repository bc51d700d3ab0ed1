/*
 * Answers of /v1/responses: a list of items. A stream opens, fills and closes them one by one and ends with
 * the whole object; whole answers go the same way with the events left out.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/response.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"

#include "serve/diag.h"
#include "serve/replay.h"
#include "serve/response_input.h"
#include "serve/store.h"

static struct esp_response *response_of(const struct esp_job *j)
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
    const struct esp_response *a = c->answer;
    const json_t *b = c->body, *reasoning = json_object_get(b, "reasoning");

    return json_pack(
        "{s:o,s:b,s:o,s:{s:o,s:o},s:b,s:f,s:f,s:o,s:o,s:o,s:s,s:o,s:o}", "instructions",
        text_or_null(a->instructions), "parallel_tool_calls", a->gen.parallel_calls, "previous_response_id",
        text_or_null(a->previous), "reasoning", "effort", or_null(json_object_get(reasoning, "effort")),
        "summary", or_null(json_object_get(reasoning, "summary")), "store", a->store, "temperature",
        esp_as_written(a->gen.sampling.temperature), "top_p", esp_as_written(a->gen.sampling.top_p), "text",
        or_other(json_object_get(b, "text"), json_pack("{s:{s:s}}", "format", "type", "text")), "tool_choice",
        or_other(json_object_get(b, "tool_choice"), json_string("auto")), "tools",
        or_other(json_object_get(b, "tools"), json_array()), "truncation",
        a->p.truncate ? "auto" : "disabled", "max_output_tokens",
        a->gen.max_tokens >= 0 ? json_integer(a->gen.max_tokens) : json_null(), "metadata",
        or_other(json_object_get(b, "metadata"), json_object()));
}

static json_t *usage_json(const struct esp_job *j)
{
    const struct esp_choice *c = &j->choices[0];

    return json_pack("{s:I,s:{s:I,s:I},s:I,s:{s:I},s:I}", "input_tokens", (json_int_t)j->prompt.n,
                     "input_tokens_details", "cached_tokens", (json_int_t)j->n_cached, "cache_write_tokens",
                     (json_int_t)esp_cache_written(j), "output_tokens", (json_int_t)c->tokens.n,
                     "output_tokens_details", "reasoning_tokens", (json_int_t)c->n_reasoning, "total_tokens",
                     (json_int_t)j->prompt.n + (json_int_t)c->tokens.n);
}

/* How the prompt follows the answer that it was to be compared with. A miss without a change of the prompt
 * has its cause in ext.cache. */
static json_t *diagnostics_json(const struct esp_job *j)
{
    static const char *const reasons[] = {
        [ESP_DIAG_MODEL] = "model_changed",         [ESP_DIAG_TOOLS] = "tools_changed",
        [ESP_DIAG_SYSTEM] = "input_changed",        [ESP_DIAG_THINKING] = "reasoning_effort_changed",
        [ESP_DIAG_COMPACTED] = "context_compacted", [ESP_DIAG_MESSAGES] = "input_changed"};
    const struct esp_diag_result r = esp_diag_compare(j->s->diag, j, j->gen->compare);

    if (r.what == ESP_DIAG_NOT_FOUND)
        return json_pack("{s:s}", "type", "comparison_response_not_found");
    if (r.what == ESP_DIAG_UNAVAILABLE || (r.what == ESP_DIAG_SAME && j->n_cached == 0))
        return json_pack("{s:s}", "type", "unavailable");
    if (r.what == ESP_DIAG_SAME)
        return json_pack("{s:s}", "type", "cache_hit");
    return json_pack("{s:s,s:s,s:I,s:I}", "type", "cache_miss", "reason", reasons[r.what],
                     "cache_missed_tokens", (json_int_t)r.missed, "comparison_reusable_tokens",
                     (json_int_t)r.same);
}

static json_t *object_json(const struct esp_job *j, const char *status)
{
    const struct esp_response *a = response_of(j);
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
    if (over && j->gen->compare)
        json_object_set_new(v, "prompt_cache_diagnostics", diagnostics_json(j));
    if (over)
        json_object_set_new(v, "ext", esp_ext_json(j));
    return v;
}

/* ---- events ---- */

/* v gets type and number; released. */
static void send(struct esp_call *c, const char *type, json_t *v)
{
    struct esp_response *a = c->answer;
    char name[64];

    snprintf(name, sizeof name, "response.%s", type);
    if (v && a->gen.stream) {
        json_object_set_new(v, "type", json_string(name));
        json_object_set_new(v, "sequence_number", json_integer(a->sequence++));
        esp_sse_data(c, name, v);
        esp_sse_last_words(c, a->sequence);
    } else {
        json_decref(v);
    }
}

/* An event of the open item; more: further keys, released. */
static void send_of(struct esp_job *j, const char *type, bool part, json_t *more)
{
    const struct esp_response *a = response_of(j);
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

/* The same bytes as send_of() with a delta of text; more: what comes behind it. */
static void send_delta(struct esp_job *j, const char *type, bool part, const char *s, size_t len,
                       const char *more)
{
    struct esp_response *a = response_of(j);
    struct esp_strbuf *b;

    if (!a->gen.stream)
        return;
    b = esp_frame_begin(&a->frame);
    esp_strbuf_puts(b, "event: response.");
    esp_strbuf_puts(b, type);
    esp_strbuf_puts(b, "\ndata: {\"item_id\":\"");
    esp_strbuf_puts(b, a->item_id);
    esp_strbuf_puts(b, "\",\"output_index\":");
    esp_frame_number(b, json_array_size(a->output));
    esp_strbuf_puts(b, part ? ",\"content_index\":0,\"delta\":\"" : ",\"delta\":\"");
    esp_frame_text(b, s, len);
    esp_strbuf_puts(b, more);
    esp_strbuf_puts(b, ",\"type\":\"response.");
    esp_strbuf_puts(b, type);
    esp_strbuf_puts(b, "\",\"sequence_number\":");
    esp_frame_number(b, (uint64_t)a->sequence++);
    esp_strbuf_puts(b, "}");
    esp_frame_send(&a->frame, j->call);
    esp_sse_last_words(j->call, a->sequence);
}

static void send_item(struct esp_job *j, const char *type, json_t *item)
{
    send(j->call, type,
         json_pack("{s:I,s:o}", "output_index", (json_int_t)json_array_size(response_of(j)->output), "item",
                   item));
}

/* ---- items ---- */

static json_t *reasoning_json(const struct esp_response *a, const char *text, size_t len, const char *status)
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

static json_t *message_json(const struct esp_response *a, json_t *part, const char *status)
{
    json_t *v = json_pack("{s:s,s:s,s:s,s:s,s:[]}", "type", "message", "id", a->item_id, "role", "assistant",
                          "status", status, "content");

    if (part)
        json_array_append_new(json_object_get(v, "content"), part);
    return v;
}

static bool is_custom(const struct esp_response *a, const struct esp_call_made *made)
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

static json_t *call_json(const struct esp_response *a, const struct esp_call_made *made, bool full,
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
    struct esp_response *a = response_of(c->job);
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
    struct esp_response *a = response_of(c->job);
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
    struct esp_response *a = response_of(c->job);
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
    send_item(c->job, "output_item.done", made->whole ? json_incref(item) : item);
    if (made->whole) /* half a call is nobody's to run or to send back */
        json_array_append_new(a->output, item);
}

static void close_item(struct esp_choice *c, const char *status)
{
    struct esp_response *a = response_of(c->job);
    const enum esp_response_item open = a->open;

    a->open = ITEM_NONE;
    if (open == ITEM_REASONING)
        close_reasoning(c, status);
    else if (open == ITEM_MESSAGE)
        close_message(c, status);
    else if (open == ITEM_CALL)
        close_call(c, status);
}

static void open_item(struct esp_choice *c, enum esp_response_item kind, size_t from)
{
    static const char *const prefixes[] = {
        [ITEM_REASONING] = "rs_", [ITEM_MESSAGE] = "msg_", [ITEM_CALL] = "fc_"};
    struct esp_response *a = response_of(c->job);

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
    struct esp_response *a = response_of(c->job);
    const bool message = what == ESP_TURN_CONTENT;

    if (a->open != (message ? ITEM_MESSAGE : ITEM_REASONING))
        open_item(c, message ? ITEM_MESSAGE : ITEM_REASONING,
                  (message ? c->content.len : c->reasoning.len) - len);
    if (!message)
        send_delta(c->job, "reasoning_text.delta", true, s, len, "\"");
    else if (!a->gen.logprobs)
        send_delta(c->job, "output_text.delta", true, s, len, "\",\"logprobs\":[]");
    else
        send_of(
            c->job, "output_text.delta", true,
            json_pack("{s:o,s:o}", "delta", esp_text_json(s, len), "logprobs", esp_choice_rows(c, false)));
}

static void on_tool(struct esp_choice *c, struct esp_call_made *made, enum esp_turn_what what, const char *s,
                    size_t len)
{
    struct esp_response *a = response_of(c->job);

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
        send_delta(c->job, "function_call_arguments.delta", false, s, len, "\"");
}

/* What the next request's history has as this turn. */
static json_t *turn_json(const struct esp_choice *c, const struct esp_response *a)
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
    struct esp_response *a = response_of(j);
    esp_error err;

    json_array_append_new(a->history, turn_json(&j->choices[0], a));
    if (esp_store_put(j->s->store, a->id, object, a->history, a->input, &err) != ESP_OK)
        esp_server_log(j->s, json_pack("{s:s,s:s}", "event", "response not stored", "error", err.message));
}

/* It was the context that ended the answer, and nothing that the client had asked for. */
static bool is_full(const struct esp_job *j)
{
    const struct esp_choice *c = &j->choices[0];
    const uint64_t most = j->s->kv_tokens < j->s->context ? j->s->kv_tokens : j->s->context;

    return c->end == ESP_END_LENGTH && !j->timed_out &&
           (j->gen->clamped_to >= 0 || (j->gen->max_tokens < 0 && j->prompt.n + c->tokens.n >= most));
}

static void on_done(struct esp_job *j)
{
    struct esp_response *a = response_of(j);
    struct esp_choice *c = &j->choices[0];
    const bool cut = c->end == ESP_END_LENGTH, broken = j->e.http != 0;
    const char *status;
    json_t *object;

    if (broken && !j->call->streaming) {
        esp_reply_job_error(j);
        return;
    }
    close_item(c, cut || broken ? "incomplete" : "completed");
    if (!broken)
        esp_replay_keep(j->s->replay, c, a->reasoning_id[0] ? a->reasoning_id : NULL);
    if (!broken && is_full(j))
        esp_api_fail(&j->e, "context_length_exceeded", NULL, "the context of %u tokens is full",
                     j->s->context);
    status = j->e.http ? "failed" : cut ? "incomplete" : "completed";
    object = object_json(j, status);
    if (!broken && a->store)
        keep(j, object);
    if (!a->gen.stream) {
        esp_reply_answer(j->call, object);
        return;
    }
    j->call->e.code = j->e.code;
    send(j->call, status, json_pack("{s:o}", "response", object));
    esp_sse_end(j->call);
}

const struct esp_sink esp_response_sink = {.text = on_text, .tool = on_tool, .done = on_done};

void esp_response_ping(struct esp_call *c)
{
    for (const struct esp_job *j = c->s->jobs; j; j = j->next)
        if (j->call == c) {
            send(c, "in_progress", json_pack("{s:o}", "response", object_json(j, "in_progress")));
            return;
        }
}

void esp_response_begin(struct esp_job *j)
{
    send(j->call, "created", json_pack("{s:o}", "response", object_json(j, "in_progress")));
    send(j->call, "in_progress", json_pack("{s:o}", "response", object_json(j, "in_progress")));
}
