/*
 * From token bytes to what may be shown: whole characters only, the thinking apart from the answer, nothing
 * that could still become a stop string. What comes out does not depend on how the bytes are cut into pieces.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_TEXT_STREAM_H
#define ESP_PROGRAM_TEXT_STREAM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/strbuf.h"

enum esp_channel { ESP_CHANNEL_ANSWER, ESP_CHANNEL_THINKING };

/* Called with whole characters; not zero-terminated. */
typedef void (*esp_text_fn)(void *user, enum esp_channel channel, const char *s, size_t len);

enum esp_text_mode {
    ESP_TEXT_RAW,     /* no thinking tags */
    ESP_TEXT_ANSWER,  /* the prompt leaves the model in its answer, which may open with <think> */
    ESP_TEXT_THINKING /* the prompt has opened <think> */
};

struct esp_text_stream;

/* Stop strings act on the answer alone. They are copied. ESP_EINVAL, ESP_ENOMEM. */
esp_status esp_text_stream_create(struct esp_text_stream **out, enum esp_text_mode mode,
                                  const char *const *stops, size_t n_stops, esp_text_fn fn, void *user,
                                  esp_error *err);
void esp_text_stream_destroy(struct esp_text_stream *t); /* NULL is fine */
/* Take bytes; *stopped tells that a stop string ended the text. ESP_ENOMEM. */
esp_status esp_text_stream_feed(struct esp_text_stream *t, const char *bytes, size_t len, bool *stopped,
                                esp_error *err);
/* The generation is over: release what was held; a character that stayed incomplete becomes U+FFFD. */
esp_status esp_text_stream_end(struct esp_text_stream *t, esp_error *err);
/* The stop string that matched, NULL while none has. */
const char *esp_text_stream_stop(const struct esp_text_stream *t);

#endif
