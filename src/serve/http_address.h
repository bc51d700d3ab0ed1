/*
 * Addresses that a server listens on, as people write them. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_HTTP_ADDRESS_H
#define ESP_SERVE_HTTP_ADDRESS_H

#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/status.h"

union esp_http_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_un un;
};

/* "127.0.0.1", "::1", "localhost", "unix:/path"; a stale socket file is removed. ESP_EINVAL: neither;
 * ESP_EIO: something else lies at the path. */
esp_status esp_http_address_make(union esp_http_address *a, socklen_t *len, const char *host, uint16_t port,
                                 esp_error *err);
/* Port that fd is bound to; 0 for a socket file. */
uint16_t esp_http_address_port(int fd);
/* The address without its port, or "unix". */
void esp_http_address_name(char *out, size_t cap, const struct sockaddr *a);

#endif
