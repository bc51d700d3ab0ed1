/*
 * A conversation with a model: messages in, answers out. One sequence lives as long as the conversation;
 * before each answer it is cut back to what it shares with the newly rendered prompt and only the rest runs
 * through the model.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_TALK_H
#define ESP_PROGRAM_TALK_H

#include <jansson.h>
#include <stdio.h>

#include "base/strbuf.h"

#include "program/session.h"
#include "program/structured.h"
#include "program/text_stream.h"

struct esp_talk {
    struct esp_session *session; /* borrowed; its engine is open */
    esp_seq *seq;
    struct esp_structure structure; /* of every answer */
    esp_sampling sampling;
    json_t *messages;      /* array in the OpenAI form */
    json_t *template_args; /* object */
    char *tools;           /* JSON text or NULL */
    size_t max_tokens;     /* SIZE_MAX: what the context has room for */
    const char *const *stops;
    size_t n_stops;
    FILE *transcript; /* or NULL */
    bool goes_on;     /* turns may follow: keep what they can go on from */
};

enum esp_answer_end { ESP_ANSWER_END, ESP_ANSWER_LENGTH, ESP_ANSWER_STOP, ESP_ANSWER_INTERRUPTED };

struct esp_answer {
    struct esp_strbuf text, thinking;
    enum esp_answer_end end;
    const char *stop; /* the stop string, or NULL */
    size_t prompt_tokens, generated_tokens;
    size_t cached_tokens; /* of the prompt, those that were not run again */
    double first_s;       /* until the first token */
    double total_s;
};

/* Sampling, tools, template arguments and transcript come from the flags. */
esp_status esp_talk_open(struct esp_talk *t, struct esp_session *s, esp_error *err);
void esp_talk_close(struct esp_talk *t);

/* Append a message; invalid UTF-8 is replaced by U+FFFD. */
esp_status esp_talk_say(struct esp_talk *t, const char *role, const char *text, size_t len, esp_error *err);
/*
 * Let the model answer; pieces go to fn as they come. On success, and when the user interrupts, the answer is
 * appended to the messages. On failure they are as before.
 */
esp_status esp_talk_answer(struct esp_talk *t, esp_text_fn fn, void *user, struct esp_answer *out,
                           esp_error *err);
void esp_answer_free(struct esp_answer *a);
/* "end", "length", "stop", "interrupted" */
const char *esp_answer_end_name(enum esp_answer_end e);

/* Forget all messages but a system message. */
void esp_talk_clear(struct esp_talk *t);
/* Set, replace or, with NULL, remove the system message. */
esp_status esp_talk_system(struct esp_talk *t, const char *text, esp_error *err);
/* Use t->sampling, which the caller has changed, from now on. */
esp_status esp_talk_resample(struct esp_talk *t, esp_error *err);
/* Use the adapters that are on in the session from now on; the next answer runs the whole conversation. */
esp_status esp_talk_readapt(struct esp_talk *t, esp_error *err);
/* Write the messages to a new file readable by its owner alone; read them back. */
esp_status esp_talk_save(const struct esp_talk *t, const char *path, esp_error *err);
esp_status esp_talk_load(struct esp_talk *t, const char *path, esp_error *err);

/* A JSON string of s[0..len) with invalid UTF-8 and zero bytes replaced by U+FFFD; NULL without memory. */
json_t *esp_json_text(const char *s, size_t len);

#endif
