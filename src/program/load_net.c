/*
 * See the header.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/load_net.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "program/load_reply.h"

enum { CONNECT_MS = 10000, READ_MS = 30000, SMALL_BUFFER = 4096 };

esp_status esp_load_target_parse(struct esp_load_target *out, const char *url, esp_error *err)
{
    const char *host = url, *end;
    size_t n;

    memset(out, 0, sizeof *out);
    snprintf(out->shown, sizeof out->shown, "%.*s", (int)sizeof out->shown - 1, url);
    if (strncmp(url, "unix:", 5) == 0) {
        if (url[5] != '/' || strlen(url + 5) >= sizeof(((struct sockaddr_un *)NULL)->sun_path))
            return esp_fail(err, ESP_EINVAL, "'%s': unix: is followed by the path of a socket", url);
        snprintf(out->host, sizeof out->host, "%s", url + 5);
        return ESP_OK;
    }
    if (strncmp(url, "https://", 8) == 0)
        return esp_fail(err, ESP_EUNSUPPORTED, "'%s': TLS is not spoken; measure the server behind the proxy",
                        url);
    if (strncmp(url, "http://", 7) == 0)
        host += 7;
    else if (strstr(url, "://"))
        return esp_fail(err, ESP_EINVAL, "'%s': http://HOST[:PORT] or unix:/PATH", url);
    end = host + strcspn(host, "/");
    if (host[0] == '[') {
        host++;
        n = strcspn(host, "]");
        url = host + n + (host[n] == ']');
    } else {
        n = strcspn(host, ":/");
        url = host + n;
    }
    if (n == 0 || n >= sizeof out->host || strlen(end) >= sizeof out->prefix)
        return esp_fail(err, ESP_EINVAL, "'%s': http://HOST[:PORT] or unix:/PATH", out->shown);
    memcpy(out->host, host, n);
    snprintf(out->port, sizeof out->port, "%s", "80");
    if (*url == ':')
        snprintf(out->port, sizeof out->port, "%.*s", (int)strcspn(url + 1, "/"), url + 1);
    snprintf(out->prefix, sizeof out->prefix, "%s", end);
    n = strlen(out->prefix);
    while (n && out->prefix[n - 1] == '/')
        out->prefix[--n] = '\0';
    return ESP_OK;
}

static bool connected(int fd, const struct sockaddr *a, socklen_t len)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int error = 0;
    socklen_t size = sizeof error;

    if (connect(fd, a, len) == 0)
        return true;
    if (errno != EINPROGRESS && errno != EAGAIN)
        return false;
    return poll(&p, 1, CONNECT_MS) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
           error == 0;
}

static int try_one(int family, const struct sockaddr *a, socklen_t len, bool small)
{
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1,
              bytes = SMALL_BUFFER;

    if (fd < 0)
        return -1;
    if (small)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connected(fd, a, len))
        return fd;
    close(fd);
    return -1;
}

int esp_load_connect(const struct esp_load_target *t, bool small)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct addrinfo *list = NULL;
    int fd = -1;

    if (!t->port[0]) {
        snprintf(un.sun_path, sizeof un.sun_path, "%.*s", (int)sizeof un.sun_path - 1, t->host);
        return try_one(AF_UNIX, (const struct sockaddr *)&un, sizeof un, small);
    }
    if (getaddrinfo(t->host, t->port, &hints, &list) != 0)
        return -1;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
        fd = try_one(a->ai_family, a->ai_addr, a->ai_addrlen, small);
    freeaddrinfo(list);
    return fd;
}

void esp_load_request(struct esp_strbuf *out, const struct esp_load_target *t, const char *key,
                      const char *path, const struct esp_strbuf *body)
{
    const bool bracket = strchr(t->host, ':') != NULL;

    esp_strbuf_printf(out, "%s %s%s HTTP/1.1\r\n", body ? "POST" : "GET", t->prefix, path);
    if (t->port[0])
        esp_strbuf_printf(out, "Host: %s%s%s:%s\r\n", bracket ? "[" : "", t->host, bracket ? "]" : "",
                          t->port);
    else
        esp_strbuf_puts(out, "Host: localhost\r\n");
    if (key)
        esp_strbuf_printf(out, "Authorization: Bearer %s\r\n", key);
    if (body)
        esp_strbuf_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body->len);
    esp_strbuf_puts(out, "\r\n");
    if (body)
        esp_strbuf_add(out, esp_strbuf_str(body), body->len);
}

static void no_data(void *user, const char *s, size_t len)
{
    (void)user;
    (void)s;
    (void)len;
}

int esp_load_get(const struct esp_load_target *t, const char *key, const char *path, struct esp_strbuf *out)
{
    const int fd = esp_load_connect(t, false);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    struct esp_strbuf request;
    struct esp_reply r;
    char piece[16384];
    int status = 0;

    if (fd < 0)
        return 0;
    esp_reply_init(&r, no_data, NULL);
    esp_strbuf_init(&request, 4096);
    esp_load_request(&request, t, key, path, NULL);
    if (send(fd, esp_strbuf_str(&request), request.len, MSG_NOSIGNAL) == (ssize_t)request.len) {
        while (r.state != ESP_REPLY_DONE && r.state != ESP_REPLY_BAD && poll(&p, 1, READ_MS) == 1) {
            const ssize_t n = recv(fd, piece, sizeof piece, 0);

            if (n <= 0) {
                esp_reply_end(&r);
                break;
            }
            esp_reply_feed(&r, piece, (size_t)n);
        }
    }
    if (r.state == ESP_REPLY_DONE && esp_strbuf_add(out, esp_strbuf_str(&r.body), r.body.len))
        status = r.status;
    close(fd);
    esp_strbuf_free(&request);
    esp_reply_free(&r);
    return status;
}
