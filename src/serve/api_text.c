/*
 * Tokens and templates: what a prompt becomes, without running a model.
 *
 * SPDX-License-Identifier: MIT
 */
#include <string.h>

#include "base/limits.h"
#include "base/utf8.h"
#include "engine/chat.h"

#include "serve/params.h"
#include "serve/route.h"

static json_t *piece_json(const struct esp_tokenizer *t, uint32_t id)
{
    const char *bytes = "";
    size_t len = 0;
    json_t *list;

    esp_tokenizer_token_bytes(t, id, &bytes, &len);
    if (esp_utf8_valid(bytes, len, NULL))
        return esp_text_json(bytes, len);
    list = json_array();
    for (size_t i = 0; i < len; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    return list;
}

static json_t *ids_json(const struct esp_call *c, const struct esp_ids *ids, bool pieces)
{
    const struct esp_tokenizer *t = esp_model_tokenizer(c->s->model);
    json_t *list = json_array();

    for (size_t i = 0; i < ids->n; i++)
        json_array_append_new(list, pieces ? json_pack("{s:I,s:o}", "id", (json_int_t)ids->data[i], "piece",
                                                       piece_json(t, ids->data[i]))
                                           : json_integer(ids->data[i]));
    return list;
}

/* messages (and what belongs to them) to a prompt. */
static bool chat_prompt(struct esp_call *c, struct esp_prompt *out)
{
    struct esp_chat_params p;
    struct esp_gen g;
    struct esp_fields f;
    bool ok;

    esp_chat_init(&p, c->s);
    esp_gen_init(&g, c->s);
    esp_fields_init(&f, c->body, "", &c->e);
    esp_chat_read_messages(&f, &p, &g, c->s);
    esp_chat_read_thinking(&f, &p);
    esp_chat_read_tools(&f, &p, &g);
    ok = !c->e.http && esp_prompt_chat(out, &p, c->s, &c->e);
    esp_chat_free(&p);
    esp_gen_free(&g);
    return ok;
}

void esp_tokenize_route(struct esp_call *c)
{
    const char *text = NULL;
    bool special = true, add = false, pieces = false;
    struct esp_prompt prompt = {0};
    struct esp_fields f;
    bool ok;

    esp_fields_init(&f, c->body, "", &c->e);
    esp_field_bool(&f, "parse_special", &special);
    esp_field_bool(&f, "add_special", &add); /* models of the family add nothing */
    esp_field_bool(&f, "with_pieces", &pieces);
    if (c->e.http)
        return;
    if (esp_field_any(&f, "messages")) {
        if (!chat_prompt(c, &prompt))
            return;
    } else {
        if (!esp_field_string(&f, "content", &text) && !esp_field_string(&f, "prompt", &text) && !c->e.http)
            esp_api_fail(&c->e, "missing_field", "content",
                         "content: missing; content or prompt (a string), or messages");
        esp_ids_init(&prompt.ids, ESP_LIMIT_TURN_BYTES);
        ok = !c->e.http && esp_prompt_text(&prompt.ids, c->s, text, strlen(text), special, &c->e);
        if (!ok) {
            esp_prompt_free(&prompt);
            return;
        }
    }
    esp_reply_json(c, 200,
                   json_pack("{s:o,s:I,s:I}", "tokens", ids_json(c, &prompt.ids, pieces), "count",
                             (json_int_t)prompt.ids.n, "max_model_len", (json_int_t)c->s->context));
    esp_prompt_free(&prompt);
}

void esp_detokenize_route(struct esp_call *c)
{
    const json_t *list = NULL;
    struct esp_fields f;
    struct esp_ids ids;
    struct esp_strbuf text;

    esp_fields_init(&f, c->body, "", &c->e);
    if (!esp_field_array(&f, "tokens", &list) && !c->e.http)
        esp_api_fail(&c->e, "missing_field", "tokens", "tokens: missing; an array of token ids is needed");
    esp_ids_init(&ids, ESP_LIMIT_TURN_BYTES);
    esp_strbuf_init(&text, ESP_LIMIT_TEXT_BYTES);
    if (!c->e.http && esp_prompt_ids(&ids, c->s, list, "tokens", &c->e)) {
        esp_error err;

        if (esp_detok_decode(esp_model_tokenizer(c->s->model), ids.data, ids.n, 0, &text, &err) == ESP_OK)
            esp_reply_json(c, 200,
                           json_pack("{s:o,s:o}", "content", esp_text_json(esp_strbuf_str(&text), text.len),
                                     "prompt", esp_text_json(esp_strbuf_str(&text), text.len)));
        else
            esp_api_fail_status(&c->e, "tokens", &err);
    }
    esp_strbuf_free(&text);
    esp_ids_free(&ids);
}

void esp_apply_template(struct esp_call *c)
{
    struct esp_prompt prompt;

    if (!chat_prompt(c, &prompt))
        return;
    esp_reply_json(c, 200,
                   json_pack("{s:o,s:o}", "prompt",
                             esp_text_json(esp_strbuf_str(&prompt.text), prompt.text.len), "tokens",
                             ids_json(c, &prompt.ids, false)));
    esp_prompt_free(&prompt);
}
