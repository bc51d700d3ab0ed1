/*
 * How deep to speculate. A row keeps decayed counts of right and wrong drafts, which give the chance P that
 * the next one is right; the engine keeps the time of a step by its number of rows and of a draft. Drafts are
 * added where they raise expected tokens by time, row by row; where none would, a row waits longer and longer
 * before it tries a short one again, so a text that drafts badly costs next to nothing.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/spec.h"

#include <string.h>
#include <time.h>

#include "base/limits.h"
#include "base/mem.h"

#include "engine/cache.h"

enum {
    MAX_DRAFTS = 48,   /* of one step over all rows: each costs a row of logits */
    LEAST_JUDGED = 32, /* drafts before spec_min_rate judges a row */
    FIRST_WAIT = 8,
    LONGER = 4, /* times as long is every further wait: a try costs most of a token */
    LONGEST_WAIT = 512
};

static const double first_right = 3, first_wrong = 2; /* counts to begin with: P = 0.6 */
static const double decay = 0.9;                      /* of the counts, by round */
static const double least_gain =
    1.1; /* below it drafts are not worth the noise, nor what is not in the measured times */
static const double row_cost = 0.05;   /* of a step, by row, until measured */
static const double draft_cost = 0.05; /* of a step, by draft, until measured */

/* ---- options and memory ---- */

esp_status esp_spec_resolve(const struct esp_model *m, esp_engine_opts *o, esp_error *err)
{
    const struct esp_drafter *d;

    if ((unsigned)o->spec > ESP_SPEC_DRAFT)
        return esp_fail(err, ESP_EINVAL, "spec %d; 0 (off) to %d are known", (int)o->spec, ESP_SPEC_DRAFT);
    if (o->spec_tokens > ESP_LIMIT_DRAFTS)
        return esp_fail(err, ESP_EINVAL, "spec_tokens %u; at most %u are possible", o->spec_tokens,
                        ESP_LIMIT_DRAFTS);
    if (!(o->spec_min_rate >= 0 && o->spec_min_rate <= 1))
        return esp_fail(err, ESP_EINVAL, "spec_min_rate %g; 0 to 1 is accepted", (double)o->spec_min_rate);
    if (o->spec == ESP_SPEC_AUTO)
        o->spec = esp_drafter_mtp.check(m, o, NULL) == ESP_OK ? ESP_SPEC_MTP : ESP_SPEC_NGRAM;
    d = esp_drafter_get(o->spec);
    if (!d)
        return ESP_OK;
    if (o->spec_tokens == 0)
        o->spec_tokens = d->depth;
    return d->check ? d->check(m, o, err) : ESP_OK;
}

uint32_t esp_spec_max_drafts(const esp_engine_opts *o)
{
    uint64_t n = (uint64_t)o->rows * o->spec_tokens;

    if (o->spec == ESP_SPEC_OFF)
        return 0;
    n = n < MAX_DRAFTS ? n : MAX_DRAFTS;
    n = n < o->chunk - 1 ? n : o->chunk - 1;
    return (uint32_t)(n > 0 ? n : 1);
}

void esp_spec_shape(const struct esp_model *m, const esp_engine_opts *o, struct esp_engine_shape *shape)
{
    const struct esp_drafter *d = esp_drafter_get(o->spec);
    uint32_t rows;

    if (!d)
        return;
    if (o->spec == ESP_SPEC_MTP) {
        shape->layout.n_attn = m->net->mtp_layer + 1;
        shape->layout.tail_bytes = m->net->config.hidden * sizeof(float);
    }
    if (!m->net->layout.n_delta)
        return;
    rows = esp_spec_max_drafts(o); /* as many may draft in one step */
    rows = o->rows < rows ? o->rows : rows;
    shape->pools.n_journal = rows;
    shape->pools.journal_rows = o->spec_tokens + 1;
    shape->pools.n_slot += rows; /* a pass over a chunk border writes a second one until it is decided */
}

esp_status esp_spec_bytes(const struct esp_model *m, const esp_engine_opts *o,
                          const struct esp_engine_shape *shape, struct esp_dev *dev, uint64_t *out,
                          esp_error *err)
{
    const struct esp_drafter *d = esp_drafter_get(o->spec);
    const struct esp_layout *l = &shape->layout;
    uint64_t own = 0;

    *out = 0;
    if (!d)
        return ESP_OK;
    if (d->bytes)
        ESP_TRY(d->bytes(m, o, dev, &own, err));
    *out = own + (uint64_t)esp_spec_max_drafts(o) * m->net->tape.n_vocab * sizeof(float);
    *out += esp_dev_alloc_bytes(dev, (uint64_t)shape->pools.n_journal * l->n_delta *
                                         shape->pools.journal_rows * l->conv_row);
    if (d->wants_hidden)
        *out += (uint64_t)o->chunk * m->net->config.hidden * sizeof(float);
    return ESP_OK;
}

/* ---- opening ---- */

esp_status esp_spec_open(struct esp_engine *g, esp_error *err)
{
    struct esp_speculation *x = &g->spec;
    const esp_engine_opts *o = &g->opts;

    x->drafter = esp_drafter_get(o->spec);
    x->max_drafts = esp_spec_max_drafts(o);
    if (!x->drafter)
        return ESP_OK;
    x->asks = esp_alloc_array(o->rows, sizeof *x->asks);
    x->live = esp_alloc_array(o->rows, sizeof *x->live);
    if (x->drafter->wants_hidden)
        x->hidden = esp_alloc_array((size_t)o->chunk * g->model->net->config.hidden, sizeof *x->hidden);
    if (!x->asks || !x->live || (x->drafter->wants_hidden && !x->hidden))
        return esp_fail(err, ESP_ENOMEM, "speculation: out of memory");
    if (o->spec == ESP_SPEC_MTP)
        g->pools->lookback = 1;
    return x->drafter->open ? x->drafter->open(g, &x->data, err) : ESP_OK;
}

void esp_spec_close(struct esp_engine *g)
{
    struct esp_speculation *x = &g->spec;

    if (x->data)
        x->drafter->close(g, x->data);
    esp_free(x->asks);
    esp_free(x->live);
    esp_free(x->hidden);
}

esp_status esp_spec_seq_open(struct esp_seq *s, esp_error *err)
{
    const struct esp_drafter *d = s->engine->spec.drafter;

    esp_spec_arm(s);
    return d && d->seq_open ? d->seq_open(s->engine, &s->spec.data, err) : ESP_OK;
}

void esp_spec_seq_close(struct esp_seq *s)
{
    if (s->spec.data)
        s->engine->spec.drafter->seq_close(s->engine, s->spec.data);
    s->spec.data = NULL;
}

void esp_spec_arm(struct esp_seq *s)
{
    struct esp_spec_seq *x = &s->spec;

    x->want = x->n = 0;
    x->right = first_right;
    x->wrong = first_wrong;
    x->wait = 0;
    x->next_wait = FIRST_WAIT;
    x->off = s->opts.no_spec;
}

/* ---- depth ---- */

double esp_spec_now(const struct esp_engine *g)
{
    struct timespec t;

    if (strcmp(g->dev->ops->name, "cpu") != 0)
        return esp_engine_now();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Follows what is usual and not what was delayed: a fast sample counts more than a slow one, a very slow one
 * as four times the usual. */
static void blend(double *mean, double sample)
{
    if (*mean <= 0)
        *mean = sample;
    else if (sample < *mean)
        *mean += 0.3 * (sample - *mean);
    else
        *mean += 0.1 * ((sample < 4 * *mean ? sample : 4 * *mean) - *mean);
}

/* Measured seconds of a step of n rows, or of more rows if that was faster: what is measured seldom is
 * measured high, and more rows never cost less. 0: unknown, for more rows too. */
static double measured(const struct esp_speculation *x, uint32_t n)
{
    double least = 0;

    for (; n <= ESP_SPEC_CURVE; n++)
        if (x->step_time[n] > 0 && (least <= 0 || x->step_time[n] < least))
            least = x->step_time[n];
    return least;
}

/* Seconds of a step of n rows: measured, else between or beyond what was. */
static double step_time(const struct esp_speculation *x, uint32_t n)
{
    uint32_t a, b;

    n = n < ESP_SPEC_CURVE ? n : ESP_SPEC_CURVE;
    for (a = n; a > 0 && x->step_time[a] <= 0; a--)
        ;
    for (b = n; b <= ESP_SPEC_CURVE && x->step_time[b] <= 0; b++)
        ;
    if (a == n)
        return measured(x, n);
    if (a > 0 && b <= ESP_SPEC_CURVE)
        return measured(x, a) + (measured(x, b) - measured(x, a)) * (n - a) / (b - a);
    if (a > 0)
        return measured(x, a) * (1 + row_cost * (n - a));
    return b <= ESP_SPEC_CURVE ? measured(x, b) / (1 + row_cost * (b - n)) : 1 + row_cost * n;
}

static double draft_time(const struct esp_speculation *x)
{
    return x->draft_time > 0 ? x->draft_time : draft_cost * step_time(x, 1);
}

/* Most drafts that s may get at all now. */
static uint32_t most(struct esp_seq *s)
{
    const struct esp_engine *g = s->engine;
    uint32_t at = esp_state_length(s->state), n = g->opts.spec_tokens, next;

    if (s->spec.off || s->n_left < 2)
        return 0;
    n = n < s->n_left - 1 ? n : (uint32_t)(s->n_left - 1);
    n = n < g->opts.context - s->n_token ? n : g->opts.context - s->n_token;
    next = esp_cache_next(s, at);
    n = n < next - at - 1 ? n : next - at - 1; /* a pass ends where the cache wants a checkpoint */
    return n && g->spec.drafter->ready(s) ? n : 0;
}

/* What drafts do to a step: its rows, the tokens it is expected to give, the longest chain of drafts. */
struct outlook {
    uint32_t rows, longest;
    double tokens;
};

static double rate(const struct esp_speculation *x, const struct outlook *o)
{
    return o->tokens / (step_time(x, o->rows) + o->longest * draft_time(x));
}

/* Best number of drafts for s in a step that looks like *o without them; *o is moved there. */
static uint32_t deepest(const struct esp_speculation *x, const struct esp_seq *s, uint32_t limit,
                        struct outlook *o)
{
    double p = s->spec.right / (s->spec.right + s->spec.wrong + 1); /* one wrong more: the counts are few */
    double base = rate(x, o), best_rate = base * least_gain, tokens = o->tokens, chance = 1;
    struct outlook best = *o;
    uint32_t k_best = 0;

    for (uint32_t k = 1; k <= limit; k++) {
        struct outlook with = {.rows = o->rows + k, .longest = k > o->longest ? k : o->longest};

        chance *= p;
        tokens += chance;
        with.tokens = tokens;
        if (rate(x, &with) > best_rate) {
            best_rate = rate(x, &with);
            best = with;
            k_best = k;
        }
    }
    *o = best;
    return k_best;
}

static uint32_t choose(struct esp_speculation *x, struct esp_seq *s, uint32_t limit, struct outlook *o)
{
    struct esp_spec_seq *q = &s->spec;
    uint32_t k;

    if (q->wait) {
        q->wait--;
        return 0;
    }
    k = deepest(x, s, limit, o);
    if (k) {
        q->next_wait = FIRST_WAIT;
        return k;
    }
    q->wait = q->next_wait; /* try once more, shortly, then wait longer */
    q->next_wait = q->next_wait < LONGEST_WAIT / LONGER ? q->next_wait * LONGER : LONGEST_WAIT;
    o->rows++;
    o->longest = o->longest ? o->longest : 1;
    return 1;
}

void esp_spec_choose(struct esp_engine *g, struct esp_seq *const *rows, uint32_t n, uint32_t room)
{
    struct esp_speculation *x = &g->spec;
    struct outlook o = {.rows = n, .tokens = n};
    uint32_t left = room < x->max_drafts ? room : x->max_drafts;

    for (uint32_t i = 0; i < n; i++) {
        struct esp_seq *s = rows[i];
        uint32_t limit;

        s->spec.want = s->spec.n = 0;
        if (!x->drafter)
            continue;
        limit = most(s);
        limit = limit < left ? limit : left;
        if (limit)
            s->spec.want = g->opts.spec_always ? limit : choose(x, s, limit, &o);
        left -= s->spec.want;
    }
}

void esp_spec_propose(struct esp_engine *g, struct esp_seq *const *rows, const struct esp_batch_seq *passes,
                      uint32_t n)
{
    struct esp_speculation *x = &g->spec;
    double t0, work;
    uint32_t n_ask = 0, longest = 0;

    for (uint32_t i = 0; i < n; i++)
        if (rows[i]->spec.want)
            x->asks[n_ask++] = (struct esp_draft_ask){
                .seq = rows[i], .pass = &passes[i], .want = rows[i]->spec.want, .out = rows[i]->spec.drafts};
    if (n_ask == 0)
        return;
    t0 = esp_engine_now();
    work = esp_spec_now(g);
    x->drafter->propose(g, x->asks, n_ask);
    work = esp_spec_now(g) - work;
    for (uint32_t i = 0; i < n_ask; i++) {
        x->asks[i].seq->spec.n = x->asks[i].n;
        longest = x->asks[i].n > longest ? x->asks[i].n : longest;
    }
    x->draft_seconds += esp_engine_now() - t0;
    if (longest)
        blend(&x->draft_time, work / longest);
}

/* ---- experience ---- */

void esp_spec_learn(struct esp_seq *s, uint32_t n_right, uint32_t n_tried)
{
    struct esp_spec_seq *x = &s->spec;
    esp_stats *st = &s->engine->stats;

    if (x->n == 0)
        return;
    x->right = decay * x->right + n_right;
    x->wrong = decay * x->wrong + (n_tried - n_right);
    st->spec_rounds++;
    st->spec_drafted += x->n;
    st->spec_accepted += n_right;
    for (uint32_t i = 0; i < n_tried; i++) {
        uint32_t at = i < ESP_SPEC_POSITIONS ? i : ESP_SPEC_POSITIONS - 1;

        st->spec_asked_at[at]++;
        st->spec_right_at[at] += i < n_right;
    }
    s->usage.drafted += x->n;
    s->usage.accepted += n_right;
    if (s->engine->opts.spec_min_rate > 0 && s->usage.drafted >= LEAST_JUDGED &&
        (double)s->usage.accepted < (double)s->engine->opts.spec_min_rate * (double)s->usage.drafted)
        x->off = true;
}

void esp_spec_measure(struct esp_engine *g, uint32_t n_rows, double dt)
{
    if (n_rows <= ESP_SPEC_CURVE)
        blend(&g->spec.step_time[n_rows], dt);
}

/* ---- events ---- */

void esp_spec_begin(struct esp_seq *s, const struct esp_batch_seq *pass)
{
    const struct esp_drafter *d = s->engine->spec.drafter;

    if (d && d->begin)
        d->begin(s, pass);
}

void esp_spec_advance(struct esp_seq *s, uint32_t from, uint32_t n, const float *hidden)
{
    const struct esp_drafter *d = s->engine->spec.drafter;

    if (d && d->advance)
        d->advance(s, from, n, hidden);
}

void esp_spec_settle(const struct esp_seq *s, uint32_t len)
{
    const struct esp_drafter *d = s->engine->spec.drafter;

    if (d && d->settle && s->spec.data)
        d->settle(s, len);
}

void esp_spec_forget(struct esp_seq *s)
{
    const struct esp_drafter *d = s->engine->spec.drafter;

    if (d && d->forget && s->spec.data)
        d->forget(s);
}

void esp_spec_stats(const struct esp_engine *g, esp_stats *out)
{
    out->spec_name = g->spec.drafter ? g->spec.drafter->name : "off";
    out->draft_seconds = g->spec.draft_seconds;
    out->spec_rows = 0;
    for (const struct esp_seq *s = g->seqs; s && g->spec.drafter; s = s->next)
        out->spec_rows += s->active && !s->spec.off;
}
