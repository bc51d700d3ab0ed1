/*
 * From bytes of messages to bytes of the rendered text, where each content is searched behind the one before,
 * and from there to tokens: turns are counted by their closing token, which only the template writes, and
 * inside a turn tokens are counted by their bytes. What cannot be found is not kept; a mark changes time
 * alone.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/marks.h"

#include <string.h>

#include "engine/chat.h"

#include "serve/server.h"

static const char footer[] = "<|im_end|>";
enum { FOOTER = sizeof footer - 1 };

double esp_marks_seconds(const json_t *block)
{
    const json_t *control = json_object_get(block, "cache_control");
    const char *ttl = json_string_value(json_object_get(control, "ttl"));

    if (!json_is_object(control))
        return 0;
    return ttl && strcmp(ttl, "1h") == 0 ? 3600 : 300;
}

void esp_marks_note(json_t **list, const json_t *block, size_t offset)
{
    const double seconds = esp_marks_seconds(block);

    if (seconds <= 0)
        return;
    if (!*list)
        *list = json_array();
    json_array_append_new(*list, json_pack("[I,f]", (json_int_t)offset, seconds));
}

/* ---- in the text ---- */

struct finding {
    const struct esp_server *s;
    const struct esp_marks_input *in;
    struct esp_seq_pin *out; /* bytes, then positions */
    uint32_t n;
};

static bool trusted(const struct esp_text_spans *s, size_t from, size_t len)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->v[i].start <= from && from + len <= s->v[i].end)
            return true;
    return false;
}

/* Behind the next end of a turn at or behind from; 0: there is none. */
static size_t turn_end(const struct finding *f, size_t from)
{
    const char *text = f->in->text, *at = text + from;

    while ((at = memmem(at, f->in->len - (size_t)(at - text), footer, FOOTER)) != NULL) {
        if (trusted(f->in->spans, (size_t)(at - text), FOOTER))
            return (size_t)(at - text) + FOOTER;
        at++;
    }
    return 0;
}

static void add(struct finding *f, size_t byte, double seconds)
{
    if (byte && f->n < ESP_MAX_PINS)
        f->out[f->n++] = (struct esp_seq_pin){byte, seconds};
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* The marks of one message, whose content is searched from *cursor on. */
static void find_message(struct finding *f, const json_t *m, size_t *cursor)
{
    const char *content = json_string_value(json_object_get(m, "content")),
               *role = json_string_value(json_object_get(m, "role")), *at = NULL;
    size_t len = json_string_length(json_object_get(m, "content")), lead = 0, i;
    const size_t whole = len;
    const json_t *mark;

    while (lead < len && is_space(content[lead]))
        lead++;
    while (len > lead && is_space(content[len - 1]))
        len--;
    if (len > lead)
        at = memmem(f->in->text + *cursor, f->in->len - *cursor, content + lead, len - lead);
    json_array_foreach(json_object_get(m, ESP_MARKS_KEY), i, mark)
    {
        const size_t offset = (size_t)json_integer_value(json_array_get(mark, 0));
        const double seconds = json_real_value(json_array_get(mark, 1));
        const size_t start = at ? (size_t)(at - f->in->text) : *cursor;

        if (offset < whole && at)
            add(f, start + (offset > lead ? offset - lead : 0), seconds);
        else if (role && strcmp(role, "tool") == 0 && at) /* several of them share a turn */
            add(f, start + (len - lead), seconds);
        else
            add(f, turn_end(f, start), seconds);
    }
    if (at)
        *cursor = (size_t)(at - f->in->text) + (len - lead);
}

/* ---- in the tokens ---- */

/* Tokens of the ids that lie whole within the text's first `byte` bytes. */
static size_t position_of(const struct finding *f, size_t byte)
{
    const struct esp_tokenizer *t = esp_model_tokenizer(f->s->model);
    const struct esp_ids *ids = f->in->ids;
    size_t from = 0, at, n = 0, left;
    uint32_t end;

    if (!esp_tokenizer_find(t, footer, FOOTER, &end))
        return 0;
    while ((at = turn_end(f, from)) != 0 && at <= byte) {
        while (n < ids->n && ids->data[n] != end)
            n++;
        n += n < ids->n;
        from = at;
    }
    for (left = byte - from; n < ids->n && left; n++) {
        const char *bytes = "";
        size_t len = 0;

        esp_tokenizer_token_bytes(t, ids->data[n], &bytes, &len);
        if (len > left)
            break;
        left -= len;
    }
    return n;
}

/* In order, each once, none behind the last token but one. */
static uint32_t settle(const struct finding *f)
{
    uint32_t n = 0;

    for (uint32_t i = 1; i < f->n; i++)
        for (uint32_t k = i; k > 0 && f->out[k].at < f->out[k - 1].at; k--) {
            const struct esp_seq_pin t = f->out[k];

            f->out[k] = f->out[k - 1];
            f->out[k - 1] = t;
        }
    for (uint32_t i = 0; i < f->n; i++) {
        const struct esp_seq_pin p = f->out[i];

        if (p.at == 0 || p.at >= f->in->ids->n)
            continue;
        if (n && f->out[n - 1].at == p.at)
            f->out[n - 1].seconds = p.seconds > f->out[n - 1].seconds ? p.seconds : f->out[n - 1].seconds;
        else
            f->out[n++] = p;
    }
    return n;
}

uint32_t esp_marks_find(const struct esp_server *s, const struct esp_marks_input *in,
                        struct esp_seq_pin out[ESP_MAX_PINS])
{
    struct finding f = {.s = s, .in = in, .out = out};
    size_t cursor = 0, i;
    const json_t *m;

    if (in->tools > 0)
        add(&f, turn_end(&f, 0), in->tools);
    json_array_foreach(in->messages, i, m)
    {
        find_message(&f, m, &cursor);
    }
    for (uint32_t k = 0; k < f.n; k++)
        out[k].at = position_of(&f, out[k].at);
    return settle(&f);
}
