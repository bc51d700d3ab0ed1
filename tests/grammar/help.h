/*
 * Small vocabularies and shorthand for the tests of the grammar room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_GRAMMAR_HELP_H
#define ESP_TESTS_GRAMMAR_HELP_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/rng.h"
#include "grammar/grammar.h"
#include "support/support.h"

/* A list of byte strings as a vocabulary; those behind n_plain are added tokens. */
struct words {
    const char *const *text;
    const size_t *len; /* NULL: zero-terminated */
    uint32_t n, n_plain;
};

static inline void get_word(const void *ctx, uint32_t id, struct esp_vocab_token *out)
{
    const struct words *w = ctx;

    out->bytes = w->text[id];
    out->len = w->len ? w->len[id] : strlen(w->text[id]);
    out->plain = id < w->n_plain;
}

static inline struct esp_vocab *open_words(const struct words *w)
{
    const struct esp_vocab_source src = {.n_ids = w->n, .get = get_word, .ctx = w};
    struct esp_vocab *v = NULL;
    esp_error err;

    test_ok(esp_vocab_create(&v, &src, &err), &err);
    return v;
}

/* The 255 single bytes but NUL, ids 1..255, and nothing else. */
static inline void get_byte(const void *ctx, uint32_t id, struct esp_vocab_token *out)
{
    static const char none[1];
    const char *all = ctx;

    *out = (struct esp_vocab_token){.bytes = id ? all + id : none, .len = id > 0, .plain = true};
}

static inline struct esp_vocab *open_bytes(void)
{
    static char all[256];
    const struct esp_vocab_source src = {.n_ids = 256, .get = get_byte, .ctx = all};
    struct esp_vocab *v = NULL;
    esp_error err;

    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    test_ok(esp_vocab_create(&v, &src, &err), &err);
    return v;
}

static inline bool has(const uint64_t *bits, uint32_t id)
{
    return bits[id / 64] >> id % 64 & 1;
}

/* How a whole text fares under g, byte by byte: -1 refused, 0 a beginning, 1 complete. */
static inline int judge(struct esp_grammar *g, const char *text, size_t len)
{
    struct esp_matcher *m = NULL;
    esp_error err;
    int r = 0;

    test_ok(esp_matcher_open(&m, g, NULL, &err), &err);
    for (size_t i = 0; i < len && r == 0; i++)
        if (esp_matcher_accept(m, (unsigned char)text[i], &err) != ESP_OK)
            r = -1;
    if (r == 0 && esp_matcher_state(m) != ESP_MATCH_MORE)
        r = 1;
    esp_matcher_close(m);
    return r;
}

static inline uint32_t draw(struct esp_rng_key *k, uint32_t below)
{
    uint32_t w[4];

    k->position++;
    esp_rng_words(k, w);
    return w[0] % below;
}

/* The grammar of a schema given as JSON text. */
static inline esp_status compile_schema(struct esp_grammar **g, const struct esp_vocab *v, const char *schema,
                                        unsigned flags, esp_error *err)
{
    json_t *j = NULL;
    esp_status s;

    test_ok(esp_json_parse(&j, schema, strlen(schema), "schema", 0, err), err);
    s = esp_grammar_schema(g, v, j, flags, err);
    json_decref(j);
    return s;
}

#endif
