/*
 * See the header. The form is prefix first: <|fim_prefix|>PROMPT<|fim_suffix|>SUFFIX<|fim_middle|>, and the
 * answer is what belongs between the two.
 *
 * Source: Bavarian et al., "Efficient Training of Language Models to Fill in the Middle", 2022, section 3
 * (PSM).
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/fim.h"

#include <string.h>

#include "engine/chat.h"
#include "serve/params.h"

/* The three, in the order of struct esp_fim; a model has one whole row of them. */
static const char *const names[][3] = {{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
                                       {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"}};
/* A model that goes on into the next file has ended this one. */
static const char *const borders[] = {"<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<fim_pad>",
                                      "<file_sep>"};

static bool find(const struct esp_server *s, const char *text, esp_token *out)
{
    const struct esp_tokenizer *t = esp_model_tokenizer(s->model);
    uint32_t id;

    if (!esp_tokenizer_find(t, text, strlen(text), &id) || !esp_tokenizer_is_added(t, id))
        return false;
    *out = (esp_token)id;
    return true;
}

void esp_fim_find(struct esp_server *s)
{
    struct esp_fim *f = &s->fim;

    memset(f, 0, sizeof *f);
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !f->known; i++)
        f->known = find(s, names[i][0], &f->part[0]) && find(s, names[i][1], &f->part[1]) &&
                   find(s, names[i][2], &f->part[2]);
    for (size_t i = 0; f->known && i < sizeof borders / sizeof borders[0]; i++)
        f->n_end += find(s, borders[i], &f->end[f->n_end]);
    for (size_t i = 0; f->known && i < 3; i++)
        f->end[f->n_end++] = f->part[i];
}

bool esp_fim_read(struct esp_fields *f, struct esp_gen *g, const struct esp_server *s, const json_t **suffix)
{
    const char *text = NULL;

    if (!esp_field_string(f, "suffix", &text))
        return !f->e->http;
    if (!s->fim.known)
        return esp_api_fail(
            f->e, "unsupported_value", "suffix",
            "suffix: this model has no tokens for filling in the middle; leave the field away");
    if (g->n_stop_token + s->fim.n_end > ESP_MAX_STOP_TOKENS)
        return esp_api_fail(f->e, "invalid_value", "stop_token_ids",
                            "stop_token_ids: %zu ids; with suffix at most %zu are accepted", g->n_stop_token,
                            (size_t)ESP_MAX_STOP_TOKENS - s->fim.n_end);
    memcpy(g->stop_tokens + g->n_stop_token, s->fim.end, s->fim.n_end * sizeof s->fim.end[0]);
    g->n_stop_token += s->fim.n_end;
    *suffix = json_object_get(f->object, "suffix");
    return true;
}

bool esp_fim_wrap(struct esp_ids *ids, const struct esp_server *s, const json_t *suffix, bool control,
                  struct esp_api_error *e)
{
    esp_error err;

    if (esp_ids_push(ids, 0, &err) != ESP_OK)
        return esp_api_fail_status(e, "prompt", &err);
    memmove(ids->data + 1, ids->data, (ids->n - 1) * sizeof *ids->data);
    ids->data[0] = (uint32_t)s->fim.part[0];
    if (esp_ids_push(ids, (uint32_t)s->fim.part[1], &err) != ESP_OK)
        return esp_api_fail_status(e, "prompt", &err);
    if (!esp_prompt_text(ids, s, json_string_value(suffix), json_string_length(suffix), control, e))
        return false;
    if (esp_ids_push(ids, (uint32_t)s->fim.part[2], &err) != ESP_OK)
        return esp_api_fail_status(e, "suffix", &err);
    return true;
}
