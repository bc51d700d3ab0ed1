/*
 * Drafts by a smaller model of the same vocabulary, with pools and states of its own on the engine's device.
 * What is known of a text runs through it as plain passes; drafts run as journalled passes that are never
 * kept, each over all drafts so far: a few rows cost about as much as one, and no state is ever copied back.
 * Its states are in no prefix cache: after a hit or a cut they are computed anew, at most a chunk in a step.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/draft.h"

#include <string.h>

#include "base/mem.h"

#include "engine/spec.h"

struct drafting {
    const struct esp_net *net;
    struct esp_state_pools *pools;
    struct esp_plan *plan;
    struct esp_draft_batch batch;
};

/* ---- opening ---- */

/* Both tokenizers must give every id the same bytes, or drafts would be other texts than they look. */
static esp_status same_tokens(const struct esp_model *a, const struct esp_model *b, esp_error *err)
{
    uint32_t n = a->net->tape.n_vocab;

    if (b->net->tape.n_vocab < n)
        n = b->net->tape.n_vocab;
    if (!a->tok != !b->tok || (!a->tok && a->net->tape.n_vocab != b->net->tape.n_vocab))
        return esp_fail(err, ESP_EINVAL,
                        "draft model: only one of the models has a tokenizer, or they have %u and %u ids",
                        a->net->tape.n_vocab, b->net->tape.n_vocab);
    for (uint32_t id = 0; a->tok && id < n; id++) {
        const char *x, *y;
        size_t nx, ny;

        esp_tokenizer_token_bytes(a->tok, id, &x, &nx);
        esp_tokenizer_token_bytes(b->tok, id, &y, &ny);
        if (nx != ny || (nx && memcmp(x, y, nx) != 0) ||
            esp_tokenizer_is_added(a->tok, id) != esp_tokenizer_is_added(b->tok, id))
            return esp_fail(
                err, ESP_EINVAL,
                "draft model: token %u is another than the model's; a draft model must have the same "
                "tokenizer",
                id);
    }
    return ESP_OK;
}

static esp_status check(const struct esp_model *m, const esp_engine_opts *o, esp_error *err)
{
    const struct esp_model *d = o->draft_model;

    if (!d)
        return esp_fail(err, ESP_EINVAL, "spec draft: needs a draft_model");
    if (d->net->config.max_position < o->context)
        return esp_fail(err, ESP_EINVAL, "draft model: made for %u positions, the context is %u",
                        d->net->config.max_position, o->context);
    return same_tokens(m, d, err);
}

static esp_status shape_of(const struct esp_model *m, const esp_engine_opts *o, struct esp_engine_shape *out,
                           esp_error *err)
{
    enum esp_kv kv;
    uint32_t cap;

    ESP_TRY(esp_engine_shape(m, o, out, err)); /* plain kv, act and pages as the engine has them ... */
    kv = out->layout.kv;
    out->layout = o->draft_model->net->layout; /* ... in the small model's layout */
    out->layout.kv =
        kv == ESP_KV_CODED ? ESP_KV_BF16 : kv; /* codes are for the large cache; a draft only guesses */
    ESP_TRY(esp_layout_finish(&out->layout, err));
    out->pools.n_page = out->layout.n_attn ? (uint32_t)(o->kv_tokens / ESP_SPAN) : 0;
    out->pools.n_slot = out->layout.n_delta ? o->max_seqs + o->rows : 0;
    out->pools.n_journal = out->layout.n_delta ? o->rows : 0;
    out->pools.journal_rows = o->spec_tokens;
    cap = esp_spec_max_drafts(o) + o->rows;
    out->plan.max_tok = o->chunk > cap ? o->chunk : cap;
    out->plan.max_out = o->rows;
    return ESP_OK;
}

static esp_status bytes(const struct esp_model *m, const esp_engine_opts *o, struct esp_dev *dev,
                        uint64_t *out, esp_error *err)
{
    const struct esp_net *net = o->draft_model->net;
    struct esp_engine_shape z;
    size_t scratch;

    ESP_TRY(shape_of(m, o, &z, err));
    ESP_TRY(dev->ops->plan_bytes(dev, &net->tape, &z.layout, &z.plan, &scratch, err));
    *out = scratch + esp_engine_weights(dev, net, &net->tape) + net->vector_bytes +
           esp_draft_batch_bytes(z.plan.max_tok, o->rows, net->tape.n_vocab) +
           esp_dev_alloc_bytes(dev, (uint64_t)z.pools.n_page * z.layout.page_bytes) +
           esp_dev_alloc_bytes(dev, (uint64_t)z.pools.n_slot * z.layout.slot_bytes) +
           esp_dev_alloc_bytes(dev, (uint64_t)z.pools.n_journal * z.layout.n_delta * z.pools.journal_rows *
                                        z.layout.conv_row);
    return ESP_OK;
}

static void close_drafting(struct esp_engine *g, void *data)
{
    struct drafting *d = data;

    if (d->plan)
        g->dev->ops->plan_free(d->plan);
    esp_state_pools_destroy(d->pools);
    esp_draft_batch_close(&d->batch);
    esp_free(d);
}

static esp_status fill(struct drafting *d, struct esp_engine *g, esp_error *err)
{
    struct esp_engine_shape z;

    d->net = g->opts.draft_model->net;
    ESP_TRY(shape_of(g->model, &g->opts, &z, err));
    ESP_TRY(esp_state_pools_create(&d->pools, g->dev, &z.layout, &z.pools, err));
    ESP_TRY(g->dev->ops->compile(g->dev, &d->net->tape, &d->pools->mem, &z.plan, &d->plan, err));
    return esp_draft_batch_open(&d->batch, z.plan.max_tok, g->opts.rows, d->net->tape.n_vocab, err);
}

static esp_status open_drafting(struct esp_engine *g, void **data, esp_error *err)
{
    struct drafting *d = esp_alloc(sizeof *d);
    esp_status s;

    if (!d)
        return esp_fail(err, ESP_ENOMEM, "draft model: out of memory");
    s = fill(d, g, err);
    if (s != ESP_OK) {
        close_drafting(g, d);
        return s;
    }
    *data = d;
    return ESP_OK;
}

static esp_status seq_open(struct esp_engine *g, void **data, esp_error *err)
{
    struct drafting *d = g->spec.data;

    return esp_state_open((struct esp_state **)data, d->pools, g->opts.context, 0, err);
}

static void seq_close(struct esp_engine *g, void *data)
{
    (void)g;
    esp_state_close(data);
}

static bool ready(struct esp_seq *s)
{
    (void)s;
    return true;
}

/* ---- running ---- */

/* Open a pass of the small model's state of s; when pools run out, states of those without a row give way. */
static bool begin_pass(struct esp_seq *s, uint32_t n, enum esp_pass pass, struct esp_batch_seq *out)
{
    struct esp_seq *r = s->engine->seqs;

    while (esp_state_begin(s->spec.data, n, pass, out, NULL) != ESP_OK) {
        while (r && (r == s || r->active || esp_state_length(r->spec.data) == 0))
            r = r->next;
        if (!r)
            return false;
        esp_state_invalidate(r->spec.data);
    }
    return true;
}

/* Add n tokens of s to the batch in a pass of their own. */
static bool add(struct drafting *d, struct esp_seq *s, const int32_t *ids, uint32_t n, enum esp_pass pass)
{
    uint32_t tok0 = d->batch.b.n_tok;
    struct esp_batch_seq p, *q;

    if (!begin_pass(s, n, pass, &p))
        return false;
    q = esp_draft_batch_add(&d->batch, p.n, n);
    p.tok0 = q->tok0;
    *q = p;
    memcpy(d->batch.ids + tok0, ids, n * sizeof *ids);
    return true;
}

/* End the pass of s after a run that took place or not. */
static bool end(struct esp_seq *s, bool ok, uint32_t n_keep)
{
    if (ok && esp_state_commit(s->spec.data, n_keep, NULL) == ESP_OK)
        return true;
    esp_state_invalidate(s->spec.data);
    return false;
}

/* Run what is known of s up to position end - 1 and not wanted yet. */
static void feed(struct esp_seq *s, uint32_t upto)
{
    struct drafting *d = s->engine->spec.data;

    while (esp_state_length(s->spec.data) < upto) {
        uint32_t at = esp_state_length(s->spec.data), n = upto - at;

        n = n < d->batch.cap_tok ? n : d->batch.cap_tok;
        esp_draft_batch_begin(&d->batch);
        if (!add(d, s, s->tokens + at, n, ESP_PASS_WRITE) ||
            !end(s, esp_draft_batch_run(&d->batch, s->engine, d->plan, NULL) == ESP_OK, n))
            return;
    }
}

/* A prompt's chunk goes through the small model as well; single tokens wait for the next proposal. */
static void advance(struct esp_seq *s, uint32_t from, uint32_t n, const float *hidden)
{
    (void)hidden;
    if (n > 1 + s->engine->opts.spec_tokens && !s->spec.off)
        feed(s, from + n);
}

/* What every ask's text has more than its state; those that get logits of their last token go to live. */
static uint32_t catch_up(struct esp_engine *g, struct esp_draft_ask *asks, uint32_t n)
{
    struct drafting *d = g->spec.data;
    struct esp_draft_ask **live = g->spec.live;
    uint32_t n_live = 0, n_add = 0;
    bool ok;

    esp_draft_batch_begin(&d->batch);
    for (uint32_t i = 0; i < n; i++) {
        struct esp_seq *s = asks[i].seq;
        uint32_t at = esp_state_length(s->spec.data),
                 left = d->batch.cap_tok - d->batch.b.n_tok - (n - 1 - i);
        uint32_t part = s->n_token - at < left ? s->n_token - at : left;

        asks[i].n = 0;
        if (!add(d, s, s->tokens + at, part, ESP_PASS_WRITE))
            continue;
        live[n_add++] = &asks[i];
        if (at + part == s->n_token)
            esp_draft_batch_want(&d->batch);
    }
    ok = n_add && esp_draft_batch_run(&d->batch, g, d->plan, NULL) == ESP_OK;
    for (uint32_t i = 0; i < n_add; i++) {
        struct esp_seq *s = live[i]->seq;

        if (end(s, ok, d->batch.seqs[i].n_tok) && esp_state_length(s->spec.data) == s->n_token)
            live[n_live++] = live[i];
    }
    return n_live;
}

/* One pass over the drafts so far of every live ask. */
static bool chain(struct esp_engine *g, uint32_t *n_live)
{
    struct drafting *d = g->spec.data;
    struct esp_draft_ask **live = g->spec.live;
    uint32_t kept = 0;
    bool ok;

    esp_draft_batch_begin(&d->batch);
    for (uint32_t i = 0; i < *n_live; i++) {
        if (live[i]->n > d->batch.cap_tok - d->batch.b.n_tok ||
            !add(d, live[i]->seq, live[i]->out, live[i]->n, ESP_PASS_JOURNAL))
            continue;
        esp_draft_batch_want(&d->batch);
        live[kept++] = live[i];
    }
    *n_live = kept;
    ok = kept && esp_draft_batch_run(&d->batch, g, d->plan, NULL) == ESP_OK;
    for (uint32_t i = 0; i < kept; i++)
        ok = end(live[i]->seq, ok, 0) && ok;
    return ok;
}

static void propose(struct esp_engine *g, struct esp_draft_ask *asks, uint32_t n)
{
    struct drafting *d = g->spec.data;
    struct esp_draft_ask **live = g->spec.live;
    uint32_t n_live = catch_up(g, asks, n);
    bool ok = n_live > 0;

    while (ok && n_live) {
        uint32_t kept = 0;

        for (uint32_t i = 0; i < n_live; i++) {
            const float *logits = d->batch.logits + (size_t)i * d->net->tape.n_vocab;

            if (esp_draft_take(live[i], logits) && live[i]->n < live[i]->want)
                live[kept++] = live[i];
        }
        n_live = kept;
        ok = n_live == 0 || chain(g, &n_live);
    }
    for (uint32_t i = 0; i < n; i++)
        esp_draft_done(&asks[i]);
}

static void settle(const struct esp_seq *s, uint32_t len)
{
    uint32_t reached;

    if (len < esp_state_length(s->spec.data))
        esp_state_rewind(s->spec.data, len, &reached, NULL);
}

const struct esp_drafter esp_drafter_model = {.kind = ESP_SPEC_DRAFT,
                                              .name = "draft",
                                              .depth = 3,
                                              .check = check,
                                              .bytes = bytes,
                                              .open = open_drafting,
                                              .close = close_drafting,
                                              .seq_open = seq_open,
                                              .seq_close = seq_close,
                                              .ready = ready,
                                              .propose = propose,
                                              .advance = advance,
                                              .settle = settle};
