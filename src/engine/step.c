/*
 * One step: choose rows, run them, sample, report. Decode rows come first, prompt chunks fill the rest; since
 * a row's result does not depend on its neighbours, the mix changes speed and never text.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/cache.h"

struct step {
    struct esp_batch batch;
    uint32_t n_tok[ESP_ROW_KINDS];
};

static struct pending_event *push_event(struct esp_engine *g, struct esp_seq *s, esp_token token,
                                        esp_finish finish)
{
    struct pending_event *e = &g->events[g->n_event++];

    ESP_ASSERT(g->n_event <= g->opts.max_seqs * 2);
    memset(&e->event, 0, sizeof e->event);
    e->event.seq = s;
    e->event.token = token;
    e->event.finish = finish;
    if (finish != ESP_FINISH_NONE)
        esp_engine_leave(s, finish == ESP_FINISH_FAILED ? ESP_LEAVE_DROP : ESP_LEAVE_KEEP);
    return e;
}

static void push_failure(struct esp_engine *g, struct esp_seq *s, const esp_error *err)
{
    struct pending_event *e = push_event(g, s, -1, ESP_FINISH_FAILED);

    snprintf(e->message, sizeof e->message, "%s", err->message);
}

static uint32_t pending(const struct esp_seq *s)
{
    return s->n_token - esp_state_length(s->state);
}

/* Tokens of s that this step should run: with no token to emit the last known one stays for a later
 * generation. */
static uint32_t wanted(const struct esp_seq *s)
{
    return pending(s) - (s->n_left == 0);
}

static void add_row(struct esp_engine *g, struct step *st, struct esp_seq *s, uint32_t n)
{
    struct esp_batch *b = &st->batch;
    struct esp_batch_seq *row = &g->batch_seqs[b->n_seq];
    uint32_t at = esp_state_length(s->state);
    esp_error err;

    if (esp_engine_begin(s, n, row, &err) != ESP_OK) {
        if (s->active || !s->armed) /* else it was put back to wait */
            push_failure(g, s, &err);
        return;
    }
    row->tok0 = b->n_tok;
    row->n_lora = s->lora.n;
    memcpy(row->lora, s->lora.set, sizeof row->lora);
    memcpy(row->lora_scale, s->lora.scale, sizeof row->lora_scale);
    for (uint32_t i = 0; i < n; i++) {
        g->ids[b->n_tok + i] = s->tokens[at + i];
        for (int axis = 0; axis < 3; axis++)
            g->pos[b->n_tok + i][axis] = (int32_t)(at + i);
    }
    s->step_n = n;
    s->step_row = NO_ROW;
    if (at + n == s->n_token && s->n_left) {
        g->out_rows[b->n_out] = b->n_tok + n - 1;
        s->step_row = b->n_out++;
    }
    g->batch_owner[b->n_seq++] = s;
    b->n_tok += n;
    s->step_kind = n == 1 && s->step_row != NO_ROW ? ESP_ROW_DECODE : ESP_ROW_PREFILL;
    st->n_tok[s->step_kind] += n;
}

/* Sequence number i of the list, counted from the engine's turn. */
static struct esp_seq *by_turn(const struct esp_engine *g, uint32_t i)
{
    struct esp_seq *s = g->seqs;

    for (uint32_t n = (g->turn + i) % g->n_seq; n; n--)
        s = s->next;
    return s;
}

/* End what has nothing left to do, or no time. */
static void expire(struct esp_engine *g)
{
    double now = 0;

    for (struct esp_seq *s = g->seqs; s; s = s->next) {
        esp_error err;

        s->step_n = 0;
        if (!s->armed)
            continue;
        if (s->n_left == 0 && pending(s) <= 1) {
            push_event(g, s, -1, ESP_FINISH_LENGTH);
            continue;
        }
        if (s->opts.deadline_us == 0)
            continue;
        now = now > 0 ? now : esp_engine_now();
        if ((now - s->armed_at) * 1e6 <= (double)s->opts.deadline_us)
            continue;
        esp_fail(&err, ESP_ECANCELLED, "the deadline of %llu us passed after %llu tokens",
                 (unsigned long long)s->opts.deadline_us, (unsigned long long)s->usage.generated_tokens);
        g->stats.expired++;
        esp_engine_leave(s, ESP_LEAVE_KEEP);
        push_failure(g, s, &err);
    }
}

/* Prompt tokens of s for this step, at most `left`: a pass ends where the cache wants a checkpoint. */
static uint32_t prompt_part(const struct esp_seq *s, uint32_t left)
{
    uint32_t n = wanted(s), at = esp_state_length(s->state), next = esp_cache_next(s, at);

    n = n < left ? n : left;
    return n < next - at ? n : next - at;
}

/* Armed sequences that a step can still take in. */
static bool runnable(const struct esp_seq *s)
{
    return s->active && s->step_n == 0;
}

static void build(struct esp_engine *g, struct step *st)
{
    uint32_t n_seq = g->n_seq, budget;

    memset(st, 0, sizeof *st);
    expire(g);
    esp_engine_admit(g);
    for (struct esp_seq *s = g->seqs; s; s = s->next)
        if (runnable(s) && wanted(s) == 1)
            add_row(g, st, s, 1);
    budget = esp_engine_budget(g, st->batch.n_tok);
    for (uint32_t i = 0; i < n_seq && st->batch.n_tok < budget; i++) {
        struct esp_seq *s = by_turn(g, i);

        if (runnable(s) && wanted(s) > 1)
            add_row(g, st, s, prompt_part(s, budget - st->batch.n_tok));
    }
    if (n_seq)
        g->turn = (g->turn + 1) % n_seq;
    st->batch.ids = g->ids;
    st->batch.pos = (const int32_t(*)[3])g->pos;
    st->batch.seqs = g->batch_seqs;
    st->batch.out_rows = g->out_rows;
    st->batch.logits = g->logits;
}

static esp_status report_logprobs(struct esp_engine *g, struct esp_seq *s, const float *logits,
                                  struct pending_event *e, esp_error *err)
{
    struct esp_sample_logprob chosen, top[MAX_TOP];
    struct esp_logprob_query q = {.id = (uint32_t)e->event.token, .n_top = s->opts.top_logprobs};
    uint32_t n;

    ESP_TRY(esp_sample_logprobs(logits, g->model->net->tape.n_vocab, q, &chosen, top, &n, err));
    e->event.logprob = (float)chosen.logprob;
    e->event.n_top = n;
    for (uint32_t i = 0; i < n; i++)
        e->top[i] = (esp_logprob){.token = (esp_token)top[i].id, .logprob = (float)top[i].logprob};
    return ESP_OK;
}

/* Take the next token of s from its row of logits. */
static void sample(struct esp_engine *g, struct esp_seq *s)
{
    const float *logits = g->logits + (size_t)s->step_row * g->model->net->tape.n_vocab;
    struct esp_sample_result r;
    struct pending_event *e;
    esp_error err;

    if (s->first_at == 0)
        s->first_at = esp_engine_now();
    if (esp_sampler_draw(s->sampler, logits, g->model->allowed, esp_sampler_n_generated(s->sampler), &r,
                         &err) != ESP_OK) {
        push_failure(g, s, &err);
        return;
    }
    if (!s->opts.sampling.ignore_end && esp_token_is_end(g->model, (esp_token)r.id)) {
        push_event(g, s, -1, ESP_FINISH_END);
        return;
    }
    if (s->n_token ==
        g->opts.context) { /* the token has no place, so its text would not be part of the sequence */
        push_event(g, s, -1, ESP_FINISH_LENGTH);
        return;
    }
    if (esp_sampler_push(s->sampler, r.id, &err) != ESP_OK) {
        push_failure(g, s, &err);
        return;
    }
    s->tokens[s->n_token++] = (int32_t)r.id;
    s->n_left--;
    s->usage.generated_tokens++;
    g->stats.generated_tokens++;
    e = push_event(g, s, (esp_token)r.id,
                   s->n_left == 0 || s->n_token == g->opts.context ? ESP_FINISH_LENGTH : ESP_FINISH_NONE);
    if (s->opts.logprobs && report_logprobs(g, s, logits, e, &err) != ESP_OK) {
        g->n_event--;
        push_failure(g, s, &err);
    }
}

/* A run that took place, or did not, ends the passes of its rows. */
static esp_status end_passes(struct esp_engine *g, struct step *st, esp_status s, esp_error *err)
{
    for (uint32_t i = 0; i < st->batch.n_seq; i++) {
        struct esp_seq *q = g->batch_owner[i];
        uint32_t before = esp_state_length(q->state);

        if (s != ESP_OK) {
            esp_state_invalidate(q->state);
            continue;
        }
        ESP_TRY(esp_state_commit(q->state, q->step_n, err));
        if (q->active && esp_cache_next(q, before) == esp_state_length(q->state))
            esp_cache_store(q);
    }
    return ESP_OK;
}

static esp_status run(struct esp_engine *g, struct step *st, esp_error *err)
{
    uint32_t n_single = st->n_tok[ESP_ROW_DECODE], n_prompt = st->batch.n_tok - n_single;
    double t0 = esp_engine_now(), dt;
    esp_status s = g->dev->ops->run(g->plan, &st->batch, err);

    if (s == ESP_OK)
        s = g->dev->ops->wait(g->dev, err);
    dt = esp_engine_now() - t0;
    ESP_TRY(end_passes(g, st, s, err));
    ESP_TRY(s);
    esp_engine_measure(g, n_single, n_prompt, dt);
    g->stats.steps++;
    g->stats.prompt_tokens += n_prompt;
    g->stats.generate_seconds += dt * n_single / st->batch.n_tok;
    g->stats.prompt_seconds += dt * n_prompt / st->batch.n_tok;
    return ESP_OK;
}

/* A failed run fails its rows; the engine goes on with the others. */
static void fail_rows(struct esp_engine *g, const struct step *st, const esp_error *why)
{
    for (uint32_t i = 0; i < st->batch.n_seq; i++)
        push_failure(g, g->batch_owner[i], why);
}

static void hand_out(struct esp_engine *g, esp_event *out, size_t cap, size_t *n)
{
    for (*n = 0; *n < cap && g->first_event < g->n_event; (*n)++) {
        struct pending_event *e = &g->events[g->first_event++];

        out[*n] = e->event;
        if (e->event.n_top)
            out[*n].top = e->top;
        if (e->event.finish == ESP_FINISH_FAILED)
            out[*n].message = e->message;
    }
}

esp_status esp_engine_step(esp_engine *g, esp_event *out, size_t cap, size_t *n, esp_error *err)
{
    struct step st;
    esp_error why;

    if (!out || cap == 0 || !n)
        return esp_fail(err, ESP_EINVAL, "esp_engine_step needs room for at least one event");
    if (g->first_event == g->n_event) {
        g->first_event = g->n_event = 0;
        build(g, &st);
        if (st.batch.n_tok && run(g, &st, &why) != ESP_OK)
            fail_rows(g, &st, &why);
        else
            for (uint32_t i = 0; i < st.batch.n_seq; i++)
                if (g->batch_owner[i]->step_row != NO_ROW)
                    sample(g, g->batch_owner[i]);
        for (uint32_t i = 0; i < st.batch.n_seq; i++)
            g->batch_owner[i]->step_n = 0;
        if (g->n_active == 0 && g->n_waiting == 0 && g->n_event == 0)
            esp_cache_save_one(g); /* idle */
    }
    hand_out(g, out, cap, n);
    return ESP_OK;
}

/* Run tokens of s that are known, wanting the logits of all of them (out not NULL) or of none. */
static esp_status run_known(struct esp_seq *s, uint32_t n, float *out, esp_error *err)
{
    struct esp_engine *g = s->engine;
    uint32_t n_vocab = g->model->net->tape.n_vocab;

    while (n) {
        uint32_t m = n < g->opts.chunk ? n : g->opts.chunk;
        struct step st;
        size_t left = s->n_left;

        memset(&st, 0, sizeof st);
        st.batch = (struct esp_batch){.ids = g->ids,
                                      .pos = (const int32_t(*)[3])g->pos,
                                      .seqs = g->batch_seqs,
                                      .out_rows = g->out_rows,
                                      .logits = out};
        s->n_left = 0; /* no row of its own */
        ESP_TRY(esp_engine_begin(s, m, &g->batch_seqs[0], err));
        esp_state_commit(s->state, 0, NULL);
        add_row(g, &st, s, m);
        s->n_left = left;
        for (uint32_t i = 0; out && i < m; i++)
            g->out_rows[i] = i;
        st.batch.n_out = out ? m : 0;
        ESP_TRY(run(g, &st, err));
        s->step_n = 0;
        out = out ? out + (size_t)m * n_vocab : NULL;
        n -= m;
    }
    return ESP_OK;
}

esp_status esp_seq_logits(esp_seq *s, const esp_token *t, size_t n, float *out, esp_error *err)
{
    uint32_t behind = pending(s);

    if (!out && n)
        return esp_fail(err, ESP_EINVAL, "esp_seq_logits needs a place for %zu rows", n);
    ESP_TRY(esp_seq_append(s, t, n, err));
    ESP_TRY(run_known(s, behind, NULL, err));
    return run_known(s, (uint32_t)n, out, err);
}
