/*
 * See the header. Interim replies (100 Continue) are passed over.
 *
 * Source: RFC 9112, sections 6 and 7; the event-stream format of the HTML standard, of which only data lines
 * matter here.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/load_reply.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_HEAD = 64 << 10, MAX_LINE = 16 << 20, MAX_BODY = 64 << 20 };

void esp_reply_init(struct esp_reply *r, void (*data)(void *user, const char *s, size_t len), void *user)
{
    memset(r, 0, sizeof *r);
    esp_strbuf_init(&r->line, MAX_LINE);
    esp_strbuf_init(&r->body, MAX_BODY);
    r->data = data;
    r->user = user;
}

void esp_reply_free(struct esp_reply *r)
{
    esp_strbuf_free(&r->line);
    esp_strbuf_free(&r->body);
}

void esp_reply_reset(struct esp_reply *r)
{
    esp_strbuf_clear(&r->line);
    esp_strbuf_clear(&r->body);
    r->state = ESP_REPLY_HEAD;
    r->status = 0;
    r->events = r->keep_alive = false;
    r->left = 0;
}

/* ---- the head ---- */

/* Value of a header in the zero-terminated head, or NULL; it ends at the line's end. */
static const char *header(const char *head, const char *name)
{
    const size_t len = strlen(name);

    for (const char *at = strchr(head, '\n'); at; at = strchr(at, '\n')) {
        at++;
        if (strncasecmp(at, name, len) == 0 && at[len] == ':')
            return at + len + 1 + strspn(at + len + 1, " \t");
    }
    return NULL;
}

static bool has_word(const char *value, const char *word)
{
    const size_t n = value ? strcspn(value, "\r\n") : 0, len = strlen(word);

    for (size_t i = 0; i + len <= n; i++)
        if (strncasecmp(value + i, word, len) == 0)
            return true;
    return false;
}

static enum esp_reply_state read_head(struct esp_reply *r)
{
    const char *head = esp_strbuf_str(&r->line), *length = header(head, "Content-Length");
    char *end = NULL;

    if (strncmp(head, "HTTP/1.", 7) != 0 || strlen(head) < 12)
        return ESP_REPLY_BAD;
    r->status = (int)strtol(head + 9, &end, 10);
    if (end != head + 12 || r->status < 100)
        return ESP_REPLY_BAD;
    if (r->status < 200)
        return ESP_REPLY_HEAD;
    r->keep_alive = head[7] == '1' && !has_word(header(head, "Connection"), "close");
    r->events = has_word(header(head, "Content-Type"), "text/event-stream");
    if (r->status == 204 || r->status == 304)
        return ESP_REPLY_DONE;
    if (has_word(header(head, "Transfer-Encoding"), "chunked"))
        return ESP_REPLY_SIZE;
    if (!length) {
        r->keep_alive = false;
        return ESP_REPLY_CLOSE;
    }
    if (*length < '0' || *length > '9')
        return ESP_REPLY_BAD;
    r->left = strtoull(length, NULL, 10);
    return r->left ? ESP_REPLY_LENGTH : ESP_REPLY_DONE;
}

/* ---- the body ---- */

static void end_line(struct esp_reply *r)
{
    const char *s = esp_strbuf_str(&r->line);
    size_t len = r->line.len;

    if (len && s[len - 1] == '\r')
        len--;
    if (len >= 5 && strncmp(s, "data:", 5) == 0) {
        const size_t skip = len > 5 && s[5] == ' ' ? 6 : 5;

        r->line.data[len] = '\0';
        r->data(r->user, s + skip, len - skip);
    }
    esp_strbuf_clear(&r->line);
}

static bool body(struct esp_reply *r, const char *s, size_t len)
{
    if (!r->events)
        return esp_strbuf_add(&r->body, s, len);
    while (len) {
        const char *end = memchr(s, '\n', len);
        const size_t n = end ? (size_t)(end - s) : len;

        if (!esp_strbuf_add(&r->line, s, n))
            return false;
        if (end)
            end_line(r);
        s += n + (end != NULL);
        len -= n + (end != NULL);
    }
    return true;
}

/* Up to left bytes of a body of known length; `next` when they are all there. */
static size_t counted(struct esp_reply *r, const char *s, size_t len, enum esp_reply_state next)
{
    const size_t n = r->left < len ? (size_t)r->left : len;

    r->left -= n;
    if (!body(r, s, n))
        r->state = ESP_REPLY_BAD;
    else if (r->left == 0)
        r->state = next;
    return n;
}

/* ---- lines of the framing, kept in body's way: an event's line may be open, so they have no buffer ---- */

/* One byte of a size line. left holds the number so far, with the top bit once a digit was seen. */
static void size_byte(struct esp_reply *r, char c)
{
    const uint64_t seen = UINT64_C(1) << 63, ext = UINT64_C(1) << 62;
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;

    if (c == '\n') {
        const uint64_t n = r->left & ~(seen | ext);

        r->state = !(r->left & seen) ? ESP_REPLY_BAD : n ? ESP_REPLY_CHUNK : ESP_REPLY_TRAILER;
        r->left = n;
    } else if (digit >= 0 && !(r->left & ext)) {
        if ((r->left & ~(seen | ext)) >> 40)
            r->state = ESP_REPLY_BAD;
        r->left = ((r->left & ~seen) << 4 | (uint64_t)digit) | seen;
    } else {
        r->left |= ext; /* an extension, or the carriage return: passed over */
    }
}

/* One byte behind a chunk, or of the trailer; left counts the bytes of the trailer's line. */
static void line_byte(struct esp_reply *r, char c)
{
    if (r->state == ESP_REPLY_GAP) {
        if (c == '\n')
            r->state = ESP_REPLY_SIZE;
        else if (c != '\r')
            r->state = ESP_REPLY_BAD;
        return;
    }
    if (c == '\n' && r->left == 0)
        r->state = ESP_REPLY_DONE;
    else if (c == '\n')
        r->left = 0;
    else if (c != '\r')
        r->left++;
    if (r->left > MAX_HEAD)
        r->state = ESP_REPLY_BAD;
}

/* Bytes of the head; it ends with an empty line. */
static size_t head_bytes(struct esp_reply *r, const char *s, size_t len)
{
    size_t i = 0;

    while (i < len) {
        const size_t n = r->line.len;

        if (n > MAX_HEAD || !esp_strbuf_putc(&r->line, s[i++])) {
            r->state = ESP_REPLY_BAD;
            break;
        }
        if (s[i - 1] != '\n' || n < 2)
            continue;
        if (r->line.data[n - 1] != '\n' && !(r->line.data[n - 1] == '\r' && r->line.data[n - 2] == '\n'))
            continue;
        r->state = strlen(esp_strbuf_str(&r->line)) == r->line.len ? read_head(r) : ESP_REPLY_BAD;
        esp_strbuf_clear(&r->line);
        if (r->state != ESP_REPLY_HEAD)
            break;
    }
    return i;
}

size_t esp_reply_feed(struct esp_reply *r, const char *s, size_t len)
{
    size_t used = 0;

    while (used < len && r->state != ESP_REPLY_DONE && r->state != ESP_REPLY_BAD) {
        switch (r->state) {
        case ESP_REPLY_HEAD:
            used += head_bytes(r, s + used, len - used);
            break;
        case ESP_REPLY_LENGTH:
            used += counted(r, s + used, len - used, ESP_REPLY_DONE);
            break;
        case ESP_REPLY_CHUNK:
            used += counted(r, s + used, len - used, ESP_REPLY_GAP);
            break;
        case ESP_REPLY_SIZE:
            size_byte(r, s[used++]);
            break;
        case ESP_REPLY_CLOSE:
            if (!body(r, s + used, len - used))
                r->state = ESP_REPLY_BAD;
            used = len;
            break;
        default:
            line_byte(r, s[used++]);
        }
    }
    return used;
}

bool esp_reply_end(struct esp_reply *r)
{
    if (r->state == ESP_REPLY_CLOSE)
        r->state = ESP_REPLY_DONE;
    return r->state == ESP_REPLY_DONE;
}
