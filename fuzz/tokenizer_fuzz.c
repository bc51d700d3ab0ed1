/*
 * Fuzz target: bytes as a tokenizer.json. What opens must encode a fixed text and give back something valid.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdint.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "text/detokenize.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok)
        __builtin_trap();
}

static void use(const struct esp_tokenizer *t, unsigned flags)
{
    static const char text[] =
        "Hello <|im_start|>wor\xff ld re\xcc\x81sum\xc3\xa9 \xcc\x81\xcc\x96 \n\n 12 </think> aaaa";
    static const struct esp_text_span span[] = {{3, 20}, {24, 40}};
    const struct esp_tok_input in = {
        .text = text, .len = sizeof text - 1, .trusted = span, .n_trusted = 2, .flags = flags};
    struct esp_ids ids;
    struct esp_strbuf out;

    esp_ids_init(&ids, 1000);
    esp_strbuf_init(&out, 1 << 20);
    if (esp_tokenizer_encode(t, &in, &ids, NULL) == ESP_OK) {
        for (size_t i = 0; i < ids.n; i++)
            check(esp_tokenizer_is_defined(t, ids.data[i]) && ids.data[i] < esp_tokenizer_n_ids(t));
        check(esp_detok_decode(t, ids.data, ids.n, 0, &out, NULL) == ESP_OK);
        check(esp_utf8_valid(esp_strbuf_str(&out), out.len, NULL));
    }
    esp_strbuf_free(&out);
    esp_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct esp_tokenizer *t = NULL;

    if (esp_tokenizer_parse(&t, (const char *)data, size, NULL, 0, "fuzz", NULL) != ESP_OK)
        return 0;
    use(t, 0);
    use(t, ESP_TOK_TRUST_ALL);
    esp_tokenizer_close(t);
    return 0;
}
