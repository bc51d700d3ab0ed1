/*
 * Turns as they were sampled. A client sends an earlier answer back as text and JSON; rendered anew its
 * tokens may differ from those the model wrote, and then nothing that is cached behind them fits. So each
 * answer is kept under the ids that it handed out, and put back token by token where the client's version
 * means the same.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_REPLAY_H
#define ESP_SERVE_REPLAY_H

#include "text/template.h"

#include "serve/job.h"

/* Member of a chat message that carries a key of the dialect's (a signature); templates do not read it. */
#define ESP_REPLAY_KEY "espalier_replay"

struct esp_replay;

/* Turns older than ttl seconds are forgotten. */
esp_status esp_replay_open(struct esp_replay **out, uint32_t max_entries, uint64_t max_bytes, double ttl,
                           esp_error *err);
/* Keep them in a file in dir as well, and read those that are there for the same tokenizer (a hash of it).
 * ESP_EIO: the turns stay in memory alone. */
esp_status esp_replay_persist(struct esp_replay *r, const char *dir, uint64_t tokenizer, esp_error *err);
void esp_replay_close(struct esp_replay *r);
/* Keep a finished answer under the ids of its calls, the key (or NULL), and its text, alone and with the
 * job's history. r may be NULL. */
void esp_replay_keep(struct esp_replay *r, const struct esp_choice *c, const char *key);

/*
 * Any thread, as keeping and counting are. Encode a rendered chat, with the turns of messages put back where
 * they are known. Exact: the template's text in front of a turn must be what it was when the turn was
 * sampled. stable: put back also what stood in front of it, such as an empty think block that the template
 * leaves out later. history becomes a hash of the messages' texts and calls, by which an answer to them is
 * kept: the same text is thought of differently in different talks.
 */
struct esp_replay_input {
    const json_t *messages;
    const struct esp_strbuf *text;
    const struct esp_text_spans *spans;
    bool stable;
};
bool esp_replay_encode(struct esp_replay *r, const esp_model *m, const struct esp_replay_input *in,
                       struct esp_ids *out, uint64_t *history, esp_error *err);

struct esp_replay_counts {
    uint64_t entries, bytes, hits;
};
void esp_replay_count(struct esp_replay *r, struct esp_replay_counts *out);

#endif
