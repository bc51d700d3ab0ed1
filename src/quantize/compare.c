/*
 * See compare.h. Log-sums are in double; a percentile is the smallest value that at least that share does not
 * pass.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/model.h"

enum { PASS = 128, MAX_OTHERS = 64 };

struct tally {
    float *kl; /* [tokens] */
    double kl_sum, nll, base_nll;
    uint64_t n, agree, predictions;
};

struct work {
    const struct esp_compare_job *job;
    float *base, *other; /* [pass][vocabulary] */
    double *base_lse;    /* [pass] */
    uint32_t n_vocab;
};

/* log sum exp, and the most likely index. */
static double lse(const float *x, uint32_t n, uint32_t *best)
{
    float max = x[0];
    double sum = 0;

    *best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > max) {
            max = x[i];
            *best = i;
        }
    for (uint32_t i = 0; i < n; i++)
        sum += (double)expf(x[i] - max);
    /* cppcheck-suppress invalidFunctionArg */
    return (double)max + log(sum); /* the term of the maximum is 1: sum >= 1 */
}

static esp_status add_row(struct tally *t, const struct work *w, uint32_t row, int32_t next, esp_error *err)
{
    const float *p = w->base + (size_t)row * w->n_vocab, *q = w->other + (size_t)row * w->n_vocab;
    uint32_t best_p, best_q;
    const double lp = lse(p, w->n_vocab, &best_p), lq = lse(q, w->n_vocab, &best_q);
    double kl = 0;

    for (uint32_t i = 0; i < w->n_vocab; i++)
        kl += (double)expf(p[i] - (float)lp) * ((double)p[i] - (double)q[i]);
    kl += lq - lp;
    if (!isfinite(kl))
        return esp_fail(err, ESP_ENUMERIC, "comparison: the logits behind token %llu are not finite",
                        (unsigned long long)t->n);
    kl = kl > 0 ? kl : 0; /* rounding */
    t->kl[t->n++] = (float)kl;
    t->kl_sum += kl;
    t->agree += best_p == best_q;
    if (next >= 0) {
        t->base_nll += lp - (double)p[next];
        t->nll += lq - (double)q[next];
        t->predictions++;
    }
    return ESP_OK;
}

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return x < y ? -1 : x > y;
}

static double percentile(const float *sorted, uint64_t n, double share)
{
    const uint64_t at = (uint64_t)ceil(share * (double)n);

    return (double)sorted[at ? at - 1 : 0];
}

static void finish(esp_comparison *out, struct tally *t)
{
    const double n = (double)t->n, m = t->predictions ? (double)t->predictions : 1;

    qsort(t->kl, t->n, sizeof *t->kl, ascending);
    *out = (esp_comparison){.tokens = t->n,
                            .kl_mean = t->kl_sum / n,
                            .kl_p50 = percentile(t->kl, t->n, 0.50),
                            .kl_p95 = percentile(t->kl, t->n, 0.95),
                            .kl_p99 = percentile(t->kl, t->n, 0.99),
                            .kl_max = (double)t->kl[t->n - 1],
                            .agreement = (double)t->agree / n,
                            .base_nll = t->base_nll / m,
                            .other_nll = t->nll / m};
}

static esp_status ready(void *user, uint32_t first, uint32_t n_row, const float *logits, esp_error *err)
{
    (void)user;
    (void)first;
    (void)n_row;
    (void)logits;
    (void)err;
    return ESP_OK; /* read from the buffer afterwards */
}

/* One list through all models; states [n_other + 1], the base's first. */
static esp_status run_list(struct work *w, struct tally *tally, struct esp_state **states, const int32_t *ids,
                           uint32_t n, esp_error *err)
{
    const struct esp_compare_job *j = w->job;

    for (uint32_t i = 0; i < n; i += PASS) {
        const uint32_t rows = n - i < PASS ? n - i : PASS;
        struct esp_run_out out = {.buffer = w->base, .logits = ready};

        ESP_TRY(esp_runner_pass(j->base, states[0], ids + i, rows, &out, err));
        out.buffer = w->other;
        for (size_t o = 0; o < j->n_other; o++) {
            ESP_TRY(esp_runner_pass(&j->other[o], states[o + 1], ids + i, rows, &out, err));
            for (uint32_t r = 0; r < rows; r++)
                ESP_TRY(add_row(&tally[o], w, r, i + r + 1 < n ? ids[i + r + 1] : -1, err));
        }
    }
    return ESP_OK;
}

static esp_status open_states(const struct esp_compare_job *j, struct esp_state **states, uint32_t n,
                              esp_error *err)
{
    ESP_TRY(esp_state_open(&states[0], j->base->pools, n, 0, err));
    for (size_t o = 0; o < j->n_other; o++)
        ESP_TRY(esp_state_open(&states[o + 1], j->other[o].pools, n, 0, err));
    return ESP_OK;
}

static esp_status run_all(struct work *w, struct tally *tally, esp_error *err)
{
    const struct esp_compare_job *j = w->job;
    const struct esp_token_lists *t = j->text;
    struct esp_state *states[MAX_OTHERS + 1];
    esp_status s = ESP_OK;

    for (uint32_t i = 0; s == ESP_OK && i < t->n; i++) {
        const uint32_t n = t->start[i + 1] - t->start[i];

        memset(states, 0, sizeof states);
        s = esp_progress_tell(j->progress, "comparing", j->item ? j->item : "", t->start[i], t->start[t->n],
                              err);
        if (s == ESP_OK)
            s = open_states(j, states, n, err);
        if (s == ESP_OK)
            s = run_list(w, tally, states, t->ids + t->start[i], n, err);
        for (size_t o = 0; o <= j->n_other; o++)
            if (states[o]) {
                if (s != ESP_OK)
                    esp_state_invalidate(states[o]);
                esp_state_close(states[o]);
            }
    }
    return s;
}

esp_status esp_compare_run(const struct esp_compare_job *job, esp_comparison *out, esp_error *err)
{
    struct work w = {.job = job, .n_vocab = job->base->n_vocab};
    struct tally tally[MAX_OTHERS] = {{0}};
    const size_t row = (size_t)w.n_vocab * sizeof(float);
    esp_status s = ESP_OK;

    if (job->n_other > MAX_OTHERS || job->text->n == 0 || job->text->start[job->text->n] == 0)
        return esp_fail(err, ESP_EINVAL,
                        "comparison: %zu models on %u lists of tokens; at most %d, at least one list",
                        job->n_other, job->text->n, MAX_OTHERS);
    w.base = esp_alloc_aligned(PASS * row, 64);
    w.other = esp_alloc_aligned(PASS * row, 64);
    for (size_t o = 0; o < job->n_other; o++) {
        tally[o].kl = esp_alloc_array(job->text->start[job->text->n], sizeof(float));
        if (!tally[o].kl || job->other[o].n_vocab != w.n_vocab)
            s = tally[o].kl ? esp_fail(err, ESP_EINVAL, "comparison: vocabularies of %u and %u", w.n_vocab,
                                       job->other[o].n_vocab)
                            : esp_fail(err, ESP_ENOMEM, "comparison: out of memory");
    }
    if (s == ESP_OK && (!w.base || !w.other))
        s = esp_fail(err, ESP_ENOMEM, "comparison: out of memory");
    if (s == ESP_OK)
        s = run_all(&w, tally, err);
    for (size_t o = 0; o < job->n_other; o++) {
        if (s == ESP_OK)
            finish(&out[o], &tally[o]);
        esp_free(tally[o].kl);
    }
    esp_free_aligned(w.base);
    esp_free_aligned(w.other);
    return s;
}

/* ---- model folders ---- */

struct models {
    struct esp_model *model[MAX_OTHERS + 1];
    struct esp_runner runner[MAX_OTHERS + 1];
};

static esp_status cache_of(const esp_compare_opts *o, size_t i, struct esp_runner_opts *out, esp_error *err)
{
    const esp_compare_cache *c = o->caches ? &o->caches[i] : &o->cache;

    if (c->kv_start > o->window)
        return esp_fail(err, ESP_EINVAL, "kv_start %u; at most the window, %u, is possible", c->kv_start,
                        o->window);
    out->kv = c->kv;
    out->kv_start = c->kv_start;
    return c->state ? esp_recurrent_parse(&out->state, c->state, err) : ESP_OK;
}

static esp_status open_all(struct models *m, const char *base, const char *const *other, size_t n_other,
                           const esp_compare_opts *o, esp_error *err)
{
    const esp_model_opts mo = {.threads = o->threads};

    for (size_t i = 0; i <= n_other; i++) {
        struct esp_runner_opts ro = {.context = o->window, .max_tok = PASS, .act_auto = true};

        ESP_TRY(esp_model_open(&m->model[i], i ? other[i - 1] : base, &mo, err));
        ro.level = m->model[i]->level;
        ro.threads = m->model[i]->n_thread;
        if (i)
            ESP_TRY(cache_of(o, i - 1, &ro, err));
        ESP_TRY(esp_runner_open(&m->runner[i], m->model[i]->net, &ro, err));
    }
    return ESP_OK;
}

static esp_status cut(struct esp_token_lists *t, const int32_t *tokens, size_t n, uint32_t window,
                      esp_error *err)
{
    const size_t count = (n + window - 1) / window;

    t->start = esp_alloc_array(count + 1, sizeof *t->start);
    if (!t->start || n > UINT32_MAX)
        return esp_fail(err, ESP_ENOMEM, "comparison: no memory for %zu tokens", n);
    for (size_t i = 0; i <= count; i++)
        t->start[i] = (uint32_t)(i * window < n ? i * window : n);
    t->ids = (int32_t *)(uintptr_t)tokens; /* only read */
    t->n = (uint32_t)count;
    return ESP_OK;
}

esp_status esp_compare(const char *base, const char *const *other, size_t n_other, const int32_t *tokens,
                       size_t n, const esp_compare_opts *opts, esp_comparison *out, esp_error *err)
{
    const struct esp_progress_to progress = {opts->progress, opts->progress_user};
    struct esp_token_lists text = {0};
    struct models *m;
    esp_status s;

    if (n_other == 0 || n_other > MAX_OTHERS || opts->window < 2 || n < 2)
        return esp_fail(err, ESP_EINVAL,
                        "comparison of %zu models on %zu tokens in windows of %u; 1 to %d models, 2 tokens",
                        n_other, n, opts->window, MAX_OTHERS);
    m = esp_alloc(sizeof *m);
    if (!m)
        return esp_fail(err, ESP_ENOMEM, "comparison: out of memory");
    s = open_all(m, base, other, n_other, opts, err);
    if (s == ESP_OK)
        s = cut(&text, tokens, n, opts->window, err);
    for (size_t i = 0; s == ESP_OK && i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= m->runner[0].n_vocab)
            s = esp_fail(err, ESP_EINVAL, "comparison: token %zu is %d; the vocabulary has 0 to %u", i,
                         tokens[i], m->runner[0].n_vocab - 1);
    if (s == ESP_OK)
        s = esp_compare_run(
            &(struct esp_compare_job){&m->runner[0], &m->runner[1], n_other, &text, &progress, NULL}, out,
            err);
    for (size_t i = 0; i <= n_other; i++) {
        esp_runner_close(&m->runner[i]);
        esp_model_close(m->model[i]);
    }
    esp_free(text.start);
    esp_free(m);
    return s;
}
