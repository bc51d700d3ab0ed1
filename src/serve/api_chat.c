/*
 * POST /v1/chat/completions: the OpenAI chat dialect, whole and streamed.
 *
 * What clients force: id, created and model are constant over a stream; the role comes once, a call's id and
 * name once; content, reasoning and calls never share a chunk; the finish reason comes once.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"

#include "serve/constrain.h"
#include "serve/frame.h"
#include "serve/params.h"
#include "serve/replay.h"
#include "serve/route.h"

struct chat {
    struct esp_gen gen;
    struct esp_chat_params p;
    char id[48];
    int64_t created;
    bool include_usage;
    double admitted_ms;
    struct esp_frame frame;
};

static void free_chat(void *answer)
{
    struct chat *a = answer;

    esp_gen_free(&a->gen);
    esp_chat_free(&a->p);
    esp_frame_free(&a->frame);
    esp_free(a);
}

static struct chat *chat_of(const struct esp_job *j)
{
    return j->call->answer;
}

/* ---- stream ---- */

static json_t *chunk(const struct esp_job *j, json_t *choice)
{
    const struct chat *a = chat_of(j);
    json_t *v = json_pack("{s:s,s:s,s:I,s:o,s:o,s:[]}", "id", a->id, "object", "chat.completion.chunk",
                          "created", (json_int_t)a->created, "model", esp_model_name(j->s, a->gen.adapter),
                          "system_fingerprint", esp_fingerprint(j->s), "choices");

    if (choice)
        json_array_append_new(json_object_get(v, "choices"), choice);
    if (a->include_usage)
        json_object_set_new(v, "usage", json_null());
    return v;
}

/* rows: log-probabilities or NULL; both are released. */
static json_t *logprobs_json(json_t *content, json_t *reasoning)
{
    json_t *v;

    if (!content) {
        json_decref(reasoning);
        return json_null();
    }
    v = json_pack("{s:o,s:n}", "content", content, "refusal");
    if (reasoning)
        json_object_set_new(v, "reasoning", reasoning);
    return v;
}

static void send_delta(struct esp_choice *c, json_t *delta, json_t *rows)
{
    json_t *choice = json_pack("{s:i,s:o,s:o,s:n}", "index", (int)c->index, "delta", delta, "logprobs",
                               logprobs_json(rows, NULL), "finish_reason");

    esp_sse_data(c->job->call, NULL, chunk(c->job, choice));
}

/* The same bytes as send_delta() without log-probabilities, for a delta that opens with these, has one string
 * and closes with those. */
static void send_text(struct esp_choice *c, const char *open, const char *s, size_t len, const char *close)
{
    struct chat *a = chat_of(c->job);
    struct esp_strbuf *b;

    if (a->frame.head.len == 0)
        esp_frame_chunk_head(&a->frame, chunk(c->job, NULL));
    b = esp_frame_begin(&a->frame);
    esp_frame_number(b, c->index);
    esp_strbuf_puts(b, ",\"delta\":{");
    esp_strbuf_puts(b, open);
    esp_frame_text(b, s, len);
    esp_strbuf_puts(b, close);
    esp_strbuf_puts(b, "},\"logprobs\":null,\"finish_reason\":null}]");
    esp_strbuf_puts(b, a->include_usage ? ",\"usage\":null}" : "}");
    esp_frame_send(&a->frame, c->job->call);
}

/* The reasoning under the names that the server was told to use; text is released. */
static void set_reasoning(const struct esp_server *s, json_t *v, json_t *text)
{
    if (s->o.reasoning_field != ESP_REASONING_PLAIN)
        json_object_set(v, "reasoning_content", text);
    if (s->o.reasoning_field != ESP_REASONING_CONTENT)
        json_object_set(v, "reasoning", text);
    json_decref(text);
}

static void on_text(struct esp_choice *c, enum esp_turn_what what, const char *s, size_t len)
{
    struct chat *a = chat_of(c->job);
    json_t *delta;

    if (!a->gen.stream)
        return;
    if (what == ESP_TURN_CONTENT && !a->gen.logprobs) {
        send_text(c, "\"content\":\"", s, len, "\"");
    } else if (what == ESP_TURN_CONTENT) {
        delta = json_pack("{s:o}", "content", esp_text_json(s, len));
        send_delta(c, delta, esp_choice_rows(c, false));
    } else if (a->p.include_reasoning && c->job->s->o.reasoning_field != ESP_REASONING_BOTH) {
        send_text(c,
                  c->job->s->o.reasoning_field == ESP_REASONING_PLAIN ? "\"reasoning\":\""
                                                                      : "\"reasoning_content\":\"",
                  s, len, "\"");
    } else if (a->p.include_reasoning) {
        delta = json_object();
        set_reasoning(c->job->s, delta, esp_text_json(s, len));
        send_delta(c, delta, NULL);
    }
}

static void on_tool(struct esp_choice *c, struct esp_call_made *made, enum esp_turn_what what, const char *s,
                    size_t len)
{
    const int index = (int)(made - c->calls);
    char open[80];

    if (!chat_of(c->job)->gen.stream || what == ESP_TURN_CALL_END)
        return;
    if (what == ESP_TURN_CALL) {
        send_delta(c,
                   json_pack("{s:[{s:i,s:s,s:s,s:{s:s,s:s}}]}", "tool_calls", "index", index, "id", made->id,
                             "type", "function", "function", "name", made->name, "arguments", ""),
                   NULL);
        return;
    }
    snprintf(open, sizeof open, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":\"", index);
    send_text(c, open, s, len, "\"}}]");
}

static json_t *stop_reason(const struct esp_choice *c)
{
    const struct esp_gen *g = c->job->gen;

    if (c->stop_string >= 0)
        return esp_text_json(g->stops[c->stop_string].text, g->stops[c->stop_string].len);
    return c->stop_token >= 0 ? json_integer(c->stop_token) : json_null();
}

static void on_ended(struct esp_choice *c)
{
    struct chat *a = chat_of(c->job);
    json_t *rows, *choice, *v;

    if (!a->gen.stream || c->job->e.http)
        return;
    rows = esp_choice_rows(c, true);
    if (rows && json_array_size(rows))
        send_delta(c, json_pack("{s:s}", "content", ""), rows);
    else
        json_decref(rows);
    choice = json_pack("{s:i,s:{},s:n,s:s,s:o}", "index", (int)c->index, "delta", "logprobs", "finish_reason",
                       esp_end_name(c->end), "stop_reason", stop_reason(c));
    v = chunk(c->job, choice);
    json_object_set_new(v, "timings", esp_timings_json(c->job));
    json_object_set_new(v, "ext", esp_ext_json(c->job));
    esp_sse_data(c->job->call, NULL, v);
}

static void end_stream(struct esp_job *j)
{
    struct esp_call *c = j->call;

    if (j->e.http) {
        c->e.code = j->e.code; /* for the log */
        esp_sse_data(c, NULL, json_pack("{s:o}", "error", esp_api_error_object(&j->e)));
    } else {
        if (chat_of(j)->include_usage) {
            json_t *v = chunk(j, NULL);

            json_object_set_new(v, "usage", esp_usage_json(j));
            esp_sse_data(c, NULL, v);
        }
        esp_sse_line(c, "data: [DONE]");
    }
    c->e.code = j->e.code;
    esp_sse_end(c);
}

/* ---- whole ---- */

static json_t *calls_json(const struct esp_choice *c)
{
    json_t *list = json_array();

    for (size_t i = 0; i < c->n_call; i++)
        if (c->calls[i].whole)
            json_array_append_new(
                list, json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", c->calls[i].id, "type", "function", "function",
                                "name", c->calls[i].name, "arguments",
                                esp_text_json(esp_strbuf_str(&c->calls[i].args), c->calls[i].args.len)));
    return list;
}

static json_t *choice_json(struct esp_choice *c)
{
    const struct chat *a = chat_of(c->job);
    json_t *calls = calls_json(c), *message;
    const bool none = c->content.len == 0 && (json_array_size(calls) || c->reasoning.len);

    message = json_pack("{s:s,s:o}", "role", "assistant", "content",
                        none ? json_null() : esp_text_json(esp_strbuf_str(&c->content), c->content.len));
    if (c->reasoning.len && a->p.include_reasoning)
        set_reasoning(c->job->s, message, esp_text_json(esp_strbuf_str(&c->reasoning), c->reasoning.len));
    if (json_array_size(calls))
        json_object_set(message, "tool_calls", calls);
    json_decref(calls);
    return json_pack("{s:i,s:o,s:o,s:s,s:o}", "index", (int)c->index, "message", message, "logprobs",
                     logprobs_json(esp_choice_rows(c, true), json_incref(c->reasoning_rows)), "finish_reason",
                     esp_end_name(c->end), "stop_reason", stop_reason(c));
}

static void on_done(struct esp_job *j)
{
    struct chat *a = chat_of(j);
    struct esp_call *c = j->call;
    json_t *choices;

    for (uint32_t i = 0; i < j->n && !j->e.http; i++)
        esp_replay_keep(j->s->replay, &j->choices[i], NULL);
    if (j->e.http && !c->streaming) {
        esp_reply_job_error(j);
        return;
    }
    if (a->gen.stream) {
        end_stream(j);
        return;
    }
    choices = json_array();
    for (uint32_t i = 0; i < j->n; i++)
        json_array_append_new(choices, choice_json(&j->choices[i]));
    esp_reply_answer(c, json_pack("{s:s,s:s,s:I,s:o,s:o,s:o,s:o,s:o,s:o}", "id", a->id, "object",
                                  "chat.completion", "created", (json_int_t)a->created, "model",
                                  esp_model_name(j->s, a->gen.adapter), "system_fingerprint",
                                  esp_fingerprint(j->s), "choices", choices, "usage", esp_usage_json(j),
                                  "timings", esp_timings_json(j), "ext", esp_ext_json(j)));
}

static void on_progress(struct esp_job *j)
{
    json_t *v;

    if (!j->gen->stream || !j->gen->progress)
        return;
    v = chunk(j, NULL);
    json_object_set_new(v, "prompt_progress", esp_progress_json(j));
    esp_sse_data(j->call, NULL, v);
}

static const struct esp_sink sink = {
    .text = on_text, .tool = on_tool, .progress = on_progress, .ended = on_ended, .done = on_done};

static void ping(struct esp_call *c)
{
    esp_sse_line(c, ": ping");
}

/* ---- request ---- */

static void read_stream_options(struct esp_fields *f, struct chat *a)
{
    const json_t *o = NULL;
    struct esp_fields s;

    if (!esp_field_object(f, "stream_options", &o))
        return;
    esp_fields_init(&s, o, "stream_options.", f->e);
    esp_field_bool(&s, "include_usage", &a->include_usage);
}

static void read_logprobs(struct esp_fields *f, struct esp_gen *g)
{
    int64_t n = 0;

    esp_field_bool(f, "logprobs", &g->logprobs);
    esp_field_bool(f, "include_reasoning_logprobs", &g->reasoning_logprobs);
    if (!esp_field_int(f, "top_logprobs", 0, 20, &n))
        return;
    if (!g->logprobs && n > 0)
        esp_api_fail(f->e, "invalid_value", "top_logprobs", "top_logprobs: needs \"logprobs\": true");
    g->top = (uint32_t)n;
}

static bool read_chat(struct esp_call *c, struct chat *a)
{
    static const char *const no_effect[] = {
        "model",     "store",      "metadata",          "service_tier",
        "verbosity", "prediction", "safety_identifier", "prompt_cache_retention"};
    const char *format = NULL;
    struct esp_fields f;

    esp_fields_init(&f, c->body, "", &c->e);
    esp_chat_read_messages(&f, &a->p, &a->gen, c->s);
    esp_params_read(&f, &a->gen, c->s);
    esp_params_stops(&f, "stop", &a->gen);
    esp_params_stops(&f, "stop_sequences", &a->gen);
    read_logprobs(&f, &a->gen);
    read_stream_options(&f, a);
    esp_chat_read_thinking(&f, &a->p);
    esp_chat_read_tools(&f, &a->p, &a->gen);
    esp_field_bool(&f, "include_reasoning", &a->p.include_reasoning);
    if (esp_field_string(&f, "reasoning_format", &format))
        a->p.raw_reasoning = strcmp(format, "none") == 0;
    esp_params_refuse(&f);
    esp_constrain_read(&f, &a->gen);
    for (size_t i = 0; i < sizeof no_effect / sizeof no_effect[0]; i++)
        esp_field_any(&f, no_effect[i]);
    json_decref(a->gen.ignored);
    a->gen.ignored = esp_fields_ignored(&f);
    return !c->e.http && esp_model_check(c, json_object_get(c->body, "model"));
}

static struct chat *make_chat(struct esp_call *c)
{
    struct chat *a = esp_alloc(sizeof *a);

    if (!a) {
        esp_api_fail(&c->e, "device_lost", NULL, "no memory for the request");
        return NULL;
    }
    esp_gen_init(&a->gen, c->s);
    esp_chat_init(&a->p, c->s);
    esp_frame_init(&a->frame);
    a->created = (int64_t)time(NULL);
    esp_random_id(a->id, sizeof a->id, "chatcmpl-");
    snprintf(c->answer_id, sizeof c->answer_id, "%s", a->id);
    c->answer = a;
    c->free_answer = free_chat;
    return a;
}

static void begin_stream(struct esp_job *j)
{
    for (uint32_t i = 0; i < j->n; i++)
        send_delta(&j->choices[i], json_pack("{s:s,s:s}", "role", "assistant", "content", ""), NULL);
}

void esp_chat_completions(struct esp_call *c)
{
    struct chat *a = make_chat(c);

    if (a && read_chat(c, a))
        esp_start_chat(&(struct esp_start){.call = c,
                                           .gen = &a->gen,
                                           .p = &a->p,
                                           .sink = &sink,
                                           .call_prefix = "call_",
                                           .begin = begin_stream,
                                           .ping = ping});
}

static void reply_count(struct esp_call *c, uint64_t n)
{
    esp_reply_json(c, 200,
                   json_pack("{s:s,s:I}", "object", "response.input_tokens", "input_tokens", (json_int_t)n));
}

void esp_input_tokens(struct esp_call *c)
{
    struct chat *a = make_chat(c);

    if (a && read_chat(c, a))
        esp_start_count(c, &a->p, &a->gen, reply_count);
}
