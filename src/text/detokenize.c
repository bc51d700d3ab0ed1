/*
 * Bytes of tokens to valid UTF-8. At most three bytes are ever held: a proper prefix of one character.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/detokenize.h"

#include <string.h>

#include "base/utf8.h"

static const char replacement[] = "\xef\xbf\xbd";

void esp_detok_init(struct esp_detok *d, const struct esp_tokenizer *t, unsigned flags)
{
    memset(d, 0, sizeof *d);
    d->t = t;
    d->flags = flags;
}

/* Feed bytes to the held prefix until it is a character or cannot become one; returns how many were used. */
static size_t fill_held(struct esp_detok *d, const char *s, size_t len, struct esp_strbuf *out)
{
    size_t used = 0;

    while (d->n_held > 0 && used < len) {
        uint32_t cp;
        const size_t n = (size_t)d->n_held + 1;

        d->held[d->n_held] = s[used];
        if (esp_utf8_decode(d->held, n, &cp) == n) {
            esp_strbuf_add(out, d->held, n);
            d->n_held = 0;
            used++;
        } else if (esp_utf8_incomplete_tail(d->held, n) == n) {
            d->n_held++;
            used++;
        } else { /* what was held is a maximal ill-formed part; the byte starts something new */
            esp_strbuf_add(out, replacement, 3);
            d->n_held = 0;
        }
    }
    return used;
}

esp_status esp_detok_push_bytes(struct esp_detok *d, const char *bytes, size_t len, struct esp_strbuf *out,
                                esp_error *err)
{
    const struct esp_detok before = *d;
    size_t at = fill_held(d, bytes, len, out);

    while (at < len) {
        size_t bad = 0;

        if (esp_utf8_valid(bytes + at, len - at, &bad))
            bad = len - at;
        esp_strbuf_add(out, bytes + at, bad);
        at += bad;
        if (at == len)
            break;
        if (len - at < sizeof d->held && esp_utf8_incomplete_tail(bytes + at, len - at) == len - at) {
            d->n_held = (unsigned char)(len - at);
            memcpy(d->held, bytes + at, len - at);
            break;
        }
        esp_strbuf_add(out, replacement, 3);
        at += esp_utf8_bad_span(bytes + at, len - at);
    }
    if (!out->failed)
        return ESP_OK;
    *d = before;
    return esp_fail(err, ESP_ENOMEM, "no memory for more than %zu bytes of text (at most %zu)", out->len,
                    out->max);
}

esp_status esp_detok_push(struct esp_detok *d, uint32_t id, struct esp_strbuf *out, esp_error *err)
{
    const char *bytes;
    size_t len;

    if ((d->flags & ESP_DETOK_SKIP_SPECIAL) && esp_tokenizer_is_special(d->t, id))
        return ESP_OK;
    esp_tokenizer_token_bytes(d->t, id, &bytes, &len);
    return esp_detok_push_bytes(d, bytes, len, out, err);
}

esp_status esp_detok_finish(struct esp_detok *d, struct esp_strbuf *out, esp_error *err)
{
    if (d->n_held > 0 && !esp_strbuf_add(out, replacement, 3))
        return esp_fail(err, ESP_ENOMEM, "no memory for more than %zu bytes of text (at most %zu)", out->len,
                        out->max);
    d->n_held = 0;
    return ESP_OK;
}

esp_status esp_detok_decode(const struct esp_tokenizer *t, const uint32_t *ids, size_t n, unsigned flags,
                            struct esp_strbuf *out, esp_error *err)
{
    struct esp_detok d;

    esp_detok_init(&d, t, flags);
    for (size_t i = 0; i < n; i++)
        ESP_TRY(esp_detok_push(&d, ids[i], out, err));
    return esp_detok_finish(&d, out, err);
}
