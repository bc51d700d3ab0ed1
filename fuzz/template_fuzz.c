/*
 * Fuzz target for chat templates. Input: template source, a zero byte, JSON. An object is rendered as
 * variables with small limits; an array is rendered as the messages of a chat. Checked beyond memory safety:
 * spans are ascending, apart and inside the output, and a refusal leaves no output.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/json.h"
#include "text/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(esp_status s, const struct esp_strbuf *out, const struct esp_text_spans *spans)
{
    size_t end = 0;

    if (s != ESP_OK && (out->len || spans->n))
        __builtin_trap();
    for (size_t i = 0; i < spans->n; i++) {
        if (spans->v[i].start >= spans->v[i].end || spans->v[i].end > out->len ||
            (i && spans->v[i].start <= end))
            __builtin_trap();
        end = spans->v[i].end;
    }
}

static void render(const struct esp_template *t, const json_t *data)
{
    const struct esp_template_opts opts = {
        .has_now = true, .now = 1700000000, .max_steps = 200000, .max_output = 1 << 16};
    const struct esp_chat chat = {.messages = data, .add_generation_prompt = true, .opts = &opts};
    struct esp_text_spans spans = {0};
    struct esp_strbuf out;
    esp_error err;
    esp_status s;

    esp_strbuf_init(&out, 1 << 20);
    s = json_is_object(data) ? esp_template_render(t, data, &opts, &out, &spans, &err)
                             : esp_template_chat(t, &chat, &out, &spans, &err);
    check(s, &out, &spans);
    esp_text_spans_free(&spans);
    esp_strbuf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t len = zero ? (size_t)(zero - data) : size;
    struct esp_template *t;
    json_t *vars = NULL;
    esp_error err;

    if (esp_template_open(&t, (const char *)data, len, "fuzz", &err) != ESP_OK)
        return 0;
    if (!zero || esp_json_parse(&vars, (const char *)zero + 1, size - len - 1, "vars", 0, &err) != ESP_OK)
        vars = json_object();
    render(t, vars);
    json_decref(vars);
    esp_template_close(t);
    return 0;
}
