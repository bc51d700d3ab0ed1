/*
 * Byte string: amortised doubling below a hard maximum.
 *
 * SPDX-License-Identifier: MIT
 */
#include "base/strbuf.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

void esp_strbuf_init(struct esp_strbuf *b, size_t max)
{
    memset(b, 0, sizeof *b);
    b->max = max < SIZE_MAX ? max : SIZE_MAX - 1; /* room for the final zero in every sum below */
}

void esp_strbuf_free(struct esp_strbuf *b)
{
    esp_free(b->data);
    esp_strbuf_init(b, b->max);
}

void esp_strbuf_clear(struct esp_strbuf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = 0;
}

static bool reserve(struct esp_strbuf *b, size_t extra)
{
    size_t need, cap;
    char *p;

    if (b->failed || extra > b->max - b->len) {
        b->failed = true;
        return false;
    }
    need = b->len + extra + 1;
    if (need <= b->cap)
        return true;
    cap = b->cap ? b->cap * 2 : 64;
    if (cap > b->max + 1)
        cap = b->max + 1;
    if (cap < need)
        cap = need;
    p = esp_realloc(b->data, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->data = p;
    b->cap = cap;
    return true;
}

bool esp_strbuf_add(struct esp_strbuf *b, const char *s, size_t len)
{
    if (!reserve(b, len))
        return false;
    if (len)
        memcpy(b->data + b->len, s, len);
    b->len += len;
    b->data[b->len] = 0;
    return true;
}

bool esp_strbuf_puts(struct esp_strbuf *b, const char *s)
{
    return esp_strbuf_add(b, s, strlen(s));
}

bool esp_strbuf_putc(struct esp_strbuf *b, char c)
{
    return esp_strbuf_add(b, &c, 1);
}

bool esp_strbuf_printf(struct esp_strbuf *b, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !reserve(b, (size_t)n)) {
        b->failed = true;
        return false;
    }
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return true;
}

const char *esp_strbuf_str(const struct esp_strbuf *b)
{
    return b->data ? b->data : "";
}

char *esp_strbuf_take(struct esp_strbuf *b)
{
    char *p;

    if (!b->data)
        return esp_strndup("", 0);
    p = b->data;
    esp_strbuf_init(b, b->max);
    return p;
}
