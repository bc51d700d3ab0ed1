/*
 * Requests of a service: what is copied, how choices share a prompt.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/service_job.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"

void esp_service_job_free(struct esp_service_job *j)
{
    if (!j)
        return;
    esp_free(j->tokens);
    esp_free(j->marks);
    esp_free(j->bias);
    esp_free(j->breakers);
    esp_free(j->pins);
    esp_free(j->logits);
    if (j->constraint.close)
        j->constraint.close(j->constraint.user);
    esp_free(j);
}

static void *copy_of(const void *data, size_t n, size_t size)
{
    void *p = esp_alloc_array(n, size);

    if (p && n)
        memcpy(p, data, n * size);
    return p;
}

esp_status esp_service_job_make(struct esp_service_job **out, const struct esp_service_request *r,
                                esp_error *err)
{
    struct esp_service_job *j = esp_alloc(sizeof *j);

    if (!j)
        return esp_fail(err, ESP_ENOMEM, "request: out of memory");
    j->r = *r;
    j->r.n_choice = r->n_choice ? r->n_choice : 1;
    j->tokens = copy_of(r->tokens, r->n, sizeof *r->tokens);
    j->marks = copy_of(r->marks, r->n_mark, sizeof *r->marks);
    j->bias = copy_of(r->opts.sampling.bias, r->opts.sampling.n_bias, sizeof *j->bias);
    if (!j->r.opts.sampling.dry_breakers)
        j->r.opts.sampling.n_dry_word = 0;
    j->breakers = copy_of(r->opts.sampling.dry_breakers, j->r.opts.sampling.n_dry_word, sizeof *j->breakers);
    j->pins = copy_of(r->pins, r->n_pin, sizeof *j->pins);
    if (!j->tokens || !j->marks || !j->bias || !j->breakers || !j->pins) {
        esp_service_job_free(j);
        return esp_fail(err, ESP_ENOMEM, "request of %zu tokens: out of memory", r->n);
    }
    j->r.opts.sampling.bias = j->bias;
    j->r.opts.sampling.dry_breakers = j->breakers;
    if (r->goes_on)
        j->r.opts.priority = ESP_PRIORITY_FIRST; /* its place was its own a moment ago */
    if (r->constraint)
        j->constraint = *r->constraint;
    j->r.constraint = NULL;
    *out = j;
    return ESP_OK;
}

/* The first choice takes the job's constraint, choice c a clone of the first one's, which has seen no token.
 */
static esp_status constrain(struct esp_service_job *j, uint32_t c, const struct esp_constraint *first,
                            esp_error *err)
{
    struct esp_constraint mine = *first;
    esp_status s;

    if (!first->mask)
        return ESP_OK;
    if (c)
        ESP_TRY(first->clone(first->user, &mine.user, err));
    s = esp_seq_set_constraint(j->seqs[c], &mine, err);
    if (c == 0 && s == ESP_OK)
        memset(&j->constraint, 0, sizeof j->constraint);
    if (c && s != ESP_OK && mine.close)
        mine.close(mine.user);
    return s;
}

/* All of the prompt is in the sequence: generate, or run it alone for several choices to share. */
static esp_status begin(struct esp_service_job *j, esp_error *err)
{
    const struct esp_constraint c = j->constraint;

    ESP_TRY(esp_seq_set_marks(j->seqs[0], j->marks, j->r.n_mark, err));
    ESP_TRY(esp_seq_set_pins(j->seqs[0], j->pins, j->r.n_pin, err));
    j->sharing = j->r.n_choice > 1;
    if (!j->sharing)
        ESP_TRY(constrain(j, 0, &c, err));
    ESP_TRY(esp_seq_generate(j->seqs[0], j->sharing ? 0 : j->r.max_new, err));
    j->seqs[0]->armed_at = j->seqs[0]->waits_from = j->at;
    return ESP_OK;
}

esp_status esp_service_job_open(struct esp_service_job *j, esp_engine *g, esp_error *err)
{
    j->opened = true;
    j->r.opts.sampling.choice = 0;
    ESP_TRY(esp_seq_open(&j->seqs[0], g, &j->r.opts, err));
    if (j->r.score && j->r.n > 1) {
        j->logits =
            esp_alloc_array((size_t)ESP_SERVICE_SCORE * g->model->net->tape.n_vocab, sizeof *j->logits);
        if (!j->logits)
            return esp_fail(err, ESP_ENOMEM, "request of %zu tokens to score: out of memory", j->r.n);
        if (j->r.n > g->opts.context)
            return esp_fail(err, ESP_ENOFIT, "%zu tokens do not fit into the context of %u", j->r.n,
                            g->opts.context);
        j->scoring = true;
        return ESP_OK;
    }
    ESP_TRY(esp_seq_append(j->seqs[0], j->tokens, j->r.n, err));
    return begin(j, err);
}

esp_status esp_service_job_score(struct esp_service_job *j, uint32_t *first, uint32_t *n, esp_error *err)
{
    const uint32_t left = (uint32_t)j->r.n - 1 - j->n_scored;
    esp_status s;

    *n = left < ESP_SERVICE_SCORE ? left : ESP_SERVICE_SCORE;
    *first = j->n_scored + 1;
    s = esp_seq_logits(j->seqs[0], j->tokens + j->n_scored, *n, j->logits, err);
    if (s != ESP_OK) {
        esp_seq_rewind(j->seqs[0], j->n_scored, NULL); /* so that it can be tried again */
        return s;
    }
    j->n_scored += *n;
    if (j->n_scored + 1 < j->r.n)
        return ESP_OK;
    j->scoring = false;
    ESP_TRY(esp_seq_append(j->seqs[0], j->tokens + j->n_scored, 1, err));
    return begin(j, err);
}

esp_status esp_service_job_fork(struct esp_service_job *j, esp_error *err)
{
    const struct esp_constraint c = j->constraint;

    j->sharing = false;
    esp_seq_usage(j->seqs[0], &j->prompt_usage);
    for (uint32_t i = 1; i < j->r.n_choice; i++) {
        j->r.opts.sampling.choice = i;
        ESP_TRY(esp_seq_fork(&j->seqs[i], j->seqs[0], &j->r.opts, err));
        ESP_TRY(constrain(j, i, &c, err));
    }
    ESP_TRY(constrain(j, 0, &c, err));
    for (uint32_t i = 0; i < j->r.n_choice; i++) {
        ESP_TRY(esp_seq_generate(j->seqs[i], j->r.max_new, err));
        j->seqs[i]->waits_from = j->at;
    }
    return ESP_OK;
}
