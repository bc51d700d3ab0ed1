/*
 * /v1/responses: the OpenAI responses dialect, from the request's side, and the answers that are kept.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"

#include "serve/constrain.h"
#include "serve/response.h"
#include "serve/response_input.h"
#include "serve/route.h"
#include "serve/store.h"

static void free_response(void *answer)
{
    struct esp_response *a = answer;

    esp_gen_free(&a->gen);
    esp_chat_free(&a->p);
    json_decref(a->history);
    json_decref(a->input);
    json_decref(a->custom);
    json_decref(a->output);
    esp_frame_free(&a->frame);
    esp_free(a);
}

/* ---- requests ---- */

static void refuse_fields(struct esp_fields *f, struct esp_response *a)
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
    if (esp_field_word(f, "truncation", "disabled|auto", &truncation))
        a->p.truncate = truncation == 1;
    if (esp_field_array(f, "include", &include))
        json_array_foreach(include, i, v)
        {
            const char *s = json_is_string(v) ? json_string_value(v) : "";

            if (strcmp(s, "reasoning.encrypted_content") == 0)
                a->want_encrypted = true;
            else if (strcmp(s, "message.output_text.logprobs") == 0)
                a->gen.logprobs = true;
            else
                esp_gen_warn(&a->gen, "an unknown value of include was ignored");
        }
}

/* History of the answer that this one follows. */
static bool load_previous(struct esp_call *c, struct esp_response *a)
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

static bool read_messages(struct esp_call *c, struct esp_fields *f, struct esp_response *a)
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

static void read_tools(struct esp_call *c, struct esp_fields *f, struct esp_response *a)
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

static bool read_request(struct esp_call *c, struct esp_response *a)
{
    static const char *const no_effect[] = {
        "model",          "metadata", "service_tier",           "safety_identifier", "max_tool_calls",
        "stream_options", "user",     "prompt_cache_retention", "client_metadata"};
    const json_t *summary, *options = NULL;
    struct esp_fields f, cache;
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
    if (esp_field_object(&f, "prompt_cache_options", &options)) {
        esp_fields_init(&cache, options, "prompt_cache_options.", &c->e);
        esp_field_string(&cache, "comparison_response_id", &a->gen.compare);
    }
    for (size_t i = 0; i < sizeof no_effect / sizeof no_effect[0]; i++)
        esp_field_any(&f, no_effect[i]);
    if (!read_messages(c, &f, a))
        return false;
    json_decref(a->gen.ignored);
    a->gen.ignored = esp_fields_ignored(&f);
    return !c->e.http && esp_model_check(c, json_object_get(c->body, "model"));
}

static struct esp_response *make_response(struct esp_call *c)
{
    struct esp_response *a = esp_alloc(sizeof *a);

    if (!a) {
        esp_api_fail(&c->e, "device_lost", NULL, "no memory for the request");
        return NULL;
    }
    esp_gen_init(&a->gen, c->s);
    esp_chat_init(&a->p, c->s);
    esp_frame_init(&a->frame);
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
    struct esp_response *a = make_response(c);

    if (a && read_request(c, a))
        esp_start_chat(&(struct esp_start){.call = c,
                                           .gen = &a->gen,
                                           .p = &a->p,
                                           .sink = &esp_response_sink,
                                           .call_prefix = "call_",
                                           .begin = esp_response_begin,
                                           .ping = esp_response_ping});
}

static void reply_count(struct esp_call *c, uint64_t n)
{
    esp_reply_json(c, 200,
                   json_pack("{s:s,s:I}", "object", "response.input_tokens", "input_tokens", (json_int_t)n));
}

void esp_response_tokens(struct esp_call *c)
{
    struct esp_response *a = make_response(c);

    if (a && read_request(c, a))
        esp_start_count(c, &a->p, &a->gen, reply_count);
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
