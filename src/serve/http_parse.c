/*
 * See the header. The head is cut in place: names and values become zero-terminated texts in the buffer.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/http_parse.h"

#include <string.h>
#include <strings.h>

#include "base/utf8.h"

enum { MAX_CHUNK_LINE = 4096 /* extensions of a size line, or all trailers: nobody needs them */ };

size_t esp_http_head_length(const char *data, size_t len)
{
    size_t at = 0;

    while (at < len && (data[at] == '\r' || data[at] == '\n'))
        at++; /* RFC 9112 2.2: empty lines before a request are skipped */
    while (at < len) {
        const char *lf = memchr(data + at, '\n', len - at);

        if (!lf)
            return 0;
        at = (size_t)(lf - data) + 1;
        if (at < len && data[at] == '\n')
            return at + 1;
        if (at + 1 < len && data[at] == '\r' && data[at + 1] == '\n')
            return at + 2;
    }
    return 0;
}

static bool is_token_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_token(const char *s)
{
    if (!*s)
        return false;
    for (; *s; s++)
        if (!is_token_char(*s))
            return false;
    return true;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* In place; false for a bad escape or a control character. */
static bool percent_decode(char *s, bool plus_is_space)
{
    char *out = s;

    for (; *s; s++) {
        char c = *s;

        if (c == '%') {
            const int high = hex_value(s[1]), low = high < 0 ? -1 : hex_value(s[2]);

            if (low < 0)
                return false;
            c = (char)(high * 16 + low);
            s += 2;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        }
        if ((unsigned char)c < 0x20 || c == 0x7f)
            return false;
        *out++ = c;
    }
    *out = '\0';
    return true;
}

/* Cut the next line off *at, without its end; NULL when it holds a lone CR or a zero. */
static char *next_line(char **at, const char *end)
{
    char *line = *at, *lf = memchr(line, '\n', (size_t)(end - line));
    char *stop = lf ? lf : line;

    *at = lf ? lf + 1 : line;
    if (stop > line && stop[-1] == '\r')
        stop--;
    *stop = '\0';
    return strlen(line) == (size_t)(stop - line) && !strchr(line, '\r') ? line : NULL;
}

static int refuse(int status, const char *text, const char **why)
{
    *why = text;
    return status;
}

static int parse_target(char *target, size_t max_uri, struct esp_http_head *out, const char **why)
{
    char *query;

    if (strlen(target) > max_uri)
        return refuse(414, "the request target is too long", why);
    if (strncasecmp(target, "http://", 7) == 0) { /* absolute form, as proxies send it */
        char *slash = strchr(target + 7, '/');

        if (!slash)
            return refuse(400, "the request target has no path", why);
        target = slash;
    }
    if (strcmp(target, "*") == 0)
        target[0] = '/'; /* OPTIONS *: answered as for the root */
    if (target[0] != '/')
        return refuse(400, "the request target must begin with /", why);
    query = strchr(target, '?');
    if (query)
        *query++ = '\0';
    out->query = query ? query : "";
    if (!percent_decode(target, false) || !esp_utf8_valid(target, strlen(target), NULL))
        return refuse(400, "the request target is not valid", why);
    out->path = target;
    return 0;
}

static int parse_request_line(char *line, size_t max_uri, struct esp_http_head *out, const char **why)
{
    char *target = strchr(line, ' '), *version = target ? strchr(target + 1, ' ') : NULL;

    if (!version)
        return refuse(400, "the request line is not METHOD TARGET HTTP/1.1", why);
    *target++ = '\0';
    *version++ = '\0';
    if (!is_token(line) || strlen(line) > 16)
        return refuse(400, "the method is not a word", why);
    out->method = line;
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
        return strncmp(version, "HTTP/", 5) == 0 ? refuse(505, "only HTTP/1.1 and 1.0 are spoken here", why)
                                                 : refuse(400, "the protocol is not HTTP", why);
    out->http10 = version[7] == '0';
    return parse_target(target, max_uri, out, why);
}

static bool parse_length(const char *s, uint64_t *out)
{
    uint64_t n = 0;

    if (!*s)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || n > (UINT64_MAX - 9) / 10)
            return false;
        n = n * 10 + (uint64_t)(*s - '0');
    }
    *out = n;
    return true;
}

/* Whether the comma list has the word. */
static bool lists(const char *value, const char *word)
{
    const size_t len = strlen(word);

    while (*value) {
        const char *end;

        value += strspn(value, " \t,");
        end = value + strcspn(value, ", \t");
        if ((size_t)(end - value) == len && strncasecmp(value, word, len) == 0)
            return true;
        value = end;
    }
    return false;
}

const char *esp_http_find(const struct esp_http_head *h, const char *name)
{
    for (size_t i = 0; i < h->n_header; i++)
        if (strcasecmp(h->headers[i].name, name) == 0)
            return h->headers[i].value;
    return NULL;
}

const char *esp_http_find_last(const struct esp_http_head *h, const char *name)
{
    for (size_t i = h->n_header; i-- > 0;)
        if (strcasecmp(h->headers[i].name, name) == 0)
            return h->headers[i].value;
    return NULL;
}

/* One header that frames the message; 0 or a refusal. */
static int frame_by(struct esp_http_head *h, const char *name, const char *value, const char **why)
{
    if (strcasecmp(name, "Content-Length") == 0) {
        uint64_t n;

        if (!parse_length(value, &n) || (h->has_length && n != h->length))
            return refuse(400, "Content-Length must be one number", why);
        h->length = n;
        h->has_length = true;
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        if (h->chunked || strcasecmp(value, "chunked") != 0)
            return refuse(501, "Transfer-Encoding: only chunked is understood", why);
        h->chunked = true;
    } else if (strcasecmp(name, "Connection") == 0) {
        h->keep_alive = !lists(value, "close") && (h->keep_alive || lists(value, "keep-alive"));
    }
    return 0;
}

static int framing(struct esp_http_head *h, const char **why)
{
    const char *expect = esp_http_find(h, "Expect");
    size_t n_host = 0;

    h->keep_alive = !h->http10;
    for (size_t i = 0; i < h->n_header; i++) {
        const int status = frame_by(h, h->headers[i].name, h->headers[i].value, why);

        if (status)
            return status;
        n_host += strcasecmp(h->headers[i].name, "Host") == 0;
    }
    if (h->chunked && (h->has_length || h->http10))
        return refuse(400, "Transfer-Encoding beside Content-Length, or with HTTP/1.0", why);
    if (n_host > 1 || (n_host == 0 && !h->http10))
        return refuse(400, "exactly one Host header is needed", why);
    h->expect_continue =
        expect && strcasecmp(expect, "100-continue") == 0 && !h->http10 && (h->chunked || h->length);
    return 0;
}

static int parse_header(char *line, struct esp_http_head *out, const char **why)
{
    char *colon = strchr(line, ':'), *end;

    if (line[0] == ' ' || line[0] == '\t')
        return refuse(400, "folded header lines are not accepted", why);
    if (!colon)
        return refuse(400, "a header line has no colon", why);
    *colon++ = '\0';
    if (!is_token(line))
        return refuse(400, "a header name is not a word", why);
    if (out->n_header == ESP_HTTP_MAX_HEADERS)
        return refuse(431, "more than 100 header lines", why);
    colon += strspn(colon, " \t");
    end = colon + strlen(colon);
    while (end > colon && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = '\0';
    for (const char *p = colon; *p; p++)
        if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7f)
            return refuse(400, "a header value has control characters", why);
    out->headers[out->n_header++] = (struct esp_http_header){line, colon};
    return 0;
}

int esp_http_parse_head(char *data, size_t len, size_t max_uri, struct esp_http_head *out, const char **why)
{
    char *at = data, *end = data + len, *line;
    int status;

    memset(out, 0, sizeof *out);
    out->method = out->path = out->query = "";
    *end = '\0';
    while (at < end && (*at == '\r' || *at == '\n'))
        at++;
    line = next_line(&at, end);
    if (!line)
        return refuse(400, "the request line has a control character", why);
    status = parse_request_line(line, max_uri, out, why);
    if (status)
        return status;
    while (at < end) {
        line = next_line(&at, end);
        if (!line)
            return refuse(400, "a header line has a control character", why);
        if (!*line)
            break;
        status = parse_header(line, out, why);
        if (status)
            return status;
    }
    return framing(out, why);
}

bool esp_http_query(const char *query, const char *name, char *out, size_t cap)
{
    const size_t len = strlen(name);

    while (*query) {
        const size_t n = strcspn(query, "&");

        if (n >= len && strncmp(query, name, len) == 0 && (n == len || query[len] == '=')) {
            const size_t skip = n == len ? len : len + 1;

            if (n - skip >= cap)
                return false;
            memcpy(out, query + skip, n - skip);
            out[n - skip] = '\0';
            return percent_decode(out, true);
        }
        query += n + (query[n] == '&');
    }
    return false;
}

/* ---- chunks ---- */

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_END, DATA_LF, TRAILER, TRAILER_LINE, LAST_LF };

/* One byte of anything but content; false: malformed. */
static bool chunk_byte(struct esp_http_chunks *c, char b, bool *done)
{
    const int digit = hex_value(b);

    switch (c->state) {
    case SIZE:
        if (digit >= 0 && c->left < UINT64_MAX / 32) {
            c->left = c->left * 16 + (uint64_t)digit;
            c->digits = true;
            return true;
        }
        if (!c->digits || digit >= 0)
            return false;
        c->state = b == '\r' ? SIZE_LF : EXTENSION;
        return b == '\r' || b == ';' || b == ' ' || b == '\t';
    case EXTENSION:
        if (b == '\r')
            c->state = SIZE_LF;
        return b != '\n';
    case SIZE_LF:
        c->state = c->left ? DATA : TRAILER;
        c->line = 0;
        return b == '\n';
    case DATA_END:
        c->state = DATA_LF;
        return b == '\r';
    case DATA_LF:
        c->state = SIZE;
        c->line = 0;
        c->digits = false;
        return b == '\n';
    case TRAILER:
        c->state = b == '\r' ? LAST_LF : TRAILER_LINE;
        return b != '\n';
    case TRAILER_LINE:
        if (b == '\n')
            c->state = TRAILER;
        return true;
    default:
        *done = true;
        return b == '\n';
    }
}

enum esp_http_more esp_http_chunks_feed(struct esp_http_chunks *c, const char *data, size_t len, size_t *used,
                                        struct esp_strbuf *body)
{
    size_t at = 0;

    while (at < len) {
        bool done = false;

        if (c->state == DATA) {
            const size_t n = c->left < len - at ? (size_t)c->left : len - at;

            *used = at;
            if (!esp_strbuf_add(body, data + at, n))
                return ESP_HTTP_TOO_LARGE;
            at += n;
            c->left -= n;
            if (c->left == 0)
                c->state = DATA_END;
            continue;
        }
        if (c->state == SIZE && c->digits && c->left > body->max) {
            *used = at;
            return ESP_HTTP_TOO_LARGE;
        }
        if (++c->line > MAX_CHUNK_LINE || !chunk_byte(c, data[at], &done)) {
            *used = at;
            return ESP_HTTP_BAD;
        }
        at++;
        if (done) {
            *used = at;
            return ESP_HTTP_DONE;
        }
    }
    *used = at;
    return ESP_HTTP_MORE;
}

const char *esp_http_reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } table[] = {{200, "OK"},
                 {201, "Created"},
                 {202, "Accepted"},
                 {204, "No Content"},
                 {400, "Bad Request"},
                 {401, "Unauthorized"},
                 {403, "Forbidden"},
                 {404, "Not Found"},
                 {405, "Method Not Allowed"},
                 {408, "Request Timeout"},
                 {409, "Conflict"},
                 {413, "Content Too Large"},
                 {414, "URI Too Long"},
                 {415, "Unsupported Media Type"},
                 {429, "Too Many Requests"},
                 {431, "Request Header Fields Too Large"},
                 {500, "Internal Server Error"},
                 {501, "Not Implemented"},
                 {503, "Service Unavailable"},
                 {505, "HTTP Version Not Supported"},
                 {529, "Overloaded"}};

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].status == status)
            return table[i].text;
    return "Status";
}
