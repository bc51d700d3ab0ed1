/*
 * The text half of the public header: ids, pieces, chats.
 *
 * SPDX-License-Identifier: MIT
 */
#include <string.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/strbuf.h"

#include "engine/chat.h"
#include "engine/model.h"

esp_status esp_model_need_tokenizer(const struct esp_model *m, esp_error *err)
{
    if (m->tok)
        return ESP_OK;
    return esp_fail(err, ESP_ENOTFOUND, "the model has no tokenizer.json; use token ids");
}

esp_status esp_model_encode(const struct esp_model *m, const struct esp_tok_input *in, struct esp_ids *out,
                            esp_error *err)
{
    ESP_TRY(esp_model_need_tokenizer(m, err));
    return esp_tokenizer_encode(m->tok, in, out, err);
}

const char *esp_model_template(const struct esp_model *m)
{
    return m->tpl.main ? esp_template_source(m->tpl.main) : NULL;
}

const struct esp_tokenizer *esp_model_tokenizer(const struct esp_model *m)
{
    return m->tok;
}

static esp_status encode(const struct esp_model *m, const struct esp_tok_input *in, esp_token *out,
                         size_t cap, size_t *n, esp_error *err)
{
    struct esp_ids ids;
    esp_status s;

    esp_ids_init(&ids, ESP_LIMIT_TEXT_BYTES);
    s = esp_model_encode(m, in, &ids, err);
    if (s == ESP_OK) {
        for (size_t i = 0; i < ids.n && i < cap; i++)
            out[i] = (esp_token)ids.data[i];
        *n = ids.n;
    }
    esp_ids_free(&ids);
    return s;
}

esp_status esp_tokenize(const esp_model *m, const char *text, size_t len, bool control, esp_token *out,
                        size_t cap, size_t *n, esp_error *err)
{
    struct esp_tok_input in = {.text = text, .len = len, .flags = control ? ESP_TOK_TRUST_ALL : 0};

    return encode(m, &in, out, cap, n, err);
}

static void copy_out(char *out, size_t cap, size_t *n, const char *s, size_t len)
{
    if (cap)
        memcpy(out, s, len < cap ? len : cap);
    *n = len;
}

esp_status esp_token_bytes(const esp_model *m, esp_token t, char *out, size_t cap, size_t *n, esp_error *err)
{
    const char *bytes = "";
    size_t len = 0;

    ESP_TRY(esp_model_need_tokenizer(m, err));
    if (t >= 0)
        esp_tokenizer_token_bytes(m->tok, (uint32_t)t, &bytes, &len);
    copy_out(out, cap, n, bytes, len);
    return ESP_OK;
}

bool esp_token_is_end(const esp_model *m, esp_token t)
{
    for (uint32_t i = 0; i < m->n_end; i++)
        if (t >= 0 && m->end[i] == (uint32_t)t)
            return true;
    return false;
}

struct chat { /* parsed request */
    json_t *messages, *tools, *args;
};

static void chat_free(struct chat *c)
{
    json_decref(c->messages);
    json_decref(c->tools);
    json_decref(c->args);
}

static esp_status parse_part(json_t **out, const char *text, const char *name, esp_error *err)
{
    return text ? esp_json_parse(out, text, strlen(text), name, 0, err) : ESP_OK;
}

esp_status esp_model_render(const struct esp_model *m, const struct esp_chat *chat, struct esp_strbuf *out,
                            struct esp_text_spans *spans, esp_error *err)
{
    if (!m->tpl.main)
        return esp_fail(err, ESP_ENOTFOUND, "the model has no chat template (%s)",
                        m->tpl_error.status != ESP_OK ? m->tpl_error.message : "random weights");
    return esp_template_chat(esp_template_pick(&m->tpl, chat->tools), chat, out, spans, err);
}

static esp_status render(const struct esp_model *m, const char *messages_json, const esp_chat_opts *o,
                         struct esp_strbuf *out, struct esp_text_spans *spans, esp_error *err)
{
    struct chat c = {0};
    esp_status s;

    if (!messages_json)
        return esp_fail(err, ESP_EINVAL, "messages: a JSON array is needed");
    s = parse_part(&c.messages, messages_json, "messages", err);
    if (s == ESP_OK)
        s = parse_part(&c.tools, o->tools_json, "tools", err);
    if (s == ESP_OK)
        s = parse_part(&c.args, o->template_args_json, "template arguments", err);
    if (s == ESP_OK) {
        struct esp_chat chat = {.messages = c.messages,
                                .tools = c.tools,
                                .kwargs = c.args,
                                .add_generation_prompt = !o->no_generation_prompt};

        s = esp_model_render(m, &chat, out, spans, err);
    }
    chat_free(&c);
    return s;
}

esp_status esp_render_chat(const esp_model *m, const char *messages_json, const esp_chat_opts *opts,
                           char *out, size_t cap, size_t *n, esp_error *err)
{
    const esp_chat_opts defaults = {0};
    struct esp_strbuf text;
    esp_status s;

    esp_strbuf_init(&text, ESP_LIMIT_TEMPLATE_OUTPUT);
    s = render(m, messages_json, opts ? opts : &defaults, &text, NULL, err);
    if (s == ESP_OK)
        copy_out(out, cap, n, esp_strbuf_str(&text), text.len);
    esp_strbuf_free(&text);
    return s;
}

esp_status esp_tokenize_chat(const esp_model *m, const char *messages_json, const esp_chat_opts *opts,
                             esp_token *out, size_t cap, size_t *n, esp_error *err)
{
    const esp_chat_opts defaults = {0};
    struct esp_text_spans spans = {0};
    struct esp_strbuf text;
    esp_status s;

    esp_strbuf_init(&text, ESP_LIMIT_TEMPLATE_OUTPUT);
    s = render(m, messages_json, opts ? opts : &defaults, &text, &spans, err);
    if (s == ESP_OK) {
        struct esp_tok_input in = {
            .text = esp_strbuf_str(&text), .len = text.len, .trusted = spans.v, .n_trusted = spans.n};

        s = encode(m, &in, out, cap, n, err);
    }
    esp_text_spans_free(&spans);
    esp_strbuf_free(&text);
    return s;
}
