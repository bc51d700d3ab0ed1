/*
 * Three stages in a row: bytes to characters, characters to channels, and the stop matcher of text/stop.h on
 * each channel: the closing tag is the stop string of the thinking.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/text_stream.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/stop.h"

static const char open_tag[] = "<think>", close_tag[] = "</think>";
static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

enum state {
    AT_START, /* white space or the beginning of <think> is in start */
    IN_THINKING,
    AFTER_THINKING, /* white space is dropped */
    IN_ANSWER,
    STOPPED
};

struct esp_text_stream {
    enum state state;
    struct esp_stop *close, *stops;
    const char *const *stop_texts;
    struct esp_strbuf out;
    char start[64];
    size_t n_start;
    char held[4]; /* the beginning of a character */
    size_t n_held;
    esp_text_fn fn;
    void *user;
};

esp_status esp_text_stream_create(struct esp_text_stream **out, enum esp_text_mode mode,
                                  const char *const *stops, size_t n_stops, esp_text_fn fn, void *user,
                                  esp_error *err)
{
    static const struct esp_stop_string closing = {close_tag, sizeof close_tag - 1};
    struct esp_stop_string list[ESP_STOP_MAX_STRINGS];
    struct esp_text_stream *t;
    esp_status s;

    if (n_stops > ESP_STOP_MAX_STRINGS)
        return esp_fail(err, ESP_EINVAL, "%zu stop strings; at most %d are accepted", n_stops,
                        ESP_STOP_MAX_STRINGS);
    t = esp_alloc(sizeof *t);
    if (!t)
        return esp_fail(err, ESP_ENOMEM, "no memory for a text stream");
    for (size_t i = 0; i < n_stops; i++)
        list[i] = (struct esp_stop_string){stops[i], strlen(stops[i])};
    t->state = mode == ESP_TEXT_RAW ? IN_ANSWER : mode == ESP_TEXT_THINKING ? IN_THINKING : AT_START;
    t->stop_texts = stops;
    t->fn = fn;
    t->user = user;
    esp_strbuf_init(&t->out, 1 << 20);
    s = esp_stop_create(&t->close, &closing, 1, err);
    if (s == ESP_OK)
        s = esp_stop_create(&t->stops, list, n_stops, err);
    if (s != ESP_OK) {
        esp_text_stream_destroy(t);
        return s;
    }
    *out = t;
    return ESP_OK;
}

void esp_text_stream_destroy(struct esp_text_stream *t)
{
    if (!t)
        return;
    esp_stop_destroy(t->close);
    esp_stop_destroy(t->stops);
    esp_strbuf_free(&t->out);
    esp_free(t);
}

static void emit(struct esp_text_stream *t, enum esp_channel channel)
{
    if (t->out.len)
        t->fn(t->user, channel, t->out.data, t->out.len);
    esp_strbuf_clear(&t->out);
}

static esp_status answer(struct esp_text_stream *t, const char *s, size_t len, esp_error *err)
{
    ESP_TRY(esp_stop_feed(t->stops, s, len, &t->out, err));
    emit(t, ESP_CHANNEL_ANSWER);
    if (esp_stop_matched(t->stops) >= 0)
        t->state = STOPPED;
    return ESP_OK;
}

static bool is_space(const char *s, size_t len)
{
    return len == 1 && strchr(" \t\r\n", s[0]);
}

/* The text may open with white space and <think>; anything else makes it an answer. */
static esp_status start(struct esp_text_stream *t, const char *c, size_t len, esp_error *err)
{
    size_t at = 0;
    esp_status s;

    memcpy(t->start + t->n_start, c, len);
    t->n_start += len;
    while (at < t->n_start && strchr(" \t\r\n", t->start[at]))
        at++;
    if (t->n_start + 4 < sizeof t->start && t->n_start - at < sizeof open_tag - 1 &&
        strncmp(t->start + at, open_tag, t->n_start - at) == 0)
        return ESP_OK;
    if (t->n_start - at == sizeof open_tag - 1 && memcmp(t->start + at, open_tag, sizeof open_tag - 1) == 0) {
        t->n_start = 0;
        t->state = IN_THINKING;
        return ESP_OK;
    }
    t->state = IN_ANSWER;
    s = answer(t, t->start, t->n_start, err);
    t->n_start = 0;
    return s;
}

/* One whole character. */
static esp_status take(struct esp_text_stream *t, const char *c, size_t len, esp_error *err)
{
    switch (t->state) {
    case AT_START:
        return start(t, c, len, err);
    case IN_THINKING:
        ESP_TRY(esp_stop_feed(t->close, c, len, &t->out, err));
        emit(t, ESP_CHANNEL_THINKING);
        if (esp_stop_matched(t->close) >= 0)
            t->state = AFTER_THINKING;
        return ESP_OK;
    case AFTER_THINKING:
        if (is_space(c, len))
            return ESP_OK;
        t->state = IN_ANSWER;
        return answer(t, c, len, err);
    case IN_ANSWER:
        return answer(t, c, len, err);
    case STOPPED:
        break;
    }
    return ESP_OK;
}

/* Use up s[0..len) but for an incomplete character at its end; *used is how much. */
static esp_status characters(struct esp_text_stream *t, const char *s, size_t len, size_t *used,
                             esp_error *err)
{
    const size_t whole = len - esp_utf8_incomplete_tail(s, len);
    size_t i = 0;

    while (i < whole) {
        uint32_t cp;
        const size_t n = esp_utf8_decode(s + i, whole - i, &cp);

        ESP_TRY(n ? take(t, s + i, n, err) : take(t, replacement, 3, err));
        i += n ? n : esp_utf8_bad_span(s + i, whole - i);
    }
    *used = whole;
    return ESP_OK;
}

esp_status esp_text_stream_feed(struct esp_text_stream *t, const char *bytes, size_t len, bool *stopped,
                                esp_error *err)
{
    size_t used;

    while (len) {
        char part[256];
        const size_t room = sizeof part - t->n_held, n = len < room ? len : room;

        memcpy(part, t->held, t->n_held);
        memcpy(part + t->n_held, bytes, n);
        ESP_TRY(characters(t, part, t->n_held + n, &used, err));
        t->n_held = t->n_held + n - used;
        memcpy(t->held, part + used, t->n_held);
        bytes += n;
        len -= n;
    }
    *stopped = t->state == STOPPED;
    return ESP_OK;
}

esp_status esp_text_stream_end(struct esp_text_stream *t, esp_error *err)
{
    if (t->n_held)
        ESP_TRY(take(t, replacement, 3, err));
    t->n_held = 0;
    if (t->state == AT_START && t->n_start) {
        t->state = IN_ANSWER;
        ESP_TRY(answer(t, t->start, t->n_start, err));
    }
    if (t->state == IN_THINKING) {
        ESP_TRY(esp_stop_flush(t->close, &t->out, err));
        emit(t, ESP_CHANNEL_THINKING);
    } else if (t->state == IN_ANSWER) {
        ESP_TRY(esp_stop_flush(t->stops, &t->out, err));
        emit(t, ESP_CHANNEL_ANSWER);
        if (esp_stop_matched(t->stops) >= 0)
            t->state = STOPPED;
    }
    return ESP_OK;
}

const char *esp_text_stream_stop(const struct esp_text_stream *t)
{
    const int i = esp_stop_matched(t->stops);

    return i >= 0 ? t->stop_texts[i] : NULL;
}
