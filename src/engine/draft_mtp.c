/*
 * Drafts by the model's own draft layer. Its row p is made of the trunk's hidden row p and the token at p +
 * 1, so with n positions committed rows 0 .. n - 2 are known, and row n - 1 as soon as the next token is: the
 * first draft comes from it, later ones from the layer's own outputs. Rows made of true hidden rows stay;
 * those of a chain are made anew from the verify pass, together with the next first draft.
 *
 * The layer's keys and values lie in the sequence's pages as one attention layer more, and the hidden row of
 * the last position behind the slot's layers, so a fork, a snapshot, a cached prefix and a file carry all
 * that the layer needs. Rows that plain steps leave wait in a list, since many cost little more than one;
 * settle() runs them before anything is shared.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/draft.h"

#include <string.h>

#include "base/mem.h"

enum {
    LAG = 127, /* hidden rows that may wait: a run of them takes the layer's weights through the caches, so
                  few long runs disturb plain decoding less than many short ones */
    ALONG = 2  /* of them may go along with a first draft; more are cheaper without their predictions */
};

struct mtp {
    struct esp_plan *plan; /* of drafts */
    struct esp_plan *keys; /* of other rows */
    struct esp_draft_batch batch;
    float *input;  /* [cap_tok][width] */
    float *hidden; /* [rows of a draft run][width] */
    uint32_t width;
    uint32_t *rows; /* [max rows] where each ask's last output lies */
};

struct mtp_seq {
    uint32_t n; /* positions of the state that all this is about; another number: start anew from the slot */
    uint32_t n_row; /* rows of the layer in the pages */
    uint32_t n_lag; /* n_row + n_lag is n - 1, or n once row n - 1 was made for a draft */
    bool broken;    /* a run failed: its rows are of no use */
    float *last;    /* [width] hidden row n - 1 */
    float *lag;     /* [LAG][width] hidden rows n_row .. n_row + n_lag - 1 */
};

static esp_status check(const struct esp_model *m, const esp_engine_opts *o, esp_error *err)
{
    (void)o;
    if (m->net->mtp.n_op && m->net->layout.n_delta)
        return ESP_OK;
    return esp_fail(err, ESP_EINVAL,
                    "spec mtp: the model has no draft layer; ngram and a draft model are possible");
}

static uint32_t cap_tokens(const esp_engine_opts *o)
{
    uint32_t least = o->rows * (ALONG + 1);

    return o->chunk > least ? o->chunk : least;
}

static struct esp_plan_opts plan_opts(const struct esp_plan_opts *trunk, const esp_engine_opts *o,
                                      uint32_t max_tok)
{
    struct esp_plan_opts p = *trunk;

    p.max_tok = max_tok;
    p.max_out = p.max_seq = o->rows;
    p.max_rank = 0;
    return p;
}

/* The two plans' options. */
static esp_status both_opts(const struct esp_model *m, const esp_engine_opts *o,
                            struct esp_engine_shape *shape, struct esp_plan_opts *drafts,
                            struct esp_plan_opts *keys, esp_error *err)
{
    ESP_TRY(esp_engine_shape(m, o, shape, err));
    *drafts = plan_opts(&shape->plan, o, o->rows * (ALONG + 1));
    *keys = plan_opts(&shape->plan, o, cap_tokens(o));
    return ESP_OK;
}

static esp_status bytes(const struct esp_model *m, const esp_engine_opts *o, struct esp_dev *dev,
                        uint64_t *out, esp_error *err)
{
    uint64_t row = (uint64_t)m->net->config.hidden * sizeof(float);
    struct esp_engine_shape shape;
    struct esp_plan_opts drafts, keys;
    size_t a, b;

    ESP_TRY(both_opts(m, o, &shape, &drafts, &keys, err));
    ESP_TRY(dev->ops->plan_bytes(dev, &m->net->mtp, &shape.layout, &drafts, &a, err));
    ESP_TRY(dev->ops->plan_bytes(dev, &m->net->mtp_keys, &shape.layout, &keys, &b, err));
    *out = a + b + esp_net_mtp_bytes(m->net) +
           esp_draft_batch_bytes(cap_tokens(o), o->rows, m->net->mtp.n_vocab) + row * cap_tokens(o) +
           row * o->rows * (ALONG + 1) + o->max_seqs * ((LAG + 1) * row + sizeof(struct mtp_seq));
    return ESP_OK;
}

static void close_mtp(struct esp_engine *g, void *data)
{
    struct mtp *m = data;

    if (m->plan)
        g->dev->ops->plan_free(m->plan);
    if (m->keys)
        g->dev->ops->plan_free(m->keys);
    esp_draft_batch_close(&m->batch);
    esp_free(m->input);
    esp_free(m->hidden);
    esp_free(m->rows);
    esp_free(m);
}

static esp_status fill(struct mtp *m, struct esp_engine *g, esp_error *err)
{
    const struct esp_net *net = g->model->net;
    uint32_t cap = cap_tokens(&g->opts);
    struct esp_engine_shape shape;
    struct esp_plan_opts drafts, keys;

    ESP_TRY(both_opts(g->model, &g->opts, &shape, &drafts, &keys, err));
    m->width = net->config.hidden;
    ESP_TRY(g->dev->ops->compile(g->dev, &net->mtp, &g->pools->mem, &drafts, &m->plan, err));
    ESP_TRY(g->dev->ops->compile(g->dev, &net->mtp_keys, &g->pools->mem, &keys, &m->keys, err));
    ESP_TRY(esp_draft_batch_open(&m->batch, cap, g->opts.rows, net->mtp.n_vocab, err));
    m->input = esp_alloc_array((size_t)cap * m->width, sizeof *m->input);
    m->hidden = esp_alloc_array((size_t)g->opts.rows * (ALONG + 1) * m->width, sizeof *m->hidden);
    m->rows = esp_alloc_array(g->opts.rows, sizeof *m->rows);
    if (!m->input || !m->hidden || !m->rows)
        return esp_fail(err, ESP_ENOMEM, "draft layer: out of memory");
    return ESP_OK;
}

static esp_status open_mtp(struct esp_engine *g, void **data, esp_error *err)
{
    struct mtp *m = esp_alloc(sizeof *m);
    esp_status s;

    if (!m)
        return esp_fail(err, ESP_ENOMEM, "draft layer: out of memory");
    s = fill(m, g, err);
    if (s != ESP_OK) {
        close_mtp(g, m);
        return s;
    }
    *data = m;
    return ESP_OK;
}

static void seq_close(struct esp_engine *g, void *data)
{
    struct mtp_seq *x = data;

    (void)g;
    esp_free(x->last);
    esp_free(x->lag);
    esp_free(x);
}

static esp_status seq_open(struct esp_engine *g, void **data, esp_error *err)
{
    size_t width = g->model->net->config.hidden;
    struct mtp_seq *x = esp_alloc(sizeof *x);

    if (!x)
        return esp_fail(err, ESP_ENOMEM, "draft layer: out of memory");
    x->last = esp_alloc_array(width, sizeof *x->last);
    x->lag = esp_alloc_array(LAG * width, sizeof *x->lag);
    if (!x->last || !x->lag) {
        seq_close(g, x);
        return esp_fail(err, ESP_ENOMEM, "draft layer: out of memory");
    }
    *data = x;
    return ESP_OK;
}

/* ---- hidden rows ---- */

/* The hidden row behind a slot's layers, read or written. False when the device failed: the row is of no
 * use. */
static bool move_tail(const struct esp_engine *g, uint32_t slot, float *row, bool write)
{
    const struct esp_pools *m = &g->pools->mem;
    const size_t n = ((const struct mtp *)g->spec.data)->width * sizeof *row;
    struct esp_buf own = {.dev = g->dev, .host = row, .bytes = n};
    const struct esp_span tail = {m->slots, slot * m->layout.slot_bytes + m->layout.tail_off, n},
                          here = {&own, 0, n};

    return g->dev->ops->copy(write ? tail : here, write ? here : tail, NULL) == ESP_OK;
}

/* A copy to a device is waited for: there the row goes into its slot only when something will read it. */
static bool lazy(const struct esp_engine *g)
{
    return g->dev->ops->memory != NULL;
}

/* The state may have been taken over from elsewhere: then the pages have every row but the last, and the slot
 * has the hidden row for that. */
static void sync(struct esp_seq *s, uint32_t n, uint32_t slot)
{
    struct mtp_seq *x = s->spec.data;

    if (x->n == n)
        return;
    x->n = n;
    x->n_row = n ? n - 1 : 0;
    x->n_lag = 0;
    x->broken = n && !move_tail(s->engine, slot, x->last, false);
}

/* Hidden row p, which waits, is the last one, or came with the pass that began at `from`. */
static const float *hidden_at(const struct mtp *m, const struct mtp_seq *x, uint32_t p, uint32_t from,
                              const float *fresh)
{
    if (p < x->n_row + x->n_lag)
        return x->lag + (size_t)(p - x->n_row) * m->width;
    return p < from ? x->last : fresh + (size_t)(p - from) * m->width;
}

/* Keys and values of rows n_row .. end - 1, all of whose tokens are known. */
static void run_rows(const struct esp_seq *s, const uint32_t *pages, uint32_t end, uint32_t from,
                     const float *fresh)
{
    struct mtp *m = s->engine->spec.data;
    struct mtp_seq *x = s->spec.data;

    for (uint32_t at = x->n_row; at < end && !x->broken;) {
        uint32_t n = end - at < m->batch.cap_tok ? end - at : m->batch.cap_tok;
        struct esp_batch_seq *q;

        esp_draft_batch_begin(&m->batch);
        q = esp_draft_batch_add(&m->batch, at, n);
        q->pages = pages;
        memcpy(m->batch.ids, s->tokens + at + 1, n * sizeof *m->batch.ids);
        for (uint32_t i = 0; i < n; i++)
            memcpy(m->input + (size_t)i * m->width, hidden_at(m, x, at + i, from, fresh),
                   m->width * sizeof(float));
        m->batch.b.input = m->input;
        x->broken = esp_draft_batch_run(&m->batch, s->engine, m->keys, NULL) != ESP_OK;
        at += n;
    }
    x->n_row = end;
    x->n_lag = 0;
}

static void advance(struct esp_seq *s, uint32_t from, uint32_t n, const float *hidden)
{
    struct mtp_seq *x = s->spec.data;
    const struct mtp *m = s->engine->spec.data;
    uint32_t end = from + n - 1; /* rows whose token is known */
    struct esp_state_view v;

    if (n == 0 || x->n != from) /* begin() of the pass has synced, so only a row that was given up differs */
        return;
    esp_state_peek(s->state, &v);
    if (end > x->n_row + LAG) {
        run_rows(s, v.pages, end, from, hidden);
    } else {
        for (uint32_t p = x->n_row + x->n_lag; p < end; p++) {
            memcpy(x->lag + (size_t)x->n_lag * m->width, hidden_at(m, x, p, from, hidden),
                   m->width * sizeof(float));
            x->n_lag++;
        }
    }
    memcpy(x->last, hidden + (size_t)(n - 1) * m->width, m->width * sizeof(float));
    x->n = from + n;
    /* A pass owns its slot alone, and nothing has shared it since. */
    if (!lazy(s->engine) && !move_tail(s->engine, v.slot, x->last, true))
        x->broken = true;
}

static void begin(struct esp_seq *s, const struct esp_batch_seq *pass)
{
    sync(s, pass->n, pass->slot);
}

static void settle(const struct esp_seq *s, uint32_t len)
{
    struct mtp_seq *x = s->spec.data;
    struct esp_state_view v;

    (void)len;
    if (x->n != esp_state_length(s->state) || x->n == 0)
        return;
    esp_state_peek(s->state, &v);
    if (lazy(s->engine) && !move_tail(s->engine, v.slot, x->last, true))
        x->broken = true;
    if (x->n_lag == 0)
        return;
    run_rows(s, v.pages, x->n_row + x->n_lag, x->n, NULL);
}

static void forget(struct esp_seq *s)
{
    struct mtp_seq *x = s->spec.data;

    x->n = UINT32_MAX;
}

/* ---- drafting ---- */

static bool ready(struct esp_seq *s)
{
    const struct mtp_seq *x = s->spec.data;

    return esp_state_length(s->state) > 0 && !(x->broken && x->n == esp_state_length(s->state));
}

/* The first draft of every ask, and the rows that wait before it. False when the run failed. */
static bool first(struct esp_engine *g, struct esp_draft_ask *asks, uint32_t n)
{
    struct mtp *m = g->spec.data;
    bool ok;

    for (uint32_t i = 0; i < n; i++) {
        const struct mtp_seq *x = asks[i].seq->spec.data;

        if (x->n_lag > ALONG)
            run_rows(asks[i].seq, asks[i].pass->pages, x->n_row + x->n_lag, x->n, NULL);
    }
    esp_draft_batch_begin(&m->batch);
    for (uint32_t i = 0; i < n; i++) {
        struct mtp_seq *x = asks[i].seq->spec.data;
        uint32_t n_row = x->n - x->n_row, tok0 = m->batch.b.n_tok;
        struct esp_batch_seq *q = esp_draft_batch_add(&m->batch, x->n_row, n_row);

        q->pages = asks[i].pass->pages;
        q->slot = q->slot_next = asks[i].pass->slot;
        for (uint32_t j = 0; j < n_row; j++) {
            m->batch.ids[tok0 + j] = asks[i].seq->tokens[x->n_row + j + 1];
            memcpy(m->input + (size_t)(tok0 + j) * m->width, hidden_at(m, x, x->n_row + j, x->n, NULL),
                   m->width * sizeof(float));
        }
        m->rows[i] = tok0 + n_row - 1;
        esp_draft_batch_want(&m->batch);
    }
    m->batch.b.input = m->input;
    m->batch.b.hidden = m->hidden;
    ok = esp_draft_batch_run(&m->batch, g, m->plan, NULL) == ESP_OK;
    for (uint32_t i = 0; i < n; i++) {
        struct mtp_seq *x = asks[i].seq->spec.data;

        x->n_row = x->n;
        x->n_lag = 0;
        x->broken = !ok;
    }
    return ok;
}

/* One draft more for the asks in live[0 .. *n_live), from the layer's own outputs. */
static bool chain(struct esp_engine *g, struct esp_draft_ask *const *live, uint32_t n_live)
{
    struct mtp *m = g->spec.data;

    for (uint32_t i = 0; i < n_live; i++)
        memcpy(m->input + (size_t)i * m->width, m->hidden + (size_t)m->rows[i] * m->width,
               m->width * sizeof(float));
    esp_draft_batch_begin(&m->batch);
    for (uint32_t i = 0; i < n_live; i++) {
        const struct esp_draft_ask *a = live[i];
        struct esp_batch_seq *q = esp_draft_batch_add(&m->batch, a->pass->n + a->n - 1, 1);

        q->pages = a->pass->pages;
        q->slot = q->slot_next = a->pass->slot;
        m->batch.ids[i] = a->out[a->n - 1];
        m->rows[i] = i;
        esp_draft_batch_want(&m->batch);
    }
    m->batch.b.input = m->input;
    m->batch.b.hidden = m->hidden;
    return esp_draft_batch_run(&m->batch, g, m->plan, NULL) == ESP_OK;
}

static void propose(struct esp_engine *g, struct esp_draft_ask *asks, uint32_t n)
{
    struct mtp *m = g->spec.data;
    struct esp_draft_ask **live = g->spec.live;
    uint32_t n_live = n;
    bool ok = first(g, asks, n);

    for (uint32_t i = 0; i < n; i++)
        live[i] = &asks[i];
    while (ok && n_live) {
        uint32_t kept = 0;

        for (uint32_t i = 0; i < n_live; i++) {
            const float *logits = m->batch.logits + (size_t)i * g->model->net->mtp.n_vocab;

            if (!esp_draft_take(live[i], logits) || live[i]->n == live[i]->want)
                continue;
            m->rows[kept] = m->rows[i];
            live[kept++] = live[i];
        }
        n_live = kept;
        ok = n_live == 0 || chain(g, live, n_live);
    }
    for (uint32_t i = 0; i < n; i++)
        esp_draft_done(&asks[i]);
}

const struct esp_drafter esp_drafter_mtp = {.kind = ESP_SPEC_MTP,
                                            .name = "mtp",
                                            .depth = 2,
                                            .wants_hidden = true,
                                            .check = check,
                                            .bytes = bytes,
                                            .open = open_mtp,
                                            .close = close_mtp,
                                            .seq_open = seq_open,
                                            .seq_close = seq_close,
                                            .ready = ready,
                                            .begin = begin,
                                            .propose = propose,
                                            .advance = advance,
                                            .settle = settle,
                                            .forget = forget};
