/*
 * The table of codes; what is not in it does not leave the server.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

static const struct row {
    const char *code;
    int http;
    const char *openai, *anthropic;
} rows[] = {
    {"invalid_json", 400, "invalid_request_error", "invalid_request_error"},
    {"missing_field", 400, "invalid_request_error", "invalid_request_error"},
    {"invalid_type", 400, "invalid_request_error", "invalid_request_error"},
    {"invalid_value", 400, "invalid_request_error", "invalid_request_error"},
    {"unsupported_value", 400, "invalid_request_error", "invalid_request_error"},
    {"invalid_request", 400, "invalid_request_error", "invalid_request_error"},
    {"context_length_exceeded", 400, "invalid_request_error", "invalid_request_error"},
    {"invalid_grammar", 400, "invalid_request_error", "invalid_request_error"},
    {"schema_unsupported", 400, "invalid_request_error", "invalid_request_error"},
    {"grammar_too_large", 400, "invalid_request_error", "invalid_request_error"},
    {"media_unsupported", 400, "invalid_request_error", "invalid_request_error"},
    {"not_an_embedding_model", 400, "invalid_request_error", "invalid_request_error"},
    {"adapter_incompatible", 400, "invalid_request_error", "invalid_request_error"},
    {"invalid_api_key", 401, "authentication_error", "authentication_error"},
    {"admin_required", 403, "permission_error", "permission_error"},
    {"host_not_allowed", 403, "permission_error", "permission_error"},
    {"origin_not_allowed", 403, "permission_error", "permission_error"},
    {"model_not_found", 404, "not_found_error", "not_found_error"},
    {"response_not_found", 404, "not_found_error", "not_found_error"},
    {"adapter_not_found", 404, "not_found_error", "not_found_error"},
    {"cache_not_found", 404, "not_found_error", "not_found_error"},
    {"route_not_found", 404, "not_found_error", "not_found_error"},
    {"method_not_allowed", 405, "invalid_request_error", "invalid_request_error"},
    {"request_timeout", 408, "invalid_request_error", "invalid_request_error"},
    {"adapter_in_use", 409, "conflict_error", "invalid_request_error"},
    {"adapter_exists", 409, "conflict_error", "invalid_request_error"},
    {"cache_incompatible", 409, "conflict_error", "invalid_request_error"},
    {"request_too_large", 413, "invalid_request_error", "request_too_large"},
    {"uri_too_long", 414, "invalid_request_error", "invalid_request_error"},
    {"unsupported_encoding", 415, "invalid_request_error", "invalid_request_error"},
    {"headers_too_large", 431, "invalid_request_error", "request_too_large"},
    {"queue_full", 429, "rate_limit_error", "rate_limit_error"},
    {"queue_timeout", 429, "rate_limit_error", "rate_limit_error"},
    {"internal_error", 500, "api_error", "api_error"},
    {"not_implemented", 501, "not_implemented_error", "invalid_request_error"},
    {"http_version", 505, "invalid_request_error", "invalid_request_error"},
    {"draining", 503, "overloaded_error", "overloaded_error"},
    {"model_loading", 503, "overloaded_error", "overloaded_error"},
    {"sleeping", 503, "overloaded_error", "overloaded_error"},
    {"no_slot", 503, "overloaded_error", "overloaded_error"},
    {"device_lost", 503, "overloaded_error", "overloaded_error"},
};

static const struct row *find(const char *code)
{
    static const struct row unknown = {"internal_error", 500, "api_error", "api_error"};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].code, code) == 0)
            return &rows[i];
    ESP_UNREACHABLE("an error code without a row");
    return &unknown;
}

/* A client's bytes come back in messages: cut characters and controls must not. */
static void clean(char *s)
{
    size_t len = strlen(s), at;

    s[len - esp_utf8_incomplete_tail(s, len)] = '\0';
    while (!esp_utf8_valid(s, strlen(s), &at))
        s[at] = '?';
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = '?';
}

bool esp_api_fail(struct esp_api_error *e, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;

    if (e->http)
        return false;
    e->http = find(code)->http;
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(ap, fmt);
    if (vsnprintf(e->message, sizeof e->message, fmt, ap) < 0)
        e->message[0] = '\0';
    va_end(ap);
    clean(e->param);
    clean(e->message);
    return false;
}

bool esp_api_fail_status(struct esp_api_error *e, const char *param, const esp_error *err)
{
    static const char *const codes[] = {
        [ESP_OK] = "internal_error",
        [ESP_EINVAL] = "invalid_value",
        [ESP_ENOMEM] = "device_lost",
        [ESP_EIO] = "internal_error",
        [ESP_EFORMAT] = "invalid_value",
        [ESP_ENOTFOUND] = "unsupported_value",
        [ESP_EUNSUPPORTED] = "unsupported_value",
        [ESP_ENOFIT] = "context_length_exceeded",
        [ESP_EDEVICE] = "device_lost",
        [ESP_ECANCELLED] = "draining",
        [ESP_ESTATE] = "internal_error",
        [ESP_ENUMERIC] = "internal_error",
    };

    return esp_api_fail(e, codes[err->status], param, "%s", err->message);
}

void esp_api_error_clear(struct esp_api_error *e)
{
    json_decref(e->details);
    memset(e, 0, sizeof *e);
}

int esp_api_error_http(const struct esp_api_error *e, enum esp_family f)
{
    return f == ESP_FAMILY_ANTHROPIC && e->http == 503 ? 529 : e->http;
}

json_t *esp_api_error_object(const struct esp_api_error *e)
{
    return json_pack("{s:s,s:s,s:o,s:s,s:O*}", "message", e->message, "type", find(e->code)->openai, "param",
                     e->param[0] ? json_string(e->param) : json_null(), "code", e->code, "details",
                     e->details);
}

json_t *esp_api_error_body(const struct esp_api_error *e, enum esp_family f, const char *request_id)
{
    if (f == ESP_FAMILY_OPENAI)
        return json_pack("{s:o}", "error", esp_api_error_object(e));
    return json_pack("{s:s,s:{s:s,s:s},s:s}", "type", "error", "error", "type", find(e->code)->anthropic,
                     "message", e->message, "request_id", request_id ? request_id : "");
}
