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
    int index;       /* of the block that is open, or comes next */
    uint64_t n_prompt;
};

static void free_message(void *answer)
{
    struct message *a = answer;

    esp_gen_free(&a->gen);
    esp_chat_free(&a->p);
    esp_free(a);
}

static struct message *message_of(const struct esp_job *j)
{
    return j->call->answer;
}

/* ---- requests: blocks to messages ---- */

struct turn { /* one message being read */
    struct esp_api_error *e;
    const struct esp_server *s;
    json_t *out;      /* array of chat messages */
    const char *role; /* user, assistant or system */
    struct esp_strbuf text, thinking;
    json_t *calls;
    const char *signature;
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
    struct esp_strbuf b;
    bool ok;

    put_turn(t); /* text in front of a result is a message of its own */
    esp_strbuf_init(&b, (size_t)t->s->o.max_prompt_bytes);
    if (json_is_true(json_object_get(block, "is_error")))
        esp_strbuf_puts(&b, "Error: ");
    ok = add_nested(t, &b, json_object_get(block, "content"), at);
    t->any = false;
    if (ok)
        json_array_append_new(t->out, json_pack("{s:s,s:o,s:O*}", "role", "tool", "content",
                                                esp_text_json(esp_strbuf_str(&b), b.len), "tool_call_id",
                                                json_object_get(block, "tool_use_id")));
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
        }
    } else {
        return esp_api_fail(t->e, content ? "invalid_type" : "missing_field", at,
                            "%s.content: a string or an array of blocks is needed", at);
    }
    put_turn(t);
    return !t->e->http;
}

static void read_messages(struct esp_call *c, struct esp_fields *f, struct message *a)
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
    a->p.messages = t.out;
    json_decref(t.calls);
    esp_strbuf_free(&t.text);
    esp_strbuf_free(&t.thinking);
    if (!c->e.http && esp_chat_normalize(&a->p, &a->gen, c->s, &c->e)) {
        m = json_array_get(a->p.messages, json_array_size(a->p.messages) - 1);
        a->p.continue_final = strcmp(json_string_value(json_object_get(m, "role")), "assistant") == 0;
    }
}

/* Tools in the chat's form, as a body that the chat's reader takes. */
static json_t *chat_tools(const json_t *list, struct esp_gen *g)
{
    json_t *out = json_array(), *t;
    size_t i;

    json_array_foreach(list, i, t)
    {
        json_t *schema = json_object_get(t, "input_schema");

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

static void read_tools(struct esp_call *c, struct esp_fields *f, struct message *a)
{
    const json_t *list = NULL, *choice = NULL;
    json_t *body = json_object();
    struct esp_fields inner, k;
    bool no_parallel = false;
    const char *name = NULL;
    int type = 0;

    if (esp_field_array(f, "tools", &list))
        json_object_set_new(body, "tools", chat_tools(list, &a->gen));
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
    esp_chat_read_tools(&inner, &a->p, &a->gen);
    a->gen.parallel_calls = !no_parallel;
    json_decref(body);
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

enum { WITH_LIMIT, WITHOUT_LIMIT };

static bool read_request(struct esp_call *c, struct message *a, int limit)
{
    static const char *const no_effect[] = {"model",       "metadata",      "service_tier",
                                            "container",   "inference_geo", "context_management",
                                            "diagnostics", "cache_control"};
    struct esp_fields f;

    esp_fields_init(&f, c->body, "", &c->e);
    read_messages(c, &f, a);
    esp_params_read(&f, &a->gen, c->s);
    if (limit == WITH_LIMIT && a->gen.max_tokens < 0)
        esp_api_fail(&c->e, "missing_field", "max_tokens",
                     "max_tokens: missing; a number of tokens is needed");
    if (a->gen.n != 1)
        esp_api_fail(&c->e, "unsupported_value", "n", "n: only 1 is accepted here");
    esp_params_stops(&f, "stop_sequences", &a->gen);
    read_thinking(c, &f, a);
    read_tools(c, &f, a);
    esp_params_refuse(&f);
    esp_constrain_read(&f, &a->gen);
    if (esp_field_any(&f, "mcp_servers"))
        esp_gen_warn(&a->gen, "mcp_servers have no effect here");
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
    esp_random_id(a->id, sizeof a->id, "msg_");
    snprintf(c->answer_id, sizeof c->answer_id, "%s", a->id);
    esp_random_id(a->signature, sizeof a->signature, "sig_");
    c->answer = a;
    c->free_answer = free_message;
    return a;
}

/* ---- answers ---- */

static json_t *usage_json(uint64_t prompt, uint64_t cached, uint64_t output)
{
    return json_pack("{s:I,s:I,s:i,s:I}", "input_tokens",
                     (json_int_t)(prompt - (cached < prompt ? cached : prompt)), "cache_read_input_tokens",
                     (json_int_t)cached, "cache_creation_input_tokens", 0, "output_tokens",
                     (json_int_t)output);
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

static json_t *message_json(const struct esp_job *j, json_t *content, json_t *reason, json_t *sequence,
                            json_t *usage)
{
    return json_pack("{s:s,s:s,s:s,s:o,s:o,s:o,s:o,s:o}", "id", message_of(j)->id, "type", "message", "role",
                     "assistant", "model", esp_model_name(j->s, j->gen->adapter), "content", content,
                     "stop_reason", reason, "stop_sequence", sequence, "usage", usage);
}

/* ---- stream ---- */

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

    close_block(j);
    a->open = kind;
    esp_sse_data(
        j->call, "content_block_start",
        json_pack("{s:s,s:i,s:o}", "type", "content_block_start", "index", a->index, "content_block", block));
}

static void send_delta(struct esp_job *j, const char *type, const char *key, const char *s, size_t len)
{
    esp_sse_data(j->call, "content_block_delta",
                 json_pack("{s:s,s:i,s:{s:s,s:o}}", "type", "content_block_delta", "index",
                           message_of(j)->index, "delta", "type", type, key, esp_text_json(s, len)));
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
    close_block(j);
    esp_sse_data(j->call, "message_delta",
                 json_pack("{s:s,s:{s:s,s:o},s:o,s:o}", "type", "message_delta", "delta", "stop_reason",
                           stop_reason(c), "stop_sequence", stop_sequence(c), "usage",
                           usage_json(j->prompt.n, j->n_cached, c->tokens.n), "ext", esp_ext_json(j)));
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
    if (a->gen.stream) {
        end_stream(j);
        return;
    }
    if (j->e.http) {
        j->call->e = j->e;
        memset(&j->e, 0, sizeof j->e);
        esp_reply_error(j->call);
        return;
    }
    v = message_json(j, blocks_json(j), json_string(stop_reason(c)), stop_sequence(c),
                     usage_json(j->prompt.n, j->n_cached, c->tokens.n));
    json_object_set_new(v, "ext", esp_ext_json(j));
    esp_reply_json(j->call, 200, v);
}

static const struct esp_sink sink = {on_text, on_tool, NULL, on_done};

static void ping(struct esp_call *c)
{
    esp_sse_data(c, "ping", json_pack("{s:s}", "type", "ping"));
}

void esp_messages(struct esp_call *c)
{
    struct message *a = make_message(c);
    struct esp_prompt prompt;
    struct esp_job *j = NULL;
    uint64_t limit = 0;

    if (!a || !read_request(c, a, WITH_LIMIT) || !esp_prompt_chat(&prompt, &a->p, &a->gen, c->s, &c->e))
        return;
    if (esp_job_limit(c->s, &a->gen, prompt.ids.n, &limit, &c->e)) {
        struct esp_job_opts o = esp_prompt_job(c, &prompt, &a->p, &a->gen);

        o.sink = &sink;
        o.call_prefix = "toolu_";
        if (esp_job_start(&j, &o, limit, &c->e) && a->gen.stream) {
            esp_sse_begin(c);
            c->ping = ping;
            c->ping_interval = a->gen.ping;
            esp_sse_data(c, "message_start",
                         json_pack("{s:s,s:o}", "type", "message_start", "message",
                                   message_json(j, json_array(), json_null(), json_null(),
                                                usage_json(j->prompt.n, 0, 0))));
        }
    }
    esp_prompt_free(&prompt);
}

void esp_count_tokens(struct esp_call *c)
{
    struct message *a = make_message(c);
    struct esp_prompt prompt;

    if (!a || !read_request(c, a, WITHOUT_LIMIT) || !esp_prompt_chat(&prompt, &a->p, &a->gen, c->s, &c->e))
        return;
    esp_reply_json(c, 200, json_pack("{s:I}", "input_tokens", (json_int_t)prompt.ids.n));
    esp_prompt_free(&prompt);
}
