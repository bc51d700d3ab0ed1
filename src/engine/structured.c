/*
 * What joins engine and grammars: no decision is made here.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/structured.h"

#include "engine/model.h"

static void get_token(const void *ctx, uint32_t id, struct esp_vocab_token *out)
{
    const struct esp_tokenizer *t = ctx;

    esp_tokenizer_token_bytes(t, id, &out->bytes, &out->len);
    out->plain = !esp_tokenizer_is_added(t, id);
}

esp_status esp_model_vocab(struct esp_vocab **out, const esp_model *m, esp_error *err)
{
    struct esp_vocab_source src = {.get = get_token};

    ESP_TRY(esp_model_need_tokenizer(m, err));
    src.n_ids = m->net->tape.n_vocab;
    src.ctx = m->tok;
    return esp_vocab_create(out, &src, err);
}

static enum esp_constraint_state state_of(const struct esp_matcher *m)
{
    switch (esp_matcher_state(m)) {
    case ESP_MATCH_MORE:
        return ESP_CONSTRAINT_MORE;
    case ESP_MATCH_MAY_END:
        return ESP_CONSTRAINT_MAY_END;
    default:
        return ESP_CONSTRAINT_ENDED;
    }
}

static esp_status mask(void *user, uint64_t *bits, size_t n_word, enum esp_constraint_state *state,
                       esp_error *err)
{
    *state = state_of(user);
    if (*state == ESP_CONSTRAINT_ENDED)
        return ESP_OK;
    return esp_matcher_mask(user, bits, n_word, err);
}

static esp_status accept(void *user, esp_token t, enum esp_constraint_state *state, esp_error *err)
{
    ESP_TRY(esp_matcher_accept(user, (uint32_t)t, err));
    *state = state_of(user);
    return ESP_OK;
}

static void rollback(void *user, uint32_t n)
{
    esp_matcher_rollback(user, n);
}

static uint32_t forced(void *user, esp_token *out, uint32_t cap)
{
    return esp_matcher_forced(user, (uint32_t *)out, cap);
}

static esp_status clone(void *user, void **out, esp_error *err)
{
    struct esp_matcher *m = NULL;

    ESP_TRY(esp_matcher_clone(&m, user, err));
    *out = m;
    return ESP_OK;
}

static void close_matcher(void *user)
{
    esp_matcher_close(user);
}

esp_status esp_constraint_open(struct esp_constraint *out, struct esp_grammar *g,
                               const struct esp_matcher_opts *o, esp_error *err)
{
    struct esp_matcher *m = NULL;

    ESP_TRY(esp_matcher_open(&m, g, o, err));
    *out = (struct esp_constraint){.user = m,
                                   .mask = mask,
                                   .accept = accept,
                                   .rollback = rollback,
                                   .forced = forced,
                                   .clone = clone,
                                   .close = close_matcher};
    return ESP_OK;
}
