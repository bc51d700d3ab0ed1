/*
 * Sequences: their tokens, state and sampler, and the calls that change them between steps.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/engine.h"

#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

#include "engine/cache.h"
#include "engine/sampling.h"
#include "engine/spec.h"

static void link_seq(struct esp_seq *s)
{
    struct esp_seq **p = &s->engine->seqs;

    while (*p)
        p = &(*p)->next;
    *p = s;
    s->engine->n_seq++;
}

/* Everything but the state. */
static esp_status create(struct esp_seq **out, struct esp_engine *g, const esp_seq_opts *o, esp_error *err)
{
    struct esp_seq *s;
    esp_status st;

    if (g->n_seq == g->opts.max_seqs)
        return esp_fail(err, ESP_ENOFIT, "%u sequences are open, the engine was opened for %u", g->n_seq,
                        g->opts.max_seqs);
    s = esp_alloc(sizeof *s);
    if (!s)
        return esp_fail(err, ESP_ENOMEM, "sequence: out of memory");
    s->engine = g;
    if (o)
        s->opts = *o;
    s->used = ++g->n_use;
    s->tokens = esp_alloc_array(g->opts.context, sizeof *s->tokens);
    st = s->tokens ? esp_sampling_make(s, err) : esp_fail(err, ESP_ENOMEM, "sequence: out of memory");
    if (st == ESP_OK)
        st = esp_seq_lora_resolve(g, &s->opts, &s->lora, err);
    s->ns = esp_cache_namespace(&g->identity, &s->opts, s->lora.key);
    if (st == ESP_OK)
        st = esp_spec_seq_open(s, err);
    if (st != ESP_OK) {
        esp_sampler_destroy(s->sampler);
        esp_free(s->tokens);
        esp_free(s);
        return st;
    }
    link_seq(s);
    *out = s;
    return ESP_OK;
}

esp_status esp_seq_open(esp_seq **out, esp_engine *g, const esp_seq_opts *opts, esp_error *err)
{
    struct esp_seq *s;
    esp_status st;

    if (!out || !g)
        return esp_fail(err, ESP_EINVAL, "esp_seq_open needs a place for the sequence and an engine");
    ESP_TRY(create(&s, g, opts, err));
    st = esp_state_open(&s->state, g->pools, g->opts.context, g->opts.snapshots, err);
    if (st != ESP_OK) {
        esp_seq_close(s);
        return st;
    }
    *out = s;
    return ESP_OK;
}

/* Events of a closed sequence must not be handed out any more. */
static void drop_events(struct esp_engine *g, const struct esp_seq *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->n_event; i++) {
        if (i >= g->first_event && g->events[i].event.seq == s)
            continue;
        if (n != i)
            g->events[n] = g->events[i];
        n++;
    }
    g->n_event = n;
}

void esp_seq_close(esp_seq *s)
{
    struct esp_seq **p;

    if (!s)
        return;
    for (p = &s->engine->seqs; *p != s; p = &(*p)->next)
        ;
    esp_engine_leave(s, ESP_LEAVE_KEEP);
    *p = s->next;
    s->engine->n_seq--;
    drop_events(s->engine, s);
    esp_spec_seq_close(s);
    esp_seq_drop_constraint(s);
    esp_state_close(s->state);
    esp_sampler_destroy(s->sampler);
    esp_free(s->tokens);
    esp_free(s->marks);
    esp_free(s->pins);
    esp_free(s);
}

static esp_status check_ids(const struct esp_seq *s, const esp_token *t, size_t n, esp_error *err)
{
    uint32_t n_vocab = s->engine->model->net->tape.n_vocab;

    if (n && !t)
        return esp_fail(err, ESP_EINVAL, "%zu tokens at no address", n);
    for (size_t i = 0; i < n; i++)
        if (t[i] < 0 || (uint32_t)t[i] >= n_vocab)
            return esp_fail(err, ESP_EINVAL, "token %zu is %d; the vocabulary has ids 0 to %u", i, t[i],
                            n_vocab - 1);
    return ESP_OK;
}

static esp_status check_tokens(const struct esp_seq *s, const esp_token *t, size_t n, esp_error *err)
{
    ESP_TRY(check_ids(s, t, n, err));
    if (n > s->engine->opts.context - s->n_token)
        return esp_fail(err, ESP_ENOFIT, "%zu tokens after %u do not fit into the context of %u", n,
                        s->n_token, s->engine->opts.context);
    return ESP_OK;
}

esp_status esp_seq_append(esp_seq *s, const esp_token *t, size_t n, esp_error *err)
{
    if (s->armed)
        return esp_fail(err, ESP_ESTATE, "the sequence is generating; stop it before appending");
    ESP_TRY(check_tokens(s, t, n, err));
    ESP_TRY(esp_sampler_push_prompt(s->sampler, (const uint32_t *)t, n, err));
    if (n)
        memcpy(s->tokens + s->n_token, t, n * sizeof *t);
    s->n_token += (uint32_t)n;
    return ESP_OK;
}

esp_status esp_seq_generate(esp_seq *s, size_t max_new, esp_error *err)
{
    if (s->armed)
        return esp_fail(err, ESP_ESTATE, "the sequence is generating already");
    if (s->n_token == 0)
        return esp_fail(err, ESP_ESTATE, "the sequence is empty; append at least one token");
    return esp_engine_enqueue(s, max_new, err);
}

/* Tokens of s that events not handed out yet would report. */
static uint32_t held_back(const struct esp_seq *s)
{
    const struct esp_engine *g = s->engine;
    uint32_t n = 0;

    for (uint32_t i = g->first_event; i < g->n_event; i++)
        n += g->events[i].event.seq == s && g->events[i].event.token >= 0;
    return n;
}

void esp_seq_stop(esp_seq *s)
{
    uint32_t n = held_back(s);
    esp_status st = ESP_OK;

    esp_engine_leave(s, ESP_LEAVE_KEEP);
    drop_events(s->engine, s);
    if (n)
        st = esp_seq_rewind(s, s->n_token - n, NULL);
    ESP_ASSERT(st == ESP_OK); /* it does not generate, and has so many tokens */
    s->usage.generated_tokens -= n;
}

/* Part of n tokens that a generating sequence takes: up to its budget, its context and an end. */
static size_t part_taken(const struct esp_seq *s, const esp_token *t, size_t n)
{
    size_t most =
        s->n_left < s->engine->opts.context - s->n_token ? s->n_left : s->engine->opts.context - s->n_token;

    n = n < most ? n : most;
    for (size_t i = 0; i < n && !s->opts.sampling.ignore_end; i++)
        if (esp_token_is_end(s->engine->model, t[i]))
            n = i;
    return n;
}

esp_status esp_seq_extend(esp_seq *s, const esp_token *t, size_t n, size_t *n_taken, esp_error *err)
{
    enum esp_constraint_state state = ESP_CONSTRAINT_MAY_END;
    size_t part;

    if (!s->armed)
        return esp_fail(err, ESP_ESTATE,
                        "the sequence does not generate; esp_seq_append() adds tokens to it");
    ESP_TRY(check_ids(s, t, n, err));
    part = part_taken(s, t, n);
    for (size_t i = 0; i < part; i++) {
        esp_status st;

        if (state == ESP_CONSTRAINT_ENDED) {
            part = i;
            break;
        }
        st = esp_seq_push(s, (uint32_t)t[i], &state, err);

        if (st != ESP_OK) {
            esp_seq_pop(s, i, NULL);
            return st;
        }
    }
    if (part)
        memcpy(s->tokens + s->n_token, t, part * sizeof *t);
    s->n_token += (uint32_t)part;
    s->n_left -= part;
    s->usage.generated_tokens += part;
    s->engine->stats.generated_tokens += part;
    if (n_taken)
        *n_taken = part;
    return ESP_OK;
}

size_t esp_seq_length(const esp_seq *s)
{
    return s->n_token;
}

esp_status esp_seq_tokens(const esp_seq *s, esp_token *out, size_t cap, size_t *n, esp_error *err)
{
    (void)err;
    if (cap)
        memcpy(out, s->tokens, (cap < s->n_token ? cap : s->n_token) * sizeof *out);
    *n = s->n_token;
    return ESP_OK;
}

esp_status esp_seq_rewind(esp_seq *s, size_t length, esp_error *err)
{
    uint32_t reached;

    if (s->armed)
        return esp_fail(err, ESP_ESTATE, "the sequence is generating; stop it before rewinding");
    if (length > s->n_token)
        return esp_fail(err, ESP_EINVAL, "rewind to %zu; the sequence has %u tokens", length, s->n_token);
    esp_spec_settle(s, (uint32_t)length);
    if (length < esp_state_length(s->state))
        ESP_TRY(esp_state_rewind(s->state, (uint32_t)length, &reached, err));
    ESP_TRY(esp_seq_pop(s, s->n_token - length, err));
    s->n_token = (uint32_t)length;
    return ESP_OK;
}

esp_status esp_seq_snapshot(esp_seq *s, esp_error *err)
{
    return esp_state_snapshot(s->state, err);
}

esp_status esp_seq_fork(esp_seq **out, const esp_seq *s, const esp_seq_opts *opts, esp_error *err)
{
    esp_seq_opts o = {0};
    struct esp_seq *f;
    esp_status st;

    if (!out)
        return esp_fail(err, ESP_EINVAL, "esp_seq_fork needs a place for the sequence");
    if (s->armed)
        return esp_fail(err, ESP_ESTATE, "the sequence is generating; stop it before forking");
    if (opts)
        o = *opts;
    memcpy(o.adapters, s->opts.adapters, sizeof o.adapters); /* its state is under them */
    o.n_adapters = s->opts.n_adapters;
    ESP_TRY(create(&f, s->engine, &o, err));
    esp_spec_settle(s, esp_state_length(s->state));
    st = esp_state_fork(&f->state, s->state, err);
    if (st == ESP_OK) /* to the fork all of it is prompt: its penalties on generated tokens start anew */
        st = esp_sampler_push_prompt(f->sampler, (const uint32_t *)s->tokens, s->n_token, err);
    if (st != ESP_OK) {
        esp_seq_close(f);
        return st;
    }
    memcpy(f->tokens, s->tokens, s->n_token * sizeof *s->tokens);
    f->n_token = s->n_token;
    *out = f;
    return ESP_OK;
}

esp_status esp_seq_set_marks(esp_seq *s, const size_t *positions, size_t n, esp_error *err)
{
    uint32_t *marks;

    if (n > ESP_LIMIT_MARKS || (n && !positions))
        return esp_fail(err, ESP_EINVAL, "%zu marks; at most %u are accepted", n, ESP_LIMIT_MARKS);
    for (size_t i = 0; i < n; i++)
        if (positions[i] > s->engine->opts.context || (i && positions[i] < positions[i - 1]))
            return esp_fail(err, ESP_EINVAL, "mark %zu at %zu; ascending positions up to %u are accepted", i,
                            positions[i], s->engine->opts.context);
    marks = esp_alloc_array(n, sizeof *marks);
    if (!marks)
        return esp_fail(err, ESP_ENOMEM, "marks: out of memory");
    for (size_t i = 0; i < n; i++)
        marks[i] = (uint32_t)positions[i];
    esp_free(s->marks);
    s->marks = marks;
    s->n_mark = (uint32_t)n;
    return ESP_OK;
}

static double ms_between(double a, double b)
{
    return a > 0 && b > a ? (b - a) * 1e3 : 0;
}

void esp_seq_usage(const esp_seq *s, esp_usage *out)
{
    double end = s->armed ? esp_engine_now() : s->done_at;
    double active = s->active_at > 0 ? s->active_at : end, first = s->first_at > 0 ? s->first_at : end;

    *out = s->usage;
    out->queue_ms = ms_between(s->armed_at, active);
    out->prompt_ms = ms_between(active, first);
    out->generate_ms = ms_between(first, end);
}
