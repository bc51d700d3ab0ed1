/*
 * HTTP/1.1 requests as bytes: the head of a request, and a chunked body. Strict where leniency lets two
 * parsers disagree (lengths, encodings, white space before colons, folded lines), since a proxy in front
 * reads the same bytes. Knows no sockets, so a fuzzer can drive it.
 *
 * Source: RFC 9110, RFC 9112.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_HTTP_PARSE_H
#define ESP_SERVE_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"

enum { ESP_HTTP_MAX_HEADERS = 100 }; /* http_parse.c names it in words */

struct esp_http_header {
    const char *name; /* as sent */
    const char *value;
};

struct esp_http_head { /* texts lie in the buffer that was parsed */
    const char *method;
    const char *path;  /* percent-decoded, valid UTF-8 without control characters, begins with '/' */
    const char *query; /* as sent, without '?'; "" when there is none */
    bool http10;
    bool keep_alive;
    bool chunked;
    bool expect_continue;
    bool has_length;
    uint64_t length;
    struct esp_http_header headers[ESP_HTTP_MAX_HEADERS];
    size_t n_header;
};

/* Length of the head at data[0..len) with its empty line, 0 when it is not whole yet. Empty lines in front
 * count as part of it. */
size_t esp_http_head_length(const char *data, size_t len);

/*
 * Parse data[0..len), a whole head as esp_http_head_length() measured it; data is changed and must have room
 * for a zero behind it. 0, or the HTTP status of the refusal (400, 414, 431, 501, 505) with *why.
 */
int esp_http_parse_head(char *data, size_t len, size_t max_uri, struct esp_http_head *out, const char **why);

/* Value of the header, matched without regard to case, or NULL. */
const char *esp_http_find(const struct esp_http_head *h, const char *name);
/* The same of the last header of the name, which is the one that the nearest proxy has added. */
const char *esp_http_find_last(const struct esp_http_head *h, const char *name);
/* Value of a query parameter, percent-decoded into out (always terminated); false when it is absent or longer
 * than cap. */
bool esp_http_query(const char *query, const char *name, char *out, size_t cap);

/* A chunked body. Zero it to begin. */
struct esp_http_chunks {
    int state;
    uint64_t left;
    size_t line; /* bytes of the present size line or of the trailer */
    bool digits;
};
enum esp_http_more { ESP_HTTP_MORE, ESP_HTTP_DONE, ESP_HTTP_BAD, ESP_HTTP_TOO_LARGE };
/* Take data[0..len): *used of it, content appended to body, whose maximum is the limit. */
enum esp_http_more esp_http_chunks_feed(struct esp_http_chunks *c, const char *data, size_t len, size_t *used,
                                        struct esp_strbuf *body);

/* The phrase behind a status; "Status" for those that the server does not use. */
const char *esp_http_reason(int status);

#endif
