/*
 * Growing byte string with a stated maximum. Always zero-terminated. Once an append fails the buffer
 * remembers it, so that a sequence of appends needs one check at the end.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_STRBUF_H
#define ESP_BASE_STRBUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct esp_strbuf {
    char *data; /* NULL until the first append; esp_strbuf_str() never is */
    size_t len;
    size_t cap;
    size_t max;  /* longest allowed len */
    bool failed; /* an append did not fit or had no memory; contents are what came before */
};

void esp_strbuf_init(struct esp_strbuf *b, size_t max);
void esp_strbuf_free(struct esp_strbuf *b);
void esp_strbuf_clear(struct esp_strbuf *b); /* len 0, failed off, memory kept */
bool esp_strbuf_add(struct esp_strbuf *b, const char *s, size_t len);
bool esp_strbuf_puts(struct esp_strbuf *b, const char *s);
bool esp_strbuf_putc(struct esp_strbuf *b, char c);
bool esp_strbuf_printf(struct esp_strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *esp_strbuf_str(const struct esp_strbuf *b);
/* Give the memory to the caller (esp_free) and leave b empty; NULL when nothing could be allocated. */
char *esp_strbuf_take(struct esp_strbuf *b);

#endif
