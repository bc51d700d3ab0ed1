/*
 * See the header.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/http_listen.h"

#include <errno.h>
#include <event2/event.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "serve/http_address.h"

esp_status esp_listeners_add(struct esp_listeners *l, const struct esp_listener_opts *o, const char *host,
                             uint16_t port, uint16_t *bound, esp_error *err)
{
    struct evconnlistener *one;
    union esp_http_address a;
    socklen_t len = 0;

    if (l->n == ESP_MAX_LISTENERS)
        return esp_fail(err, ESP_EINVAL, "more than %d addresses to listen on", ESP_MAX_LISTENERS);
    ESP_TRY(esp_http_address_make(&a, &len, host, port, err));
    one = evconnlistener_new_bind(o->base, o->accept, o->arg,
                                  LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC |
                                      (a.any.sa_family == AF_UNIX ? 0u : LEV_OPT_REUSEABLE),
                                  (int)o->backlog, &a.any, (int)len);
    if (!one)
        return esp_fail(err, ESP_EIO, "cannot listen on %s port %u: %s", host, (unsigned)port,
                        strerror(errno));
    if (a.any.sa_family == AF_UNIX)
        snprintf(l->socket_files[l->n], sizeof l->socket_files[0], "%s", a.un.sun_path);
    l->v[l->n++] = one;
    *bound = esp_http_address_port(evconnlistener_get_fd(one));
    return ESP_OK;
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
