/*
 * Requests as a server reads them: heads and chunked bodies at every cut, and bodies of every dialect up to
 * the prompt. The first byte says which. What is refused must leave a code, a clean message and nothing else;
 * what is accepted must be within the ranges that the engine asks for.
 *
 * SPDX-License-Identifier: MIT
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "serve/constrain.h"
#include "serve/http_parse.h"
#include "serve/params.h"
#include "serve/response_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        __builtin_trap();
}

static void check_error(const struct esp_api_error *e)
{
    if (!e->http)
        return;
    check(e->http >= 400 && e->code && e->message[0]);
    check(esp_utf8_valid(e->message, strlen(e->message), NULL) &&
          esp_utf8_valid(e->param, strlen(e->param), NULL));
}

static void fuzz_head(const char *data, size_t size)
{
    const size_t len = esp_http_head_length(data, size);
    struct esp_http_head head;
    const char *why = NULL;
    char *copy;
    int status;

    check(len <= size);
    if (len == 0)
        return;
    copy = esp_strndup(data, len);
    if (!copy)
        return;
    memcpy(copy, data, len);
    status = esp_http_parse_head(copy, len, 1024, &head, &why);
    check((status == 0) == (why == NULL) && head.n_header <= ESP_HTTP_MAX_HEADERS);
    if (status == 0) {
        char value[64];

        check(head.path[0] == '/' && strlen(head.path) <= 1024 && !(head.chunked && head.has_length));
        check(esp_utf8_valid(head.path, strlen(head.path), NULL));
        esp_http_query(head.query, "a", value, sizeof value);
    }
    esp_free(copy);
}

/* In one piece and byte by byte: the same. */
static void fuzz_chunks(const char *data, size_t size)
{
    struct esp_http_chunks one = {0}, many = {0};
    struct esp_strbuf a, b;
    size_t used = 0, total = 0;
    enum esp_http_more m, n = ESP_HTTP_MORE;

    esp_strbuf_init(&a, 4096);
    esp_strbuf_init(&b, 4096);
    m = esp_http_chunks_feed(&one, data, size, &used, &a);
    while (total < size && n == ESP_HTTP_MORE) {
        size_t step = 0;

        n = esp_http_chunks_feed(&many, data + total, 1, &step, &b);
        total += step;
    }
    check(used <= size && m == n);
    if (m == ESP_HTTP_DONE || m == ESP_HTTP_MORE)
        check(used == total && a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0));
    esp_strbuf_free(&a);
    esp_strbuf_free(&b);
}

static void check_gen(const struct esp_gen *g)
{
    const esp_sampling *s = &g->sampling;

    check(s->temperature >= 0 && s->temperature <= 5 && s->top_p > 0 && s->top_p <= 1 && s->min_p >= 0 &&
          s->min_p <= 1 && s->top_k >= -1);
    check(g->n >= 1 && g->n <= ESP_MAX_CHOICES && g->n_stop <= ESP_MAX_STOPS && g->top <= 20);
    for (size_t i = 0; i < s->n_bias; i++)
        check(s->bias[i].token >= 0 && s->bias[i].token < 4096 && isfinite(s->bias[i].bias));
}

static void fuzz_body(int kind, const char *data, size_t size)
{
    struct esp_server s = {
        .info = {.n_vocab = 4096, .temperature = -1, .top_p = -1, .min_p = -1, .top_k = -1}};
    struct esp_api_error e = {0};
    struct esp_chat_params p;
    struct esp_fields f;
    struct esp_gen g;
    json_t *body = NULL, *items = json_array(), *custom = json_object();

    esp_serve_defaults(&s.o);
    if (items && custom && esp_json_parse(&body, data, size, "body", 0, NULL) == ESP_OK &&
        json_is_object(body)) {
        esp_gen_init(&g, &s);
        esp_chat_init(&p, &s);
        esp_fields_init(&f, body, "", &e);
        esp_params_read(&f, &g, &s);
        esp_params_stops(&f, "stop", &g);
        esp_params_refuse(&f);
        esp_constrain_read(&f, &g);
        esp_chat_read_thinking(&f, &p);
        esp_chat_read_tools(&f, &p, &g);
        if (kind == 0)
            esp_chat_read_messages(&f, &p, &g, &s);
        else
            esp_response_items(json_object_get(body, "input"), items, &g, &e);
        json_decref(esp_response_tools(json_object_get(body, "tools"), custom, &g));
        if (!e.http)
            check_gen(&g);
        check_error(&e);
        json_decref(esp_fields_ignored(&f));
        if (e.http)
            json_decref(esp_api_error_body(&e, ESP_FAMILY_OPENAI, NULL));
        esp_api_error_clear(&e);
        esp_chat_free(&p);
        esp_gen_free(&g);
    }
    json_decref(body);
    json_decref(items);
    json_decref(custom);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data + 1;

    if (size == 0)
        return 0;
    switch (data[0]) {
    case 'h':
        fuzz_head(text, size - 1);
        break;
    case 'k':
        fuzz_chunks(text, size - 1);
        break;
    case 'r':
        fuzz_body(1, text, size - 1);
        break;
    default:
        fuzz_body(0, text, size - 1);
    }
    return 0;
}
