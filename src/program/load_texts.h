/*
 * What requests answer when they run alone, to compare with what they answer under load.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_LOAD_TEXTS_H
#define ESP_PROGRAM_LOAD_TEXTS_H

#include "program/load.h"

struct esp_load_texts {
    char **text; /* [n]; of request i % n */
    size_t n;
};

/* Send requests 0 to n - 1 of o one after the other and keep their answers. ESP_EIO when one has none. */
esp_status esp_load_texts_learn(struct esp_load_texts *out, const struct esp_load_opts *o, size_t n,
                                esp_error *err);
void esp_load_texts_free(struct esp_load_texts *t);
/* Whether the text is what request i answered alone. */
bool esp_load_texts_same(const struct esp_load_texts *t, uint64_t i, const char *text, size_t len);

#endif
