/*
 * See the header. One pass over the vocabulary for each text.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/token_sets.h"

#include <string.h>

#include "base/limits.h"

static void add(const struct esp_token_set *set, uint32_t id)
{
    if (id / 64 < set->n_words)
        set->bits[id / 64] |= UINT64_C(1) << (id % 64);
}

static esp_status add_last_of(const struct esp_token_set *set, const struct esp_tokenizer *t,
                              const char *text, esp_error *err)
{
    const struct esp_tok_input in = {.text = text, .len = strlen(text)};
    struct esp_ids ids;
    esp_status s;

    esp_ids_init(&ids, ESP_LIMIT_TEXT_BYTES);
    s = esp_tokenizer_encode(t, &in, &ids, err);
    if (s == ESP_OK && ids.n)
        add(set, ids.data[ids.n - 1]);
    esp_ids_free(&ids);
    return s;
}

esp_status esp_token_set_add_texts(const struct esp_token_set *set, const struct esp_tokenizer *t,
                                   const char *const *texts, size_t n, esp_error *err)
{
    const uint32_t n_id = esp_tokenizer_n_ids(t);

    for (size_t i = 0; i < n; i++) {
        const size_t wanted = strlen(texts[i]);
        uint32_t found = 0;

        if (wanted == 0)
            return esp_fail(err, ESP_EINVAL, "text %zu is empty; at least one byte is needed", i);
        for (uint32_t id = 0; id < n_id; id++) {
            const char *bytes = "";
            size_t len = 0;

            esp_tokenizer_token_bytes(t, id, &bytes, &len);
            if (len < wanted || !memmem(bytes, len, texts[i], wanted))
                continue;
            add(set, id);
            found++;
        }
        if (!found)
            ESP_TRY(add_last_of(set, t, texts[i], err));
    }
    return ESP_OK;
}

void esp_token_set_add_line_ends(const struct esp_token_set *set, const struct esp_tokenizer *t)
{
    const uint32_t n_id = esp_tokenizer_n_ids(t);

    for (uint32_t id = 0; id < n_id; id++) {
        const char *bytes = "";
        size_t len = 0, i = 0;

        esp_tokenizer_token_bytes(t, id, &bytes, &len);
        while (i < len && (bytes[i] == '\n' || bytes[i] == '\r'))
            i++;
        if (len && i == len)
            add(set, id);
    }
}
