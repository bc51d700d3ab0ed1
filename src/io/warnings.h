/*
 * What a reader noticed but could live with. Readers collect; the caller decides whether and where to print.
 * A warning never makes a load fail: when there is no memory or the list is full, it is counted instead of
 * kept.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_IO_WARNINGS_H
#define ESP_IO_WARNINGS_H

#include <stdint.h>

enum { ESP_WARNINGS_MAX = 64 };

struct esp_warnings {
    uint32_t n;         /* kept */
    uint32_t n_dropped; /* more than those */
    char *
        text[ESP_WARNINGS_MAX]; /* one line of UTF-8 each; control characters are replaced as in esp_fail() */
};

/* w may be NULL: then nobody wants to know. */
void esp_warn(struct esp_warnings *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void esp_warnings_free(struct esp_warnings *w); /* empties the list; a zeroed one is fine */

#endif
