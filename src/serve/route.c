/*
 * Every route, once. Matching is by segments, in order; the table is short.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/route.h"

#include <stdio.h>
#include <string.h>

#define MODEL (ESP_ROUTE_TEXT | ESP_ROUTE_BODY)
#define TOLD  (ESP_ROUTE_TEXT | ESP_ROUTE_ASLEEP)

static const struct esp_route routes[] = {
    {"GET", "/", esp_get_root, ESP_ROUTE_PUBLIC | ESP_ROUTE_EARLY, NULL},
    {"GET", "/health", esp_get_health, ESP_ROUTE_PUBLIC | ESP_ROUTE_EARLY, "whether the server can answer"},
    {"GET", "/v1/health", esp_get_health, ESP_ROUTE_PUBLIC | ESP_ROUTE_EARLY, NULL},
    {"GET", "/version", esp_get_version, ESP_ROUTE_EARLY, "version and commit"},
    {"GET", "/v1", esp_get_index, ESP_ROUTE_EARLY, "this list"},
    {"GET", "/v1/models", esp_get_models, TOLD, "the served model and its adapters"},
    {"GET", "/models", esp_get_models, TOLD, NULL},
    {"GET", "/v1/models/**", esp_get_model, TOLD, "one of them"},
    {"GET", "/models/**", esp_get_model, TOLD, NULL},
    {"GET", "/props", esp_get_props, ESP_ROUTE_TEXT, "defaults and limits"},
    {"GET", "/slots", esp_get_slots, TOLD, "what runs now"},
    {"POST", "/slots/*", esp_post_slot, ESP_ROUTE_TEXT | ESP_ROUTE_ADMIN,
     "save, restore or erase a slot's text"},
    {"GET", "/cache", esp_get_cache, ESP_ROUTE_TEXT, "texts in the prefix cache"},
    {"POST", "/cache/prewarm", esp_post_cache_prewarm, MODEL | ESP_ROUTE_ADMIN,
     "run a chat's prompt and keep it"},
    {"POST", "/cache/save", esp_post_cache_save, MODEL | ESP_ROUTE_ADMIN, "write a cached text to a file"},
    {"POST", "/cache/load", esp_post_cache_load, MODEL | ESP_ROUTE_ADMIN, "read such a file"},
    {"POST", "/cache/flush", esp_post_cache_flush, ESP_ROUTE_TEXT | ESP_ROUTE_ADMIN,
     "write all that has no file yet"},
    {"DELETE", "/cache/*", esp_delete_cache, ESP_ROUTE_TEXT | ESP_ROUTE_ADMIN, "forget a cached text"},
    {"GET", "/fit", esp_get_fit, TOLD, "memory: what is used, what would fit"},
    {"POST", "/admin/drain", esp_admin_drain, ESP_ROUTE_EARLY | ESP_ROUTE_ADMIN, "end in order"},
    {"POST", "/admin/reload-keys", esp_admin_reload_keys, ESP_ROUTE_EARLY | ESP_ROUTE_ADMIN,
     "read the keys again"},
    {"POST", "/admin/log-level", esp_admin_log_level, ESP_ROUTE_EARLY | ESP_ROUTE_BODY | ESP_ROUTE_ADMIN,
     "what the log tells"},
    {"POST", "/admin/sleep", esp_admin_sleep, TOLD | ESP_ROUTE_ADMIN,
     "give the model's memory back until a request needs it"},
    {"POST", "/admin/wake", esp_admin_wake, TOLD | ESP_ROUTE_ADMIN, "load it again now"},
    {"GET", "/stats", esp_get_stats, TOLD, "statistics as JSON"},
    {"GET", "/metrics", esp_get_metrics, TOLD, "statistics as Prometheus text"},
    {"POST", "/v1/chat/completions", esp_chat_completions, MODEL, "chat, OpenAI form"},
    {"POST", "/chat/completions", esp_chat_completions, MODEL, NULL},
    {"POST", "/v1/chat/completions/input_tokens", esp_input_tokens, MODEL, "tokens of a chat"},
    {"POST", "/v1/completions", esp_completions, MODEL, "continue texts, OpenAI form"},
    {"POST", "/completions", esp_completions, MODEL, NULL},
    {"POST", "/v1/messages", esp_messages, MODEL, "chat, Anthropic form"},
    {"POST", "/v1/messages/count_tokens", esp_count_tokens, MODEL, "tokens of such a chat"},
    {"POST", "/v1/responses", esp_responses, MODEL, "chat, OpenAI responses form"},
    {"POST", "/v1/responses/input_tokens", esp_response_tokens, MODEL, "tokens of such a chat"},
    {"GET", "/v1/responses/*", esp_get_response, TOLD, "a stored answer"},
    {"DELETE", "/v1/responses/*", esp_delete_response, TOLD, "forget it"},
    {"GET", "/v1/responses/*/input_items", esp_get_response_items, TOLD, "what it answered"},
    {"POST", "/v1/responses/*/cancel", esp_cancel_response, ESP_ROUTE_TEXT, "cancel a running one"},
    {"GET", "/v1/adapters", esp_get_adapters, TOLD, "adapters that requests may name"},
    {"GET", "/v1/adapters/available", esp_get_available, ESP_ROUTE_TEXT, "folders that could be mounted"},
    {"POST", "/v1/load_lora_adapter", esp_load_lora, MODEL | ESP_ROUTE_ADMIN, NULL},
    {"POST", "/v1/unload_lora_adapter", esp_unload_lora, MODEL | ESP_ROUTE_ADMIN, NULL},
    {"POST", "/v1/adapters", esp_post_adapters, MODEL | ESP_ROUTE_ADMIN, "mount one"},
    {"DELETE", "/v1/adapters/*", esp_delete_adapter, ESP_ROUTE_TEXT | ESP_ROUTE_ADMIN, "take one away"},
    {"POST", "/tokenize", esp_tokenize_route, MODEL, "text to ids"},
    {"POST", "/detokenize", esp_detokenize_route, MODEL, "ids to text"},
    {"POST", "/apply-template", esp_apply_template, MODEL, "a chat as the prompt it becomes"},
    {"POST", "/cancel", esp_post_cancel, MODEL, "cancel a request by its id"},
    {"POST", "/v1/embeddings", esp_post_embeddings, MODEL, NULL},
    {"POST", "/embeddings", esp_post_embeddings, MODEL, NULL},
    {"POST", "/v1/rerank", esp_post_later, MODEL, NULL},
    {"POST", "/infill", esp_post_later, MODEL, NULL},
    {"POST", "/completion", esp_post_later, MODEL, NULL},
    {"POST", "/v1/audio/**", esp_post_later, ESP_ROUTE_TEXT, NULL},
    {"POST", "/v1/images/**", esp_post_later, ESP_ROUTE_TEXT, NULL},
};
enum { N_ROUTES = sizeof routes / sizeof routes[0] };
_Static_assert((int)N_ROUTES < (int)ESP_MAX_ROUTES, "the metrics have a row for each route and one more");

const struct esp_route *esp_route_at(size_t i)
{
    return i < N_ROUTES ? &routes[i] : NULL;
}

int esp_route_index(const struct esp_route *r)
{
    return r ? (int)(r - routes) : -1;
}

static bool keep_param(char params[ESP_CALL_PARAMS][ESP_CALL_PARAM], size_t *n, const char *s, size_t len)
{
    if (len == 0 || len >= ESP_CALL_PARAM || *n == ESP_CALL_PARAMS)
        return false;
    memcpy(params[*n], s, len);
    params[(*n)++][len] = '\0';
    return true;
}

static bool matches(const char *pattern, const char *path, char params[ESP_CALL_PARAMS][ESP_CALL_PARAM])
{
    size_t n = 0;

    for (;;) {
        const size_t want = strcspn(pattern, "/"), have = strcspn(path, "/");

        if (want == 2 && pattern[0] == '*')
            return keep_param(params, &n, path, strlen(path));
        if (want == 1 && pattern[0] == '*') {
            if (!keep_param(params, &n, path, have))
                return false;
        } else if (want != have || memcmp(pattern, path, want) != 0) {
            return false;
        }
        pattern += want;
        path += have;
        if (!*pattern || !*path)
            return !*pattern && !*path;
        pattern++;
        path++;
    }
}

const struct esp_route *esp_route_find(const char *method, const char *path,
                                       char params[ESP_CALL_PARAMS][ESP_CALL_PARAM], char allow[64],
                                       enum esp_family *family)
{
    char trimmed[2048];
    size_t len = strlen(path);
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;

    while (len > 1 && path[len - 1] == '/')
        len--;
    snprintf(trimmed, sizeof trimmed, "%.*s", (int)(len < sizeof trimmed ? len : sizeof trimmed - 1), path);
    *family = strncmp(trimmed, "/v1/messages", 12) == 0 ? ESP_FAMILY_ANTHROPIC : ESP_FAMILY_OPENAI;
    allow[0] = '\0';
    for (size_t i = 0; i < N_ROUTES; i++) {
        size_t used = strlen(allow);

        if (!matches(routes[i].path, trimmed, params))
            continue;
        if (strcmp(routes[i].method, wanted) == 0)
            return &routes[i];
        snprintf(allow + used, 64 - used, "%s%s%s", used ? ", " : "", routes[i].method,
                 strcmp(routes[i].method, "GET") == 0 ? ", HEAD" : "");
    }
    if (allow[0])
        snprintf(allow + strlen(allow), 64 - strlen(allow), ", OPTIONS");
    return NULL;
}
