/*
 * Cached texts by name, for whoever administers an engine: listed, kept, saved to files and read back,
 * forgotten. All calls are the engine's own thread's (esp_service_call()). A text is its tokens in a
 * namespace, and its id a hash of both.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_TEXTS_H
#define ESP_ENGINE_TEXTS_H

#include "espalier/espalier.h"

struct esp_text_info {
    uint64_t id, ns;
    const esp_token *tokens; /* [n] */
    uint32_t n;
    uint64_t bytes;              /* keys, values and states, those shared with other texts included */
    const uint32_t *checkpoints; /* [n_checkpoint] positions, ascending */
    uint32_t n_checkpoint;
    uint64_t hits;
    double idle, pinned; /* seconds since the last use, and for which it stays at least */
    bool in_memory, in_file;
};
/* Every cached text: those in memory first, then those in files alone. *t is valid during the call. */
typedef void (*esp_text_fn)(void *user, const struct esp_text_info *t);
void esp_texts_each(esp_engine *g, esp_text_fn fn, void *user);

/* Namespace of sequences with such options. */
esp_status esp_texts_namespace(esp_engine *g, const esp_seq_opts *o, uint64_t *ns, esp_error *err);
/* Keep the deepest checkpoint of this text for so many seconds. Its position, 0: there is none. */
uint32_t esp_texts_pin(esp_engine *g, uint64_t ns, const esp_token *t, uint32_t n, double seconds);
/* Forget the text of this id, in memory and its file. False: unknown. */
bool esp_texts_drop(esp_engine *g, uint64_t id);
/* The same for the deepest cached text within these tokens. *n_checkpoint: those that went; 0: there was
 * none. */
void esp_texts_drop_tokens(esp_engine *g, uint64_t ns, const esp_token *t, uint32_t n,
                           uint32_t *n_checkpoint);

struct esp_text_file {
    uint32_t n; /* tokens that the file's last checkpoint covers */
    uint32_t n_checkpoint;
    uint64_t bytes;
    esp_token *tokens; /* [n] new memory (esp_free); only after loading */
};
/* Write a text up to its deepest checkpoint within n tokens, all its checkpoints with it. ESP_ENOTFOUND: none
 * is cached; errors of esp_snapshot_write(). */
esp_status esp_texts_save(esp_engine *g, uint64_t ns, const esp_token *t, uint32_t n, const char *path,
                          struct esp_text_file *out, esp_error *err);
/* Read such a file into the cache. Every byte is checked first. ESP_EINVAL: of another model or setting,
 * saying both; ESP_EFORMAT: damaged; ESP_ENOFIT; ESP_ESTATE without a cache. */
esp_status esp_texts_load(esp_engine *g, uint64_t ns, const char *path, struct esp_text_file *out,
                          esp_error *err);

/* Bytes of the cache by kind, for statistics. */
struct esp_text_bytes {
    uint64_t page, slot; /* of one page, of one state */
};
void esp_texts_units(const esp_engine *g, struct esp_text_bytes *out);

#endif
