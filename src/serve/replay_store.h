/*
 * Kept turns in a file, over restarts. The file is a cache: what cannot be read is forgotten, a damaged one
 * is put aside, and a crash at any moment leaves a file that opens.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_REPLAY_STORE_H
#define ESP_SERVE_REPLAY_STORE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct esp_replay_store;

struct esp_replay_row {
    const char *opening;
    const json_t *content, *reasoning; /* strings */
    const json_t *calls, *keys;        /* arrays */
    const uint32_t *ids;               /* [n] */
    size_t n;
    double created; /* seconds since 1970 */
};

/*
 * dir/replay.sqlite; made when missing. Only turns of the same tokenizer (a hash) are seen, and those older
 * than ttl seconds go. ESP_EIO, ESP_ENOMEM.
 */
esp_status esp_replay_store_open(struct esp_replay_store **out, const char *dir, uint64_t tokenizer,
                                 double ttl, esp_error *err);
void esp_replay_store_close(struct esp_replay_store *s); /* NULL is a no-op */
/* Every turn, oldest first; *row is valid during the call. False from fn: the row is not wanted and goes. */
typedef bool (*esp_replay_row_fn)(void *user, int64_t number, const struct esp_replay_row *row);
void esp_replay_store_each(struct esp_replay_store *s, esp_replay_row_fn fn, void *user);
/* Its number; 0: it could not be written. */
int64_t esp_replay_store_put(struct esp_replay_store *s, const struct esp_replay_row *row);
void esp_replay_store_delete(struct esp_replay_store *s, int64_t number);

#endif
