/*
 * A machine over a buffer of undecided bytes. Each state looks at the buffer's front, takes what it is sure
 * of and asks for more otherwise; so the cut of the input cannot show. White space that may be trimmed waits
 * in a buffer of its own. Calls are in toolcall_call.c.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/toolcall_parts.h"

#include "base/limits.h"
#include "base/mem.h"

/* ---- text ---- */

/* Hand out n bytes of text from the front: white space at its end waits for more, at its start it goes. */
static void take_text(struct esp_turn *t, size_t n)
{
    const enum esp_turn_what what = t->state == ESP_TURN_IN_REASONING ? ESP_TURN_REASONING : ESP_TURN_CONTENT;
    const char *s = esp_turn_front(t);
    size_t skip = t->any ? 0 : esp_turn_spaces(s, n), end = n;

    *(what == ESP_TURN_CONTENT ? &t->n_content : &t->n_reasoning) += n;
    while (end > skip && esp_turn_is_space(s[end - 1]))
        end--;
    if (end > skip) {
        esp_turn_give(t, what, esp_strbuf_str(&t->space), t->space.len);
        esp_strbuf_clear(&t->space);
        esp_turn_give(t, what, s + skip, end - skip);
        t->any = true;
    }
    if (t->any)
        esp_strbuf_add(&t->space, s + end, n - end);
    esp_turn_take(t, n);
}

/* A tag at s[0..n)? ESP_TURN_PART: may become one. On ESP_TURN_YES it is taken. */
static enum esp_turn_match text_tag(struct esp_turn *t, const char *s, size_t n)
{
    const bool thinking = t->state == ESP_TURN_IN_REASONING;
    const bool calls = t->o.calls && (!thinking || t->o.calls_in_thinking);
    enum esp_turn_match think = thinking ? esp_turn_match(s, n, "</think>") : ESP_TURN_NO, call = ESP_TURN_NO,
                        function = ESP_TURN_NO;
    size_t len = 0;

    if (think == ESP_TURN_YES) {
        esp_turn_take(t, strlen("</think>"));
        esp_turn_channel(t, ESP_TURN_IN_CONTENT);
        return ESP_TURN_YES;
    }
    if (calls) {
        call = esp_turn_match(s, n, "<tool_call>");
        function = esp_turn_match_open(s, n, "<function", t->name, &len);
    }
    if (call == ESP_TURN_YES) {
        esp_turn_take(t, strlen("<tool_call>"));
        esp_turn_channel(t, ESP_TURN_IN_CALL_OPEN);
        return ESP_TURN_YES;
    }
    if (function == ESP_TURN_YES) {
        esp_turn_channel(t, ESP_TURN_IN_FUNCTION);
        esp_turn_start_call(t, len);
        return ESP_TURN_YES;
    }
    return think == ESP_TURN_PART || call == ESP_TURN_PART || function == ESP_TURN_PART ? ESP_TURN_PART
                                                                                        : ESP_TURN_NO;
}

/* ESP_TURN_IN_REASONING and ESP_TURN_IN_CONTENT. */
static bool step_text(struct esp_turn *t)
{
    size_t n = 0;

    while (n < esp_turn_left(t)) {
        const char *lt = memchr(esp_turn_front(t) + n, '<', esp_turn_left(t) - n);
        enum esp_turn_match m;

        if (!lt) {
            n = esp_turn_left(t);
            break;
        }
        n = (size_t)(lt - esp_turn_front(t));
        take_text(t, n);
        m = text_tag(t, esp_turn_front(t), esp_turn_left(t));
        if (m == ESP_TURN_YES)
            return true;
        if (m == ESP_TURN_PART && !t->final)
            return false;
        n = 1; /* a '<' like any other */
    }
    take_text(t, n);
    return false;
}

static bool step_start(struct esp_turn *t)
{
    const size_t n = esp_turn_spaces(esp_turn_front(t), esp_turn_left(t));
    const enum esp_turn_match m = esp_turn_match(esp_turn_front(t) + n, esp_turn_left(t) - n, "<think>");

    if (m == ESP_TURN_PART && !t->final)
        return false;
    if (m == ESP_TURN_YES)
        esp_turn_take(t, n + strlen("<think>"));
    esp_turn_channel(t, m == ESP_TURN_YES ? ESP_TURN_IN_REASONING : ESP_TURN_IN_CONTENT);
    return true;
}

/* ---- the machine ---- */

static bool step(struct esp_turn *t)
{
    static bool (*const steps[])(struct esp_turn *) = {
        [ESP_TURN_IN_START] = step_start,
        [ESP_TURN_IN_REASONING] = step_text,
        [ESP_TURN_IN_CONTENT] = step_text,
        [ESP_TURN_IN_CALL_OPEN] = esp_turn_step_open,
        [ESP_TURN_IN_FUNCTION] = esp_turn_step_function,
        [ESP_TURN_IN_VALUE] = esp_turn_step_value,
        [ESP_TURN_IN_JSON_CALL] = esp_turn_step_json,
        [ESP_TURN_IN_CALL_CLOSE] = esp_turn_step_close,
        [ESP_TURN_IN_BETWEEN] = esp_turn_step_between,
    };

    return steps[t->state](t);
}

static esp_status status(const struct esp_turn *t, esp_error *err)
{
    if (t->buf.failed || t->space.failed || t->value.failed || t->piece.failed)
        return esp_fail(err, ESP_ENOMEM, "the model's turn: out of memory, or a call above %u bytes",
                        ESP_LIMIT_TURN_BYTES);
    return ESP_OK;
}

static esp_status feed(struct esp_turn *t, const char *s, size_t len, esp_error *err)
{
    if (t->o.raw) {
        t->n_content += len;
        esp_turn_give(t, ESP_TURN_CONTENT, s, len);
        return ESP_OK;
    }
    if (t->at) { /* what was taken makes room */
        memmove(t->buf.data, t->buf.data + t->at, esp_turn_left(t));
        t->buf.len -= t->at;
        t->at = 0;
    }
    if (!esp_strbuf_add(&t->buf, s, len))
        return status(t, err);
    while (esp_turn_left(t) && step(t))
        ;
    return status(t, err);
}

esp_status esp_turn_feed(struct esp_turn *t, const char *s, size_t len, esp_error *err)
{
    while (len) {
        const size_t n = strnlen(s, len);

        if (n)
            ESP_TRY(feed(t, s, n, err));
        if (n == len)
            break;
        ESP_TRY(feed(t, "\xef\xbf\xbd", 3, err));
        s += n + 1;
        len -= n + 1;
    }
    return ESP_OK;
}

esp_status esp_turn_finish(struct esp_turn *t, bool ended, esp_error *err)
{
    const bool in_call = esp_turn_in_call(t);

    if (t->o.raw || (in_call && !ended))
        return status(t, err);
    t->final = true;
    while (esp_turn_left(t) && step(t))
        ;
    if (t->state == ESP_TURN_IN_VALUE)
        esp_turn_end_value(t);
    if (t->state == ESP_TURN_IN_FUNCTION) {
        esp_turn_warn(t, "the model ended its turn inside a call; the call is passed as far as it goes");
        esp_turn_end_call(t, ESP_TURN_IN_BETWEEN);
    }
    if (t->state == ESP_TURN_IN_CONTENT && t->any) /* only a call or more text takes the white space away */
        esp_turn_give(t, ESP_TURN_CONTENT, esp_strbuf_str(&t->space), t->space.len);
    esp_strbuf_clear(&t->space);
    return status(t, err);
}

size_t esp_turn_content_bytes(const struct esp_turn *t)
{
    return t->n_content;
}

size_t esp_turn_reasoning_bytes(const struct esp_turn *t)
{
    return t->n_reasoning;
}

size_t esp_turn_undecided(const struct esp_turn *t)
{
    return esp_turn_left(t);
}

bool esp_turn_in_reasoning(const struct esp_turn *t)
{
    return t->state == ESP_TURN_IN_REASONING;
}

bool esp_turn_in_call(const struct esp_turn *t)
{
    return t->state == ESP_TURN_IN_CALL_OPEN || t->state == ESP_TURN_IN_FUNCTION ||
           t->state == ESP_TURN_IN_VALUE || t->state == ESP_TURN_IN_JSON_CALL;
}

esp_status esp_turn_create(struct esp_turn **out, const struct esp_turn_opts *o, esp_error *err)
{
    struct esp_turn *t = esp_alloc(sizeof *t);

    if (!t)
        return esp_fail(err, ESP_ENOMEM, "the model's turn: out of memory");
    t->o = *o;
    t->state = o->thinking ? ESP_TURN_IN_REASONING : o->continued ? ESP_TURN_IN_CONTENT : ESP_TURN_IN_START;
    t->any = o->continued;
    esp_strbuf_init(&t->buf, ESP_LIMIT_TURN_BYTES);
    esp_strbuf_init(&t->space, ESP_LIMIT_TURN_BYTES);
    esp_strbuf_init(&t->value, ESP_LIMIT_TURN_BYTES);
    esp_strbuf_init(&t->piece, ESP_LIMIT_TURN_BYTES);
    *out = t;
    return ESP_OK;
}

void esp_turn_destroy(struct esp_turn *t)
{
    if (!t)
        return;
    esp_strbuf_free(&t->buf);
    esp_strbuf_free(&t->space);
    esp_strbuf_free(&t->value);
    esp_strbuf_free(&t->piece);
    json_decref(t->keys);
    esp_free(t);
}
