/*
 * What is told of a prompt before its answer: how far it has run, and the log-probabilities of its tokens.
 * The latter need logits at every position, so such a prompt runs apart from the step, a few tokens at a
 * time.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/service_parts.h"

void esp_service_tell_progress(struct esp_service *v, struct esp_service_job *j)
{
    const struct esp_seq *s = j->seqs[0];
    struct esp_service_event e;
    double now;

    if (!j->r.progress_ms || !s || s->active_at <= 0 || j->n_ended ||
        (j->told_at > 0 && s->usage.generated_tokens))
        return;
    now = esp_engine_now();
    if (j->told_at > 0 && (now - j->told_at) * 1000 < j->r.progress_ms)
        return;
    j->told_at = now;
    e = esp_service_event_of(j, 0, ESP_SERVICE_PROGRESS);
    e.usage.prompt_tokens = j->r.n;
    e.usage.cached_tokens = s->usage.cached_tokens;
    e.usage.queue_ms = s->active_at > s->armed_at ? 1000 * (s->active_at - s->armed_at) : 0;
    e.processed = esp_state_length(s->state) < j->r.n ? esp_state_length(s->state) : j->r.n;
    e.matched = s->cache_match;
    e.from_file = s->cache_file;
    e.ns = s->ns;
    esp_service_push(v, &e);
}

/* Rows of logits to events of the prompt's tokens [first, first + n). */
static esp_status tell_scores(struct esp_service *v, struct esp_service_job *j, uint32_t first, uint32_t n,
                              esp_error *err)
{
    const uint32_t n_vocab = v->g->model->net->tape.n_vocab;

    for (uint32_t i = 0; i < n; i++) {
        const struct esp_logprob_query q = {.id = (uint32_t)j->tokens[first + i],
                                            .n_top = j->r.opts.top_logprobs};
        struct esp_service_event e = esp_service_event_of(j, 0, ESP_SERVICE_PROMPT);
        struct esp_sample_logprob chosen, top[ESP_SAMPLE_MAX_TOP];

        ESP_TRY(
            esp_sample_logprobs(j->logits + (size_t)i * n_vocab, n_vocab, q, &chosen, top, &e.n_top, err));
        e.token = j->tokens[first + i];
        e.logprob = (float)chosen.logprob;
        for (uint32_t k = 0; k < e.n_top; k++)
            e.top[k] = (esp_logprob){.token = (esp_token)top[k].id, .logprob = (float)top[k].logprob};
        esp_service_push(v, &e);
    }
    return ESP_OK;
}

void esp_service_score(struct esp_service *v)
{
    struct esp_service_job *j = v->jobs;
    uint32_t first, n;
    esp_error err;
    esp_status s;

    while (j && (!j->scoring || j->n_ended))
        j = j->next;
    if (!j)
        return;
    s = esp_service_job_score(j, &first, &n, &err);
    if (s == ESP_ENOFIT && v->g->n_active && j->scoring)
        return; /* the rows have the pages; some end */
    if (s == ESP_OK)
        s = tell_scores(v, j, first, n, &err);
    if (s != ESP_OK)
        esp_service_end_job(v, j, &err);
}
