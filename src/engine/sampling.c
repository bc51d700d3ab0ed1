/*
 * See the header. Zeroed options mean "off" or "the usual"; the sampler's own ranges are checked by it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/sampling.h"

#include "base/mem.h"
#include "text/token_sets.h"

static size_t id_words(const struct esp_model *m)
{
    return ((size_t)m->net->tape.n_vocab + 63) / 64;
}

esp_status esp_sampling_open(struct esp_engine *g, esp_error *err)
{
    const struct esp_model *m = g->model;
    const struct esp_token_set set = {esp_alloc_array(id_words(m), sizeof *set.bits), id_words(m)};

    if (!set.bits)
        return esp_fail(err, ESP_ENOMEM, "engine: out of memory");
    g->xtc_exempt = set.bits;
    if (m->tok)
        esp_token_set_add_line_ends(&set, m->tok);
    for (uint32_t i = 0; i < m->n_end; i++)
        if (m->end[i] < m->net->tape.n_vocab)
            set.bits[m->end[i] / 64] |= UINT64_C(1) << (m->end[i] % 64);
    return ESP_OK;
}

esp_status esp_model_breakers(const struct esp_model *m, const char *const *texts, size_t n, uint64_t *bits,
                              esp_error *err)
{
    const struct esp_token_set set = {bits, id_words(m)};

    ESP_TRY(esp_model_need_tokenizer(m, err));
    return esp_token_set_add_texts(&set, m->tok, texts, n, err);
}

static struct esp_sample_params params_of(const struct esp_seq *s, struct esp_sample_bias *bias)
{
    const esp_sampling *o = &s->opts.sampling;
    struct esp_sample_params p;

    esp_sample_params_init(&p);
    p.temperature = o->temperature;
    p.top_k = o->top_k;
    p.top_p = o->top_p == 0 ? 1.0 : o->top_p;
    p.min_p = o->min_p;
    p.typical_p = o->typical_p == 0 ? 1.0 : o->typical_p;
    p.repetition_context_size = o->repetition_context;
    p.presence_context_size = o->presence_context;
    p.frequency_context_size = o->frequency_context;
    p.repetition_penalty = o->repetition_penalty == 0 ? 1.0 : o->repetition_penalty;
    p.presence_penalty = o->presence_penalty;
    p.frequency_penalty = o->frequency_penalty;
    p.xtc_probability = o->xtc_probability;
    p.xtc_threshold = o->xtc_threshold;
    p.xtc_exempt = s->engine->xtc_exempt;
    p.dry_multiplier = o->dry_multiplier;
    p.dry_base = o->dry_base == 0 ? p.dry_base : o->dry_base;
    p.dry_allowed_length = o->dry_allowed_length == 0 ? p.dry_allowed_length : o->dry_allowed_length;
    p.dry_context_size = o->dry_context;
    p.dry_breakers = o->dry_breakers;
    p.n_dry_word = o->dry_breakers ? o->n_dry_word : 0;
    p.seed = o->seed;
    p.choice = o->choice;
    for (size_t i = 0; i < o->n_bias; i++)
        bias[i] = (struct esp_sample_bias){.id = (uint32_t)o->bias[i].token,
                                           .bias = o->bias[i].bias < -100 ? -100 : o->bias[i].bias};
    p.bias = bias;
    p.n_bias = o->n_bias;
    return p;
}

esp_status esp_sampling_make(struct esp_seq *s, esp_error *err)
{
    const esp_sampling *o = &s->opts.sampling;
    struct esp_sample_bias *bias;
    struct esp_sample_params p;
    esp_status st;

    if (o->n_bias > ESP_SAMPLE_MAX_BIAS || (o->n_bias && !o->bias))
        return esp_fail(err, ESP_EINVAL, "n_bias %zu; at most %d entries are accepted", o->n_bias,
                        ESP_SAMPLE_MAX_BIAS);
    if (s->opts.priority < -100 || s->opts.priority > 100)
        return esp_fail(err, ESP_EINVAL, "priority %d; -100 to 100 are accepted", s->opts.priority);
    if (s->opts.top_logprobs > MAX_TOP)
        return esp_fail(err, ESP_EINVAL, "top_logprobs %u; 0 to %d are accepted", s->opts.top_logprobs,
                        MAX_TOP);
    bias = esp_alloc_array(o->n_bias, sizeof *bias);
    if (!bias)
        return esp_fail(err, ESP_ENOMEM, "sequence: out of memory");
    p = params_of(s, bias);
    st = esp_sampler_create(&s->sampler, &p, s->engine->sample_work, s->engine->opts.context, err);
    esp_free(bias);
    s->opts.sampling.bias = NULL;
    s->opts.sampling.dry_breakers = NULL;
    return st;
}
