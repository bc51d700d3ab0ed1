/*
 * One answer of a generation: an id to characters (detokenizer), characters to channels (turn), visible text
 * through the stop strings, and out to the sink. A choice that is over for us may still run in the engine for
 * a step; what comes then is dropped.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/job.h"

#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "engine/chat.h"

enum { MAX_ROWS = 1 << 24, MAX_CALLS = 1024 };

/* ---- log-probabilities ---- */

static void add_row(struct esp_choice *c, json_t *entry)
{
    if (!entry)
        return;
    if (c->n_row == c->cap_row) {
        const size_t cap = c->cap_row ? 2 * c->cap_row : 64;
        struct esp_logprob_row *v = cap <= MAX_ROWS ? esp_realloc(c->rows, cap * sizeof *v) : NULL;

        if (!v) {
            json_decref(entry);
            return;
        }
        c->rows = v;
        c->cap_row = cap;
    }
    c->rows[c->n_row++] = (struct esp_logprob_row){entry, 0};
    c->n_pending++;
}

enum settled { AS_CONTENT, AS_REASONING, AS_MARKUP };

/* It is known now what the pending rows are. */
static void settle_rows(struct esp_choice *c, enum settled what)
{
    const size_t first = c->n_row - c->n_pending;

    for (size_t i = first; i < c->n_row; i++) {
        if (what == AS_CONTENT) {
            c->rows[i].start = c->fed;
            continue;
        }
        if (what == AS_REASONING && c->reasoning_rows)
            json_array_append(c->reasoning_rows, c->rows[i].entry);
        json_decref(c->rows[i].entry);
    }
    if (what != AS_CONTENT)
        c->n_row = first;
    c->n_pending = 0;
}

json_t *esp_choice_rows(struct esp_choice *c, bool all)
{
    const size_t settled = c->n_row - c->n_pending;
    const bool stopped = c->stop && esp_stop_matched(c->stop) >= 0;
    json_t *out;

    if (!c->job->gen->logprobs)
        return NULL;
    out = json_array();
    while (c->n_taken < settled && (c->rows[c->n_taken].start < c->content.len || (all && !stopped)))
        json_array_append(out, c->rows[c->n_taken++].entry);
    return out;
}

/* ---- channels ---- */

static void deliver(struct esp_choice *c, enum esp_turn_what what, const char *s, size_t len)
{
    struct esp_strbuf *all = what == ESP_TURN_REASONING ? &c->reasoning : &c->content;

    if (len == 0)
        return;
    esp_strbuf_add(all, s, len);
    if (c->job->call->r && c->job->sink->text)
        c->job->sink->text(c, what, s, len);
}

static void visible(struct esp_choice *c, const char *s, size_t len)
{
    struct esp_strbuf out;

    settle_rows(c, AS_CONTENT);
    c->fed += len;
    if (!c->stop) {
        deliver(c, ESP_TURN_CONTENT, s, len);
        return;
    }
    esp_strbuf_init(&out, ESP_LIMIT_TURN_BYTES);
    esp_stop_feed(c->stop, s, len, &out, NULL);
    deliver(c, ESP_TURN_CONTENT, esp_strbuf_str(&out), out.len);
    esp_strbuf_free(&out);
}

/* No more visible text comes, or other things come first: what was held is decided. */
static void flush_visible(struct esp_choice *c)
{
    struct esp_strbuf out;

    if (!c->stop || esp_stop_matched(c->stop) >= 0)
        return;
    esp_strbuf_init(&out, ESP_LIMIT_TURN_BYTES);
    esp_stop_flush(c->stop, &out, NULL);
    deliver(c, ESP_TURN_CONTENT, esp_strbuf_str(&out), out.len);
    esp_strbuf_free(&out);
}

static struct esp_call_made *new_call(struct esp_choice *c)
{
    struct esp_call_made *made;

    if (c->n_call == c->cap_call) {
        const size_t cap = c->cap_call ? 2 * c->cap_call : 4;
        struct esp_call_made *v = cap <= MAX_CALLS ? esp_realloc(c->calls, cap * sizeof *v) : NULL;

        if (!v)
            return NULL;
        c->calls = v;
        c->cap_call = cap;
    }
    made = &c->calls[c->n_call++];
    memset(made, 0, sizeof *made);
    esp_strbuf_init(&made->args, ESP_LIMIT_TURN_BYTES);
    esp_random_id(made->id, sizeof made->id, c->job->call_prefix);
    return made;
}

static void tool_piece(struct esp_choice *c, enum esp_turn_what what, const char *s, size_t len)
{
    struct esp_call_made *made = what == ESP_TURN_CALL ? new_call(c)
                                 : c->n_call           ? &c->calls[c->n_call - 1]
                                                       : NULL;

    if (!made)
        return;
    if (what == ESP_TURN_CALL)
        snprintf(made->name, sizeof made->name, "%.*s", (int)(len < 256 ? len : 256), s);
    else if (what == ESP_TURN_ARGS)
        esp_strbuf_add(&made->args, s, len);
    else
        made->whole = true;
    if (c->job->call->r && c->job->sink->tool)
        c->job->sink->tool(c, made, what, s, len);
    if (what == ESP_TURN_CALL_END) {
        c->job->s->metrics.calls_ok++;
        if (!c->job->gen->parallel_calls && !c->stopping && !c->ended) {
            c->end = ESP_END_CALLS;
            esp_choice_cancel(c);
        }
    }
}

static void on_piece(void *user, enum esp_turn_what what, const char *s, size_t len)
{
    struct esp_choice *c = user;

    if (c->end != ESP_END_NONE && c->end != ESP_END_FAILED && c->stopping)
        return; /* over for us */
    if (c->stop && esp_stop_matched(c->stop) >= 0)
        return;
    if (what == ESP_TURN_CONTENT) {
        visible(c, s, len);
        return;
    }
    if (what == ESP_TURN_REASONING) {
        settle_rows(c, AS_REASONING);
        deliver(c, what, s, len);
        return;
    }
    settle_rows(c, AS_MARKUP);
    if (what == ESP_TURN_CALL)
        flush_visible(c);
    tool_piece(c, what, s, len);
}

static void on_warning(void *user, const char *message)
{
    struct esp_choice *c = user;

    c->job->s->metrics.calls_warned++;
    esp_gen_warn(c->job->gen, message);
}

/* ---- tokens ---- */

void esp_choice_feed(struct esp_choice *c, const char *s, size_t len)
{
    const size_t content = esp_turn_content_bytes(c->turn), reasoning = esp_turn_reasoning_bytes(c->turn);

    if (len == 0)
        return;
    if (esp_turn_feed(c->turn, s, len, NULL) != ESP_OK) {
        esp_api_fail(&c->job->e, "device_lost", NULL, "no memory for the answer");
        c->end = ESP_END_FAILED;
        esp_choice_cancel(c);
        return;
    }
    if (esp_turn_undecided(c->turn) == 0 && esp_turn_content_bytes(c->turn) == content &&
        esp_turn_reasoning_bytes(c->turn) == reasoning)
        settle_rows(c, AS_MARKUP);
}

static bool is_stop_token(const struct esp_gen *g, esp_token t)
{
    for (size_t i = 0; i < g->n_stop_token; i++)
        if (g->stop_tokens[i] == t)
            return true;
    return false;
}

static void check_stop(struct esp_choice *c)
{
    if (!c->stop || c->end != ESP_END_NONE)
        return;
    if (esp_stop_pending(c->stop))
        flush_visible(c);
    if (esp_stop_matched(c->stop) < 0)
        return;
    c->stop_string = esp_stop_matched(c->stop);
    c->end = ESP_END_STOP;
    if (c->job->gen->include_stop)
        deliver(c, ESP_TURN_CONTENT, c->job->gen->stops[c->stop_string].text,
                c->job->gen->stops[c->stop_string].len);
    esp_choice_cancel(c);
}

/* ---- thinking ---- */

const char esp_budget_message[] =
    "\n\nConsidering the limited time by the user, I have to give the solution based on the "
    "thinking directly now.\n";
enum { MAX_GRACE = 64, MIN_RESERVED = 64 };

/* Stop the run; it goes on behind the tokens so far and this text. */
static void resume_with(struct esp_choice *c, const char *a, const char *b)
{
    c->resume = true;
    esp_strbuf_clear(&c->inject);
    esp_strbuf_puts(&c->inject, a);
    esp_strbuf_puts(&c->inject, b);
    esp_choice_cancel(c);
}

static bool ends_sentence(const char *s, size_t len)
{
    while (len && s[len - 1] == ' ')
        len--;
    return len && strchr(".!?\n", s[len - 1]);
}

/* Whether the bound on thinking says stop, behind this piece of it. */
static bool thought_enough(struct esp_choice *c, const struct esp_strbuf *piece)
{
    if (c->think_left < 0)
        return false;
    if (c->think_left > 0)
        c->think_left--;
    if (c->think_left > 0)
        return false;
    return c->grace-- <= 0 || ends_sentence(esp_strbuf_str(piece), piece->len);
}

/* A token of the thinking has come: does it end here, or has it ended with a call to be forced? */
static void check_thinking(struct esp_choice *c, const struct esp_strbuf *piece)
{
    const char *forced = c->job->in_prompt ? "" : c->job->forced;

    if (c->stopping || c->resume)
        return;
    if (esp_turn_in_reasoning(c->turn)) {
        if (!thought_enough(c, piece))
            return;
        resume_with(c, c->job->s->o.budget_message ? c->job->s->o.budget_message : esp_budget_message,
                    "</think>\n\n");
        esp_strbuf_puts(&c->inject, forced);
    } else if (forced[0] && !esp_turn_in_call(c->turn) && c->n_call == 0) {
        resume_with(c, "\n\n", forced);
    }
}

void esp_choice_token(struct esp_choice *c, const struct esp_service_event *x)
{
    struct esp_metrics *m = &c->job->s->metrics;
    const double now = esp_serve_now();
    const bool reasoning = esp_turn_in_reasoning(c->turn);
    struct esp_strbuf *piece = &c->piece;

    if (c->first_at == 0)
        c->first_at = now;
    else
        esp_observe_seconds(&m->inter_token, esp_buckets_token, now - c->last_at);
    c->last_at = now;
    if (is_stop_token(c->job->gen, x->token)) {
        c->stop_token = x->token;
        c->end = ESP_END_STOP;
        esp_choice_cancel(c);
        return;
    }
    esp_ids_push(&c->tokens, (uint32_t)x->token, NULL);
    c->left -= c->left > 0;
    if (reasoning)
        c->n_reasoning++;
    if (c->job->gen->logprobs)
        add_row(c, esp_logprob_row(c->job, x));
    esp_strbuf_clear(piece);
    esp_detok_push(&c->detok, (uint32_t)x->token, piece, NULL);
    esp_choice_feed(c, esp_strbuf_str(piece), piece->len);
    check_stop(c);
    if (reasoning)
        check_thinking(c, piece);
}

/* ---- the end ---- */

/* What the engine's last event means, unless we ended the choice ourselves. */
static enum esp_end end_of(const struct esp_choice *c, const struct esp_service_event *x)
{
    if (c->end != ESP_END_NONE)
        return c->end;
    if (x->what == ESP_SERVICE_CANCELLED)
        return c->job->timed_out ? ESP_END_LENGTH : ESP_END_GONE;
    return x->finish == ESP_FINISH_END      ? ESP_END_STOP
           : x->finish == ESP_FINISH_LENGTH ? ESP_END_LENGTH
                                            : ESP_END_FAILED;
}

static void note_failure(struct esp_choice *c, const struct esp_service_event *x)
{
    const char *code = x->status == ESP_ENOFIT   ? "context_length_exceeded"
                       : x->status == ESP_EINVAL ? "invalid_value"
                                                 : "internal_error";

    esp_api_fail(&c->job->e, code, NULL, "%s", x->message[0] ? x->message : "the generation failed");
}

/* Hand out what was held back. */
static void flush(struct esp_choice *c, bool by_itself)
{
    struct esp_strbuf piece;

    c->end = ESP_END_NONE; /* so that it comes through */
    c->stopping = false;
    esp_strbuf_init(&piece, 64);
    esp_detok_finish(&c->detok, &piece, NULL);
    esp_choice_feed(c, esp_strbuf_str(&piece), piece.len);
    esp_strbuf_free(&piece);
    c->stopping = true; /* a call that ends now cancels nothing */
    esp_turn_finish(c->turn, by_itself, NULL);
    settle_rows(c, AS_CONTENT);
    flush_visible(c);
}

void esp_choice_finish(struct esp_choice *c, const struct esp_service_event *x)
{
    enum esp_end end = end_of(c, x);

    if (end == ESP_END_FAILED)
        note_failure(c, x);
    if (c->stop_string < 0 && end != ESP_END_GONE) {
        flush(c, end == ESP_END_STOP || end == ESP_END_CALLS);
        if (c->stop && esp_stop_matched(c->stop) >= 0) {
            c->stop_string = esp_stop_matched(c->stop);
            end = ESP_END_STOP;
        }
    }
    if (end == ESP_END_STOP && c->stop_string < 0 && c->n_call && c->calls[c->n_call - 1].whole)
        end = ESP_END_CALLS;
    c->end = end;
    c->ended = true;
}

/* ---- life ---- */

void esp_choice_free(struct esp_choice *c)
{
    esp_turn_destroy(c->turn);
    esp_stop_destroy(c->stop);
    esp_strbuf_free(&c->inject);
    esp_strbuf_free(&c->piece);
    esp_strbuf_free(&c->content);
    esp_strbuf_free(&c->reasoning);
    for (size_t i = 0; i < c->n_call; i++)
        esp_strbuf_free(&c->calls[i].args);
    esp_free(c->calls);
    for (size_t i = 0; i < c->n_row; i++)
        json_decref(c->rows[i].entry);
    esp_free(c->rows);
    json_decref(c->reasoning_rows);
    esp_ids_free(&c->tokens);
}

/* Tokens after which thinking ends: the budget, and never so many that no room is left for an answer. */
static int64_t think_bound(const struct esp_job_opts *o, uint64_t limit)
{
    const uint64_t most = o->call->s->o.answer_reserve, reserve = limit / 2 < most ? limit / 2 : most;
    int64_t bound = o->think_budget;

    if (!o->thinking)
        return -1;
    if (o->gen->max_tokens >= MIN_RESERVED && (bound < 0 || (uint64_t)bound > limit - reserve))
        bound = (int64_t)(limit - reserve);
    return bound;
}

bool esp_choice_init(struct esp_choice *c, struct esp_job *j, uint32_t index, uint64_t limit,
                     const struct esp_job_opts *o, struct esp_api_error *e)
{
    const struct esp_turn_opts turn = {.raw = o->raw,
                                       .thinking = o->thinking,
                                       .continued = o->continued,
                                       .calls = o->calls,
                                       .calls_in_thinking = !o->text_in_thinking,
                                       .tools = o->tools,
                                       .fn = on_piece,
                                       .warn = on_warning,
                                       .user = c};
    esp_error err;
    esp_status s;

    c->job = j;
    c->index = index;
    c->slot = -1;
    c->stop_string = -1;
    c->stop_token = -1;
    c->left = limit;
    c->banned = o->gen->min_tokens > 0;
    c->think_left = think_bound(o, limit);
    c->grace = c->think_left / 8 < MAX_GRACE ? c->think_left / 8 : MAX_GRACE;
    esp_strbuf_init(&c->inject, 4096);
    esp_strbuf_init(&c->piece, 8 * ESP_LIMIT_TOKEN_BYTES);
    esp_strbuf_init(&c->content, ESP_LIMIT_TURN_BYTES);
    esp_strbuf_init(&c->reasoning, ESP_LIMIT_TURN_BYTES);
    esp_ids_init(&c->tokens, ESP_LIMIT_TURN_BYTES);
    esp_detok_init(&c->detok, esp_model_tokenizer(j->s->model), ESP_DETOK_SKIP_SPECIAL);
    if (o->gen->logprobs && o->gen->reasoning_logprobs)
        c->reasoning_rows = json_array();
    s = esp_turn_create(&c->turn, &turn, &err);
    if (s == ESP_OK && o->gen->n_stop)
        s = esp_stop_create(&c->stop, o->gen->stops, o->gen->n_stop, &err);
    return s == ESP_OK || esp_api_fail_status(e, s == ESP_EINVAL ? "stop" : NULL, &err);
}

void esp_choice_markup(struct esp_choice *c)
{
    settle_rows(c, AS_MARKUP);
}
