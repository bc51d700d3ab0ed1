/* Short forms that the tokenizer's tests share. SPDX-License-Identifier: MIT */
#ifndef ESP_TESTS_TOK_HELP_H
#define ESP_TESTS_TOK_HELP_H

#include "support/support.h"

#include <string.h>

#include "text/detokenize.h"
#include "text/tokenizer.h"

static inline struct esp_tokenizer *tok_open(const char *relative)
{
    struct esp_tokenizer *t = NULL;
    esp_error err;

    test_ok(esp_tokenizer_open(&t, test_path(relative), &err), &err);
    return t;
}

static inline struct esp_tokenizer *tok_mini(void)
{
    return tok_open("tests/data/cases/tok_mini.tokenizer.json");
}

/* Encode with everything trusted, or with nothing trusted (flags 0). The list must be freed. */
static inline struct esp_ids tok_encode(const struct esp_tokenizer *t, const char *s, size_t len,
                                        unsigned flags)
{
    const struct esp_tok_input in = {.text = s, .len = len, .flags = flags};
    struct esp_ids ids;
    esp_error err;

    esp_ids_init(&ids, 1u << 28);
    test_ok(esp_tokenizer_encode(t, &in, &ids, &err), &err);
    return ids;
}

static inline struct esp_strbuf tok_decode(const struct esp_tokenizer *t, const struct esp_ids *ids,
                                           unsigned flags)
{
    struct esp_strbuf b;
    esp_error err;

    esp_strbuf_init(&b, 1u << 28);
    test_ok(esp_detok_decode(t, ids->data, ids->n, flags, &b, &err), &err);
    return b;
}

static inline void tok_assert_ids(const struct esp_ids *got, const json_t *want, const char *text)
{
    if (got->n != json_array_size(want))
        fail_msg("\"%s\": %zu ids instead of %zu", text, got->n, json_array_size(want));
    for (size_t i = 0; i < got->n; i++)
        if (got->data[i] != (uint32_t)json_integer_value(json_array_get(want, i)))
            fail_msg("\"%s\": id %zu is %u instead of %u", text, i, got->data[i],
                     (unsigned)json_integer_value(json_array_get(want, i)));
}

#endif
