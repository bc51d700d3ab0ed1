/*
 * Answers that clients may come back to: /v1/responses by id, with the history behind them. Bounded in bytes
 * and age; the least recently used go first.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_STORE_H
#define ESP_SERVE_STORE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct esp_store;

/* dir NULL: in memory; else in dir/responses.sqlite, over restarts. ESP_EIO. */
esp_status esp_store_open(struct esp_store **out, const char *dir, uint64_t max_bytes, double ttl,
                          esp_error *err);
void esp_store_close(struct esp_store *s);
/* response: the object; history: chat messages up to and with its answer; input: its input items. ESP_ENOFIT:
 * larger than the store; ESP_EIO. */
esp_status esp_store_put(struct esp_store *s, const char *id, const json_t *response, const json_t *history,
                         const json_t *input, esp_error *err);
enum esp_store_part { ESP_STORE_RESPONSE, ESP_STORE_HISTORY, ESP_STORE_INPUT };
/* A new reference, or NULL: unknown or expired. */
json_t *esp_store_get(struct esp_store *s, const char *id, enum esp_store_part part);
/* False: unknown. */
bool esp_store_delete(struct esp_store *s, const char *id);
void esp_store_count(struct esp_store *s, uint64_t *entries, uint64_t *bytes);

#endif
