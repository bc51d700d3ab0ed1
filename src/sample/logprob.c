/*
 * Log-probabilities of the model's own distribution. Two passes over the row: the maximum and the few best,
 * then the sum of exponentials in double, four partial sums by index modulo four.
 *
 * SPDX-License-Identifier: MIT
 */
#include "sample/sampler.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "sample/exp.h"

/* Put (id, value) into the descending list top[0..n), n <= cap. Ids come ascending, so an equal value goes
 * behind. */
static uint32_t insert(struct esp_sample_logprob *top, uint32_t n, uint32_t cap, uint32_t id, double value)
{
    uint32_t at = n < cap ? n : cap - 1;

    for (; at > 0 && top[at - 1].logprob < value; at--)
        top[at] = top[at - 1];
    top[at] = (struct esp_sample_logprob){id, value};
    return n < cap ? n + 1 : cap;
}

/* Sum of exp(logit - max), in steps of fixed length that compilers turn into vector code. */
static double sum_exp(const float *logits, uint32_t n, double max)
{
    enum { STEP = 64 };
    double sum[4] = {0}, e[STEP];
    uint32_t at = 0;

    for (; n - at >= STEP; at += STEP) {
        for (int i = 0; i < STEP; i++)
            e[i] = esp_exp_neg((double)logits[at + (uint32_t)i] - max);
        for (int i = 0; i < STEP; i++)
            sum[i & 3] += e[i];
    }
    for (; at < n; at++)
        sum[at & 3] += esp_exp_neg((double)logits[at] - max);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

esp_status esp_sample_logprobs(const float *logits, uint32_t n_vocab, struct esp_logprob_query q,
                               struct esp_sample_logprob *chosen, struct esp_sample_logprob *top, uint32_t *n,
                               esp_error *err)
{
    /* one more than asked for: the maximum is wanted even for n_top 0 */
    struct esp_sample_logprob best[ESP_SAMPLE_MAX_TOP + 1] = {{0, -INFINITY}};
    double max, log_total;
    uint32_t n_best = 0, cap = q.n_top + 1;

    if (q.n_top > ESP_SAMPLE_MAX_TOP)
        return esp_fail(err, ESP_EINVAL, "top_logprobs: %" PRIu32 " is not accepted, only 0 to %d", q.n_top,
                        ESP_SAMPLE_MAX_TOP);
    if (q.id >= n_vocab)
        return esp_fail(err, ESP_EINVAL, "logprobs: no token has id %" PRIu32 "; ids are below %" PRIu32,
                        q.id, n_vocab);
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (!(logits[i] <= FLT_MAX))
            return esp_fail(err, ESP_ENUMERIC,
                            "logits: %g at index %" PRIu32 " of %" PRIu32 "; numbers or -inf are accepted",
                            (double)logits[i], i, n_vocab);
        if (n_best < cap || (double)logits[i] > best[cap - 1].logprob)
            n_best = insert(best, n_best, cap, i, (double)logits[i]);
    }
    max = best[0].logprob;
    if (!(max > -INFINITY))
        return esp_fail(err, ESP_ENUMERIC, "logits: -inf at index 0 and at every other of %" PRIu32, n_vocab);
    log_total = log(sum_exp(logits, n_vocab, max));
    *chosen = (struct esp_sample_logprob){q.id, (double)logits[q.id] - max - log_total};
    *n = q.n_top < n_best ? q.n_top : n_best;
    for (uint32_t i = 0; i < *n; i++)
        top[i] = (struct esp_sample_logprob){best[i].id, best[i].logprob - max - log_total};
    return ESP_OK;
}
