/*
 * See the header.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/http_listen.h"

#include <errno.h>
#include <event2/event.h>
#include <event2/util.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/http_address.h"

esp_status esp_listen_socket(int *out, const char *host, uint16_t port, uint16_t *bound, esp_error *err)
{
    union esp_http_address a;
    socklen_t len = 0;
    const int on = 1;
    int fd;

    ESP_TRY(esp_http_address_make(&a, &len, host, port, err));
    fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && a.any.sa_family != AF_UNIX)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, &a.any, len) != 0) {
        esp_fail(err, ESP_EIO, "cannot listen on %s port %u: %s%s", host, (unsigned)port, strerror(errno),
                 errno == EADDRINUSE ? "; --port takes another one, 0 a free one" : "");
        if (fd >= 0)
            close(fd);
        return ESP_EIO;
    }
    *bound = esp_http_address_port(fd);
    *out = fd;
    return ESP_OK;
}

/* fd is taken over. */
static esp_status add(struct esp_listeners *l, const struct esp_listener_opts *o, int fd, const char *file,
                      esp_error *err)
{
    struct evconnlistener *one = evconnlistener_new(
        o->base, o->accept, o->arg, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, (int)o->backlog, fd);

    if (!one) {
        esp_fail(err, ESP_EIO, "cannot listen: %s", strerror(errno));
        close(fd);
        return ESP_EIO;
    }
    snprintf(l->socket_files[l->n], sizeof l->socket_files[0], "%s", file);
    l->v[l->n++] = one;
    return ESP_OK;
}

static esp_status has_room(const struct esp_listeners *l, esp_error *err)
{
    if (l->n == ESP_MAX_LISTENERS)
        return esp_fail(err, ESP_EINVAL, "more than %d addresses to listen on", ESP_MAX_LISTENERS);
    return ESP_OK;
}

esp_status esp_listeners_add(struct esp_listeners *l, const struct esp_listener_opts *o, const char *host,
                             uint16_t port, uint16_t *bound, esp_error *err)
{
    int fd = -1;

    ESP_TRY(has_room(l, err));
    ESP_TRY(esp_listen_socket(&fd, host, port, bound, err));
    return add(l, o, fd, strncmp(host, "unix:", 5) == 0 ? host + 5 : "", err);
}

esp_status esp_listeners_inherit(struct esp_listeners *l, const struct esp_listener_opts *o, int fd,
                                 uint16_t *bound, esp_error *err)
{
    const int mine = dup(fd); /* whoever gave it keeps it */

    ESP_TRY(has_room(l, err));
    if (mine < 0 || evutil_make_socket_nonblocking(mine) != 0)
        return esp_fail(err, ESP_EIO, "descriptor %d is no socket to listen on: %s", fd, strerror(errno));
    *bound = esp_http_address_port(mine);
    return add(l, o, mine, "", err);
}

void esp_listeners_take(struct esp_listeners *l, bool on)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i])
            (on ? evconnlistener_enable : evconnlistener_disable)(l->v[i]);
}

void esp_listeners_stop(struct esp_listeners *l)
{
    for (size_t i = 0; i < l->n; i++) {
        if (l->v[i])
            evconnlistener_free(l->v[i]);
        if (l->v[i] && l->socket_files[i][0])
            unlink(l->socket_files[i]);
        l->v[i] = NULL;
    }
}
