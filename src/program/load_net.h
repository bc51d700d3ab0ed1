/*
 * Where a load goes: addresses, connections, the text of a request. Private to load.c and bench.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_LOAD_NET_H
#define ESP_PROGRAM_LOAD_NET_H

#include "program/load.h"

/* A connected descriptor that does not block, or -1. small: with a receive buffer as small as the system has
 * it, so that a client that does not read is felt. */
int esp_load_connect(const struct esp_load_target *t, bool small);
/* A request with its body (NULL: a GET) behind what out holds. */
void esp_load_request(struct esp_strbuf *out, const struct esp_load_target *t, const char *key,
                      const char *path, const struct esp_strbuf *body);

#endif
