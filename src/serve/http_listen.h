/*
 * Sockets that a server accepts on. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_HTTP_LISTEN_H
#define ESP_SERVE_HTTP_LISTEN_H

#include <event2/listener.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { ESP_MAX_LISTENERS = 8 };

struct esp_listeners {
    struct evconnlistener *v[ESP_MAX_LISTENERS];
    char socket_files[ESP_MAX_LISTENERS][108]; /* "" for a port */
    size_t n;
};

struct esp_listener_opts {
    struct event_base *base;
    evconnlistener_cb accept;
    void *arg;
    uint32_t backlog;
};

/* A socket bound to the address, for esp_listeners_inherit(); *bound as esp_http_listen() has it. */
esp_status esp_listen_socket(int *out, const char *host, uint16_t port, uint16_t *bound, esp_error *err);
/* Accept on fd, which stays the caller's; its socket file, if it has one, is the caller's too. */
esp_status esp_listeners_inherit(struct esp_listeners *l, const struct esp_listener_opts *o, int fd,
                                 uint16_t *bound, esp_error *err);
/* One address more; see esp_http_listen(). */
esp_status esp_listeners_add(struct esp_listeners *l, const struct esp_listener_opts *o, const char *host,
                             uint16_t port, uint16_t *bound, esp_error *err);
/* Whether new connections are taken, or wait in the system's queue. */
void esp_listeners_take(struct esp_listeners *l, bool on);
/* Close them; socket files go. */
void esp_listeners_stop(struct esp_listeners *l);

#endif
