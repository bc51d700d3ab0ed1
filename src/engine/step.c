/*
 * One step: choose rows, run them, sample, report. Decode rows come first, prompt chunks fill the rest; since
 * a row's result does not depend on its neighbours, the mix changes speed and never text. A row with drafts
 * runs its pending token and them in one journalled pass: every position is sampled as it would be without
 * drafts, and the first that disagrees is the last one taken.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/engine.h"

#include <string.h>

#include "engine/cache.h"
#include "engine/spec.h"

struct step {
    struct esp_batch batch;
    bool few; /* some row's token may come from its greatest logits */
    uint32_t n_tok[ESP_ROW_KINDS];
};

static void fail(struct esp_engine *g, struct esp_seq *s, const esp_error *err)
{
    esp_engine_push_failure(g, s, err);
    esp_engine_finish(s, ESP_FINISH_FAILED);
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

/* The pass of s that is row number n_seq of the step is open. */
static void take_row(struct esp_engine *g, struct step *st, struct esp_seq *s, uint32_t n)
{
    struct esp_batch_seq *row = &g->batch_seqs[st->batch.n_seq];

    row->n_lora = s->lora.n;
    memcpy(row->lora, s->lora.set, sizeof row->lora);
    memcpy(row->lora_scale, s->lora.scale, sizeof row->lora_scale);
    esp_spec_begin(s, row);
    s->step_n = n;
    s->step_row = NO_ROW;
    g->batch_owner[st->batch.n_seq++] = s;
}

/* Give the last row of the step its n tokens, ids[0 .. n). */
static void place(struct esp_engine *g, struct step *st, struct esp_seq *s, const int32_t *ids, uint32_t row)
{
    struct esp_batch *b = &st->batch;
    uint32_t n = s->step_n, at = esp_state_length(s->state);

    g->batch_seqs[row].tok0 = b->n_tok;
    for (uint32_t i = 0; i < n; i++) {
        g->ids[b->n_tok + i] = ids[i];
        for (int axis = 0; axis < 3; axis++)
            g->pos[b->n_tok + i][axis] = (int32_t)(at + i);
    }
    b->n_tok += n;
    st->n_tok[s->step_kind] += n;
}

/* The logits of the last n tokens placed are wanted by s. */
static void want_logits(struct esp_engine *g, struct step *st, struct esp_seq *s, uint32_t n)
{
    struct esp_batch *b = &st->batch;

    s->step_row = b->n_out;
    st->few |= !s->opts.logprobs && esp_sampler_needs_few(s->sampler);
    for (uint32_t i = 0; i < n; i++)
        g->out_rows[b->n_out++] = b->n_tok - n + i;
}

static bool begin_row(struct esp_engine *g, struct step *st, struct esp_seq *s, uint32_t n)
{
    esp_error err;

    if (esp_engine_begin(s, n, &g->batch_seqs[st->batch.n_seq], &err) == ESP_OK) {
        take_row(g, st, s, n);
        return true;
    }
    if (s->active || !s->armed) /* else it was put back to wait */
        fail(g, s, &err);
    return false;
}

/* Known tokens of s. */
static void add_known(struct esp_engine *g, struct step *st, struct esp_seq *s, uint32_t n)
{
    uint32_t at = esp_state_length(s->state), row = st->batch.n_seq;

    if (!begin_row(g, st, s, n))
        return;
    s->step_kind = s->usage.generated_tokens ? ESP_ROW_APPEND : ESP_ROW_PREFILL;
    place(g, st, s, s->tokens + at, row);
    if (at + n == s->n_token && s->n_left)
        want_logits(g, st, s, 1);
}

/* Rows of one pending token, with drafts where they pay. */
static void add_pending(struct esp_engine *g, struct step *st)
{
    uint32_t n = 0, n_row;

    for (struct esp_seq *s = g->seqs; s; s = s->next)
        if (s->active && s->step_n == 0 && wanted(s) == 1 && s->n_left)
            g->step_rows[n++] = s;
    esp_spec_choose(g, g->step_rows, n, (g->opts.chunk - n + 1) / 2); /* prompts get the rest */
    for (uint32_t i = 0; i < n; i++) {
        struct esp_seq *s = g->step_rows[i];

        s->step_kind = ESP_ROW_VERIFY;
        if (!s->active) /* put back to wait for the sake of another row */
            continue;
        if (s->spec.want && esp_engine_begin_draft(s, 1 + s->spec.want, &g->batch_seqs[st->batch.n_seq])) {
            take_row(g, st, s, 1 + s->spec.want);
            continue;
        }
        s->step_kind = ESP_ROW_DECODE;
        s->spec.want = 0;
        begin_row(g, st, s, 1);
    }
    n_row = st->batch.n_seq;
    esp_spec_propose(g, g->batch_owner, g->batch_seqs, n_row);
    for (uint32_t i = 0; i < n_row; i++) {
        struct esp_seq *s = g->batch_owner[i];
        int32_t ids[1 + ESP_LIMIT_DRAFTS];

        ids[0] = s->tokens[s->n_token - 1];
        memcpy(ids + 1, s->spec.drafts, s->spec.n * sizeof *ids);
        s->step_n = 1 + s->spec.n;
        if (s->step_kind == ESP_ROW_VERIFY)
            esp_state_shorten(s->state, s->step_n, &g->batch_seqs[i]);
        place(g, st, s, ids, i);
        want_logits(g, st, s, s->step_n);
    }
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
            esp_engine_push_event(g, s, -1, ESP_FINISH_LENGTH);
            esp_engine_finish(s, ESP_FINISH_LENGTH);
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
        esp_engine_push_failure(g, s, &err);
        esp_engine_leave(s, ESP_LEAVE_KEEP);
    }
}

/* Prompt tokens of s for this step, at most `left`: a pass ends where the cache wants a checkpoint. */
static uint32_t prompt_part(const struct esp_seq *s, uint32_t left)
{
    uint32_t n = wanted(s), at = esp_state_length(s->state), next = esp_cache_next(s, at);

    n = n < left ? n : left;
    return n < next - at ? n : next - at;
}

/* Tokens that constraints have decided join the texts before rows are made: they need no logits. */
static void force(struct esp_engine *g)
{
    uint32_t left = ESP_LIMIT_FORCED;

    for (uint32_t i = 0; i < g->n_seq && left; i++) {
        struct esp_seq *s = by_turn(g, i);

        if (s->active)
            left -= esp_engine_force(g, s, left);
    }
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
    force(g);
    add_pending(g, st);
    budget = esp_engine_budget(g, st->batch.n_tok);
    for (uint32_t i = 0; i < 2 * n_seq && st->batch.n_tok < budget; i++) {
        struct esp_seq *s = by_turn(g, i);

        if ((s->usage.generated_tokens > 0) == (i < n_seq) && runnable(s) && wanted(s) >= 1)
            add_known(g, st, s, prompt_part(s, budget - st->batch.n_tok));
    }
    if (n_seq)
        g->turn = (g->turn + 1) % n_seq;
    st->batch.ids = g->ids;
    st->batch.pos = (const int32_t(*)[3])g->pos;
    st->batch.seqs = g->batch_seqs;
    st->batch.out_rows = g->out_rows;
    st->batch.logits = g->logits;
    g->few_now = g->few && st->few && st->batch.n_out <= ESP_FEW_ROWS;
    st->batch.few = g->few_now ? g->few : NULL;
    st->batch.hidden = g->spec.hidden;
}

/* Index of the power of two that x reaches up to. */
static uint32_t bucket(double x)
{
    uint32_t i = 0;

    for (double most = 1; i + 1 < ESP_STEP_BUCKETS && x > most; most *= 2)
        i++;
    return i;
}

static void count_step(esp_stats *t, const struct step *st, uint32_t n_prompt, double dt)
{
    const uint32_t n_tok = st->batch.n_tok;

    t->steps++;
    t->prompt_tokens += n_prompt;
    t->generate_seconds += dt * (n_tok - n_prompt) / n_tok;
    t->prompt_seconds += dt * n_prompt / n_tok;
    t->step_times[bucket(dt * 1e4)]++;
    t->step_sizes[bucket(n_tok)]++;
    t->step_seconds += dt;
    t->step_tokens += n_tok;
}

static esp_status run(struct esp_engine *g, struct step *st, esp_error *err)
{
    uint32_t n_single = st->n_tok[ESP_ROW_DECODE] + st->n_tok[ESP_ROW_VERIFY],
             n_prompt = st->batch.n_tok - n_single;
    double t0 = esp_engine_now(), work0 = esp_spec_now(g), dt;
    esp_status s = g->dev->ops->run(g->plan, &st->batch, err);

    if (s == ESP_OK)
        s = g->dev->ops->wait(g->dev, err);
    if (s != ESP_OK) {
        for (uint32_t i = 0; i < st->batch.n_seq; i++)
            esp_state_invalidate(g->batch_owner[i]->state);
        return s;
    }
    dt = esp_engine_now() - t0;
    esp_engine_measure(g, n_single, n_prompt, dt);
    if (n_prompt == 0)
        esp_spec_measure(g, n_single, esp_spec_now(g) - work0);
    count_step(&g->stats, st, n_prompt, dt);
    for (uint32_t i = 0; i < st->batch.n_seq; i++)
        esp_engine_end_row(g, &g->batch_seqs[i], g->batch_owner[i]);
    return ESP_OK;
}

/* A failed run fails its rows; the engine goes on with the others. */
static void fail_rows(struct esp_engine *g, const struct step *st, const esp_error *why)
{
    for (uint32_t i = 0; i < st->batch.n_seq; i++)
        fail(g, g->batch_owner[i], why);
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
                                      .logits = out,
                                      .hidden = g->spec.hidden};
        s->n_left = 0; /* no row of its own */
        ESP_TRY(esp_engine_begin(s, m, &g->batch_seqs[0], err));
        esp_state_commit(s->state, 0, NULL);
        add_known(g, &st, s, m);
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
