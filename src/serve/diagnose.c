/*
 * The slots hold the texts that ran last; the one that agrees longest with a prompt says where they part.
 * Turns are counted by their closing token, which no message can contain.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/diagnose.h"

#include <string.h>

#include "base/utf8.h"
#include "engine/chat.h"

#include "serve/slots.h"

enum { SHOWN = 80, BEFORE = 6, AROUND = 14, OTHER_AT_LEAST = 64, REWRITTEN = 1024 };

static size_t agree(const struct esp_ids *a, const struct esp_ids *b)
{
    const size_t n = a->n < b->n ? a->n : b->n;
    size_t i = 0;

    while (i < n && a->data[i] == b->data[i])
        i++;
    return i;
}

/* Text around position at, at most SHOWN bytes. */
static json_t *around(const struct esp_server *s, const struct esp_ids *ids, size_t at)
{
    const size_t from = at > BEFORE ? at - BEFORE : 0, to = from + AROUND < ids->n ? from + AROUND : ids->n;
    struct esp_strbuf text;
    size_t len;
    json_t *v;

    esp_strbuf_init(&text, 1 << 16);
    esp_detok_decode(esp_model_tokenizer(s->model), ids->data + from, to - from, 0, &text, NULL);
    len = text.len < SHOWN ? text.len : SHOWN;
    len -= esp_utf8_incomplete_tail(esp_strbuf_str(&text), len);
    v = esp_text_json(esp_strbuf_str(&text), len);
    esp_strbuf_free(&text);
    return v;
}

bool esp_diagnose_system(const struct esp_job *j)
{
    static const char mark[] = "<|im_start|>system";
    struct esp_strbuf text;
    bool yes;

    esp_strbuf_init(&text, 1 << 16);
    esp_detok_decode(esp_model_tokenizer(j->s->model), j->prompt.data, j->prompt.n < 8 ? j->prompt.n : 8, 0,
                     &text, NULL);
    yes = strncmp(esp_strbuf_str(&text), mark, sizeof mark - 1) == 0;
    esp_strbuf_free(&text);
    return yes;
}

unsigned esp_diagnose_turn(const struct esp_job *j, size_t position)
{
    unsigned turn = 0;

    for (size_t i = 0; i < position; i++)
        turn += esp_token_is_end(j->s->model, (esp_token)j->prompt.data[i]);
    return turn;
}

/* The part of the request that position lies in. */
static json_t *where(const struct esp_job *j, size_t position)
{
    const bool system = esp_diagnose_system(j);
    const unsigned turn = esp_diagnose_turn(j, position);

    if (system && turn == 0)
        return json_string(j->has_tools ? "tools" : "system");
    return json_sprintf("messages[%u]", turn);
}

/* Where the prompt and the nearest text part. */
static json_t *divergence(const struct esp_job *j)
{
    return json_pack("{s:I,s:o,s:o,s:o}", "position", (json_int_t)j->agreed, "where", where(j, j->agreed),
                     "cached_text", around(j->s, &j->s->slots[j->nearest].text, j->agreed), "request_text",
                     around(j->s, &j->prompt, j->agreed));
}

/* The texts part inside an earlier answer, and much that was cached behind it is lost: a template that leaves
 * out old thinking does that, or a client that changes what it was sent. */
static void warn_rewritten(struct esp_job *j)
{
    static const char mark[] = "<|im_start|>assistant";
    const struct esp_ids *old = &j->s->slots[j->nearest].text;
    size_t from = j->agreed, end = from;
    struct esp_strbuf text;

    while (end < j->prompt.n && !esp_token_is_end(j->s->model, (esp_token)j->prompt.data[end]))
        end++;
    if (old->n - j->agreed <= REWRITTEN || end == j->prompt.n) /* the last turn is no history */
        return;
    while (from > 0 && !esp_token_is_end(j->s->model, (esp_token)j->prompt.data[from - 1]))
        from--;
    esp_strbuf_init(&text, 1 << 20);
    esp_detok_decode(esp_model_tokenizer(j->s->model), j->prompt.data + from,
                     j->prompt.n - from < 8 ? j->prompt.n - from : 8, 0, &text, NULL);
    if (strstr(esp_strbuf_str(&text), mark))
        esp_gen_warn(j->gen,
                     "history_rewritten: an earlier answer is rendered in other words than it was cached; "
                     "--history stable keeps it");
    esp_strbuf_free(&text);
}

void esp_diagnose(struct esp_job *j)
{
    const struct esp_server *s = j->s;

    j->nearest = -1;
    j->agreed = 0;
    for (uint32_t i = 0; i < s->rows; i++) {
        const struct esp_slot *slot = &s->slots[i];
        size_t n;

        if (slot->ns == 0)
            continue;
        n = agree(&slot->text, &j->prompt);
        if (slot->ns != j->ns) {
            j->adapter_differs = j->adapter_differs || n >= OTHER_AT_LEAST;
        } else if (n > j->agreed) {
            j->agreed = n;
            j->nearest = (int)i;
        }
    }
    if (j->nearest >= 0 && j->agreed < j->prompt.n && j->agreed < s->slots[j->nearest].text.n)
        warn_rewritten(j);
    if (j->gen->debug_cache && j->nearest >= 0 && j->agreed < j->prompt.n &&
        j->agreed < s->slots[j->nearest].text.n)
        j->divergence = divergence(j);
}
