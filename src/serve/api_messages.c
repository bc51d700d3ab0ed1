/*
 * POST /v1/messages and /v1/messages/count_tokens: the Anthropic dialect. A request becomes the same
 * messages, tools and settings as a chat's; an answer is a list of blocks, of which a stream has one open at
 * a time.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"

#include "serve/constrain.h"
#include "serve/diag.h"
#include "serve/frame.h"
#include "serve/message_input.h"
#include "serve/params.h"
#include "serve/replay.h"
#include "serve/route.h"

enum block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_TOOL };

struct message {
    struct esp_gen gen;
    struct esp_chat_params p;
    char id[48];
    char signature[48];
    enum block open; /* of the stream */
    bool opened;     /* message_start is out */
    bool diagnose;
    int index; /* of the block that is open, or comes next */
    struct esp_frame frame;
};

static void free_message(void *answer)
{
    struct message *a = answer;

    esp_gen_free(&a->gen);
    esp_chat_free(&a->p);
    esp_frame_free(&a->frame);
    esp_free(a);
}

static struct message *message_of(const struct esp_job *j)
{
    return j->call->answer;
}

static void read_thinking(struct esp_call *c, struct esp_fields *f, struct message *a)
{
    const json_t *config = NULL, *format;
    struct esp_fields o;

    if (!c->s->o.messages_thinking_model)
        a->p.thinking = 0;
    if (esp_field_object(f, "output_config", &config)) {
        esp_fields_init(&o, config, "output_config.", &c->e);
        format = esp_field_any(&o, "format");
        if (format)
            esp_constrain_format(f, format, "output_config.format", &a->gen);
        esp_field_any(&o, "effort"); /* how much to think: a hint */
    }
    esp_chat_read_thinking(f, &a->p);
}

static void read_diagnostics(struct esp_fields *f, struct message *a)
{
    const json_t *asked = NULL;
    struct esp_fields d;

    a->diagnose = esp_field_object(f, "diagnostics", &asked);
    if (!a->diagnose)
        return;
    esp_fields_init(&d, asked, "diagnostics.", f->e);
    esp_field_string(&d, "previous_message_id", &a->gen.compare);
}

enum { WITH_LIMIT, WITHOUT_LIMIT };

static bool read_request(struct esp_call *c, struct message *a, int limit)
{
    static const char *const no_effect[] = {"model",     "metadata",      "service_tier",
                                            "container", "inference_geo", "context_management"};
    struct esp_fields f;

    esp_fields_init(&f, c->body, "", &c->e);
    esp_message_read(c, &f, &a->p, &a->gen);
    esp_params_read(&f, &a->gen, c->s);
    if (limit == WITH_LIMIT && a->gen.max_tokens < 0)
        esp_api_fail(&c->e, "missing_field", "max_tokens",
                     "max_tokens: missing; a number of tokens is needed");
    if (a->gen.n != 1)
        esp_api_fail(&c->e, "unsupported_value", "n", "n: only 1 is accepted here");
    esp_params_stops(&f, "stop_sequences", &a->gen);
    read_thinking(c, &f, a);
    esp_message_read_tools(c, &f, &a->p, &a->gen);
    esp_params_refuse(&f);
    esp_constrain_read(&f, &a->gen);
    if (esp_field_any(&f, "mcp_servers"))
        esp_gen_warn(&a->gen, "mcp_servers have no effect here");
    read_diagnostics(&f, a);
    for (size_t i = 0; i < sizeof no_effect / sizeof no_effect[0]; i++)
        esp_field_any(&f, no_effect[i]);
    json_decref(a->gen.ignored);
    a->gen.ignored = esp_fields_ignored(&f);
    return !c->e.http && esp_model_check(c, json_object_get(c->body, "model"));
}

static struct message *make_message(struct esp_call *c)
{
    struct message *a = esp_alloc(sizeof *a);

    if (!a) {
        esp_api_fail(&c->e, "device_lost", NULL, "no memory for the request");
        return NULL;
    }
    esp_gen_init(&a->gen, c->s);
    esp_chat_init(&a->p, c->s);
    esp_frame_init(&a->frame);
    esp_strbuf_puts(&a->frame.head,
                    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
    esp_random_id(a->id, sizeof a->id, "msg_");
    snprintf(c->answer_id, sizeof c->answer_id, "%s", a->id);
    esp_random_id(a->signature, sizeof a->signature, "sig_");
    c->answer = a;
    c->free_answer = free_message;
    return a;
}

/* ---- answers ---- */

static json_t *usage_json(const struct esp_job *j, uint64_t output)
{
    const uint64_t read = j->n_cached < j->prompt.n ? j->n_cached : j->prompt.n,
                   written = esp_cache_written(j);

    return json_pack("{s:I,s:I,s:I,s:I}", "input_tokens", (json_int_t)(j->prompt.n - read - written),
                     "cache_read_input_tokens", (json_int_t)read, "cache_creation_input_tokens",
                     (json_int_t)written, "output_tokens", (json_int_t)output);
}

static const char *stop_reason(const struct esp_choice *c)
{
    if (c->end == ESP_END_CALLS)
        return "tool_use";
    if (c->end == ESP_END_LENGTH)
        return c->job->gen->clamped_to >= 0 ? "model_context_window_exceeded" : "max_tokens";
    return c->stop_string >= 0 ? "stop_sequence" : "end_turn";
}

static json_t *stop_sequence(const struct esp_choice *c)
{
    const struct esp_gen *g = c->job->gen;

    return c->stop_string >= 0 ? esp_text_json(g->stops[c->stop_string].text, g->stops[c->stop_string].len)
                               : json_null();
}

/* What in the request is not as in the one before it. */
static json_t *diagnostics_json(const struct esp_job *j)
{
    static const char *const types[] = {[ESP_DIAG_NOT_FOUND] = "previous_message_not_found",
                                        [ESP_DIAG_UNAVAILABLE] = "unavailable",
                                        [ESP_DIAG_MODEL] = "model_changed",
                                        [ESP_DIAG_TOOLS] = "tools_changed",
                                        [ESP_DIAG_SYSTEM] = "system_changed",
                                        [ESP_DIAG_THINKING] = "messages_changed",
                                        [ESP_DIAG_COMPACTED] = "messages_changed",
                                        [ESP_DIAG_MESSAGES] = "messages_changed"};
    struct esp_diag_result r = {.what = ESP_DIAG_SAME};

    if (j->gen->compare)
        r = esp_diag_compare(j->s->diag, j, j->gen->compare);
    if (r.what == ESP_DIAG_SAME)
        return json_null();
    if (r.what == ESP_DIAG_NOT_FOUND || r.what == ESP_DIAG_UNAVAILABLE)
        return json_pack("{s:{s:s}}", "cache_miss_reason", "type", types[r.what]);
    return json_pack("{s:{s:s,s:I}}", "cache_miss_reason", "type", types[r.what], "cache_missed_input_tokens",
                     (json_int_t)r.missed);
}

static json_t *message_json(const struct esp_job *j, json_t *content, json_t *reason, json_t *sequence,
                            json_t *usage)
{
    json_t *v = json_pack("{s:s,s:s,s:s,s:o,s:o,s:o,s:o,s:o}", "id", message_of(j)->id, "type", "message",
                          "role", "assistant", "model", esp_model_name(j->s, j->gen->adapter), "content",
                          content, "stop_reason", reason, "stop_sequence", sequence, "usage", usage);

    if (message_of(j)->diagnose)
        json_object_set_new(v, "diagnostics", diagnostics_json(j));
    return v;
}

/* ---- stream ---- */

/* The message opens when it is known what the cache had, or when that takes long. */
static void open_message(struct esp_job *j)
{
    struct message *a = message_of(j);

    if (a->opened || !a->gen.stream)
        return;
    a->opened = true;
    esp_sse_data(j->call, "message_start",
                 json_pack("{s:s,s:o}", "type", "message_start", "message",
                           message_json(j, json_array(), json_null(), json_null(), usage_json(j, 0))));
}

static void close_block(struct esp_job *j)
{
    struct message *a = message_of(j);

    if (a->open == BLOCK_NONE)
        return;
    if (a->open == BLOCK_THINKING)
        esp_sse_data(j->call, "content_block_delta",
                     json_pack("{s:s,s:i,s:{s:s,s:s}}", "type", "content_block_delta", "index", a->index,
                               "delta", "type", "signature_delta", "signature", a->signature));
    esp_sse_data(j->call, "content_block_stop",
                 json_pack("{s:s,s:i}", "type", "content_block_stop", "index", a->index));
    a->index++;
    a->open = BLOCK_NONE;
}

static void open_block(struct esp_job *j, enum block kind, json_t *block)
{
    struct message *a = message_of(j);

    open_message(j);
    close_block(j);
    a->open = kind;
    esp_sse_data(
        j->call, "content_block_start",
        json_pack("{s:s,s:i,s:o}", "type", "content_block_start", "index", a->index, "content_block", block));
}

static void send_delta(struct esp_job *j, const char *type, const char *key, const char *s, size_t len)
{
    struct message *a = message_of(j);
    struct esp_strbuf *b = esp_frame_begin(&a->frame);

    esp_frame_number(b, (uint64_t)a->index);
    esp_strbuf_puts(b, ",\"delta\":{\"type\":\"");
    esp_strbuf_puts(b, type);
    esp_strbuf_puts(b, "\",\"");
    esp_strbuf_puts(b, key);
    esp_strbuf_puts(b, "\":\"");
    esp_frame_text(b, s, len);
    esp_strbuf_puts(b, "\"}}");
    esp_frame_send(&a->frame, j->call);
}

static void on_text(struct esp_choice *c, enum esp_turn_what what, const char *s, size_t len)
{
    struct message *a = message_of(c->job);
    const enum block kind = what == ESP_TURN_CONTENT ? BLOCK_TEXT : BLOCK_THINKING;

    if (!a->gen.stream)
        return;
    if (a->open != kind)
        open_block(c->job, kind,
                   kind == BLOCK_TEXT
                       ? json_pack("{s:s,s:s}", "type", "text", "text", "")
                       : json_pack("{s:s,s:s,s:s}", "type", "thinking", "thinking", "", "signature", ""));
    if (kind == BLOCK_TEXT)
        send_delta(c->job, "text_delta", "text", s, len);
    else
        send_delta(c->job, "thinking_delta", "thinking", s, len);
}

static void on_tool(struct esp_choice *c, struct esp_call_made *made, enum esp_turn_what what, const char *s,
                    size_t len)
{
    if (!message_of(c->job)->gen.stream)
        return;
    if (what == ESP_TURN_CALL)
        open_block(
            c->job, BLOCK_TOOL,
            json_pack("{s:s,s:s,s:s,s:{}}", "type", "tool_use", "id", made->id, "name", made->name, "input"));
    else if (what == ESP_TURN_ARGS)
        send_delta(c->job, "input_json_delta", "partial_json", s, len);
    else
        close_block(c->job);
}

static void end_stream(struct esp_job *j)
{
    const struct esp_choice *c = &j->choices[0];

    if (j->e.http) {
        json_t *body = esp_api_error_body(&j->e, ESP_FAMILY_ANTHROPIC, j->call->id);

        j->call->e.code = j->e.code;
        esp_sse_data(j->call, "error", body);
        esp_sse_end(j->call);
        return;
    }
    open_message(j);
    close_block(j);
    esp_sse_data(j->call, "message_delta",
                 json_pack("{s:s,s:{s:s,s:o},s:o,s:o}", "type", "message_delta", "delta", "stop_reason",
                           stop_reason(c), "stop_sequence", stop_sequence(c), "usage",
                           usage_json(j, c->tokens.n), "ext", esp_ext_json(j)));
    esp_sse_data(j->call, "message_stop", json_pack("{s:s}", "type", "message_stop"));
    esp_sse_end(j->call);
}

/* ---- whole ---- */

static json_t *blocks_json(const struct esp_job *j)
{
    const struct esp_choice *c = &j->choices[0];
    json_t *list = json_array();

    if (c->reasoning.len)
        json_array_append_new(list, json_pack("{s:s,s:o,s:s}", "type", "thinking", "thinking",
                                              esp_text_json(esp_strbuf_str(&c->reasoning), c->reasoning.len),
                                              "signature", message_of(j)->signature));
    if (c->content.len)
        json_array_append_new(list, json_pack("{s:s,s:o}", "type", "text", "text",
                                              esp_text_json(esp_strbuf_str(&c->content), c->content.len)));
    for (size_t i = 0; i < c->n_call; i++) {
        json_t *input = NULL;

        if (!c->calls[i].whole)
            continue;
        if (esp_json_parse(&input, esp_strbuf_str(&c->calls[i].args), c->calls[i].args.len, "arguments", 0,
                           NULL) != ESP_OK)
            input = json_object();
        json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:o}", "type", "tool_use", "id", c->calls[i].id,
                                              "name", c->calls[i].name, "input", input));
    }
    return list;
}

static void on_done(struct esp_job *j)
{
    struct message *a = message_of(j);
    const struct esp_choice *c = &j->choices[0];
    json_t *v;

    if (!j->e.http)
        esp_replay_keep(j->s->replay, c, c->reasoning.len ? a->signature : NULL);
    if (j->e.http && !j->call->streaming) {
        esp_reply_job_error(j);
        return;
    }
    if (a->gen.stream) {
        end_stream(j);
        return;
    }
    v = message_json(j, blocks_json(j), json_string(stop_reason(c)), stop_sequence(c),
                     usage_json(j, c->tokens.n));
    json_object_set_new(v, "ext", esp_ext_json(j));
    esp_reply_answer(j->call, v);
}

static const struct esp_sink sink = {
    .text = on_text, .tool = on_tool, .progress = open_message, .done = on_done};

static void ping(struct esp_call *c)
{
    for (struct esp_job *j = c->s->jobs; j; j = j->next)
        if (j->call == c)
            open_message(j);
    esp_sse_data(c, "ping", json_pack("{s:s}", "type", "ping"));
}

/* The stream begins with the first event that needs it to have begun. */
static void begin_stream(struct esp_job *j)
{
    (void)j;
}

void esp_messages(struct esp_call *c)
{
    struct message *a = make_message(c);

    if (a && read_request(c, a, WITH_LIMIT))
        esp_start_chat(&(struct esp_start){.call = c,
                                           .gen = &a->gen,
                                           .p = &a->p,
                                           .sink = &sink,
                                           .call_prefix = "toolu_",
                                           .begin = begin_stream,
                                           .ping = ping});
}

static void reply_count(struct esp_call *c, uint64_t n)
{
    esp_reply_json(c, 200, json_pack("{s:I}", "input_tokens", (json_int_t)n));
}

void esp_count_tokens(struct esp_call *c)
{
    struct message *a = make_message(c);

    if (a && read_request(c, a, WITHOUT_LIMIT))
        esp_start_count(c, &a->p, &a->gen, reply_count);
}
