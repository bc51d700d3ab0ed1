/*
 * What comes of a row when the run is over: its tokens, one position after the other, its events, and how
 * much of its pass is kept. A token is decided by the constraint where that leaves no choice, else drawn with
 * the random key of its position; drafts are compared with it and never consulted, so they cannot show.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>

#include "engine/cache.h"
#include "engine/spec.h"

/* ---- events ---- */

struct pending_event *esp_engine_push_event(struct esp_engine *g, struct esp_seq *s, esp_token token,
                                            esp_finish finish)
{
    struct pending_event *e = &g->events[g->n_event++];

    ESP_ASSERT(g->n_event <= g->opts.max_seqs * 2 + g->opts.rows + g->spec.max_drafts + ESP_LIMIT_FORCED);
    memset(&e->event, 0, sizeof e->event);
    e->event.seq = s;
    e->event.token = token;
    e->event.finish = finish;
    return e;
}

void esp_engine_push_failure(struct esp_engine *g, struct esp_seq *s, const esp_error *err)
{
    struct pending_event *e = esp_engine_push_event(g, s, -1, ESP_FINISH_FAILED);

    snprintf(e->message, sizeof e->message, "%s", err->message);
}

void esp_engine_finish(struct esp_seq *s, esp_finish finish)
{
    if (finish != ESP_FINISH_NONE)
        esp_engine_leave(s, finish == ESP_FINISH_FAILED ? ESP_LEAVE_DROP : ESP_LEAVE_KEEP);
}

static esp_finish failed(struct esp_engine *g, struct esp_seq *s, const esp_error *err)
{
    esp_engine_push_failure(g, s, err);
    return ESP_FINISH_FAILED;
}

/* Log-probabilities at one position. */
struct probs {
    struct esp_sample_logprob chosen, top[MAX_TOP];
    uint32_t n;
};

/* Of id, before it is part of the history. */
static esp_status find_probs(const struct esp_engine *g, const struct esp_seq *s, const float *logits,
                             uint32_t id, struct probs *p, esp_error *err)
{
    const struct esp_logprob_query q = {.id = id, .n_top = s->opts.top_logprobs};
    enum esp_constraint_state state;
    const uint64_t *allowed;

    if (!s->opts.processed_logprobs)
        return esp_sample_logprobs(logits, g->model->net->tape.n_vocab, q, &p->chosen, p->top, &p->n, err);
    ESP_TRY(esp_seq_mask(s, &allowed, &state, err));
    return esp_sampler_logprobs(s->sampler, logits, allowed, &q, &p->chosen, p->top, &p->n, err);
}

static void report_probs(struct pending_event *e, const struct probs *p)
{
    e->event.logprob = (float)p->chosen.logprob;
    e->event.n_top = p->n;
    for (uint32_t i = 0; i < p->n; i++)
        e->top[i] = (esp_logprob){.token = (esp_token)p->top[i].id, .logprob = (float)p->top[i].logprob};
}

/* ---- tokens ---- */

/* Append id to s and report it; p: its log-probability where that is wanted, else NULL. */
static esp_finish take(struct esp_engine *g, struct esp_seq *s, uint32_t id, const struct probs *p)
{
    esp_finish f = ESP_FINISH_NONE;
    enum esp_constraint_state state;
    struct pending_event *e;
    esp_error err;

    if (esp_seq_push(s, id, &state, &err) != ESP_OK)
        return failed(g, s, &err);
    if (s->first_at == 0)
        s->first_at = esp_engine_now();
    s->tokens[s->n_token++] = (int32_t)id;
    s->n_left--;
    s->usage.generated_tokens++;
    g->stats.generated_tokens++;
    if (s->n_left == 0 || s->n_token == g->opts.context)
        f = ESP_FINISH_LENGTH;
    if (state == ESP_CONSTRAINT_ENDED)
        f = ESP_FINISH_END;
    e = esp_engine_push_event(g, s, (esp_token)id, f);
    if (p)
        report_probs(e, p);
    return f;
}

uint32_t esp_engine_force(struct esp_engine *g, struct esp_seq *s, uint32_t most)
{
    esp_token forced[ESP_LIMIT_FORCED];
    size_t room = g->opts.context - s->n_token;
    esp_finish f = ESP_FINISH_NONE;
    uint32_t n, i = 0;

    if (s->n_left == 0 || s->opts.logprobs) /* those need every position's logits */
        return 0;
    room = room < s->n_left ? room : s->n_left;
    n = esp_seq_forced(s, forced, room < most ? (uint32_t)room : most);
    while (i < n && f == ESP_FINISH_NONE)
        f = take(g, s, (uint32_t)forced[i++], NULL);
    esp_engine_finish(s, f);
    return i;
}

/* A row of the step's logits, *out; from the device where only its greatest ones came. */
static esp_status whole_row(struct esp_engine *g, uint32_t row, const float **out, esp_error *err)
{
    float *logits = g->logits + (size_t)row * g->model->net->tape.n_vocab;

    if (g->few_now) {
        ESP_TRY(g->dev->ops->logits(g->plan, row, logits, err));
        g->n_whole++;
    }
    *out = logits;
    return ESP_OK;
}

/* Draw from a row; *logits is set where the whole of it was needed. */
static esp_status draw(struct esp_engine *g, struct esp_seq *s, uint32_t row, const uint64_t *allowed,
                       const float **logits, struct esp_sample_result *r, esp_error *err)
{
    const uint64_t at = esp_sampler_n_generated(s->sampler);

    if (g->few_now && !s->opts.logprobs) {
        const struct esp_few *x = &g->few[row];
        const struct esp_sample_few few = {x->n, x->id, x->value};

        if (esp_sampler_draw_few(s->sampler, &few, allowed, at, r)) {
            g->n_few++;
            return ESP_OK;
        }
    }
    ESP_TRY(whole_row(g, row, logits, err));
    return esp_sampler_draw(s->sampler, *logits, allowed, at, r, err);
}

/*
 * The next token of s: decided, or drawn from a row of logits, which *logits then may be. *end: nothing
 * more comes, whatever *id is.
 */
static esp_status choose(struct esp_engine *g, struct esp_seq *s, uint32_t row, const float **logits,
                         uint32_t *id, bool *end, esp_error *err)
{
    struct esp_sample_result r;
    enum esp_constraint_state state;
    const uint64_t *allowed;
    esp_token forced;

    *end = false;
    if (esp_seq_forced(s, &forced, 1)) {
        *id = (uint32_t)forced;
        return ESP_OK;
    }
    ESP_TRY(esp_seq_mask(s, &allowed, &state, err));
    *end = state == ESP_CONSTRAINT_ENDED;
    if (*end)
        return ESP_OK;
    ESP_TRY(draw(g, s, row, allowed, logits, &r, err));
    *id = r.id;
    *end = !s->opts.sampling.ignore_end && esp_token_is_end(g->model, (esp_token)r.id);
    return ESP_OK;
}

/* Take the next token of s from a row of logits; how s goes on. The caller sees to esp_engine_finish(). */
static esp_finish sample(struct esp_engine *g, struct esp_seq *s, uint32_t row)
{
    const float *logits = NULL;
    struct probs probs;
    esp_error err;
    uint32_t id;
    bool end;

    if (s->first_at == 0)
        s->first_at = esp_engine_now();
    if (choose(g, s, row, &logits, &id, &end, &err) != ESP_OK)
        return failed(g, s, &err);
    if (end)
        return esp_engine_push_event(g, s, -1, ESP_FINISH_END)->event.finish;
    if (s->n_token == g->opts.context) /* no place for it, so its text would not be part of the sequence */
        return esp_engine_push_event(g, s, -1, ESP_FINISH_LENGTH)->event.finish;
    if (!s->opts.logprobs)
        return take(g, s, id, NULL);
    if (!logits && whole_row(g, row, &logits, &err) != ESP_OK)
        return failed(g, s, &err); /* the constraint decided, the logits are wanted all the same */
    if (find_probs(g, s, logits, id, &probs, &err) != ESP_OK)
        return failed(g, s, &err);
    return take(g, s, id, &probs);
}

/* Sample the positions of s one by one while drafts are right; *n_keep tokens of the pass stay. */
static esp_finish walk(struct esp_engine *g, struct esp_seq *s, uint32_t *n_keep)
{
    const struct esp_spec_seq *x = &s->spec;
    uint32_t n = s->step_kind == ESP_ROW_VERIFY ? x->n : 0, i = 0;

    *n_keep = s->step_n;
    if (s->step_row == NO_ROW)
        return ESP_FINISH_NONE;
    for (;; i++) {
        uint32_t before = s->n_token;
        esp_finish f = sample(g, s, s->step_row + i);
        bool right = i < n && s->n_token > before && s->tokens[before] == x->drafts[i];

        if (f == ESP_FINISH_NONE && right)
            continue;
        if (n) {
            *n_keep = i + 1;
            esp_spec_learn(s, i + right, i + (i < n));
        }
        return f;
    }
}

void esp_engine_end_row(struct esp_engine *g, const struct esp_batch_seq *row, struct esp_seq *s)
{
    uint32_t before = esp_state_length(s->state), n_keep;
    esp_finish f = walk(g, s, &n_keep);
    esp_error err;

    if (esp_state_commit(s->state, n_keep, &err) != ESP_OK) {
        if (f == ESP_FINISH_NONE)
            esp_engine_push_failure(g, s, &err);
        esp_engine_finish(s, ESP_FINISH_FAILED);
        return;
    }
    esp_spec_advance(s, before, n_keep,
                     g->spec.hidden ? g->spec.hidden + (size_t)row->tok0 * g->model->net->config.hidden
                                    : NULL);
    if (s->active && f != ESP_FINISH_FAILED && esp_cache_next(s, before) == esp_state_length(s->state))
        esp_cache_store(s);
    esp_engine_finish(s, f);
}
