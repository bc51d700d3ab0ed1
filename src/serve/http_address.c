/*
 * See the header. A socket file is removed only after a try to connect found nobody behind it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/http_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void esp_http_address_name(char *out, size_t cap, const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)a)->sin_addr, out, (socklen_t)cap);
    else if (a->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, out, (socklen_t)cap);
    else
        snprintf(out, cap, "unix");
}

/* Remove a socket file that nobody listens on. */
static esp_status clear_socket_file(const char *path, esp_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    int fd, taken;

    if (lstat(path, &st) != 0)
        return ESP_OK;
    if (!S_ISSOCK(st.st_mode))
        return esp_fail(err, ESP_EIO, "%s: exists and is not a socket", path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(a.sun_path, path, strlen(path) + 1);
    taken = fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
    if (fd >= 0)
        close(fd);
    if (taken)
        return esp_fail(err, ESP_EIO, "%s: another server listens there", path);
    if (unlink(path) != 0)
        return esp_fail(err, ESP_EIO, "%s: %s", path, strerror(errno));
    return ESP_OK;
}

esp_status esp_http_address_make(union esp_http_address *a, socklen_t *len, const char *host, uint16_t port,
                                 esp_error *err)
{
    memset(a, 0, sizeof *a);
    if (strncmp(host, "unix:", 5) == 0) {
        const char *path = host + 5;

        if (!*path || strlen(path) >= sizeof a->un.sun_path)
            return esp_fail(err, ESP_EINVAL, "'%s': a socket path has 1 to %zu bytes", host,
                            sizeof a->un.sun_path - 1);
        a->un.sun_family = AF_UNIX;
        memcpy(a->un.sun_path, path, strlen(path) + 1);
        *len = sizeof a->un;
        return clear_socket_file(path, err);
    }
    if (strcmp(host, "localhost") == 0)
        host = "127.0.0.1";
    if (inet_pton(AF_INET, host, &a->v4.sin_addr) == 1) {
        a->v4.sin_family = AF_INET;
        a->v4.sin_port = htons(port);
        *len = sizeof a->v4;
        return ESP_OK;
    }
    if (inet_pton(AF_INET6, host, &a->v6.sin6_addr) == 1) {
        a->v6.sin6_family = AF_INET6;
        a->v6.sin6_port = htons(port);
        *len = sizeof a->v6;
        return ESP_OK;
    }
    return esp_fail(err, ESP_EINVAL, "'%s' is neither an address nor unix:/path", host);
}

uint16_t esp_http_address_port(int fd)
{
    union esp_http_address a;
    socklen_t len = sizeof a;

    memset(&a, 0, sizeof a);
    if (getsockname(fd, &a.any, &len) != 0)
        return 0;
    return a.any.sa_family == AF_INET    ? ntohs(a.v4.sin_port)
           : a.any.sa_family == AF_INET6 ? ntohs(a.v6.sin6_port)
                                         : (uint16_t)0;
}
