/*
 * See the header.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/frame.h"

#include <string.h>

enum { MAX_HEAD = 1 << 16, MAX_FRAME = 1 << 30 };

void esp_frame_init(struct esp_frame *f)
{
    esp_strbuf_init(&f->head, MAX_HEAD);
    esp_strbuf_init(&f->out, MAX_FRAME);
}

void esp_frame_free(struct esp_frame *f)
{
    esp_strbuf_free(&f->head);
    esp_strbuf_free(&f->out);
}

struct esp_strbuf *esp_frame_begin(struct esp_frame *f)
{
    esp_strbuf_clear(&f->out);
    esp_strbuf_add(&f->out, f->head.data, f->head.len);
    return &f->out;
}

void esp_frame_send(struct esp_frame *f, struct esp_call *c)
{
    esp_strbuf_puts(&f->out, "\n\n");
    if (!f->head.failed)
        esp_sse_write(c, &f->out);
}

/* One character that cannot stand for itself. */
static void escape(struct esp_strbuf *b, unsigned char c)
{
    static const char hex[] = "0123456789ABCDEF";
    const char *const known = c == '"'    ? "\\\""
                              : c == '\\' ? "\\\\"
                              : c == '\n' ? "\\n"
                              : c == '\t' ? "\\t"
                              : c == '\r' ? "\\r"
                              : c == '\b' ? "\\b"
                              : c == '\f' ? "\\f"
                                          : NULL;
    const char any[] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15], '\0'};

    esp_strbuf_puts(b, known ? known : any);
}

void esp_frame_text(struct esp_strbuf *b, const char *s, size_t len)
{
    size_t start = 0;

    for (size_t i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)s[i];

        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        esp_strbuf_add(b, s + start, i - start);
        escape(b, c);
        start = i + 1;
    }
    esp_strbuf_add(b, s + start, len - start);
}

void esp_frame_number(struct esp_strbuf *b, uint64_t n)
{
    char digits[20];
    size_t at = sizeof digits;

    do {
        digits[--at] = (char)('0' + n % 10);
        n /= 10;
    } while (n);
    esp_strbuf_add(b, digits + at, sizeof digits - at);
}

void esp_frame_chunk_head(struct esp_frame *f, json_t *object)
{
    json_object_del(object, "choices");
    json_object_del(object, "usage");
    esp_strbuf_puts(&f->head, "data: ");
    if (object && esp_json_add(&f->head, object)) {
        f->head.len--; /* the closing brace */
        esp_strbuf_puts(&f->head, ",\"choices\":[{\"index\":");
    } else {
        f->head.failed = true;
    }
    json_decref(object);
}
