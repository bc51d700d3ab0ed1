/*
 * The accounting objects that every OpenAI-like answer carries.
 *
 * SPDX-License-Identifier: MIT
 */
#include <string.h>

#include "serve/params.h"

static uint64_t sum_tokens(const struct esp_job *j)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < j->n; i++)
        n += j->choices[i].tokens.n;
    return n;
}

/* Speculative drafts of all choices: tried, and right. */
static void sum_drafts(const struct esp_job *j, uint64_t *tried, uint64_t *right)
{
    *tried = *right = 0;
    for (uint32_t i = 0; i < j->n; i++) {
        *tried += j->choices[i].usage.drafted;
        *right += j->choices[i].usage.accepted;
    }
}

uint64_t esp_cache_written(const struct esp_job *j)
{
    const size_t to = j->n_pin && !j->gen->no_cache ? j->pins[j->n_pin - 1].at : 0;

    return to > j->n_cached ? to - j->n_cached : 0;
}

json_t *esp_usage_json(const struct esp_job *j)
{
    uint64_t output = sum_tokens(j), reasoning = 0, tried, right;

    sum_drafts(j, &tried, &right);
    for (uint32_t i = 0; i < j->n; i++)
        reasoning += j->choices[i].n_reasoning;
    return json_pack("{s:I,s:I,s:I,s:{s:I,s:i,s:i},s:{s:I,s:I,s:I}}", "prompt_tokens",
                     (json_int_t)j->prompt.n, "completion_tokens", (json_int_t)output, "total_tokens",
                     (json_int_t)j->prompt.n + (json_int_t)output, "prompt_tokens_details", "cached_tokens",
                     (json_int_t)j->n_cached, "image_tokens", 0, "video_tokens", 0,
                     "completion_tokens_details", "reasoning_tokens", (json_int_t)reasoning,
                     "accepted_prediction_tokens", (json_int_t)right, "rejected_prediction_tokens",
                     (json_int_t)(tried - right));
}

static double per_second(double n, double ms)
{
    return ms > 0 ? 1000 * n / ms : 0;
}

json_t *esp_timings_json(const struct esp_job *j)
{
    const esp_usage *u = &j->choices[0].usage;
    const double ttft = j->choices[0].first_at > 0 ? 1000 * (j->choices[0].first_at - j->started) : 0;
    const uint64_t run = j->prompt.n - (j->n_cached < j->prompt.n ? j->n_cached : j->prompt.n),
                   output = sum_tokens(j);
    uint64_t tried, right;

    sum_drafts(j, &tried, &right);
    return json_pack("{s:I,s:I,s:f,s:f,s:I,s:f,s:f,s:f,s:f,s:I,s:I}", "cache_n", (json_int_t)j->n_cached,
                     "prompt_n", (json_int_t)run, "prompt_ms", u->prompt_ms, "prompt_per_second",
                     per_second((double)run, u->prompt_ms), "predicted_n", (json_int_t)output, "predicted_ms",
                     u->generate_ms, "predicted_per_second", per_second((double)output, u->generate_ms),
                     "queue_ms", u->queue_ms, "ttft_ms", ttft, "draft_n", (json_int_t)tried,
                     "draft_n_accepted", (json_int_t)right);
}

const char *esp_cache_reason(const struct esp_job *j)
{
    enum {
        SURE = 64
    }; /* tokens in common that no two texts have by chance: a template's beginning is shorter */

    if (j->gen->no_cache || j->gen->score)
        return "disabled";
    if (j->n_cached == 0 && j->n_matched > 0)
        return "no_checkpoint_before_divergence";
    if (j->n_cached == 0)
        return j->agreed >= SURE ? "evicted" : j->adapter_differs ? "adapter_differs" : "cold";
    return j->n_cached + 1 >= j->prompt.n ? "full_hit" : "partial_hit";
}

json_t *esp_progress_json(const struct esp_job *j)
{
    return json_pack("{s:I,s:I,s:I,s:I}", "total", (json_int_t)j->prompt.n, "cached", (json_int_t)j->n_cached,
                     "processed", (json_int_t)j->processed, "time_ms",
                     (json_int_t)(1000 * (esp_serve_now() - j->started)));
}

const char *esp_cache_tier(const struct esp_server *s)
{
    return s->device && strcmp(s->device, "host") != 0 ? "device" : "ram";
}

json_t *esp_ext_json(const struct esp_job *j)
{
    const struct esp_gen *g = j->gen;

    json_t *v;

    if (j->timed_out)
        esp_gen_warn(j->gen, "timeout");
    v = json_pack("{s:I,s:o,s:O,s:O,s:o,s:{s:I,s:I,s:I,s:s,s:s}}", "seed", (json_int_t)g->sampling.seed,
                  "adapter", g->adapter[0] ? json_string(g->adapter) : json_null(), "ignored", g->ignored,
                  "warnings", g->warnings, "max_tokens_clamped_to",
                  g->clamped_to >= 0 ? json_integer(g->clamped_to) : json_null(), "cache", "matched_tokens",
                  (json_int_t)(j->n_matched > j->n_cached ? j->n_matched : j->n_cached), "reused_tokens",
                  (json_int_t)j->n_cached, "checkpoint_at", (json_int_t)j->n_cached, "tier",
                  j->n_cached == 0 ? "none"
                  : j->from_file   ? "disk"
                                   : esp_cache_tier(j->s),
                  "reason", esp_cache_reason(j));
    if (g->debug_cache)
        json_object_set_new(json_object_get(v, "cache"), "divergence",
                            j->divergence ? json_incref(j->divergence) : json_null());
    return v;
}
