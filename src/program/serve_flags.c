/*
 * From flags to the server's options, each checked as far as it means something without a model.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/serve_flags.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/map.h"
#include "base/mem.h"
#include "program/session.h"

enum { MAX_CONFIG = 1 << 20 }; /* bytes */

/* A copy that lives as long as the process: the server keeps it. NULL: no memory. */
static const char *keep(const char *text, size_t len)
{
    struct kept {
        struct kept *next;
        char text[];
    };
    static struct kept *all;
    struct kept *k = esp_alloc(sizeof *k + len + 1);

    if (!k)
        return NULL;
    memcpy(k->text, text, len);
    k->next = all;
    all = k;
    return k->text;
}

/* Values of a repeatable flag, each of which may be a comma list. */
static esp_status take_list(const struct esp_options *opt, enum esp_opt_id id, const char **out, size_t cap,
                            size_t *n, esp_error *err)
{
    const struct esp_opt_value *value = &opt->v[id];

    for (size_t i = 0; i < value->n; i++) {
        const char *at = value->list[i];

        while (*at) {
            const size_t len = strcspn(at, ",");
            const char *copy;

            if (*n == cap)
                return esp_fail(err, ESP_EINVAL, "--%s: more than %zu values", esp_opt_get(id)->name, cap);
            if (len) {
                copy = keep(at, len);
                if (!copy)
                    return esp_fail(err, ESP_ENOMEM, "no memory for --%s", esp_opt_get(id)->name);
                out[(*n)++] = copy;
            }
            at += len + (at[len] == ',');
        }
    }
    return ESP_OK;
}

static float given_or_nan(const struct esp_opt_value *v)
{
    return v->given ? (float)v->f : NAN;
}

static void take_answers(struct esp_serve_opts *o, const struct esp_opt_value *v)
{
    static const enum esp_serve_thinking thinking[] = {ESP_THINKING_ON, ESP_THINKING_OFF, ESP_THINKING_MODEL};

    o->sampling = (struct esp_serve_sampling){
        .temperature = given_or_nan(&v[OPT_TEMPERATURE]),
        .top_p = given_or_nan(&v[OPT_TOP_P]),
        .min_p = given_or_nan(&v[OPT_MIN_P]),
        .repetition_penalty = given_or_nan(&v[OPT_REPEAT_PENALTY]),
        .presence_penalty = given_or_nan(&v[OPT_PRESENCE_PENALTY]),
        .frequency_penalty = given_or_nan(&v[OPT_FREQUENCY_PENALTY]),
        .top_k = v[OPT_TOP_K].given ? (int32_t)v[OPT_TOP_K].i : -2,
        .typical_p = (float)v[OPT_TYPICAL_P].f,
        .xtc_probability = (float)v[OPT_XTC_PROBABILITY].f,
        .xtc_threshold = (float)v[OPT_XTC_THRESHOLD].f,
        .dry_multiplier = v[OPT_DRY_LAST_N].i == 0 ? 0 : (float)v[OPT_DRY_MULTIPLIER].f,
        .dry_base = (float)v[OPT_DRY_BASE].f,
        .dry_allowed_length = (uint32_t)v[OPT_DRY_ALLOWED_LENGTH].i,
        .dry_context = v[OPT_DRY_LAST_N].i > 0 ? (uint32_t)v[OPT_DRY_LAST_N].i : 0,
    };
    o->max_tokens = (uint64_t)v[OPT_MAX_TOKENS].i;
    o->thinking = thinking[v[OPT_THINKING].i];
    o->messages_thinking_model = v[OPT_MESSAGES_THINKING].i == 1;
    o->thinking_budget = v[OPT_THINKING_BUDGET].i;
    o->stable_history = v[OPT_HISTORY].i == 1;
    o->text_in_thinking = v[OPT_TOOL_IN_THINKING].i == 1;
    o->late_system_error = v[OPT_LATE_SYSTEM].i == 1;
    o->late_system_user = v[OPT_LATE_SYSTEM].i == 0;
    o->budget_message = v[OPT_BUDGET_MESSAGE].s;
    o->answer_reserve = (uint32_t)v[OPT_ANSWER_RESERVE].i;
    o->reasoning_field = (enum esp_serve_reasoning)v[OPT_REASONING_FIELD].i;
    o->strict_tools = v[OPT_TOOL_GRAMMAR].i == 1;
    o->replay_ttl = v[OPT_REPLAY_TTL].f;
    o->replay_dir = v[OPT_CACHE_DIR].s;
    o->cache_debug = v[OPT_CACHE_DEBUG].on;
    o->strict_history = v[OPT_STRICT_HISTORY].on;
    o->keep_attribution = !v[OPT_STRIP_ATTRIBUTION].on;
    o->response_bytes = v[OPT_RESPONSE_STORE].size;
    o->response_ttl = v[OPT_RESPONSE_TTL].f;
    o->diag_entries = (uint32_t)v[OPT_DIAG_ENTRIES].i;
    o->response_dir = v[OPT_RESPONSE_DIR].s;
    o->replay_entries = (uint32_t)v[OPT_REPLAY_ENTRIES].i;
    o->replay_bytes = v[OPT_REPLAY_BYTES].size;
    o->strict_max_tokens = v[OPT_STRICT_MAX_TOKENS].on;
}

/* "WORD=N,..." into the budgets by effort. */
static esp_status take_efforts(struct esp_serve_opts *o, const char *text, esp_error *err)
{
    static const char *const words[ESP_SERVE_EFFORTS] = {"minimal", "low", "medium", "high", "xhigh", "max"};

    for (size_t i = 0; i < ESP_SERVE_EFFORTS; i++)
        o->effort_budgets[i] = -1;
    while (*text) {
        const size_t len = strcspn(text, ","), word = strcspn(text, "=");
        char *end = NULL;
        size_t i = 0;
        long n;

        while (i < ESP_SERVE_EFFORTS && (strlen(words[i]) != word || strncmp(words[i], text, word) != 0))
            i++;
        n = word < len ? strtol(text + word + 1, &end, 10) : 0;
        if (i == ESP_SERVE_EFFORTS || word >= len || end != text + len || n < -1 || n > INT32_MAX)
            return esp_fail(
                err, ESP_EINVAL,
                "--effort-budgets: '%.*s'; WORD=N with minimal, low, medium, high, xhigh or max and a "
                "number of tokens is accepted",
                (int)len, text);
        o->effort_budgets[i] = n;
        text += len + (text[len] == ',');
    }
    return ESP_OK;
}

static esp_status take_families(struct esp_serve_opts *o, const char *text, esp_error *err)
{
    static const char *const names[] = {"vllm", "llamacpp", "espalier"};

    while (*text) {
        const size_t len = strcspn(text, ",");
        unsigned i = 0;

        while (i < 3 && (strlen(names[i]) != len || strncmp(names[i], text, len) != 0))
            i++;
        if (i == 3)
            return esp_fail(err, ESP_EINVAL,
                            "--metrics-names: '%.*s'; vllm, llamacpp and espalier are accepted", (int)len,
                            text);
        o->metrics_names |= 1u << i;
        text += len + (text[len] == ',');
    }
    return ESP_OK;
}

static esp_status take_network(struct esp_serve_opts *o, const struct esp_options *opt, esp_error *err)
{
    const struct esp_opt_value *v = opt->v;

    ESP_TRY(take_efforts(o, v[OPT_EFFORT_BUDGETS].s, err));
    ESP_TRY(take_families(o, v[OPT_METRICS_NAMES].s, err));
    ESP_TRY(take_list(opt, OPT_HOST, o->hosts, ESP_SERVE_MAX_HOSTS, &o->n_host, err));
    ESP_TRY(
        take_list(opt, OPT_ALLOWED_HOSTS, o->allowed_hosts, ESP_SERVE_MAX_NAMES, &o->n_allowed_host, err));
    ESP_TRY(take_list(opt, OPT_TRUSTED_PROXIES, o->trusted_proxies, ESP_SERVE_MAX_NAMES, &o->n_proxy, err));
    ESP_TRY(take_list(opt, OPT_CORS_ORIGINS, o->cors_origins, ESP_SERVE_MAX_NAMES, &o->n_cors, err));
    for (size_t i = 0; i < v[OPT_ADAPTER].n && i < ESP_SERVE_MAX_NAMES; i++)
        o->adapters[o->n_adapter++] = v[OPT_ADAPTER].list[i];
    o->adapter_dir = v[OPT_ADAPTER_DIR].s;
    o->slot_dir = v[OPT_SLOT_SAVE_PATH].s;
    ESP_TRY(take_list(opt, OPT_ALIAS, o->aliases, ESP_SERVE_MAX_NAMES, &o->n_alias, err));
    o->port = (uint16_t)v[OPT_PORT].i;
    o->api_prefix = v[OPT_API_PREFIX].s;
    if (o->api_prefix && (o->api_prefix[0] != '/' || o->api_prefix[strlen(o->api_prefix) - 1] == '/'))
        return esp_fail(err, ESP_EINVAL, "--api-prefix: '%s' must begin with / and not end with it",
                        o->api_prefix);
    o->backlog = (uint32_t)v[OPT_BACKLOG].i;
    o->max_connections = (uint32_t)v[OPT_MAX_CONNECTIONS].i;
    o->http_threads = (uint32_t)v[OPT_HTTP_THREADS].i;
    o->insecure = v[OPT_INSECURE].on;
    o->api_key = v[OPT_API_KEY].s;
    o->api_key_file = v[OPT_API_KEY_FILE].s;
    o->per_key_rows = (uint32_t)v[OPT_PER_KEY_ROWS].i;
    if (o->per_key_rows && !o->api_key && !o->api_key_file)
        return esp_fail(
            err, ESP_EINVAL,
            "--per-key-rows %u: without API keys there is nobody to tell apart; give --api-key-file",
            o->per_key_rows);
    o->strict_model = v[OPT_MODEL_CHECK].i == 1;
    o->codex_catalog = v[OPT_CODEX_CATALOG].on;
    o->no_metrics = !v[OPT_METRICS].on;
    o->no_page = !v[OPT_UI].on;
    o->metrics_public = v[OPT_METRICS_PUBLIC].on;
    o->slots_text = v[OPT_SLOTS_TEXT].on;
    o->log_content = v[OPT_LOG_CONTENT].s;
    o->log_json = v[OPT_LOG_FORMAT].i == 1;
    return ESP_OK;
}

void esp_serve_flags_limits(struct esp_serve_opts *o, const struct esp_options *opt)
{
    const struct esp_opt_value *v = opt->v;

    o->log_level = (enum esp_log_amount)v[OPT_LOG_LEVEL].i;
    o->max_body = v[OPT_MAX_BODY].size;
    o->max_messages = (uint32_t)v[OPT_MAX_MESSAGES].i;
    o->max_prompt_bytes = v[OPT_MAX_PROMPT_BYTES].size;
    o->stream_buffer = v[OPT_STREAM_BUFFER].size;
    o->header_timeout = v[OPT_HEADER_TIMEOUT].f;
    o->body_timeout = v[OPT_BODY_TIMEOUT].f;
    o->write_timeout = v[OPT_WRITE_TIMEOUT].f;
    o->keepalive_timeout = v[OPT_KEEPALIVE_TIMEOUT].f;
    o->request_timeout = v[OPT_REQUEST_TIMEOUT].f;
    o->shutdown_timeout = v[OPT_SHUTDOWN_TIMEOUT].f;
    o->queue_timeout = v[OPT_QUEUE_TIMEOUT].f;
    o->sse_ping = v[OPT_SSE_PING].f;
    o->idle_sleep = v[OPT_IDLE_SLEEP].f;
}

static esp_status take_breakers(struct esp_serve_opts *o, const struct esp_options *opt, esp_error *err)
{
    const char *texts[MAX_OPT_LIST];

    o->n_dry_breaker = esp_session_breakers(opt, texts);
    if (o->n_dry_breaker > ESP_SERVE_MAX_NAMES)
        return esp_fail(err, ESP_EINVAL, "--dry-sequence-breaker: %zu texts; at most %d are accepted",
                        o->n_dry_breaker, ESP_SERVE_MAX_NAMES);
    memcpy(o->dry_breakers, texts, o->n_dry_breaker * sizeof texts[0]);
    return ESP_OK;
}

esp_status esp_serve_flags(struct esp_serve_opts *o, const struct esp_options *opt, esp_error *err)
{
    ESP_TRY(take_breakers(o, opt, err));
    esp_serve_flags_limits(o, opt);
    take_answers(o, opt->v);
    return take_network(o, opt, err);
}

/* ---- the configuration file ---- */

static char *default_config(void)
{
    const char *base = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    char path[4096];

    if (base && *base)
        snprintf(path, sizeof path, "%s/espalier/espalier.conf", base);
    else if (home && *home)
        snprintf(path, sizeof path, "%s/.config/espalier/espalier.conf", home);
    else
        return NULL;
    return access(path, R_OK) == 0 ? esp_strndup(path, strlen(path)) : NULL;
}

/* The configuration file, which must be freed; NULL: none. */
static char *config_path(const struct esp_options *o)
{
    return o->v[OPT_CONFIG].given ? esp_strndup(o->v[OPT_CONFIG].s, strlen(o->v[OPT_CONFIG].s))
                                  : default_config();
}

esp_status esp_serve_config(struct esp_options *o, char **text, esp_error *err)
{
    char *path = config_path(o);
    esp_status status = ESP_OK;
    size_t len;

    if (path) {
        status = esp_read_file(text, &len, path, MAX_CONFIG, err);
        if (status == ESP_OK)
            status = esp_options_file(o, *text, path, o->v[OPT_PROFILE].s, err);
    } else if (o->v[OPT_PROFILE].given) {
        status = esp_fail(err, ESP_EINVAL, "--profile without a configuration file; give --config FILE");
    }
    esp_free(path);
    return status;
}

esp_status esp_serve_config_limits(struct esp_serve_opts *out, const struct esp_options *o, esp_error *err)
{
    char *path = config_path(o), *text = NULL;
    struct esp_options *fresh = path ? esp_alloc(sizeof *fresh) : NULL;
    esp_status status = ESP_OK;
    size_t len;

    if (fresh) {
        *fresh = *o;
        status = esp_read_file(&text, &len, path, MAX_CONFIG, err);
        if (status == ESP_OK)
            status = esp_options_file_again(fresh, text, path, o->v[OPT_PROFILE].s, err);
        if (status == ESP_OK)
            esp_serve_flags_limits(out, fresh); /* numbers: none points into the text */
    }
    esp_free(fresh);
    esp_free(text);
    esp_free(path);
    return status;
}
