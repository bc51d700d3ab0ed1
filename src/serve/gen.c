/*
 * Settings of a request: where their defaults come from, and what a limit on tokens means for a prompt.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/job.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

void esp_gen_init(struct esp_gen *g, const struct esp_server *s)
{
    const struct esp_serve_sampling *d = &s->o.sampling;
    const esp_model_info *m = &s->info;

    memset(g, 0, sizeof *g);
    g->sampling.temperature = !isnan(d->temperature) ? d->temperature
                              : m->temperature >= 0  ? m->temperature
                                                     : 0.7F;
    g->sampling.top_p = !isnan(d->top_p) ? d->top_p : m->top_p > 0 ? m->top_p : 1;
    g->sampling.min_p = !isnan(d->min_p) ? d->min_p : m->min_p >= 0 ? m->min_p : 0;
    g->sampling.top_k = d->top_k >= -1 ? d->top_k : m->top_k > 0 ? m->top_k : 0;
    g->sampling.repetition_penalty = !isnan(d->repetition_penalty) ? d->repetition_penalty : 1;
    g->sampling.presence_penalty = !isnan(d->presence_penalty) ? d->presence_penalty : 0;
    g->sampling.frequency_penalty = !isnan(d->frequency_penalty) ? d->frequency_penalty : 0;
    g->sampling.typical_p = d->typical_p;
    g->sampling.xtc_probability = d->xtc_probability;
    g->sampling.xtc_threshold = d->xtc_threshold;
    g->sampling.dry_multiplier = d->dry_multiplier;
    g->sampling.dry_base = d->dry_base;
    g->sampling.dry_allowed_length = d->dry_allowed_length;
    g->sampling.dry_context = d->dry_context;
    g->max_tokens = -1;
    g->n = 1;
    g->parallel_calls = true;
    g->strict_max = s->o.strict_max_tokens;
    g->ping = s->o.sse_ping;
    g->debug_cache = s->o.cache_debug;
    g->clamped_to = -1;
    g->ignored = json_array();
    g->warnings = json_array();
}

void esp_gen_free(struct esp_gen *g)
{
    esp_free(g->bias);
    esp_free(g->breakers);
    esp_grammar_release(g->grammar);
    json_decref(g->ignored);
    json_decref(g->warnings);
}

void esp_gen_warn(struct esp_gen *g, const char *message)
{
    enum { MAX_WARNINGS = 32 };
    size_t i;
    json_t *w;

    json_array_foreach(g->warnings, i, w) if (strcmp(json_string_value(w), message) == 0) return;
    if (json_array_size(g->warnings) < MAX_WARNINGS)
        json_array_append_new(g->warnings, json_string(message));
}

const char *esp_end_name(enum esp_end e)
{
    static const char *const names[] = {
        [ESP_END_NONE] = "none",        [ESP_END_STOP] = "stop",    [ESP_END_LENGTH] = "length",
        [ESP_END_CALLS] = "tool_calls", [ESP_END_FAILED] = "error", [ESP_END_GONE] = "cancelled"};

    return names[e];
}

static bool no_room(const struct esp_server *s, const struct esp_gen *g, size_t n, uint64_t most, bool prompt,
                    struct esp_api_error *e)
{
    if (!e->http)
        e->details =
            json_pack("{s:s,s:I,s:I,s:I}", "limit_source", s->context >= s->info.context ? "model" : "server",
                      "max_context", (json_int_t)most, "prompt_tokens", (json_int_t)n, "max_tokens",
                      (json_int_t)(g->max_tokens >= 0 ? g->max_tokens : 0));
    return esp_api_fail(
        e, "context_length_exceeded", NULL,
        prompt ? "prompt is too long: %llu tokens > %llu maximum"
               : "prompt of %llu tokens and max_tokens exceed %llu tokens of context",
        (unsigned long long)n,
        (unsigned long long)(prompt && n == most ? most - 1 : most)); /* one is for the answer */
}

bool esp_job_limit(const struct esp_server *s, struct esp_gen *g, size_t n, uint64_t *out,
                   struct esp_api_error *e)
{
    const uint64_t most = s->kv_tokens < s->context ? s->kv_tokens : s->context;
    const bool given = g->max_tokens >= 0;
    const uint64_t fallback = s->o.max_tokens ? s->o.max_tokens : most;
    const uint64_t asked = given ? (uint64_t)g->max_tokens : fallback, room = n < most ? most - n : 0;

    if (n == 0)
        return esp_api_fail(e, "invalid_value", NULL, "the prompt has no tokens; at least one is needed");
    if (n > most || (room == 0 && asked > 0))
        return no_room(s, g, n, most, true, e);
    if (g->strict_max && given && asked > room)
        return no_room(s, g, n, most, false, e);
    *out = asked < room ? asked : room;
    if (given && *out < asked)
        g->clamped_to = (int64_t)*out;
    return true;
}
