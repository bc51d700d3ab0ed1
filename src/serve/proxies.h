/*
 * Proxies in front of the server whose X-Forwarded-For is believed. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_PROXIES_H
#define ESP_SERVE_PROXIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* A block of addresses; IPv4 ones as ::ffff:a.b.c.d. */
struct esp_cidr {
    uint8_t address[16];
    unsigned bits; /* that count, from the front */
};

/* "10.0.0.0/8", "127.0.0.1", "fd00::/8", or "unix" for callers on a socket file. ESP_EINVAL. */
esp_status esp_cidr_parse(struct esp_cidr *out, const char *text, esp_error *err);
bool esp_cidr_has(const struct esp_cidr *list, size_t n, const char *address);

/*
 * Who asks: peer, unless it is one of the proxies; then the last address of forwarded (the header's value,
 * NULL: none) that is none of them. What proxies in front of it claim is not believed, and an address that
 * cannot be read ends the search.
 */
void esp_client_address(char *out, size_t cap, const struct esp_cidr *list, size_t n, const char *peer,
                        const char *forwarded);

#endif
