/*
 * POST /v1/completions: plain texts or token ids, continued. One prompt is one generation; their choices are
 * numbered prompt by prompt. No template, no thinking, no tools.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "engine/chat.h"

#include "serve/adapters.h"
#include "serve/background.h"
#include "serve/constrain.h"
#include "serve/fim.h"
#include "serve/frame.h"
#include "serve/params.h"
#include "serve/route.h"

enum { MAX_PROMPTS = 64, DEFAULT_MAX_TOKENS = 512 };

struct completion {
    struct esp_gen gen;
    char id[48];
    int64_t created;
    bool include_usage, echo, failed;
    const json_t *suffix;   /* of the body: fill in what belongs in front of it; NULL: go on */
    bool control;           /* <|im_end|> and the like in a prompt are tokens */
    const json_t *prompt;   /* of the body */
    struct esp_api_error e; /* of what is done with it beside the loop */
    size_t n_prompt, n_done;
    struct esp_ids prompts[MAX_PROMPTS];
    struct esp_strbuf echoes[MAX_PROMPTS];        /* text of a prompt, with echo */
    json_t *scores[MAX_PROMPTS];                  /* rows of its tokens, with echo and logprobs */
    bool echoed[MAX_PROMPTS];                     /* sent, in a stream */
    json_t *choices;                              /* [n_prompt * n], whole answers */
    uint64_t sent[MAX_PROMPTS * ESP_MAX_CHOICES]; /* characters so far, for text_offset */
    json_t *usage, *timings, *ext;
    struct esp_frame frame;
};

static void free_completion(void *answer)
{
    struct completion *a = answer;

    esp_gen_free(&a->gen);
    for (size_t i = 0; i < a->n_prompt; i++) {
        esp_ids_free(&a->prompts[i]);
        esp_strbuf_free(&a->echoes[i]);
        json_decref(a->scores[i]);
    }
    json_decref(a->choices);
    json_decref(a->usage);
    json_decref(a->timings);
    json_decref(a->ext);
    esp_api_error_clear(&a->e);
    esp_frame_free(&a->frame);
    esp_free(a);
}

static struct completion *completion_of(const struct esp_job *j)
{
    return j->call->answer;
}

/* ---- answers ---- */

static uint64_t characters(const char *s, size_t len)
{
    uint64_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return n;
}

/* Rows of the chat form as the older dialect has them; rows is released. */
static json_t *legacy_logprobs(struct completion *a, size_t number, json_t *rows)
{
    json_t *tokens = json_array(), *logprobs = json_array(), *tops = json_array(), *offsets = json_array(),
           *row;
    size_t i;

    json_array_foreach(rows, i, row)
    {
        const json_t *list = json_object_get(row, "top_logprobs"), *t;
        const json_t *text = json_object_get(row, "token");
        json_t *top = list ? json_object() : json_null(); /* nothing stands in front of the first token */
        size_t k;

        json_array_append(tokens, (json_t *)text);
        json_array_append(logprobs, json_object_get(row, "logprob"));
        json_array_foreach(list, k, t)
        {
            const char *name = json_string_value(json_object_get(t, "token"));

            if (!json_object_get(top, name))
                json_object_set(top, name, json_object_get(t, "logprob"));
        }
        json_array_append_new(tops, top);
        json_array_append_new(offsets, json_integer((json_int_t)a->sent[number]));
        a->sent[number] += characters(json_string_value(text), json_string_length(text));
    }
    json_decref(rows);
    return json_pack("{s:o,s:o,s:o,s:o}", "tokens", tokens, "token_logprobs", logprobs, "top_logprobs", tops,
                     "text_offset", offsets);
}

/* Those of an answer; in a whole one those of the prompt come first. */
static json_t *logprobs_json(struct esp_choice *c, size_t number, bool all)
{
    struct completion *a = completion_of(c->job);
    json_t *rows = esp_choice_rows(c, all), *both;

    if (!rows)
        return json_null();
    if (a->scores[c->job->index] && !a->gen.stream) {
        both = json_copy(a->scores[c->job->index]);
        json_array_extend(both, rows);
        json_decref(rows);
        rows = both;
    }
    return legacy_logprobs(a, number, rows);
}

static json_t *object_json(const struct esp_call *call, json_t *choices)
{
    const struct completion *a = call->answer;

    return json_pack("{s:s,s:s,s:I,s:o,s:o,s:o}", "id", a->id, "object", "text_completion", "created",
                     (json_int_t)a->created, "model", esp_model_name(call->s, a->gen.adapter),
                     "system_fingerprint", esp_fingerprint(call->s), "choices", choices);
}

static size_t number_of(const struct esp_choice *c)
{
    return (size_t)c->job->index * c->job->n + c->index;
}

static void send(const struct esp_call *call, json_t *choice)
{
    json_t *v = object_json(call, json_pack("[o]", choice));

    if (((const struct completion *)call->answer)->include_usage)
        json_object_set_new(v, "usage", json_null());
    esp_sse_data((struct esp_call *)call, NULL, v);
}

/* The prompt, in front of its answers. */
static void send_echo(struct esp_job *j)
{
    struct completion *a = completion_of(j);
    const struct esp_strbuf *echo = &a->echoes[j->index];

    if (!a->gen.stream || !a->echo || a->echoed[j->index])
        return;
    a->echoed[j->index] = true;
    for (uint32_t k = 0; k < j->n && echo->len; k++) {
        const size_t number = (size_t)j->index * j->n + k;
        json_t *rows = json_incref(a->scores[j->index]);

        send(j->call, json_pack("{s:i,s:o,s:o,s:n}", "index", (int)number, "text",
                                esp_text_json(esp_strbuf_str(echo), echo->len), "logprobs",
                                rows ? legacy_logprobs(a, number, rows) : json_null(), "finish_reason"));
    }
}

static void on_progress(struct esp_job *j)
{
    json_t *v;

    send_echo(j);
    if (!j->gen->stream || !j->gen->progress)
        return;
    v = object_json(j->call, json_array());
    json_object_set_new(v, "prompt_progress", esp_progress_json(j));
    esp_sse_data(j->call, NULL, v);
}

static void on_prompt(struct esp_job *j, const struct esp_service_event *x)
{
    json_array_append_new(completion_of(j)->scores[j->index], esp_logprob_row(j, x));
}

/* The same bytes as send() without log-probabilities. */
static void send_text(struct esp_choice *c, const char *s, size_t len)
{
    struct completion *a = completion_of(c->job);
    struct esp_strbuf *b;

    if (a->frame.head.len == 0)
        esp_frame_chunk_head(&a->frame, object_json(c->job->call, json_array()));
    b = esp_frame_begin(&a->frame);
    esp_frame_number(b, number_of(c));
    esp_strbuf_puts(b, ",\"text\":\"");
    esp_frame_text(b, s, len);
    esp_strbuf_puts(b, "\",\"logprobs\":null,\"finish_reason\":null}]");
    esp_strbuf_puts(b, a->include_usage ? ",\"usage\":null}" : "}");
    esp_frame_send(&a->frame, c->job->call);
}

static void on_text(struct esp_choice *c, enum esp_turn_what what, const char *s, size_t len)
{
    const struct completion *a = completion_of(c->job);

    if (!a->gen.stream || what != ESP_TURN_CONTENT)
        return;
    if (a->gen.logprobs)
        send(c->job->call,
             json_pack("{s:i,s:o,s:o,s:n}", "index", (int)number_of(c), "text", esp_text_json(s, len),
                       "logprobs", logprobs_json(c, number_of(c), false), "finish_reason"));
    else
        send_text(c, s, len);
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
    struct completion *a = completion_of(c->job);
    const struct esp_strbuf *echo = &a->echoes[c->job->index];
    struct esp_strbuf text;
    json_t *choice;

    if (c->job->e.http)
        return;
    esp_strbuf_init(&text, ESP_LIMIT_TURN_BYTES);
    if (!a->gen.stream) {
        esp_strbuf_add(&text, esp_strbuf_str(echo), echo->len);
        esp_strbuf_add(&text, esp_strbuf_str(&c->content), c->content.len);
    }
    choice = json_pack("{s:i,s:o,s:o,s:s,s:o}", "index", (int)number_of(c), "text",
                       esp_text_json(esp_strbuf_str(&text), text.len), "logprobs",
                       logprobs_json(c, number_of(c), true), "finish_reason", esp_end_name(c->end),
                       "stop_reason", stop_reason(c));
    esp_strbuf_free(&text);
    if (a->gen.stream)
        send(c->job->call, choice);
    else
        json_array_set_new(a->choices, number_of(c), choice);
}

/* Sum b's numbers into a, objects inside too. */
static void add_numbers(json_t *a, const json_t *b)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)b, key, v)
    {
        json_t *have = json_object_get(a, key);
        const char *inner;
        json_t *w;

        if (json_is_integer(v)) {
            json_object_set_new(a, key, json_integer(json_integer_value(have) + json_integer_value(v)));
            continue;
        }
        json_object_foreach(v, inner, w)
        {
            const json_int_t sum = json_integer_value(json_object_get(have, inner)) + json_integer_value(w);

            json_object_set_new(have, inner, json_integer(sum));
        }
    }
}

static void end_all(struct esp_call *c)
{
    struct completion *a = c->answer;
    json_t *v;

    if (a->gen.stream) {
        if (a->include_usage) { /* the last chunk has all numbers, as a whole answer does */
            v = object_json(c, json_array());
            json_object_set(v, "usage", a->usage);
            json_object_set(v, "timings", a->timings);
            json_object_set(v, "ext", a->ext);
            esp_sse_data(c, NULL, v);
        }
        esp_sse_line(c, "data: [DONE]");
        esp_sse_end(c);
        return;
    }
    v = object_json(c, json_incref(a->choices));
    json_object_set(v, "usage", a->usage);
    json_object_set(v, "timings", a->timings);
    json_object_set(v, "ext", a->ext);
    esp_reply_answer(c, v);
}

static void on_done(struct esp_job *j)
{
    struct completion *a = completion_of(j);
    struct esp_call *c = j->call;
    json_t *usage = esp_usage_json(j);

    if (a->usage)
        add_numbers(a->usage, usage);
    else
        a->usage = json_incref(usage);
    json_decref(usage);
    if (!a->timings)
        a->timings = esp_timings_json(j);
    if (!a->ext)
        a->ext = esp_ext_json(j);
    a->n_done++;
    if (j->e.http && !a->failed) {
        a->failed = true;
        c->e = j->e;
        memset(&j->e, 0, sizeof j->e);
        if (c->streaming) {
            esp_sse_data(c, NULL, json_pack("{s:o}", "error", esp_api_error_object(&c->e)));
            esp_sse_end(c);
        } else {
            esp_reply_error(c);
        }
        esp_jobs_cancel_call(c, ESP_JOB_ASKED);
    } else if (a->n_done == a->n_prompt && !a->failed) {
        end_all(c);
    }
}

static const struct esp_sink sink = {
    .text = on_text, .progress = on_progress, .prompt = on_prompt, .ended = on_ended, .done = on_done};

static void ping(struct esp_call *c)
{
    esp_sse_line(c, ": ping");
}

/* ---- requests ---- */

/* Any thread: touches the call's body and a alone. */
static bool add_prompt(const struct esp_server *s, struct completion *a, const json_t *one, const char *at)
{
    struct esp_ids *ids = &a->prompts[a->n_prompt];

    esp_ids_init(ids, ESP_LIMIT_TURN_BYTES);
    esp_strbuf_init(&a->echoes[a->n_prompt++], (size_t)s->o.max_prompt_bytes * 4);
    if (!json_is_string(one) && !json_is_array(one))
        return esp_api_fail(&a->e, "invalid_type", at, "%s: %s is neither a string nor an array of token ids",
                            at, esp_show_value(one));
    if (json_is_string(one)
            ? !esp_prompt_text(ids, s, json_string_value(one), json_string_length(one), a->control, &a->e)
            : !esp_prompt_ids(ids, s, one, at, &a->e))
        return false;
    return !a->suffix || esp_fim_wrap(ids, s, a->suffix, a->control, &a->e);
}

static bool is_list(const json_t *prompt)
{
    return json_is_array(prompt) && !json_is_integer(json_array_get(prompt, 0));
}

static void read_prompt(struct esp_call *c, struct esp_fields *f, struct completion *a)
{
    a->prompt = esp_field_any(f, "prompt");
    if (!a->prompt)
        esp_api_fail(&c->e, "missing_field", "prompt",
                     "prompt: missing; a string, token ids, or an array of them");
    else if (is_list(a->prompt) &&
             (json_array_size(a->prompt) == 0 || json_array_size(a->prompt) > MAX_PROMPTS))
        esp_api_fail(&c->e, "invalid_value", "prompt", "prompt: %zu prompts; 1 to %d are accepted",
                     json_array_size(a->prompt), MAX_PROMPTS);
}

/* The prompts as ids; any thread. */
static void add_prompts(const struct esp_call *c, struct completion *a)
{
    const struct esp_server *s = c->s;
    const json_t *one;
    char at[32];
    size_t i;

    if (!is_list(a->prompt)) {
        add_prompt(s, a, a->prompt, "prompt");
        return;
    }
    json_array_foreach(a->prompt, i, one)
    {
        snprintf(at, sizeof at, "prompt[%zu]", i);
        if (atomic_load(&c->gone) || !add_prompt(s, a, one, at))
            return;
    }
}

static bool read_request(struct esp_call *c, struct completion *a)
{
    const json_t *options = NULL;
    struct esp_fields f, s;
    int64_t n = 0;

    esp_fields_init(&f, c->body, "", &c->e);
    esp_params_read(&f, &a->gen, c->s);
    esp_params_stops(&f, "stop", &a->gen);
    if (esp_field_int(&f, "logprobs", 0, 20, &n)) {
        a->gen.logprobs = true;
        a->gen.top = (uint32_t)n;
    }
    esp_field_bool(&f, "echo", &a->echo);
    a->control = true;
    esp_field_bool(&f, "parse_special", &a->control);
    esp_fim_read(&f, &a->gen, c->s, &a->suffix);
    if (a->suffix && a->echo)
        esp_api_fail(&c->e, "invalid_value", "echo", "echo: not together with suffix");
    a->gen.score = a->echo && a->gen.logprobs;
    if (a->gen.score && a->gen.processed_logprobs)
        esp_api_fail(&c->e, "unsupported_value", "logprobs_mode",
                     "logprobs_mode: processed is of tokens that are drawn; with echo, raw is accepted");
    if (esp_field_object(&f, "stream_options", &options)) {
        esp_fields_init(&s, options, "stream_options.", &c->e);
        esp_field_bool(&s, "include_usage", &a->include_usage);
    }
    esp_params_refuse(&f);
    esp_constrain_read(&f, &a->gen);
    esp_field_any(&f, "model");
    if (!c->e.http && a->gen.max_tokens < 0)
        a->gen.max_tokens = DEFAULT_MAX_TOKENS;
    read_prompt(c, &f, a);
    json_decref(a->gen.ignored);
    a->gen.ignored = esp_fields_ignored(&f);
    return !c->e.http && esp_model_check(c, json_object_get(c->body, "model"));
}

/* The first token's row: nothing stands in front of it. */
static json_t *first_row(const struct esp_server *s, uint32_t id)
{
    struct esp_strbuf text;
    json_t *v;

    esp_strbuf_init(&text, 4 * ESP_LIMIT_TOKEN_BYTES);
    esp_detok_decode(esp_model_tokenizer(s->model), &id, 1, 0, &text, NULL);
    v = json_pack("{s:o,s:n}", "token", esp_text_json(esp_strbuf_str(&text), text.len), "logprob");
    esp_strbuf_free(&text);
    return v;
}

static void make_echoes(const struct esp_call *c, struct completion *a)
{
    for (size_t i = 0; a->echo && i < a->n_prompt; i++) {
        esp_detok_decode(esp_model_tokenizer(c->s->model), a->prompts[i].data, a->prompts[i].n, 0,
                         &a->echoes[i], NULL);
        if (a->gen.score && a->prompts[i].n)
            a->scores[i] = json_pack("[o]", first_row(c->s, a->prompts[i].data[0]));
        for (uint32_t k = 0; k < a->gen.n && !a->gen.score; k++)
            a->sent[i * a->gen.n + k] = characters(esp_strbuf_str(&a->echoes[i]), a->echoes[i].len);
    }
}

/* All limits first, then all jobs: a refusal must come before anything runs. */
static bool start_all(struct esp_call *c, struct completion *a)
{
    uint64_t limits[MAX_PROMPTS];

    for (size_t i = 0; i < a->n_prompt; i++)
        if (!esp_job_limit(c->s, &a->gen, a->prompts[i].n, &limits[i], &c->e))
            return false;
    for (size_t i = 0; i < a->n_prompt; i++) {
        const struct esp_job_opts o = {.call = c,
                                       .gen = &a->gen,
                                       .sink = &sink,
                                       .prompt = a->prompts[i],
                                       .index = (uint32_t)i,
                                       .raw = true,
                                       .think_budget = -1};
        struct esp_job *j;

        memset(&a->prompts[i], 0, sizeof a->prompts[i]);
        if (!esp_job_start(&j, &o, limits[i], &c->e))
            return false;
    }
    return true;
}

static void grammar_known(void *user)
{
    struct esp_call *c = user;
    struct completion *a = c->answer;

    if (c->r && !c->e.http && start_all(c, a)) {
        if (a->gen.stream)
            esp_sse_expect(c, ping, a->gen.ping);
    } else {
        esp_jobs_cancel_call(c, ESP_JOB_ASKED);
    }
    if (c->e.http && !c->streaming && !c->waits_to_open)
        esp_reply_error(c);
    esp_mounts_hold(c->s, a->gen.adapters, a->gen.n_adapter, -1);
    esp_call_job_ended(c);
}

/* The prompts are ids now, or it is known why they are not. */
static void got_prompts(struct esp_call *c)
{
    struct completion *a = c->answer;

    if (a->e.http) {
        c->e = a->e;
        memset(&a->e, 0, sizeof a->e);
    }
    if (c->e.http || !c->r) {
        grammar_known(c);
        return;
    }
    for (size_t i = 0; i < a->n_prompt * a->gen.n; i++)
        json_array_append_new(a->choices, json_null());
    esp_constrain_compile(
        &(struct esp_constrain_ask){.s = c->s, .gen = &a->gen, .e = &c->e, .done = grammar_known, .user = c});
}

static esp_status tokenize(void *arg, esp_error *err)
{
    const struct esp_call *c = arg;
    struct completion *a = c->answer;

    (void)err;
    if (!atomic_load(&c->gone))
        add_prompts(c, a);
    if (!a->e.http && !atomic_load(&c->gone))
        make_echoes(c, a);
    return ESP_OK;
}

static void tokenized(void *arg, esp_status s, const esp_error *err)
{
    struct esp_call *c = arg;

    if (s != ESP_OK)
        esp_api_fail_status(&c->e, NULL, err);
    got_prompts(c);
}

void esp_completions(struct esp_call *c)
{
    struct completion *a = esp_alloc(sizeof *a);
    esp_error err;

    if (!a) {
        esp_api_fail(&c->e, "device_lost", NULL, "no memory for the request");
        return;
    }
    esp_gen_init(&a->gen, c->s);
    esp_frame_init(&a->frame);
    a->created = (int64_t)time(NULL);
    a->choices = json_array();
    esp_random_id(a->id, sizeof a->id, "cmpl-");
    snprintf(c->answer_id, sizeof c->answer_id, "%s", a->id);
    c->answer = a;
    c->free_answer = free_completion;
    if (!read_request(c, a))
        return;
    c->n_job++; /* the call stays although its client may go */
    esp_mounts_hold(c->s, a->gen.adapters, a->gen.n_adapter, 1);
    if (!esp_call_is_big(c) ||
        esp_background_queue(c->s->background, tokenize, tokenized, c, &err) != ESP_OK) {
        tokenize(c, &err);
        got_prompts(c);
    }
}
