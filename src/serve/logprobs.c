/*
 * Log-probabilities as JSON: twenty-one tokens a row, whose texts and bytes are made once and then shared,
 * since the likely tokens of a language are few.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/logprobs.h"

#include "base/limits.h"
#include "base/mem.h"
#include "engine/chat.h"

#include "serve/job.h"

enum { NAMES = 4096 };

/* What never changes of one token. */
struct name {
    json_t *text, *bytes; /* NULL: none here */
    esp_token id;
};

struct esp_token_names {
    struct name v[NAMES]; /* by id modulo NAMES */
};

static void drop(struct name *n)
{
    json_decref(n->text);
    json_decref(n->bytes);
    n->text = n->bytes = NULL;
}

void esp_token_names_close(struct esp_token_names *n)
{
    for (size_t i = 0; n && i < NAMES; i++)
        drop(&n->v[i]);
    esp_free(n);
}

static void make(struct name *n, const struct esp_server *s, esp_token id)
{
    const struct esp_tokenizer *t = esp_model_tokenizer(s->model);
    struct esp_strbuf text;
    struct esp_detok d;
    const char *raw = "";
    size_t len = 0;

    n->id = id;
    n->bytes = json_array();
    if (id >= 0)
        esp_tokenizer_token_bytes(t, (uint32_t)id, &raw, &len);
    for (size_t i = 0; i < len; i++)
        json_array_append_new(n->bytes, json_integer((unsigned char)raw[i]));
    esp_strbuf_init(&text, 4 * ESP_LIMIT_TOKEN_BYTES);
    esp_detok_init(&d, t, 0);
    esp_detok_push_bytes(&d, raw, len, &text, NULL);
    esp_detok_finish(&d, &text, NULL);
    n->text = esp_text_json(esp_strbuf_str(&text), text.len);
    esp_strbuf_free(&text);
}

/* {"token", "logprob", "bytes", "token_id"}; names NULL: there is no memory to keep any. */
static json_t *entry_of(const struct esp_server *s, esp_token id, float logprob)
{
    struct name own = {0}, *n = s->names ? &s->names->v[(uint32_t)id % NAMES] : &own;
    json_t *v = json_object();

    if (!n->text || n->id != id) {
        drop(n);
        make(n, s, id);
    }
    json_object_set_nocheck(v, "token", n->text);
    json_object_set_new_nocheck(v, "logprob", esp_real_json(logprob, -9999.0));
    json_object_set_nocheck(v, "bytes", n->bytes);
    json_object_set_new_nocheck(v, "token_id", json_integer(id));
    drop(&own);
    return v;
}

json_t *esp_logprob_row(const struct esp_job *j, const struct esp_service_event *x)
{
    json_t *v, *top = json_array();

    if (!j->s->names)
        j->s->names = esp_alloc(sizeof *j->s->names);
    v = entry_of(j->s, x->token, x->logprob);
    for (uint32_t i = 0; i < x->n_top && i < j->gen->top; i++)
        json_array_append_new(top, entry_of(j->s, x->top[i].token, x->top[i].logprob));
    if (v)
        json_object_set_new_nocheck(v, "top_logprobs", top);
    else
        json_decref(top);
    return v;
}
