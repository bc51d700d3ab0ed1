/*
 * Encoding and the questions one can ask about ids. The order of the steps is the reference's: tokens that
 * are looked for in raw text, normal form, tokens that are looked for in normalised text, split, merges.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/tokenizer.h"

#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"

#include "text/tokenizer_parts.h"

enum { CACHE_FROM = 4096 }; /* bytes of text from which remembering pieces pays for the table */

/* Everything one encode call owns. */
struct encoder {
    const struct esp_tokenizer *t;
    struct esp_ids *out;
    struct esp_bpe_work bpe;
    struct esp_pretok_cut cut;
    struct esp_tok_norm norm;
    struct esp_tok_norm clean; /* the text with invalid UTF-8 replaced, if it had any, and its trust */
};

static esp_status check_input(const struct esp_tok_input *in, esp_error *err)
{
    size_t last = 0;

    if (in->len > ESP_LIMIT_TEXT_BYTES)
        return esp_fail(err, ESP_ENOFIT, "text of %zu bytes, at most %u are accepted", in->len,
                        ESP_LIMIT_TEXT_BYTES);
    for (size_t i = 0; i < in->n_trusted; i++) {
        const struct esp_text_span *s = &in->trusted[i];

        if (s->start < last || s->end < s->start || s->end > in->len)
            return esp_fail(
                err, ESP_EINVAL,
                "trusted span %zu is [%zu, %zu): spans must ascend and end within %zu bytes of text", i,
                s->start, s->end, in->len);
        last = s->end;
    }
    return ESP_OK;
}

/* Copy the text with U+FFFD for each ill-formed part; a replacement is not trusted. */
static esp_status replace_invalid(struct encoder *e, const char **text, size_t *len,
                                  struct esp_tok_trust *trust, esp_error *err)
{
    struct esp_tok_norm *c = &e->clean;
    size_t at = 0, cursor = 0;

    while (at < *len) {
        size_t bad = 0, out_from = c->out.len;

        if (esp_utf8_valid(*text + at, *len - at, &bad))
            bad = *len - at;
        esp_strbuf_add(&c->out, *text + at, bad);
        if (!trust->all)
            ESP_TRY(esp_tok_spans_copy(&c->spans, trust, at, at + bad, out_from, &cursor, err));
        at += bad;
        if (at < *len) {
            esp_strbuf_add(&c->out, "\xef\xbf\xbd", 3);
            at += esp_utf8_bad_span(*text + at, *len - at);
        }
    }
    if (c->out.failed)
        return esp_fail(err, ESP_ENOMEM, "no memory for a copy of %zu bytes of text", *len);
    *text = esp_strbuf_str(&c->out);
    *len = c->out.len;
    if (!trust->all)
        *trust = (struct esp_tok_trust){c->spans.data, c->spans.n, 0, false};
    return ESP_OK;
}

static esp_status encode_pieces(struct encoder *e, const char *text, size_t len, esp_error *err)
{
    const char *piece = NULL;
    size_t n = 0;

    esp_pretok_cut_start(&e->cut, text, len);
    for (;;) {
        ESP_TRY(esp_pretok_cut_next(&e->cut, &piece, &n, err));
        if (n == 0)
            return ESP_OK;
        ESP_TRY(esp_bpe_encode(&e->t->bpe, &e->bpe, piece, n, e->out, err));
    }
}

/* Text that holds no token of the raw set. */
static esp_status encode_plain(struct encoder *e, const char *text, size_t len, struct esp_tok_trust trust,
                               esp_error *err)
{
    const struct esp_added_set *set = &e->t->added.normalized;
    struct esp_added_cut cut;
    struct esp_added_part part;

    ESP_TRY(esp_tok_normalize(&e->norm, e->t->form, &text, &len, set->n ? &trust : NULL, err));
    if (set->n == 0)
        return encode_pieces(e, text, len, err);
    esp_added_cut_start(&cut, set, text, len, &trust);
    while (esp_added_cut_next(&cut, &part)) {
        if (part.token)
            ESP_TRY(esp_ids_push(e->out, part.token->id, err));
        else
            ESP_TRY(encode_pieces(e, text + part.start, part.end - part.start, err));
    }
    return ESP_OK;
}

static esp_status encode_text(struct encoder *e, const char *text, size_t len,
                              const struct esp_tok_trust *trust, esp_error *err)
{
    struct esp_added_cut cut;
    struct esp_added_part part;

    esp_added_cut_start(&cut, &e->t->added.raw, text, len, trust);
    while (esp_added_cut_next(&cut, &part)) {
        struct esp_tok_trust inner = *trust;

        if (part.token) {
            ESP_TRY(esp_ids_push(e->out, part.token->id, err));
            continue;
        }
        inner.base += part.start;
        ESP_TRY(encode_plain(e, text + part.start, part.end - part.start, inner, err));
    }
    return ESP_OK;
}

static esp_status encode_input(struct encoder *e, const struct esp_tok_input *in, esp_error *err)
{
    struct esp_tok_trust trust = {in->trusted, in->n_trusted, 0, (in->flags & ESP_TOK_TRUST_ALL) != 0};
    const char *text = in->text;
    size_t len = in->len, bad = 0;

    if (!esp_utf8_valid(text, len, &bad)) {
        if (in->flags & ESP_TOK_REFUSE_INVALID)
            return esp_fail(err, ESP_EINVAL, "text is not valid UTF-8 at byte %zu of %zu", bad, len);
        ESP_TRY(replace_invalid(e, &text, &len, &trust, err));
    }
    if (len >= CACHE_FROM)
        esp_bpe_work_cache(&e->bpe);
    return encode_text(e, text, len, &trust, err);
}

esp_status esp_tokenizer_encode(const struct esp_tokenizer *t, const struct esp_tok_input *in,
                                struct esp_ids *out, esp_error *err)
{
    struct encoder e = {.t = t, .out = out};
    const size_t before = out->n;
    esp_status s;

    ESP_TRY(check_input(in, err));
    if (in->len == 0)
        return ESP_OK;
    esp_strbuf_init(&e.norm.out, ESP_TOK_REWRITTEN_MAX);
    esp_strbuf_init(&e.clean.out, ESP_TOK_REWRITTEN_MAX);
    s = esp_pretok_cut_init(&e.cut, &t->pretok, err);
    if (s == ESP_OK)
        s = encode_input(&e, in, err);
    if (s != ESP_OK)
        out->n = before;
    esp_pretok_cut_free(&e.cut);
    esp_bpe_work_free(&e.bpe);
    esp_tok_norm_free(&e.norm);
    esp_tok_norm_free(&e.clean);
    return s;
}

uint32_t esp_tokenizer_n_ids(const struct esp_tokenizer *t)
{
    return t->n_ids;
}

size_t esp_tokenizer_bytes(const struct esp_tokenizer *t)
{
    return sizeof *t + esp_bpe_bytes(&t->bpe) + t->pretok.bytes + t->added.cap * sizeof *t->added.item +
           (t->added.arena ? esp_arena_reserved(t->added.arena) : 0);
}

static bool in_vocabulary(const struct esp_tokenizer *t, uint32_t id)
{
    return id < t->bpe.n_ids && (t->bpe.flags[id] & ESP_BPE_USED);
}

void esp_tokenizer_token_bytes(const struct esp_tokenizer *t, uint32_t id, const char **bytes, size_t *len)
{
    const struct esp_added *a = esp_added_by_id(&t->added, id);

    if (a) {
        *bytes = a->content;
        *len = a->len;
    } else if (in_vocabulary(t, id)) {
        *bytes = t->bpe.blob + t->bpe.off[id];
        *len = t->bpe.len[id];
    } else {
        *bytes = "";
        *len = 0;
    }
}

bool esp_tokenizer_is_defined(const struct esp_tokenizer *t, uint32_t id)
{
    return in_vocabulary(t, id) || esp_added_by_id(&t->added, id);
}

bool esp_tokenizer_is_added(const struct esp_tokenizer *t, uint32_t id)
{
    return esp_added_by_id(&t->added, id) != NULL;
}

bool esp_tokenizer_is_special(const struct esp_tokenizer *t, uint32_t id)
{
    const struct esp_added *a = esp_added_by_id(&t->added, id);

    return a && (a->flags & ESP_ADDED_SPECIAL);
}

bool esp_tokenizer_find(const struct esp_tokenizer *t, const char *bytes, size_t len, uint32_t *id)
{
    const struct esp_added *a = esp_added_by_content(&t->added, bytes, len);

    if (!a)
        return esp_bpe_find_bytes(&t->bpe, bytes, len, id);
    *id = a->id;
    return true;
}

void esp_tokenizer_close(struct esp_tokenizer *t)
{
    if (!t)
        return;
    esp_bpe_free(&t->bpe);
    esp_pretok_free(&t->pretok);
    esp_added_free(&t->added);
    esp_free(t);
}
