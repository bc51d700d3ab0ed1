/*
 * Tokens and templates: what a prompt becomes, without running a model. Long texts are worked on beside the
 * loop, and so are their answers, which may be longer still.
 *
 * SPDX-License-Identifier: MIT
 */
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "engine/chat.h"

#include "serve/background.h"
#include "serve/frame.h"
#include "serve/params.h"
#include "serve/route.h"

enum { MAX_BODY = 1 << 30 };

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

/* A request while it is worked on. What is read from the body is read on the loop; make() runs on any thread.
 */
struct work {
    struct esp_call *c;
    void (*make)(struct work *w); /* body, or e */
    struct esp_api_error e;
    struct esp_strbuf body;
    struct esp_chat_params p; /* with chat */
    struct esp_gen g;
    const char *text; /* else */
    const json_t *tokens;
    bool chat, special, pieces;
};

static struct work *make_work(struct esp_call *c, void (*make)(struct work *w))
{
    struct work *w = esp_alloc(sizeof *w);

    if (!w) {
        esp_api_fail(&c->e, "device_lost", NULL, "no memory for the request");
        return NULL;
    }
    w->c = c;
    w->make = make;
    esp_strbuf_init(&w->body, MAX_BODY);
    esp_chat_init(&w->p, c->s);
    esp_gen_init(&w->g, c->s);
    return w;
}

static void free_work(struct work *w)
{
    esp_chat_free(&w->p);
    esp_gen_free(&w->g);
    esp_strbuf_free(&w->body);
    esp_api_error_clear(&w->e);
    esp_free(w);
}

static esp_status work(void *arg, esp_error *err)
{
    struct work *w = arg;

    if (atomic_load(&w->c->gone))
        return ESP_OK;
    w->make(w);
    if (w->body.failed && !w->e.http)
        return esp_fail(err, ESP_ENOMEM, "no memory for the answer");
    return ESP_OK;
}

static void worked(void *arg, esp_status s, const esp_error *err)
{
    struct work *w = arg;
    struct esp_call *c = w->c;

    if (s != ESP_OK)
        esp_api_fail_status(&w->e, NULL, err);
    if (w->e.http) {
        c->e = w->e;
        memset(&w->e, 0, sizeof w->e);
        esp_reply_error(c);
    } else {
        esp_reply_text(c, 200, "application/json", esp_strbuf_str(&w->body), w->body.len);
    }
    free_work(w);
    esp_call_job_ended(c);
}

/* Small ones at once, larger ones beside the loop; or never, with c->e set. */
static void begin(struct work *w)
{
    struct esp_call *c = w->c;
    esp_error err;

    if (c->e.http) {
        free_work(w);
        return;
    }
    c->n_job++;
    if (!esp_call_is_big(c) || esp_background_queue(c->s->background, work, worked, w, &err) != ESP_OK)
        worked(w, work(w, &err), &err);
}

static void put_ids(struct work *w, const struct esp_ids *ids)
{
    const struct esp_tokenizer *t = esp_model_tokenizer(w->c->s->model);

    esp_strbuf_puts(&w->body, "\"tokens\":[");
    for (size_t i = 0; i < ids->n; i++) {
        if (i)
            esp_strbuf_puts(&w->body, ",");
        if (w->pieces) {
            json_t *v =
                json_pack("{s:I,s:o}", "id", (json_int_t)ids->data[i], "piece", piece_json(t, ids->data[i]));

            w->body.failed = !v || !esp_json_add(&w->body, v);
            json_decref(v);
        } else {
            esp_frame_number(&w->body, ids->data[i]);
        }
    }
    esp_strbuf_puts(&w->body, "]");
}

static void put_text(struct work *w, const char *name, const struct esp_strbuf *text)
{
    esp_strbuf_printf(&w->body, "\"%s\":\"", name);
    esp_frame_text(&w->body, esp_strbuf_str(text), text->len);
    esp_strbuf_puts(&w->body, "\"");
}

/* messages and what belongs to them. */
static void read_chat(struct work *w)
{
    struct esp_fields f;

    w->chat = true;
    esp_fields_init(&f, w->c->body, "", &w->c->e);
    esp_chat_read_messages(&f, &w->p, &w->g, w->c->s);
    esp_chat_read_thinking(&f, &w->p);
    esp_chat_read_tools(&f, &w->p, &w->g);
}

static void tokenize(struct work *w)
{
    struct esp_prompt prompt = {0};
    bool ok;

    if (w->chat) {
        ok = esp_prompt_chat(&prompt, &w->p, w->c->s, &w->e);
    } else {
        esp_ids_init(&prompt.ids, ESP_LIMIT_TURN_BYTES);
        ok = esp_prompt_text(&prompt.ids, w->c->s, w->text, strlen(w->text), w->special, &w->e);
        if (!ok)
            esp_ids_free(&prompt.ids);
    }
    if (!ok)
        return;
    esp_strbuf_puts(&w->body, "{");
    put_ids(w, &prompt.ids);
    esp_strbuf_printf(&w->body, ",\"count\":%zu,\"max_model_len\":%u}", prompt.ids.n, w->c->s->context);
    esp_prompt_free(&prompt);
}

void esp_tokenize_route(struct esp_call *c)
{
    struct work *w = make_work(c, tokenize);
    bool add = false;
    struct esp_fields f;

    if (!w)
        return;
    w->special = true;
    esp_fields_init(&f, c->body, "", &c->e);
    esp_field_bool(&f, "parse_special", &w->special);
    esp_field_bool(&f, "add_special", &add); /* models of the family add nothing */
    esp_field_bool(&f, "with_pieces", &w->pieces);
    if (esp_field_any(&f, "messages"))
        read_chat(w);
    else if (!esp_field_string(&f, "content", &w->text) && !esp_field_string(&f, "prompt", &w->text))
        esp_api_fail(&c->e, "missing_field", "content",
                     "content: missing; content or prompt (a string), or messages");
    begin(w);
}

static void detokenize(struct work *w)
{
    struct esp_ids ids;
    struct esp_strbuf text;
    esp_error err;

    esp_ids_init(&ids, ESP_LIMIT_TURN_BYTES);
    esp_strbuf_init(&text, ESP_LIMIT_TEXT_BYTES);
    if (esp_prompt_ids(&ids, w->c->s, w->tokens, "tokens", &w->e)) {
        if (esp_detok_decode(esp_model_tokenizer(w->c->s->model), ids.data, ids.n, 0, &text, &err) != ESP_OK)
            esp_api_fail_status(&w->e, "tokens", &err);
        esp_strbuf_puts(&w->body, "{");
        put_text(w, "content", &text);
        esp_strbuf_puts(&w->body, ",");
        put_text(w, "prompt", &text);
        esp_strbuf_puts(&w->body, "}");
    }
    esp_strbuf_free(&text);
    esp_ids_free(&ids);
}

void esp_detokenize_route(struct esp_call *c)
{
    struct work *w = make_work(c, detokenize);
    struct esp_fields f;

    if (!w)
        return;
    esp_fields_init(&f, c->body, "", &c->e);
    if (!esp_field_array(&f, "tokens", &w->tokens))
        esp_api_fail(&c->e, "missing_field", "tokens", "tokens: missing; an array of token ids is needed");
    begin(w);
}

static void apply_template(struct work *w)
{
    struct esp_prompt prompt;

    if (!esp_prompt_chat(&prompt, &w->p, w->c->s, &w->e))
        return;
    esp_strbuf_puts(&w->body, "{");
    put_text(w, "prompt", &prompt.text);
    esp_strbuf_puts(&w->body, ",");
    put_ids(w, &prompt.ids);
    esp_strbuf_puts(&w->body, "}");
    esp_prompt_free(&prompt);
}

void esp_apply_template(struct esp_call *c)
{
    struct work *w = make_work(c, apply_template);

    if (!w)
        return;
    read_chat(w);
    begin(w);
}
