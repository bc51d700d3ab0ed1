/*
 * See the header.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/manager.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "program/output.h"
#include "serve/http_address.h"

enum { FIRST_FD = 3, MAX_ADDRESS = 120 };

static long number(const char *name)
{
    const char *text = getenv(name);

    return text ? strtol(text, NULL, 10) : 0;
}

static bool is_listening(int fd)
{
    int on = 0, type = 0;
    socklen_t n = sizeof on;

    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &n) == 0 && on &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_STREAM;
}

/* As --host has it, into room that lives as long as the process. */
static const char *name_of(int fd, char name[MAX_ADDRESS])
{
    union esp_http_address a;
    socklen_t len = sizeof a;

    memset(&a, 0, sizeof a);
    getsockname(fd, &a.any, &len);
    if (a.any.sa_family == AF_UNIX)
        snprintf(name, MAX_ADDRESS, "unix:%.100s", a.un.sun_path);
    else
        esp_http_address_name(name, MAX_ADDRESS, &a.any);
    return name;
}

esp_status esp_manager_sockets(struct esp_serve_opts *o, esp_error *err)
{
    static char names[ESP_SERVE_MAX_HOSTS][MAX_ADDRESS];
    const long n = number("LISTEN_PID") == (long)getpid() ? number("LISTEN_FDS") : 0;

    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    if (n <= 0)
        return ESP_OK;
    if (n > ESP_SERVE_MAX_HOSTS)
        return esp_fail(err, ESP_EINVAL, "LISTEN_FDS=%ld: at most %d sockets are accepted on", n,
                        ESP_SERVE_MAX_HOSTS);
    if (o->n_host)
        return esp_fail(err, ESP_EINVAL,
                        "--host %s: the service manager has given sockets already (LISTEN_FDS=%ld)",
                        o->hosts[0], n);
    for (int i = 0; i < n; i++) {
        if (!is_listening(FIRST_FD + i))
            return esp_fail(err, ESP_EINVAL, "LISTEN_FDS=%ld: descriptor %d is no stream socket that listens",
                            n, FIRST_FD + i);
        o->inherited[i] = FIRST_FD + i;
        o->hosts[i] = name_of(FIRST_FD + i, names[i]);
    }
    o->n_host = o->n_inherited = (size_t)n;
    return ESP_OK;
}

int esp_manager_open(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const size_t len = path ? strlen(path) : 0;
    int fd;

    if (len == 0 || len >= sizeof a.sun_path || (*path != '/' && *path != '@'))
        return -1;
    memcpy(a.sun_path, path, len);
    if (*path == '@')
        a.sun_path[0] = '\0'; /* a name that is no file */
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 &&
        connect(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) == 0)
        return fd;
    esp_say_warn("NOTIFY_SOCKET=%s: nobody can be told there", path);
    if (fd >= 0)
        close(fd);
    return -1;
}

void esp_manager_tell(int fd, const char *text)
{
    if (fd < 0)
        return;
    if (send(fd, text, strlen(text), MSG_NOSIGNAL) < 0)
        esp_say_warn("the service manager could not be told '%s'", text);
    close(fd);
}
