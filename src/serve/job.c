/*
 * Generations: prompts handed to the engine's service, its events handed to choices, runs that are stopped
 * and go on behind injected text, and what is counted at the end.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/job.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/limits.h"
#include "base/mem.h"
#include "engine/chat.h"

#include "serve/adapters.h"
#include "serve/constrain.h"
#include "serve/content.h"
#include "serve/diag.h"
#include "serve/diagnose.h"
#include "serve/slots.h"

static void free_job(struct esp_job *j)
{
    for (uint32_t i = 0; i < j->n; i++)
        esp_choice_free(&j->choices[i]);
    esp_ids_free(&j->prompt);
    json_decref(j->divergence);
    esp_api_error_clear(&j->e);
    esp_free(j);
}

static enum esp_finish_class class_of(enum esp_end e)
{
    return e == ESP_END_LENGTH   ? ESP_CLASS_LENGTH
           : e == ESP_END_GONE   ? ESP_CLASS_ABORT
           : e == ESP_END_FAILED ? ESP_CLASS_ERROR
                                 : ESP_CLASS_STOP;
}

static void count_reason(const struct esp_job *j)
{
    const char *reason = esp_cache_reason(j);

    for (int i = 0; i < ESP_CACHE_REASONS; i++)
        j->s->metrics.cache_reasons[i] += strcmp(esp_cache_reasons[i], reason) == 0;
}

double esp_wait_estimate(const struct esp_server *s)
{
    const struct esp_histogram *h = &s->metrics.inference;
    const double each = h->n ? h->sum / (double)h->n : 1;
    const uint32_t pending = s->service ? esp_service_pending(s->service) : 0;

    return pending < s->rows ? 0 : each * (1 + pending - s->rows) / s->rows;
}

static void count_choice(const struct esp_choice *c)
{
    struct esp_metrics *m = &c->job->s->metrics;
    const esp_usage *u = &c->usage;

    m->finished[class_of(c->end)]++;
    m->output_total += c->tokens.n;
    m->reasoning_total += c->n_reasoning;
    m->preemptions += u->preemptions;
    if (c->index == 0) {
        m->prompt_total += c->job->prompt.n;
        m->query_tokens += c->job->gen->no_cache ? 0 : c->job->prompt.n;
        m->hit_tokens += u->cached_tokens;
        count_reason(c->job);
        esp_observe_seconds(&m->queue, esp_buckets_phase, u->queue_ms / 1000);
        esp_observe_seconds(&m->prefill, esp_buckets_phase, u->prompt_ms / 1000);
        esp_observe_seconds(&m->prompt_tokens, esp_buckets_count, (double)c->job->prompt.n);
        if (c->first_at > 0)
            esp_observe_seconds(&m->ttft, esp_buckets_ttft, c->first_at - c->job->started);
    }
    esp_observe_seconds(&m->decode, esp_buckets_phase, u->generate_ms / 1000);
    esp_observe_seconds(&m->inference, esp_buckets_phase, (u->prompt_ms + u->generate_ms) / 1000);
    esp_observe_seconds(&m->e2e, esp_buckets_phase, esp_serve_now() - c->job->started);
    esp_observe_seconds(&m->output_tokens, esp_buckets_count, (double)c->tokens.n);
}

/* What the access line tells, over all generations of a call. */
static void note_call(struct esp_job *j)
{
    struct esp_call *c = j->call;
    const struct esp_choice *first = &j->choices[0];

    c->n_prompt += j->prompt.n;
    c->n_cached += j->n_cached;
    for (uint32_t i = 0; i < j->n; i++)
        c->n_output += j->choices[i].tokens.n;
    c->queue_ms = first->usage.queue_ms;
    if (first->first_at > 0)
        c->ttft_ms = 1000 * (first->first_at - j->started);
    c->finish = esp_end_name(first->end);
    c->cache_reason = esp_cache_reason(j);
    snprintf(c->adapter, sizeof c->adapter, "%s", j->gen->adapter);
}

static void end_job(struct esp_job *j)
{
    struct esp_job **at = &j->s->jobs;
    struct esp_call *c = j->call;

    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    esp_mounts_use(j->s, j->gen, -1);
    note_call(j);
    esp_content_answers(j);
    if (c->r)
        j->sink->done(j);
    esp_diag_keep(j->s->diag, j);
    free_job(j);
    esp_call_job_ended(c);
}

/* ---- cancelling ---- */

void esp_choice_cancel(struct esp_choice *c)
{
    c->stopping = true;
    c->cut = c->cut || !c->resume;
    esp_service_cancel_choice(c->job->s->service, c->id, c->sub);
}

void esp_job_cancel(struct esp_job *j, enum esp_job_why why)
{
    struct esp_metrics *m = &j->s->metrics;

    if (j->cancelled)
        return;
    j->cancelled = true;
    j->why = why;
    if (why == ESP_JOB_GONE || why == ESP_JOB_SLOW)
        m->gone[j->choices[0].first_at > 0 ? ESP_GONE_DECODE : ESP_GONE_PREFILL]++;
    if (why == ESP_JOB_DRAINING)
        esp_api_fail(&j->e, "draining", NULL, "the server is shutting down");
    if (why == ESP_JOB_ASKED)
        esp_api_fail(&j->e, "invalid_request", NULL, "the request was cancelled");
    for (uint32_t i = 0; i < j->n; i++)
        esp_service_cancel_choice(j->s->service, j->choices[i].id, j->choices[i].sub);
}

void esp_jobs_cancel_call(struct esp_call *c, enum esp_job_why why)
{
    for (struct esp_job *j = c->s->jobs; j; j = j->next)
        if (j->call == c)
            esp_job_cancel(j, why);
}

bool esp_jobs_cancel_id(struct esp_server *s, const char *id)
{
    bool found = false;

    for (struct esp_job *j = s->jobs; j; j = j->next)
        if (strcmp(j->call->id, id) == 0 || strcmp(j->call->answer_id, id) == 0) {
            esp_job_cancel(j, ESP_JOB_ASKED);
            found = true;
        }
    return found;
}

uint64_t esp_choice_tokens(const struct esp_choice *c)
{
    return c->tokens.n;
}

/* ---- runs ---- */

/* Put the client's own positions among ascending marks. */
static size_t add_pins(const struct esp_job *j, size_t marks[ESP_LIMIT_MARKS], size_t n)
{
    for (uint32_t i = 0; i < j->n_pin && n < ESP_LIMIT_MARKS; i++) {
        size_t at = 0;

        while (at < n && marks[at] < j->pins[i].at)
            at++;
        if (at < n && marks[at] == j->pins[i].at)
            continue;
        memmove(marks + at + 1, marks + at, (n - at) * sizeof *marks);
        marks[at] = j->pins[i].at;
        n++;
    }
    return n;
}

/* Ends of messages: the next request is likely to repeat the text up to one of them. */
static size_t marks_of(const struct esp_server *s, const struct esp_ids *p, size_t marks[ESP_LIMIT_MARKS])
{
    size_t n = 0;

    for (size_t i = p->n; i-- > 0 && n < ESP_LIMIT_MARKS;)
        if (esp_token_is_end(s->model, (esp_token)p->data[i]) && i + 1 < p->n)
            marks[n++] = i + 1;
    for (size_t i = 0; i < n / 2; i++) {
        const size_t t = marks[i];

        marks[i] = marks[n - 1 - i];
        marks[n - 1 - i] = t;
    }
    return n;
}

static uint32_t progress_ms(const struct esp_job *j, const struct esp_choice *c)
{
    enum { OFTEN = 500 };

    return c ? 0 : j->gen->progress ? OFTEN : UINT32_MAX;
}

/* Biases of one run: the request's, and with banned the ends of a turn. */
static esp_logit_bias *bias_of(const struct esp_job *j, bool banned, size_t *n)
{
    const struct esp_gen *g = j->gen;
    const size_t n_end = banned ? j->s->n_end : 0;
    esp_logit_bias *bias = esp_alloc_array(g->sampling.n_bias + n_end, sizeof *bias);

    *n = g->sampling.n_bias + n_end;
    if (!bias)
        return NULL;
    if (g->sampling.n_bias)
        memcpy(bias, g->bias, g->sampling.n_bias * sizeof *bias);
    for (size_t i = 0; i < n_end; i++)
        bias[g->sampling.n_bias + i] = (esp_logit_bias){j->s->ends[i], -100};
    return bias;
}

static bool refused(struct esp_job *j, const esp_error *err, struct esp_api_error *e)
{
    if (err->status == ESP_ENOFIT)
        j->s->metrics.rejected_queue++;
    if (err->status == ESP_ENOFIT && j->n > j->s->rows + j->s->queue)
        return esp_api_fail(e, "invalid_value", "n", "n: %u answers at once; %u run here and %u may wait",
                            j->n, j->s->rows, j->s->queue);
    if (err->status == ESP_ENOFIT) {
        if (!e->http)
            e->retry_after = (int)(1 + esp_wait_estimate(j->s));
        return esp_api_fail(e, "queue_full", NULL, "%s", err->message);
    }
    if (err->status == ESP_ESTATE)
        return esp_api_fail(e, "draining", NULL, "%s", err->message);
    return esp_api_fail_status(e, NULL, err);
}

static esp_seq_opts seq_opts(const struct esp_job *j, const struct esp_choice *c)
{
    const struct esp_gen *g = j->gen;
    esp_seq_opts o = {.sampling = g->sampling,
                      .n_adapters = g->n_adapter,
                      .logprobs = g->logprobs,
                      .top_logprobs = g->top,
                      .processed_logprobs = g->processed_logprobs,
                      .priority = g->priority,
                      .no_cache = g->no_cache};

    memcpy(o.adapters, g->adapters, sizeof o.adapters);
    if (c) /* a run that goes on: its draws are of its own, and follow from the request alone */
        o.sampling.seed = esp_hash_u64(g->sampling.seed + 64 * c->phase + c->index);
    return o;
}

/* A request whose arrays and constraint are there; the constraint is closed when it is not taken. */
static esp_status hand_over(struct esp_job *j, struct esp_service_request *r, const struct esp_ids *sampled,
                            uint64_t *id, esp_error *err)
{
    struct esp_constraint constraint;
    esp_status s;

    ESP_TRY(esp_constrain_open(&constraint, j->gen, sampled, err));
    r->constraint = constraint.mask ? &constraint : NULL;
    s = esp_service_submit(j->s->service, r, id, err);
    if (s != ESP_OK && r->constraint)
        constraint.close(constraint.user);
    r->constraint = NULL; /* the service has its own */
    return s;
}

/* Hand ids to the engine for one choice, or for all of them when c is NULL. */
static bool submit(struct esp_job *j, struct esp_choice *c, const struct esp_ids *ids, uint64_t limit,
                   struct esp_api_error *e)
{
    size_t *marks = esp_alloc_array(ESP_LIMIT_MARKS, sizeof *marks), n_bias = 0;
    esp_logit_bias *bias = bias_of(j, (c ? c : &j->choices[0])->banned, &n_bias);
    struct esp_service_request r = {.tokens = (const esp_token *)ids->data,
                                    .n = ids->n,
                                    .marks = marks,
                                    .max_new = limit,
                                    .n_choice = c ? 1 : j->n,
                                    .score = !c && j->gen->score,
                                    .progress_ms = progress_ms(j, c),
                                    .opts = seq_opts(j, c),
                                    .goes_on = c != NULL,
                                    .owner = j->call->key,
                                    .user = j};
    esp_error err;
    esp_status s = ESP_ENOMEM;
    uint64_t id = 0;

    if (marks && bias) {
        if (!j->gen->no_cache) {
            r.n_mark = add_pins(j, marks, marks_of(j->s, ids, marks));
            r.pins = j->pins;
            r.n_pin = j->n_pin;
        }
        r.opts.sampling.bias = bias;
        r.opts.sampling.n_bias = n_bias;
        s = hand_over(j, &r, c ? &c->tokens : NULL, &id, &err);
    } else {
        esp_fail(&err, s, "no memory for the request");
    }
    esp_free(marks);
    esp_free(bias);
    if (s != ESP_OK)
        return refused(j, &err, e);
    for (uint32_t i = 0; i < j->n; i++)
        if (!c || c == &j->choices[i]) {
            j->choices[i].id = id;
            j->choices[i].sub = c ? 0 : i;
        }
    return true;
}

/* Go on behind what was sampled and the text to be injected, which counts as sampled. */
static bool go_on(struct esp_choice *c)
{
    struct esp_job *j = c->job;
    const struct esp_tok_input in = {
        .text = esp_strbuf_str(&c->inject), .len = c->inject.len, .flags = ESP_TOK_TRUST_ALL};
    const bool reasoning = esp_turn_in_reasoning(c->turn);
    const size_t before = c->tokens.n;
    struct esp_ids ids;
    bool ok;

    c->resume = c->stopping = c->banned = false;
    c->phase++;
    ok = esp_model_encode(j->s->model, &in, &c->tokens, NULL) == ESP_OK;
    c->left -= c->tokens.n - before < c->left ? c->tokens.n - before : c->left;
    if (reasoning)
        c->n_reasoning += c->tokens.n - before;
    esp_choice_feed(c, esp_strbuf_str(&c->inject), c->inject.len);
    esp_choice_markup(c);
    esp_ids_init(&ids, ESP_LIMIT_TURN_BYTES);
    for (size_t i = 0; ok && i < j->prompt.n; i++)
        ok = esp_ids_push(&ids, j->prompt.data[i], NULL) == ESP_OK;
    for (size_t i = 0; ok && i < c->tokens.n; i++)
        ok = esp_ids_push(&ids, c->tokens.data[i], NULL) == ESP_OK;
    ok = ok && submit(j, c, &ids, c->left, &j->e);
    esp_ids_free(&ids);
    return ok;
}

static void add_usage(esp_usage *u, const esp_usage *x)
{
    u->preemptions += x->preemptions;
    u->drafted += x->drafted;
    u->accepted += x->accepted;
    u->queue_ms += x->queue_ms;
    u->prompt_ms += x->prompt_ms;
    u->generate_ms += x->generate_ms;
}

static struct esp_choice *choice_of(struct esp_job *j, const struct esp_service_event *x)
{
    for (uint32_t i = 0; i < j->n; i++)
        if (j->choices[i].id == x->id && j->choices[i].sub == x->choice)
            return &j->choices[i];
    return NULL;
}

/* The engine is done with a run of c: go on with another one? */
static bool resumes(struct esp_choice *c, const struct esp_service_event *x)
{
    if (c->end != ESP_END_NONE || c->job->cancelled)
        return false;
    if (c->banned && !c->resume && x->finish == ESP_FINISH_LENGTH && c->left > 0)
        c->resume = true; /* min_tokens are there */
    if (!c->resume)
        return false;
    if (c->left > 0 && go_on(c))
        return true;
    c->end = c->job->e.http ? ESP_END_FAILED : ESP_END_LENGTH;
    return false;
}

static void end_run(struct esp_choice *c, const struct esp_service_event *x)
{
    struct esp_job *j = c->job;

    if (c->phase == 0 && c->index == 0)
        j->n_cached = x->usage.cached_tokens;
    if (c->phase)
        add_usage(&c->usage, &x->usage);
    else
        c->usage = x->usage;
    if (resumes(c, x))
        return;
    if (!j->e.http && x->finish != ESP_FINISH_FAILED)
        esp_sse_open(j->call); /* nothing has been sampled, and that is all right */
    esp_choice_finish(c, x);
    esp_slots_leave(c);
    count_choice(c);
    if (j->call->r && j->sink->ended)
        j->sink->ended(c);
    if (--j->n_open == 0)
        end_job(j);
}

/* Told of the prompt, before any answer. */
static void take_prompt(struct esp_job *j, const struct esp_service_event *x)
{
    if (x->what == ESP_SERVICE_PROGRESS) {
        const bool first = !j->ns;

        if (first) {
            esp_slots_prompt(j, x);
            j->call->queue_ms = x->usage.queue_ms;
        }
        j->n_cached = x->usage.cached_tokens;
        j->processed = x->processed;
        j->n_matched = x->matched;
        j->from_file = x->from_file;
        j->ns = x->ns;
        if (first)
            esp_diagnose(j);
    }
    if (!j->call->r || j->cancelled)
        return;
    esp_sse_open(j->call);
    if (x->what == ESP_SERVICE_PROGRESS && j->sink->progress)
        j->sink->progress(j);
    if (x->what == ESP_SERVICE_PROMPT && j->sink->prompt)
        j->sink->prompt(j, x);
}

/* A token has come for c, whatever becomes of it. */
static void note_token(struct esp_choice *c, const struct esp_service_event *x)
{
    const struct esp_job *j = c->job;

    if (c->slot < 0)
        esp_slots_take(c);
    if (!j->cancelled)
        esp_sse_open(j->call);
    if (c->first_at <= 0 && j->index == 0 && c->index == 0)
        esp_overhead_token(j->call, x->submitted, x->at);
}

/* A token for c, or its end. */
static void take_answer(struct esp_choice *c, const struct esp_service_event *x)
{
    struct esp_job *j = c->job;
    const bool token = x->what == ESP_SERVICE_TOKEN && x->token >= 0;

    if (token)
        note_token(c, x);
    if (!c->primed && j->in_prompt && x->what != ESP_SERVICE_CANCELLED) {
        c->primed = true;
        esp_choice_feed(c, j->forced, strlen(j->forced));
    }
    if (token && c->end == ESP_END_NONE && !c->resume && !j->cancelled)
        esp_choice_token(c, x);
    j->call->first_token = 0; /* what was held back then is not counted */
    if (x->last)
        end_run(c, x);
}

void esp_job_event(struct esp_server *s, const struct esp_service_event *x)
{
    struct esp_job *j = x->user;
    struct esp_choice *c = choice_of(j, x);

    (void)s;
    if (!c || c->ended)
        return;
    if (x->what == ESP_SERVICE_PROGRESS || x->what == ESP_SERVICE_PROMPT)
        take_prompt(j, x);
    else
        take_answer(c, x);
}

/* A key has its share of rows, and of the queue. */
static bool within_share(const struct esp_server *s, const struct esp_call *c, uint32_t n,
                         struct esp_api_error *e)
{
    const uint32_t rows = s->o.per_key_rows < s->rows ? s->o.per_key_rows : s->rows,
                   most = (uint32_t)((uint64_t)(s->rows + s->queue) * rows / s->rows);
    uint32_t pending = n;

    if (!rows || !c->key)
        return true;
    if (n > rows)
        return esp_api_fail(e, "invalid_value", "n", "n: %u; a key has at most %u rows here", n, rows);
    for (const struct esp_job *j = s->jobs; j; j = j->next)
        if (j->call->key == c->key)
            pending += j->n_open;
    if (pending <= most)
        return true;
    if (!e->http)
        e->retry_after = (int)(1 + esp_wait_estimate(s));
    return esp_api_fail(e, "queue_full", NULL,
                        "this key's share of the queue is full: %u of its requests run or wait, %u may",
                        pending - n, most);
}

/* A job of o that has not been handed over; its choices are as far as they came. */
static bool init_job(struct esp_job *j, const struct esp_job_opts *o, uint64_t limit, struct esp_api_error *e)
{
    bool ok = true;

    j->s = o->call->s;
    j->call = o->call;
    j->sink = o->sink;
    j->gen = o->gen;
    j->index = o->index;
    j->call_prefix = o->call_prefix ? o->call_prefix : "call_";
    j->prompt = o->prompt;
    j->started = o->call->started;
    j->n = j->n_open = o->gen->n;
    for (uint32_t i = 0; ok && i < j->n; i++)
        ok = esp_choice_init(&j->choices[i], j, i, limit, o, e);
    if (o->forced)
        snprintf(j->forced, sizeof j->forced, "%s", o->forced);
    j->in_prompt = !o->thinking;
    j->nearest = -1;
    j->has_tools = o->tools != NULL;
    j->n_pin = o->n_pin < ESP_MAX_PINS ? o->n_pin : ESP_MAX_PINS;
    if (j->n_pin)
        memcpy(j->pins, o->pins, j->n_pin * sizeof *j->pins);
    snprintf(j->opening, sizeof j->opening, "%s", o->opening ? o->opening : "");
    j->history = o->history;
    return ok;
}

bool esp_job_start(struct esp_job **out, const struct esp_job_opts *o, uint64_t limit,
                   struct esp_api_error *e)
{
    const bool shared = within_share(o->call->s, o->call, o->gen->n, e);
    struct esp_job *j = shared ? esp_alloc(sizeof *j) : NULL, **tail;
    struct esp_ids prompt = o->prompt;
    bool ok;

    if (!j) {
        esp_ids_free(&prompt);
        o->call->s->metrics.rejected_queue += !shared && strcmp(e->code, "queue_full") == 0;
        return esp_api_fail(e, "device_lost", NULL, "no memory for the request");
    }
    ok = init_job(j, o, limit, e);
    if (ok && j->choices[0].banned && (uint64_t)o->gen->min_tokens < limit)
        limit = (uint64_t)o->gen->min_tokens;
    if (!ok || !submit(j, NULL, &j->prompt, limit, e)) {
        free_job(j);
        return false;
    }
    for (tail = &j->s->jobs; *tail; tail = &(*tail)->next)
        ;
    *tail = j;
    j->call->n_job++;
    esp_mounts_use(j->s, j->gen, 1);
    esp_observe_seconds(&j->s->metrics.n, esp_buckets_count, j->n);
    esp_observe_seconds(&j->s->metrics.max_tokens, esp_buckets_count, (double)limit);
    *out = j;
    return true;
}
