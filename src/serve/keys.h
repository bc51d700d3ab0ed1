/*
 * API keys: who may call, and who may change the server.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_KEYS_H
#define ESP_SERVE_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct esp_keys;

/* single (or NULL) has the role admin; file (or NULL) has lines "key [name] [api|admin]", # comments. Errors:
 * ESP_ENOTFOUND, ESP_EIO; ESP_EFORMAT naming the line. */
esp_status esp_keys_open(struct esp_keys **out, const char *single, const char *file, esp_error *err);
void esp_keys_close(struct esp_keys *k);
bool esp_keys_any(const struct esp_keys *k);
enum { ESP_KEY_MAX = 256 };
struct esp_key_holder {
    char name[64];
    bool admin;
    uint64_t id; /* the same for the same key, never 0 */
};
/* Time does not depend on how much of the key is right. False: unknown. */
bool esp_keys_check(const struct esp_keys *k, const char *given, struct esp_key_holder *out);
/* The key with this id; false: none has it. */
bool esp_keys_text(const struct esp_keys *k, uint64_t id, char out[ESP_KEY_MAX]);

#endif
