/*
 * The chain: load and mask the row, apply the sparse edits (bias, penalties, end tokens), then pick. Edits
 * touch only ids that are named or were seen, so their cost does not grow with the vocabulary.
 *
 * SPDX-License-Identifier: MIT
 */
#include "sample/sampler.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

#include "sample/dry.h"
#include "sample/history.h"
#include "sample/select.h"

struct esp_sampler {
    struct esp_sample_params p; /* bias, end_ids and dry_breakers point to own copies */
    struct esp_sample_work *work;
    struct esp_sample_history history;
    struct esp_sample_bias *bias;
    uint32_t *end_ids;
    uint64_t *breakers;
    struct esp_sample_dry dry;
};

static bool has_penalty(const struct esp_sample_params *p)
{
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

size_t esp_sampler_bytes(const struct esp_sample_params *p, uint32_t n_vocab, size_t max_tokens)
{
    return sizeof(struct esp_sampler) + p->n_bias * sizeof *p->bias + p->n_end * sizeof *p->end_ids +
           esp_sample_history_bytes(n_vocab, max_tokens, has_penalty(p)) +
           (p->dry_multiplier > 0 ? max_tokens * sizeof(uint32_t) + p->n_dry_word * sizeof(uint64_t) : 0);
}

/* 0 means the whole sequence; so does a window longer than size_t. */
static size_t window_size(int64_t context)
{
    return context > 0 && (uint64_t)context < SIZE_MAX ? (size_t)context : SIZE_MAX;
}

static esp_status open_dry(struct esp_sampler *s, const struct esp_sample_params *p, size_t max_tokens,
                           esp_error *err)
{
    if (!(p->dry_multiplier > 0))
        return ESP_OK;
    s->breakers = esp_alloc_array(p->n_dry_word, sizeof *s->breakers);
    s->dry = (struct esp_sample_dry){.multiplier = p->dry_multiplier,
                                     .base = p->dry_base,
                                     .allowed = (size_t)p->dry_allowed_length,
                                     .window = window_size(p->dry_context_size),
                                     .breakers = s->breakers,
                                     .n_words = p->n_dry_word,
                                     .match = esp_alloc_array(max_tokens, sizeof *s->dry.match)};
    if (!s->breakers || !s->dry.match)
        return esp_fail(err, ESP_ENOMEM, "sampler: no memory for repetitions in %zu tokens", max_tokens);
    if (p->n_dry_word)
        memcpy(s->breakers, p->dry_breakers, p->n_dry_word * sizeof *s->breakers);
    return ESP_OK;
}

esp_status esp_sampler_create(struct esp_sampler **out, const struct esp_sample_params *p,
                              struct esp_sample_work *work, size_t max_tokens, esp_error *err)
{
    struct esp_sampler *s;
    esp_status status;

    ESP_TRY(esp_sample_params_check(p, work->n_vocab, err));
    s = esp_alloc(sizeof *s);
    if (!s)
        return esp_fail(err, ESP_ENOMEM, "sampler: out of memory");
    status = esp_sample_history_init(&s->history, work->n_vocab, max_tokens, has_penalty(p), err);
    if (status == ESP_OK)
        status = open_dry(s, p, max_tokens, err);
    if (status != ESP_OK)
        goto failed;
    s->bias = esp_alloc_array(p->n_bias, sizeof *s->bias);
    s->end_ids = esp_alloc_array(p->n_end, sizeof *s->end_ids);
    if (!s->bias || !s->end_ids) {
        status = esp_fail(err, ESP_ENOMEM, "sampler: no memory for %zu biases", p->n_bias);
        goto failed;
    }
    if (p->n_bias)
        memcpy(s->bias, p->bias, p->n_bias * sizeof *s->bias);
    if (p->n_end)
        memcpy(s->end_ids, p->end_ids, p->n_end * sizeof *s->end_ids);
    s->p = *p;
    s->p.bias = s->bias;
    s->p.end_ids = s->end_ids;
    s->p.dry_breakers = s->breakers;
    s->work = work;
    s->history.window[ESP_WINDOW_REPETITION] = window_size(p->repetition_context_size);
    s->history.window[ESP_WINDOW_PRESENCE] = window_size(p->presence_context_size);
    s->history.window[ESP_WINDOW_FREQUENCY] = window_size(p->frequency_context_size);
    *out = s;
    return ESP_OK;
failed:
    esp_sampler_destroy(s);
    return status;
}

void esp_sampler_destroy(struct esp_sampler *s)
{
    if (!s)
        return;
    esp_sample_history_clear(&s->history);
    esp_free(s->bias);
    esp_free(s->end_ids);
    esp_free(s->breakers);
    esp_free(s->dry.match);
    esp_free(s);
}

esp_status esp_sampler_push_prompt(struct esp_sampler *s, const uint32_t *ids, size_t n, esp_error *err)
{
    return esp_sample_history_push(&s->history, ids, n, false, err);
}

esp_status esp_sampler_push(struct esp_sampler *s, uint32_t id, esp_error *err)
{
    return esp_sample_history_push(&s->history, &id, 1, true, err);
}

esp_status esp_sampler_pop(struct esp_sampler *s, size_t n, esp_error *err)
{
    if (n > s->history.len)
        return esp_fail(err, ESP_EINVAL, "sampler: cannot take back %zu of %zu tokens", n, s->history.len);
    esp_sample_history_pop(&s->history, n);
    return ESP_OK;
}

size_t esp_sampler_length(const struct esp_sampler *s)
{
    return s->history.len;
}

size_t esp_sampler_n_generated(const struct esp_sampler *s)
{
    return s->history.n_generated;
}

static void add_bias(const struct esp_sampler *s)
{
    for (size_t i = 0; i < s->p.n_bias; i++) {
        uint32_t id = s->bias[i].id;
        float bias = s->bias[i].bias;

        if (bias <= -100)
            esp_sample_work_set(s->work, id, -INFINITY);
        else
            esp_sample_work_set(s->work, id, esp_sample_saturate((double)s->work->logit[id] + (double)bias));
    }
}

static void add_penalties(const struct esp_sampler *s)
{
    for (size_t i = 0; i < s->history.n_active; i++) {
        const struct esp_sample_history_entry *e = &s->history.active[i];
        double x = (double)s->work->logit[e->id];

        if (e->count[ESP_WINDOW_REPETITION])
            x = x > 0 ? x / s->p.repetition_penalty : x * s->p.repetition_penalty;
        if (e->count[ESP_WINDOW_PRESENCE])
            x -= s->p.presence_penalty;
        x -= s->p.frequency_penalty * e->count[ESP_WINDOW_FREQUENCY];
        esp_sample_work_set(s->work, e->id, esp_sample_saturate(x));
    }
}

/* Ban the end tokens until min_tokens; a row that could then do nothing at all may end. */
static float ban_end_tokens(const struct esp_sampler *s)
{
    struct esp_sample_work *w = s->work;
    float saved[ESP_SAMPLE_MAX_END], max;

    for (size_t i = 0; i < s->p.n_end; i++)
        saved[i] = w->logit[s->end_ids[i]];
    for (size_t i = 0; i < s->p.n_end; i++)
        esp_sample_work_set(w, s->end_ids[i], -INFINITY);
    max = esp_sample_work_max(w);
    if (max > -INFINITY || !w->whole)
        return max;
    for (size_t i = 0; i < s->p.n_end; i++) {
        w->logit[s->end_ids[i]] = saved[i];
        w->dirty[s->end_ids[i] / ESP_SAMPLE_BLOCK] = 1;
    }
    return esp_sample_work_max(w);
}

/* What parameters and history change of the loaded row; its greatest value. */
static float edit(const struct esp_sampler *s)
{
    add_bias(s);
    add_penalties(s);
    if (s->dry.multiplier > 0)
        esp_sample_dry_apply(&s->dry, &s->history, s->work);
    if (s->p.n_end && (uint64_t)s->history.n_generated < (uint64_t)s->p.min_tokens)
        return ban_end_tokens(s);
    return esp_sample_work_max(s->work);
}

/* The processed row into s->work; *max is its greatest value and finite. */
static esp_status process(const struct esp_sampler *s, const float *logits, const uint64_t *allowed,
                          float *max, esp_error *err)
{
    struct esp_sample_work *w = s->work;
    uint32_t bad;
    float raw;

    esp_sample_work_load(w, logits, allowed, &raw, &bad);
    if (bad < w->n_vocab)
        return esp_fail(err, ESP_ENUMERIC,
                        "logits: %g at index %" PRIu32 " of %" PRIu32 "; numbers or -inf are accepted",
                        (double)logits[bad], bad, w->n_vocab);
    if (!(raw > -INFINITY))
        return esp_fail(err, ESP_ENUMERIC, "logits: -inf at index 0 and at every other of %" PRIu32,
                        w->n_vocab);
    *max = edit(s);
    if (!(*max > -INFINITY))
        return esp_fail(err, ESP_ESTATE, "sampler: mask and logit_bias allow none of the %" PRIu32 " tokens",
                        w->n_vocab);
    return ESP_OK;
}

/* From the processed row in s->work to an id. */
static void pick(const struct esp_sampler *s, float max, uint64_t position, struct esp_sample_result *out)
{
    struct esp_rng_key key = {.seed = s->p.seed, .choice = s->p.choice, .position = position};

    if (s->p.temperature == 0) {
        *out = (struct esp_sample_result){.id = esp_sample_work_first(s->work, max), .n_kept = 1};
        return;
    }
    esp_sample_work_select(s->work, &s->p, max);
    if (s->p.xtc_probability > 0) {
        const struct esp_rng_key whether = {
            .seed = s->p.seed, .choice = s->p.choice, .position = position, .draw = 1};

        if (esp_rng_uniform(&whether) < s->p.xtc_probability)
            esp_sample_work_exclude(s->work, &s->p);
    }
    out->id = esp_sample_work_pick(s->work, esp_rng_uniform(&key));
    out->n_kept = s->work->n_kept;
}

esp_status esp_sampler_draw(const struct esp_sampler *s, const float *logits, const uint64_t *allowed,
                            uint64_t position, struct esp_sample_result *out, esp_error *err)
{
    float max = 0;

    ESP_TRY(process(s, logits, allowed, &max, err));
    pick(s, max, position, out);
    return ESP_OK;
}

/* ---- from the greatest values ---- */

/* Whether no edit can raise a logit: only then do ids that are not among the greatest stay out. */
static bool only_lowers(const struct esp_sample_params *p)
{
    for (size_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].bias > 0)
            return false;
    return p->repetition_penalty >= 1 && p->presence_penalty >= 0 && p->frequency_penalty >= 0;
}

bool esp_sampler_needs_few(const struct esp_sampler *s)
{
    return (s->p.temperature == 0 || s->p.top_k > 0) && only_lowers(&s->p);
}

bool esp_sampler_draw_few(const struct esp_sampler *s, const struct esp_sample_few *few,
                          const uint64_t *allowed, uint64_t position, struct esp_sample_result *out)
{
    const int64_t want = s->p.temperature == 0 ? 1 : s->p.top_k;
    float least = few->n ? few->value[0] : 0, max;
    int64_t have = 0;

    if (few->n < want || !esp_sampler_needs_few(s))
        return false;
    esp_sample_work_load_few(s->work, few, allowed);
    max = edit(s);
    for (uint32_t i = 0; i < few->n; i++)
        least = few->value[i] < least ? few->value[i] : least;
    for (uint32_t i = 0; i < few->n; i++)
        have += s->work->logit[few->id[i]] >= least;
    if (have < want || !(max > -INFINITY) || !(least > -INFINITY))
        return false;
    pick(s, max, position, out);
    return true;
}

esp_status esp_sampler_process(const struct esp_sampler *s, const float *logits, const uint64_t *allowed,
                               float *out, esp_error *err)
{
    float max = 0;

    ESP_TRY(process(s, logits, allowed, &max, err));
    memcpy(out, s->work->logit, s->work->n_vocab * sizeof *out);
    return ESP_OK;
}

esp_status esp_sampler_logprobs(const struct esp_sampler *s, const float *logits, const uint64_t *allowed,
                                const struct esp_logprob_query *q, struct esp_sample_logprob *chosen,
                                struct esp_sample_logprob *top, uint32_t *n, esp_error *err)
{
    struct esp_sample_work *w = s->work;
    float max = 0;

    ESP_TRY(process(s, logits, allowed, &max, err));
    if (s->p.temperature > 0) /* from the greatest down, so that nothing overflows */
        for (uint32_t i = 0; i < w->n_vocab; i++)
            w->logit[i] = esp_sample_saturate(((double)w->logit[i] - (double)max) / s->p.temperature);
    return esp_sample_logprobs(w->logit, w->n_vocab, *q, chosen, top, n, err);
}
