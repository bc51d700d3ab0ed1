/*
 * See the header. Ranges are those of the API page; what is out of range is refused, never bent.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/adapters.h"
#include "serve/params.h"
#include "serve/repeats.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "sample/sampler.h"

enum { MAX_BIAS = 4096 };

bool esp_gen_ban(struct esp_gen *g, esp_token t)
{
    esp_logit_bias *v;

    if (t < 0)
        return true;
    for (size_t i = 0; i < g->sampling.n_bias; i++)
        if (g->bias[i].token == t) {
            g->bias[i].bias = -100;
            return true;
        }
    v = esp_realloc(g->bias, (g->sampling.n_bias + 1) * sizeof *v);
    if (!v)
        return false;
    v[g->sampling.n_bias++] = (esp_logit_bias){t, -100};
    g->bias = v;
    g->sampling.bias = v;
    return true;
}

static bool parse_id(const char *s, int64_t *out)
{
    int64_t n = 0;

    if (!*s || strlen(s) > 9)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9')
            return false;
        n = n * 10 + (*s - '0');
    }
    *out = n;
    return true;
}

static void read_bias(struct esp_fields *f, struct esp_gen *g, const struct esp_server *s)
{
    const json_t *object = NULL;
    const char *key;
    json_t *v;

    if (!esp_field_object(f, "logit_bias", &object))
        return;
    if (json_object_size(object) > MAX_BIAS) {
        esp_api_fail(f->e, "invalid_value", "logit_bias", "logit_bias: %zu entries; at most %d are accepted",
                     json_object_size(object), MAX_BIAS);
        return;
    }
    g->bias = esp_alloc_array(json_object_size(object) + 1, sizeof *g->bias);
    if (!g->bias) {
        esp_api_fail(f->e, "device_lost", NULL, "no memory for logit_bias");
        return;
    }
    json_object_foreach((json_t *)object, key, v)
    {
        int64_t id = -1;
        double x = json_number_value(v);

        if (!parse_id(key, &id) || id >= (int64_t)s->info.n_vocab) {
            esp_api_fail(f->e, "invalid_value", "logit_bias",
                         "logit_bias: key '%.100s' is not a token id; 0 to %u are", key, s->info.n_vocab - 1);
            return;
        }
        if (!json_is_number(v) || !(x >= -100 && x <= 100)) {
            esp_api_fail(f->e, "invalid_value", "logit_bias",
                         "logit_bias: %s for id %s; -100 to 100 is accepted", esp_show_value(v), key);
            return;
        }
        g->bias[g->sampling.n_bias++] = (esp_logit_bias){(esp_token)id, (float)x};
    }
    g->sampling.bias = g->bias;
}

void esp_params_stops(struct esp_fields *f, const char *name, struct esp_gen *g)
{
    const json_t *v = esp_field_any(f, name);
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;

    if (!v)
        return;
    if (!json_is_array(v) && !json_is_string(v)) {
        esp_field_wrong(f, name, v, "a string or an array of strings");
        return;
    }
    if (g->n_stop + n > ESP_MAX_STOPS) {
        esp_api_fail(f->e, "invalid_value", name, "%s: %zu strings; at most %d are accepted", name, n,
                     ESP_MAX_STOPS);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;

        if (!json_is_string(one)) {
            esp_field_wrong(f, name, one, "a string");
            return;
        }
        if (json_string_length(one) < 1 || json_string_length(one) > ESP_STOP_MAX_BYTES) {
            esp_api_fail(f->e, "invalid_value", name, "%s: a string of %zu bytes; 1 to %d are accepted", name,
                         json_string_length(one), ESP_STOP_MAX_BYTES);
            return;
        }
        g->stops[g->n_stop++] = (struct esp_stop_string){json_string_value(one), json_string_length(one)};
    }
}

static void read_stop_tokens(struct esp_fields *f, struct esp_gen *g, const struct esp_server *s)
{
    const json_t *list = NULL, *v;
    size_t i;

    if (!esp_field_array(f, "stop_token_ids", &list))
        return;
    if (json_array_size(list) > ESP_MAX_STOP_TOKENS) {
        esp_api_fail(f->e, "invalid_value", "stop_token_ids",
                     "stop_token_ids: %zu ids; at most %d are accepted", json_array_size(list),
                     ESP_MAX_STOP_TOKENS);
        return;
    }
    json_array_foreach(list, i, v)
    {
        const json_int_t id = json_integer_value(v);

        if (!json_is_integer(v) || id < 0 || id >= (json_int_t)s->info.n_vocab) {
            esp_api_fail(f->e, "invalid_value", "stop_token_ids",
                         "stop_token_ids: %s is not a token id; 0 to %u are", esp_show_value(v),
                         s->info.n_vocab - 1);
            return;
        }
        g->stop_tokens[g->n_stop_token++] = (esp_token)id;
    }
}

void esp_params_real(struct esp_fields *f, const char *name, enum esp_bound b, double least, double most,
                     float *out)
{
    double x;

    if (esp_field_real(f, name, b, least, most, &x))
        *out = (float)x;
}

/* What is known and not built is accepted where it says "off". */
static void read_unbuilt(struct esp_fields *f)
{
    static const struct {
        const char *name;
        double off, off2;
    } rows[] = {{"mirostat", 0, 0}, {"top_a", 0, 0}, {"tfs", 1, 1}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const json_t *v = esp_field_any(f, rows[i].name);

        if (!v)
            continue;
        if (!json_is_number(v)) {
            esp_field_wrong(f, rows[i].name, v, "a number");
            return;
        }
        if (fabs(json_number_value(v) - rows[i].off) > 0 && fabs(json_number_value(v) - rows[i].off2) > 0) {
            esp_api_fail(f->e, "unsupported_value", rows[i].name,
                         "%s: %s is not in this version; only %g (off) is accepted", rows[i].name,
                         esp_show_value(v), rows[i].off);
            return;
        }
    }
}

/* Tokens back to which penalties look; 0 and, as another server has it, -1 are all of them. */
static void read_windows(struct esp_fields *f, esp_sampling *o)
{
    const struct {
        const char *name;
        uint32_t *out;
    } rows[] = {{"repetition_context_size", &o->repetition_context},
                {"presence_context_size", &o->presence_context},
                {"frequency_context_size", &o->frequency_context}};
    int64_t n = 0;

    if (esp_field_int(f, "repeat_last_n", -1, INT32_MAX, &n))
        for (size_t i = 0; i < 3; i++)
            *rows[i].out = n > 0 ? (uint32_t)n : 0;
    for (size_t i = 0; i < 3; i++)
        if (esp_field_int(f, rows[i].name, 0, INT32_MAX, &n))
            *rows[i].out = (uint32_t)n;
}

static void read_sampling(struct esp_fields *f, struct esp_gen *g)
{
    esp_sampling *o = &g->sampling;
    int64_t n = 0;
    bool on = false;

    esp_params_real(f, "temperature", ESP_FROM, 0, 5, &o->temperature);
    esp_params_real(f, "top_p", ESP_ABOVE, 0, 1, &o->top_p);
    esp_params_real(f, "min_p", ESP_FROM, 0, 1, &o->min_p);
    esp_params_real(f, "repeat_penalty", ESP_ABOVE, 0, 2, &o->repetition_penalty);
    esp_params_real(f, "repetition_penalty", ESP_ABOVE, 0, 2, &o->repetition_penalty);
    esp_params_real(f, "presence_penalty", ESP_FROM, -2, 2, &o->presence_penalty);
    esp_params_real(f, "frequency_penalty", ESP_FROM, -2, 2, &o->frequency_penalty);
    esp_params_real(f, "typical_p", ESP_ABOVE, 0, 1, &o->typical_p);
    read_windows(f, o);
    if (esp_field_int(f, "top_k", -1, INT32_MAX, &n))
        o->top_k = (int32_t)n;
    if (esp_field_int(f, "seed", INT64_MIN, INT64_MAX, &n)) {
        o->seed = (uint64_t)n;
        g->seeded = true;
    } else if (!f->e->http) {
        if (esp_rng_seed(&o->seed, NULL) != ESP_OK)
            esp_api_fail(f->e, "internal_error", NULL, "the system gave no random seed");
        o->seed >>= 11; /* 53 bits: exact in every JSON reader */
    }
    if (esp_field_bool(f, "ignore_eos", &on))
        o->ignore_end = on;
}

static void read_limits(struct esp_fields *f, struct esp_gen *g)
{
    static const char *const names[] = {"n_predict", "max_output_tokens", "max_tokens",
                                        "max_completion_tokens"};
    const int64_t most = INT32_MAX;
    int64_t n = 0;

    for (size_t i = 0; i < 4; i++) /* the last one wins */
        esp_field_int(f, names[i], 0, most, &g->max_tokens);
    esp_field_int(f, "min_tokens", 0, most, &g->min_tokens);
    if (g->min_tokens > 0 && g->max_tokens >= 0 && g->min_tokens > g->max_tokens)
        esp_api_fail(f->e, "invalid_value", "min_tokens", "min_tokens: %lld is above max_tokens, %lld",
                     (long long)g->min_tokens, (long long)g->max_tokens);
    if (esp_field_int(f, "n", 1, ESP_MAX_CHOICES, &n))
        g->n = (uint32_t)n;
    if (esp_field_int(f, "best_of", 1, INT32_MAX, &n) && n != (int64_t)g->n)
        esp_api_fail(f->e, "unsupported_value", "best_of",
                     "best_of: %lld; only the value of n (%u) is accepted", (long long)n, g->n);
    if (esp_field_int(f, "priority", INT32_MIN, INT32_MAX, &n))
        g->priority = (int32_t)(n < -100 ? -100 : n > 100 ? 100 : n);
    esp_field_bool(f, "strict_max_tokens", &g->strict_max);
}

void esp_params_read(struct esp_fields *f, struct esp_gen *g, const struct esp_server *s)
{
    static const char *const hints[] = {"prompt_cache_key", "user"};
    bool on = true;
    int mode = 0;

    read_sampling(f, g);
    esp_repeats_read(f, g, s);
    read_limits(f, g);
    read_bias(f, g, s);
    read_unbuilt(f);
    read_stop_tokens(f, g, s);
    esp_field_bool(f, "include_stop_str_in_output", &g->include_stop);
    if (esp_field_bool(f, "cache_prompt", &on))
        g->no_cache = !on;
    esp_field_bool(f, "stream", &g->stream);
    esp_field_real(f, "sse_ping_interval", ESP_FROM, -1, 86400, &g->ping);
    if (esp_field_word(f, "logprobs_mode", "raw|processed", &mode))
        g->processed_logprobs = mode == 1;
    esp_field_bool(f, "return_progress", &g->progress);
    esp_field_bool(f, "cache_debug", &g->debug_cache);
    esp_mounts_read(f, g, s);
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++)
        esp_field_any(f, hints[i]);
}

void esp_params_refuse(struct esp_fields *f)
{
    static const struct {
        const char *name, *instead;
    } rows[] = {
        {"audio", "audio is not supported"},
        {"functions", "use tools instead"},
        {"function_call", "use tool_choice instead"},
        {"web_search_options", "there is no web search here"},
        {"mm_processor_kwargs", "images and video are not in this version"},
    };
    const json_t *list = NULL, *v;
    size_t i;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (esp_field_any(f, rows[i].name))
            esp_api_fail(f->e, "unsupported_value", esp_field_path(f, rows[i].name), "%s: %s", rows[i].name,
                         rows[i].instead);
    if (esp_field_array(f, "modalities", &list))
        json_array_foreach(list, i, v) if (!json_string_value(v) || strcmp(json_string_value(v), "text") != 0)
            esp_api_fail(f->e, "unsupported_value", "modalities",
                         "modalities: %s; only \"text\" is supported", esp_show_value(v));
}
